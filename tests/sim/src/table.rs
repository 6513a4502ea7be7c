//! Tables: the service of a replicated keyspace, as a driver of [`replication`] has it.
//!
//! Each replica that is loaded has a machine in the memory of its process and a stored replica on its node's disk. Orders come
//! to the machine as the worker takes them in; wishes go out with the worker's beats. What a request wants goes through the
//! machine, and is answered when the machine says so. A sync takes time, and what was not synced is gone with the process.
//!
//! The witness ([`Tables`]) knows what is committed: every replica applies the same entries, and after each acknowledgement
//! and each new map every member of the in-sync set has on its disk what was acknowledged.

use crate::clock::{MS, True};
use crate::message::{Event, Message, Outcome, Place, Via};
use crate::model::{Deed, KeyAt, Op, Register, Seen};
use crate::node::Node;
use crate::scene::Scene;
use partage_core::base::id::{Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{self, ReplicaKey, Stored};
use partage_core::service::table::member::{self, Reporter};
use partage_core::service::table::replication::{
    self as replication, Answer, Consistency, Effect, Entry, EntryKind, LogPosition, LogWrite, Order,
    Payload, Replica,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long a sync takes.
const SYNC: True = 2 * MS;

/// Syncs that take up to a second, in thousandths.
const SLOW_SYNCS: u64 = 10;

/// Syncs after which what was applied is flushed, in thousandths.
const FLUSHES: u64 = 50;

/// Flushes after which the disk wants room for its log, in thousandths.
const TRIMS: u64 = 300;

/// What was applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registers {
    at: LogPosition,
    registers: BTreeMap<KeyAt, Register>,
}

impl Registers {
    fn apply(&mut self, entry: &Entry) {
        self.at = entry.position;
        if let EntryKind::Write(payload) = &entry.kind
            && let Some((key, op, deed)) = decode(payload)
        {
            self.registers.entry(key).or_default().write(op, deed);
        }
    }

    fn seen(&self, key: KeyAt) -> Seen {
        self.registers.get(&key).map(|register| register.seen(0)).unwrap_or_default()
    }
}

fn encode(key: KeyAt, op: Op, deed: Deed) -> Payload {
    let head = [key.keyspace as u8, key.key as u8, u8::from(deed == Deed::Put)];
    [&head[..], &op.to_le_bytes()].concat().into()
}

fn decode(payload: &Payload) -> Option<(KeyAt, Op, Deed)> {
    let (head, op) = payload.split_first_chunk::<3>()?;
    let key = KeyAt { keyspace: head[0].into(), key: head[1].into() };
    let deed = if head[2] == 1 { Deed::Put } else { Deed::Delete };
    Some((key, u64::from_le_bytes(op.try_into().ok()?), deed))
}

/// A stored replica.
#[derive(Debug, Clone)]
struct Disk {
    node: usize,
    bounds: Bounds,
    /// The latest epoch under which it has served.
    epoch: Epoch,
    stored: replication::Stored,
    flushed: Registers,
}

impl Disk {
    fn has(&self, position: LogPosition) -> bool {
        let replication::Stored { base, entries, flushed, .. } = &self.stored;
        position.index <= flushed.index.max(base.index)
            || entries.get((position.index - base.index - 1) as usize).is_some_and(|e| e.position == position)
    }
}

/// What is committed of a shard.
#[derive(Debug, Default)]
struct Truth {
    entries: Vec<Entry>,
    applied: Registers,
    /// Up to this index writes were acknowledged.
    acknowledged: u64,
}

/// All stored replicas of a run, and what nobody in it knows.
#[derive(Debug, Default)]
pub struct Tables {
    disks: BTreeMap<ReplicaKey, Disk>,
    shards: BTreeMap<(KeyspaceName, ShardId), Truth>,
    registers: BTreeMap<KeyAt, Register>,
}

impl Tables {
    /// What a node names when it registers.
    pub fn stored_on(&self, node: usize) -> Vec<Stored> {
        let of_it = self.disks.iter().filter(|(_, disk)| disk.node == node);
        let stored = |(replica, disk): (&ReplicaKey, &Disk)| Stored {
            replica: replica.clone(),
            bounds: disk.bounds.clone(),
            epoch: disk.epoch,
            store: node as u64 + 1,
            damaged: false,
        };
        of_it.map(stored).collect()
    }

    /// A register as all that is committed has made it.
    pub fn register(&self, key: KeyAt) -> Option<&Register> {
        self.registers.get(&key)
    }

    /// Deletes what is stored of a replica.
    pub fn delete(&mut self, replica: &ReplicaKey) {
        self.disks.remove(replica);
    }

    /// D1: what a member of an in-sync set of the map lacks of what was acknowledged.
    pub fn lacking(&self, map: &ShardMap) -> Option<String> {
        map.shards().find_map(|shard| {
            let truth = self.shards.get(&(map.keyspace().clone(), shard.id))?;
            let last = truth.entries.get((truth.acknowledged as usize).checked_sub(1)?)?.position;
            let key = |placement| ReplicaKey { keyspace: map.keyspace().clone(), shard: shard.id, placement };
            let lacks = |placement| self.disks.get(&key(placement)).is_none_or(|disk| !disk.has(last));
            let member = shard.in_sync().find(|replica| lacks(replica.placement))?;
            let text = "in sync and lacks what was acknowledged at";
            Some(format!("{} of {} is {text} {last}: {shard:#?}", member.placement, map.keyspace()))
        })
    }

    /// A replica applies an entry: the same that all others apply there.
    fn applied(&mut self, replica: &ReplicaKey, entry: &Entry) -> Result<(), String> {
        let truth = self.shards.entry((replica.keyspace.clone(), replica.shard)).or_default();
        let at = (entry.position.index - 1) as usize;
        match truth.entries.get(at) {
            Some(known) if known == entry => return Ok(()),
            Some(known) => return Err(format!("{entry:?} is applied where {known:?} is committed")),
            None if at > truth.entries.len() => {
                return Err(format!("{} is applied before what is before it", entry.position));
            }
            None => truth.entries.push(entry.clone()),
        }
        truth.applied.apply(entry);
        if let EntryKind::Write(payload) = &entry.kind
            && let Some((key, op, deed)) = decode(payload)
        {
            self.registers.entry(key).or_default().write(op, deed);
        }
        Ok(())
    }

    fn acknowledged(&mut self, replica: &ReplicaKey, at: LogPosition) {
        if let Some(truth) = self.shards.get_mut(&(replica.keyspace.clone(), replica.shard)) {
            truth.acknowledged = truth.acknowledged.max(at.index);
        }
    }

    fn is_whole(&self, replica: &ReplicaKey, has: &Registers) -> bool {
        let truth = self.shards.get(&(replica.keyspace.clone(), replica.shard));
        truth.is_none_or(|truth| truth.applied == *has)
    }
}

/// A replica in the memory of a process.
#[derive(Debug)]
pub struct Local {
    machine: Replica,
    incarnation: Incarnation,
    settings: replication::Settings,
    applied: Registers,
    reporter: Reporter,
    order: Option<Order>,
    /// Writes to the log that are not synced.
    waiting: VecDeque<(u64, LogWrite)>,
    is_syncing: bool,
    /// When it is called next, so that it is not called twice.
    tick_at: True,
}

/// The replicas of a process.
pub type Locals = BTreeMap<ReplicaKey, Local>;

fn request_of(op: Op, attempt: u32) -> replication::Request {
    op << 16 | u64::from(attempt)
}

impl Node {
    /// `load` of a replica: its machine starts with what the disk has.
    pub fn open_table(&mut self, scene: &mut Scene, order: &exchange::Order) -> Result<(), String> {
        let (node, now) = (self.at, self.clock.read(scene.now));
        let space = scene.oracles.spaces.iter().find(|s| s.keyspace.name == order.replica.keyspace);
        let min_in_sync = space.map_or(1, |space| space.keyspace.min_in_sync as usize);
        let Some(process) = &mut self.process else { return Ok(()) };
        let Some(incarnation) = process.worker.incarnation() else {
            return Err("it is not registered".to_owned());
        };
        if process.service.tables.contains_key(&order.replica) {
            return Ok(());
        }
        let settings = replication::Settings { min_in_sync, ..replication::Settings::default() };
        let fresh = || Disk {
            node,
            bounds: order.bounds.clone(),
            epoch: Epoch(0),
            stored: replication::Stored::default(),
            flushed: Registers::default(),
        };
        let is_new = !order.had_data;
        let disk = scene.oracles.storage.tables.disks.entry(order.replica.clone()).or_insert_with(fresh);
        let me = (order.replica.placement, incarnation);
        let machine = Replica::recover(me, settings, disk.stored.clone(), now, is_new);
        let local = Local {
            machine,
            incarnation,
            settings,
            applied: disk.flushed.clone(),
            reporter: Reporter::default(),
            order: None,
            waiting: VecDeque::new(),
            is_syncing: false,
            tick_at: True::MAX,
        };
        process.service.tables.insert(order.replica.clone(), local);
        Ok(())
    }

    /// `serve` of a replica.
    pub fn serve_table(
        &mut self,
        scene: &mut Scene,
        replica: &ReplicaKey,
        epoch: Epoch,
    ) -> Result<(), String> {
        let is_open = self.process.as_ref().is_some_and(|p| p.service.tables.contains_key(replica));
        match scene.oracles.storage.tables.disks.get_mut(replica).filter(|_| is_open) {
            Some(disk) => disk.epoch = disk.epoch.max(epoch),
            None => return Err("it was not loaded".to_owned()),
        }
        Ok(())
    }

    /// `unload` of a replica begins: its machine stops, whatever becomes of the callback.
    pub fn close_table(&mut self, replica: &ReplicaKey) {
        self.process.iter_mut().for_each(|process| drop(process.service.tables.remove(replica)));
    }

    /// The machines hear what the worker was ordered.
    pub fn order_tables(&mut self, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let Some(incarnation) = process.worker.incarnation() else { return };
        let mut news = Vec::new();
        for (replica, local) in &mut process.service.tables {
            if std::mem::replace(&mut local.incarnation, incarnation) != incarnation {
                scene.count("replicas of tables renamed");
                local.machine.renamed(incarnation);
            }
            let ordered = process.worker.local_replicas().get(replica);
            let order = ordered.and_then(|held| member::order(&held.order, &self.id, incarnation));
            if let Some(order) = order.filter(|order| local.order.as_ref() != Some(order)) {
                local.order = Some(order.clone());
                news.push((replica.clone(), order));
            }
        }
        for (replica, order) in news {
            self.table_hears(scene, &replica, replication::Event::Order(order));
        }
    }

    /// A request that the gates have let in.
    pub fn ask_table(
        &mut self,
        scene: &mut Scene,
        (op, attempt): (Op, u32),
        replica: &ReplicaKey,
        (key, deed): (KeyAt, Option<Deed>),
        leads: bool,
    ) {
        let is_open = self.process.as_ref().is_some_and(|p| p.service.tables.contains_key(replica));
        if !is_open {
            return self.finish(scene, op, attempt, Outcome::NotNow("the replica is not open"));
        }
        let request = request_of(op, attempt);
        let event = match deed {
            Some(deed) => replication::Event::Write(vec![(request, encode(key, op, deed))]),
            None if leads => replication::Event::Read(request, Consistency::Linearizable, 0),
            None => replication::Event::Read(request, Consistency::Any, 0),
        };
        self.table_hears(scene, replica, event);
    }

    /// A machine is called, and its effects are carried out.
    pub fn table_hears(&mut self, scene: &mut Scene, replica: &ReplicaKey, event: replication::Event) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let Some(local) = process.service.tables.get_mut(replica) else { return };
        let effects = local.machine.handle(now, event);
        for effect in effects {
            self.table_does(scene, replica, effect);
        }
        let Some(process) = &mut self.process else { return };
        let Some(local) = process.service.tables.get_mut(replica) else { return };
        let status = local.machine.status();
        let report = local.reporter.report(now, &status, &local.settings);
        process.worker.replicates(replica, report);
        let when = self.clock.when(local.machine.wake_at(), scene.now).max(scene.now + MS / 5);
        if when < True::MAX && (local.tick_at <= scene.now || when < local.tick_at) {
            local.tick_at = when;
            let (node, process) = (self.at, self.process_number);
            scene.at(when, Event::TableWake { node, process, replica: replica.clone() });
        }
    }

    /// A machine's time has come.
    pub fn table_wakes(&mut self, scene: &mut Scene, replica: &ReplicaKey) {
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        if let Some(local) = local {
            local.tick_at = True::MAX;
            self.table_hears(scene, replica, replication::Event::Tick);
            self.tick(scene);
        }
    }

    fn table_does(&mut self, scene: &mut Scene, replica: &ReplicaKey, effect: Effect) {
        let (node, now) = (self.at, self.clock.read(scene.now));
        let Some(process) = &mut self.process else { return };
        let Some(local) = process.service.tables.get_mut(replica) else { return };
        match effect {
            Effect::Write(number, write) => {
                local.waiting.push_back((number, write));
                self.sync_table(scene, replica);
            }
            Effect::Send(to, message) => {
                let from = replica.placement;
                self.tell_replica(scene, replica, to, |to| Message::Table(to, from, message));
            }
            Effect::Apply(entries) => {
                for entry in &entries {
                    if let Err(text) = scene.oracles.storage.tables.applied(replica, entry) {
                        scene.violate("D1", text);
                    }
                    local.applied.apply(entry);
                }
            }
            Effect::Answer(request, answer) => self.table_answers(scene, replica, request, answer),
            Effect::Wish(wish) => {
                scene.count("wishes of tables");
                local.reporter.wishes(wish);
            }
            Effect::LeaderSilent(epoch) => {
                scene.count("silent leaders of tables");
                local.reporter.leader_is_silent(epoch, now);
            }
            Effect::Began(epoch) => {
                scene.count("leaders of tables");
                scene.trace.event(scene.now, (60u8, node, replica.placement.0, epoch.0), || {
                    format!("node-{node} {} begins to lead {} in {epoch}", replica.placement, replica.shard)
                });
            }
            Effect::Snapshot(to) => {
                scene.count("snapshots of tables");
                let snapshot = Box::new(local.applied.clone());
                self.tell_replica(scene, replica, to, |to| Message::TableSnapshot(to, snapshot));
            }
            Effect::HeirIsReady(_) | Effect::TransferEnded(_) => {}
            Effect::Damaged(damage) => scene.violate("D1", format!("{replica:?} is damaged: {damage}")),
        }
    }

    fn tell_replica(
        &self,
        scene: &mut Scene,
        from: &ReplicaKey,
        to: PlacementId,
        message: impl FnOnce(ReplicaKey) -> Message,
    ) {
        let local = self.process.as_ref().and_then(|process| process.service.tables.get(from));
        let order = local.and_then(|local| local.order.as_ref());
        let peer = order.and_then(|order| order.peers.iter().find(|peer| peer.placement == to));
        if let Some(other) = peer.and_then(|peer| crate::coordinator::node_at(&format!("{}:1", peer.node))) {
            let message = message(ReplicaKey { placement: to, ..from.clone() });
            scene.send(self.place(), Place::Node(other), Via::Post(0), message);
        }
    }

    /// What waits is synced together, unless a sync is under way.
    fn sync_table(&mut self, scene: &mut Scene, replica: &ReplicaKey) {
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        let Some(local) = local.filter(|local| !local.waiting.is_empty() && !local.is_syncing) else {
            return;
        };
        local.is_syncing = true;
        let takes = match scene.draw.chance(SLOW_SYNCS) {
            true => scene.draw.between(SYNC, 1_000 * MS),
            false => scene.draw.around(SYNC),
        };
        let (node, process, writes) = (self.at, self.process_number, local.waiting.len());
        scene.after(takes, Event::TableSynced { node, process, replica: replica.clone(), writes });
    }

    /// So many writes are on the disk.
    pub fn table_synced(&mut self, scene: &mut Scene, replica: &ReplicaKey, writes: usize) {
        let tables = &mut scene.oracles.storage.tables;
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        let (Some(local), Some(disk)) = (local, tables.disks.get_mut(replica)) else { return };
        local.is_syncing = false;
        let mut last = None;
        for (number, write) in local.waiting.drain(..writes.min(local.waiting.len())) {
            last = Some(number);
            disk.stored.write(write);
        }
        if scene.draw.chance(FLUSHES) {
            disk.flushed = local.applied.clone();
            disk.stored.flushed = local.applied.at;
            let flushed = replication::Event::Flushed(local.applied.at);
            self.table_hears(scene, replica, flushed);
            if scene.draw.chance(TRIMS) {
                self.table_hears(scene, replica, replication::Event::Trim);
            }
        }
        self.sync_table(scene, replica);
        if let Some(last) = last {
            self.table_hears(scene, replica, replication::Event::Synced(last));
        }
        self.tick(scene);
    }

    /// A snapshot arrives.
    pub fn install_table(&mut self, scene: &mut Scene, replica: &ReplicaKey, snapshot: Registers) {
        let tables = &mut scene.oracles.storage.tables;
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        let (Some(local), Some(disk)) = (local, tables.disks.get_mut(replica)) else { return };
        if local.machine.takes_snapshot(snapshot.at) {
            let installed = replication::Event::Installed(snapshot.at);
            disk.stored.flushed = snapshot.at;
            disk.flushed = snapshot.clone();
            local.applied = snapshot;
            self.table_hears(scene, replica, installed);
        }
    }

    fn table_answers(
        &mut self,
        scene: &mut Scene,
        replica: &ReplicaKey,
        request: replication::Request,
        answer: Result<Answer, replication::Failed>,
    ) {
        let (op, attempt) = (request >> 16, request as u16 as u32);
        let Some(process) = &mut self.process else { return };
        let Some((key, leads)) = process.service.asked(op, attempt) else { return };
        let Some(local) = process.service.tables.get(replica) else { return };
        let seen = local.applied.seen(key);
        let outcome = match answer {
            Ok(Answer::Written(at)) => {
                scene.oracles.storage.tables.acknowledged(replica, at);
                scene.count("writes to tables");
                // More may be applied already than this write.
                let written = local.applied.registers.get(&key).and_then(|register| register.written_by(op));
                Outcome::Done(written.unwrap_or(seen), true)
            }
            Ok(Answer::Read { .. }) => Outcome::Done(seen, leads),
            Err(failed) if failed.is_definite() => Outcome::NotNow("its replication refuses"),
            Err(_) => Outcome::Indefinite,
        };
        let map = scene.oracles.maps.latest(&replica.keyspace);
        let lacking = map.and_then(|map| scene.oracles.storage.tables.lacking(map));
        lacking.into_iter().for_each(|text| scene.violate("D1", text));
        self.finish(scene, op, attempt, outcome);
    }

    /// Whether the replica leads, serves, and has all that is committed.
    pub fn leads_table(&self, tables: &Tables, replica: &ReplicaKey) -> bool {
        let local = self.process.as_ref().and_then(|process| process.service.tables.get(replica));
        local
            .is_some_and(|local| local.machine.status().has_begun && tables.is_whole(replica, &local.applied))
    }
}

/// L1, once faults have stopped: every replica is in sync, and the leader serves, with all that is committed.
pub fn unserved(map: &ShardMap, nodes: &[Node], tables: &Tables) -> Vec<String> {
    let shards = map.shards().filter_map(|shard| {
        let all: BTreeSet<_> = shard.replicas.iter().map(|replica| replica.placement).collect();
        let in_sync: BTreeSet<_> = shard.in_sync().map(|replica| replica.placement).collect();
        let leads = shard.leader().is_some_and(|leader| {
            let placement = leader.placement;
            let key = ReplicaKey { keyspace: map.keyspace().clone(), shard: shard.id, placement };
            nodes.iter().any(|node| node.id == leader.node && node.leads_table(tables, &key))
        });
        (all != in_sync || !leads)
            .then(|| format!("{} is not in sync, or its leader does not serve: {shard:#?}", shard.id))
    });
    shards.collect()
}
