//! A whole fleet that loses its leader (R6, R7): real state machines of workers and of the coordinator, ten thousand of
//! them, on a network that works. Which of them come back when, what that is at its peak, and whether anything moves or is
//! declared dead.
//!
//! ```text
//!  all register ──► all is placed ──► the leader is gone ──► nobody leads ──► another does ──► all are back
//! ```
//!
//! Time goes in steps of [`STEP_MS`]: what comes within one is a batch behind one transaction, as it is in a
//! coordinator. A word takes a step. Callbacks of services return at once: handovers are not what is looked at.

use crate::clock::SECOND;
use crate::draw::Draw;
use crate::shape::Shape;
use crate::store::Store;
use crate::world::World;
use partage_core::base::id::{Generation, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::publication::{Retention, Since, WatchCache};
use partage_core::cluster::{Cluster, KeyspaceRecord, Moment, Write};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{Bounds, Sharding, presplit};
use partage_core::keyspace::{Keyspace, Mode, Ownership};
use partage_core::node::NodeSpec;
use partage_core::node::reconnect::{self, ReconnectBackoff};
use partage_core::worker::{Action, CallbackTimeouts, Task, Worker};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What comes within that time is decided together.
const STEP_MS: u64 = 10;

/// Between two looks at addresses that are to be checked.
const CHECKS_MS: u64 = 250;

/// How long all that is looked at after the leader is gone: beyond every lease and every patience.
const WATCHED_MS: u64 = 40_000;

/// Within that time everything has its place in the beginning.
const SETTLES_MS: u64 = 600_000;

/// How the leader goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It is killed; another leads when its session is over.
    Killed,
    /// It leaves in order: another leads at once.
    Leaves,
}

/// How large a fleet is, and how its leader goes.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// Coordinators; a single one comes back itself.
    pub coordinators: usize,
    /// Workers, of two shards each.
    pub workers: usize,
    /// Routers, which look for a coordinator as workers do.
    pub routers: usize,
    /// How the leader goes.
    pub loss: Loss,
    /// How long no coordinator leads after it was killed, in milliseconds.
    pub leaderless_ms: u64,
    /// As clusters of several coordinators have them.
    pub settings: Settings,
    /// How many clients each of them stands for: a small fleet that comes back as a large one does.
    pub stands_for: usize,
}

impl Fleet {
    /// With the settings of a cluster of three coordinators.
    pub fn of_three(workers: usize, routers: usize, loss: Loss) -> Fleet {
        Fleet {
            coordinators: 3,
            workers,
            routers,
            loss,
            leaderless_ms: 3_200,
            settings: Settings { lease_ms: 8_000, dead_after_ms: 9_000, ..Settings::default() },
            stands_for: 1,
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// From the loss until each worker had a lease of the new leader, and each router a coordinator again.
    pub current_ms: u64,
    /// Most that came to one coordinator within a second, those included that it turned away or sent on.
    pub peak_per_s: u64,
    /// Most that were turned away within a second, by all coordinators together.
    pub refused_peak_per_s: u64,
    /// Maps committed since the loss: there should be none.
    pub moves: u64,
    /// Nodes declared dead since the loss: there should be none.
    pub deaths: u64,
    /// Leases that ran out.
    pub lapses: u64,
}

/// A worker or a router, which needs a coordinator.
struct Client {
    worker: Option<Worker>,
    draw: Draw,
    /// The coordinator that has it.
    at: Option<usize>,
    next: usize,
    backoff: ReconnectBackoff,
    applied: u64,
    /// When it was current again.
    current: Option<u64>,
    /// The event of it that counts; others are of the past.
    event: u64,
}

struct Leader {
    at: usize,
    cluster: Cluster,
    cache: WatchCache,
    wake: Millis,
}

struct Run {
    fleet: Fleet,
    now: u64,
    draw: Draw,
    store: Store,
    clients: Vec<Client>,
    due: BinaryHeap<Reverse<(u64, usize, u64)>>,
    alive: Vec<bool>,
    leader: Option<Leader>,
    /// Since when there is something to count.
    lost_at: Option<u64>,
    came: BTreeMap<(usize, u64), u64>,
    refused: BTreeMap<u64, u64>,
    last_commit: u64,
    figures: Figures,
}

/// Runs a fleet until the time that is watched is over.
pub fn run(fleet: Fleet, seed: u64) -> Figures {
    let mut run = Run::new(fleet, seed);
    run.settle();
    run.lose();
    let lost_at = run.now;
    let back = if run.fleet.loss == Loss::Killed { run.fleet.leaderless_ms } else { 5 * STEP_MS };
    while run.now < lost_at + WATCHED_MS {
        if run.leader.is_none() && run.now >= lost_at + back {
            run.lead(if run.fleet.coordinators > 1 { 1 } else { 0 });
        }
        run.step();
    }
    run.finish(lost_at)
}

/// What reaches the store in a second while nothing changes, in a cluster of three coordinators and so many workers and
/// routers: transactions, and sessions renewed.
pub fn steady(workers: usize, routers: usize) -> (f64, f64) {
    let shape = Shape { coordinators: 3, nodes: workers, routers, faulty: 0, calm: 0, ..Shape::FULL };
    let mut world = World::still(1, shape, None);
    world.begin();
    world.run_until(15 * SECOND);
    let before = world.store.asked;
    world.run_until(30 * SECOND);
    let after = world.store.asked;
    let rate = |before: u64, after: u64| (after - before) as f64 / 15.0;
    (rate(before.commits, after.commits), rate(before.sessions, after.sessions))
}

impl Run {
    fn new(fleet: Fleet, seed: u64) -> Run {
        let mut draw = Draw::new(seed);
        let mut store = Store::default();
        store.records.keyspaces.push(first_records(2 * fleet.workers));
        let callback_timeouts = CallbackTimeouts {
            load_ms: 60_000,
            callback_ms: 60_000,
            drain_ms: 1_000,
            retry_ms: 100,
            retry_max_ms: 1_000,
        };
        let client = |at: usize| Client {
            worker: (at < fleet.workers).then(|| Worker::new(node(at), callback_timeouts)),
            backoff: if at < fleet.workers {
                ReconnectBackoff::of_worker()
            } else {
                ReconnectBackoff::of_router()
            },
            draw: Draw::new(draw.bits()),
            at: None,
            next: 0,
            applied: 0,
            current: None,
            event: 0,
        };
        let clients: Vec<_> = (0..fleet.workers + fleet.routers).map(client).collect();
        let alive = vec![true; fleet.coordinators];
        let mut run = Run {
            now: 1_000,
            draw,
            store,
            due: BinaryHeap::new(),
            alive,
            leader: None,
            lost_at: None,
            came: BTreeMap::new(),
            refused: BTreeMap::new(),
            last_commit: 0,
            figures: Figures::default(),
            clients,
            fleet,
        };
        run.lead(0);
        for at in 0..run.clients.len() {
            // Routers listen to any of them; a worker finds the leader.
            run.clients[at].next = run.draw.index(run.fleet.coordinators);
            let after = run.draw.between(0, 2_000);
            run.again(at, after);
        }
        run
    }

    fn again(&mut self, at: usize, after_ms: u64) {
        let client = &mut self.clients[at];
        client.event += 1;
        self.due.push(Reverse((self.now + after_ms.max(1), at, client.event)));
    }

    fn moment(&self) -> Moment {
        Moment { now: Millis(self.now), wall_ms: self.now }
    }

    fn lead(&mut self, at: usize) {
        self.alive[at] = true;
        let (moment, records) = (self.moment(), self.store.records.clone());
        let cluster = Cluster::recover(moment, self.fleet.settings.clone(), records)
            .expect("what was committed recovers");
        let mut cache = WatchCache::new(Retention { diffs: 16, shards: 1_000, forgotten: 16 });
        cache.refresh(&cluster, moment.now);
        self.leader = Some(Leader { at, cluster, cache, wake: Millis(0) });
    }

    /// Until everything has its place, and nothing was committed for a while.
    fn settle(&mut self) {
        let quiet = |run: &Run| run.now > run.last_commit + 10_000;
        while !(quiet(self) && self.is_placed()) {
            assert!(self.now < SETTLES_MS, "nothing settles");
            self.step();
        }
    }

    fn is_placed(&self) -> bool {
        let maps = &self.store.records.keyspaces;
        maps.iter().flat_map(|(_, map)| map.shards()).all(|s| s.is_settled() && s.leader().is_some())
            && self.clients.iter().all(|client| client.at.is_some())
    }

    /// The leader is gone, and every line to it ends.
    fn lose(&mut self) {
        let Some(leader) = self.leader.take() else { return };
        self.alive[leader.at] = self.fleet.loss == Loss::Leaves;
        self.lost_at = Some(self.now);
        self.figures = Figures::default();
        // As they were told when the last of them had come.
        let listen = |client: &&Client| client.worker.is_none() && client.at == Some(leader.at);
        let routers = self.clients.iter().filter(listen).count();
        let spread_ms = reconnect::router_spread_ms(routers * self.fleet.stands_for);
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if client.at == Some(leader.at) {
                client.at = None;
                match &mut client.worker {
                    Some(worker) => worker.unanswered(),
                    None => client.backoff.set_spread(spread_ms),
                }
                self.rest(at);
            } else {
                // A router that has another coordinator.
                self.clients[at].current = Some(self.now);
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP_MS;
        let mut is_called = false;
        while let Some(Reverse((when, at, event))) = self.due.peek().copied() {
            if when > self.now {
                break;
            }
            self.due.pop();
            if self.clients[at].event == event {
                is_called = true;
                self.act(at);
            }
        }
        self.check_addresses();
        let now = Millis(self.now);
        if self.leader.as_ref().is_some_and(|leader| is_called || leader.wake <= now) {
            self.decide();
        }
    }

    fn check_addresses(&mut self) {
        let (moment, is_due) = (self.moment(), self.now.is_multiple_of(CHECKS_MS));
        if let Some(leader) = self.leader.as_mut().filter(|_| is_due) {
            for (id, incarnation, ..) in leader.cluster.checks_due(moment.now) {
                leader.cluster.checked_back(moment, &id, incarnation, true);
            }
        }
    }

    /// A client tries a coordinator, or beats.
    fn act(&mut self, at: usize) {
        match self.clients[at].at {
            Some(_) => self.beat(at),
            None => self.attempt(at),
        }
    }

    fn attempt(&mut self, at: usize) {
        let tried = self.clients[at].next;
        let is_worker = self.clients[at].worker.is_some();
        let leader = self.leader.as_ref().map(|leader| leader.at);
        if self.alive[tried] {
            self.comes(tried);
        }
        match leader {
            _ if !self.alive[tried] => self.in_vain(at),
            Some(leader) if leader == tried => self.arrives(at, leader),
            // Coordinators that stand by serve maps, too.
            _ if !is_worker => self.arrives(at, tried),
            // It is told which coordinator leads, and goes there.
            Some(leader) => {
                self.comes(leader);
                self.arrives(at, leader);
            }
            None => self.in_vain(at),
        }
    }

    fn comes(&mut self, coordinator: usize) {
        *self.came.entry((coordinator, self.now)).or_default() += u64::from(self.lost_at.is_some());
    }

    fn in_vain(&mut self, at: usize) {
        *self.refused.entry(self.now).or_default() += u64::from(self.lost_at.is_some());
        self.rest(at);
    }

    /// Rests, as the drivers do, before the next coordinator is tried.
    fn rest(&mut self, at: usize) {
        let coordinators = self.fleet.coordinators;
        let client = &mut self.clients[at];
        client.next = (client.next + 1) % coordinators;
        let lot = lot(&mut client.draw);
        let after = client.backoff.next_delay_ms(Millis(self.now), coordinators, lot);
        self.again(at, after);
    }

    fn arrives(&mut self, at: usize, coordinator: usize) {
        let moment = self.moment();
        let client = &mut self.clients[at];
        client.at = Some(coordinator);
        client.backoff.connected();
        let Some(worker) = &mut client.worker else {
            client.current = Some(self.now);
            return;
        };
        let Some(leader) = &mut self.leader else { return };
        let spec = NodeSpec::new(worker.node().clone(), format!("{}:1", worker.node()));
        let registration = worker.registration(spec);
        let welcome = leader.cluster.register(moment, registration).expect("nobody is refused");
        worker.welcomed(&welcome).expect("there is one cluster");
        self.again(at, STEP_MS);
    }

    fn beat(&mut self, at: usize) {
        let (moment, heartbeat_ms) = (self.moment(), self.fleet.settings.heartbeat_ms);
        let (Some(leader), client) = (&mut self.leader, &mut self.clients[at]) else { return };
        let Some(beat) = client.worker.as_mut().and_then(|worker| worker.beat(moment.now)) else {
            return self.again(at, STEP_MS);
        };
        client.applied = beat.applied;
        let orders = leader.cluster.beat(moment, beat).expect("a beat of a registered worker is answered");
        if let Some(lease) = orders.lease {
            let stands_for = self.fleet.stands_for;
            let scaled = reconnect::worker_spread_ms(self.fleet.workers * stands_for, lease.lease_ms);
            client.backoff.set_spread(if stands_for == 1 { lease.spread_ms } else { scaled });
        }
        let worker = client.worker.as_mut().expect("only workers beat");
        self.figures.lapses += u64::from(self.lost_at.is_some() && !worker.lease().holds(moment.now));
        let actions = worker.apply_orders(moment.now, orders);
        carry_out(worker, moment.now, actions);
        client.current = client.current.or(self.lost_at.map(|_| moment.now.0));
        let soon = worker.has_news();
        self.again(at, if soon { 2 * STEP_MS } else { heartbeat_ms });
    }

    /// Decides, makes it durable, and tells.
    fn decide(&mut self) {
        let moment = self.moment();
        loop {
            let name = transaction(&mut self.draw);
            let Some(leader) = &mut self.leader else { return };
            let mut told = leader.cluster.grant_before_commit(moment);
            leader.wake = leader.cluster.decide(moment, name);
            let outbox = leader.cluster.take_outbox();
            if !outbox.writes.is_empty() {
                self.last_commit = self.now;
            }
            if self.lost_at.is_some() {
                let dead = |write: &&Write| matches!(write, Write::Node(node) if node.ended);
                self.figures.deaths += outbox.writes.iter().filter(dead).count() as u64;
                self.figures.moves += outbox.maps.len() as u64;
            }
            let committed = self.store.commit(self.store.term, &outbox.writes);
            committed.expect("maps follow each other");
            leader.cache.publish(&leader.cluster, outbox.maps, moment.now);
            told.extend(outbox.changed_orders);
            let wake = leader.wake;
            told.iter().for_each(|id| self.tell(id));
            if wake > moment.now {
                return;
            }
        }
    }

    fn tell(&mut self, id: &NodeId) {
        let now = Millis(self.now);
        let number = id.as_str().trim_start_matches("node-").parse::<usize>();
        let at = number.expect("every node of a fleet has a number");
        let (Some(leader), client) = (&self.leader, &mut self.clients[at]) else { return };
        if client.at.is_none() {
            return;
        }
        let orders = leader.cluster.orders_since(id, client.applied, None);
        let (Some(orders), Some(worker)) = (orders, &mut client.worker) else { return };
        let actions = worker.apply_orders(now, orders);
        carry_out(worker, now, actions);
        if worker.has_news() {
            self.again(at, 2 * STEP_MS);
        }
    }

    fn finish(mut self, lost_at: u64) -> Figures {
        let latest = self.clients.iter().map(|client| client.current.unwrap_or(u64::MAX)).max();
        self.figures.current_ms = latest.map_or(0, |latest| latest.saturating_sub(lost_at));
        let stands_for = self.fleet.stands_for as u64;
        for coordinator in 0..self.fleet.coordinators {
            let came = self.came.iter().filter(|((at, _), _)| *at == coordinator);
            let peak = peak(came.map(|((_, when), count)| (*when, *count)));
            self.figures.peak_per_s = self.figures.peak_per_s.max(peak * stands_for);
        }
        self.figures.refused_peak_per_s = peak(self.refused.into_iter()) * stands_for;
        // What the new leader would send a router that has the map of before.
        let maps = &self.store.records.keyspaces;
        let has =
            |map: &ShardMap| -> (KeyspaceName, Generation) { (map.keyspace().clone(), map.generation()) };
        let leader = self.leader.as_ref().expect("somebody leads in the end");
        for (name, generation) in maps.iter().map(|(_, map)| has(map)) {
            assert_eq!(leader.cache.since(&name, Some(generation)), Since::Nothing);
        }
        self.figures
    }
}

/// The most within any second.
fn peak(counts: impl Iterator<Item = (u64, u64)>) -> u64 {
    let counts: Vec<_> = counts.collect();
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for (when, count) in &counts {
        sum += count;
        while counts[first].0 + 1_000 <= *when {
            sum -= counts[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

fn carry_out(worker: &mut Worker, now: Millis, actions: Vec<Action>) {
    let mut queue = actions;
    while let Some(Action { replica, task }) = queue.pop() {
        match task {
            Task::Call(callback) => queue.extend(worker.returned(now, &replica, callback, Ok(()))),
            Task::AwaitRequests | Task::CancelRequests => queue.extend(worker.requests_ended(now, &replica)),
            Task::Abandon(_) => {}
        }
    }
}

fn lot(draw: &mut Draw) -> f64 {
    draw.between(0, 1_000_001) as f64 / 1e6
}

fn transaction(draw: &mut Draw) -> TransactionId {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&draw.bits().to_be_bytes());
    TransactionId(bytes)
}

fn node(at: usize) -> NodeId {
    NodeId::new(&format!("node-{at}")).expect("a plain word is a name")
}

/// One exclusive keyspace, of which nothing is placed yet.
fn first_records(shards: usize) -> (KeyspaceRecord, ShardMap) {
    let name = KeyspaceName::new("fleet").expect("a plain word is a name");
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let keyspace = Keyspace {
        ownership: Ownership::Exclusive,
        replicas: 1,
        mode: Mode::Automatic,
        ..Keyspace::new(name.clone(), sharding)
    };
    let mut map = ShardMap::empty(name, sharding, keyspace.partition_key);
    let mut edit = map.edit();
    for range in presplit::even_hashes(shards).expect("that many ranges are within the limits") {
        edit.create_shard(Bounds::Hashes(range)).expect("that many shards are within the limits");
    }
    let diff = edit.commit(TransactionId::default());
    map.apply(&diff).expect("the diff was made from this map");
    (KeyspaceRecord::new(keyspace, 0, partage_core::base::id::ShardId(1)), map)
}
