//! A router, with clients behind it: keeps maps by what is pushed, sends each operation to whoever has its key.

use crate::clock::{Clock, MS, SECOND, True};
use crate::message::{Event, Message, Outcome, Place, Publication, Request, Response, Via};
use crate::model::{KeyAt, Op};
use crate::scene::Scene;
use partage_core::map::ShardMap;
use partage_core::name::KeyspaceName;
use partage_core::worker::gates::Access;
use std::collections::BTreeMap;

/// How long a try waits for its answer.
const ANSWER: True = SECOND;

/// Silence after which the subscription is made anew.
const SILENCE: True = 3 * SECOND;

/// Tries of one operation.
const TRIES: u32 = 24;

/// An operation under way.
#[derive(Debug)]
struct UnderWay {
    key: KeyAt,
    access: Access,
    write: bool,
    attempt: u32,
    /// Somebody said that it is there.
    hint: Option<usize>,
}

/// A router.
#[derive(Debug)]
pub struct Router {
    /// Its number.
    pub at: usize,
    /// Its clock.
    pub clock: Clock,
    maps: BTreeMap<KeyspaceName, ShardMap>,
    stream: Option<u64>,
    heard: True,
    coordinator: usize,
    coordinators: usize,
    ops: BTreeMap<Op, UnderWay>,
}

impl Router {
    /// A router that knows nothing yet.
    pub fn new(at: usize, coordinators: usize, clock: Clock) -> Router {
        Router {
            at,
            clock,
            maps: BTreeMap::new(),
            stream: None,
            heard: 0,
            coordinator: at % coordinators,
            coordinators,
            ops: BTreeMap::new(),
        }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place::Router(self.at)
    }

    /// The map that it has.
    pub fn map(&self, name: &KeyspaceName) -> Option<&ShardMap> {
        self.maps.get(name)
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
        let has = self.maps.iter().map(|(name, map)| (name.clone(), map.generation())).collect();
        scene.send(self.place(), to, Via::Stream(stream), Message::Subscribe(has));
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
                let name = publication.diff.keyspace.clone();
                self.published(scene, publication);
                if let Some(map) = self.maps.get(&name) {
                    let taken = Message::Taken(name, map.generation());
                    scene.send(self.place(), from, via, taken);
                }
            }
            Message::NotLeader if self.stream.map(Via::Stream) == Some(via) => {
                if let Via::Stream(stream) = via {
                    scene.close(stream, self.place());
                    self.closed(stream);
                }
            }
            Message::Response(response) => self.answered(scene, response),
            _ => {}
        }
    }

    /// W1–W4, M2: what is pushed follows what is there, or says that it does not, and never goes back.
    fn published(&mut self, scene: &mut Scene, publication: Publication) {
        let Publication { diff, resync } = publication;
        let name = diff.keyspace.clone();
        let held = self.maps.get(&name).map(ShardMap::generation);
        let router = self.at;
        scene.trace.event(scene.now, (20u8, router, diff.to.sequence), || {
            format!("router {router} is sent {name} {} from {}, resync {resync}", diff.to, diff.from)
        });
        if held.is_some_and(|held| diff.to.sequence < held.sequence) {
            return scene.violate("M2", format!("router {router} is sent {name} {} after {held:?}", diff.to));
        }
        let Some(latest) = scene.oracles.maps.latest(&name) else { return };
        let mut map = match self.maps.get(&name) {
            Some(map) if !resync => map.clone(),
            _ => ShardMap::empty(name.clone(), latest.sharding(), latest.partition_key()),
        };
        if let Err(error) = map.apply(&diff) {
            return scene.violate("W4", format!("router {router}: {error}"));
        }
        if latest.generation() == map.generation() && latest.whole() != map.whole() {
            scene.violate("W3", format!("router {router} has another {name} {}", map.generation()));
        } else if scene.oracles.maps.generation(&name, diff.to.sequence).is_some_and(|g| g != diff.to) {
            scene.violate("M3", format!("router {router} is sent {name} {}, never committed", diff.to));
        }
        self.maps.insert(name, map);
    }

    /// A client begins an operation.
    pub fn operate(&mut self, scene: &mut Scene, op: Op, key: KeyAt, access: Access, write: bool) {
        scene.oracles.data.begins(op, key, write);
        self.ops.insert(op, UnderWay { key, access, write, attempt: 0, hint: None });
        self.attempt(scene, op);
    }

    /// Tries, or tries again.
    fn attempt(&mut self, scene: &mut Scene, op: Op) {
        let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
        let Some(under_way) = self.ops.get_mut(&op) else { return };
        under_way.attempt += 1;
        if under_way.attempt > TRIES {
            self.ops.remove(&op);
            return scene.oracles.data.failed(op);
        }
        let space = &spaces[under_way.key.keyspace];
        let shard = self.maps.get(&space.keyspace.name).and_then(|m| m.find(&space.keys[under_way.key.key]));
        let live: Vec<_> = shard.into_iter().flat_map(|shard| shard.live()).collect();
        let leader = shard.and_then(|shard| shard.leader());
        let chosen = match under_way.access {
            Access::Write => leader,
            Access::Read => scene.draw.pick(&live).copied(),
        };
        let known = chosen.map(|r| crate::coordinator::node_at(r.node.as_str()));
        let target = under_way.hint.take().or(known);
        let attempt = under_way.attempt;
        match target {
            Some(node) => {
                let request = Request {
                    op,
                    attempt,
                    key: under_way.key,
                    access: under_way.access,
                    write: under_way.write,
                    router: self.at,
                    forwarded: false,
                };
                scene.send(self.place(), Place::Node(node), Via::Post(op), Message::Request(request));
                scene.after(ANSWER, Event::TryAgain { router: self.at, op, attempt });
            }
            None => {
                let rest = scene.draw.between(50 * MS, 200 * MS);
                scene.after(rest, Event::Rested { router: self.at, op, attempt });
            }
        }
    }

    /// A try was not answered in time, or its rest is over.
    pub fn try_again(&mut self, scene: &mut Scene, op: Op, attempt: u32, rested: bool) {
        let Some(under_way) = self.ops.get(&op).filter(|u| u.attempt == attempt) else { return };
        // A write that was sent and not answered may have been done: it must not be sent again.
        if under_way.write && !rested {
            self.ops.remove(&op);
            scene.oracles.data.indefinite(op);
        } else {
            self.attempt(scene, op);
        }
    }

    fn answered(&mut self, scene: &mut Scene, response: Response) {
        let Response { op, attempt, outcome, node } = response;
        let Some(under_way) = self.ops.get_mut(&op).filter(|u| u.attempt == attempt) else { return };
        let router = self.at;
        scene.trace.event(scene.now, (21u8, router, op, node), || {
            format!("router {router}: op {op}/{attempt} {:?}: {outcome:?} by node-{node}", under_way.key)
        });
        match outcome {
            Outcome::Done(version, by_leader) => {
                self.ops.remove(&op);
                let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
                let oracles = &mut scene.oracles;
                if let Some((invariant, text)) =
                    oracles.data.done(op, version, by_leader, &spaces, &oracles.storage)
                {
                    scene.violate(invariant, text);
                }
            }
            Outcome::Indefinite if under_way.write => {
                self.ops.remove(&op);
                scene.oracles.data.indefinite(op);
            }
            Outcome::Elsewhere(other) => {
                under_way.hint = Some(other);
                self.attempt(scene, op);
            }
            Outcome::NotNow(_) | Outcome::Indefinite => {
                let rest = scene.draw.between(20 * MS, 150 * MS) * u64::from(attempt);
                // Marked as rested by an attempt number of its own.
                under_way.attempt += 1;
                let attempt = under_way.attempt;
                scene.after(rest, Event::Rested { router, op, attempt });
            }
        }
    }
}
