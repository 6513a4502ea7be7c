//! Tables over the protocol of Redis: `redis-cli` and the clients of all languages work as they are.
//!
//! ```text
//!  bytes ─► Parser ─► Session ─► Rows ─► Table (a trait)
//!                        │                  │
//!  bytes ◄─ Reply ◄──────┴──────────────────┘
//! ```
//!
//! | question | file |
//! |---|---|
//! | what a table must be able to do | `table.rs` |
//! | how requests are read, and which are refused | `request.rs`, `inline.rs` |
//! | which commands there are | `command/mod.rs` |
//! | what a command does with rows, and what it answers | `command/strings.rs`, `command/rows.rs` |
//! | how that is carried out on a table | `execute.rs`, `transaction.rs` |
//! | what a connection remembers | `session/mod.rs` |
//! | what is under way at the same time, and when nothing more is read | `connection.rs` |
//! | which errors clients see | `error.rs` |
//!
//! # What is promised
//!
//! - Answers come in the order of the commands. Commands for the same key take effect in that order, unless all of them only
//!   read.
//! - A reply whose word is not `UNKNOWN` is definite: if it is an error, nothing was done.
//! - Whatever a client sends, it gets a definite error or its connection ends; memory stays within the limits of `limits.rs`.
//!
//! # What was not done
//!
//! - There are only strings: no lists, sets, hashes, streams, scripts or channels.
//! - There are no passwords: the user name chooses the table.

mod command;
mod connection;
mod cursors;
mod error;
mod execute;
mod glob;
mod inline;
pub mod limits;
mod listener;
pub mod memory;
mod reply;
mod request;
mod session;
pub mod table;
mod transaction;

pub use listener::Listener;
pub use table::{Found, OneTable, Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table, Tables};
