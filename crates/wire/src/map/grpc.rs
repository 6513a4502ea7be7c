//! Maps and what changed between two of them.
//!
//! Replicas name their node by its place in a table at the head of the diff, so that a map of a million
//! shards holds each node's name once, on the way and in memory.

use crate::Malformed;
use crate::conversion::Numbered;
use crate::json::ShardStage;
use crate::keyspace::grpc::sharding;
use crate::malformed::{At, Inside, each, optional, required};
use crate::proto;
use partage_core::base::id::{
    Configuration, Epoch, Generation, Incarnation, PlacementId, ShardId, TransactionId,
};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Lineage, MapDiff, Predecessor, Replica, Role, Shard, Stage};
use partage_core::keyspace::sharding::Bounds;
use partage_core::limits;
use std::collections::BTreeMap;

impl From<Generation> for proto::Generation {
    fn from(generation: Generation) -> Self {
        let transaction = match generation.transaction {
            none if none == TransactionId::default() => vec![],
            some => some.0.to_vec(),
        };
        proto::Generation { sequence: generation.sequence, transaction }
    }
}

impl TryFrom<proto::Generation> for Generation {
    type Error = Malformed;
    fn try_from(form: proto::Generation) -> Result<Self, Malformed> {
        let transaction = match form.transaction.len() {
            0 => TransactionId::default(),
            _ => TransactionId(form.transaction.as_slice().try_into().map_err(|_| {
                let bytes = form.transaction.len();
                Malformed::new("transaction", format!("has {bytes} bytes: it must have 20"))
            })?),
        };
        Ok(Generation { sequence: form.sequence, transaction })
    }
}

/// A role by its number.
pub(crate) fn role(number: i32) -> Result<Role, Malformed> {
    Role::of_number(number).ok_or_else(|| {
        let why = format!("{number} is no role: give 1 (leader), 2 (follower) or 3 (read replica)");
        Malformed::new("role", why)
    })
}

/// A state by its number.
pub(crate) fn state(number: i32) -> Result<ReplicaState, Malformed> {
    ReplicaState::of_number(number).ok_or_else(|| {
        let why = format!("{number} is no state: give 1 (Load), 2 (Live), 3 (Unload) or 4 (UnloadFinal)");
        Malformed::new("state", why)
    })
}

/// The nodes of a diff in the order in which they were first met.
#[derive(Default)]
struct NodeTable {
    places: BTreeMap<(NodeId, Incarnation), u32>,
    nodes: Vec<proto::NodeStart>,
}

impl NodeTable {
    fn place(&mut self, replica: &Replica) -> u32 {
        let next = self.nodes.len() as u32;
        let start = (replica.node.clone(), replica.incarnation);
        *self.places.entry(start).or_insert_with(|| {
            let (node, incarnation) = (replica.node.to_string(), replica.incarnation.0);
            self.nodes.push(proto::NodeStart { node, incarnation });
            next
        })
    }
}

fn shard_form(shard: &Shard, table: &mut NodeTable) -> proto::Shard {
    let children = match shard.stage() {
        Stage::Serving | Stage::Removing => &[][..],
        Stage::Forming(children) | Stage::Closing(children) => &children[..],
    };
    let replica = |replica: &Replica| proto::Replica {
        placement: replica.placement.0,
        node: table.place(replica),
        role: replica.role.number(),
        state: replica.state.number(),
        replaces: replica.replaces().map_or(0, |placement| placement.0),
        in_sync: replica.in_sync,
    };
    proto::Shard {
        id: shard.id.0,
        epoch: shard.epoch.0,
        configuration: shard.configuration.0,
        bounds: Some((&shard.bounds).into()),
        stage: ShardStage::from(shard.stage()).number(),
        children: children.iter().map(|id| id.0).collect(),
        parents: shard.parents().iter().map(|id| id.0).collect(),
        replicas: shard.replicas.iter().map(replica).collect(),
    }
}

impl From<&MapDiff> for proto::MapDiff {
    fn from(diff: &MapDiff) -> Self {
        let mut table = NodeTable::default();
        let changed = diff.changed.iter().map(|shard| shard_form(shard, &mut table)).collect();
        proto::MapDiff {
            keyspace: diff.keyspace.to_string(),
            from: Some(diff.from.into()),
            to: Some(diff.to.into()),
            parent: diff.parent.map(Into::into),
            nodes: table.nodes,
            changed,
            removed: diff.removed.iter().map(|id| id.0).collect(),
            next_shard: diff.next_shard.0,
            next_placement: diff.next_placement.0,
        }
    }
}

type Nodes = Vec<(NodeId, Incarnation)>;

fn replica(form: &proto::Replica, nodes: &Nodes) -> Result<Replica, Malformed> {
    let (node, incarnation) = nodes.get(form.node as usize).cloned().ok_or_else(|| {
        let why = format!("{} is not in the table of {} nodes", form.node, nodes.len());
        Malformed::new("node", why)
    })?;
    Ok(Replica {
        placement: PlacementId(form.placement),
        node,
        incarnation,
        role: role(form.role)?,
        state: state(form.state)?,
        in_sync: form.in_sync,
        predecessor: Predecessor::new(PlacementId(form.replaces)),
    })
}

fn ids<Ids: FromIterator<ShardId>>(numbers: &[u64]) -> Ids {
    numbers.iter().copied().map(ShardId).collect()
}

fn shard(form: proto::Shard, nodes: &Nodes, before: &mut Key) -> Result<Shard, Malformed> {
    if form.replicas.len() > 2 * limits::REPLICAS {
        let (count, limit) = (form.replicas.len(), 2 * limits::REPLICAS);
        return Err(Malformed::new("replicas", format!("has {count} entries: the limit is {limit}")));
    }
    let bounds = form.bounds.ok_or_else(|| Malformed::new("bounds", "is missing"))?;
    let bounds = sharding::after(bounds, before).inside("bounds")?;
    if let Bounds::Keys(range) = &bounds {
        *before = range.end.clone();
    }
    let stage = match proto::StageKind::try_from(form.stage).at("stage")? {
        proto::StageKind::Serving if form.children.is_empty() => Stage::Serving,
        proto::StageKind::Removing if form.children.is_empty() => Stage::Removing,
        proto::StageKind::Serving | proto::StageKind::Removing => {
            return Err(Malformed::new("children", "are only of shards that form or close"));
        }
        proto::StageKind::Forming => Stage::Forming(ids(&form.children)),
        proto::StageKind::Closing => Stage::Closing(ids(&form.children)),
    };
    Ok(Shard {
        id: ShardId(form.id),
        epoch: Epoch(form.epoch),
        configuration: Configuration(form.configuration),
        bounds,
        lineage: Lineage::new(stage, ids(&form.parents)),
        replicas: each(form.replicas, "replicas", |form| replica(&form, nodes))?,
    })
}

/// Refuses ids that do not ascend: each shard is in a diff once.
fn ascending(ids: impl Iterator<Item = ShardId> + Clone, field: &str) -> Result<(), Malformed> {
    match ids.clone().zip(ids.skip(1)).find(|(first, second)| first >= second) {
        Some((first, second)) => Err(Malformed::new(field, format!("has shard {second} after {first}"))),
        None => Ok(()),
    }
}

impl TryFrom<proto::MapDiff> for MapDiff {
    type Error = Malformed;
    fn try_from(form: proto::MapDiff) -> Result<Self, Malformed> {
        if form.changed.len() > limits::SHARDS {
            let (count, limit) = (form.changed.len(), limits::SHARDS);
            return Err(Malformed::new("changed", format!("has {count} shards: the limit is {limit}")));
        }
        let nodes: Nodes = each(form.nodes, "nodes", |start| {
            Ok((NodeId::new(&start.node).at("node")?, Incarnation(start.incarnation)))
        })?;
        let mut before = Key::empty();
        let changed: Vec<_> = each(form.changed, "changed", |form| shard(form, &nodes, &mut before))?;
        ascending(changed.iter().map(|shard| shard.id), "changed")?;
        let removed: Vec<ShardId> = ids(&form.removed);
        ascending(removed.iter().copied(), "removed")?;
        Ok(MapDiff {
            keyspace: KeyspaceName::new(&form.keyspace).at("keyspace")?,
            from: required(form.from, "from")?,
            to: required(form.to, "to")?,
            parent: optional(form.parent, "parent")?,
            changed,
            removed,
            next_shard: ShardId(form.next_shard),
            next_placement: PlacementId(form.next_placement),
        })
    }
}
