//! A node of a pool as a service of the shard manager: the map says which slots it has and leads, and what the machines say goes
//! back.
//!
//! ```text
//!  coordinator ── maps ────► PoolMap ──────────────► machines: who holds, who leads, under which epoch
//!       │   ▲                                           │
//!       │   └── "loaded" ◄── worker ◄── Transport::ready┘
//!       └── orders ────────► worker: load, serve, drop ──► members: what is stored here
//! ```
//!
//! | question | file |
//! |---|---|
//! | what the machines are told of a map | `map.rs` |
//! | which keyspace a pool is, and who creates it | `keyspace.rs` |
//! | how nodes know which others are of their pool, and what these do | `labels.rs` |
//! | what orders of the coordinator do | `handler.rs` |
//! | what becomes of a disk that fills | `disk.rs` |
//! | what becomes of a lead that the node may not take up | `leads.rs` |
//! | what people see and delete: `/v1/shuffles`, metrics | `http.rs`, `metrics.rs`; of where records are, `stored.rs` |
//! | what other protocols of the node see | `local.rs` |
//!
//! # What kind of keyspace a pool is
//!
//! *Eventual*: batches never change, so whoever has them may answer, and a node goes on without a coordinator. Leases play no
//! part: a leader decides what all replicas of its slot have synced under the slot's epoch, and a replica that has heard of a
//! later epoch refuses. `Exclusive` would stop leaders whose lease is over, for nothing. `Replicated` is a log with an in-sync
//! set that its leader asks the coordinator for; a pool asks the coordinator nothing.
//!
//! *Durable*: what was acknowledged is on disks. So a replica whose process has ended stays in the map, others go on without it
//! under a later epoch, and when all replicas of a slot have ended, those that come back have its decisions. The coordinator then
//! never gives a slot to a node that has nothing of it as if it were new. A replica in `Live` has each decision that counts: the
//! leader counts on all replicas in `Live`, and on those in `Load` from the moment on when its map names them, which is before
//! they can say that they are loaded.

mod disk;
mod handler;
mod http;
mod keyspace;
mod labels;
mod leads;
mod local;
mod map;
mod metrics;
mod stored;

pub use disk::DISK_LIMITS;
pub(crate) use disk::attend as attend_disk;
pub(crate) use handler::{PoolHandler, hand_over_all};
pub(crate) use http::{Doors, routes};
pub use keyspace::PoolError;
pub(crate) use keyspace::{PoolSpec, Settings, ensure, look};
pub(crate) use labels::PoolLabels;
pub(crate) use leads::attend as attend_leads;
pub use local::LocalPool;
pub(crate) use map::{PoolListener, Seen};
pub(crate) use metrics::text as metrics_text;

use crate::network::{PoolService, WireTransport};
use crate::node::Node;
use partage_shuffle_wire::transport::Server;
use std::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// A node that runs, and its connections.
pub(crate) struct Running {
    pub(crate) node: Node,
    pub(crate) transport: Arc<WireTransport>,
    pub(crate) server: Arc<Server<PoolService>>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The node, as soon as it runs: orders and connections may come before.
pub(crate) type Starting = watch::Receiver<Option<Arc<Running>>>;

/// Waits until the node runs. None: it will not.
pub(crate) async fn running(starting: &Starting) -> Option<Arc<Running>> {
    let mut starting = starting.clone();
    starting.wait_for(Option::is_some).await.ok()?.clone()
}
