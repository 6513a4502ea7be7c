//! Children of tables, as a driver of [`split`](partage_service::table::split) has them.

use super::registers::{Change, Held, Registers};
use crate::clock::{MS, True};
use crate::message::{Event, Message, Place, Via};
use crate::model::KeyAt;
use crate::node::Node;
use crate::scene::Scene;
use partage_core::base::id::ShardId;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{Order, ReplicaKey};
use partage_core::worker::Callback;
use partage_service::table::member;
use partage_service::table::replication::{LogPosition, Stored};
use partage_service::table::split::{Ask, Base, Effect, Given, GivenExtent, Settings, Taken};
use std::collections::BTreeMap;

/// How long it takes to store a base.
const STORE: True = 20 * MS;

/// How long the rows of a parent's snapshot take at most, while their parent goes on.
const COPY: True = 150 * MS;

/// How long what goes from a node to itself takes.
const AT_HOME: True = MS / 2;

/// How long a callback waits before it looks again whether it can return.
pub const LOOKS_AGAIN: True = 5 * MS;

/// What a child's replica asks of a parent's.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The parent's replica that is asked.
    pub of: ReplicaKey,
    /// The child's replica that asks.
    pub by: ReplicaKey,
    /// What the child holds.
    pub bounds: Bounds,
    /// What the child has of that parent already.
    pub ask: Ask,
}

/// What a parent's replica gives.
#[derive(Debug, Clone)]
pub struct BasePart {
    /// To the child's replica.
    pub to: ReplicaKey,
    /// From which parent it is, and which part of what that has.
    pub given: Given,
    /// All of it, if it is a snapshot.
    pub whole: Registers,
    /// What has changed, if not.
    pub changes: Vec<Change>,
    /// It is a snapshot of which all rows have come.
    pub is_copied: bool,
}

/// The base of a child's replica, in the memory of a process.
#[derive(Debug)]
pub struct TableBase {
    base: Base,
    bounds: Bounds,
    order: Option<Order>,
    parts: BTreeMap<ShardId, Registers>,
    /// The snapshots of which rows come, and what their parents have changed since.
    copying: BTreeMap<ShardId, (Given, Vec<Change>)>,
    tick_at: True,
}

impl TableBase {
    /// What is there of all parents, as one.
    fn joined(&self, at: LogPosition) -> Registers {
        let held = |shard: &ShardId| self.base.bounds_of(*shard).cloned();
        Registers::joined(self.parts.iter().map(|(shard, part)| (held(shard), part)), at)
    }
}

/// The bases of a process.
pub type Bases = BTreeMap<ReplicaKey, TableBase>;

/// What of a table lies within bounds.
fn held(scene: &Scene, replica: &ReplicaKey, bounds: &Bounds) -> Held {
    let mut held = Held::default();
    let spaces = scene.oracles.spaces.iter().enumerate();
    for (keyspace, space) in spaces.filter(|(_, space)| space.keyspace.name == replica.keyspace) {
        held.registers.extend(space.keys_in(bounds).map(|key| KeyAt { keyspace, key }));
        held.rows.extend(space.keys_in(bounds).filter_map(|key| Key::new(&space.keys[key]).ok()));
    }
    held
}

impl Node {
    /// `load` of a child's replica begins, or it is opened again and has not its base.
    pub(super) fn begin_base(&mut self, scene: &mut Scene, order: &Order) {
        let id = self.id.clone();
        let Some(process) = &mut self.process else { return };
        if process.service.bases.contains_key(&order.replica) {
            return;
        }
        scene.count("bases of tables begun");
        let (bounds, parts, copying) = (order.bounds.clone(), BTreeMap::new(), BTreeMap::new());
        let base = Base::new(id, bounds.clone(), Settings::default());
        let base = TableBase { base, bounds, order: None, parts, copying, tick_at: True::MAX };
        process.service.bases.insert(order.replica.clone(), base);
        self.order_bases(scene);
    }

    /// Whether a callback that is awaited waits for what the parents of the replica's shard have: `load` until the base is ready,
    /// `serve` until the replica is open.
    pub fn waits_for_base(
        &mut self,
        scene: &mut Scene,
        replica: &ReplicaKey,
        callback: Callback,
        call: u64,
    ) -> bool {
        let mut spaces = scene.oracles.spaces.iter();
        let is_table = spaces.any(|s| s.is_replicated() && s.keyspace.name == replica.keyspace);
        let Some(process) = self.process.as_ref().filter(|_| is_table && self.awaits(replica, call)) else {
            return false;
        };
        let held = process.worker.local_replicas().get(replica).map(|held| held.order.clone());
        if let Some(order) = held.filter(|_| callback == Callback::Load) {
            let _it_fails_again_when_the_callback_ends = self.open_table(scene, &order);
        }
        let base = self.process.as_ref().and_then(|process| process.service.bases.get(replica));
        match callback {
            Callback::Load => base.is_some_and(|base| !base.base.is_ready()),
            Callback::Serve(..) => base.is_some(),
            Callback::Unload | Callback::Drop(_) => false,
        }
    }

    /// The bases hear what the worker was ordered.
    pub(super) fn order_bases(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let (mut news, mut given_up) = (Vec::new(), Vec::new());
        for (replica, base) in &mut process.service.bases {
            let Some(held) = process.worker.local_replicas().get(replica).filter(|held| !held.is_withdrawn())
            else {
                continue;
            };
            let order = &held.order;
            if member::is_late(order) {
                given_up.push(order.clone());
            } else if base.order.as_ref() != Some(order) {
                base.order = Some(order.clone());
                let serves = order.in_sync;
                news.push((replica.clone(), base.base.on_order(now, member::parents(order), serves)));
            }
        }
        for (replica, effects) in news {
            self.base_does(scene, &replica, effects);
        }
        for order in given_up {
            scene.count("bases of tables given up");
            self.process.iter_mut().for_each(|process| drop(process.service.bases.remove(&order.replica)));
            let _it_fails_at_the_next_load = self.open_table(scene, &order);
        }
    }

    /// A replica has applied something: children on the node ask for it.
    pub(super) fn news_for_bases(&mut self, scene: &mut Scene, parent: &ReplicaKey) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let children =
            process.service.bases.iter_mut().filter(|(child, _)| child.keyspace == parent.keyspace);
        let effects: Vec<_> = children
            .map(|(child, base)| (child.clone(), base.base.parent_applied(now, parent.shard)))
            .collect();
        for (child, effects) in effects {
            self.base_does(scene, &child, effects);
        }
    }

    /// A base's time has come. Says whether there is one.
    pub(super) fn base_wakes(&mut self, scene: &mut Scene, replica: &ReplicaKey) -> bool {
        let now = self.clock.read(scene.now);
        let base = self.process.as_mut().and_then(|process| process.service.bases.get_mut(replica));
        let Some(base) = base else { return false };
        base.tick_at = True::MAX;
        let effects = base.base.tick(now);
        self.base_does(scene, replica, effects);
        true
    }

    fn base_does(&mut self, scene: &mut Scene, replica: &ReplicaKey, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Ask(ask) => self.ask_parent(scene, replica, ask),
                Effect::Store(position) => self.store_base(scene, replica, position),
                Effect::Open => self.open_child(scene, replica),
            }
        }
        let base = self.process.as_mut().and_then(|process| process.service.bases.get_mut(replica));
        let Some(base) = base else { return };
        let when = self.clock.when(base.base.wake_at(), scene.now).max(scene.now + MS / 5);
        if when < True::MAX && (base.tick_at <= scene.now || when < base.tick_at) {
            base.tick_at = when;
            let (node, process) = (self.at, self.process_number);
            scene.at(when, Event::TableWake { node, process, replica: replica.clone() });
        }
    }

    fn ask_parent(&mut self, scene: &mut Scene, replica: &ReplicaKey, ask: Ask) {
        let place = self.place();
        let base = self.process.as_ref().and_then(|process| process.service.bases.get(replica));
        let Some((base, order)) = base.and_then(|base| Some((base, base.order.as_ref()?))) else { return };
        let peer = order.peers.iter().find(|peer| peer.placement == ask.of);
        let Some(other) = peer.and_then(|peer| crate::coordinator::node_at(peer.address.as_ref()?)) else {
            return;
        };
        let of = ReplicaKey { keyspace: replica.keyspace.clone(), shard: ask.parent, placement: ask.of };
        let asked = Box::new(Asked { of, by: replica.clone(), bounds: base.bounds.clone(), ask });
        pass_on(scene, place, Place::Node(other), Message::TableAsked(asked));
    }

    /// A parent's replica is asked by a child's.
    pub fn give_table(&mut self, scene: &mut Scene, from: Place, asked: Asked) {
        let now = self.clock.read(scene.now);
        let held = held(scene, &asked.of, &asked.bounds);
        let place = self.place();
        let local = self.process.as_mut().and_then(|process| process.service.tables.get_mut(&asked.of));
        let Some(local) = local else { return };
        let (given, changes) = local.give(now, asked.by.placement, asked.ask);
        let is_whole = matches!(given.what, GivenExtent::Snapshot(_));
        let whole = if is_whole { local.applied.part(&held) } else { Registers::default() };
        scene.count(if from == place {
            "base parts from the own node"
        } else {
            "base parts from other nodes"
        });
        let part = Box::new(BasePart { to: asked.by, given, whole, changes, is_copied: false });
        pass_on(scene, place, from, Message::TableBasePart(part));
    }

    /// A parent's replica has answered. The rows of a snapshot come by and by: what the parent changes meanwhile waits for them.
    pub fn take_base_part(&mut self, scene: &mut Scene, part: BasePart) {
        let now = self.clock.read(scene.now);
        let base = self.process.as_mut().and_then(|process| process.service.bases.get_mut(&part.to));
        let Some(base) = base else { return };
        let (parent, given) = (part.given.parent, part.given);
        let is_snapshot = matches!(given.what, GivenExtent::Snapshot(_));
        if is_snapshot && !part.is_copied && base.base.copy_begins(now, &given) {
            base.copying.insert(parent, (given, Vec::new()));
            return self.copy_base_part(scene, part);
        }
        // Rows of a snapshot that others have taken the place of, or which the process before has asked for.
        let is_known = base
            .copying
            .get(&parent)
            .is_some_and(|(known, _)| (known.by, known.what) == (given.by, given.what));
        if is_snapshot && (part.is_copied != is_known) {
            return;
        }
        let (taken, mut effects) = base.base.take(now, &given);
        let held = held(scene, &part.to, &base.bounds);
        match taken {
            Taken::Replaces => drop(base.parts.insert(parent, part.whole)),
            Taken::Follows => {
                let known = base.parts.entry(parent).or_default();
                part.changes.iter().for_each(|change| known.follow(change, &held));
            }
            Taken::Aside => {
                let waiting = base.copying.get_mut(&parent).map(|(_, waiting)| waiting);
                waiting.into_iter().for_each(|waiting| waiting.extend(part.changes.iter().cloned()));
            }
            Taken::Nothing => {}
        }
        if part.is_copied {
            let waiting = base.copying.remove(&parent).map(|(_, waiting)| waiting).unwrap_or_default();
            if base.base.is_copying(parent) {
                let known = base.parts.entry(parent).or_default();
                waiting.iter().for_each(|change| known.follow(change, &held));
                effects.extend(base.base.caught_up(now, parent));
            }
        }
        self.base_does(scene, &part.to, effects);
        self.tick(scene);
    }

    /// All rows of a snapshot will have come after a while.
    fn copy_base_part(&mut self, scene: &mut Scene, part: BasePart) {
        scene.count("base parts that were copied while their parents went on");
        let (place, to, takes) = (self.place(), part.to.clone(), scene.draw.between(0, COPY));
        let message = Box::new(Message::TableBasePart(Box::new(BasePart { is_copied: true, ..part })));
        scene.after(takes, Event::Deliver(place, place, Via::Post(0), message));
        // What is changed meanwhile is asked for.
        self.base_does(scene, &to, Vec::new());
    }

    fn store_base(&mut self, scene: &mut Scene, replica: &ReplicaKey, position: LogPosition) {
        let base = self.process.as_ref().and_then(|process| process.service.bases.get(replica));
        let Some(base) = base else { return };
        scene.count("bases of tables");
        if base.parts.len() > 1 {
            scene.count("bases of merged tables");
        }
        let joined = base.joined(position);
        let parents: Vec<_> = base.parts.keys().copied().collect();
        let held = held(scene, replica, &base.bounds);
        if let Err(text) = scene.oracles.storage.tables.based(replica, &parents, (&held, &joined)) {
            scene.violate("D1", text);
        }
        let (node, process, takes) = (self.at, self.process_number, scene.draw.around(STORE));
        let base = Box::new(joined);
        scene.after(takes, Event::TableBaseStored { node, process, replica: replica.clone(), base });
    }

    /// A base is on the disk.
    pub fn base_stored(&mut self, scene: &mut Scene, replica: &ReplicaKey, joined: Registers) {
        let base = self.process.as_mut().and_then(|process| process.service.bases.get_mut(replica));
        let disk = scene.oracles.storage.tables.disks.get_mut(replica);
        let (Some(base), Some(disk)) = (base, disk) else { return };
        disk.lacks_base = false;
        (disk.stored.base, disk.stored.flushed) = (joined.at, joined.at);
        disk.flushed = joined;
        let effects = base.base.stored();
        self.base_does(scene, replica, effects);
        self.process.iter_mut().for_each(|process| drop(process.service.bases.remove(replica)));
    }

    /// The replica opens with its base.
    fn open_child(&mut self, scene: &mut Scene, replica: &ReplicaKey) {
        let base = self.process.as_ref().and_then(|process| process.service.bases.get(replica));
        let Some(base) = base else { return };
        let Some(order) = base.order.clone() else { return };
        let ends = base.parts.values().map(|part| part.at);
        let at = match scene.oracles.storage.tables.disks.get(replica).filter(|disk| !disk.lacks_base) {
            Some(disk) => disk.stored.flushed,
            None => partage_service::table::split::base_position(ends),
        };
        let stored = Stored { base: at, flushed: at, ..Stored::default() };
        let joined = base.joined(at);
        scene.count("children of tables opened");
        self.open_machine(scene, &order, stored, joined, true);
        self.order_tables(scene);
    }
}

fn pass_on(scene: &mut Scene, from: Place, to: Place, message: Message) {
    if from == to {
        let takes = scene.draw.around(AT_HOME);
        scene.after(takes, Event::Deliver(from, to, Via::Post(0), Box::new(message)));
    } else {
        scene.send(from, to, Via::Post(0), message);
    }
}
