//! Disks of workers that outlive their processes: what the replicas of a durable keyspace have stored (A3, D10).
//!
//! The service follows `examples/kv`: a write is acknowledged when every replica in `Live` has stored it, and every one in
//! `Load` that has begun; one that loads copies from the leader; a leader fetches what others have besides from those that
//! answer, and needs one replica of each shard that its own was split or merged from; a follower that has not caught up
//! since its process began does not serve without its leader, and each refuses writes of epochs before the latest it
//! serves under. Unlike `kv`, a leader answers a read only when every replica in `Live` has stored what it saw.

use crate::clock::True;
use crate::message::{Event, Place};
use crate::model::{Deed, KeyAt, Life, Op, Register, Seen, Space};
use crate::scene::Scene;
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Replica, Role, Shard, Stage};
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{Order, Peer, ReplicaKey, Stored};
use std::collections::{BTreeMap, BTreeSet};

/// A register as one replica has stored it: the epoch of its last write says which of two copies is newer.
#[derive(Debug, Clone, Default)]
struct Row {
    epoch: Epoch,
    register: Register,
}

impl Row {
    fn version(&self) -> (Epoch, u64) {
        (self.epoch, self.register.version())
    }
}

/// What is stored of one replica.
#[derive(Debug)]
struct Copy {
    node: usize,
    bounds: Bounds,
    /// The latest epoch that it has served under; writes of earlier ones are refused.
    epoch: Epoch,
    /// The process that has had everything that was acknowledged, once.
    caught_up: Option<u32>,
    /// Nothing of it can be read.
    is_damaged: bool,
    rows: BTreeMap<KeyAt, Row>,
}

/// All disks of a run.
#[derive(Debug, Default)]
pub struct Disks {
    copies: BTreeMap<ReplicaKey, Copy>,
    /// Nodes whose process runs.
    pub running: BTreeMap<usize, u32>,
    /// Until when processes stand still.
    pub asleep: BTreeMap<usize, True>,
    /// What was on disks that were lost.
    lost: BTreeSet<ReplicaKey>,
}

/// How a write or a read at a leader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every replica in `Live` has stored what was seen.
    OnAll(Seen),
    /// The replica has served under a later epoch.
    Refused,
    /// Some replica has not stored it.
    NotOnAll,
}

impl Disks {
    /// What a node names when it registers.
    pub fn stored_on(&self, node: usize) -> Vec<Stored> {
        let of_it = self.copies.iter().filter(|(_, copy)| copy.node == node);
        let stored = |(replica, copy): (&ReplicaKey, &Copy)| Stored {
            replica: replica.clone(),
            bounds: copy.bounds.clone(),
            epoch: copy.epoch,
            store: node as u64 + 1,
            damaged: copy.is_damaged,
        };
        of_it.map(stored).collect()
    }

    /// A person has given up all that was written to a key: it answers for nothing any more, wherever it lies.
    pub fn give_up(&mut self, key: KeyAt) {
        self.copies.values_mut().for_each(|copy| drop(copy.rows.remove(&key)));
    }

    /// Whether a running process has everything of a replica.
    pub fn is_whole(&self, name: &KeyspaceName, shard: ShardId, placement: PlacementId) -> bool {
        let key = ReplicaKey { keyspace: name.clone(), shard, placement };
        let copy = self.copies.get(&key).filter(|copy| !copy.is_damaged);
        copy.is_some_and(|copy| {
            copy.caught_up.is_some() && copy.caught_up == self.running.get(&copy.node).copied()
        })
    }

    /// A disk is lost, or nothing on it can be read any more. Says whether anything was on it.
    pub fn lose(&mut self, node: usize, is_damaged: bool) -> bool {
        let on_it = self.copies.iter().filter(|(_, copy)| copy.node == node);
        let on_it: Vec<ReplicaKey> = on_it.map(|(replica, _)| replica.clone()).collect();
        let has_lost = !on_it.is_empty();
        self.lost.extend(on_it);
        if !is_damaged {
            self.copies.retain(|_, copy| copy.node != node);
        }
        for copy in self.copies.values_mut().filter(|copy| copy.node == node) {
            (copy.is_damaged, copy.caught_up) = (true, None);
            copy.rows.clear();
        }
        has_lost
    }

    /// Whether every copy that the map names of a shard was on a disk that was lost. The disk of a node is lost only while others
    /// have its copies; but the coordinator may let those go before it hears of that (seed 3206 with --durable).
    pub fn are_lost(&self, name: &KeyspaceName, shard: &Shard) -> bool {
        let is_lost = |r: &Replica| self.is_lost(name, shard, r);
        shard.is_serving() && shard.live().next().is_some() && shard.live().all(is_lost)
    }

    /// The same of what a closing parent hands over: a child of it that no process has open waits for that, as it cannot know
    /// whether it lacks anything (seeds 3254 and 3400 with --durable: everything was killed just after the switch).
    pub fn are_last_writes_lost(&self, name: &KeyspaceName, parent: &Shard) -> bool {
        let mut handing_over = parent.replicas.iter().filter(|r| r.state == ReplicaState::Unload).peekable();
        let closes = matches!(parent.stage(), Stage::Closing(_)) && handing_over.peek().is_some();
        closes && handing_over.all(|r| self.is_lost(name, parent, r))
    }

    fn is_lost(&self, name: &KeyspaceName, shard: &Shard, replica: &Replica) -> bool {
        let key = ReplicaKey { keyspace: name.clone(), shard: shard.id, placement: replica.placement };
        self.lost.contains(&key) && self.copies.get(&key).is_none_or(|copy| copy.is_damaged)
    }

    /// The rows of a key in one life, on all disks.
    fn rows(&self, key: KeyAt, life: Life) -> impl Iterator<Item = &Row> {
        // Only named partitions have lives here: what else lies on disks is never deleted.
        let is_of_it = move |replica: &ReplicaKey| life == Life::default() || replica.shard.0 == life;
        let copies = self.copies.iter().filter(move |(replica, _)| is_of_it(replica));
        copies.filter_map(move |(_, copy)| copy.rows.get(&key))
    }

    /// The newest row of a key on any disk.
    pub fn newest(&self, key: KeyAt, life: Life) -> Option<&Register> {
        let rows = self.rows(key, life);
        rows.max_by_key(|row| row.version()).map(|row| &row.register)
    }

    /// The most writes of a key that any disk has, in whatever order.
    pub fn most(&self, key: KeyAt, life: Life) -> Seen {
        let seen = self.rows(key, life).map(|row| row.register.seen(life));
        seen.max_by_key(|seen| seen.version).unwrap_or(Seen { life, ..Seen::default() })
    }

    /// What one replica has of a key.
    pub fn seen_by(&self, replica: &ReplicaKey, key: KeyAt, life: Life) -> Seen {
        let row = self.copies.get(replica).and_then(|copy| copy.rows.get(&key));
        row.map_or(Seen { life, ..Seen::default() }, |row| row.register.seen(life))
    }

    /// Deletes what is stored of a replica.
    pub fn delete(&mut self, replica: &ReplicaKey) {
        self.copies.remove(replica);
    }

    /// What a node has of another replica, if that is readable.
    fn of_peer(&self, node: usize, name: &KeyspaceName, peer: &Peer) -> Option<ReplicaKey> {
        let key = ReplicaKey { keyspace: name.clone(), shard: peer.shard, placement: peer.placement };
        self.copies.get(&key).is_some_and(|copy| copy.node == node && !copy.is_damaged).then_some(key)
    }

    fn merge(&mut self, into: &ReplicaKey, rows: Vec<(KeyAt, Row)>) {
        let Some(copy) = self.copies.get_mut(into) else { return };
        for (key, row) in rows {
            if copy.rows.get(&key).is_none_or(|own| own.version() < row.version()) {
                copy.rows.insert(key, row);
            }
        }
    }

    /// Writes at one replica, as the leader of `epoch`; with no deed, only asks. None when it refuses.
    fn write(
        &mut self,
        replica: &ReplicaKey,
        epoch: Epoch,
        key: KeyAt,
        write: Option<(Op, Deed)>,
    ) -> Option<Row> {
        let copy = self.copies.get_mut(replica).filter(|copy| copy.epoch <= epoch)?;
        let row = copy.rows.entry(key).or_default();
        if let Some((op, deed)) = write {
            row.epoch = epoch;
            row.register.write(op, deed);
        }
        Some(row.clone())
    }
}

fn has_data(peer: &&Peer) -> bool {
    matches!(peer.state, ReplicaState::Live | ReplicaState::Unload)
}

/// Whether one worker's process gets an answer from another's.
fn answers(scene: &Scene, node: usize, other: usize) -> bool {
    let (from, to) = (Place::Node(node), Place::Node(other));
    let disks = &scene.oracles.storage.disks;
    let sleeps = disks.asleep.get(&other).is_some_and(|until| *until > scene.now);
    let reaches = scene.network.reaches(from, to) && scene.network.reaches(to, from);
    disks.running.contains_key(&other) && !sleeps && reaches
}

/// The node of a peer; none when it is removed from the cluster, or its address is lost.
fn node_of(peer: &Peer) -> Option<usize> {
    crate::coordinator::node_at(peer.address.as_ref()?)
}

/// Copies what `peer` has of its shard and lies within the order's bounds.
fn fetch(scene: &mut Scene, node: usize, space: (usize, &Space), order: &Order, peer: &Peer) -> bool {
    let Some(other) = node_of(peer) else { return false };
    if !answers(scene, node, other) {
        return false;
    }
    let disks = &mut scene.oracles.storage.disks;
    let Some(source) = disks.of_peer(other, &order.replica.keyspace, peer) else { return false };
    let keys: BTreeSet<usize> = space.1.keys_in(&order.bounds).collect();
    let rows = disks.copies.get(&source).map(|copy| &copy.rows).into_iter().flatten();
    let wanted = rows.filter(|(at, _)| at.keyspace == space.0 && keys.contains(&at.key));
    let rows = wanted.map(|(at, row)| (*at, row.clone())).collect();
    disks.merge(&order.replica, rows);
    true
}

/// `load` of a durable replica: what it has stored, where that counts, else a copy of one source of each part.
pub fn load(
    scene: &mut Scene,
    (node, process): (usize, u32),
    space: (usize, &Space),
    order: &Order,
    counts: bool,
) -> Result<(), String> {
    let disks = &mut scene.oracles.storage.disks;
    let is_here = counts && disks.copies.get(&order.replica).is_some_and(|copy| !copy.is_damaged);
    if !is_here {
        let (bounds, rows) = (order.bounds.clone(), BTreeMap::new());
        let copy = Copy { node, bounds, epoch: Epoch(0), caught_up: None, is_damaged: false, rows };
        disks.copies.insert(order.replica.clone(), copy);
    } else if order.state == ReplicaState::Live {
        // What it was split or merged from may have what it lacks.
        let inherits = order.peers.iter().any(|peer| peer.shard != order.replica.shard && has_data(&peer));
        let copy = disks.copies.get_mut(&order.replica).filter(|_| !inherits);
        copy.into_iter().for_each(|copy| copy.caught_up = Some(process));
        return Ok(());
    }
    let sources: Vec<&Peer> = order.peers.iter().filter(has_data).collect();
    let parts: BTreeSet<ShardId> = sources.iter().map(|peer| peer.shard).collect();
    for part in parts {
        let is_source =
            |peer: &&&Peer| peer.shard == part && (part != order.replica.shard || peer.role == Role::Leader);
        let mut of_it = sources.iter().filter(is_source);
        if !of_it.any(|peer| fetch(scene, node, space, order, peer)) {
            return Err(format!("no source of shard {part} answers"));
        }
    }
    Ok(())
}

/// `serve` of a durable replica.
pub fn serve(
    scene: &mut Scene,
    (node, process): (usize, u32),
    space: (usize, &Space),
    order: &Order,
    epoch: Epoch,
) -> Result<(), String> {
    let disks = &mut scene.oracles.storage.disks;
    let Some(copy) = disks.copies.get_mut(&order.replica) else { return Err("it was not loaded".to_owned()) };
    copy.epoch = copy.epoch.max(epoch);
    let is_caught_up = copy.caught_up == Some(process);
    let sources: Vec<&Peer> = order.peers.iter().filter(has_data).collect();
    match order.role {
        Role::Leader => {
            let mut parts: BTreeMap<ShardId, bool> = BTreeMap::new();
            for peer in sources {
                let fetched = fetch(scene, node, space, order, peer);
                *parts.entry(peer.shard).or_default() |= fetched || peer.shard == order.replica.shard;
            }
            if let Some((part, _)) = parts.iter().find(|(_, fetched)| !**fetched) {
                return Err(format!("no replica of {part} answers"));
            }
        }
        Role::Follower | Role::ReadReplica => {
            let mut leaders = sources.into_iter().filter(|peer| peer.role == Role::Leader);
            if !leaders.all(|peer| fetch(scene, node, space, order, peer)) && !is_caught_up {
                return Err("its leader does not answer".to_owned());
            }
        }
    }
    let disks = &mut scene.oracles.storage.disks;
    disks.copies.get_mut(&order.replica).into_iter().for_each(|copy| copy.caught_up = Some(process));
    Ok(())
}

/// A write of a leader, or a read: on its disk, then on those of all other replicas.
pub fn replicate(
    scene: &mut Scene,
    node: usize,
    order: &Order,
    epoch: Epoch,
    key: KeyAt,
    write: Option<(Op, Deed)>,
) -> Outcome {
    let name = &order.replica.keyspace;
    let life = scene.oracles.storage.life_of(key.keyspace, order.replica.shard);
    // It is to lead on under a later epoch, without a copy that the request counts on.
    let is_late = order.role == Role::Leader && order.epoch != epoch;
    let disks = &mut scene.oracles.storage.disks;
    let Some(row) = disks.write(&order.replica, epoch, key, write) else { return Outcome::Refused };
    // The last writes of a shard that was split or merged are let out while all of its replicas are in `Unload`.
    let takes = |peer: &&Peer| {
        let counts = match peer.state {
            ReplicaState::Load | ReplicaState::Live => true,
            ReplicaState::Unload => order.state == ReplicaState::Unload || is_late,
            ReplicaState::UnloadFinal => false,
        };
        peer.shard == order.replica.shard && counts
    };
    let mut on_all = true;
    for peer in order.peers.iter().filter(takes) {
        let Some(other) = node_of(peer) else {
            on_all = false;
            continue;
        };
        let answers = answers(scene, node, other);
        let disks = &mut scene.oracles.storage.disks;
        let copy = disks.of_peer(other, name, peer).filter(|_| answers);
        // One that has begun to load may be asked to lead as soon as it is ready.
        let has_begun = !answers || copy.is_some();
        let taker = copy.filter(|copy| disks.copies.get(copy).is_some_and(|copy| copy.epoch <= epoch));
        if let Some(taker) = &taker {
            disks.merge(taker, vec![(key, row.clone())]);
        }
        on_all &= taker.is_some() || (peer.state == ReplicaState::Load && !has_begun);
    }
    if on_all || planted::is(Planted::AckedByOne) {
        Outcome::OnAll(row.register.seen(life))
    } else {
        Outcome::NotOnAll
    }
}

/// What a leader answers when the disks have answered.
pub fn event(node: usize, process: u32, (op, attempt): (Op, u32), outcome: Outcome) -> Event {
    match outcome {
        Outcome::OnAll(seen) => Event::StorageAnswers { node, process, op, attempt, seen: Some(seen) },
        Outcome::Refused => Event::StorageAnswers { node, process, op, attempt, seen: None },
        Outcome::NotOnAll => Event::Evicted { node, process, op, attempt },
    }
}
