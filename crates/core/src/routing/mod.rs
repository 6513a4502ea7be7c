//! The router's state machine: which map it has, whom it asks, and when it asks again.
//!
//! Think of a switchboard with a telephone book that is corrected while people ring. The book ([`table`])
//! is only ever replaced by a later one. For each call the operator picks a number ([`choose`]); when nobody
//! answers, or says "not me, ask her", the operator goes by a card with rules ([`retry`]) and by a purse
//! that keeps all second tries together small ([`budget`]).
//!
//! ```text
//!  pushed maps ──► table ──► routes (immutable, shared by all threads)
//!                               │
//!              request ──► choose ──► asked ──► retry: deliver, ask again, rest, give up
//! ```
//!
//! A driver does the sending, tells the time and draws the seeds: `crates/router` with real connections.

pub mod back;
pub mod budget;
pub mod choose;
mod layout;
pub mod pace;
pub mod retry;
pub mod routes;
pub mod table;

pub use layout::LayoutError;

#[cfg(test)]
mod tests;
