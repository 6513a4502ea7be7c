//! Commands of the book, typed into a shell as they stand there: what is printed is what the book says.
//!
//! A person looks again when something is not done yet. So what only looks is repeated until it shows what the book does;
//! what changes something is typed once. Only ports, folders, times and what a page says varies differ here.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

mod page;
mod shell;
mod tables;
mod tutorial;
