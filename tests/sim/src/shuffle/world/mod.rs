//! One run: true time, what is to happen, and what must hold after each step.

use super::job::{Job, Phase};
use super::node::Node;
use super::objects::{ObjectCall, ObjectStore};
use super::oracle::Oracle;
use super::pool::Pool;
use super::weather::{BulkWeather, Weather};
use crate::clock::{MS, SECOND, True};
use crate::draw::Draw;
use crate::trace::Trace;
use bulk::BulkLinks;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::buffer::{Attempt, Failed, Input};
use partage_service::shuffle::holder::{self, NotRead, Slice};
use partage_service::shuffle::leader::{Answer, Failed as NotDone, Request};
use partage_service::shuffle::message::Message;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::record::BatchKey;
use partage_service::shuffle::seek::{Found, Seek};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

mod acting;
mod bulk;
mod busy;
mod faults;
mod offloading;

/// How long after the last fault every shuffle must have come to its end.
const SETTLES: True = 30 * SECOND;

/// And how long after that nothing may be left: times to live, and questions about what nobody has named, are over.
const CLEARS: True = 45 * SECOND;

/// When the one shuffle of a lone run begins: its nodes have found each other.
const LONE_BEGINS: True = SECOND;

/// How long a lone shuffle took, in microseconds from when it was to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lone {
    /// Until a record was taken; none: it had no records.
    pub first_taken: Option<u64>,
    /// Until all of its records were read once; none: that has not come.
    pub all_read: Option<u64>,
    /// What the run has shown beside that.
    pub outcome: Outcome,
}

/// What a run has shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// What did not hold; none: all held.
    pub broken: Option<String>,
    /// What happened, one by one.
    pub steps: u64,
    /// Over everything that happened.
    pub hash: u64,
    /// Shuffles that were started.
    pub jobs: u64,
    /// Those that were sealed.
    pub sealed: u64,
    /// Those of which some bounds came after the first.
    pub later_bounds: u64,
    /// Those with records of which nothing was divided: all was written by bounds that were right.
    pub undivided: u64,
    /// Seals that listed partitions.
    pub lacking: u64,
    /// Attempts of input partitions that clients began.
    pub attempts: u64,
    /// Those that were stored.
    pub stored: u64,
    /// Those that ended with an error.
    pub failed: u64,
    /// How often all of a shuffle was read, for each way to cut it.
    pub reads: u64,
    /// Records of these whole reads.
    pub records: u64,
    /// Reads that were begun anew.
    pub reads_failed: u64,
    /// Processes that ended with what was not synced.
    pub crashes: u64,
    /// Disks that were lost.
    pub lost_disks: u64,
    /// Batches that were damaged.
    pub damaged: u64,
    /// Leaders that were replaced while they lived.
    pub elections: u64,
    /// Replicas that became ready.
    pub ready: u64,
    /// Divisions that were stored.
    pub divisions: u64,
    /// Slots that were dropped.
    pub dropped: u64,
    /// Slots of shuffles that the object store has got.
    pub offloaded: u64,
    /// Frames that buffers took.
    pub taken: u64,
    /// Those for which they had no room, each time.
    pub held_back: u64,
    /// Batches of durability `memory` that went with the power of a machine.
    pub unsynced_lost: u64,
    /// Shuffles of which R machines have lost something before they were sealed: they have failed by name.
    pub lost_open: u64,
    /// The same of sealed ones: a read of them has failed by name.
    pub lost_sealed: u64,
    /// Connections for bulk that failed.
    pub bulk_failures: u64,
    /// Those of them that were half open, and not known to have failed.
    pub half_open: u64,
    /// Messages of bulk that were lost with them.
    pub bulk_lost: u64,
    /// Questions that might have overtaken batches, and were not sent.
    pub unasked: u64,
    /// Attempts that were stored in time though a connection of their buffer was known to have failed, and nothing else.
    pub stored_beside: u64,
}

impl Outcome {
    fn numbers(&mut self) -> [(&'static str, &mut u64); 31] {
        [
            ("steps", &mut self.steps),
            ("shuffles", &mut self.jobs),
            ("sealed", &mut self.sealed),
            ("with later bounds", &mut self.later_bounds),
            ("with nothing divided", &mut self.undivided),
            ("seals that lack a partition", &mut self.lacking),
            ("attempts", &mut self.attempts),
            ("stored", &mut self.stored),
            ("failed", &mut self.failed),
            ("reads", &mut self.reads),
            ("records read", &mut self.records),
            ("reads begun anew", &mut self.reads_failed),
            ("crashes", &mut self.crashes),
            ("disks lost", &mut self.lost_disks),
            ("batches damaged", &mut self.damaged),
            ("elections", &mut self.elections),
            ("replicas ready", &mut self.ready),
            ("divisions", &mut self.divisions),
            ("slots dropped", &mut self.dropped),
            ("slots offloaded", &mut self.offloaded),
            ("frames taken", &mut self.taken),
            ("held back", &mut self.held_back),
            ("batches lost in memory", &mut self.unsynced_lost),
            ("shuffles lost before they were sealed", &mut self.lost_open),
            ("shuffles lost when sealed", &mut self.lost_sealed),
            ("connections for bulk that failed", &mut self.bulk_failures),
            ("half open", &mut self.half_open),
            ("messages of bulk lost", &mut self.bulk_lost),
            ("questions not sent", &mut self.unasked),
            ("stored in time beside a failed connection", &mut self.stored_beside),
            ("", &mut self.hash),
        ]
    }

    /// Counts what another run has shown.
    pub fn add(&mut self, other: &Outcome) {
        let mut other = other.clone();
        let hash = self.hash;
        for ((_, own), (_, more)) in self.numbers().into_iter().zip(other.numbers()) {
            *own = own.wrapping_add(*more);
        }
        self.hash = hash;
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.clone();
        let named = all.numbers().into_iter().filter(|(name, _)| !name.is_empty());
        let named: Vec<String> = named.map(|(name, number)| format!("{number} {name}")).collect();
        f.write_str(&named.join(", "))
    }
}

/// What is to happen.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Deliver {
        from: NodeId,
        to: usize,
        message: Message,
    },
    /// The machines of a process are called.
    Called {
        node: usize,
        life: Incarnation,
    },
    Synced {
        node: usize,
        life: Incarnation,
        number: u64,
    },
    /// A batch of durability `memory` is written, and not synced.
    Written {
        node: usize,
        life: Incarnation,
        key: BatchKey,
    },
    Start(usize),
    /// A node hears the map.
    Map(usize),
    /// The coordinator settles the map by the nodes that it hears, and sends it.
    Coordinate,
    Ready {
        node: usize,
        slot: partage_service::shuffle::PoolSlot,
        epoch: partage_core::base::id::Epoch,
    },
    Fault,
    Stop,
    /// Some disk fills, or has room again.
    Fills,
    /// The object store has got something, or deleted it: what it does, and who waits for that.
    Objects(usize, Incarnation, ObjectCall),
    /// A node hears what came of that.
    ObjectAnswer(usize, Incarnation, holder::Event),
    Job(usize),
    Input {
        node: usize,
        attempt: Attempt,
        input: Input,
    },
    Stored {
        attempt: Attempt,
        answer: Result<(), Failed>,
    },
    Taken {
        attempt: Attempt,
        frame: u64,
        is_full: bool,
    },
    Request {
        node: usize,
        job: usize,
        number: u64,
        shuffle: ShuffleId,
        request: Request,
    },
    Answered {
        job: usize,
        number: u64,
        answer: Result<Answer, NotDone>,
    },
    Ask {
        node: usize,
        job: usize,
        partition: (u64, u64),
        number: u64,
        slice: Slice,
    },
    Read {
        job: usize,
        partition: (u64, u64),
        number: u64,
        answer: Result<OrderedRecords, NotRead>,
    },
    Seek {
        node: usize,
        job: usize,
        partition: (u64, u64),
        number: u64,
        seek: Seek,
    },
    Found {
        job: usize,
        partition: (u64, u64),
        number: u64,
        found: Found,
    },
    /// A connection for bulk may fail.
    BulkFails,
}

pub(super) struct World {
    pub now: True,
    pub draw: Draw,
    pub weather: Weather,
    pub pool: Pool,
    pub nodes: Vec<Node>,
    pub jobs: Vec<Option<Job>>,
    pub oracle: Oracle,
    pub outcome: Outcome,
    pub trace: Trace,
    pub requests: u64,
    pub writes: u64,
    /// Which job and partition a read of a holder is for.
    pub reads: BTreeMap<u64, (usize, (u64, u64), u64)>,
    /// Which job a request to a leader is of.
    pub asked: BTreeMap<u64, (usize, u64)>,
    /// Links that are cut, in one direction, until when.
    pub cuts: BTreeMap<(usize, usize), True>,
    pub objects: ObjectStore,
    pub away: True,
    pub stopped: Option<True>,
    /// Of nodes that are busy: how often each batch was sent to each node, and how often it found no room there.
    pub sent: BTreeMap<(BatchKey, NodeId), (u64, u64)>,
    /// The replicas of each slot by the last map that a node has taken up, and how often maps have named each anew.
    pub replicas: BTreeSet<(partage_service::shuffle::PoolSlot, NodeId)>,
    pub named: BTreeMap<(partage_service::shuffle::PoolSlot, NodeId), u64>,
    bulk: BulkLinks,
    /// Which process is killed, and before which event.
    kill: Option<(usize, u64)>,
    /// Messages and syncs so far.
    events: u64,
    queue: BTreeMap<(True, u64), Happening>,
    queued: u64,
    broken: Option<String>,
}

/// Runs one seed; gives what it has shown.
pub fn run(seed: u64) -> Outcome {
    run_with_words(seed, None).0
}

/// One seed, and its last events in words.
pub fn run_with_words(seed: u64, words: Option<usize>) -> (Outcome, Vec<String>) {
    World::new(seed, words).told()
}

/// The same as [`run`] with a bug: a node that bulk is known not to reach is asked all the same whether it is there, and counts
/// as reached when it answers.
pub fn run_alive_through_short(seed: u64) -> Outcome {
    let mut world = World::new(seed, None);
    world.weather.bulk = world.weather.bulk.map(|bulk| BulkWeather { asks_ahead: true, ..bulk });
    world.told().0
}

/// A run of a shuffle that floods one buffer and of another one that trickles into it. It ends when that is sealed and read.
pub fn run_flood(seed: u64, words: Option<usize>) -> (Outcome, Vec<String>) {
    let mut draw = Draw::new(seed ^ 0xf100_d000);
    let weather = Weather::drawn(&mut draw).of_flood(&mut draw);
    World::of(weather, draw, words).told()
}

/// A run of shuffles on nodes that are busy, in which nothing else goes wrong.
pub fn run_busy(seed: u64, words: Option<usize>) -> (Outcome, Vec<String>) {
    let mut draw = Draw::new(seed ^ 0xb05e_d000);
    let weather = Weather::drawn(&mut draw).of_busy(&mut draw);
    World::of(weather, draw, words).told()
}

/// A run of one shuffle in which nothing goes wrong, but that a process may be killed before one of its messages and syncs. The
/// second number says how many of these there are until the shuffle has come to its end.
pub fn run_interrupted(seed: u64, kill: Option<(usize, u64)>) -> (Outcome, u64) {
    let mut draw = Draw::new(seed ^ 0x5ff1_e000);
    let weather = Weather::drawn(&mut draw).calm();
    let mut world = World::of(weather, draw, None);
    world.kill = kill;
    world.run();
    let outcome = Outcome { broken: world.broken, hash: world.trace.hash(), ..world.outcome };
    (outcome, world.events)
}

/// A run of one shuffle in which nothing goes wrong and no machine is called with a tick: what would wait for time waits without
/// end.
pub fn run_lone(seed: u64) -> Lone {
    let mut draw = Draw::new(seed ^ 0x5ff1_e000);
    let weather = Weather::drawn(&mut draw).lone();
    let mut world = World::of(weather, draw, None);
    world.run();
    let outcome = Outcome { broken: world.broken, hash: world.trace.hash(), ..world.outcome };
    let job = world.jobs.iter().flatten().next();
    let since = |at: Option<True>| Some(at? - job?.begun?);
    let (first_taken, all_read) = (job.and_then(|job| job.first_taken), job.and_then(|job| job.all_read));
    Lone { first_taken: since(first_taken), all_read: since(all_read), outcome }
}

impl World {
    /// Runs it. What it has shown, and its last events in words.
    fn told(mut self) -> (Outcome, Vec<String>) {
        self.run();
        let told = self.trace.words().cloned().collect();
        (Outcome { broken: self.broken, hash: self.trace.hash(), ..self.outcome }, told)
    }

    fn new(seed: u64, words: Option<usize>) -> World {
        let mut draw = Draw::new(seed ^ 0x5ff1_e000);
        let weather = Weather::drawn(&mut draw).with_bulk(seed);
        World::of(weather, draw, words)
    }

    fn of(weather: Weather, mut draw: Draw, words: Option<usize>) -> World {
        let names = (0..weather.nodes).filter_map(|node| NodeId::new(&format!("n{node}")).ok());
        let names: Vec<NodeId> = names.collect();
        let first = names.get(..weather.first).unwrap_or(&names);
        let buffers = names.get(weather.nodes - weather.buffers..).unwrap_or_default();
        let pool = Pool::new(first, buffers, weather.slots, weather.replicas);
        let nodes = names.iter().cloned().map(Node::new).collect();
        let job = |number| {
            let job = Job::new(number, &mut draw);
            Some(match (weather.is_lone, weather.stored_late > 0) {
                (true, _) => job.alone(),
                (false, true) => job.patient(),
                (false, false) => job,
            })
        };
        let jobs: Vec<_> = match weather.floods {
            true => vec![Some(Job::flood(0, &mut draw)), Some(Job::trickle(1, &mut draw))],
            false => (0..weather.jobs).map(job).collect(),
        };
        let in_memory = jobs.iter().flatten().filter(|job: &&Job| job.is_in_memory());
        let in_memory = in_memory.map(|job| job.shuffle).collect();
        let mut world = World {
            now: 0,
            draw,
            pool,
            nodes,
            jobs,
            oracle: Oracle::new(in_memory),
            outcome: Outcome::default(),
            trace: Trace::new(words),
            requests: 0,
            writes: 0,
            reads: BTreeMap::new(),
            asked: BTreeMap::new(),
            cuts: BTreeMap::new(),
            objects: ObjectStore::default(),
            away: 0,
            stopped: None,
            sent: BTreeMap::new(),
            replicas: BTreeSet::new(),
            named: BTreeMap::new(),
            bulk: BulkLinks::new(weather.bulk.map_or(0, |bulk| bulk.seed)),
            kill: None,
            events: 0,
            queue: BTreeMap::new(),
            queued: 0,
            broken: None,
            weather,
        };
        world.begins();
        world
    }

    /// Nodes start, jobs begin, and faults come.
    fn begins(&mut self) {
        let Weather { nodes: all, first, buffers, .. } = self.weather;
        (0..first).chain(all - buffers..all).for_each(|node| self.after(0, Happening::Start(node)));
        for job in 0..self.weather.jobs {
            let begins = self.draw.between(0, self.weather.faults_for / 2);
            let begins = if self.weather.is_lone { LONE_BEGINS } else { begins };
            self.after(begins, Happening::Job(job));
        }
        self.outcome.jobs = self.weather.jobs as u64;
        self.after(0, Happening::Coordinate);
        if self.weather.fault_every > 0 {
            let fault = self.draw.around(self.weather.fault_every);
            self.after(fault, Happening::Fault);
        }
        self.after(self.weather.faults_for, Happening::Stop);
        if self.weather.settings.has_objects {
            self.after(0, Happening::Fills);
        }
        if self.weather.bulk.is_some() {
            self.after(0, Happening::BulkFails);
        }
    }

    fn run(&mut self) {
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = at;
            self.outcome.steps += 1;
            self.interrupts(&happening);
            let is_over = self.stopped.is_some_and(|stopped| at > stopped + SETTLES + CLEARS);
            let result = if is_over { self.is_clear() } else { self.happens(happening) };
            if let Err(why) = result {
                self.trace.event(self.now, 0, || why.clone());
                self.broken = Some(why);
            }
            let has_trickled = || self.jobs.iter().flatten().any(Job::has_trickled);
            if is_over || self.broken.is_some() || (self.weather.floods && has_trickled()) {
                return;
            }
        }
    }

    fn interrupts(&mut self, happening: &Happening) {
        let is_done = self.jobs.iter().flatten().all(|job| job.phase == Phase::Done);
        let is_step = matches!(
            happening,
            Happening::Deliver { .. } | Happening::Synced { .. } | Happening::Written { .. }
        );
        if is_done || !is_step {
            return;
        }
        self.events += 1;
        if let Some((node, _)) = self.kill.filter(|(_, at)| *at == self.events) {
            let down = self.draw.between(50, 2_500) * MS;
            self.crash(node, down);
        }
    }

    /// Whether no machine is called with a tick.
    pub(super) fn is_without_ticks(&self) -> bool {
        let is_under_way = || self.jobs.iter().flatten().any(|job| job.phase != Phase::Done);
        self.weather.is_lone && self.now >= LONE_BEGINS && is_under_way()
    }

    pub(super) fn millis(&self) -> Millis {
        Millis(self.now / MS)
    }

    pub(super) fn at(&mut self, at: True, happening: Happening) {
        self.queued += 1;
        self.queue.insert((at.max(self.now), self.queued), happening);
    }

    pub(super) fn after(&mut self, delay: True, happening: Happening) {
        self.at(self.now + delay, happening);
    }

    pub(super) fn node_of(&self, name: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == *name)
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until)
    }

    /// A node is heard by the coordinator.
    pub(super) fn is_heard(&self, node: usize) -> bool {
        let one = &self.nodes[node];
        let is_silent = one.process.is_none() && self.now > one.down_since + self.weather.dead_after;
        !(is_silent || one.paused > self.now + self.weather.dead_after)
    }

    /// Every shuffle has come to its end in time.
    pub(super) fn has_ended(&self) -> Result<(), String> {
        let late = self.jobs.iter().flatten().find(|job| job.phase != Phase::Done);
        match late {
            Some(job) => Err(format!(
                "L1: {} s after the last fault job {} is still {:?}",
                SETTLES / SECOND,
                job.number,
                job.phase
            )),
            None => Ok(()),
        }
    }

    /// Nothing is left of any shuffle, and nodes have what the map says.
    fn is_clear(&self) -> Result<(), String> {
        self.has_ended()?;
        for job in self.jobs.iter().flatten() {
            let left = self.nodes.iter().find_map(|node| node.left_of(job.shuffle));
            if let Some(left) = left {
                return Err(format!("X13: of job {} there is {left}", job.number));
            }
            if let Some(left) = self.objects.left_of(job.shuffle) {
                return Err(format!("X13: of job {} there is {left} in the object store", job.number));
            }
        }
        match self.pool.map.places.iter().find(|place| place.live.len() != self.weather.replicas) {
            Some(place) => Err(format!(
                "X8: {place:?} of nodes {:?} without {:?}",
                self.pool.map.nodes, self.pool.leaving
            )),
            None => Ok(()),
        }
    }
}
