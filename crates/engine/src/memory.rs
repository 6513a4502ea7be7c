//! Giving memory that was freed back to the system.

/// Has the allocator give back what it keeps of freed memory. It takes its locks one after the other for that, so whoever
/// allocates meanwhile may wait: some milliseconds for each gigabyte. Only that of the GNU C library can be asked.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of the C library; the proof is in the function")]
pub fn give_back() {
    // SAFETY: malloc_trim(3) takes a number and no address, may be called by any thread at any time (it is MT-safe), and
    // touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// See above.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back() {}

/// From this size on, in bytes, each block of memory is a mapping of its own, which goes back when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: i32 = 1 << 20;

/// Has the allocator give a large block back when it is freed. By itself it raises the limits to 32 and 64 MiB once it has
/// seen such a block, and then each of its arenas may keep so much for ever: [`give_back`] does not reach the end of an arena. Only
/// the GNU C library can be asked.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of the C library; the proof is in the function")]
pub fn give_back_large_blocks() {
    // SAFETY: mallopt(3) takes two numbers and no address, and changes limits that the allocator reads under its locks.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * LARGE_BYTES);
    }
}

/// See above.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back_large_blocks() {}
