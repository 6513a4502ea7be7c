//! Plans as JSON: to be shown.

use super::sharding::Bounds;
use super::strings;
use super::text::Generation;
use partage_core::name::NodeId;
use partage_core::plan as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A shard that is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Child {
    /// What it holds.
    pub bounds: Bounds,
    /// Where, the leader's node first.
    pub nodes: Vec<String>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Change {
    /// One replica more.
    Add {
        /// Of which shard.
        shard: u64,
        /// On which node.
        node: String,
    },
    /// A replica to another node.
    Move {
        /// Of which shard.
        shard: u64,
        /// The replica that leaves.
        from_placement: u64,
        /// The node that takes over.
        to_node: String,
    },
    /// One replica less.
    Remove {
        /// Of which shard.
        shard: u64,
        /// Which one.
        placement: u64,
    },
    /// Another leader.
    Lead {
        /// Of which shard.
        shard: u64,
        /// Who leads then.
        placement: u64,
    },
    /// One shard becomes several.
    Split {
        /// Which.
        shard: u64,
        /// The new ones.
        children: Vec<Child>,
    },
    /// Neighbours become one.
    Merge {
        /// Which.
        shards: Vec<u64>,
        /// The new one.
        child: Child,
    },
}

/// One line of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Planned {
    /// What.
    pub change: Change,
    /// Why.
    pub reason: String,
    /// `waiting`, `started`, `done`, `dropped`.
    pub progress: String,
    /// Why it was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_because: Option<String>,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// Its number.
    pub id: u64,
    /// Whose shards.
    pub keyspace: String,
    /// The map it was made from.
    pub base: Generation,
    /// `repair`, `drain`, `rebalance`, `person`.
    pub origin: String,
    /// Who, when a person made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    /// In order.
    pub changes: Vec<Planned>,
    /// `suggested`, `approved`, `finished`, `rejected`, `superseded`, `refused`.
    pub status: String,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_because: Option<String>,
    /// Unix time.
    pub made_ms: u64,
    /// Who approved or rejected it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
}

fn child((bounds, nodes): &(partage_core::sharding::Bounds, Vec<NodeId>)) -> Child {
    Child { bounds: bounds.into(), nodes: strings(nodes) }
}

impl From<&core::Change> for Change {
    fn from(change: &core::Change) -> Self {
        match change {
            core::Change::Add { shard, node } => Change::Add { shard: shard.0, node: node.to_string() },
            core::Change::Move { shard, from, to } => {
                Change::Move { shard: shard.0, from_placement: from.0, to_node: to.to_string() }
            }
            core::Change::Remove { shard, placement } => {
                Change::Remove { shard: shard.0, placement: placement.0 }
            }
            core::Change::Lead { shard, placement } => {
                Change::Lead { shard: shard.0, placement: placement.0 }
            }
            core::Change::Split { shard, children } => {
                Change::Split { shard: shard.0, children: children.iter().map(child).collect() }
            }
            core::Change::Merge { shards, child: one } => {
                Change::Merge { shards: shards.iter().map(|id| id.0).collect(), child: child(one) }
            }
        }
    }
}

impl From<&core::Planned> for Planned {
    fn from(planned: &core::Planned) -> Self {
        let (progress, dropped_because) = match &planned.progress {
            core::Progress::Waiting => ("waiting", None),
            core::Progress::Started => ("started", None),
            core::Progress::Done => ("done", None),
            core::Progress::Dropped(why) => ("dropped", Some(why.clone())),
        };
        Planned {
            change: (&planned.change).into(),
            reason: planned.reason.clone(),
            progress: progress.to_owned(),
            dropped_because,
        }
    }
}

impl From<&core::Plan> for Plan {
    fn from(plan: &core::Plan) -> Self {
        let (origin, person) = match &plan.origin {
            core::Origin::Repair => ("repair", None),
            core::Origin::Drain => ("drain", None),
            core::Origin::Rebalance => ("rebalance", None),
            core::Origin::Person(name) => ("person", Some(name.clone())),
        };
        let (status, refused_because) = match &plan.status {
            core::Status::Suggested => ("suggested", None),
            core::Status::Approved => ("approved", None),
            core::Status::Finished => ("finished", None),
            core::Status::Rejected => ("rejected", None),
            core::Status::Superseded => ("superseded", None),
            core::Status::Refused(why) => ("refused", Some(why.clone())),
        };
        Plan {
            id: plan.id.0,
            keyspace: plan.keyspace.to_string(),
            base: plan.base.into(),
            origin: origin.to_owned(),
            person,
            changes: plan.changes.iter().map(Into::into).collect(),
            status: status.to_owned(),
            refused_because,
            made_ms: plan.made_ms,
            decided_by: plan.decided_by.clone(),
        }
    }
}
