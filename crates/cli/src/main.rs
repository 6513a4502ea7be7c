//! The program `partage`; see the library of the same crate.

/// Runs the command that the command line names.
fn main() -> std::process::ExitCode {
    partage_cli::main()
}
