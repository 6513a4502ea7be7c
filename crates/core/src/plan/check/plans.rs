//! The check of plans: what a plan would do, followed change by change on a sketch of the map.
//!
//! The sketch has, for each shard that the plan names, the nodes on which its replicas would be after the changes so far; a
//! change that could not be carried out there is a finding. Whether the plan is wise is not checked here: its reasons and the
//! person who approves it answer for that.

use super::{Finding, bounds, hold_the_same};
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Shard, ShardMap};
use crate::keyspace::sharding::Bounds;
use crate::keyspace::sharding::geometry::joined;
use crate::limits;
use crate::plan::{Change, Planned};
use std::collections::{BTreeMap, BTreeSet};

/// Everything wrong with carrying out `changes`, in their order, on `map`. `closed` says why a node takes
/// nothing new (M7), or nothing when it does.
pub fn plan(map: &ShardMap, changes: &[Planned], closed: &dyn Fn(&NodeId) -> Option<String>) -> Vec<Finding> {
    let mut sketch =
        Sketch { map, closed, replicas: BTreeMap::new(), ended: BTreeSet::new(), shards: map.len() };
    changes.iter().filter_map(|planned| sketch.follow(&planned.change).err()).collect()
}

/// Keeps of `changes` those that can be carried out, in their order, as things stand.
pub fn sift(map: &ShardMap, changes: &mut Vec<Planned>, closed: &dyn Fn(&NodeId) -> Option<String>) {
    let mut sketch =
        Sketch { map, closed, replicas: BTreeMap::new(), ended: BTreeSet::new(), shards: map.len() };
    changes.retain(|planned| sketch.follow(&planned.change).is_ok());
}

/// One replica of the sketch. Those that the plan adds have no placement id yet.
#[derive(Clone)]
struct Sketched {
    placement: Option<PlacementId>,
    node: NodeId,
    stays: bool,
    /// It is live, and may lead.
    live: bool,
}

struct Sketch<'a> {
    map: &'a ShardMap,
    closed: &'a dyn Fn(&NodeId) -> Option<String>,
    /// Of shards that the plan has touched so far.
    replicas: BTreeMap<ShardId, Vec<Sketched>>,
    /// Shards that the plan has split or merged so far.
    ended: BTreeSet<ShardId>,
    shards: usize,
}

impl Sketch<'_> {
    fn follow(&mut self, change: &Change) -> Result<(), Finding> {
        for shard in change.shards() {
            self.serving(*shard)?;
        }
        match change {
            Change::Add { shard, node } => self.add(*shard, node, None),
            Change::Move { shard, from, to } => {
                self.staying(*shard, *from)?;
                self.add(*shard, to, Some(*from))?;
                self.take_out(*shard, *from);
                Ok(())
            }
            Change::Remove { shard, placement } => self.remove(*shard, *placement),
            Change::Lead { shard, placement } => match self.staying(*shard, *placement)?.live {
                true => Ok(()),
                false => Err(Finding::Leader(*shard, *placement)),
            },
            Change::Split { shard, children } => self.reshape(&[*shard], children),
            Change::Merge { shards, child } => {
                let parents: Vec<_> = shards.iter().filter_map(|id| self.map.shard(*id)).collect();
                if parents.len() < 2 || joined(&bounds(&parents)).is_none() {
                    return Err(Finding::NotNeighbours(shards.clone()));
                }
                self.reshape(shards, std::slice::from_ref(child))
            }
        }
    }

    fn serving(&self, id: ShardId) -> Result<&Shard, Finding> {
        let shard = self.map.shard(id).filter(|shard| shard.is_serving() && !self.ended.contains(&id));
        shard.ok_or(Finding::NoShard(id))
    }

    fn replicas(&mut self, id: ShardId) -> &mut Vec<Sketched> {
        let map = self.map;
        self.replicas.entry(id).or_insert_with(|| {
            let there = map.shard(id).into_iter().flat_map(|shard| &shard.replicas);
            there
                .filter(|r| r.state != ReplicaState::UnloadFinal)
                .map(|r| Sketched {
                    placement: Some(r.placement),
                    node: r.node.clone(),
                    stays: r.state.is_staying(),
                    live: r.state == ReplicaState::Live && !r.is_read_replica(),
                })
                .collect()
        })
    }

    fn staying(&mut self, shard: ShardId, placement: PlacementId) -> Result<Sketched, Finding> {
        let mut staying = self.replicas(shard).iter().filter(|r| r.stays);
        let found = staying.find(|r| r.placement == Some(placement));
        found.cloned().ok_or(Finding::NoReplica(shard, placement))
    }

    fn open(&self, node: &NodeId) -> Result<(), Finding> {
        (self.closed)(node).map_or(Ok(()), |why| Err(Finding::Closed(node.clone(), why)))
    }

    fn add(&mut self, shard: ShardId, node: &NodeId, replaced: Option<PlacementId>) -> Result<(), Finding> {
        self.open(node)?;
        let replicas = self.replicas(shard);
        // As in [`Shard::bars`].
        let is_replaced = |r: &Sketched| replaced.is_some() && r.placement == replaced;
        let stays = replicas.iter().any(|r| r.stays && !is_replaced(r));
        if replicas.iter().any(|r| r.node == *node && (r.stays || stays)) {
            return Err(Finding::TwoOnOneNode(shard, node.clone()));
        }
        if replicas.len() >= 2 * limits::REPLICAS {
            let count = replicas.len() + 1;
            return Err(Finding::Limit(format!("shard {shard} would have {count} replicas")));
        }
        replicas.push(Sketched { placement: None, node: node.clone(), stays: true, live: false });
        Ok(())
    }

    /// What leaves stays in the way on its node until it has gone.
    fn take_out(&mut self, shard: ShardId, placement: PlacementId) {
        let left = self.replicas(shard).iter_mut().filter(|r| r.placement == Some(placement));
        left.for_each(|r| r.stays = false);
    }

    fn remove(&mut self, shard: ShardId, placement: PlacementId) -> Result<(), Finding> {
        self.staying(shard, placement)?;
        if self.replicas(shard).iter().filter(|r| r.stays).count() < 2 {
            return Err(Finding::LastReplica(shard, placement));
        }
        self.take_out(shard, placement);
        Ok(())
    }

    fn reshape(&mut self, parents: &[ShardId], children: &[(Bounds, Vec<NodeId>)]) -> Result<(), Finding> {
        let shards: Vec<_> = parents.iter().filter_map(|id| self.map.shard(*id)).collect();
        let named = |shard: &&&Shard| matches!(shard.bounds, Bounds::Name(_));
        if let Some(shard) = shards.iter().find(named) {
            return Err(Finding::NoRange(shard.id, shard.bounds.to_string()));
        }
        let foreign = children.iter().find(|(bounds, _)| !self.map.sharding().fits(bounds));
        if let (Some((bounds, _)), Some(parent)) = (foreign, parents.first()) {
            return Err(Finding::ForeignBounds(*parent, bounds.to_string()));
        }
        let parts: Vec<_> = children.iter().map(|(bounds, _)| bounds).collect();
        let kept = hold_the_same(&parts, &bounds(&shards));
        if !kept || (parents.len() == 1 && children.len() < 2) {
            return Err(Finding::BoundsDiffer(parents.to_vec()));
        }
        for (_, nodes) in children {
            self.fits_on(parents, nodes)?;
        }
        self.shards += children.len();
        if self.shards > limits::SHARDS {
            return Err(Finding::Limit(format!("there would be {} shards", self.shards)));
        }
        self.ended.extend(parents);
        Ok(())
    }

    /// The nodes of one child: some, each once, none too many, each open.
    fn fits_on(&self, parents: &[ShardId], nodes: &[NodeId]) -> Result<(), Finding> {
        if nodes.is_empty() || nodes.len() > limits::REPLICAS {
            let count = nodes.len();
            return Err(Finding::Limit(format!(
                "a child of {parents:?} would have {count} replicas: name 1 to {} nodes",
                limits::REPLICAS
            )));
        }
        let mut seen = BTreeSet::new();
        for node in nodes {
            self.open(node)?;
            if !seen.insert(node) {
                let parent = parents.first().copied().unwrap_or_default();
                return Err(Finding::TwoOnOneNode(parent, node.clone()));
            }
        }
        Ok(())
    }
}
