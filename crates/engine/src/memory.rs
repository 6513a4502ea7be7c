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
