//! Arrow Flight for shuffles: any client of Flight, such as pyarrow, starts, writes, seals and reads them. At the address of each
//! node of a pool, beside its other protocols.
//!
//! ```text
//!  DoAction start ─► DoPut attempts of partitions 0, 1, … ─► DoAction seal ─► GetFlightInfo n ─► DoGet of each endpoint
//!        │                   │                                                     │                  │
//!        ▼                   ▼                                                     ▼                  ▼
//!     schema, order      batches ─► rows ─► records ─► buffer              ranks, holders      records ─► rows ─► batches
//! ```
//!
//! | question | file |
//! |---|---|
//! | how rows are ordered, and how they become records | `rows/` |
//! | what the records of a shuffle are: rows, or keys and values as they are | `kind.rs` |
//! | which calls there are | `service.rs` |
//! | what an action is asked, and answers | `actions.rs` |
//! | what a descriptor and a ticket say | `descriptor.rs`, `ticket.rs` |
//! | how an attempt comes in, and when it is whole | `put.rs` |
//! | which endpoints a flight has, and where | `info.rs` |
//! | how records go out | `get.rs` |
//! | what all calls take in memory | `memory.rs` |
//! | what a message claims to become, and how it is read | `ipc.rs`, `decode.rs` |
//! | how rows of equal keys become one | `combine.rs`, `rows/numbers.rs` |
//! | which status an error has | `status.rs` |
//!
//! # What was not done
//!
//! | what | where |
//! |---|---|
//! | a node that knows nothing of a shuffle asks its leader what the records are, also when it is sealed: then it is read here only once a leader is there | `service.rs` |
//! | how many records partitions have that are cut at bytes or between keys is not said before they are read | `info.rs` |
//! | rows of a shuffle that a client of records has written by itself are read as far as they are rows: what lies behind one is left out | `rows/mod.rs` |
//! | a null of a list of a fixed size takes a byte as it is stored, and all its items where it is read: lists of such lists can take more memory than a read counts | `get.rs` |
//! | handshakes, exchanges and polls: there is nothing to log in to, to exchange, or to wait for | `service.rs` |
#![forbid(unsafe_code)]

mod actions;
mod combine;
mod decode;
mod descriptor;
mod error;
mod get;
mod info;
mod ipc;
mod kind;
mod limits;
mod memory;
mod put;
mod rows;
mod service;
mod status;
mod ticket;

pub use error::RowsError;
pub use rows::Rows;
pub use service::{ShuffleFlights, routes, uri};
