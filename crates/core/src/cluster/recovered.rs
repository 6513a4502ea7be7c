//! What a coordinator derives from a map that it takes over: one look at every replica.
//!
//! Workers wait meanwhile, so replicas are looked at once, and their nodes are numbers from then on.

use super::hosted::Hosted;
use super::members::Members;
use super::numbered::Numbered;
use super::restored::Heard;
use super::{LaterMaps, Moment, Outbox, StoredFaults, Write};
use crate::base::id::{Incarnation, ShardId};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::keyspace::map::ShardMap;
use crate::node::health::Signs;
use crate::node::lease::GrantedLease;
use std::collections::BTreeSet;

/// What a coordinator began with, and what it does not know of the time before it led.
#[derive(Debug, Clone)]
pub(super) struct Recovered {
    /// What was wrong with the stored state.
    pub(super) faults: StoredFaults,
    /// What workers were told that the stored state does not know; not stored.
    pub(super) later_maps: LaterMaps,
    /// It began with replicas of which it had heard nothing: those of a coordinator before it.
    pub(super) inherited: bool,
    /// From then on no lease runs that was granted before this coordinator led.
    pub(super) leases_before: Millis,
    /// Which nodes have been heard since this coordinator started: see [`super::restored::ComparedCopies`].
    pub(super) heard: Heard,
    /// The nodes that had not been heard when uncompared copies were last compared; not stored.
    pub(super) unheard: Option<BTreeSet<NodeId>>,
}

impl Recovered {
    /// Where leases of before may run until then.
    pub(super) fn new(leases_before: Millis) -> Recovered {
        let (faults, later_maps) = (StoredFaults::default(), LaterMaps::default());
        Recovered { faults, later_maps, inherited: false, leases_before, heard: Heard::NotAll, unheard: None }
    }
}

/// What follows from a map.
pub(super) struct FromMap {
    pub(super) hosted: Hosted,
    /// The shards that have something under way.
    pub(super) unsettled: BTreeSet<ShardId>,
}

/// The nodes of a cluster and their latest starts.
pub(super) struct LatestIncarnations {
    nodes: Numbered,
    latest: Vec<Incarnation>,
}

/// The replicas of a map by their nodes.
#[derive(Default)]
struct ReplicasByNode {
    /// The nodes of the cluster under its numbers, then others that the map names.
    nodes: Numbered,
    /// The shards that have a replica on each.
    shards: Vec<Vec<ShardId>>,
    /// The same for the latest start of the node, where that is not the same.
    of_latest: Vec<Option<Vec<ShardId>>>,
    /// Earlier starts that the map names.
    former: BTreeSet<(u32, Incarnation)>,
    unsettled: BTreeSet<ShardId>,
}

impl FromMap {
    /// Of a new map that few or no replicas are in.
    pub(super) fn of_new(map: &ShardMap) -> FromMap {
        let unsettled = map.shards().filter(|shard| !shard.is_settled());
        FromMap { hosted: Hosted::of(map), unsettled: unsettled.map(|shard| shard.id).collect() }
    }
}

impl LatestIncarnations {
    /// Of the nodes that a cluster has.
    pub(super) fn of(members: &Members) -> LatestIncarnations {
        LatestIncarnations {
            nodes: members.nodes.keys().collect(),
            latest: members.nodes.values().map(|node| node.record.incarnation).collect(),
        }
    }

    fn latest(&self, node: u32) -> Option<Incarnation> {
        self.latest.get(node as usize).copied()
    }
}

impl ReplicasByNode {
    fn of(map: &ShardMap, latest: &LatestIncarnations) -> ReplicasByNode {
        let mut held = ReplicasByNode { nodes: latest.nodes.clone(), ..ReplicasByNode::default() };
        held.shards.resize_with(held.nodes.len(), Vec::new);
        held.of_latest.resize_with(held.nodes.len(), || None);
        for shard in map.shards() {
            for replica in &shard.replicas {
                held.note(shard.id, &replica.node, replica.incarnation, latest);
            }
            if !shard.is_settled() {
                held.unsettled.insert(shard.id);
            }
        }
        held
    }

    fn note(&mut self, shard: ShardId, node: &NodeId, incarnation: Incarnation, latest: &LatestIncarnations) {
        let number = self.nodes.add(node);
        let at = number as usize;
        if at >= self.shards.len() {
            self.shards.push(Vec::new());
            self.of_latest.push(None);
        }
        match latest.latest(number) {
            Some(latest) if latest == incarnation => {
                if let Some(shards) = &mut self.of_latest[at] {
                    shards.push(shard);
                }
            }
            latest => {
                if latest.is_some_and(|latest| incarnation < latest) {
                    self.former.insert((number, incarnation));
                }
                if self.of_latest[at].is_none() {
                    self.of_latest[at] = Some(self.shards[at].clone());
                }
            }
        }
        self.shards[at].push(shard);
    }
}

impl Members {
    /// Notes what follows from `map` for the nodes: which starts before the latest may still act until their leases
    /// are over, and what each should hold. Returns the map by nodes, and what is under way.
    pub(super) fn recall(
        &mut self,
        map: &ShardMap,
        latest: &LatestIncarnations,
        (at, lease): (Moment, GrantedLease),
        outbox: &mut Outbox,
    ) -> FromMap {
        let mut held = ReplicasByNode::of(map, latest);
        for (number, incarnation) in std::mem::take(&mut held.former) {
            let node = held.nodes.name(number).and_then(|name| self.nodes.get_mut(name));
            if let Some(node) = node {
                node.former.entry(incarnation).or_insert(Signs::new(at.now, lease));
            }
        }
        for (number, shards) in held.shards.iter().enumerate() {
            let shards = held.of_latest[number].as_ref().unwrap_or(shards);
            let Some(id) = held.nodes.name(number as u32).filter(|_| !shards.is_empty()) else { continue };
            if let Some(node) = self.nodes.get_mut(id) {
                node.orders.recall(map.keyspace(), shards);
                if node.note_held() {
                    outbox.writes.push(Write::Node(node.record.clone()));
                }
                outbox.changed_orders.insert(id.clone());
            }
        }
        let hosted = Hosted::from_lists(held.nodes.names().cloned().zip(held.shards));
        FromMap { hosted, unsettled: held.unsettled }
    }
}
