//! Commands of the book, typed into a shell as they stand there: what is printed is what the book says.
//!
//! A person looks again when something is not done yet. So what only looks is repeated until it shows what the book does;
//! what changes something is typed once. Only ports, folders, times and what a page says varies differ here.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

mod page;
#[path = "../process/mod.rs"]
mod process;
mod shell;
mod shuffles;
mod tables;
mod tutorial;

/// The hundreds of the ports for one of the tests of this program, 0 to 2: below those that systems give by themselves, and above
/// those that servers of other tests take (`backends`), as what was killed here is to find its ports free. `up` takes ports up to
/// the third hundred above its own.
fn hundreds(test: u32) -> u32 {
    301 + std::process::id() % 2 * 12 + test * 4
}
