//! A run: everything in its place, one event after the other, until it is over or something is wrong.
//!
//! Two parts, safety first: under faults nothing bad may happen; then faults stop, and good things have to
//! happen within a bound (L1–L3).

use crate::changes;
use crate::clock::{Clock, MS, SECOND, True};
use crate::coordinator::{Coordinator, Cost};
use crate::draw::Draw;
use crate::faults::{Kind, Mend};
use crate::feeds::FeedReaders;
use crate::lists::ListClients;
use crate::message::{Event, Message, Place};
use crate::model::{self, Cast, Deed, KEYS, KeyAt, Op};
use crate::node::{Mood, Node};
use crate::oracle::{Finding, Oracles, liveness};
use crate::report::{Report, Verdict};
use crate::router::Router;
use crate::scene::Scene;
use crate::shape::{self, Shape};
use crate::store::Store;
use crate::stuck::Stuck;
use crate::table::{self, RowDeed};
use crate::touched::OperatorStore;
use crate::trace::Trace;
use partage_core::base::id::{Epoch, ShardId};
use partage_core::base::name::NodeId;
use partage_core::base::settings::Settings;
use partage_core::keyspace::map::Access;
use partage_service::table::replication;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// In a run about leaders, before the first of them is in trouble: everything has its place by then.
const SETTLED: True = 20 * SECOND;

/// After faults have stopped a person waits for so long before they choose a copy of what still waits.
const PATIENCE: True = 20 * SECOND;

/// For so long nothing is committed at the end: longer than a plan and what it makes another keyspace do.
const QUIET: True = 15 * SECOND;

/// What was cold until faults stopped is merged long after that, one pair after another: nothing may follow for so long.
const AFTER_MERGE: True = 4 * QUIET;

/// How often something may follow all the same.
const LATE_MERGES: u32 = 2;

/// Seconds within which a move ends in which nodes are stuck: the time to let go, and two leases.
const STUCK_MOVES: u64 = 30;

/// A run: its places, and what is to happen at them.
#[derive(Debug)]
pub struct World {
    /// What all places share: time, chance, network, oracles.
    pub scene: Scene,
    /// The workers, by their positions.
    pub nodes: Vec<Node>,
    /// The coordinators, by their positions.
    pub coordinators: Vec<Coordinator>,
    routers: Vec<Router>,
    /// The store that all coordinators share.
    pub store: Store,
    kinds: Vec<Kind>,
    paused: BTreeMap<Place, True>,
    /// What it is made of.
    pub shape: Shape,
    /// Faults still come, and nothing has to be served in time.
    lively: bool,
    /// People ask for things that no run needs.
    asks: bool,
    /// A process on the network speaks for others.
    strangers: bool,
    /// A person is at hand, and answers what waits for one, also when faults have stopped.
    person: bool,
    /// Maps committed before the first fault, in a run about leaders.
    settled: Option<u64>,
    /// When a person last started a process again.
    started_again: True,
    /// What the people have that touch the coordination state.
    pub operator: OperatorStore,
    /// The clients that keep lists in a table.
    pub lists: ListClients,
    /// Those that read its changes.
    pub feeds: FeedReaders,
    /// What chance decides for the clients whose rows end.
    pub ending: Draw,
    ops: Op,
}

impl World {
    /// The run of `seed`.
    pub fn new(seed: u64, shape: Shape, words: Option<usize>) -> World {
        let mut draw = Draw::new(seed);
        let coordinators = if shape.leaders { 3 } else { 1 + draw.index(shape.coordinators) };
        let cast = Cast {
            replicas: draw.between(1, 4) as u32,
            carries: draw.chance(700),
            reshards: draw.chance(400) && !shape.leaders,
            is_hasty: shape.stuck,
            is_slow: draw.chance(250),
            slots: draw.chance(350),
            drafts: draw.chance(shape::DRAFTS) && !shape.leaders,
            durable: shape.durable,
            replicated: shape.replicated,
            // Drawn apart, so that the other runs stay what they were.
            partitions: Draw::new(!seed).chance(shape::PARTITIONS) && !shape.leaders && !shape.touched,
        };
        let settings = shape::settings(&mut draw, shape);
        let all = Kind::known(shape);
        let mut kinds = Kind::drawn(&mut draw, all);
        Kind::of_disks(&mut draw, shape, &mut kinds);
        let settles = if shape.leaders { SETTLED } else { 0 };
        let shape = Shape { coordinators, faulty: shape.faulty + settles, ..shape };
        let world = World::made(draw, shape, cast, settings, Trace::new(words));
        let lists = ListClients::new(seed);
        let (feeds, ending) = (FeedReaders::new(seed), Draw::new(!seed ^ 3));
        let mut world = World { kinds, lists, feeds, ending, asks: !shape.leaders, ..world };
        if shape.replicated {
            let mut draw = Draw::new(!seed ^ 4);
            world.nodes.iter_mut().for_each(|node| node.clock.skew(&mut draw));
        }
        world.strangers = Draw::new(!seed ^ 1).chance(shape::STRANGERS);
        let by_chance = shape.person != Some(true) && world.scene.draw.chance(shape::PERSON);
        // A person has touched the coordination state, and mends what the status names.
        world.person = shape.person.unwrap_or(by_chance) || shape.touched;
        let cost = Cost::drawn(&mut world.scene.draw);
        world.coordinators.iter_mut().for_each(|coordinator| coordinator.cost = cost);
        if shape.touched {
            world.begin_touches();
        }
        world
    }

    /// A run in which nothing happens by chance but delays and clocks: for scenarios that are interrupted on
    /// purpose.
    pub fn still(seed: u64, shape: Shape, words: Option<usize>) -> World {
        let cast = Cast {
            // Of a table more than must store a write (`min_in_sync`), and more than are left when one is killed.
            replicas: if shape.replicated { 3 } else { 2 },
            carries: true,
            reshards: false,
            slots: false,
            is_hasty: false,
            is_slow: false,
            drafts: false,
            durable: false,
            replicated: shape.replicated,
            partitions: false,
        };
        let settings = Settings {
            heartbeat_ms: 200,
            lease_ms: 1_000,
            dead_after_ms: 1_500,
            check_back_ms: 1_000,
            rebalance_ms: 60_000,
            ..Settings::default()
        };
        World::made(Draw::new(seed), shape, cast, settings, Trace::new(words))
    }

    fn made(mut draw: Draw, shape: Shape, cast: Cast, settings: Settings, trace: Trace) -> World {
        let spaces: Rc<[_]> = model::spaces(cast).into();
        let mut store = Store::default();
        let there = spaces.iter().filter(|space| !space.comes_and_goes);
        store.records.keyspaces = there.map(model::Space::first_records).collect();
        let oracles = Oracles::new(Rc::clone(&spaces), shape.nodes);
        let clock = |draw: &mut Draw| Clock::drawn(draw, 0);
        let coordinator = |at, draw: &mut Draw| Coordinator::new(at, settings.clone(), clock(draw));
        let coordinators = (0..shape.coordinators).map(|at| coordinator(at, &mut draw)).collect();
        let stuck =
            if shape.stuck { Stuck::drawn(&mut draw, shape.durable, shape.nodes) } else { Vec::new() };
        let node = |at: usize, draw: &mut Draw| {
            let by_posts = draw.chance(400);
            let stuck = stuck.get(at).copied().unwrap_or(Stuck::No);
            let mut node = Node::new(at, shape.coordinators, by_posts, clock(draw));
            node.stuck = stuck;
            node
        };
        let nodes = (0..shape.nodes).map(|at| node(at, &mut draw)).collect();
        let router = |at, draw: &mut Draw| Router::new(at, shape.coordinators, clock(draw));
        let routers = (0..shape.routers).map(|at| router(at, &mut draw)).collect();
        let mut scene = Scene::new(draw, trace, oracles);
        if cast.reshards {
            scene.after(0, Event::Heat);
        }
        World {
            scene,
            nodes,
            coordinators,
            routers,
            store,
            kinds: Vec::new(),
            paused: BTreeMap::new(),
            shape,
            lively: true,
            asks: false,
            strangers: false,
            person: false,
            settled: None,
            started_again: 0,
            operator: OperatorStore::default(),
            lists: ListClients::new(0),
            feeds: FeedReaders::new(0),
            ending: Draw::new(0),
            ops: 0,
        }
    }

    /// The places of all coordinators, workers and routers.
    pub fn places(&self) -> Vec<Place> {
        let coordinators = (0..self.coordinators.len()).map(Place::Coordinator);
        let nodes = (0..self.nodes.len()).map(Place::Node);
        coordinators.chain(nodes).chain((0..self.routers.len()).map(Place::Router)).collect()
    }

    /// Runs to the end, or to the first thing that is wrong.
    pub fn run(mut self, seed: u64) -> Report {
        self.begin();
        self.run_until(self.shape.faulty);
        self.calm();
        let quiet_from = (self.shape.faulty + self.shape.calm).saturating_sub(QUIET);
        self.run_until(quiet_from);
        let mut commits = self.scene.oracles.maps.commits;
        self.run_until(self.shape.faulty + self.shape.calm);
        for _ in 0..LATE_MERGES {
            if self.shape.stuck || self.scene.oracles.maps.commits == commits {
                break;
            }
            commits = self.scene.oracles.maps.commits;
            self.run_until(self.scene.now + AFTER_MERGE);
        }
        self.let_moves_end();
        if self.scene.violation.is_none() {
            self.judge_liveness(commits, quiet_from);
        }
        let tally = self.scene.oracles.data.tally;
        if self.scene.violation.is_none() {
            self.try_tables();
        }
        let scene = self.scene;
        let verdict = match scene.violation {
            Some(violation) => Verdict::Failed(violation),
            None if tally.done * 2 < tally.begun => Verdict::Unknown,
            None => Verdict::Passed,
        };
        Report {
            seed,
            verdict,
            hash: scene.trace.hash(),
            events: scene.trace.events(),
            simulated: scene.now,
            commits: scene.oracles.maps.commits,
            operations: (tally.begun, tally.done),
            exercised: scene.exercised,
            words: scene.trace.words().cloned().collect(),
        }
    }

    /// Starts every process, and has the first operations and changes come.
    pub fn begin(&mut self) {
        let scene = &mut self.scene;
        for coordinator in &mut self.coordinators {
            coordinator.start(scene);
        }
        for node in &mut self.nodes {
            node.start(scene);
        }
        for router in &mut self.routers {
            router.wake(scene);
        }
        scene.after(200 * MS, Event::Change);
        scene.after(SECOND, Event::Operate);
        if self.shape.replicated {
            self.lists.begin(scene);
            self.feeds.begin(scene);
            scene.after(SECOND, Event::OperateOnEnding);
        }
        let first = if self.shape.leaders { SETTLED } else { 2 * SECOND };
        scene.after(first, Event::Fault);
    }

    /// Runs on to `end`, or to the first thing that is wrong.
    pub fn run_until(&mut self, end: True) {
        while self.scene.violation.is_none() && self.scene.now < end && self.step() {}
    }

    /// The next thing that happens, if there is any.
    pub fn step(&mut self) -> bool {
        let event = self.scene.advance();
        let Some(event) = event else { return false };
        self.happen(event);
        self.watch_hand_overs();
        let stale = self.nodes.iter().find_map(|node| node.reads_stale(&self.scene));
        stale.into_iter().for_each(|text| self.scene.violate("D2", text));
        true
    }

    /// Faults stop, and what they have broken is mended.
    fn calm(&mut self) {
        self.lively = false;
        self.scene.network.heal();
        self.scene.trace.event(self.scene.now, (50u8,), || "faults stop".to_owned());
        for at in 0..self.coordinators.len() {
            for mend in [Mend::Store(at), Mend::Disk(at), Mend::Coordinator(at)] {
                self.mend(mend);
            }
        }
        self.mend(Mend::Back(true));
        self.scene.poison.clear();
        self.scene.unloadable.clear();
        for node in 0..self.nodes.len() {
            self.nodes[node].mood = Mood::FAIR;
            self.nodes[node].strays = 0;
            self.nodes[node].slow.end(self.scene.now);
            self.mend(Mend::Start(node));
        }
    }

    /// What cannot be loaded on a node that is stuck is tried there again each minute, and then moved on: at any one
    /// moment a move may be on its way, or what it leaves behind.
    fn let_moves_end(&mut self) {
        for _ in 0..STUCK_MOVES {
            if !self.shape.stuck || self.scene.violation.is_some() || self.has_ended() {
                return;
            }
            self.run_until(self.scene.now + SECOND);
        }
    }

    /// Whether faults still come.
    pub fn is_lively(&self) -> bool {
        self.lively
    }

    /// Whether nothing is on its way, and nothing is held that no map names.
    fn has_ended(&self) -> bool {
        self.unfinished().is_empty() && self.leaks().is_empty()
    }

    /// What healthy workers hold and no map names (L7).
    pub fn leaks(&self) -> Vec<Finding> {
        let healthy = self.nodes.iter().filter(|node| node.stuck == Stuck::No);
        healthy.flat_map(|node| liveness::leaks(&self.scene.oracles, node, &self.stuck())).collect()
    }

    /// The workers that do not get on, for ever.
    fn stuck(&self) -> BTreeSet<&NodeId> {
        self.nodes.iter().filter(|node| node.stuck != Stuck::No).map(|node| &node.id).collect()
    }

    /// What is still not as it should be (L1, L3).
    pub fn unfinished(&self) -> Vec<Finding> {
        let oracles = &self.scene.oracles;
        let (now, stuck) = (self.scene.now, self.stuck());
        let loops = self.scene.exercised.get("crash loops").copied().unwrap_or(0);
        let people = (self.person, liveness::blamed_by_chance(loops as usize));
        let mut findings = liveness::owned(oracles, &self.scene.bad, now, &stuck, people);
        findings.extend(liveness::informed(oracles, self.scene.now, &self.routers));
        findings
    }

    /// Shards of tables of which not every member is in sync, or whose leader does not serve (L1).
    pub fn unserved_tables(&self) -> Vec<Finding> {
        let oracles = &self.scene.oracles;
        let tables = oracles.maps.all().filter(|map| {
            oracles.spaces.iter().any(|space| space.is_replicated() && space.keyspace.name == *map.keyspace())
        });
        let unserved = tables.flat_map(|map| table::unserved(map, &self.nodes, &oracles.storage.tables));
        unserved.map(|text| ("L1", text)).collect()
    }

    fn judge_liveness(&mut self, commits: u64, quiet_from: True) {
        let mut findings = self.unfinished();
        let oracles = &self.scene.oracles;
        // A worker that is stuck is tried again now and then, while others serve.
        let is_stuck = self.shape.stuck;
        findings.extend(match is_stuck {
            true => liveness::nearly_quiet(oracles, commits, self.scene.now - quiet_from),
            false => liveness::quiet(oracles, commits),
        });
        findings.extend(oracles.at_the_end());
        findings.extend(self.unserved_tables());
        findings.extend(self.leaks());
        findings.extend(self.settled.iter().flat_map(|before| liveness::unnoticed(oracles, *before)));
        let (now, mut drains, mut hung) = (self.scene.now, Vec::new(), BTreeMap::new());
        for coordinator in &mut self.coordinators {
            let at = coordinator.clock.moment(now);
            let Some(cluster) = coordinator.known(now) else { continue };
            drains.extend(cluster.drains(at));
            hung.extend(cluster.status(at).hung);
        }
        findings.extend(liveness::drained(&self.scene.oracles, &drains, is_stuck));
        findings.extend(liveness::told(&self.scene.oracles, now, &self.stuck(), &hung));
        findings.into_iter().for_each(|(invariant, text)| self.scene.violate(invariant, text));
    }

    /// Stands still for `long`.
    pub fn pause(&mut self, place: Place, long: True) {
        let now = self.scene.now;
        let held = self.paused.entry(place).or_default();
        let more = (now + long).saturating_sub(now.max(*held));
        *held = (now + long).max(*held);
        if let Place::Node(node) = place {
            self.scene.oracles.storage.disks.asleep.insert(node, *held);
        }
        *self.scene.stood_still.entry(place).or_default() += more;
        self.scene.trace.event(self.scene.now, (42u8, place, long), || {
            format!("{place:?} stands still for {} ms", long / MS)
        });
    }

    /// A worker starts, unless it runs.
    pub fn start_node(&mut self, node: usize) {
        if self.nodes[node].is_down() {
            self.paused.remove(&Place::Node(node));
            self.nodes[node].start(&mut self.scene);
        }
    }

    /// A coordinator starts, unless it runs.
    pub fn start_coordinator(&mut self, at: usize) {
        if !self.coordinators[at].up {
            self.paused.remove(&Place::Coordinator(at));
            self.coordinators[at].start(&mut self.scene);
        }
    }

    /// What workers own is to be looked at anew.
    pub fn look_again(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.clock_changed(node));
    }

    /// What depends on a worker's clock is to be looked at anew.
    pub fn clock_changed(&mut self, node: usize) {
        let actions = Vec::new();
        self.nodes[node].carry_out(&mut self.scene, actions);
    }

    /// Where an event happens and in which process, when that matters.
    fn stage(event: &Event) -> Option<(Place, Option<u32>)> {
        Some(match event {
            Event::Deliver(_, to, ..) | Event::Closed(to, _) => (*to, None),
            Event::Wake(place, process, _) => (*place, Some(*process)),
            Event::CallbackEnds { node, process, .. }
            | Event::Worked { node, process, .. }
            | Event::StorageAnswers { node, process, .. }
            | Event::Poisoned { node, process }
            | Event::TableSynced { node, process, .. }
            | Event::TableWake { node, process, .. }
            | Event::Evicted { node, process, .. }
            | Event::Tenure { node, process, .. }
            | Event::HeldAgain { node, process, .. } => (Place::Node(*node), Some(*process)),
            Event::Decided { coordinator, process, .. }
            | Event::Committed { coordinator, process, .. }
            | Event::Listens { coordinator, process, .. }
            | Event::FellBehind { coordinator, process }
            | Event::Attended { coordinator, process, .. }
            | Event::SessionAsked { coordinator, process } => {
                (Place::Coordinator(*coordinator), Some(*process))
            }
            _ => return None,
        })
    }

    fn runs(&self, place: Place, process: Option<u32>) -> bool {
        match place {
            Place::Coordinator(at) => {
                let coordinator = &self.coordinators[at];
                coordinator.up && process.is_none_or(|process| process == coordinator.process)
            }
            Place::Node(at) => {
                let node = &self.nodes[at];
                !node.is_down() && process.is_none_or(|process| process == node.process_number)
            }
            Place::Router(_) => true,
        }
    }

    /// What happens now, unless its process is gone, or stands still or is slow and comes to it later.
    fn come_to(&mut self, event: Event) -> Option<Event> {
        let (event, is_late) = match event {
            Event::Late(event) => (*event, true),
            event => (event, false),
        };
        let Some((place, process)) = World::stage(&event) else { return Some(event) };
        if !self.runs(place, process) {
            return None;
        }
        if let Some(until) = self.paused.get(&place).copied() {
            if until > self.scene.now {
                let event = if is_late { Event::Late(Box::new(event)) } else { event };
                self.scene.at(until, event);
                return None;
            }
            self.paused.remove(&place);
        }
        if let Place::Node(at) = place
            && !is_late
        {
            let begins = self.nodes[at].slow.comes_to(&mut self.scene.draw, self.scene.now);
            if begins > self.scene.now {
                self.scene.at(begins, Event::Late(Box::new(event)));
                return None;
            }
        }
        Some(event)
    }

    fn happen(&mut self, event: Event) {
        let Some(event) = self.come_to(event) else { return };
        let scene = &mut self.scene;
        match event {
            Event::Deliver(from, to, via, message) => self.deliver(from, to, via, *message),
            Event::Closed(place, stream) => match place {
                Place::Coordinator(at) => self.coordinators[at].closed(stream),
                Place::Node(at) => self.nodes[at].closed(scene, stream),
                Place::Router(at) => self.routers[at].closed(stream),
            },
            Event::Wake(place, _, timer) => match place {
                Place::Coordinator(at) => self.coordinators[at].wake(scene, timer),
                Place::Node(at) => self.nodes[at].wake(scene, timer),
                Place::Router(at) => self.routers[at].wake(scene),
            },
            Event::CallbackEnds { node, replica, callback, call, .. } => {
                self.nodes[node].callback_ends(scene, &replica, callback, call);
            }
            Event::Poisoned { node, .. } => {
                self.nodes[node].crash(scene);
                // In a run that is still, no supervisor starts it again before the shard was found out.
                let down = if self.asks { scene.draw.between(50 * MS, 8 * SECOND) } else { 100 * SECOND };
                scene.after(down, Event::Mend(Mend::Start(node)));
            }
            Event::Heat if self.lively => {
                scene.heat.turn(&mut scene.draw, scene.oracles.spaces.len());
                let next = scene.draw.between(2 * SECOND, 12 * SECOND);
                scene.after(next, Event::Heat);
            }
            Event::Heat | Event::Late(_) => {}
            event @ (Event::Worked { .. }
            | Event::StorageWrite { .. }
            | Event::StorageAnswers { .. }
            | Event::HeldAgain { .. }
            | Event::Evicted { .. }
            | Event::Tenure { .. }
            | Event::TableSynced { .. }
            | Event::TableBaseStored { .. }
            | Event::TableWake { .. }) => self.serve(event),
            event @ (Event::Decided { .. }
            | Event::Commits { .. }
            | Event::Committed { .. }
            | Event::Listens { .. }
            | Event::FellBehind { .. }
            | Event::SessionAsked { .. }
            | Event::Attends { .. }
            | Event::Attended { .. }) => self.coordinate(event),
            Event::TryAgain { router, op, attempt } => {
                self.routers[router].try_again(scene, op, attempt, false);
            }
            Event::Rested { router, op, attempt } => {
                self.routers[router].try_again(scene, op, attempt, true);
            }
            Event::Operate => self.operate(),
            Event::OperateOnEnding => self.operate_on_ending(),
            Event::ListClient(client) => self.list_client(client),
            Event::FeedReader(reader) => self.feed_reader(reader),
            Event::Change => self.change(),
            Event::Fault => self.next_fault(),
            Event::Touch => self.touch(),
            Event::Mend(mend) => self.mend(mend),
        }
    }

    /// Something in the service of a worker.
    fn serve(&mut self, event: Event) {
        let scene = &mut self.scene;
        match event {
            Event::Worked { node, op, attempt, .. } => self.nodes[node].worked(scene, op, attempt),
            Event::StorageWrite { node, process, op, attempt, key, shard, epoch, deed } => {
                self.store_write((node, process), (op, attempt), key, (shard, epoch), deed);
            }
            Event::StorageAnswers { node, op, attempt, seen, .. } => {
                self.nodes[node].storage_answers(scene, op, attempt, seen);
            }
            Event::HeldAgain { node, request, .. } => self.nodes[node].request(scene, *request),
            Event::Evicted { node, op, attempt, .. } => self.nodes[node].evicted(scene, op, attempt),
            Event::Tenure { node, permit, key, owners, .. } => {
                self.nodes[node].tenure(scene, &permit, key, owners);
            }
            Event::TableSynced { node, replica, writes, .. } => {
                self.nodes[node].table_synced(scene, &replica, writes);
            }
            Event::TableWake { node, replica, .. } => self.nodes[node].table_wakes(scene, &replica),
            Event::TableBaseStored { node, replica, base, .. } => {
                self.nodes[node].base_stored(scene, &replica, *base);
            }
            _ => {}
        }
    }

    /// Something between a coordinator and the store. What reaches the store does so also when its sender stands
    /// still.
    fn coordinate(&mut self, event: Event) {
        let (scene, store) = (&mut self.scene, &mut self.store);
        match event {
            Event::Commits { coordinator, process, number }
                if self.coordinators[coordinator].process == process =>
            {
                self.coordinators[coordinator].commits(scene, store, number);
            }
            Event::Decided { coordinator, number, .. } => {
                self.coordinators[coordinator].decided(scene, store, number);
            }
            Event::FellBehind { coordinator, .. } => self.coordinators[coordinator].fell_behind(scene, store),
            Event::Listens { coordinator, number, .. } => {
                self.coordinators[coordinator].listens(scene, number);
            }
            Event::Committed { coordinator, number, .. } => {
                self.coordinators[coordinator].committed(scene, store, number);
                self.watch_splits();
            }
            Event::SessionAsked { coordinator, .. } => {
                self.coordinators[coordinator].session_asked(scene, store);
            }
            Event::Attends { coordinator, process, question }
                if self.coordinators[coordinator].process == process =>
            {
                self.coordinators[coordinator].attends(scene, store, question);
            }
            Event::Attended { coordinator, question, attended, .. } => {
                self.coordinators[coordinator].attended(scene, store, question, attended);
            }
            _ => {}
        }
    }

    /// A write reaches what it is stored in; in a durable keyspace a read does, too.
    fn store_write(
        &mut self,
        (node, process): (usize, u32),
        (op, attempt): (Op, u32),
        key: KeyAt,
        (shard, epoch): (ShardId, Epoch),
        deed: Option<Deed>,
    ) {
        let scene = &mut self.scene;
        if scene.oracles.spaces[key.keyspace].keyspace.durable {
            // A process that stands still goes on with it later (seed 3169: the request never ended).
            let until = self.paused.get(&Place::Node(node)).copied().filter(|until| *until > scene.now);
            if let Some(until) = until {
                let later = Event::StorageWrite { node, process, op, attempt, key, shard, epoch, deed };
                scene.at(until, later);
            } else if self.runs(Place::Node(node), Some(process)) {
                self.nodes[node].replicate(&mut self.scene, op, attempt, (key, deed));
            }
            return;
        }
        let Some(deed) = deed else { return };
        let seen = scene.oracles.storage.write(key, shard, epoch, op, deed);
        let way = scene.draw.around(300);
        scene.after(way, Event::StorageAnswers { node, process, op, attempt, seen });
    }

    fn deliver(&mut self, from: Place, to: Place, via: crate::message::Via, message: Message) {
        let scene = &mut self.scene;
        match (to, message) {
            (Place::Node(at), Message::Request(request)) => self.nodes[at].request(scene, request),
            (Place::Node(at), Message::Table(to, from, message)) => {
                let heard = replication::Event::Message(from, message);
                self.nodes[at].table_hears(scene, &to, heard);
                self.nodes[at].tick(scene);
            }
            (Place::Node(at), Message::TableSnapshot(to, snapshot)) => {
                self.nodes[at].install_table(scene, &to, *snapshot);
            }
            (Place::Node(at), Message::TableAsked(asked)) => self.nodes[at].give_table(scene, from, *asked),
            (Place::Node(at), Message::TableBasePart(part)) => self.nodes[at].take_base_part(scene, *part),
            (Place::Node(at), message) => self.nodes[at].deliver(scene, from, via, message),
            (Place::Coordinator(at), message) => self.coordinators[at].deliver(scene, from, via, message),
            (Place::Router(at), message) => self.routers[at].deliver(scene, from, via, message),
        }
    }

    fn operate(&mut self) {
        let scene = &mut self.scene;
        self.ops += 1;
        let op = self.ops;
        let is_there = |at: &usize| scene.oracles.exists(*at);
        let there: Vec<usize> = (0..scene.oracles.spaces.len()).filter(is_there).collect();
        let keyspace = there[scene.draw.index(there.len())];
        let key = KeyAt { keyspace, key: scene.draw.index(KEYS) };
        let router = scene.draw.index(self.routers.len());
        let (access, deed) = match scene.draw.index(10) {
            0..3 => (Access::Write, Some(Deed::Put)),
            3 => (Access::Write, Some(Deed::Delete)),
            4..8 => (Access::Write, None),
            _ => (Access::Read, None),
        };
        self.routers[router].operate(scene, op, key, access, deed);
        let next = scene.draw.between(MS, if self.lively { 40 * MS } else { 400 * MS });
        scene.after(next, Event::Operate);
    }

    /// The number of the next operation.
    pub fn next_op(&mut self) -> Op {
        self.ops += 1;
        self.ops
    }

    /// A client does something with the row beside a register.
    pub fn operate_on_row(&mut self, op: Op, key: KeyAt, access: Access, row: RowDeed) {
        let router = self.scene.draw.index(self.routers.len());
        self.routers[router].operate_on_row(&mut self.scene, op, key, access, row);
    }

    /// A client puts a value, through a router that chance picks.
    pub fn write_to(&mut self, key: KeyAt) {
        self.ops += 1;
        let router = self.scene.draw.index(self.routers.len());
        self.routers[router].operate(&mut self.scene, self.ops, key, Access::Write, Some(Deed::Put));
    }

    fn change(&mut self) {
        let scene = &mut self.scene;
        let next = scene.draw.between(50 * MS, 800 * MS);
        scene.after(next, Event::Change);
        let mut hung = Vec::new();
        for coordinator in &mut self.coordinators {
            if self.paused.get(&coordinator.place()).is_some_and(|until| *until > scene.now) {
                continue;
            }
            let at = coordinator.clock.moment(scene.now);
            if let Some(cluster) =
                coordinator.cluster(scene.now).filter(|_| self.asks && !scene.oracles.is_aside)
            {
                if self.person {
                    changes::answer(scene, cluster, at, !self.lively);
                }
                if self.lively {
                    changes::ask(scene, cluster, at, self.operator.snapshot.is_none());
                } else if !self.lively && self.shape.touched && scene.now >= self.shape.faulty + PATIENCE {
                    hung = changes::choose_copies(scene, cluster, at);
                }
                coordinator.drive(scene);
            }
        }
        self.start_again(&hung);
    }

    /// A person starts processes again, one at a time, and waits for what comes of it.
    fn start_again(&mut self, hung: &[NodeId]) {
        let is_due = self.scene.now >= self.started_again + PATIENCE;
        let Some(at) = self.nodes.iter().position(|node| is_due && hung.contains(&node.id)) else { return };
        if !self.nodes[at].is_down() {
            self.started_again = self.scene.now;
            self.nodes[at].crash(&mut self.scene);
            self.scene.after(100 * MS, Event::Mend(Mend::Start(at)));
        }
    }

    fn next_fault(&mut self) {
        if !self.lively {
            return;
        }
        let most = if self.shape.leaders { 8 * SECOND } else { 2 * SECOND };
        let next = self.scene.draw.between(50 * MS, most);
        self.scene.after(next, Event::Fault);
        if self.shape.leaders && self.settled.is_none() {
            self.settled = Some(self.scene.oracles.maps.commits);
            self.scene.oracles.data.must_serve = true;
        }
        if let Some(kind) = self.scene.draw.pick(&self.kinds).copied() {
            self.fault(kind);
        }
        if self.strangers {
            let node = self.scene.draw.index(self.nodes.len());
            self.forge(node);
        }
    }
}
