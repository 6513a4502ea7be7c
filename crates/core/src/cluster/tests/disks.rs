//! What services store: the writes that each replica has on the disk of its node, which outlives the worker. A leader
//! acknowledges a write when every replica in `Live` has stored it, as the contract of durable services says.

use super::town::Holds;
use crate::exchange::{Order, Permission, Phase, ReplicaKey, Report, Stored};
use crate::id::{Epoch, ShardId};
use crate::lifecycle::ReplicaState;
use crate::map::Role;
use crate::name::NodeId;
use crate::sharding::Bounds;
use std::collections::{BTreeMap, BTreeSet};

/// One replica on a disk.
#[derive(Debug, Clone)]
pub struct Data {
    writes: BTreeSet<u64>,
    epoch: Epoch,
    bounds: Bounds,
    pub damaged: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Disks {
    pub data: BTreeMap<(NodeId, ReplicaKey), Data>,
    /// Writes that clients were told of.
    pub acknowledged: BTreeMap<ShardId, BTreeSet<u64>>,
    /// Under which epochs each shard was led, and where.
    pub led: BTreeMap<(ShardId, Epoch), (NodeId, ReplicaKey, u64)>,
    next: u64,
    /// The start of each node, counted by the test.
    pub starts: BTreeMap<NodeId, u64>,
}

impl Disks {
    /// What a node names when it registers.
    pub fn stored(&self, node: &NodeId) -> Vec<Stored> {
        let here = self.data.iter().filter(|((on, _), _)| on == node);
        let stored = |((_, replica), data): (&(NodeId, ReplicaKey), &Data)| Stored {
            replica: replica.clone(),
            bounds: data.bounds.clone(),
            epoch: data.epoch,
            store: 1,
            damaged: data.damaged,
        };
        here.map(stored).collect()
    }

    /// What a node reports of data that no order is about.
    pub fn kept(&self, node: &NodeId, holds: &Holds) -> Vec<Report> {
        let here = self.data.iter().filter(|((on, key), _)| on == node && !holds.contains_key(key));
        let report = |((_, replica), data): (&(NodeId, ReplicaKey), &Data)| Report {
            replica: replica.clone(),
            phase: Phase::Kept,
            epoch: data.epoch,
            load: None,
        };
        here.map(report).collect()
    }

    /// A worker gets on with an order. Returns whether it found what it needs.
    pub fn prepare(
        &mut self,
        node: &NodeId,
        order: &Order,
        phase: &Phase,
        sources: &BTreeMap<ShardId, (NodeId, ReplicaKey)>,
    ) -> bool {
        let slot = (node.clone(), order.replica.clone());
        match order.state {
            ReplicaState::Load if *phase == Phase::Ready => return true,
            ReplicaState::Load => {
                let source = sources.get(&order.replica.shard).and_then(|source| self.data.get(source));
                let writes = source.map(|data| data.writes.clone());
                if writes.is_none() && order.had_data {
                    return false;
                }
                let data = self.slot(&slot, order);
                data.writes = writes.unwrap_or_default();
                data.damaged = false;
            }
            ReplicaState::UnloadFinal => self.delete(&slot),
            ReplicaState::Live => assert!(self.data.contains_key(&slot), "live without data: {order:?}"),
            ReplicaState::Unload => {}
        }
        true
    }

    fn slot(&mut self, slot: &(NodeId, ReplicaKey), order: &Order) -> &mut Data {
        self.data.entry(slot.clone()).or_insert_with(|| Data {
            writes: BTreeSet::new(),
            epoch: order.epoch,
            bounds: order.bounds.clone(),
            damaged: false,
        })
    }

    /// D10, D1: what was acknowledged is on some disk still.
    fn delete(&mut self, slot: &(NodeId, ReplicaKey)) {
        self.data.remove(slot);
        let Some(acknowledged) = self.acknowledged.get(&slot.1.shard) else { return };
        let mut others = self.data.iter().filter(|((_, key), _)| key.shard == slot.1.shard);
        let is_there = others.any(|(_, data)| acknowledged.is_subset(&data.writes));
        assert!(is_there, "{slot:?} had the last copy of what was acknowledged");
    }

    /// A node has taken orders in.
    pub fn take_orders(&mut self, node: &NodeId, holds: &Holds, permissions: &[Permission]) {
        for (key, (order, _)) in holds {
            if let Some(data) = self.data.get_mut(&(node.clone(), key.clone())) {
                data.epoch = data.epoch.max(order.epoch);
            }
        }
        for Permission { replica, epoch, .. } in permissions {
            let slot = (node.clone(), replica.clone());
            let is_kept = !holds.contains_key(replica);
            if self.data.get(&slot).is_some_and(|data| is_kept && data.epoch <= *epoch) {
                self.delete(&slot);
            }
        }
    }

    /// Every leader takes a write.
    pub fn write(&mut self, workers: &BTreeMap<NodeId, Holds>) {
        for (node, holds) in workers {
            for (key, (order, phase)) in holds {
                let leads = order.role == Role::Leader && order.granted && order.state == ReplicaState::Live;
                if leads && *phase == Phase::Serving {
                    self.write_one(workers, node, key, order);
                }
            }
        }
    }

    fn write_one(
        &mut self,
        workers: &BTreeMap<NodeId, Holds>,
        node: &NodeId,
        key: &ReplicaKey,
        order: &Order,
    ) {
        self.next += 1;
        let start = self.starts.get(node).copied().unwrap_or(0);
        let owner = (node.clone(), key.clone(), start);
        let known = self.led.entry((key.shard, order.epoch)).or_insert_with(|| owner.clone());
        assert_eq!(*known, owner, "O3: {} was led under {} by another start", key.shard, order.epoch);
        let acknowledged = self.acknowledged.entry(key.shard).or_default();
        let own = self.data.get_mut(&(node.clone(), key.clone())).unwrap();
        let lost: Vec<_> = acknowledged.difference(&own.writes).collect();
        assert!(lost.is_empty(), "D1: {key:?} on {node} leads without {lost:?}");
        own.writes.insert(self.next);
        let mut all = true;
        for peer in order.peers.iter().filter(|peer| peer.shard == key.shard) {
            let holds = workers.get(&peer.node);
            let of_it = holds.into_iter().flatten().filter(|(other, _)| other.shard == key.shard);
            let ready = of_it.filter(|(_, (_, phase))| matches!(phase, Phase::Ready | Phase::Serving));
            let ready: Vec<_> = ready.map(|(key, _)| (peer.node.clone(), key.clone())).collect();
            all &= peer.state != ReplicaState::Live || !ready.is_empty();
            for slot in ready {
                self.data.get_mut(&slot).unwrap().writes.insert(self.next);
            }
        }
        if all {
            acknowledged.insert(self.next);
        }
    }
}
