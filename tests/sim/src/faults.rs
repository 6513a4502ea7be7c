//! Faults, drawn from the seed: which kinds a run has at all, when they come, and when they end.
//!
//! Each run has a few kinds only, so that over many seeds every kind meets every other alone as well as in a
//! crowd.

use crate::clock::{MS, SECOND, True};
use crate::draw::Draw;
use crate::message::{Event, Place};
use crate::model::{KEYS, KeyAt};
use crate::network::Weather;
use crate::node::Mood;
use crate::shape::Shape;
use crate::store::{Disk, SESSION};
use crate::touched::Ends;
use crate::world::World;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;

/// How many kinds, at the end of [`Kind::ALL`], are of [`crate::mishaps`].
const MISHAPS: usize = 4;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Loss, delay, reordering, doubling, half-open links.
    Weather,
    /// Some places do not reach others.
    Partition,
    /// A worker is killed and comes back at the same address.
    Crash,
    /// A worker stands still, for less or more than a lease.
    Pause,
    /// A worker leaves in good order, or in a hurry.
    Leave,
    /// Callbacks are slow, fail, never return.
    Callbacks,
    /// A worker's service is wrong, and reports on replicas of others.
    WrongReports,
    /// Clocks change their speed; wall clocks jump.
    Clocks,
    /// A coordinator is killed.
    CoordinatorCrash,
    /// A coordinator stands still; another may lead when it wakes.
    CoordinatorPause,
    /// All coordinators are restarted, one after the other.
    Rolling,
    /// A coordinator does not reach the store.
    StoreCut,
    /// The store answers no coordinator for a while. Sessions go on then, or are over, all at once.
    StoreRestart,
    /// The store takes a hundred times as long.
    StoreSlow,
    /// Transactions fail, or end in a way that no coordinator is told.
    Disk,
    /// Every process is killed in the same instant, and each comes back soon.
    PowerLine,
    /// A key kills the workers that serve it.
    Poison,
    /// A key's data cannot be loaded by any worker.
    Unloadable,
    /// All workers are restarted in good order, one after the other.
    WorkersInTurn,
    /// A worker dies again and again, soon after each start.
    CrashLoop,
    /// A service says of a replica that it cannot serve it.
    Unhealthy,
    /// A worker asks to leave, and then to stay.
    Stays,
    /// A worker's disk is lost, or damaged: it comes back without its data, or with data that it cannot read.
    DiskLost,
    /// All that a worker does takes long.
    Slow,
}

impl Kind {
    /// Every kind; those of [`crate::mishaps`] are the last ones.
    pub const ALL: [Kind; 22] = [
        Kind::Weather,
        Kind::Partition,
        Kind::Crash,
        Kind::Pause,
        Kind::Leave,
        Kind::Callbacks,
        Kind::WrongReports,
        Kind::Clocks,
        Kind::CoordinatorCrash,
        Kind::CoordinatorPause,
        Kind::Rolling,
        Kind::StoreCut,
        Kind::StoreRestart,
        Kind::StoreSlow,
        Kind::Disk,
        Kind::PowerLine,
        Kind::Poison,
        Kind::Unloadable,
        Kind::WorkersInTurn,
        Kind::CrashLoop,
        Kind::Unhealthy,
        Kind::Stays,
    ];

    /// What befalls coordinators and their store alone.
    pub const LEADERS: [Kind; 8] = [
        Kind::Clocks,
        Kind::CoordinatorCrash,
        Kind::CoordinatorPause,
        Kind::Rolling,
        Kind::StoreCut,
        Kind::StoreRestart,
        Kind::StoreSlow,
        Kind::Disk,
    ];

    /// The kinds of one run: about half of `all`, at least one.
    pub fn drawn(draw: &mut Draw, all: &[Kind]) -> Vec<Kind> {
        let mut kinds: Vec<_> = all.iter().copied().filter(|_| draw.chance(450)).collect();
        if kinds.is_empty() {
            kinds.extend(draw.pick(all).copied());
        }
        kinds
    }

    /// What may befall a run. Where workers are stuck for ever, those of [`crate::mishaps`] do not.
    pub fn known(shape: Shape) -> &'static [Kind] {
        let (before, _mishaps) = Kind::ALL.split_at(Kind::ALL.len() - MISHAPS);
        match shape {
            Shape { leaders: true, .. } => &Kind::LEADERS,
            Shape { stuck: true, .. } => before,
            _ => &Kind::ALL,
        }
    }

    /// Where data lies on disks all processes are killed at once in every run, and in half of the runs disks are lost.
    pub fn of_disks(draw: &mut Draw, shape: Shape, kinds: &mut Vec<Kind>) {
        if (shape.durable || shape.replicated) && !kinds.contains(&Kind::PowerLine) {
            kinds.push(Kind::PowerLine);
        }
        if shape.durable && !shape.stuck && draw.chance(500) {
            kinds.push(Kind::DiskLost);
        }
        if shape.replicated && !shape.stuck && draw.chance(500) {
            kinds.push(Kind::Slow);
        }
    }
}

/// How a fault ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// The network is fair.
    Weather,
    /// These reach each other again.
    Join(Vec<(Place, Place)>),
    /// A worker's process starts, at its place.
    Start(usize),
    /// A worker that was asked to leave and has not is not waited for.
    LeaveNow(usize),
    /// A worker's callbacks are fair.
    Mood(usize),
    /// A key kills no more.
    Poison(KeyAt),
    /// A key's data can be loaded.
    Unloadable(KeyAt),
    /// A coordinator's process starts, at its place.
    Coordinator(usize),
    /// It is stopped in good order, to be started again.
    Restart(usize),
    /// It reaches the store.
    Store(usize),
    /// The store is there again; whether sessions go on.
    Back(bool),
    /// The store fares well with it.
    Disk(usize),
    /// What an operator has touched is mended.
    Touched(Ends),
    /// A worker is restarted in good order, in its turn.
    Turn(usize),
    /// A worker that crashes again and again does so, and so often again.
    CrashAgain(usize, u64),
    /// A worker that asked to leave is to stay.
    Stay(usize),
    /// A table's shard was split or merged: that is disturbed.
    Disturb(KeyspaceName, ShardId),
    /// The leader of a table's shard hands over: that is disturbed.
    DisturbHandOver(KeyspaceName, ShardId),
}

impl World {
    /// One fault, and when it ends.
    pub fn fault(&mut self, kind: Kind) {
        let node = self.scene.draw.index(self.nodes.len());
        let coordinator = self.some_coordinator();
        let scene = &mut self.scene;
        let brief = scene.draw.between(50 * MS, 1_500 * MS);
        let long = scene.draw.between(100 * MS, 8 * SECOND);
        scene.trace.event(scene.now, (40u8, kind), || format!("FAULT {kind:?}"));
        let (after, mend) = match kind {
            Kind::Weather => {
                scene.network.weather = Weather::drawn(&mut scene.draw);
                (long, Mend::Weather)
            }
            Kind::Partition => {
                let pairs = self.draw_cut();
                pairs.iter().for_each(|(from, to)| self.scene.network.cut(*from, *to));
                (long, Mend::Join(pairs))
            }
            Kind::Crash => {
                if self.nodes[node].is_down() {
                    return;
                }
                self.nodes[node].crash(scene);
                (if scene.draw.chance(500) { brief } else { long }, Mend::Start(node))
            }
            Kind::Pause => return self.pause(Place::Node(node), long),
            Kind::Slow => return self.slow_down(node, 2 * long),
            Kind::Leave => {
                self.nodes[node].leave(scene);
                (long, Mend::LeaveNow(node))
            }
            Kind::Callbacks => {
                self.nodes[node].mood = Mood::drawn(&mut scene.draw);
                (long, Mend::Mood(node))
            }
            Kind::WrongReports => {
                self.nodes[node].strays = scene.draw.between(1, 20);
                return;
            }
            Kind::Clocks => return self.shake_clock(node, coordinator),
            Kind::CoordinatorCrash => {
                if !self.coordinators[coordinator].up {
                    return;
                }
                self.coordinators[coordinator].crash(scene);
                (if scene.draw.chance(500) { brief } else { long }, Mend::Coordinator(coordinator))
            }
            Kind::CoordinatorPause => return self.pause(Place::Coordinator(coordinator), long),
            Kind::Poison | Kind::Unloadable => (2 * long, self.spoil(kind)),
            Kind::StoreCut => {
                self.coordinators[coordinator].cut_from_store = true;
                (long, Mend::Store(coordinator))
            }
            Kind::Disk => {
                self.coordinators[coordinator].disk = Disk::drawn(&mut scene.draw);
                (long, Mend::Disk(coordinator))
            }
            Kind::PowerLine => return self.kill_all(brief),
            Kind::Rolling | Kind::StoreSlow => return self.all_coordinators(kind, brief, long),
            Kind::WorkersInTurn | Kind::CrashLoop | Kind::Unhealthy | Kind::Stays | Kind::DiskLost => {
                return self.mishap(kind, node, (brief, long));
            }
            Kind::StoreRestart => {
                if std::mem::replace(&mut self.store.is_away, true) {
                    return;
                }
                // Sessions are over only when their owners know (C4).
                let survive = scene.draw.chance(500);
                (if survive { brief } else { SESSION + brief }, Mend::Back(survive))
            }
        };
        self.scene.after(after, Event::Mend(mend));
    }

    /// A node is slow for so long.
    fn slow_down(&mut self, node: usize, time: u64) {
        let scene = &mut self.scene;
        scene.count("slow workers");
        self.nodes[node].slow.begin(&mut scene.draw, scene.now, scene.now + time);
    }

    /// A key harms its owners from now on.
    fn spoil(&mut self, kind: Kind) -> Mend {
        let key = self.any_key();
        self.scene.bad.insert(key);
        if kind == Kind::Unloadable {
            self.scene.unloadable.insert(key);
            return Mend::Unloadable(key);
        }
        self.scene.poison.insert(key);
        self.look_again();
        Mend::Poison(key)
    }

    /// Any of them; in a run about leaders mostly the one that leads.
    fn some_coordinator(&mut self) -> usize {
        let now = self.scene.now;
        let leader = self.coordinators.iter().position(|coordinator| coordinator.leads(now));
        let aims = self.shape.leaders && self.scene.draw.chance(700);
        let any = self.scene.draw.index(self.coordinators.len());
        leader.filter(|_| aims).unwrap_or(any)
    }

    /// All that run are killed; they come back one by one, in any order.
    fn kill_all(&mut self, brief: True) {
        let scene = &mut self.scene;
        for at in 0..self.coordinators.len() {
            if self.coordinators[at].up {
                self.coordinators[at].crash(scene);
                let down = scene.draw.between(MS, brief);
                scene.after(down, Event::Mend(Mend::Coordinator(at)));
            }
        }
        for at in 0..self.nodes.len() {
            if !self.nodes[at].is_down() {
                self.nodes[at].crash(scene);
                let down = scene.draw.between(MS, 2 * brief);
                scene.after(down, Event::Mend(Mend::Start(at)));
            }
        }
    }

    /// Something befalls one coordinator after the other, or all of them at once.
    fn all_coordinators(&mut self, kind: Kind, brief: True, long: True) {
        for at in 0..self.coordinators.len() {
            let mend = match kind {
                Kind::Rolling => (at as True * 2 * brief, Mend::Restart(at)),
                _ => {
                    self.coordinators[at].disk = Disk::SLOW;
                    (long, Mend::Disk(at))
                }
            };
            self.scene.after(mend.0, Event::Mend(mend.1));
        }
    }

    fn shake_clock(&mut self, node: usize, coordinator: usize) {
        let scene = &mut self.scene;
        let clock = match scene.draw.index(4) {
            _ if self.shape.leaders => &mut self.coordinators[coordinator].clock,
            0 => &mut self.coordinators[coordinator].clock,
            _ => &mut self.nodes[node].clock,
        };
        clock.drift(&mut scene.draw, scene.now);
        clock.jump(&mut scene.draw);
        self.clock_changed(node);
    }

    fn any_key(&mut self) -> KeyAt {
        let draw = &mut self.scene.draw;
        KeyAt { keyspace: draw.index(self.scene.oracles.spaces.len()), key: draw.index(KEYS) }
    }

    /// Directions that are cut: of one node and the coordinators, of one place, or of two halves.
    fn draw_cut(&mut self) -> Vec<(Place, Place)> {
        let places: Vec<Place> = self.places();
        let draw = &mut self.scene.draw;
        let one = places[draw.index(places.len())];
        let (left, right): (Vec<Place>, Vec<Place>) = match draw.index(3) {
            // One worker (or router) and all coordinators.
            0 => (vec![one], places.iter().copied().filter(|p| matches!(p, Place::Coordinator(_))).collect()),
            // One place, which is cut off from all others.
            1 => (vec![one], places.clone()),
            // Two halves, perhaps with a bridge that reaches both.
            _ => {
                let bridge = draw.chance(500).then_some(one);
                let rest = places.iter().copied().filter(|p| Some(*p) != bridge);
                rest.partition(|_| draw.chance(500))
            }
        };
        let ways = draw.index(3);
        let pairs = left.iter().flat_map(|a| right.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b);
        let both = pairs.flat_map(|(a, b)| match ways {
            0 => vec![(a, b)],
            1 => vec![(b, a)],
            _ => vec![(a, b), (b, a)],
        });
        both.collect()
    }

    /// Undoes a fault whose time is over, or does the next part of it.
    pub fn mend(&mut self, mend: Mend) {
        let scene = &mut self.scene;
        scene.trace.event(scene.now, (41u8,), || format!("MEND {mend:?}"));
        match mend {
            Mend::Weather => scene.network.weather = Weather::FAIR,
            Mend::Join(pairs) => pairs.iter().for_each(|(from, to)| scene.network.join(*from, *to)),
            Mend::Start(node) => self.start_node(node),
            Mend::LeaveNow(node) => {
                self.nodes[node].leave_now(scene);
                let down: True = scene.draw.between(0, 3 * SECOND);
                scene.after(down, Event::Mend(Mend::Start(node)));
            }
            Mend::Poison(key) => scene.poison.retain(|other| *other != key),
            Mend::Unloadable(key) => scene.unloadable.retain(|other| *other != key),
            Mend::Mood(node) => self.nodes[node].mood = Mood::FAIR,
            Mend::Coordinator(at) => self.start_coordinator(at),
            Mend::Store(at) => self.coordinators[at].cut_from_store = false,
            Mend::Disk(at) => self.coordinators[at].disk = Disk::FAIR,
            Mend::Back(survive) if self.store.is_away => self.store.comes_back(scene.now, survive),
            Mend::Back(_) => {}
            Mend::Restart(at) if self.coordinators[at].up => {
                self.coordinators[at].leave(scene, &mut self.store);
                let down = scene.draw.between(50 * MS, SECOND);
                scene.after(down, Event::Mend(Mend::Coordinator(at)));
            }
            Mend::Restart(_) => {}
            Mend::Touched(ends) => self.mend_touch(ends),
            Mend::Turn(node) => self.take_turn(node),
            Mend::CrashAgain(node, times) => self.crash_again(node, times),
            Mend::Stay(node) => self.stays(node),
            Mend::Disturb(name, parent) => self.disturb(&name, parent),
            Mend::DisturbHandOver(name, shard) => self.disturb_hand_over(&name, shard),
        }
    }
}
