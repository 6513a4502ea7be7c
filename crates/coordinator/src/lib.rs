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
//! One task, the [`decision_loop`], owns the cluster and takes calls one batch at a time: all calls of a batch, then
//! the decisions that follow, then one durable transaction, then everything that leaves. A transaction that fails ends
//! the decision loop; what was in memory is thrown away and a new decision loop starts from what is durable. Questions
//! never wait for a disk.

mod admin;
mod api_error;
mod backing;
mod callback;
mod check_back;
mod clock;
mod coordinator_list;
mod decision_loop;
mod events;
mod forward;
mod grpc;
mod http;
pub mod inspect;
mod leaders;
pub mod limits;
mod listen;
mod local_metadata;
mod metrics;
mod notifier;
mod order_channels;
mod publish;
mod registering;
pub mod restore;
mod service;
pub mod show;
mod standby;
mod store;
mod swappable_router;
mod terms;
mod upkeep;

pub use backing::{Backing, keeps_maps};
pub use limits::SESSION_MS;
pub use service::{Config, Coordinator, StartError};
pub use store::StoreError;
