//! The program `partage`; see the library of the same crate.

/// Small blocks by the hundred thousand a second, on several threads: the allocator of the C library took a third of the time of
/// a node of tables. It
/// gives back to the system what a burst of requests has used.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the command that the command line names.
fn main() -> std::process::ExitCode {
    partage_cli::main()
}
