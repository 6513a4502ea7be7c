//! Tables: the service of a replicated keyspace, as a driver of [`replication`] has it.
//!
//! Each replica that is loaded has a machine in the memory of its process and a stored replica on its node's disk. Orders come
//! to the machine as the worker takes them in; wishes go out with the worker's beats. What a request wants goes through the
//! machine, and is answered when the machine says so. A sync takes time, and what was not synced is gone with the process.
//!
//! Beside each register lies a row, which core's own rules of rows judge and change (`rows.rs`).
//!
//! Children of splits and merges are in `split.rs`.
//!
//! The witness ([`Tables`]) knows what is committed: every replica applies the same entries, and after each acknowledgement
//! and each new map every member of the in-sync set has on its disk what was acknowledged.

use crate::clock::{Clock, MS, True};
use crate::message::{Event, Message, Outcome, Place, Request, Via};
use crate::model::{KeyAt, Op};
use crate::node::Node;
use crate::scene::Scene;
use partage_core::base::id::{Epoch, Incarnation, PlacementId};
use partage_core::base::time::Millis;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{self, ShardMap};
use partage_core::node::exchange::{self, ReplicaKey};
use partage_service::table::member::{self, Reporter};
use partage_service::table::replication::{
    self as replication, Answer, Consistency, Effect, LogWrite, Order, Replica,
};
use partage_service::table::split::{Ask, Given, Retention, Source};
use registers::{Change, encode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use witness::Disk;

mod aimed;
mod client;
mod ends;
mod registers;
mod rows;
mod split;
mod trials;
mod witness;

pub use client::{RowDeed, RowSeen, RowWrite};
pub use registers::Registers;
pub use rows::{FEED, Page, Rows};
pub use split::{Asked, BasePart, Bases, LOOKS_AGAIN};
pub use witness::Tables;

/// How long a sync takes.
const SYNC: True = 2 * MS;

/// Syncs that take up to a second, in thousandths.
const SLOW_SYNCS: u64 = 10;

/// Syncs after which what was applied is flushed, in thousandths.
const FLUSHES: u64 = 50;

/// The longest rest of a follower that comes and goes: short, so that all are in sync again within a run.
const LONGEST_REJOIN_DELAY_MS: u64 = 8_000;

/// How often a leader moves the clock of its shard on at most.
const CLOCK: True = 100 * MS;

/// Flushes after which the disk wants room for its log, in thousandths.
const TRIMS: u64 = 300;

/// A replica in the memory of a process.
#[derive(Debug)]
pub struct Local {
    machine: Replica,
    incarnation: Incarnation,
    settings: replication::Settings,
    applied: Registers,
    source: Source<Change>,
    reporter: Reporter,
    order: Option<Order>,
    /// Writes to the log that are not synced.
    waiting: VecDeque<(u64, LogWrite)>,
    is_syncing: bool,
    /// When it is called next, so that it is not called twice.
    tick_at: True,
    /// When it moved the clock of its shard on last, and how often it has.
    clock_moved: (True, u16),
}

impl Local {
    /// What is given to a child's replica.
    fn give(&mut self, now: Millis, asker: PlacementId, ask: Ask) -> (Given, Vec<Change>) {
        self.source.ask(now, asker, ask, (&self.machine, self.applied.at))
    }
}

/// The replicas of a process.
pub type Locals = BTreeMap<ReplicaKey, Local>;

fn request_of(op: Op, attempt: u32) -> replication::Request {
    op << 16 | u64::from(attempt)
}

impl Node {
    /// `load` of a replica: its machine starts with what the disk has, or what its parents have is taken.
    pub fn open_table(&mut self, scene: &mut Scene, order: &exchange::Order) -> Result<(), String> {
        let node = self.at;
        let Some(process) = &mut self.process else { return Ok(()) };
        if process.worker.incarnation().is_none() {
            return Err("it is not registered".to_owned());
        }
        if process.service.tables.contains_key(&order.replica) {
            return Ok(());
        }
        let fresh = || Disk {
            node,
            bounds: order.bounds.clone(),
            epoch: Epoch(0),
            stored: replication::Stored::default(),
            flushed: Registers::default(),
            lacks_base: member::forms(order),
        };
        let disk = scene.oracles.storage.tables.disks.entry(order.replica.clone()).or_insert_with(fresh);
        if disk.lacks_base && member::takes_base(order) {
            self.begin_base(scene, order);
            return Ok(());
        }
        let (stored, applied) = (disk.stored.clone(), disk.flushed.clone());
        self.open_machine(scene, order, stored, applied, !order.had_data);
        Ok(())
    }

    fn open_machine(
        &mut self,
        scene: &mut Scene,
        order: &exchange::Order,
        stored: replication::Stored,
        applied: Registers,
        is_new: bool,
    ) {
        let now = self.clock.read(scene.now);
        let space = scene.oracles.spaces.iter().find(|s| s.keyspace.name == order.replica.keyspace);
        let min_in_sync = space.map_or(1, |space| space.keyspace.min_in_sync as usize);
        let Some(process) = &mut self.process else { return };
        let Some(incarnation) = process.worker.incarnation() else { return };
        let longest_rejoin_delay_ms = LONGEST_REJOIN_DELAY_MS;
        let settings = replication::Settings {
            min_in_sync,
            longest_rejoin_delay_ms,
            ..replication::Settings::default()
        };
        let me = (order.replica.placement, incarnation);
        let local = Local {
            machine: Replica::recover(me, settings, stored, now, is_new),
            incarnation,
            settings,
            applied,
            source: Source::new(Retention::default()),
            reporter: Reporter::default(),
            order: None,
            waiting: VecDeque::new(),
            is_syncing: false,
            tick_at: True::MAX,
            clock_moved: (0, 0),
        };
        process.service.tables.insert(order.replica.clone(), local);
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

    /// `unload` of a replica begins: its machine stops, whatever becomes of the callback. That of a shard which closes goes on.
    pub fn close_table(&mut self, replica: &ReplicaKey) {
        let Some(process) = &mut self.process else { return };
        let held = process.worker.local_replicas().get(replica);
        if !held.is_some_and(|held| member::closes(&held.order)) {
            self.drop_table(replica);
        }
    }

    /// Its data is to be deleted: its machine stops in any case.
    pub fn drop_table(&mut self, replica: &ReplicaKey) {
        let Some(process) = &mut self.process else { return };
        process.service.tables.remove(replica);
        process.service.bases.remove(replica);
    }

    /// What closes is open, without any callback.
    fn open_closing(&mut self, scene: &mut Scene) {
        let Some(process) = &mut self.process else { return };
        let held = process.worker.local_replicas().values().filter(|held| !held.is_withdrawn());
        let is_open = |replica: &ReplicaKey| process.service.tables.contains_key(replica);
        let closing =
            held.map(|held| &held.order).filter(|order| member::closes(order) && !is_open(&order.replica));
        let closing: Vec<_> = closing.cloned().collect();
        for order in closing {
            let disk = scene.oracles.storage.tables.disks.get(&order.replica);
            let Some(disk) = disk.filter(|disk| !disk.lacks_base) else { continue };
            let (stored, applied) = (disk.stored.clone(), disk.flushed.clone());
            scene.count("closing tables opened");
            self.open_machine(scene, &order, stored, applied, false);
        }
    }

    /// The machines hear what the worker was ordered.
    pub fn order_tables(&mut self, scene: &mut Scene) {
        self.open_closing(scene);
        self.order_bases(scene);
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
                let before = local.order.as_ref().and_then(|before| before.hand_over_to);
                if order.hand_over_to.is_some() && order.hand_over_to != before {
                    scene.count("hand-overs of tables");
                    let shard = (replica.keyspace.clone(), replica.shard);
                    scene.oracles.storage.tables.hand_overs.push(shard);
                }
                local.order = Some(order.clone());
                news.push((replica.clone(), order));
            }
        }
        for (replica, order) in news {
            self.table_hears(scene, &replica, replication::Event::Order(order));
        }
    }

    /// A request that the gates have let in.
    pub fn ask_table(&mut self, scene: &mut Scene, request: &Request, replica: &ReplicaKey, leads: bool) {
        let (op, attempt) = (request.op, request.attempt);
        let is_open = self.process.as_ref().is_some_and(|p| p.service.tables.contains_key(replica));
        if !is_open {
            return self.finish(scene, op, attempt, Outcome::NotNow("the replica is not open"));
        }
        let number = request_of(op, attempt);
        if is_read_replica(scene, replica, replica.placement) {
            scene.count("requests to read replicas of tables");
        }
        let write = match (&request.row, request.deed) {
            (Some(RowDeed::Write(write)), _) => {
                // The leader gives the write its time, by a clock that jumps.
                let at_ms = self.clock.moment(scene.now).wall_ms;
                row_key(scene, request.key).map(|key| client::encode(at_ms, op, &key, write))
            }
            (Some(RowDeed::Read | RowDeed::Changes(_)), _) => None,
            (None, deed) => deed.map(|deed| encode(request.key, op, deed)),
        };
        let event = match write {
            Some(payload) => replication::Event::Write(vec![(number, payload)]),
            None if leads => replication::Event::Read(number, Consistency::Linearizable, 0),
            None => replication::Event::Read(number, Consistency::Any, 0),
        };
        self.table_hears(scene, replica, event);
    }

    /// A machine is called, and its effects are carried out.
    pub fn table_hears(&mut self, scene: &mut Scene, replica: &ReplicaKey, event: replication::Event) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let Some(local) = process.service.tables.get_mut(replica) else { return };
        let effects = local.machine.handle(now, event);
        let applies = effects.iter().any(|effect| matches!(effect, Effect::Apply(_)));
        for effect in effects {
            self.table_does(scene, replica, effect);
        }
        if applies {
            self.news_for_bases(scene, replica);
        }
        let Some(process) = &mut self.process else { return };
        let Some(local) = process.service.tables.get_mut(replica) else { return };
        let status = local.machine.status();
        let report = local.reporter.report(now, &status, &local.settings);
        process.worker.replicates(replica, report);
        let when = self.clock.when(local.machine.wake_at(), scene.now);
        let when = when.min(clock_at(&self.clock, scene.now, local)).max(scene.now + MS / 5);
        if when < True::MAX && (local.tick_at <= scene.now || when < local.tick_at) {
            local.tick_at = when;
            let (node, process) = (self.at, self.process_number);
            scene.at(when, Event::TableWake { node, process, replica: replica.clone() });
        }
    }

    /// A machine's time has come.
    pub fn table_wakes(&mut self, scene: &mut Scene, replica: &ReplicaKey) {
        if self.base_wakes(scene, replica) {
            return self.tick(scene);
        }
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        if let Some(local) = local {
            local.tick_at = True::MAX;
            self.table_hears(scene, replica, replication::Event::Tick);
            self.move_clock(scene, replica);
            self.tick(scene);
        }
    }

    /// A row of a shard has ended, and no write has told the shard the time: its leader writes nothing but that, as the driver of
    /// the product does.
    fn move_clock(&mut self, scene: &mut Scene, replica: &ReplicaKey) {
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        let Some(local) = local.filter(|local| scene.now >= clock_at(&self.clock, scene.now, local)) else {
            return;
        };
        let number = local.clock_moved.1.wrapping_add(1);
        local.clock_moved = (scene.now, number);
        scene.count("clocks of tables moved on");
        let payload = client::encode_clock(self.clock.moment(scene.now).wall_ms);
        // No client has this request: operations are counted from 1.
        let write = vec![(request_of(0, number.into()), payload)];
        self.table_hears(scene, replica, replication::Event::Write(write));
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
                    if let Err(text) = scene.oracles.storage.tables.applied(replica, entry, scene.now) {
                        scene.violate("D1", text);
                    }
                    let change = local.applied.apply(entry, self.clock.moment(scene.now).wall_ms);
                    if change.is_twice {
                        scene.violate("D1", format!("{replica:?} does a request again: {change:?}"));
                    }
                    if local.source.has_askers() {
                        local.source.applied(now, entry.position, &change, entry.bytes());
                    }
                }
            }
            Effect::Answer(request, answer) => self.table_answers(scene, replica, request, answer),
            Effect::Wish(wish) => {
                scene.count("wishes of tables");
                if let Some(reader) = wish.in_sync.iter().find(|one| is_read_replica(scene, replica, **one)) {
                    scene.violate(
                        "D1",
                        format!("{replica:?} asks for the read replica {reader} to be in sync"),
                    );
                }
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
            Effect::Closed(epoch) => {
                scene.count("tables closed");
                scene.trace.event(scene.now, (61u8, node, replica.placement.0, epoch.0), || {
                    format!("node-{node} {} closes {} in {epoch}", replica.placement, replica.shard)
                });
            }
            Effect::Snapshot(to) => {
                scene.count("snapshots of tables");
                let snapshot = Box::new(local.applied.clone());
                self.tell_replica(scene, replica, to, |to| Message::TableSnapshot(to, snapshot));
            }
            Effect::HeirIsReady(_) => scene.count("hand-overs of tables whose heir was ready"),
            Effect::TransferEnded(_) => scene.count("hand-overs of tables that ended without"),
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
        let takes = self.slow.takes(scene.now, takes);
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

    /// A leader's snapshot arrives, and takes the place of what was applied.
    pub fn install_table(&mut self, scene: &mut Scene, replica: &ReplicaKey, snapshot: Registers) {
        let tables = &mut scene.oracles.storage.tables;
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(replica));
        let (Some(local), Some(disk)) = (local, tables.disks.get_mut(replica)) else { return };
        if local.machine.takes_snapshot(snapshot.at) {
            let installed = replication::Event::Installed(snapshot.at);
            disk.stored.flushed = snapshot.at;
            disk.flushed = snapshot.clone();
            disk.lacks_base = false;
            local.applied = snapshot;
            local.source.reset();
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
        let Some((asked, leads)) = process.service.asked(op, attempt) else { return };
        let (key, deed) = (asked.key, asked.row.clone());
        let Some(local) = process.service.tables.get(replica) else { return };
        let seen = local.applied.seen(key);
        let row = row_key(scene, key).filter(|_| deed.is_some());
        let is_leaders = leads || matches!(answer, Ok(Answer::Written(_)));
        if answer.is_ok() && is_leaders && is_read_replica(scene, replica, replica.placement) {
            scene.violate("D2", format!("{replica:?}, a read replica, answers {answer:?} as a leader does"));
        }
        let outcome = match answer {
            Ok(Answer::Written(at)) => {
                scene.oracles.storage.tables.acknowledged(replica, at, scene.now);
                scene.count("writes to tables");
                // More may be applied already than this write.
                let written = || local.applied.written_by(key, op);
                match (&row, local.applied.outcome(op)) {
                    (None, _) => Outcome::Done(written().unwrap_or(seen), true),
                    (Some(_), Some(outcome)) => Outcome::Row(RowSeen::Wrote(outcome.clone()), true),
                    (Some(_), None) => Outcome::Indefinite,
                }
            }
            Ok(Answer::Read { .. }) => match (&row, deed) {
                (None, _) => Outcome::Done(seen, leads),
                (Some(_), Some(RowDeed::Changes(progress))) => {
                    let held = process.worker.local_replicas().get(replica);
                    let read = held.map(|held| progress.within(&held.order.bounds));
                    let page = local.applied.page(read.unwrap_or_default());
                    Outcome::Row(RowSeen::Changes(page), leads)
                }
                (Some(key), _) => {
                    let (read, tables) = (local.applied.row(key), &scene.oracles.storage.tables);
                    let finding = tables.row_breaks(replica, local.applied.at, (key, read.as_ref()));
                    finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
                    Outcome::Row(RowSeen::Read(read), leads)
                }
            },
            Err(failed) if failed.is_definite() => Outcome::NotNow("its replication refuses"),
            Err(_) => Outcome::Indefinite,
        };
        let map = scene.oracles.maps.latest(&replica.keyspace);
        let lacking = map.and_then(|map| scene.oracles.storage.tables.lacking(map));
        lacking.into_iter().for_each(|text| scene.violate("D1", text));
        self.finish(scene, op, attempt, outcome);
    }

    /// D2: a replica of this node that may be read without being asked, and has not applied all that was acknowledged.
    pub fn reads_stale(&self, scene: &Scene) -> Option<String> {
        let now = self.clock.read(scene.now);
        let tables = self.process.iter().flat_map(|process| &process.service.tables);
        let mut readable =
            tables.filter(|(_, local)| local.machine.reads_until().is_some_and(|until| now < until));
        readable.find_map(|(replica, local)| {
            let last = scene.oracles.storage.tables.last_acknowledged(replica);
            let has = local.applied.at;
            (has.index < last)
                .then(|| format!("{replica:?} may be read, has {has}, and {last} was acknowledged"))
        })
    }

    /// Whether the replica leads, serves, and has all that is committed.
    pub fn leads_table(&self, tables: &Tables, replica: &ReplicaKey) -> bool {
        let local = self.process.as_ref().and_then(|process| process.service.tables.get(replica));
        local
            .is_some_and(|local| local.machine.status().has_begun && tables.is_whole(replica, &local.applied))
    }
}

/// When the leader of a shard is to move its clock on, as a row ends.
fn clock_at(clock: &Clock, now: True, local: &Local) -> True {
    let end_ms = local.applied.next_end().filter(|_| local.machine.status().has_begun);
    let Some(end_ms) = end_ms else { return True::MAX };
    let left_ms = end_ms.saturating_sub(clock.moment(now).wall_ms);
    (now + left_ms * MS).max(local.clock_moved.0 + CLOCK)
}

/// The key of the row beside a register.
fn row_key(scene: &Scene, key: KeyAt) -> Option<Key> {
    Key::new(&scene.oracles.spaces[key.keyspace].keys[key.key]).ok()
}

/// Whether the latest map has that replica of a shard as one that is there to be read from only. Then it has never been anything
/// else.
fn is_read_replica(scene: &Scene, of: &ReplicaKey, placement: PlacementId) -> bool {
    let shard = scene.oracles.maps.latest(&of.keyspace).and_then(|map| map.shard(of.shard));
    shard.and_then(|shard| shard.replica(placement)).is_some_and(map::Replica::is_read_replica)
}

/// L1, once faults have stopped: every member is in sync, read replicas serve, and the leader, with all that is committed.
pub fn unserved(map: &ShardMap, nodes: &[Node], tables: &Tables) -> Vec<String> {
    let is_live = |replica: &map::Replica| replica.state == ReplicaState::Live;
    let shards = map.shards().filter_map(|shard| {
        let all = shard.replicas.iter().filter(|replica| !(replica.is_read_replica() && is_live(replica)));
        let all: BTreeSet<_> = all.map(|replica| replica.placement).collect();
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
