//! What each worker should hold: derived from the maps, numbered, sent as differences.
//!
//! The book keeps no orders, only when each was last different; the order itself is computed from the map
//! when it is sent. So a coordinator of a million replicas holds a number for each, not a message.

use super::{Cluster, KeyspaceState, NodeState, PackedMap};
use crate::exchange::{KeyspaceBrief, LeaseRenewal, Order, Orders, Peer, Phase, ReplicaKey};
use crate::handover::Sight;
use crate::id::{Incarnation, PlacementId, ShardId};
use crate::keyspace::Ownership;
use crate::lifecycle::ReplicaState;
use crate::map::{Replica, Role, Shard, Stage};
use crate::name::{KeyspaceName, NodeId};
use crate::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// Most removals remembered for a difference; a worker that is further behind gets everything.
const REMOVALS: usize = 4_096;

/// When each order of one node was last different.
#[derive(Debug, Default)]
pub(super) struct OrderBook {
    version: u64,
    /// By keyspace, so that its name is held once and not for each replica.
    held: BTreeMap<KeyspaceName, PackedMap<(ShardId, PlacementId), u64>>,
    removed: BTreeMap<ReplicaKey, u64>,
    /// Differences can be given from this version on.
    floor: u64,
}

impl OrderBook {
    fn touch(&mut self, key: ReplicaKey) {
        self.version += 1;
        self.removed.remove(&key);
        self.held.entry(key.keyspace).or_default().insert((key.shard, key.placement), self.version);
    }

    fn remove(&mut self, key: ReplicaKey) {
        let Some(held) = self.held.get_mut(&key.keyspace) else { return };
        if held.remove(&(key.shard, key.placement)).is_some() {
            if held.is_empty() {
                self.held.remove(&key.keyspace);
            }
            self.version += 1;
            self.removed.insert(key, self.version);
        }
        if self.removed.len() > REMOVALS {
            self.removed.clear();
            self.floor = self.version;
        }
    }

    pub(super) fn pack(&mut self) {
        self.held.values_mut().for_each(PackedMap::pack);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn held(&self) -> impl Iterator<Item = ReplicaKey> {
        self.changed_since(0)
    }

    /// The orders that were different after `version`.
    fn changed_since(&self, version: u64) -> impl Iterator<Item = ReplicaKey> {
        self.held.iter().flat_map(move |(keyspace, held)| {
            let fresh = held.iter().filter(move |(_, changed)| **changed > version);
            fresh.map(|((shard, placement), _)| key(keyspace, *shard, *placement))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.held.values().map(|held| held.len()).sum()
    }
}

/// The coordinator's sight of one keyspace, for [`handover`].
pub(super) struct KeyspaceSight<'a> {
    pub(super) reports: &'a BTreeMap<PlacementId, super::Observed>,
    pub(super) nodes: &'a BTreeMap<NodeId, NodeState>,
    pub(super) ownership: Ownership,
    pub(super) load_attempts: u32,
    pub(super) now: Millis,
}

impl Sight for KeyspaceSight<'_> {
    fn phase(&self, placement: PlacementId) -> Option<&Phase> {
        self.reports.get(&placement).map(|seen| &seen.phase)
    }

    fn epoch(&self, placement: PlacementId) -> Option<crate::id::Epoch> {
        self.reports.get(&placement).map(|seen| seen.epoch)
    }

    fn lease_is_over(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        self.nodes.get(node).is_none_or(|node| node.lease_is_over(incarnation, self.now))
    }

    fn has_ended(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        self.nodes.get(node).is_none_or(|node| node.has_ended(incarnation))
    }

    fn is_silent(&self, node: &NodeId, incarnation: Incarnation) -> bool {
        self.nodes.get(node).is_some_and(|node| {
            node.record.incarnation == incarnation && node.is_silent(self.now) && !node.record.ended
        })
    }

    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn load_attempts(&self) -> u32 {
        self.load_attempts
    }
}

impl Cluster {
    pub(super) fn sight<'a>(&'a self, keyspace: &'a KeyspaceState, now: Millis) -> KeyspaceSight<'a> {
        KeyspaceSight {
            reports: &keyspace.observed,
            nodes: &self.nodes,
            ownership: keyspace.record.keyspace.ownership,
            load_attempts: self.settings.load_attempts,
            now,
        }
    }

    /// Notes that orders about `shards`, and about what is split from or merged into them, may differ.
    pub(super) fn refresh_orders(&mut self, name: &KeyspaceName, shards: impl IntoIterator<Item = ShardId>) {
        let Some(keyspace) = self.keyspaces.get(name) else { return };
        let mut affected: BTreeSet<ShardId> = shards.into_iter().collect();
        for shard in affected.clone().iter().filter_map(|id| keyspace.map.shard(*id)) {
            affected.extend(shard.parents.iter());
        }
        let children: Vec<_> = affected.iter().flat_map(|id| keyspace.children_under_way(*id)).collect();
        affected.extend(children);
        for shard in affected.iter().filter_map(|id| keyspace.map.shard(*id)) {
            for replica in &shard.replicas {
                let Some(node) = self.nodes.get_mut(&replica.node) else { continue };
                if node.record.incarnation == replica.incarnation {
                    node.orders.touch(key(name, shard.id, replica.placement));
                    self.outbox.orders.insert(replica.node.clone());
                }
            }
        }
    }

    /// Notes that a replica is in no map any more.
    pub(super) fn withdraw_order(&mut self, node: &NodeId, replica: ReplicaKey) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.orders.remove(replica);
            self.outbox.orders.insert(node.clone());
        }
    }

    /// What `node` should hold, as a difference to the version it has `applied`, or whole.
    pub fn orders_since(&self, node: &NodeId, applied: u64, lease: Option<LeaseRenewal>) -> Option<Orders> {
        let state = self.nodes.get(node)?;
        let book = &state.orders;
        let base = if applied < book.floor || applied > book.version { 0 } else { applied };
        let changed: Vec<Order> = book.changed_since(base).filter_map(|key| self.order(&key)).collect();
        let names: BTreeSet<_> = changed.iter().map(|order| &order.replica.keyspace).collect();
        let keyspaces =
            names.into_iter().filter_map(|name| self.keyspaces.get(name)).map(KeyspaceState::brief).collect();
        let gone = book.removed.iter().filter(|(_, version)| base > 0 && **version > base);
        Some(Orders {
            incarnation: state.record.incarnation,
            version: book.version,
            base,
            keyspaces,
            changed,
            removed: gone.map(|(key, _)| key.clone()).collect(),
            lease,
            may_go: state.leaving && book.is_empty(),
        })
    }

    fn order(&self, replica: &ReplicaKey) -> Option<Order> {
        let keyspace = self.keyspaces.get(&replica.keyspace)?;
        let shard = keyspace.map.shard(replica.shard)?;
        let held = shard.replica(replica.placement)?;
        let leads = held.role == Role::Leader && held.state == ReplicaState::Live;
        Some(Order {
            replica: replica.clone(),
            bounds: shard.bounds.clone(),
            role: held.role,
            state: held.state,
            epoch: shard.epoch,
            // As it was decided, not as it would be now: a former owner whose lease was over may have
            // come back since, and has been told to stop in the same breath.
            granted: !leads || !keyspace.ungranted.contains(&shard.id),
            peers: self.peers(keyspace, shard, held),
        })
    }

    /// The other replicas that a replica needs to know: see [`Order::peers`].
    fn peers(&self, keyspace: &KeyspaceState, shard: &Shard, of: &Replica) -> Vec<Peer> {
        let map = &keyspace.map;
        let related: &[ShardId] = match &shard.stage {
            Stage::Closing(children) => children,
            Stage::Forming(_) | Stage::Serving => &shard.parents,
            Stage::Removing => &[],
        };
        let shards = std::iter::once(shard).chain(related.iter().filter_map(|id| map.shard(*id)));
        let others = shards.flat_map(|s| s.replicas.iter().map(move |r| (s, r)));
        let useful =
            others.filter(|(_, r)| r.placement != of.placement && r.state != ReplicaState::UnloadFinal);
        useful
            .filter_map(|(s, r)| {
                Some(Peer {
                    shard: s.id,
                    bounds: s.bounds.clone(),
                    node: r.node.clone(),
                    address: self.nodes.get(&r.node)?.record.spec.address.clone(),
                    role: r.role,
                    state: r.state,
                })
            })
            .collect()
    }
}

impl KeyspaceState {
    /// What a worker or router must know of it.
    pub fn brief(&self) -> KeyspaceBrief {
        let settings = &self.record.keyspace;
        KeyspaceBrief {
            name: settings.name.clone(),
            sharding: settings.sharding,
            partition_key: settings.partition_key,
            ownership: settings.ownership,
            generation: self.map.generation(),
        }
    }
}

pub(super) fn key(keyspace: &KeyspaceName, shard: ShardId, placement: PlacementId) -> ReplicaKey {
    ReplicaKey { keyspace: keyspace.clone(), shard, placement }
}
