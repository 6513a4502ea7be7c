//! The coordinator: a thin driver around [`partage_core::cluster::Cluster`].
//!
//! ```text
//!  worker streams ─┐          decision loop   ┌─► orders to worker streams
//!  HTTP workers  ──┤   calls      ┌──────┐    ├─► maps to routers
//!  admin API     ──┼──(bounded)──►│ core ├────┤
//!  address checks ─┘              └──┬───┘    └─► answers
//!                                    ▼
//!                                  store: nothing leaves before it is durable
//! ```
//!
//! One task, the [`decision_loop`](lead::decision_loop), owns the cluster and takes calls one batch at a time: all calls of a
//! batch, then the decisions that follow, then one durable transaction, then everything that leaves. A transaction that fails
//! ends the decision loop; what was in memory is thrown away and a new decision loop starts from what is durable. Questions
//! never wait for a disk.
//!
//! # A tour
//!
//! Each folder knows those before it in this list and none behind it.
//!
//! 1. **[`backend`]**: the session with the coordination backend, the candidacy in its election, the
//!    [`store`](backend::store) that turns what the cluster decided into one transaction, and records into a cluster at the
//!    start, and the [`map_store`](backend::map_store), which has the maps.
//! 2. **[`lead`]**: the decision loop, and what else a leader sees to: orders on their way out, addresses that it calls back.
//! 3. **[`publish`]**: what leaves once it is durable: maps to routers, events to the log, numbers to the metrics.
//! 4. **[`standby`]**: who leads while this coordinator does not, and its maps, passed on.
//! 5. **[`api`]**: what others ask, over HTTP and gRPC.
//! 6. **[`service`]**: a coordinator from start to stop, which turns one role into the other; begin here to see all of it
//!    at work.
//!
//! Beside them, **[`coordination_state`]** shows, checks and restores the coordination state of a cluster, without any
//! coordinator. Every limit is in [`limits`], every look at a clock in [`clock`].

mod api;
mod backend;
mod clock;
pub mod coordination_state;
mod lead;
pub mod limits;
mod publish;
mod service;
mod standby;

pub use backend::Backing;
pub use backend::map_store::stores_maps_inline;
pub use backend::store::StoreError;
pub use limits::SESSION_MS;
pub use service::{Config, Coordinator, StartError};
