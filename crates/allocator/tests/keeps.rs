//! The option that is set is the one that is meant: the numbers of options are those of one version of the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: partage_allocator::Allocator = partage_allocator::Allocator;

fn main() -> ExitCode {
    // What the library documents as the default of this option, and no other has by it.
    assert_eq!(partage_allocator::kept_ms(), 1_000);
    let beside = std::thread::spawn(partage_allocator::keep_freed_memory);
    assert!(!beside.join().expect("it does not panic"), "there were two threads");
    assert_eq!(partage_allocator::kept_ms(), 1_000);
    // The system may need a moment to see that the other thread has gone.
    let mut tries = 0;
    while !partage_allocator::keep_freed_memory() {
        tries += 1;
        assert!(tries < 1_000_000, "the system does not say that this process has one thread");
        std::thread::yield_now();
    }
    assert_eq!(partage_allocator::kept_ms(), 30_000);
    ExitCode::SUCCESS
}
