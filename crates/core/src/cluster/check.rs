//! The check of everything durable: each map, and what maps, nodes, plans and counters say of one another.
//!
//! A running cluster never shows any of this. Damage does, and so does a hand that edited a dump: a map may
//! be right in itself and still name an unknown node. Every finding says in which keyspace, shard
//! and replica it is, so that a person who mends it knows where to look.

use crate::base::id::{Incarnation, PlacementId, PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::suggest;
use crate::cluster::Records;
use crate::keyspace::KeyspaceError;
use crate::keyspace::map::{Replica, Shard, ShardMap};
use crate::plan::check::{self, Finding};
use crate::plan::{Plan, Planned, Progress, Status};
use std::collections::BTreeMap;

/// Something that records say and that must never be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RecordFinding {
    /// A map that is wrong in itself.
    #[error("keyspace {keyspace}: {finding}")]
    Map {
        /// The keyspace of the map.
        keyspace: KeyspaceName,
        /// What is wrong with it.
        finding: Finding,
    },
    /// Settings that no cluster could carry out.
    #[error(transparent)]
    Settings(#[from] KeyspaceError),
    /// A map of another sharding than its keyspace's settings say.
    #[error("keyspace {0}: its map is sharded in another way than its settings say")]
    OtherSharding(KeyspaceName),
    /// Two records of one name.
    #[error("{0} is there twice")]
    Twice(String),
    /// A replica on a node without a record.
    #[error("keyspace {keyspace}, shard {shard}, replica {placement}: there is no node {node}{}", nearest.as_ref().map_or(String::new(), |name| format!(": did you mean {name}?")))]
    NoNode {
        /// The keyspace whose map has the replica.
        keyspace: KeyspaceName,
        /// The shard that the replica is of.
        shard: ShardId,
        /// The placement id of the replica whose node has no record.
        placement: PlacementId,
        /// The node that the map names for the replica.
        node: NodeId,
        /// The name of a recorded node that is spelled nearly so; none when no name is close.
        nearest: Option<String>,
    },
    /// A replica on a start of a node that has not been.
    #[error(
        "keyspace {keyspace}, shard {shard}, replica {placement}: it is on start {incarnation} of node {node}, whose latest is {latest}"
    )]
    NoStart {
        /// The keyspace whose map has the replica.
        keyspace: KeyspaceName,
        /// The shard that the replica is of.
        shard: ShardId,
        /// The placement id of the replica on a start of its node that has not been.
        placement: PlacementId,
        /// The node that the map names for the replica.
        node: NodeId,
        /// The start of the node that the map names for the replica.
        incarnation: Incarnation,
        /// The latest start in the record of the node.
        latest: Incarnation,
    },
    /// A number that its counter has not given out.
    #[error("{what} was not given out yet: the next is {next}")]
    Ahead {
        /// "node n1: its start i7", "plan-9".
        what: String,
        /// What the counter says.
        next: String,
    },
    /// A plan of a keyspace that is not there.
    #[error("{plan}: there is no keyspace {keyspace}")]
    NoKeyspace {
        /// The plan whose keyspace is not there.
        plan: PlanId,
        /// The keyspace that the plan names.
        keyspace: KeyspaceName,
    },
    /// A plan that is later than its map.
    #[error("{plan} of keyspace {keyspace}: it was made from map {base}, but the map is at {at}")]
    LaterThanMap {
        /// The plan that was made from a later map than there is.
        plan: PlanId,
        /// The keyspace that the plan is for.
        keyspace: KeyspaceName,
        /// The number of the map that the plan was made from.
        base: u64,
        /// The number of the map that is stored.
        at: u64,
    },
    /// A plan that could not be carried out on the very map it was made from.
    #[error("{plan} of keyspace {keyspace}: {finding}")]
    Plan {
        /// The plan that could not be carried out.
        plan: PlanId,
        /// The keyspace that the plan is for.
        keyspace: KeyspaceName,
        /// What is wrong with it.
        finding: Finding,
    },
}

/// Everything wrong with what is durable.
pub fn records(records: &Records) -> Vec<RecordFinding> {
    let nodes: BTreeMap<&NodeId, Incarnation> =
        records.nodes.iter().map(|node| (&node.spec.id, node.incarnation)).collect();
    let maps: BTreeMap<&KeyspaceName, &ShardMap> =
        records.keyspaces.iter().map(|(record, map)| (&record.keyspace.name, map)).collect();
    let mut findings = doubled(records);
    for (record, map) in &records.keyspaces {
        let settings = &record.keyspace;
        if (settings.sharding, settings.partition_key) != (map.sharding(), map.partition_key()) {
            findings.push(RecordFinding::OtherSharding(settings.name.clone()));
        }
        findings.extend(settings.check().err().map(RecordFinding::Settings));
        let keyspace = || settings.name.clone();
        let alone = check::map(map).into_iter();
        findings.extend(alone.map(|finding| RecordFinding::Map { keyspace: keyspace(), finding }));
        let replicas = map.shards().flat_map(|shard| shard.replicas.iter().map(move |r| (shard, r)));
        findings.extend(replicas.filter_map(|at| misplaced(&settings.name, at, &nodes)));
    }
    let next = records.cluster.next_incarnation;
    for (node, latest) in nodes.iter().filter(|(_, latest)| **latest >= next) {
        let what = format!("node {node}: its start {latest}");
        findings.push(RecordFinding::Ahead { what, next: next.to_string() });
    }
    findings.extend(records.plans.iter().flat_map(|plan| unfit(plan, records, &maps, &nodes)));
    findings
}

/// Records of which there may be one only.
fn doubled(records: &Records) -> Vec<RecordFinding> {
    let keyspaces = records.keyspaces.iter().map(|(r, _)| format!("keyspace {}", r.keyspace.name));
    let nodes = records.nodes.iter().map(|node| format!("node {}", node.spec.id));
    let plans = records.plans.iter().map(|plan| plan.id.to_string());
    let mut seen = BTreeMap::new();
    keyspaces.chain(nodes).chain(plans).for_each(|name| *seen.entry(name).or_insert(0) += 1);
    seen.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| RecordFinding::Twice(name)).collect()
}

/// A replica that is nowhere.
fn misplaced(
    keyspace: &KeyspaceName,
    (shard, replica): (&Shard, &Replica),
    nodes: &BTreeMap<&NodeId, Incarnation>,
) -> Option<RecordFinding> {
    let (keyspace, shard) = (keyspace.clone(), shard.id);
    let Replica { placement, node, incarnation, .. } = replica.clone();
    match nodes.get(&node) {
        None => {
            let known = nodes.keys().map(|name| name.as_str());
            let nearest = suggest::close(node.as_str(), known).map(Into::into);
            Some(RecordFinding::NoNode { keyspace, shard, placement, node, nearest })
        }
        Some(latest) if incarnation > *latest => {
            let latest = *latest;
            Some(RecordFinding::NoStart { keyspace, shard, placement, node, incarnation, latest })
        }
        Some(_) => None,
    }
}

/// What is wrong with a plan. One that waits since its map was replaced may well be obsolete: that is no damage.
fn unfit(
    plan: &Plan,
    records: &Records,
    maps: &BTreeMap<&KeyspaceName, &ShardMap>,
    nodes: &BTreeMap<&NodeId, Incarnation>,
) -> Vec<RecordFinding> {
    let (id, keyspace) = (plan.id, plan.keyspace.clone());
    let mut findings = Vec::new();
    if id >= records.cluster.next_plan {
        let next = records.cluster.next_plan.to_string();
        findings.push(RecordFinding::Ahead { what: id.to_string(), next });
    }
    let Some(map) = maps.get(&keyspace) else {
        findings.push(RecordFinding::NoKeyspace { plan: id, keyspace });
        return findings;
    };
    let (base, at) = (plan.base.sequence, map.generation().sequence);
    if base > at {
        findings.push(RecordFinding::LaterThanMap { plan: id, keyspace, base, at });
    } else if plan.base == map.generation() && matches!(plan.status, Status::Suggested | Status::Approved) {
        let waits = |planned: &&Planned| planned.progress == Progress::Waiting;
        let changes: Vec<_> = plan.changes.iter().filter(waits).cloned().collect();
        let closed = |node: &NodeId| (!nodes.contains_key(node)).then(|| "it is not registered".to_owned());
        let wrong = check::plan(map, &changes, &closed).into_iter();
        findings.extend(wrong.map(|finding| RecordFinding::Plan {
            plan: id,
            keyspace: keyspace.clone(),
            finding,
        }));
    }
    findings
}
