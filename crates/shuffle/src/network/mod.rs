//! A node over the network: its packets as frames, and what comes in.
//!
//! ```text
//!  thread of the node ── Transport ──► short frames ─────────────────► Peers ═══► other nodes
//!                                 └──► bulk: a bounded lane for each node, encoded by a task of its own
//!  other nodes ═══► Server ── Service ──► inbox of the node     no connection is read while the inbox has no room
//!  clients ═══════► Server ── Session ──► inbox ── answers ──► clients
//! ```
//!
//! | question | file |
//! |---|---|
//! | how packets become frames, and which are dropped | `transport.rs` |
//! | where what comes in goes | `service.rs` |
//! | what a connection of a client may do at a time | `session.rs` |
//! | how records of an attempt come in, and how it ends | `attempt.rs` |
//! | what is asked of leaders and holders for a client, and what it is answered | `calls.rs` |
//! | where partitions begin, and which keys are heavier than one | `cuts.rs` |
//! | the same calls for tasks of the process of the node | `local.rs` |

mod attempt;
mod calls;
mod cuts;
mod local;
mod service;
mod session;
mod transport;

pub(crate) use calls::{Asks, waits_for};
pub use local::{LocalAttempt, LocalNode, LocalPartition, LocalRead, LocalReading, LocalSeal};
pub use service::PoolService;
pub use transport::{ReadySlots, WireTransport};
