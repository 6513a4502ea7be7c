//! The coordinator: a thin driver around [`partage_core::cluster::Cluster`].
//!
//! ```text
//!  worker streams ─┐                      ┌─► orders to worker streams
//!  HTTP workers  ──┤   calls    mind      ├─► maps to routers
//!  admin API     ──┼──(bounded)──► core ──┤
//!  address checks ─┘              │       └─► answers
//!                                 ▼
//!                               store: nothing leaves before it is durable
//! ```
//!
//! One task, the [`mind`], owns the cluster and takes calls one batch at a time: all calls of a batch, then
//! the decisions that follow, then one durable transaction, then everything that leaves. A transaction
//! that fails ends the mind; what was in memory is thrown away and a new mind starts from what is durable.
//! Questions never wait for a disk.

mod audience;
mod backing;
mod callback;
mod check_back;
mod clock;
mod desk;
mod events;
mod failed;
mod forward;
mod front;
mod grpc;
mod http;
pub mod inspect;
mod leaders;
pub mod limits;
mod listen;
mod metrics;
mod mind;
mod part;
mod publish;
mod registering;
pub mod restore;
mod roster;
mod service;
pub mod show;
mod standby;
mod store;
mod terms;
mod trays;
mod upkeep;

pub use backing::{Backing, keeps_maps};
pub use limits::SESSION_MS;
pub use service::{Config, Coordinator, StartError};
pub use store::StoreError;
