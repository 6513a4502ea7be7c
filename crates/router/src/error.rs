//! Why a request has no answer, and what to do about it.

use http::StatusCode;
use partage_core::base::id::ShardId;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::routing::retry::{LastFailure, Reason};
use partage_core::routing::routes::NoRoute;

/// A request that was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No such keyspace or shard.
    #[error("{0}")]
    NoRoute(NoRoute),
    /// Too many requests are under way here.
    #[error("{limit} requests are under way in this router")]
    Full {
        /// How many may be.
        limit: usize,
    },
    /// The router gave up.
    #[error("{keyspace}{}: {}, after {tries} tries", shard_and_node(shard, node), sentence(*reason))]
    GaveUp {
        /// The keyspace that the request was for.
        keyspace: KeyspaceName,
        /// The shard of the key, if the router has found it.
        shard: Option<ShardId>,
        /// The node asked last.
        node: Option<NodeId>,
        /// Why the router gave up.
        reason: Reason,
        /// How often a node was asked, with retries and hedges.
        tries: u32,
        /// Whether a node may have carried it out.
        indefinite: bool,
    },
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {0}")]
    Request(String),
}

fn shard_and_node(shard: &Option<ShardId>, node: &Option<NodeId>) -> String {
    let shard = shard.map(|shard| format!(" shard {shard}")).unwrap_or_default();
    let node = node.as_ref().map(|node| format!(" at node {node}")).unwrap_or_default();
    format!("{shard}{node}")
}

fn sentence(reason: Reason) -> String {
    match reason {
        Reason::Broken => "the connection broke; the request may have been carried out".to_owned(),
        Reason::Deadline(LastFailure::None) => "no answer within the deadline".to_owned(),
        Reason::Deadline(last) => format!("no answer within the deadline; last, {}", last_failure(last)),
        Reason::Tries(last) => format!("given up; last, {}", last_failure(last)),
        Reason::NotKept(why) => {
            format!("{}, and the request's body was too large to be kept and sent again", last_failure(why))
        }
    }
}

fn last_failure(failure: LastFailure) -> &'static str {
    match failure {
        LastFailure::None => "nothing was heard",
        LastFailure::Nobody => "no node served it: its owner has gone or it is being handed over",
        LastFailure::Misdirected => "the node that was asked did not own it",
        LastFailure::NotReady => "its owner was not ready",
        LastFailure::NotConnected => "no connection opened",
        LastFailure::Broken => "the connection broke",
    }
}

impl CallError {
    /// Whether the request may have been carried out.
    pub fn is_indefinite(&self) -> bool {
        matches!(self, CallError::GaveUp { indefinite: true, .. })
    }

    /// The status for an HTTP client.
    pub fn status(&self) -> StatusCode {
        match self {
            CallError::NoRoute(_) => StatusCode::NOT_FOUND,
            CallError::Full { .. } => StatusCode::SERVICE_UNAVAILABLE,
            CallError::Request(_) => StatusCode::BAD_REQUEST,
            CallError::GaveUp { reason: Reason::Deadline(LastFailure::None), .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
            CallError::GaveUp { .. } if self.is_indefinite() => StatusCode::BAD_GATEWAY,
            CallError::GaveUp { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// What the client can do.
    pub fn way_out(&self) -> &'static str {
        match self {
            CallError::NoRoute(NoRoute::Keyspace { .. }) => "`partage keyspace list` shows those there are",
            CallError::NoRoute(NoRoute::Shard { .. }) => "`partage shard list` shows the shards there are",
            CallError::Full { .. } => "try again later",
            CallError::Request(_) => "mend the request",
            CallError::GaveUp { reason: Reason::NotKept(_), .. } => "send it again",
            CallError::GaveUp { .. } if self.is_indefinite() => {
                "before you send it again, look whether it was carried out"
            }
            CallError::GaveUp { .. } => "nothing was done, try again",
        }
    }

    /// A word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            CallError::NoRoute(NoRoute::Keyspace { .. }) => "unknown_keyspace",
            CallError::NoRoute(NoRoute::Shard { .. }) => "unknown_partition",
            CallError::Full { .. } => "full",
            CallError::Request(_) => "malformed",
            CallError::GaveUp { reason: Reason::Deadline(LastFailure::None), .. } => "timeout",
            CallError::GaveUp { .. } if self.is_indefinite() => "broken",
            CallError::GaveUp { .. } => "unavailable",
        }
    }
}
