//! A coordinator process: the driver around [`Cluster`], as the real one is, on simulated time.
//!
//! ```text
//!  inbox ──► take in ──► decide ──► one transaction ──► answers, orders, maps
//!              ▲                        │
//!              └──── waits while ───────┘ is not known to be durable
//! ```
//!
//! It leads while its session lives by its own clock; a transaction is refused by the store when another has
//! led since. When a transaction fails or its outcome is not known, the cluster in memory is thrown away and
//! a new one recovered.

use crate::clock::{Clock, MS, SECOND, True};
use crate::draw::Draw;
use crate::message::{Event, Message, Place, Publication, Via};
use crate::scene::Scene;
use crate::store::{Committed, Store};
use partage_core::cluster::{Cluster, Outbox};
use partage_core::exchange::Orders;
use partage_core::id::{Generation, Incarnation, TransactionId};
use partage_core::name::{KeyspaceName, NodeId};
use partage_core::planted::{self, Planted};
use partage_core::publication::{Board, Kept, Since};
use partage_core::settings::Settings;
use partage_core::time::Millis;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How long a session lives without being renewed.
pub const SESSION: True = 2 * SECOND;

/// Most messages that wait while a transaction is under way; more are dropped, as a full socket would.
const INBOX: usize = 1_024;

/// How long an announced address has to answer.
const CHECK_BACK_MS: u64 = 500;

/// What is kept for subscribers that were away: little, so that runs get beyond.
const KEPT: Kept = Kept { diffs: 16, shards: 60, forgotten: 2 };

/// Decisions in a row without a pause that are taken for a loop.
const SPINS: u32 = 200;

/// Faults of the disk. In thousandths of all transactions, and microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk {
    /// Fail, and say so.
    pub fails: u64,
    /// End in a way that nobody is told of, done or not.
    pub unknown: u64,
    /// A usual time.
    pub takes: True,
}

impl Disk {
    /// A bad one.
    pub fn drawn(draw: &mut Draw) -> Disk {
        Disk {
            fails: draw.between(0, 100),
            unknown: draw.between(0, 100),
            takes: draw.between(200, 100 * MS),
        }
    }
}

/// A message with where it came from.
type Incoming = (Place, Via, Message);

/// A transaction under way.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    outbox: Outbox,
    outcome: Option<Committed>,
}

/// What one subscriber has of one keyspace.
#[derive(Debug, Default, Clone, Copy)]
struct Subscription {
    has: Option<Generation>,
    under_way: bool,
}

/// A router that listens.
#[derive(Debug)]
struct Subscriber {
    place: Place,
    keyspaces: BTreeMap<KeyspaceName, Subscription>,
    /// Which addresses it has heard of.
    nodes: u64,
}

/// The leader's part.
#[derive(Debug)]
struct Leading {
    term: u64,
    cluster: Cluster,
    deadline: Millis,
    inbox: VecDeque<Incoming>,
    under_way: Option<UnderWay>,
    answers: Vec<Incoming>,
    /// Where each worker's stream is, and what it had when it last said so.
    workers: BTreeMap<NodeId, (Place, Option<u64>, u64)>,
    subscribers: BTreeMap<u64, Subscriber>,
    board: Board,
    checks: BTreeMap<(NodeId, Incarnation), Millis>,
    /// When the timer that is set rings, by its own clock.
    wake: Millis,
}

/// The process, or where it would be.
#[derive(Debug)]
pub struct Coordinator {
    at: usize,
    settings: Settings,
    /// Its clocks.
    pub clock: Clock,
    /// Counts its starts.
    pub process: u32,
    /// It runs.
    pub up: bool,
    /// Nothing reaches the store, or comes back.
    pub cut_from_store: bool,
    /// Its disk.
    pub disk: Disk,
    leading: Option<Box<Leading>>,
    numbers: u64,
    timers: u64,
}

impl Coordinator {
    /// A place without a process.
    pub fn new(at: usize, settings: Settings, clock: Clock) -> Coordinator {
        let disk = Disk { fails: 0, unknown: 0, takes: 500 };
        Coordinator {
            at,
            settings,
            clock,
            process: 0,
            up: false,
            cut_from_store: false,
            disk,
            leading: None,
            numbers: 0,
            timers: 0,
        }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place::Coordinator(self.at)
    }

    /// A new process.
    pub fn start(&mut self, scene: &mut Scene) {
        self.process += 1;
        self.up = true;
        self.clock = Clock::drawn(&mut scene.draw, scene.now);
        scene
            .trace
            .event(scene.now, (1u8, self.at, self.process), || format!("coordinator {} starts", self.at));
        scene.after(MS, Event::SessionAsked { coordinator: self.at, process: self.process });
    }

    /// The process is killed.
    pub fn crash(&mut self, scene: &mut Scene) {
        self.up = false;
        self.leading = None;
        scene.trace.event(scene.now, (2u8, self.at), || format!("coordinator {} dies", self.at));
        scene.drop_connections(self.place());
    }

    /// Whether it leads, as far as it knows.
    pub fn leads(&self, now: True) -> bool {
        let lives = |leading: &Leading| self.clock.read(now) < leading.deadline || planted::is(Planted::O10);
        self.leading.as_ref().is_some_and(|leading| lives(leading))
    }

    /// The cluster, while it leads and nothing is under way, for someone who asks for changes.
    pub fn cluster(&mut self, now: True) -> Option<&mut Cluster> {
        let leads = self.leads(now);
        self.leading.as_mut().filter(|l| leads && l.under_way.is_none()).map(|l| &mut l.cluster)
    }

    fn step_down(&mut self, scene: &mut Scene, why: &'static str) {
        self.leading = None;
        scene
            .trace
            .event(scene.now, (3u8, self.at), || format!("coordinator {} leads no more: {why}", self.at));
        for stream in scene.network.streams_of(self.place()) {
            scene.close(stream, self.place());
        }
    }

    /// Renews its session, or tries to lead.
    pub fn session_asked(&mut self, scene: &mut Scene, store: &mut Store) {
        let again = SESSION / 3;
        scene.after(again, Event::SessionAsked { coordinator: self.at, process: self.process });
        let deadline = self.clock.read(scene.now) + SESSION / MS * 970 / 1_000;
        if self.leading.is_some() && !self.leads(scene.now) {
            self.step_down(scene, "its session has ended");
        }
        match &mut self.leading {
            _ if self.cut_from_store => {}
            Some(leading) if store.renew(scene.now, leading.term, SESSION) => leading.deadline = deadline,
            Some(_) if planted::is(Planted::O10) => {}
            Some(_) => self.step_down(scene, "its session was lost"),
            None => {
                if let Some(term) = store.try_lead(scene.now, SESSION) {
                    self.lead(scene, store, term, deadline);
                }
            }
        }
    }

    fn lead(&mut self, scene: &mut Scene, store: &mut Store, term: u64, deadline: Millis) {
        let moment = self.clock.moment(scene.now);
        let cluster = match Cluster::recover(moment, self.settings.clone(), store.records.clone()) {
            Ok(cluster) => cluster,
            Err(error) => return scene.violate("O9", format!("nothing recovers from the records: {error}")),
        };
        scene
            .trace
            .event(scene.now, (4u8, self.at, term), || format!("coordinator {} leads, term {term}", self.at));
        let mut board = Board::new(KEPT);
        board.refresh(&cluster, moment.now);
        self.leading = Some(Box::new(Leading {
            term,
            cluster,
            deadline,
            inbox: VecDeque::new(),
            under_way: None,
            answers: Vec::new(),
            workers: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            board,
            checks: BTreeMap::new(),
            wake: Millis::NEVER,
        }));
        self.drive(scene);
    }

    /// A message has come.
    pub fn deliver(&mut self, scene: &mut Scene, from: Place, via: Via, message: Message) {
        let leads = self.leads(scene.now);
        match &mut self.leading {
            Some(leading) if leads => {
                if leading.inbox.len() < INBOX {
                    leading.inbox.push_back((from, via, message));
                }
                self.drive(scene);
            }
            _ => scene.send(self.place(), from, via, Message::NotLeader),
        }
    }

    /// A connection is gone.
    pub fn closed(&mut self, stream: u64) {
        if let Some(leading) = &mut self.leading {
            leading.subscribers.remove(&stream);
            for worker in leading.workers.values_mut().filter(|worker| worker.1 == Some(stream)) {
                worker.1 = None;
            }
        }
    }

    /// Its timer has rung.
    pub fn wake(&mut self, scene: &mut Scene, timer: u64) {
        if timer == self.timers {
            if let Some(leading) = &mut self.leading {
                leading.wake = Millis::NEVER;
            }
            self.drive(scene);
        }
    }

    /// Takes in what has come and decides, until there is nothing to do or something to be made durable.
    pub fn drive(&mut self, scene: &mut Scene) {
        for _ in 0..SPINS {
            let moment = self.clock.moment(scene.now);
            if !self.leads(scene.now) {
                return;
            }
            let Some(leading) = &mut self.leading else { return };
            if leading.under_way.is_some() {
                return;
            }
            while let Some(incoming) = leading.inbox.pop_front() {
                leading.take_in(moment, incoming);
            }
            leading.check_addresses(scene, self.at, moment.now);
            let granted = leading.cluster.grant_at_once(moment);
            leading.order(scene, self.at, &granted);
            let wake = leading.cluster.decide(moment, transaction(scene));
            let outbox = leading.cluster.take_outbox();
            for notice in &outbox.notices {
                scene.trace.event(scene.now, (5u8, notice.alarm), || format!("  notice: {}", notice.text));
            }
            if planted::is(Planted::M3) {
                let maps = Outbox { maps: outbox.maps.clone(), ..Outbox::default() };
                leading.release(scene, (self.at, moment.now), maps);
            }
            if !outbox.writes.is_empty() {
                self.numbers += 1;
                let number = self.numbers;
                leading.under_way = Some(UnderWay { number, outbox, outcome: None });
                let takes = scene.draw.around(self.disk.takes);
                let (coordinator, process) = (self.at, self.process);
                return scene.after(takes, Event::Commits { coordinator, process, number });
            }
            leading.release(scene, (self.at, moment.now), outbox);
            if wake > moment.now && leading.inbox.is_empty() {
                return self.set_timer(scene, wake);
            }
        }
        scene.violate("L4", format!("coordinator {} decides without end", self.at));
    }

    fn set_timer(&mut self, scene: &mut Scene, wake: Millis) {
        let Some(leading) = &mut self.leading else { return };
        let wake = leading.checks.values().copied().fold(wake, Millis::min);
        if wake != leading.wake {
            leading.wake = wake;
            self.timers += 1;
            let at = self.clock.when(wake, scene.now);
            scene.at(at, Event::Wake(self.place(), self.process, self.timers));
        }
    }

    /// The transaction reaches the store.
    pub fn commits(&mut self, scene: &mut Scene, store: &mut Store, number: u64) {
        let (fails, unknown, cut) =
            (scene.draw.chance(self.disk.fails), scene.draw.chance(self.disk.unknown), self.cut_from_store);
        let done = scene.draw.chance(500);
        let Some(leading) = &mut self.leading else { return };
        let Some(under_way) = leading.under_way.as_mut().filter(|u| u.number == number) else { return };
        let writes = &under_way.outbox.writes;
        let committed = if fails || cut || (unknown && !done) {
            Committed::No
        } else {
            match store.commit(leading.term, writes) {
                Ok(committed) => committed,
                Err(error) => return scene.violate("M3", format!("a map without its parent: {error}")),
            }
        };
        if committed == Committed::Yes {
            let term = leading.term;
            let findings = scene.oracles.maps.committed(term, writes, &store.records);
            scene.trace.event(scene.now, (6u8, term, writes.len()), || {
                format!("term {term} commits {}", words(writes))
            });
            findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
        }
        under_way.outcome = (!unknown).then_some(committed);
        let back = scene.draw.around(100);
        scene.after(back, Event::Committed { coordinator: self.at, process: self.process, number });
    }

    /// The coordinator hears how the transaction ended.
    pub fn committed(&mut self, scene: &mut Scene, store: &mut Store, number: u64) {
        let (leads, now) = (self.leads(scene.now), self.clock.read(scene.now));
        let Some(leading) = &mut self.leading else { return };
        let Some(under_way) = leading.under_way.take_if(|u| u.number == number) else { return };
        let term = leading.term;
        match under_way.outcome {
            _ if !leads => self.step_down(scene, "its session ended while a transaction was under way"),
            Some(Committed::Yes) => {
                leading.release(scene, (self.at, now), under_way.outbox);
                self.drive(scene);
            }
            Some(Committed::Deposed) => self.step_down(scene, "another leads"),
            Some(Committed::No) => {
                store.resign(term);
                self.step_down(scene, "a transaction has failed");
            }
            None => {
                store.resign(term);
                self.step_down(scene, "nobody knows how a transaction ended");
            }
        }
    }
}

impl Leading {
    fn take_in(&mut self, moment: partage_core::cluster::Moment, (from, via, message): Incoming) {
        let stream = match via {
            Via::Stream(stream) => Some(stream),
            Via::Post(_) => None,
        };
        let answer = match message {
            Message::Register(registration) => {
                let id = registration.spec.id.clone();
                match self.cluster.register(moment, registration) {
                    Ok(welcome) => {
                        self.workers.insert(id, (from, stream, 0));
                        Message::Welcome(welcome)
                    }
                    Err(error) => Message::NotRegistered(error),
                }
            }
            Message::Beat(beat) => {
                let (id, applied) = (beat.node.clone(), beat.applied);
                match self.cluster.beat(moment, beat) {
                    Ok(orders) => {
                        if let Some(worker) = self.workers.get_mut(&id) {
                            worker.2 = applied;
                        }
                        Message::Orders(orders)
                    }
                    Err(error) => Message::BeatRefused(error),
                }
            }
            Message::Goodbye(node, incarnation) => {
                let _said_before = self.cluster.leave(moment, &node, incarnation);
                return;
            }
            Message::CheckedBack(node, incarnation) => {
                if self.checks.remove(&(node.clone(), incarnation)).is_some() {
                    self.cluster.checked_back(moment, &node, incarnation, true);
                }
                return;
            }
            Message::Subscribe(has) => {
                if let Some(stream) = stream {
                    let subscription =
                        |name: &KeyspaceName| Subscription { has: has.get(name).copied(), under_way: false };
                    let names = self.cluster.keyspaces().keys();
                    let keyspaces = names.map(|name| (name.clone(), subscription(name))).collect();
                    self.subscribers.insert(stream, Subscriber { place: from, keyspaces, nodes: 0 });
                }
                return;
            }
            Message::Taken(keyspace, generation) => {
                let subscriber = stream.and_then(|stream| self.subscribers.get_mut(&stream));
                if let Some(held) = subscriber.and_then(|s| s.keyspaces.get_mut(&keyspace)) {
                    *held = Subscription { has: Some(generation), under_way: false };
                }
                return;
            }
            _ => return,
        };
        self.answers.push((from, via, answer));
    }

    /// Asks announced addresses for a sign of life, and gives up on those that were asked long ago.
    fn check_addresses(&mut self, scene: &mut Scene, at: usize, now: Millis) {
        let late: Vec<_> =
            self.checks.iter().filter(|(_, end)| **end <= now).map(|(k, _)| k.clone()).collect();
        for key in late {
            self.checks.remove(&key);
            let moment = partage_core::cluster::Moment { now, wall_ms: 0 };
            self.cluster.checked_back(moment, &key.0, key.1, false);
        }
        for (id, incarnation, address, _) in self.cluster.checks_due(now) {
            let to = Place::Node(node_at(&address));
            self.checks.insert((id.clone(), incarnation), now + CHECK_BACK_MS);
            scene.send(Place::Coordinator(at), to, Via::Post(0), Message::CheckBack(id, incarnation));
        }
    }

    /// What is durable may be told.
    fn release(&mut self, scene: &mut Scene, (at, now): (usize, Millis), outbox: Outbox) {
        let here = Place::Coordinator(at);
        for (to, via, message) in std::mem::take(&mut self.answers) {
            if let (Place::Node(node), Message::Orders(orders)) = (to, &message) {
                ordered(scene, node, orders);
            }
            scene.send(here, to, via, message);
        }
        self.order(scene, at, &outbox.orders);
        self.board.publish(&self.cluster, outbox.maps, now);
        self.publish(scene, here);
    }

    /// Sends nodes what has changed of their orders.
    fn order(&self, scene: &mut Scene, at: usize, nodes: &BTreeSet<NodeId>) {
        for id in nodes {
            let Some((place, Some(stream), applied)) = self.workers.get(id) else { continue };
            if let Some(orders) = self.cluster.orders_since(id, *applied, None) {
                ordered(scene, node_at(id.as_str()), &orders);
                scene.send(Place::Coordinator(at), *place, Via::Stream(*stream), Message::Orders(orders));
            }
        }
    }

    /// Sends every subscriber that is free what it lacks.
    fn publish(&mut self, scene: &mut Scene, here: Place) {
        for (stream, subscriber) in &mut self.subscribers {
            for (name, state) in self.cluster.keyspaces() {
                let held = subscriber.keyspaces.entry(name.clone()).or_default();
                let Some(brief) = self.board.brief(name).filter(|_| !held.under_way).cloned() else {
                    continue;
                };
                let nodes = self.board.nodes_since(subscriber.nodes);
                let is_news = !(nodes.changed.is_empty() && nodes.forgotten.is_empty());
                let (diffs, resync) = match self.board.since(name, held.has) {
                    Since::Nothing if is_news => (Vec::new(), false),
                    Since::Nothing | Since::Deleted => continue,
                    Since::Changes(diffs) => (diffs, false),
                    Since::Whole => (vec![Arc::new(state.map.whole())], true),
                };
                held.under_way = true;
                subscriber.nodes = nodes.version;
                let publication = Publication { brief, diffs, resync, nodes };
                let message = Message::Publication(publication);
                scene.send(here, subscriber.place, Via::Stream(*stream), message);
            }
        }
    }
}

/// O5: orders go out, and what they grant must be free.
fn ordered(scene: &mut Scene, node: usize, orders: &Orders) {
    for order in &orders.changed {
        let findings = scene.oracles.granted(scene.now, node, order);
        findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
    }
}

/// A name for what is about to be committed.
pub fn transaction(scene: &mut Scene) -> TransactionId {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&scene.draw.bits().to_be_bytes());
    bytes[8..16].copy_from_slice(&scene.draw.bits().to_be_bytes());
    TransactionId(bytes)
}

/// The node behind an address of the run.
pub fn node_at(address: &str) -> usize {
    let digits = address.trim_start_matches("node-").split(':').next();
    digits.and_then(|digits| digits.parse().ok()).expect("every address of a run is node-N:1")
}

fn words(writes: &[partage_core::cluster::Write]) -> String {
    use partage_core::cluster::Write;
    let one = |write: &Write| match write {
        Write::Cluster(_) => "cluster".to_owned(),
        Write::Keyspace(record) => format!("keyspace {}", record.keyspace.name),
        Write::DropKeyspace(name) => format!("no keyspace {name}"),
        Write::Map(diff) => {
            let shards: Vec<_> = diff.changed.iter().map(shard_words).collect();
            format!("{} {}: {} -{:?}", diff.keyspace, diff.to, shards.join("; "), diff.removed)
        }
        Write::Node(node) => {
            format!("node {} {} ended={}", node.spec.id, node.incarnation, node.ended)
        }
        Write::DropNode(id) => format!("no node {id}"),
        Write::Plan(plan) => format!("{} {}", plan.id, plan.status),
        Write::DropPlan(id) => format!("no {id}"),
    };
    writes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn shard_words(shard: &partage_core::map::Shard) -> String {
    let replicas: Vec<_> = shard
        .replicas
        .iter()
        .map(|r| format!("{}@{}/{} {} {}", r.placement, r.node, r.incarnation, r.state, r.role))
        .collect();
    format!("{} {} {:?} [{}]", shard.id, shard.epoch, shard.stage(), replicas.join(", "))
}
