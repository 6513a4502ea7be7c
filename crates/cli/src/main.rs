//! The `partage` command.
fn main() {}
