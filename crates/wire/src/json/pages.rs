//! Lists as JSON. A list that may be long comes in pages: `next` is what to ask for `after` (or `before`),
//! and is left out on the last page.

use super::command::DrainStatus;
use super::keyspace::Keyspace;
use super::plan::Plan;
use super::status::{Explanation, Move, Node, Shard};
use partage_core::cluster::explain;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All nodes, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Nodes {
    /// One line each.
    pub nodes: Vec<Node>,
}

/// All keyspaces, in the order of their names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Keyspaces {
    /// With all their settings.
    pub keyspaces: Vec<Keyspace>,
}

/// Some shards of a keyspace, in the order of their ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shards {
    /// One line each.
    pub shards: Vec<Shard>,
    /// There are more: ask for those after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// What is on its way, in the order of keyspaces and shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Moves {
    /// One line for each replica on its way.
    pub moves: Vec<Move>,
    /// There are more than were asked for.
    pub more: bool,
}

/// Some plans, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plans {
    /// Whole.
    pub plans: Vec<Plan>,
    /// There are more: ask for those before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// All drains that were asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drains {
    /// How each stands.
    pub drains: Vec<DrainStatus>,
}

/// Why a key is where it is, for programs and for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explained {
    /// For programs.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// For people, in lines.
    pub text: String,
}

impl From<&explain::Explanation> for Explained {
    fn from(told: &explain::Explanation) -> Self {
        Explained { explanation: told.into(), text: told.to_string() }
    }
}
