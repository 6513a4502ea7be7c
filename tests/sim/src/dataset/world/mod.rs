//! Time, the queue of what is to happen, the faults, and the source.

use super::machine::Machine;
use super::oracle::{self, Oracle};
use super::reading::Reading;
use super::store::Store;
use crate::draw::Draw;
use partage_core::base::time::Millis;
use partage_service::dataset::node::{Event, Key, Layout, Node, NodeSettings, Pin, Spread, State, Value};
use partage_service::dataset::{
    Address, DatasetName, Dealing, Partitioner, Replication, Seat, VersionName, Wish,
};
use std::collections::{BTreeMap, BTreeSet};

mod acting;
mod asking;
mod office;

use office::Office;

/// How long faults come, and how long they have stopped at the end.
const STORM_MS: u64 = 150_000;
const CALM_MS: u64 = 150_000;
const TTL_MS: u64 = 3_000;
const STABLE_MS: u64 = 2_000;
const KEEP_MS: u64 = 25_000;
const RESUME_MS: u64 = 3_000;
/// Of a version that fails again and again; at the end a run waits for a few of these at most.
const RETRY_MS: u64 = 2_000;
/// Longer than a session of which nothing is heard lasts, and mirrors need.
const LET_GO_MS: u64 = TTL_MS + STABLE_MS;
const REFRESH_MS: (u64, u64) = (8_000, 15_000);
/// Digest of the files of every version of the source.
const OWN: u64 = 1;
/// That of the files of a node that reads another source.
const OTHER: u64 = 2;

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Steps of the simulation.
    pub steps: u64,
    /// Times that a node gave its clients another version.
    pub upgrades: u64,
    /// Keys that clients got, and of those the ones that came from a peer.
    pub reads: (u64, u64),
    /// Keys for which nobody could be asked, or nobody answered in time: nobody was there all the while.
    pub unread: u64,
    /// How often a node crashed.
    pub crashes: u64,
    /// Versions that were deleted at the source.
    pub deleted: u64,
    /// Versions that were let go.
    pub retired: u64,
    /// Partitions that were let go for others to have, under a coordinator.
    pub let_go: u64,
    /// Nodes that went on with the orders that they remembered, to the end.
    pub went_on: u64,
    /// Everything that happened, as one number: the same seed gives the same.
    pub fingerprint: u64,
    /// What does not hold.
    pub broken: Option<String>,
}

/// The partitions of a version that a node publishes, and how the version is divided.
type Held = (Layout, BTreeSet<u32>);

#[derive(Debug, Clone)]
enum Happening {
    /// Something for a node, if it is still in that life.
    Node(usize, u64, Event),
    Tick(usize, u64),
    OpenSession(usize, u64),
    Renew(usize, u64, u64),
    /// A key for the store; the session in which it is.
    Write(usize, u64, Key, Option<Value>),
    /// All that a node has of a version, for the store.
    WriteHeld(usize, u64, VersionName, Option<Held>),
    Deliver(usize, u64),
    Refresh(usize, u64),
    /// A node has heard of what it may find at its source.
    Look(usize, u64),
    /// A node that reads another source says what it has, or goes.
    Stranger,
    /// A partition of a load with that number.
    Loaded(usize, u64, u64, VersionName, u32),
    Request(usize),
    /// A part of a reading is due to look at its peers.
    Wake(u64, usize),
    /// A peer is asked; a peer has read; an answer or an error comes back.
    Asked(u64, usize, usize),
    Read(u64, usize, usize, u64, VersionName),
    Answered(u64, usize, usize, Result<VersionName, ()>),
    /// A slow client has taken all.
    Taken(u64),
    Restart(usize),
    Fault,
    NewVersion,
    /// A person deletes the folder of a version.
    Deletion,
    Pin,
    /// The coordinator moves shards; its orders reach a node.
    Plan,
    Ordered(usize, u64),
    /// The settings of the dataset change, or a person changes its keyspace; a node tells of the settings.
    Keyspace,
    Told(usize, u64, u32),
    Calm,
}

/// A version at the source.
#[derive(Debug, Clone)]
struct Written {
    layout: Layout,
    /// The partition whose file is corrupt, if one is.
    bad: Option<u32>,
    /// Whether none of it can be read.
    is_rubbish: bool,
    /// Whether its folder is deleted.
    is_deleted: bool,
}

pub(super) struct World {
    draw: Draw,
    now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    order: u64,
    is_calm: bool,
    dataset: DatasetName,
    machines: Vec<Machine>,
    store: Store,
    source: BTreeMap<VersionName, Written>,
    readings: BTreeMap<u64, Reading>,
    next: u64,
    pin: Pin,
    /// The coordinator that orders shards, if nodes do not compute them.
    office: Option<Office>,
    /// Until when: the coordinator is away, the store is, the source fails, a node hears nothing of the store, two nodes
    /// cannot talk.
    office_away: u64,
    store_away: u64,
    source_away: u64,
    deaf: Vec<u64>,
    cut: BTreeMap<(usize, usize), u64>,
    /// The session of a process that reads another source, and is no node of this cluster.
    stranger: Option<u64>,
    oracle: Oracle,
    outcome: Outcome,
}

/// Runs one seed without a coordinator.
pub fn run(seed: u64) -> Outcome {
    run_in(World::new(seed), seed)
}

/// Runs one seed under a coordinator.
pub fn run_ordered(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    let (shards, wanted) = (world.draw.between(1, 9) as u32, world.machines[0].settings.spread.replication);
    world.office = Some(Office::new(&world.dataset, shards, wanted.wanted));
    for machine in &mut world.machines {
        // How many a partition may have is the coordinator's to say.
        machine.settings.spread.replication.max = None;
        (machine.settings.is_ordered, machine.settings.let_go_ms) = (true, LET_GO_MS);
    }
    world.later(1_000, Happening::Plan);
    world.later(20_000, Happening::Keyspace);
    run_in(world, seed)
}

fn run_in(mut world: World, seed: u64) -> Outcome {
    let end = STORM_MS + CALM_MS;
    while let Some(((at, order), happening)) = world.queue.pop_first() {
        if at > end || world.outcome.broken.is_some() {
            break;
        }
        world.now = at;
        world.outcome.steps += 1;
        world.outcome.fingerprint =
            partage_core::keyspace::hash::mix(world.outcome.fingerprint ^ at).wrapping_add(order ^ seed);
        if let Err(broken) = world.happen(happening) {
            world.outcome.broken = Some(format!("{broken} (at {at} ms)"));
        }
    }
    if world.outcome.broken.is_none() {
        world.outcome.broken = world.at_the_end().err();
    }
    world.outcome
}

fn settings(draw: &mut Draw, node: usize, spread: Spread) -> NodeSettings {
    let address = Address::new(&format!("n{node}:80")).expect("an address");
    let wish =
        if draw.chance(300) { Wish::Configured(Seat(node as u32)) } else { Wish::Any { before: None } };
    NodeSettings {
        wish,
        spread,
        stable_ms: STABLE_MS,
        keep_ms: KEEP_MS,
        resume_ms: RESUME_MS,
        retry_ms: RETRY_MS,
        ..NodeSettings::new(address)
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut draw = Draw::new(seed);
        let nodes = draw.between(1, 6) as usize;
        let wanted = draw.between(1, 4) as u32;
        // More than there are seats can never be at enough nodes.
        let min = draw.between(1, u64::from(wanted.min(nodes as u32)) + 1) as u32;
        let max = draw.chance(200).then_some(wanted);
        let replication = Replication { wanted, min, max };
        let dealing = *draw.pick(&Dealing::ALL).unwrap_or(&Dealing::Interleaved);
        let spread = Spread { replication, dealing };
        let re_replicate = draw.chance(300);
        let mut machines: Vec<Machine> =
            (0..nodes).map(|node| Machine::new(settings(&mut draw, node, spread))).collect();
        machines.iter_mut().for_each(|machine| machine.settings.re_replicate = re_replicate);
        let mut world = World {
            draw,
            now: 0,
            queue: BTreeMap::new(),
            order: 0,
            is_calm: false,
            dataset: DatasetName::new("names").expect("a name"),
            deaf: vec![0; machines.len()],
            machines,
            store: Store::default(),
            source: BTreeMap::new(),
            readings: BTreeMap::new(),
            next: 0,
            pin: Pin::default(),
            office: None,
            office_away: 0,
            store_away: 0,
            source_away: 0,
            cut: BTreeMap::new(),
            stranger: None,
            oracle: Oracle::default(),
            outcome: Outcome::default(),
        };
        world.later(0, Happening::NewVersion);
        for node in 0..nodes {
            let start = world.draw.between(0, 4_000);
            world.later(start, Happening::Restart(node));
            world.later(start + 100, Happening::Request(node));
        }
        world.later(5_000, Happening::Fault);
        world.later(60_000, Happening::Pin);
        if world.draw.chance(300) {
            world.soon(5_000, 40_000, Happening::Stranger);
        }
        if world.draw.chance(400) {
            world.soon(1_000, 30_000, Happening::Deletion);
        }
        world.later(STORM_MS, Happening::Calm);
        world
    }

    fn later(&mut self, after: u64, happening: Happening) {
        self.order += 1;
        self.queue.insert((self.now + after, self.order), happening);
    }

    /// From `low` to `high` milliseconds later.
    fn soon(&mut self, low: u64, high: u64, happening: Happening) {
        let after = self.draw.between(low, high);
        self.later(after, happening);
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Node(node, life, event) if self.machines[node].life == life => {
                return self.tell(node, event);
            }
            Happening::Tick(node, life) if self.machines[node].life == life => {
                return self.tell(node, Event::Tick);
            }
            Happening::Node(..) | Happening::Tick(..) => {}
            Happening::OpenSession(node, life) => return self.open_session(node, life),
            Happening::Renew(node, life, session) => return self.renew(node, life, session),
            Happening::Write(node, session, key, value) => self.write(node, session, key, value),
            Happening::WriteHeld(node, session, version, held) => {
                self.write_held(node, session, version, held);
            }
            Happening::Deliver(node, life) => return self.deliver(node, life),
            Happening::Refresh(node, life) => return self.refresh(node, life),
            Happening::Look(node, life) => return self.look(node, life),
            Happening::Stranger => self.stranger(),
            Happening::Loaded(node, life, load, version, partition) => {
                return self.loaded(node, life, load, version, partition);
            }
            Happening::Request(node) => return self.request(node),
            Happening::Wake(reading, part) => return self.wake(reading, part),
            Happening::Asked(reading, part, peer) => self.asked(reading, part, peer),
            Happening::Read(reading, part, peer, life, version) => {
                self.read(reading, part, peer, life, version)
            }
            Happening::Answered(reading, part, peer, answer) => {
                return self.answer(reading, part, peer, answer);
            }
            Happening::Taken(reading) => return self.taken(reading),
            Happening::Restart(node) => return self.restart(node),
            Happening::Fault => self.fault(),
            Happening::NewVersion => self.write_version(),
            Happening::Deletion => self.delete_version(),
            Happening::Pin => return self.pin(),
            Happening::Plan => self.plan(),
            Happening::Ordered(node, life) => return self.ordered(node, life),
            Happening::Keyspace => self.change_keyspace(),
            Happening::Told(node, life, said) => self.told_settings(node, life, said),
            Happening::Calm => self.calm(),
        }
        Ok(())
    }

    fn restart(&mut self, node: usize) -> Result<(), String> {
        let machine = &mut self.machines[node];
        if machine.is_up() {
            return Ok(());
        }
        machine.life += 1;
        machine.up_since = self.now;
        machine.gave = machine.disk.served.as_ref().map(|served| served.version.clone());
        let life = machine.life;
        let (mind, effects) =
            Node::start(machine.settings(), machine.stored(&self.dataset), Millis(self.now));
        machine.mind = Some(mind);
        self.soon(10, 500, Happening::OpenSession(node, life));
        self.soon(10, 1_000, Happening::Refresh(node, life));
        if self.office.is_some() {
            self.soon(10, 3_000, Happening::Ordered(node, life));
        }
        self.act(node, effects)
    }

    fn crash(&mut self, node: usize) {
        if !self.machines[node].is_up() {
            return;
        }
        self.fall(node);
        if self.draw.chance(250) {
            self.machines[node].disk = Default::default();
            self.oracle.forget(node);
        }
        self.soon(200, 20_000, Happening::Restart(node));
    }

    fn fall(&mut self, node: usize) {
        self.outcome.crashes += 1;
        self.machines[node].crash(self.now);
        self.readings.retain(|_, reading| reading.node != node);
    }

    /// Some fault, and the next one later.
    fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let node = self.draw.index(self.machines.len());
        let other = self.draw.index(self.machines.len());
        let long = self.draw.around(5_000);
        match self.draw.between(0, 10) {
            0..3 => self.crash(node),
            3 | 4 => self.deaf[node] = self.now + long,
            5 | 6 => {
                self.cut.insert((node.min(other), node.max(other)), self.now + long);
            }
            7 => self.source_away = self.now + long,
            8 if self.office.is_some() && self.draw.chance(500) => self.office_away = self.now + 2 * long,
            8 => self.store_away = self.now + long,
            _ => {
                // It comes back, and remembers no session.
                self.store_away = self.now + long;
                self.store.forget();
            }
        }
        self.soon(500, 12_000, Happening::Fault);
    }

    fn calm(&mut self) {
        self.is_calm = true;
        self.stranger();
        self.deaf.fill(self.now);
        self.cut.values_mut().for_each(|until| *until = self.now.min(*until));
        (self.store_away, self.source_away) = (self.now, self.now);
        self.office_away = self.now;
        if self.office.is_some() && self.draw.chance(300) {
            // The coordinator is gone for good, all nodes are restarted, and a version comes.
            self.office_away = u64::MAX;
            (0..self.machines.len()).for_each(|node| self.fall(node));
            self.later(20_000, Happening::NewVersion);
        }
        for node in 0..self.machines.len() {
            self.later(1, Happening::Restart(node));
        }
    }

    fn write_version(&mut self) {
        let name = VersionName::new(&format!("v{:03}", self.source.len() + 1)).expect("a name");
        let partitions = self.draw.between(1, 9) as u32;
        let bad =
            (!self.is_calm && self.draw.chance(200)).then(|| self.draw.between(0, partitions.into()) as u32);
        let is_rubbish = !self.is_calm && self.draw.chance(50);
        let layout = Layout { partitioner: Partitioner::JavaBytes, partitions, digest: OWN };
        self.source.insert(name, Written { layout, bad, is_rubbish, is_deleted: false });
        if !self.is_calm {
            self.soon(5_000, 60_000, Happening::NewVersion);
        }
    }

    /// The latest version is deleted, or another; not the one that an operator has ordered.
    fn delete_version(&mut self) {
        if self.is_calm {
            // Nodes need not agree on a version that was deleted while some gave it to clients: a later one follows.
            return self.write_version();
        }
        self.soon(5_000, 60_000, Happening::Deletion);
        let latest_first = self.draw.chance(600);
        let there: Vec<VersionName> = self.listed().into_iter().rev().collect();
        let chosen = if latest_first { there.first() } else { self.draw.pick(&there) };
        if let Some(name) = chosen.filter(|name| self.pin.version.as_ref() != Some(name))
            && let Some(written) = self.source.get_mut(name)
        {
            written.is_deleted = true;
            self.outcome.deleted += 1;
        }
    }

    /// The versions that the source has.
    fn listed(&self) -> Vec<VersionName> {
        let there = self.source.iter().filter(|(_, written)| !written.is_deleted);
        there.map(|(name, _)| name.clone()).collect()
    }

    /// One who reads another source says what it has: a version that this one has not, or one that is called as the latest of
    /// this one and is divided as that, of other files; and goes after a while. What it says is as good as what any node says.
    fn stranger(&mut self) {
        if let Some(session) = self.stranger.take() {
            self.store.end(session);
        }
        if self.is_calm {
            return;
        }
        self.soon(5_000, 30_000, Happening::Stranger);
        let latest = self.source.iter().next_back().map(|(name, written)| (name.clone(), written.layout));
        let (name, partitions) = match latest.filter(|_| self.draw.chance(500)) {
            Some((latest, layout)) => (latest, layout.partitions),
            None => (VersionName::new("w999").expect("a name"), 3),
        };
        let layout = Layout { partitioner: Partitioner::JavaBytes, partitions, digest: OTHER };
        let session = self.store.open(u64::MAX);
        for stranger in 0..4 {
            let address = Address::new(&format!("x{stranger}:80")).expect("an address");
            for partition in 0..partitions {
                let key = Key::Partition(self.dataset.clone(), name.clone(), partition);
                self.store.write(session, (address.clone(), key), Some(Value::Layout(layout)));
            }
        }
        self.stranger = Some(session);
    }

    /// An operator rolls back, or takes that back.
    fn pin(&mut self) -> Result<(), String> {
        self.soon(20_000, 100_000, Happening::Pin);
        let node = self.draw.index(self.machines.len());
        if !self.machines[node].is_up() || self.is_calm {
            return Ok(());
        }
        let good: Vec<VersionName> = self
            .source
            .iter()
            .filter(|(_, written)| written.is_good() && !written.is_deleted)
            .map(|(name, _)| name.clone())
            .collect();
        let version = if self.draw.chance(500) { self.draw.pick(&good).cloned() } else { None };
        self.pin = Pin { order: self.pin.order + 1, version };
        let Pin { order, version } = self.pin.clone();
        self.tell(node, Event::Pin(self.dataset.clone(), version, order))
    }

    fn is_deaf(&self, node: usize) -> bool {
        self.now < self.deaf[node] || self.now < self.store_away
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.now < self.cut_until(a, b)
    }

    fn cut_until(&self, a: usize, b: usize) -> u64 {
        self.cut.get(&(a.min(b), a.max(b))).copied().unwrap_or(0)
    }

    fn node_of(&self, address: &Address) -> Option<usize> {
        self.machines.iter().position(|machine| machine.address == *address)
    }

    /// What must have come true long after the last fault.
    fn at_the_end(&mut self) -> Result<(), String> {
        let latest = self
            .source
            .iter()
            .rev()
            .find(|(_, written)| written.is_good() && !written.is_deleted)
            .map(|(name, _)| name.clone());
        // An order that was given to a node which lost it with its disk was never heard of.
        let orders: BTreeSet<Pin> = self
            .machines
            .iter()
            .filter_map(|machine| Some(machine.mind.as_ref()?.dataset(&self.dataset)?.pin().clone()))
            .collect();
        if orders.len() > 1 {
            return Err(format!("S14: nodes follow different orders: {orders:?}"));
        }
        let wanted = orders.first().and_then(|pin| pin.version.clone()).or(latest);
        if self.office_away > self.now {
            return self.all_went_on(wanted.as_ref());
        }
        let mut seats = BTreeMap::new();
        for machine in &self.machines {
            let who = &machine.address;
            let mind = machine.mind.as_ref().ok_or(format!("{who} is down"))?;
            let Some(state) = mind.dataset(&self.dataset) else { return Err(format!("{who} knows nothing")) };
            if machine.catalogue.serving != wanted {
                let has = &machine.catalogue.serving;
                return Err(format!("S10: {who} serves {has:?} and not {wanted:?}: {state:#?}"));
            }
            for (name, version) in state.versions() {
                let is_good = self.source.get(name).is_some_and(Written::is_good);
                if is_good && state.state(name) == Some(State::Error) {
                    return Err(format!("S19: {who} still has {name} as {:?}", version.failure()));
                }
                if state.state(name) == Some(State::Removing) && !version.here().is_empty() {
                    return Err(format!("S15: {who} still has {name}"));
                }
            }
            self.all_is_seen(machine)?;
            let seat = mind.presence().seat();
            let is_told = matches!(machine.settings.wish, Wish::Configured(_));
            if let Some(other) = seats.insert(seat, (who, is_told))
                && !(is_told && other.1)
            {
                return Err(format!("S11: {who} and {} both sit at {seat:?}", other.0));
            }
        }
        self.all_is_as_ordered()
    }

    /// S12: what a node has is in the store, nothing else is, and every mirror has it.
    fn all_is_seen(&self, machine: &Machine) -> Result<(), String> {
        let content: BTreeMap<_, _> =
            self.store.content().into_iter().filter_map(|(named, value)| Some((named, value?))).collect();
        let seen: BTreeMap<_, _> =
            machine.seen.iter().map(|(named, (value, _))| (named.clone(), value.clone())).collect();
        if seen != content {
            return Err(format!("S12: the mirror of {} is not what there is", machine.address));
        }
        let held = |name: &VersionName, here: &BTreeSet<u32>| -> Vec<Key> {
            here.iter()
                .map(|partition| Key::Partition(self.dataset.clone(), name.clone(), *partition))
                .collect()
        };
        let here: BTreeSet<Key> =
            machine.disk.versions.iter().flat_map(|(name, (_, here))| held(name, here)).collect();
        let of_mine = content
            .keys()
            .filter(|(address, key)| *address == machine.address && matches!(key, Key::Partition(..)));
        let told: BTreeSet<Key> = of_mine.map(|(_, key)| key.clone()).collect();
        if here == told {
            return Ok(());
        }
        Err(format!("S12: {} has {here:?} and publishes {told:?}", machine.address))
    }
}

impl Written {
    fn is_good(&self) -> bool {
        self.bad.is_none() && !self.is_rubbish
    }
}
