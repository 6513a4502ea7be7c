//! The router's state machine: which map it has, which node it asks, and when it asks again.
//!
//! [`table`] holds the maps, and replaces each only by a later one. For each request [`choose`] picks a replica.
//! When a node does not answer, or names another owner, [`retry`] decides what to do next, and [`budget`]
//! limits the retries of all requests together.
//!
//! ```text
//!  pushed maps ──► table ──► routes (immutable, shared by all threads)
//!                               │
//!              request ──► choose ──► asked ──► retry: deliver, ask again, rest, give up
//! ```
//!
//! A driver sends the requests, and gives the time and the seeds: `crates/router` with real connections.

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
