//! The worker SDK: what a service links to be given shards, serve them, and hand them over without losing a
//! request or a write.
//!
//! A service says how a shard is loaded, served, unloaded and dropped ([`Handler`]). The worker registers,
//! keeps the lease, calls back, and knows at each request whose the key is ([`Worker::enter`], or for HTTP
//! services [`http::sharded`]):
//!
//! ```text
//!  request ──► enter ──► Serve      answer it, with a guard in hand
//!                   ├──► Elsewhere  forward it once, or send the caller there
//!                   ├──► Soon       a move is at its switch: hold it for a moment
//!                   ├──► Lapsed     the coordinator is not heard: not ours to answer
//!                   └──► Unknown    the caller's map is wrong, or ours
//! ```
//!
//! Everything that decides is in [`partage_core::worker`]; here are its clock, its connection to the coordinator,
//! its tasks, and the counting of requests in flight.
//!
//! ```no_run
//! use partage_worker::{Assignment, DropReason, Epoch, Failure, Handler, Peer, Role, Worker, http};
//!
//! struct Greeter;
//!
//! #[partage_worker::async_trait]
//! impl Handler for Greeter {
//!     async fn load(&self, shard: &Assignment, sources: &[Peer]) -> Result<(), Failure> {
//!         println!("{} comes, to be copied from {sources:?}", shard.shard());
//!         Ok(())
//!     }
//!     async fn serve(&self, shard: &Assignment, role: Role, epoch: Epoch) -> Result<(), Failure> {
//!         println!("{} is served as {role} in {epoch}", shard.shard());
//!         Ok(())
//!     }
//!     async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!     async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
//!         Ok(())
//!     }
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder("n1", ["127.0.0.1:7400"], "127.0.0.1:7501")
//!     .zone("north")
//!     .capacity(2.0)
//!     .check_path(http::WORKER_PATH)
//!     .start(Greeter)
//!     .await?;
//! // … serve, until SIGTERM; then:
//! worker.leave(std::time::Duration::from_secs(60)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The caller's obligations:
//!
//! 1. Listen on the announced address before the worker starts: the coordinator calls back.
//! 2. Keep the [`Guard`] until the answer is out; drop it when [`Guard::cancelled`] returns.
//! 3. In exclusive keyspaces, ask [`Guard::mine_all_along`] after the work and before the answer
//!    ([`http::sharded`] does), and send [`Guard::epoch`] with each write to storage that others share.
//! 4. Do not block a thread in a callback: [`Scope::spawn_blocking`] runs what blocks, and the replica's next
//!    callback waits for it.

/// The book's page on this crate, so that its code is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/worker-rust.md")]
struct GuideExamples;

mod admission;
mod calls;
mod connection;
mod disk;
mod driver;
mod error;
pub mod fence;
mod handler;
mod heavy;
pub mod http;
mod in_flight;
mod keyspace_admin;
pub mod limits;
mod locate;
mod measure;
mod memberships;
mod metrics;
mod replication;
mod scope;
mod worker;

pub use admission::{Admission, Guard, OwnershipHandle};
pub use async_trait::async_trait;
pub use disk::DiskUse;
pub use error::{LayDownError, LeaveError, StartError};
pub use handler::{Assignment, Closures, Damaged, Failure, Handler, StoredReplicas};
pub use keyspace_admin::KeyspaceAdmin;
pub use memberships::{MembersError, Membership, Memberships};
pub use replication::ReplicationReports;
pub use scope::Scope;
pub use worker::{Builder, Health, Replica, Worker};

pub use partage_core::base::id::{ClusterId, Epoch, Generation, Incarnation, PlacementId, ShardId};
pub use partage_core::base::name::{KeyspaceName, NodeId};
pub use partage_core::keyspace::key::{Key, KeyRange};
pub use partage_core::keyspace::lifecycle::ReplicaState;
pub use partage_core::keyspace::map::Access;
pub use partage_core::keyspace::map::Role;
pub use partage_core::keyspace::sharding::Bounds;
pub use partage_core::keyspace::{KeyspaceKind, Ownership};
pub use partage_core::node::disk::{AtLimits, DiskLimits};
pub use partage_core::node::exchange::{
    DropReason, KeyspaceBrief, Order, Peer, Phase, ReplicaKey, ReplicationReport, Stored,
};
pub use partage_core::node::load::{HotKey, Load, Profile};
pub use partage_core::worker::gates::Permit;
pub use partage_core::worker::{CallbackTimeouts, NoSuccessor};
