//! What a user of a router can choose.

use crate::limits;
use partage_core::base::name::{KeyspaceName, Zone};
use partage_core::routing::budget::BudgetPolicy;
use partage_core::routing::pace::Hedging;
use partage_core::routing::retry::RetryPolicy;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// How requests are sent.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// How long a request may take, and how often it is tried.
    pub retry: RetryPolicy,
    /// The limit on retries and hedges.
    pub budget: BudgetPolicy,
    /// When reads are hedged.
    pub hedging: Hedging,
    /// Where the router is; reads go to replicas there first.
    pub zone: Option<Zone>,
    /// Largest body that is kept to be sent again.
    pub kept_body_bytes: usize,
    /// Requests under way at once.
    pub in_flight: usize,
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions {
            retry: RetryPolicy::default(),
            budget: BudgetPolicy::default(),
            hedging: Hedging::default(),
            zone: None,
            kept_body_bytes: limits::KEPT_BODY_BYTES,
            in_flight: limits::IN_FLIGHT,
        }
    }
}

/// How a router keeps its maps.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The keyspaces to hear of; empty = all.
    pub keyspaces: BTreeSet<KeyspaceName>,
    /// Where the last maps are kept, to start from when no coordinator can be reached.
    pub maps_file: Option<PathBuf>,
    /// How requests are sent.
    pub call: CallOptions,
}
