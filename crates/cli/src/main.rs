//! The program `partage`; see the library of the same crate.

/// Small blocks by the hundred thousand a second, on several threads: the allocator of the C library took a third of the time of
/// a node of tables. Threads of the allocator give back to the system what a burst of requests has used, some ten seconds later.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs the command that the command line names.
fn main() -> std::process::ExitCode {
    partage_cli::main()
}
