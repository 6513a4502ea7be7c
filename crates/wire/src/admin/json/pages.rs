//! Lists as JSON. A list that may be long comes in pages: `next` is what to ask for `after` (or `before`),
//! and is left out on the last page.

use crate::json::{DrainStatus, Explanation, Keyspace, Move, Node, Plan, Shard};
use partage_core::cluster::explain;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All nodes, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// The nodes, one row each.
    pub nodes: Vec<Node>,
}

/// All keyspaces, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Keyspaces {
    /// The keyspaces, with all their settings.
    pub keyspaces: Vec<Keyspace>,
}

/// A page of the shards of a keyspace, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shards {
    /// The shards, one row each.
    pub shards: Vec<Shard>,
    /// The shard id to give as `after` in the next request; absent = this is the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The replicas that are on their way, in the order of keyspaces and shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Moves {
    /// The replicas, one row each.
    pub moves: Vec<Move>,
    /// Whether there are more than the limit.
    pub more: bool,
}

/// A page of plans, the newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plans {
    /// The plans, with all their changes.
    pub plans: Vec<Plan>,
    /// The plan number to give as `before` in the next request; absent = this is the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// All drains that persons have asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drains {
    /// The drains, each with its progress.
    pub drains: Vec<DrainStatus>,
}

/// The reasons why a key is where it is, for programs and for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    /// The explanation as fields, for programs.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The same explanation as lines of text, for people.
    pub text: String,
}

impl From<&explain::Explanation> for Explained {
    fn from(told: &explain::Explanation) -> Self {
        Explained { explanation: told.into(), text: told.to_string() }
    }
}
