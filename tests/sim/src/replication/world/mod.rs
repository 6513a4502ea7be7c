//! One run: true time, what is to happen, and what must hold after each step.

use crate::clock::{Clock, MS, SECOND, True};
use crate::draw::Draw;
use crate::replication::clients::{Client, Operation};
use crate::replication::coordinator::{Beat, Coordinator};
use crate::replication::copy::CopyMessage;
use crate::replication::engine::Value;
use crate::replication::node::{Disk, Node};
use crate::replication::oracle::Oracle;
use crate::replication::weather::Weather;
use crate::trace::Trace;
use moving::Moving;
use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId};
use partage_service::table::replication::{Answer, Event, Failed, Message, Order, Request};
use std::collections::BTreeMap;
use std::fmt;

mod acting;
mod copying;
mod faults;
mod moving;
mod talking;

/// How long after the last fault everything must serve, in true time.
const SETTLES: True = 20 * SECOND;

/// In a run with a node that is slow for long: how long it is, when nothing else is wrong any more.
const LIMPS: True = 60 * SECOND;

/// How often leaders may change the in-sync set of a shard within a minute in which one node is slow.
const LIMPING_WISHES: u64 = 30;

/// How long it then goes on without a coordinator.
const ALONE: True = 10 * SECOND;

/// The greatest age of what a read replica has when nothing is wrong, in milliseconds.
const FRESH_MS: u64 = 1_000;

/// What a run has shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// What did not hold; none: all held.
    pub broken: Option<String>,
    /// What happened, one by one.
    pub steps: u64,
    /// Over everything that happened.
    pub hash: u64,
    /// Writes that were acknowledged, and those whose outcome is unknown.
    pub writes: (u64, u64),
    /// Writes that a replica acknowledged after it had ceased to lead.
    pub outliving: u64,
    /// Linearizable, bounded and other reads.
    pub reads: (u64, u64, u64),
    /// How often the coordinator changed a leader, and how often one began.
    pub leaders: (u64, u64),
    /// Processes that ended with what was not synced.
    pub crashes: u64,
    /// Snapshots that were sent.
    pub snapshots: u64,
    /// Chunks of these that were stored.
    pub chunks: u64,
    /// Copies to which the log did not reach back any more.
    pub outrun: u64,
    /// Copies that went on after their follower had started again.
    pub resumed: u64,
    /// Times that a write waited for a copy.
    pub slowed: u64,
    /// Orders to hand a lead over, or to do so no more.
    pub transfers: u64,
    /// Times that a leader which handed over found its heir ready.
    pub ready_heirs: u64,
    /// Changes of in-sync sets that leaders asked for.
    pub wishes: u64,
    /// How often a node was slow.
    pub slow: u64,
    /// The most changes of the in-sync set of a shard within a minute in which nothing was wrong but that one node was slow.
    pub limping: u64,
    /// Reads that read replicas answered, and read replicas that were made members.
    pub readers: (u64, u64),
}

impl Outcome {
    /// Counts what another run has shown.
    pub fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.outliving += other.outliving;
        self.writes = (self.writes.0 + other.writes.0, self.writes.1 + other.writes.1);
        let (own, reads) = (self.reads, other.reads);
        self.reads = (own.0 + reads.0, own.1 + reads.1, own.2 + reads.2);
        self.leaders = (self.leaders.0 + other.leaders.0, self.leaders.1 + other.leaders.1);
        self.crashes += other.crashes;
        self.snapshots += other.snapshots;
        self.chunks += other.chunks;
        self.outrun += other.outrun;
        self.resumed += other.resumed;
        self.slowed += other.slowed;
        self.transfers += other.transfers;
        self.ready_heirs += other.ready_heirs;
        self.wishes += other.wishes;
        self.slow += other.slow;
        self.limping = self.limping.max(other.limping);
        self.readers = (self.readers.0 + other.readers.0, self.readers.1 + other.readers.1);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome {
            steps,
            writes,
            outliving,
            reads,
            leaders,
            crashes,
            snapshots,
            chunks,
            outrun,
            resumed,
            slowed,
            transfers,
            ready_heirs,
            wishes,
            slow,
            limping,
            readers,
            ..
        } = self;
        write!(
            f,
            "{steps} steps; {} writes acknowledged ({outliving} after the lead), {} unknown; {} linearizable, {} bounded and {} other reads; \
             {} changes of leaders, {} began; {crashes} crashes, {snapshots} snapshots in {chunks} chunks ({outrun} outrun, {resumed} resumed, {slowed} waits of writes), {transfers} transfers ({ready_heirs} heirs ready), \
             {wishes} wishes granted, nodes slow {slow} times, at most {limping} of these of a shard in a minute with one slow node; {} reads answered by read replicas, {} of which became members",
            writes.0, writes.1, reads.0, reads.1, reads.2, leaders.0, leaders.1, readers.0, readers.1
        )
    }
}

/// What is to happen.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Deliver {
        node: usize,
        from: PlacementId,
        to: PlacementId,
        message: Message,
    },
    Orders {
        node: usize,
        generation: u64,
        orders: Vec<(usize, Order)>,
    },
    Refused {
        node: usize,
        placement: PlacementId,
        epoch: Epoch,
        configuration: Configuration,
    },
    Synced {
        node: usize,
        life: Incarnation,
        placement: PlacementId,
        writes: usize,
    },
    Tick {
        node: usize,
        life: Incarnation,
        placement: PlacementId,
    },
    Flush {
        node: usize,
        life: Incarnation,
        placement: PlacementId,
    },
    Copy {
        node: usize,
        from: PlacementId,
        to: PlacementId,
        message: CopyMessage,
    },
    Request {
        node: usize,
        placement: PlacementId,
        request: Request,
    },
    Beat {
        node: usize,
        life: Incarnation,
        again: bool,
    },
    BeatArrives(Beat),
    Transfer {
        shard: usize,
        heir: PlacementId,
    },
    Decide,
    Returns,
    Elect {
        shard: usize,
        heir: Option<PlacementId>,
        drops: bool,
    },
    Start(usize),
    Fault,
    Limp,
    Stop,
    LeadMoves,
    Alone,
    /// A slow node comes to what has happened before.
    Late(usize, Box<Happening>),
    Client(usize),
    /// A client writes to a shard.
    Write {
        client: usize,
        shard: usize,
    },
    Answered(Request, Result<(Answer, Value), Failed>),
    TimedOut(Request),
}

impl Happening {
    /// The node whose process it needs.
    fn process(&self) -> Option<usize> {
        use Happening::*;
        match self {
            Deliver { node, .. } | Orders { node, .. } | Refused { node, .. } | Synced { node, .. } => {
                Some(*node)
            }
            Tick { node, .. } | Flush { node, .. } | Copy { node, .. } | Request { node, .. } => Some(*node),
            Beat { node, .. } | Late(node, _) => Some(*node),
            BeatArrives(_) | Decide | Returns | Elect { .. } | Transfer { .. } | Start(_) => None,
            Fault | Limp | Stop | LeadMoves | Alone => None,
            Client(_) | Write { .. } | Answered(..) | TimedOut(_) => None,
        }
    }
}

pub(super) struct World {
    pub(super) now: True,
    sequence: u64,
    queue: BTreeMap<(True, u64), Happening>,
    pub(super) draw: Draw,
    /// What chance decides of copies, so that nothing else hangs on how often they ask.
    pub(super) copy_draw: Draw,
    trace: Trace,
    pub(super) weather: Weather,
    pub(super) nodes: Vec<Node>,
    /// Where each replica is, and of which shard.
    pub(super) places: BTreeMap<PlacementId, (usize, usize)>,
    pub(super) coordinator: Coordinator,
    /// Links that are cut, and until when; the coordinator counts as the node behind the last.
    cuts: BTreeMap<(usize, usize), True>,
    pub(super) clients: Vec<Client>,
    pub(super) operations: BTreeMap<Request, Operation>,
    pub(super) oracle: Oracle,
    pub(super) outcome: Outcome,
    /// How many wishes of each shard had been granted when there came to be nothing wrong but a node that is slow.
    pub(super) limps: Option<Vec<u64>>,
    /// When faults have stopped.
    pub(super) stopped: Option<True>,
    /// Leads move, and nothing else is wrong.
    pub(super) moving: Option<Moving>,
    /// Since when every operation must end well.
    pub(super) must_serve: Option<True>,
}

/// A run of that seed.
pub fn run(seed: u64) -> Outcome {
    run_with_words(seed, None).0
}

/// The same, with its last events in words.
pub fn run_with_words(seed: u64, words: Option<usize>) -> (Outcome, Vec<String>) {
    let mut world = World::new(seed, words);
    let broken = world.run().err();
    let (writes, changes) = (world.oracle.writes() as u64, world.coordinator.changes);
    world.outcome.readers.1 = world.coordinator.promoted;
    let mut outcome = Outcome { broken, hash: world.trace.hash(), ..world.outcome };
    (outcome.writes.0, outcome.leaders.0) = (writes, changes);
    (outcome, world.trace.words().cloned().collect())
}

impl World {
    fn new(seed: u64, words: Option<usize>) -> World {
        let mut draw = Draw::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7ab1e);
        let readers = if seed % 2 == 1 { 1 + (seed / 2 % 2) as usize } else { 0 };
        let mut copy_draw = Draw::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xc0_91e5);
        let weather = Weather::drawn(&mut draw).with_readers(readers).with_copies(&mut copy_draw);
        let Weather { nodes, shards, .. } = weather;
        let coordinator = Coordinator::new(&weather);
        let mut world = World {
            now: 0,
            sequence: 0,
            queue: BTreeMap::new(),
            nodes: (0..nodes).map(|_| Node::new(Clock::drawn(&mut draw, 0))).collect(),
            clients: (0..6).map(|_| Client::new(shards)).collect(),
            draw,
            copy_draw,
            trace: Trace::new(words),
            weather,
            places: BTreeMap::new(),
            coordinator,
            cuts: BTreeMap::new(),
            operations: BTreeMap::new(),
            oracle: Oracle::new(shards),
            outcome: Outcome::default(),
            limps: None,
            stopped: None,
            moving: None,
            must_serve: None,
        };
        for node in 0..nodes {
            world.after(0, Happening::Start(node));
        }
        for client in 0..world.clients.len() {
            world.after(client as u64 * MS, Happening::Client(client));
        }
        world.after(0, Happening::Decide);
        world.after(world.weather.fault_every, Happening::Fault);
        let faults_for = world.weather.faults_for;
        if world.weather.limps {
            world.after(faults_for, Happening::Limp);
        }
        world.after(faults_for + world.limps_for(), Happening::Stop);
        world
    }

    pub(super) fn after(&mut self, delay: True, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + delay, self.sequence), happening);
    }

    fn limps_for(&self) -> True {
        if self.weather.limps { LIMPS } else { 0 }
    }

    fn run(&mut self) -> Result<(), String> {
        let end = self.weather.faults_for + self.limps_for() + SETTLES + ALONE;
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            if at > end {
                break;
            }
            self.now = at;
            self.outcome.steps += 1;
            self.step(happening).map_err(|broken| format!("{broken} (at {:.3} s)", at as f64 / 1e6))?;
            self.holds().map_err(|broken| format!("{broken} (at {:.3} s)", at as f64 / 1e6))?;
        }
        self.holds_in_the_end()
    }

    /// What comes to its process now; none: the process does not run, or comes to it later.
    fn comes(&mut self, happening: Happening) -> Option<Happening> {
        if let Some(node) = happening.process() {
            let Node { is_up, paused, .. } = self.nodes[node];
            if !is_up {
                return None;
            }
            if self.now < paused {
                self.after(paused - self.now, happening);
                return None;
            }
            if !matches!(happening, Happening::Late(..)) {
                let begins = self.nodes[node].slow.comes_to(&mut self.draw, self.now);
                if begins > self.now {
                    self.after(begins - self.now, Happening::Late(node, Box::new(happening)));
                    return None;
                }
            }
        }
        Some(match happening {
            Happening::Late(_, happening) => *happening,
            happening => happening,
        })
    }

    fn step(&mut self, happening: Happening) -> Result<(), String> {
        let Some(happening) = self.comes(happening) else { return Ok(()) };
        self.trace.event(self.now, self.sequence, || format!("{happening:?}"));
        match happening {
            Happening::Deliver { node, from, to, message } => {
                self.handle(node, to, Event::Message(from, message))
            }
            Happening::Orders { node, generation, orders } => self.take_orders(node, generation, orders),
            Happening::Refused { node, placement, epoch, configuration } => {
                self.handle(node, placement, Event::WishRefused(epoch, configuration))
            }
            Happening::Synced { node, life, placement, writes } => self.synced(node, life, placement, writes),
            Happening::Tick { node, life, placement } => self.tick(node, life, placement),
            Happening::Flush { node, life, placement } => self.flush(node, life, placement),
            Happening::Copy { node, from, to, message } => self.copy_arrives(node, from, to, message),
            Happening::Request { node, placement, request } => self.requested(node, placement, request),
            Happening::Beat { node, life, again } => {
                self.beat(node, life, again);
                Ok(())
            }
            Happening::BeatArrives(beat) => {
                self.beat_arrives(beat);
                Ok(())
            }
            Happening::Start(node) => self.start(node),
            Happening::Client(client) => {
                self.client_acts(client);
                Ok(())
            }
            Happening::Write { client, shard } => {
                self.client_writes(client, shard);
                Ok(())
            }
            Happening::Answered(request, answer) => self.answered(request, answer),
            Happening::TimedOut(request) => self.timed_out(request),
            Happening::Decide | Happening::Returns | Happening::Elect { .. } | Happening::Transfer { .. } => {
                self.coordinate(happening);
                Ok(())
            }
            Happening::Fault
            | Happening::Limp
            | Happening::Stop
            | Happening::LeadMoves
            | Happening::Alone => {
                self.sets_are_steady(&happening)?;
                self.weather_changes(happening);
                Ok(())
            }
            Happening::Late(..) => Ok(()),
        }
    }

    /// L1: a node that is slow for long comes into in-sync sets and leaves them again less and less often.
    fn sets_are_steady(&mut self, happening: &Happening) -> Result<(), String> {
        let Some(before) = self.limps.as_ref().filter(|_| matches!(happening, Happening::Stop)) else {
            return Ok(());
        };
        let granted = self.coordinator.granted.iter().zip(before);
        let most = granted.map(|(after, before)| after - before).max().unwrap_or(0);
        self.outcome.limping = most;
        match most > LIMPING_WISHES {
            true => {
                Err(format!("L1: one node is slow, and the set of a shard changes {most} times in a minute"))
            }
            false => Ok(()),
        }
    }

    /// After every step: each member of each in-sync set has on its disk what was acknowledged last, and by that all before it.
    /// No read replica is one of them.
    fn holds(&self) -> Result<(), String> {
        for (shard, map) in self.coordinator.maps.iter().enumerate() {
            if let Some(reader) = map.in_sync.iter().find(|one| self.coordinator.is_reader(shard, **one)) {
                return Err(format!("D1: the read replica {reader} is in sync under {}", map.configuration));
            }
            let Some(last) = self.oracle.acknowledged(shard) else { continue };
            for placement in &map.in_sync {
                if !self.disk(*placement).is_some_and(|disk| disk.has(last)) {
                    let all = &map.in_sync;
                    return Err(format!(
                        "D1: {placement}, in sync under {} {} of {all:?}, lacks {last}, which was acknowledged",
                        map.epoch, map.configuration
                    ));
                }
            }
        }
        (0..self.nodes.len()).try_for_each(|node| self.direct_reads_are_fresh(node))
    }

    /// D2: a replica that may be read without being asked has applied all that was acknowledged.
    pub(super) fn direct_reads_are_fresh(&self, node: usize) -> Result<(), String> {
        let node = &self.nodes[node];
        let now = node.clock.read(self.now);
        for (placement, local) in node.replicas.iter().filter(|_| node.is_up) {
            let last = self.oracle.acknowledged(local.shard).map_or(0, |last| last.index);
            let may = local.published.is_some_and(|until| now < until);
            if may && local.engine.at.index < last {
                let has = local.engine.at;
                return Err(format!("D2: {placement} may be read, has {has}, and {last} was acknowledged"));
            }
        }
        Ok(())
    }

    pub(super) fn disk(&self, placement: PlacementId) -> Option<&Disk> {
        let (node, _) = self.places.get(&placement)?;
        self.nodes[*node].disks.get(&placement)
    }

    /// When nothing has failed for long: every member is in sync, and has all, and what read replicas have is fresh.
    fn holds_in_the_end(&self) -> Result<(), String> {
        for (shard, map) in self.coordinator.maps.iter().enumerate() {
            let members = map.peers.iter().filter(|peer| peer.may_join).count();
            if map.in_sync.len() != members {
                let in_sync = map.in_sync.len();
                return Err(format!("L1: of {members} members of shard {shard} {in_sync} are in sync"));
            }
            for peer in &map.peers {
                let placement = peer.placement;
                let local = self
                    .places
                    .get(&placement)
                    .and_then(|(node, _)| self.nodes[*node].replicas.get(&placement));
                let local = local.ok_or_else(|| format!("L1: {placement} is not there"))?;
                let clock = self.places.get(&placement).map(|(node, _)| &self.nodes[*node].clock);
                let age = clock.and_then(|clock| local.machine.age_ms(clock.read(self.now)));
                if !peer.may_join && age.is_none_or(|age| age > FRESH_MS) {
                    return Err(format!("L1: the read replica {placement} is {age:?} ms old"));
                }
                let leads = local.machine.status().has_begun;
                if leads != (placement == map.leader) {
                    return Err(format!("L1: {placement} leads: {leads}, and the leader is {}", map.leader));
                }
                if leads && !self.oracle.is_whole(shard, &local.engine) {
                    return Err(format!("D1: the leader {placement} has not applied what is committed"));
                }
            }
        }
        Ok(())
    }
}
