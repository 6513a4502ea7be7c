//! The program `partage`; see the library of the same crate.

#[global_allocator]
static ALLOCATOR: partage_allocator::Allocator = partage_allocator::Allocator;

/// Runs the command that the command line names.
fn main() -> std::process::ExitCode {
    partage_allocator::keep_freed_memory();
    partage_cli::main()
}
