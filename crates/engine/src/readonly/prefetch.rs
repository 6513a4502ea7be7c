//! Asking the processor for memory ahead of its use: nothing waits for it.

/// Has the line of memory fetched in which a byte lies, to be read soon, or to be written.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "an instruction that takes an address; the proof is in the function")]
pub fn prefetch<const IS_WRITTEN: bool>(byte: &u8) {
    use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
    let at = std::ptr::from_ref(byte).cast();
    // SAFETY: to the program this instruction does nothing: it neither reads nor writes what the address leads to, and does
    // not fail wherever that is. Every processor of this kind has it. The address is that of a byte which can be read all
    // the same.
    unsafe {
        if IS_WRITTEN {
            _mm_prefetch::<_MM_HINT_ET0>(at);
        } else {
            _mm_prefetch::<_MM_HINT_T0>(at);
        }
    }
}

/// The same by a look, which the processor need not wait for either, as nothing depends on what is seen.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch<const IS_WRITTEN: bool>(byte: &u8) {
    std::hint::black_box(*byte);
}
