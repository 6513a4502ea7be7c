//! Plans as JSON: to be shown, and to be kept in a dump.

use crate::Malformed;
use crate::admin::conversion::{origin, origin_parts, progress, progress_parts, status, status_parts};
use crate::json::{Bounds, ChangeProgress, FixedWord, Generation, PlanOrigin, PlanStatus, Point, strings};
use crate::malformed::{At, Inside, each, names, sentence};
use partage_core::base::id::{PlacementId, PlanId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::plan as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A shard that a split or merge creates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Child {
    /// The keys that the shard holds.
    pub bounds: Bounds,
    /// The nodes that hold the shard, the leader's node first.
    pub nodes: Vec<String>,
}

/// One change of the map that a plan asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Change {
    /// Puts a new replica of a shard on a node.
    Add {
        /// The id of the shard.
        shard: u64,
        /// The node that gets the replica.
        node: String,
    },
    /// Moves a replica to another node.
    Move {
        /// The id of the shard.
        shard: u64,
        /// The placement id of the replica that leaves.
        from_placement: u64,
        /// The node that the replica leaves; absent where a plan of an earlier version did not keep it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_node: Option<String>,
        /// The node that takes the replica over.
        to_node: String,
    },
    /// Takes a replica of a shard away from its node.
    Remove {
        /// The id of the shard.
        shard: u64,
        /// The placement id of the replica that is removed.
        placement: u64,
        /// The node that the replica is on; absent where a plan of an earlier version did not keep it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    /// Makes another live replica the leader.
    Lead {
        /// The id of the shard.
        shard: u64,
        /// The placement id of the replica that becomes the leader.
        placement: u64,
        /// The node that the replica is on; absent where a plan of an earlier version did not keep it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<String>,
    },
    /// Splits one shard into several.
    Split {
        /// The id of the shard that is split.
        shard: u64,
        /// The shards that the split creates; together they hold the keys of the shard that is split.
        children: Vec<Child>,
    },
    /// Merges neighbouring shards into one.
    Merge {
        /// The ids of the shards that are merged.
        shards: Vec<u64>,
        /// The shard that the merge creates; it holds the keys of all the shards that are merged.
        child: Child,
    },
}

/// One line of a plan: a change, its reason and its progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Planned {
    /// The change to the map.
    pub change: Change,
    /// The reason for the change, as one sentence.
    pub reason: String,
    /// The progress of the change: `waiting`, `started`, `done`, `dropped`.
    #[schema(value_type = String)]
    pub progress: FixedWord<ChangeProgress>,
    /// When dropped: the reason why the coordinator dropped the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_because: Option<String>,
}

/// The state that a rejected plan was based on. The planner does not suggest the same again while this state holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanBasis {
    /// A hash of the settings, the nodes, and the replicas and rules of the plan's shards. It has no meaning but to
    /// be compared; 0 = not kept.
    pub print: Point,
    /// The load of the plan's shards, in requests a second.
    pub requests_per_s: u64,
    /// The load of the plan's shards, in CPU milliseconds a second.
    pub cpu_ms_per_s: u64,
    /// The load of the plan's shards, in bytes stored.
    pub size_bytes: u64,
}

fn basis(form: Option<PlanBasis>) -> Result<core::Basis, Malformed> {
    let Some(form) = form else { return Ok(core::Basis::default()) };
    let load = [form.requests_per_s, form.cpu_ms_per_s, form.size_bytes];
    Ok(core::Basis { print: form.print.try_into().inside("rejected_basis.print")?, load })
}

impl From<core::Basis> for PlanBasis {
    fn from(basis: core::Basis) -> Self {
        let [requests_per_s, cpu_ms_per_s, size_bytes] = basis.load;
        PlanBasis { print: basis.print.into(), requests_per_s, cpu_ms_per_s, size_bytes }
    }
}

/// A plan: a list of changes of one keyspace's map, with the reason for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// The number of the plan, unique in the cluster.
    pub id: u64,
    /// The keyspace whose shards the plan changes.
    pub keyspace: String,
    /// The generation of the map that the plan was made from.
    pub base: Generation,
    /// The origin of the plan: `repair`, `drain`, `rebalance`, `person`.
    #[schema(value_type = String)]
    pub origin: FixedWord<PlanOrigin>,
    /// The name of the person who made the plan; absent for a plan of the planner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    /// The complete list of changes, in the order of the plan.
    pub changes: Vec<Planned>,
    /// The status of the plan: `suggested`, `approved`, `finished`, `rejected`, `superseded`, `refused`.
    #[schema(value_type = String)]
    pub status: FixedWord<PlanStatus>,
    /// When refused: the reason why the coordinator refused the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_because: Option<String>,
    /// The time at which the plan was made, in milliseconds of Unix time.
    pub made_ms: u64,
    /// The name of the person who approved, rejected or edited the plan; absent = no person has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// When rejected: the state that the plan was based on. The planner does not suggest the same again while this
    /// state holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_basis: Option<PlanBasis>,
}

fn child((bounds, nodes): &(partage_core::keyspace::sharding::Bounds, Vec<NodeId>)) -> Child {
    Child { bounds: bounds.into(), nodes: strings(nodes) }
}

impl From<&core::Change> for Change {
    fn from(change: &core::Change) -> Self {
        match change {
            core::Change::Add { shard, node } => Change::Add { shard: shard.0, node: node.to_string() },
            core::Change::Move { shard, from, to } => Change::Move {
                shard: shard.0,
                from_placement: from.0,
                from_node: None,
                to_node: to.to_string(),
            },
            core::Change::Remove { shard, placement } => {
                Change::Remove { shard: shard.0, placement: placement.0, node: None }
            }
            core::Change::Lead { shard, placement } => {
                Change::Lead { shard: shard.0, placement: placement.0, node: None }
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

impl Change {
    /// Where it says on which node the replica is that it names.
    fn node_place(&mut self) -> Option<&mut Option<String>> {
        match self {
            Change::Move { from_node: node, .. }
            | Change::Remove { node, .. }
            | Change::Lead { node, .. } => Some(node),
            Change::Add { .. } | Change::Split { .. } | Change::Merge { .. } => None,
        }
    }
}

impl From<&core::Planned> for Planned {
    fn from(planned: &core::Planned) -> Self {
        let (progress, dropped_because) = progress_parts(&planned.progress);
        let mut change = Change::from(&planned.change);
        if let (Some(place), Some(node)) = (change.node_place(), &planned.node) {
            *place = Some(node.to_string());
        }
        Planned { change, reason: planned.reason.clone(), progress: progress.into(), dropped_because }
    }
}

impl From<&core::Plan> for Plan {
    fn from(plan: &core::Plan) -> Self {
        let (origin, person) = origin_parts(&plan.origin);
        let (status, refused_because) = status_parts(&plan.status);
        Plan {
            id: plan.id.0,
            keyspace: plan.keyspace.to_string(),
            base: plan.base.into(),
            origin: origin.into(),
            person,
            changes: plan.changes.iter().map(Into::into).collect(),
            status: status.into(),
            refused_because,
            made_ms: plan.made_ms,
            decided_by: plan.decided_by.clone(),
            rejected_basis: match plan.status {
                core::Status::Rejected(basis) => Some(basis.into()),
                _ => None,
            },
        }
    }
}

impl From<&core::ShownPlan> for Plan {
    fn from(shown: &core::ShownPlan) -> Self {
        let mut form = Plan::from(&shown.plan);
        for (form, planned) in form.changes.iter_mut().zip(&shown.changes) {
            let node = planned.change.replica().and_then(|(_, placement)| shown.nodes.get(&placement));
            if let (Some(place), Some(node)) = (form.change.node_place(), node) {
                *place = Some(node.to_string());
            }
        }
        form
    }
}

impl TryFrom<Child> for (partage_core::keyspace::sharding::Bounds, Vec<NodeId>) {
    type Error = Malformed;
    fn try_from(form: Child) -> Result<Self, Malformed> {
        Ok((form.bounds.try_into().inside("bounds")?, names(&form.nodes, "nodes")?))
    }
}

impl TryFrom<Change> for core::Change {
    type Error = Malformed;
    fn try_from(form: Change) -> Result<Self, Malformed> {
        Ok(match form {
            Change::Add { shard, node } => {
                core::Change::Add { shard: ShardId(shard), node: node.parse().at("node")? }
            }
            Change::Move { shard, from_placement, from_node: _, to_node } => core::Change::Move {
                shard: ShardId(shard),
                from: PlacementId(from_placement),
                to: to_node.parse().at("to_node")?,
            },
            Change::Remove { shard, placement, node: _ } => {
                core::Change::Remove { shard: ShardId(shard), placement: PlacementId(placement) }
            }
            Change::Lead { shard, placement, node: _ } => {
                core::Change::Lead { shard: ShardId(shard), placement: PlacementId(placement) }
            }
            Change::Split { shard, children } => core::Change::Split {
                shard: ShardId(shard),
                children: each(children, "children", TryInto::try_into)?,
            },
            Change::Merge { shards, child } => core::Change::Merge {
                shards: shards.into_iter().map(ShardId).collect(),
                child: child.try_into().inside("child")?,
            },
        })
    }
}

impl TryFrom<Planned> for core::Planned {
    type Error = Malformed;
    fn try_from(form: Planned) -> Result<Self, Malformed> {
        let progress = progress(form.progress.value("progress")?, form.dropped_because);
        let mut change = form.change;
        let node = change.node_place().and_then(Option::take);
        let node = node.map(|node| node.parse().at("change.node")).transpose()?;
        let change = change.try_into().inside("change")?;
        Ok(core::Planned { change, reason: sentence(form.reason), progress, node })
    }
}

impl TryFrom<Plan> for core::Plan {
    type Error = Malformed;
    fn try_from(form: Plan) -> Result<Self, Malformed> {
        let origin = origin(form.origin.value("origin")?, form.person);
        let based_on = || basis(form.rejected_basis);
        let status = status(form.status.value("status")?, form.refused_because, based_on)?;
        Ok(core::Plan {
            id: PlanId(form.id),
            keyspace: form.keyspace.parse().at("keyspace")?,
            base: form.base.try_into().inside("base")?,
            origin,
            changes: each(form.changes, "changes", core::Planned::try_from)?,
            status,
            made_ms: form.made_ms,
            decided_by: form.decided_by,
        })
    }
}
