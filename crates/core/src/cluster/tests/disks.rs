//! What services store: the writes that each replica has on the disk of its node, which outlives the worker. A leader
//! acknowledges a write when every replica in `Live` has stored it, and every one in `Load` that has begun to copy, as
//! the contract of durable services says. A leader that begins fetches what the parents of its shard have, and a follower what
//! its leader has.

use super::test_cluster::Holds;
use crate::base::id::{Epoch, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Role;
use crate::keyspace::sharding::{Bounds, Position};
use crate::node::exchange::{Order, Peer, Permission, Phase, ReplicaKey, Report, Served, Stored};
use std::collections::{BTreeMap, BTreeSet};

/// One replica on a disk.
#[derive(Debug, Clone)]
pub struct Data {
    writes: BTreeSet<u128>,
    epoch: Epoch,
    bounds: Bounds,
    /// Under which epoch it has begun to serve.
    began: Epoch,
    pub damaged: bool,
}

/// The simulated disks of all nodes, and what clients were told about the writes on them. See the module.
#[derive(Debug, Clone, Default)]
pub struct Disks {
    pub data: BTreeMap<(NodeId, ReplicaKey), Data>,
    /// Writes that clients were told of.
    pub acknowledged: BTreeSet<u128>,
    /// Under which epochs each shard was led, and where.
    pub led: BTreeMap<(ShardId, Epoch), (NodeId, ReplicaKey, u64)>,
    next: u128,
    /// The start of each node, counted by the test.
    pub starts: BTreeMap<NodeId, u64>,
    /// The coordinators' state was restored from a backup: it may name as copies what is deleted.
    pub restored: bool,
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
            progress: 0,
            served: Some(Served { epoch: data.epoch, bounds: data.bounds.clone() }),
            replication: None,
        };
        here.map(report).collect()
    }

    /// A worker gets on with an order. Returns whether it found what it needs.
    pub fn prepare(&mut self, node: &NodeId, order: &Order, phase: &Phase, there: &There) -> bool {
        let slot = (node.clone(), order.replica.clone());
        match order.state {
            ReplicaState::Load if *phase == Phase::Ready || !order.granted => return true,
            ReplicaState::Load => {
                let copied = self.copied(order, &there.leaders);
                if copied.is_none() && order.had_data {
                    return false;
                }
                let data = self.slot(&slot, order);
                data.writes = copied.unwrap_or_default();
                data.damaged = false;
            }
            ReplicaState::UnloadFinal => self.delete(&slot),
            ReplicaState::Live => {
                assert!(self.data.contains_key(&slot), "D1: live without data: {order:?}");
                return self.begin(&slot, order, there);
            }
            ReplicaState::Unload => {}
        }
        true
    }

    /// Under which epoch a replica has served.
    pub fn served(&self, node: &NodeId, replica: &ReplicaKey) -> Option<Served> {
        let data = self.data.get(&(node.clone(), replica.clone()))?;
        Some(Served { epoch: data.epoch, bounds: data.bounds.clone() })
    }

    /// Whether an order takes for a copy what is deleted.
    pub fn lacks(&self, node: &NodeId, order: &Order) -> bool {
        let is_here = || self.data.contains_key(&(node.clone(), order.replica.clone()));
        let is_copy = matches!(order.state, ReplicaState::Live | ReplicaState::Unload);
        self.restored && is_copy && order.had_data && !is_here()
    }

    /// What a replica that loads copies: from the leader of its shard, or else from those of its parents.
    fn copied(&self, order: &Order, leaders: &Leaders) -> Option<BTreeSet<u128>> {
        let of = |shard: ShardId| leaders.get(&shard).and_then(|source| self.data.get(source));
        if let Some(own) = of(order.replica.shard) {
            return Some(own.writes.clone());
        }
        let parents: BTreeSet<_> = order.peers.iter().map(|peer| peer.shard).collect();
        let parents = parents.into_iter().filter(|shard| *shard != order.replica.shard);
        let parts: Vec<&Data> = parents.map(of).collect::<Option<_>>()?;
        let written = parts.iter().flat_map(|data| &data.writes).copied();
        (!parts.is_empty()).then(|| written.filter(|write| is_in(&order.bounds, *write)).collect())
    }

    /// A replica is to serve under an epoch. It fetches what it may lack: as leader from the replicas of other shards, as
    /// follower of such a shard from its leader, whether that serves or not. Returns whether it found that.
    fn begin(&mut self, slot: &(NodeId, ReplicaKey), order: &Order, there: &There) -> bool {
        if !order.granted || self.data[slot].began == order.epoch {
            return true;
        }
        let is_own = |peer: &Peer| peer.shard == order.replica.shard;
        let inherits = order.peers.iter().any(|peer| !is_own(peer));
        let is_source = |peer: &&Peer| match order.role {
            Role::Leader => !is_own(peer),
            Role::Follower | Role::ReadReplica => inherits && is_own(peer) && peer.role == Role::Leader,
        };
        let mut parts: BTreeMap<ShardId, Option<BTreeSet<u128>>> = BTreeMap::new();
        for peer in order.peers.iter().filter(is_source) {
            let data = self.data.get(&slot_of(order, peer)).filter(|_| there.nodes.contains(&peer.node));
            let writes = data.filter(|data| !data.damaged).map(|data| data.writes.clone());
            let part = parts.entry(peer.shard).or_default();
            *part = part.take().or(writes);
        }
        let Some(found) = parts.into_values().collect::<Option<Vec<_>>>() else { return false };
        let found = found.into_iter().flatten().filter(|write| is_in(&order.bounds, *write));
        let data = self.slot(slot, order);
        data.writes.extend(found);
        data.began = order.epoch;
        true
    }

    fn slot(&mut self, slot: &(NodeId, ReplicaKey), order: &Order) -> &mut Data {
        self.data.entry(slot.clone()).or_insert_with(|| Data {
            writes: BTreeSet::new(),
            epoch: order.epoch,
            bounds: order.bounds.clone(),
            began: Epoch(0),
            damaged: false,
        })
    }

    /// A process has ended: the next one begins to serve anew.
    pub fn killed(&mut self, node: &NodeId) {
        let here = self.data.iter_mut().filter(|((on, _), _)| on == node);
        here.for_each(|(_, data)| data.began = Epoch(0));
    }

    /// What was acknowledged and lies in `bounds`.
    fn acknowledged_in<'a>(&'a self, bounds: &'a Bounds) -> impl Iterator<Item = &'a u128> {
        self.acknowledged.iter().filter(|write| is_in(bounds, **write))
    }

    /// A person gave up what was acknowledged in a shard.
    pub fn give_up(&mut self, shard: ShardId) {
        let bounds = self.data.iter().find(|((_, key), _)| key.shard == shard).unwrap().1.bounds.clone();
        self.give_up_in(&bounds);
    }

    /// A person gave up what was acknowledged there.
    pub fn give_up_in(&mut self, bounds: &Bounds) {
        self.acknowledged.retain(|write| !is_in(bounds, *write));
    }

    /// D10, D1: what was acknowledged is on some disk still.
    fn delete(&mut self, slot: &(NodeId, ReplicaKey)) {
        let Some(deleted) = self.data.remove(slot) else { return };
        let is_whole =
            |data: &&Data| self.acknowledged_in(&data.bounds).all(|write| data.writes.contains(write));
        let whole: Vec<&Data> = self.data.values().filter(is_whole).collect();
        let mut written = self.acknowledged_in(&deleted.bounds);
        let is_there = |write: &u128| whole.iter().any(|data| is_in(&data.bounds, *write));
        assert!(written.all(is_there), "{slot:?} had the last copy of what was acknowledged");
    }

    /// A node has taken orders in.
    pub fn take_orders(&mut self, node: &NodeId, holds: &Holds, permissions: &[Permission]) {
        for (key, (order, _)) in holds {
            let data = self.data.get_mut(&(node.clone(), key.clone()));
            // Before that it serves as it did.
            if let Some(data) = data.filter(|_| order.granted) {
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
        let write = written_to(&order.bounds, self.next);
        let start = self.starts.get(node).copied().unwrap_or(0);
        let owner = (node.clone(), key.clone(), start);
        let known = self.led.entry((key.shard, order.epoch)).or_insert_with(|| owner.clone());
        assert_eq!(*known, owner, "O3: {} was led under {} by another start", key.shard, order.epoch);
        let slot = (node.clone(), key.clone());
        let own = &self.data[&slot].writes;
        let lost: Vec<_> = self.acknowledged_in(&order.bounds).filter(|write| !own.contains(write)).collect();
        assert!(lost.is_empty(), "D1: {key:?} on {node} leads without {lost:?}");
        self.data.get_mut(&slot).unwrap().writes.insert(write);
        // The followers of a replicated shard refuse a leader of an earlier epoch than they know of; others have its lease.
        let refuses = |peer: &Peer| {
            let slot = slot_of(order, peer);
            let held = workers.get(&peer.node).and_then(|holds| holds.get(&slot.1));
            order.in_sync && held.is_some_and(|(known, _)| known.epoch > order.epoch)
        };
        if order.peers.iter().any(|peer| peer.shard == key.shard && refuses(peer)) {
            return;
        }
        let mut all = true;
        for peer in order.peers.iter().filter(|peer| peer.shard == key.shard) {
            let holds = workers.get(&peer.node);
            let slot = slot_of(order, peer);
            let phase = holds.and_then(|holds| holds.get(&slot.1)).map(|(_, phase)| phase);
            let is_ready = matches!(phase, Some(Phase::Ready | Phase::Serving));
            all &= match peer.state {
                ReplicaState::Live => is_ready,
                // One that has not begun to copy will find the write here. One that does not answer may have begun.
                ReplicaState::Load => holds.is_some(),
                ReplicaState::Unload | ReplicaState::UnloadFinal => true,
            };
            if is_ready {
                self.data.get_mut(&slot).unwrap().writes.insert(write);
            }
        }
        if all {
            self.acknowledged.insert(write);
        }
    }
}

/// Where the data of a peer of an order is.
fn slot_of(order: &Order, peer: &Peer) -> (NodeId, ReplicaKey) {
    let keyspace = order.replica.keyspace.clone();
    (peer.node.clone(), ReplicaKey { keyspace, shard: peer.shard, placement: peer.placement })
}

/// Which replicas lead and serve.
pub type Leaders = BTreeMap<ShardId, (NodeId, ReplicaKey)>;

/// What a worker can reach: nodes whose processes are there, and among them leaders that serve.
pub struct There {
    pub nodes: BTreeSet<NodeId>,
    pub leaders: Leaders,
}

/// Whether the key of a write lies in there.
fn is_in(bounds: &Bounds, write: u128) -> bool {
    bounds.contains(Position::Value(write))
}

/// A write to a slot, unlike all others: its number in the upper half, and a hash that falls in the slot in all of it.
fn written_to(bounds: &Bounds, number: u128) -> u128 {
    let Bounds::Slot(slot) = bounds else { panic!("{bounds} is no slot") };
    let base = number << 32;
    (base..).find(|write| slot.contains(*write)).unwrap()
}
