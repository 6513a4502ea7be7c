//! The settings of a node, with the defaults.

use crate::dataset::assign::{Dealing, Replication};
use crate::dataset::seats::{Address, Wish};

/// How a node behaves.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Where peers reach it.
    pub address: Address,
    /// Which seat it wants.
    pub wish: Wish,
    /// How datasets are spread that do not say it themselves.
    pub spread: Spread,
    /// How long nodes must be stable before shares are computed (S9).
    pub stable_ms: u64,
    /// How long a version stays that no request asks for and clients do not get (S15).
    pub keep_ms: u64,
    /// How long a restarted node waits for its peers before it serves a version that is not whole again.
    pub resume_ms: u64,
    /// Whether replicas that are lost are made good (S18).
    pub re_replicate: bool,
    /// Whether a coordinator orders its shards; else it computes its share (K19).
    pub is_ordered: bool,
    /// How long a partition whose key is withdrawn is kept: longer than a session lasts that is not heard of, and than
    /// the others take to hear (S18).
    pub let_go_ms: u64,
    /// How long the node waits for a version that an operator ordered and its own source lacks (Z5).
    pub order_wait_ms: u64,
    /// How long a version that failed twice rests before it is tried again; then twice as long each time.
    pub retry_ms: u64,
}

impl NodeSettings {
    /// The default of [`NodeSettings::stable_ms`].
    pub const STABLE_MS: u64 = 10_000;
    /// The default of [`NodeSettings::keep_ms`].
    pub const KEEP_MS: u64 = 600_000;
    /// The default of [`NodeSettings::resume_ms`].
    pub const RESUME_MS: u64 = 5_000;
    /// The default of [`NodeSettings::let_go_ms`].
    pub const LET_GO_MS: u64 = 60_000;
    /// The default of [`NodeSettings::order_wait_ms`].
    pub const ORDER_WAIT_MS: u64 = 600_000;

    /// The default of [`NodeSettings::retry_ms`].
    pub const RETRY_MS: u64 = 60_000;

    /// The defaults: 10 seconds of rest, 10 minutes for an old version, and sharding that is static.
    pub fn new(address: Address) -> NodeSettings {
        NodeSettings {
            address,
            wish: Wish::Any { before: None },
            spread: Spread::default(),
            stable_ms: NodeSettings::STABLE_MS,
            keep_ms: NodeSettings::KEEP_MS,
            resume_ms: NodeSettings::RESUME_MS,
            re_replicate: false,
            is_ordered: false,
            let_go_ms: NodeSettings::LET_GO_MS,
            order_wait_ms: NodeSettings::ORDER_WAIT_MS,
            retry_ms: NodeSettings::RETRY_MS,
        }
    }
}

/// How a dataset is spread over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread {
    /// How many nodes have each partition.
    pub replication: Replication,
    /// How partitions are dealt to seats.
    pub dealing: Dealing,
}
