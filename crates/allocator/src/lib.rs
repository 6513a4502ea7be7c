//! The allocator of Partage's programs.
//!
//! Small blocks by the hundred thousand a second, on several threads: the allocator of the C library took a third of the time of
//! a node of tables. mimalloc gives memory back to the system, which zeroes each page when it is used again. By its default it
//! does so after a second: a node of shuffles, whose buffers live about as long, then spent an eighth of its time on pages that
//! it had had before. So programs keep what is freed for longer ([`keep_freed_memory`]).

use std::ffi::{c_int, c_long};

pub use mimalloc::MiMalloc as Allocator;

/// After so long freed memory goes back to the system, in milliseconds: several times as long as a buffer lives under load, and
/// short for a process that has become idle.
const KEPT_MS: c_long = 30_000;

/// The number of mimalloc's option `purge_delay`, in milliseconds.
const PURGE_DELAY: c_int = 15;

#[expect(unsafe_code, reason = "the options of mimalloc are functions of C")]
// SAFETY: these are the declarations of mimalloc's header `mimalloc.h`, and the library is linked in with `Allocator`.
unsafe extern "C" {
    fn mi_option_get(option: c_int) -> c_long;
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// Freed memory goes back to the system after half a minute, unless the environment says otherwise (`MIMALLOC_PURGE_DELAY`,
/// milliseconds). A program calls this before it starts a thread: otherwise nothing is changed, and the answer is false.
pub fn keep_freed_memory() -> bool {
    if !has_one_thread() {
        return false;
    }
    #[expect(unsafe_code, reason = "the options of mimalloc are functions of C")]
    // SAFETY: the function stores a number in a table of options, and may not be called while another thread uses the allocator.
    // There is no other thread, and this one does nothing else.
    unsafe {
        mi_option_set_default(PURGE_DELAY, KEPT_MS);
    }
    true
}

/// How long freed memory is kept, in milliseconds.
pub fn kept_ms() -> i64 {
    #[expect(unsafe_code, reason = "the options of mimalloc are functions of C")]
    // SAFETY: the function reads a number from a table of options. Only `keep_freed_memory` changes one, before there are
    // threads.
    unsafe {
        mi_option_get(PURGE_DELAY)
    }
}

/// Whether the system says that this process has no other thread.
fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}
