//! A router, with clients behind it: the driver around core's [`RouteTable`], [`choose`] and [`Attempts`], as
//! `crates/router` is, on simulated time.
//!
//! It keeps maps by what is pushed, sends each operation to the node that has its key, and asks again by the same
//! rules and from the same retry budget. An answer that does not come in time is a connection that broke.

use crate::clock::{Clock, MS, SECOND, True};
use crate::coordinator::node_at;
use crate::message::{Event, Message, Outcome, Place, Publication, Request, Response, Via};
use crate::model::{Deed, KeyAt, Op};
use crate::oracle::lists;
use crate::scene::Scene;
use crate::table::{RowDeed, RowSeen};
use partage_core::base::id::{Generation, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::time::Millis;
use partage_core::keyspace::map::{Access, Replica, Shard, ShardMap};
use partage_core::routing::budget::{Budget, BudgetPolicy};
use partage_core::routing::choose::{self, Hint, HintedNode, Preference};
use partage_core::routing::retry::{self, Action, Attempts, RequestTraits, RetryPolicy};
use partage_core::routing::routes::Routes;
use partage_core::routing::table::{RouteTable, TableError};
use std::collections::BTreeMap;

/// How long a try waits for its answer: routers differ.
const ANSWERS: [True; 2] = [SECOND, 4 * SECOND];

/// Silence after which the subscription is made anew.
const SILENCE: True = 3 * SECOND;

/// An operation under way.
#[derive(Debug)]
struct UnderWay {
    key: KeyAt,
    access: Access,
    deed: Option<Deed>,
    /// It is about the row beside the register.
    row: Option<RowDeed>,
    attempts: Attempts,
    /// Counts tries and rests, so that what belongs to an earlier one is known as late.
    turn: u32,
    /// Numbers of the nodes that were asked and failed.
    asked: Vec<u32>,
    /// The number of the node that was asked last.
    last: Option<u32>,
    hint: Option<HintedNode>,
}

/// A router, with the operations that its clients have under way.
#[derive(Debug)]
pub struct Router {
    /// Its position among the routers of the run.
    pub at: usize,
    /// The clock by which it waits and gives up.
    pub clock: Clock,
    table: RouteTable,
    routes: Routes,
    policy: RetryPolicy,
    budget: Budget,
    /// When nodes, by their numbers, last failed.
    failed: BTreeMap<u32, Millis>,
    stream: Option<u64>,
    heard: True,
    coordinator: usize,
    coordinators: usize,
    ops: BTreeMap<Op, UnderWay>,
}

/// A coordinator lags behind what a router has.
struct Behind;

impl Router {
    /// A router that knows nothing yet.
    pub fn new(at: usize, coordinators: usize, clock: Clock) -> Router {
        let table = RouteTable::default();
        Router {
            at,
            clock,
            routes: table.routes(),
            table,
            policy: RetryPolicy::default(),
            budget: Budget::new(BudgetPolicy::default()),
            failed: BTreeMap::new(),
            stream: None,
            heard: 0,
            coordinator: at % coordinators,
            coordinators,
            ops: BTreeMap::new(),
        }
    }

    /// Its place in the network.
    pub fn place(&self) -> Place {
        Place::Router(self.at)
    }

    /// The map that it has.
    pub fn map(&self, name: &KeyspaceName) -> Option<&ShardMap> {
        self.table.map(name)
    }

    /// A shard of a map whose leader acts, and to which this router sends no writes, as it does not know where that one is.
    pub fn lacks_leader(&self, map: &ShardMap, acts: impl Fn(&Replica) -> bool) -> Option<String> {
        let routes = self.routes.keyspace(map.keyspace().as_str())?;
        let lacks = |shard: ShardId| {
            let leader = map.shard(shard).and_then(Shard::leader).filter(|leader| acts(leader))?;
            let (at, keyspace, node) = (self.at, map.keyspace(), &leader.node);
            Some(format!("router {at} does not know where {node} is, which leads {shard} of {keyspace}"))
        };
        let mut without = self.routes.routes_of(routes).filter(|route| route.leader().is_none());
        without.find_map(|route| lacks(route.shard()))
    }

    /// Keeps its subscription alive.
    pub fn wake(&mut self, scene: &mut Scene) {
        if self.stream.is_none() || scene.now >= self.heard + SILENCE {
            self.subscribe(scene);
        }
        let again = scene.draw.between(200 * MS, 400 * MS);
        scene.after(again, Event::Wake(self.place(), 0, 0));
    }

    fn subscribe(&mut self, scene: &mut Scene) {
        if let Some(stream) = self.stream.take() {
            scene.close(stream, self.place());
            self.coordinator = (self.coordinator + 1) % self.coordinators;
        }
        let to = Place::Coordinator(self.coordinator);
        let stream = scene.network.open(self.place(), to);
        self.stream = Some(stream);
        self.heard = scene.now;
        let known = Message::Subscribe(self.table.known());
        scene.send(self.place(), to, Via::Stream(stream), known);
    }

    /// A connection is gone.
    pub fn closed(&mut self, stream: u64) {
        if self.stream == Some(stream) {
            self.stream = None;
            self.coordinator = (self.coordinator + 1) % self.coordinators;
        }
    }

    /// A message has come.
    pub fn deliver(&mut self, scene: &mut Scene, from: Place, via: Via, message: Message) {
        match message {
            Message::Publication(publication) if self.stream.map(Via::Stream) == Some(via) => {
                self.heard = scene.now;
                match self.published(scene, publication) {
                    Ok(taken) => {
                        taken.into_iter().for_each(|taken| scene.send(self.place(), from, via, taken))
                    }
                    Err(Behind) => self.leave(scene, via),
                }
            }
            Message::Deleted(name, horizon) if self.stream.map(Via::Stream) == Some(via) => {
                self.heard = scene.now;
                self.deleted(scene, &name, horizon);
            }
            Message::Response(response) => self.answered(scene, response),
            _ => {}
        }
    }

    /// It is behind us: another may have more.
    fn leave(&mut self, scene: &mut Scene, via: Via) {
        if let Via::Stream(stream) = via {
            scene.close(stream, self.place());
            self.closed(stream);
        }
    }

    /// W1–W4, M2, M3: what is pushed follows what is there, or says that it does not, never goes back, and is
    /// what was committed. Says what was taken of maps; addresses alone are not answered.
    fn published(&mut self, scene: &mut Scene, publication: Publication) -> Result<Option<Message>, Behind> {
        let Publication { brief, diffs, resync, nodes } = publication;
        let is_of_maps = !diffs.is_empty();
        self.table.hear_of_nodes(nodes.changed, &nodes.forgotten);
        let name = brief.name.clone();
        for diff in diffs {
            let (router, at) = (self.at, self.map(&name).map(ShardMap::generation));
            let life = self.table.brief(&name).map(|brief| brief.first_shard);
            scene.trace.event(scene.now, (20u8, router, diff.to.sequence), || {
                format!("router {router} is sent {name} {} from {}, resync {resync}", diff.to, diff.from)
            });
            match self.table.change(Some(brief.clone()), resync, &diff) {
                Ok(_) => self.is_committed(scene, &name),
                Err(TableError::Back { .. }) => return Err(Behind),
                Err(error) => scene.violate("W4", format!("router {router}: {error}")),
            }
            let now = self.map(&name).map(ShardMap::generation);
            let is_same = life == self.table.brief(&name).map(|brief| brief.first_shard);
            if is_same && now.map(|now| now.sequence) < at.map(|at| at.sequence) {
                scene.violate("M2", format!("router {router} has {name} {now:?} after {at:?}"));
            }
        }
        self.routes = self.table.routes();
        let map = self.map(&name).filter(|_| is_of_maps);
        Ok(map.map(|map| Message::Taken(name.clone(), map.generation())))
    }

    /// M2, D11: what a router is told to forget is gone.
    fn deleted(&mut self, scene: &mut Scene, name: &KeyspaceName, horizon: ShardId) {
        let (router, held) = (self.at, self.table.brief(name).map(|brief| brief.first_shard));
        scene
            .trace
            .event(scene.now, (23u8, router), || format!("router {router} is told that {name} is gone"));
        let there = scene.oracles.maps.first_shard(name);
        if self.table.delete(name, horizon) && held == there {
            scene.violate("M2", format!("router {router} is told that {name} is gone, and it is there"));
        }
        self.routes = self.table.routes();
    }

    fn is_committed(&self, scene: &mut Scene, name: &KeyspaceName) {
        let (Some(held), Some(latest)) = (self.map(name), scene.oracles.maps.latest(name)) else { return };
        let (at, router): (Generation, usize) = (held.generation(), self.at);
        if latest.generation() == at && latest.whole() != held.whole() {
            scene.violate("W3", format!("router {router} has another {name} {at}"));
        } else if !scene.oracles.maps.was_committed(name, at) {
            scene.violate("M3", format!("router {router} is sent {name} {at}, never committed"));
        }
    }

    /// A client begins an operation.
    pub fn operate(&mut self, scene: &mut Scene, op: Op, key: KeyAt, access: Access, deed: Option<Deed>) {
        let life = scene.oracles.storage.life(key);
        scene.oracles.data.begins(op, key, life, deed);
        // Writes to tables have request ids.
        let idempotent = deed.is_none() || scene.oracles.spaces[key.keyspace].is_replicated();
        self.begin(scene, op, (key, access), (deed, None), idempotent);
    }

    /// The same, about the row beside the register of a key of a table. The oracle of rows knows of it.
    pub fn operate_on_row(&mut self, scene: &mut Scene, op: Op, key: KeyAt, access: Access, row: RowDeed) {
        self.begin(scene, op, (key, access), (None, Some(row)), true);
    }

    fn begin(
        &mut self,
        scene: &mut Scene,
        op: Op,
        (key, access): (KeyAt, Access),
        (deed, row): (Option<Deed>, Option<RowDeed>),
        idempotent: bool,
    ) {
        self.budget.earn(1);
        let traits = RequestTraits { idempotent, hedged: false, replayable: true };
        let now = self.clock.read(scene.now);
        let attempts = Attempts::begin(now, &self.policy, traits, scene.draw.bits());
        let (asked, last, hint) = (Vec::new(), None, None);
        self.ops.insert(op, UnderWay { key, access, deed, row, attempts, turn: 0, asked, last, hint });
        self.act(scene, op, Action::Ask);
    }

    /// The next step of an operation.
    fn step(&mut self, scene: &mut Scene, op: Op, event: retry::Event) {
        let now = self.clock.read(scene.now);
        let Some(under_way) = self.ops.get_mut(&op) else { return };
        let event = if now >= under_way.attempts.deadline() { retry::Event::Late } else { event };
        let action = under_way.attempts.step(now, event, &self.policy, &mut self.budget);
        self.act(scene, op, action);
    }

    fn act(&mut self, scene: &mut Scene, op: Op, action: Action) {
        let Some(under_way) = self.ops.get_mut(&op) else { return };
        under_way.turn += 1;
        let (router, turn) = (self.at, under_way.turn);
        match action {
            Action::Ask | Action::AskHinted | Action::Hedge => self.ask(scene, op),
            Action::Rest { until } => {
                let at = self.clock.when(until, scene.now);
                scene.at(at, Event::Rested { router, op, attempt: turn });
            }
            Action::Listen | Action::Deliver => {}
            Action::GiveUp(_) => {
                // A write that was sent and not answered may have been done.
                let indefinite = under_way.attempts.may_be_done() && under_way.deed.is_some();
                let is_of_row = under_way.row.is_some();
                self.ops.remove(&op);
                if is_of_row {
                    return row_ends(scene, op);
                }
                let oracles = &mut scene.oracles;
                match indefinite {
                    true => oracles.data.indefinite(op),
                    false => oracles.data.failed(op, &oracles.spaces),
                }
            }
        }
    }

    /// The node to ask: the one that was hinted at, or one that the routes name.
    fn target(&mut self, scene: &mut Scene, op: Op) -> Option<usize> {
        let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
        let under_way = self.ops.get_mut(&op)?;
        under_way.last = None;
        if let Some(hint) = under_way.hint.take() {
            return match &hint {
                HintedNode::Known(node) => node_at(&node.address),
                HintedNode::Told { address } => node_at(address),
            };
        }
        let space = &spaces[under_way.key.keyspace];
        let key = &space.keys[under_way.key.key];
        let route = match self.routes.route(space.keyspace.name.as_str(), key) {
            Ok(route) => route,
            Err(error) => {
                // Whoever leads, and if nobody does: who has a map can look up every key, but those of a partition
                // that is not registered.
                if self.table.map(&space.keyspace.name).is_some() && !space.is_named() {
                    scene.violate("M1", format!("router {} cannot look up a key: {error}", self.at));
                }
                return None;
            }
        };
        let failed = |number| self.failed.get(&number).copied();
        let (now, seed) = (self.clock.read(scene.now), scene.draw.bits());
        let preference = Preference { zone: None, now, seed, failed, avoided: &under_way.asked };
        let chosen = choose::choose(&route, under_way.access, &preference)?;
        under_way.last = Some(chosen.number);
        node_at(&chosen.node.address)
    }

    fn ask(&mut self, scene: &mut Scene, op: Op) {
        let Some(node) = self.target(scene, op) else {
            return self.step(scene, op, retry::Event::Nobody);
        };
        let Some(under_way) = self.ops.get(&op) else { return };
        let attempt = under_way.turn;
        let request = Request {
            op,
            attempt,
            key: under_way.key,
            access: under_way.access,
            deed: under_way.deed,
            row: under_way.row.clone(),
            router: self.at,
            forwarded: false,
        };
        scene.send(self.place(), Place::Node(node), Via::Post(op), Message::Request(request));
        scene.after(ANSWERS[self.at % 2], Event::TryAgain { router: self.at, op, attempt });
    }

    /// A try was not answered in time, or its rest is over.
    pub fn try_again(&mut self, scene: &mut Scene, op: Op, attempt: u32, rested: bool) {
        let now = self.clock.read(scene.now);
        let Some(under_way) = self.ops.get_mut(&op).filter(|u| u.turn == attempt) else { return };
        if rested {
            return self.step(scene, op, retry::Event::Woke);
        }
        if let Some(number) = under_way.last {
            under_way.asked.push(number);
            self.failed.insert(number, now);
        }
        self.step(scene, op, retry::Event::Broken);
    }

    fn answered(&mut self, scene: &mut Scene, response: Response) {
        let Response { op, attempt, outcome, node } = response;
        let Some(under_way) = self.ops.get_mut(&op).filter(|u| u.turn == attempt) else { return };
        let router = self.at;
        scene.trace.event(scene.now, (21u8, router, op, node), || {
            format!("router {router}: op {op}/{attempt} {:?}: {outcome:?} by node-{node}", under_way.key)
        });
        let event = match outcome {
            Outcome::Done(seen, by_leader) => {
                let key = under_way.key;
                self.ops.remove(&op);
                let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
                let is_alive = is_alive(scene, key);
                let oracles = &mut scene.oracles;
                let finding = oracles.data.done(op, seen, by_leader, &spaces, &oracles.storage, is_alive);
                return finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
            }
            Outcome::Row(seen, by_leader) => {
                let key = under_way.key;
                self.ops.remove(&op);
                if is_alive(scene, key) && !is_of_forgotten(scene, op, &seen) {
                    let findings = scene.oracles.lists.done(op, &seen, by_leader);
                    findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
                    scene.oracles.feeds.done(op, seen);
                }
                return row_ends(scene, op);
            }
            Outcome::Elsewhere(other) => {
                let space = &scene.oracles.spaces[under_way.key.keyspace];
                let key = &space.keys[under_way.key.key];
                let route = self.routes.route(space.keyspace.name.as_str(), key);
                let by = NodeId::new(&format!("node-{node}")).ok();
                let hint = Hint { node: None, address: Some(format!("node-{other}:1")), sequence: None };
                let followed = route.ok().map(|route| choose::follow(&hint, &route, by.as_ref(), |_| None));
                under_way.hint = followed.and_then(|followed| followed.to).filter(|_| other != node);
                retry::Event::Misdirected { hinted: under_way.hint.is_some() }
            }
            Outcome::NotNow(_) => retry::Event::NotReady { after_ms: 20 },
            Outcome::Indefinite => retry::Event::Broken,
        };
        self.step(scene, op, event);
    }
}

/// Whether what was seen of a key says something: it is there, and no other cluster has gone its own way with it.
fn is_alive(scene: &Scene, key: KeyAt) -> bool {
    let name = &scene.oracles.spaces[key.keyspace].keyspace.name;
    scene.oracles.has_key(key) && !scene.oracles.maps.is_forked(name)
}

/// Whether a request that was done again, as its outcome was not kept any more, has to do with what an operation saw.
fn is_of_forgotten(scene: &Scene, op: Op, seen: &RowSeen) -> bool {
    let list = match seen {
        RowSeen::Read(Some(row)) => lists::elements(&row.value),
        RowSeen::Read(None) | RowSeen::Changes(_) | RowSeen::Wrote(_) => Vec::new(),
    };
    let tables = &scene.oracles.storage.tables;
    list.into_iter().chain([op]).any(|op| tables.is_forgotten(op))
}

/// An operation on a row is over. Its client hears of it.
fn row_ends(scene: &mut Scene, op: Op) {
    if let Some(client) = scene.oracles.lists.ends(op) {
        scene.after(0, Event::ListClient(client));
    }
    if let Some(reader) = scene.oracles.feeds.ends(op) {
        scene.after(0, Event::FeedReader(reader));
    }
}
