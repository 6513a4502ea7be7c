//! The leader's part of a coordinator: the cluster, what has come for it, and what waits to be durable before it is
//! told.

use crate::clock::{MS, True};
use crate::coordinator::{INBOX, node_at};
use crate::message::{Message, Place, Via};
use crate::mishaps::is_ghost;
use crate::oracle::Finding;
use crate::publisher::Publisher;
use crate::scene::Scene;
use crate::store::Committed;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::{Cluster, Moment, Observed, Outbox, UncommittedChanges, Write};
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{Beat, Orders, ReplicaKey};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long an announced address has to answer.
const CHECK_BACK_MS: u64 = 500;

/// A message with where it came from.
pub type Incoming = (Place, Via, Message);

/// A transaction under way.
#[derive(Debug)]
pub struct UnderWay {
    /// The number that events of this transaction carry.
    pub number: u64,
    /// What follows from it.
    pub outbox: Outbox,
    /// How it ended, as far as the coordinator is told.
    pub outcome: Option<Committed>,
}

/// A decision that is being computed.
#[derive(Debug)]
pub struct Computing {
    /// The number that the event at its end carries.
    pub number: u64,
    /// What follows from it.
    pub outbox: Outbox,
    /// When to decide again.
    pub wake: Millis,
}

/// A moment of true time, and for how long the coordinator had stood still by then.
pub type Seen = (True, True);

/// The last beat or registration of a node that was taken.
#[derive(Debug, Clone, Copy)]
struct Heard {
    incarnation: Incarnation,
    sequence: u64,
    seen: Seen,
}

/// What a coordinator has in memory while it leads.
#[derive(Debug)]
pub struct Leading {
    /// The term of the election that it won.
    pub term: u64,
    /// When it began to listen, by its own clock.
    pub since: Millis,
    /// The same in true time.
    began: Seen,
    heard: BTreeMap<NodeId, Heard>,
    /// The decision that is waited for.
    pub computing: Option<Computing>,
    /// Core's state machine, which decides.
    pub cluster: Cluster,
    /// What has come and was not taken in yet.
    pub inbox: VecDeque<Incoming>,
    /// The transaction that is waited for.
    pub under_way: Option<UnderWay>,
    /// Answers that wait for what they follow from to be durable.
    pub answers: Vec<Incoming>,
    /// Where each worker's stream is, and what it had when it last said so.
    pub workers: BTreeMap<NodeId, (Place, Option<u64>, u64)>,
    /// Addresses that were asked for a sign of life, and until when they have time.
    pub checks: BTreeMap<(NodeId, Incarnation), Millis>,
    /// When the timer that is set rings, by its own clock.
    pub wake: Millis,
}

impl Leading {
    /// What a coordinator begins to lead with.
    pub fn new(term: u64, since: Millis, began: Seen, cluster: Cluster) -> Leading {
        Leading {
            term,
            since,
            began,
            cluster,
            heard: BTreeMap::new(),
            computing: None,
            inbox: VecDeque::new(),
            under_way: None,
            answers: Vec::new(),
            workers: BTreeMap::new(),
            checks: BTreeMap::new(),
            wake: Millis::NEVER,
        }
    }

    /// Whether something is being computed or made durable.
    pub fn is_busy(&self) -> bool {
        self.computing.is_some() || self.under_way.is_some()
    }

    /// Takes in a message. What overtakes another counts, and the other no more (W1).
    pub fn take_in(&mut self, moment: Moment, seen: Seen, (from, via, message): Incoming) -> Option<Finding> {
        let mut finding = None;
        let answer = match message {
            Message::Register(registration) => {
                let id = registration.spec.id.clone();
                match self.cluster.register(moment, registration) {
                    Ok(welcome) => {
                        self.registered(id, &welcome, seen, (from, via));
                        Message::Welcome(welcome)
                    }
                    Err(error) => Message::NotRegistered(error),
                }
            }
            Message::Beat(beat) => {
                let taken = TakenBeat::of(&self.cluster, &beat, seen);
                match self.cluster.beat(moment, beat) {
                    Ok(orders) => {
                        finding = self.heard_beat(taken);
                        Message::Orders(orders)
                    }
                    Err(error) => Message::BeatRefused(error),
                }
            }
            Message::Goodbye(node, incarnation, session) => {
                let _said_before = self.cluster.leave(moment, &node, incarnation, session);
                return finding;
            }
            Message::CheckedBack(node, incarnation) => {
                if self.checks.remove(&(node.clone(), incarnation)).is_some() {
                    self.cluster.checked_back(moment, &node, incarnation, true);
                }
                return finding;
            }
            _ => return finding,
        };
        self.answers.push((from, via, answer));
        finding
    }

    /// Answers what need not wait for the transaction that is under way, as the driver does; the rest goes to the inbox.
    pub fn take_in_meanwhile(
        &mut self,
        scene: &mut Scene,
        here: Place,
        moment: Moment,
        (from, via, message): Incoming,
    ) -> Option<Finding> {
        let seen = (scene.now, scene.stood_still(here));
        let mut finding = None;
        let waits = |other: &Incoming| {
            other.0 == from && matches!(&other.2, Message::Beat(beat) if self.cluster.will_take(beat))
        };
        let is_held = self.inbox.iter().any(waits);
        let outcome = match (message, &self.under_way) {
            (message @ Message::Beat(_), _) if is_held => Err(message),
            (Message::Beat(beat), Some(under_way)) => {
                let taken = TakenBeat::of(&self.cluster, &beat, seen);
                match self.cluster.beat_during_commit(
                    moment,
                    beat,
                    &UncommittedChanges::of(&under_way.outbox),
                ) {
                    Ok(orders) => {
                        finding = self.heard_beat(taken);
                        Ok(Message::Orders(orders))
                    }
                    Err(beat) => Err(Message::Beat(beat)),
                }
            }
            (Message::Register(registration), Some(_)) => {
                let id = registration.spec.id.clone();
                match self.cluster.resume_during_commit(moment, registration) {
                    Ok(welcome) => {
                        self.registered(id, &welcome, seen, (from, via));
                        Ok(Message::Welcome(welcome))
                    }
                    Err(registration) => Err(Message::Register(*registration)),
                }
            }
            (message, _) => Err(message),
        };
        match outcome {
            Ok(answer) => {
                scene.count("messages answered during a transaction");
                self.answer(scene, here, (from, via, answer));
            }
            Err(message) if self.inbox.len() < INBOX => self.inbox.push_back((from, via, message)),
            Err(_) => {}
        }
        finding
    }

    fn registered(&mut self, id: NodeId, welcome: &Welcome, seen: Seen, (from, via): (Place, Via)) {
        let stream = match via {
            Via::Stream(stream) => Some(stream),
            Via::Post(_) => None,
        };
        let heard = self.heard.get(&id).filter(|heard| heard.incarnation == welcome.incarnation);
        let sequence = heard.map_or(0, |heard| heard.sequence);
        self.heard.insert(id.clone(), Heard { incarnation: welcome.incarnation, sequence, seen });
        self.workers.insert(id, (from, stream, 0));
    }

    /// A beat was taken in.
    fn heard_beat(&mut self, TakenBeat { id, applied, heard, of_others }: TakenBeat) -> Option<Finding> {
        let last = self.heard.insert(id.clone(), heard);
        let finding = last.and_then(|last| overtaken(&id, last, heard));
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.2 = applied;
        }
        finding.or_else(|| taken_from_strangers(&self.cluster, &id, of_others))
    }

    /// Asks announced addresses for a sign of life, and gives up on those that were asked long ago.
    pub fn check_addresses(&mut self, scene: &mut Scene, at: usize, now: Millis) {
        let late: Vec<_> =
            self.checks.iter().filter(|(_, end)| **end <= now).map(|(k, _)| k.clone()).collect();
        for key in late {
            self.checks.remove(&key);
            let moment = Moment { now, wall_ms: 0 };
            self.cluster.checked_back(moment, &key.0, key.1, false);
        }
        for (id, incarnation, address, _) in self.cluster.checks_due(now) {
            self.checks.insert((id.clone(), incarnation), now + CHECK_BACK_MS);
            let ask = Message::CheckBack(id.clone(), incarnation);
            match node_at(&address).map(Place::Node) {
                Some(to) => scene.send(Place::Coordinator(at), to, Via::Post(0), ask),
                // What a stranger registers answers at once, and never beats.
                None if is_ghost(&id) => {
                    self.cluster.checked_back(Moment { now, wall_ms: 0 }, &id, incarnation, true);
                }
                None => {}
            }
        }
    }

    /// R6: a node that is declared dead has been silent since long before, as far as this leader can know, and while the leader
    /// itself was awake.
    pub fn declares_dead(&self, scene: &mut Scene, here: Place, settings: &Settings, writes: &[Write]) {
        // It may take a beat's time until it notices that it was asleep, twice; and clocks drift.
        let least_ms = settings.dead_after_ms.saturating_sub(2 * settings.heartbeat_ms) * 96 / 100;
        for write in writes {
            let Write::Node(node) = write else { continue };
            if scene.oracles.is_aside || !scene.oracles.maps.is_death(node) {
                continue;
            }
            let id = &node.spec.id;
            let (at, still) = self.heard.get(id).map_or(self.began, |heard| heard.seen);
            let awake = (scene.now - at).saturating_sub(scene.stood_still(here) - still);
            let led = scene.now - self.began.0;
            if led < settings.dead_after_ms * MS * 98 / 100 {
                scene.violate("R6", format!("{id} is dead for a leader that leads since {led} us"));
            } else if awake < least_ms * MS {
                let text = format!("{id} is dead for a leader that was awake for {awake} us of its silence");
                scene.violate("R6", text);
            }
        }
    }

    /// What is durable may be told.
    pub fn release(
        &mut self,
        scene: &mut Scene,
        here: Place,
        publisher: &mut Publisher,
        now: Millis,
        outbox: Outbox,
    ) {
        for answer in std::mem::take(&mut self.answers) {
            self.answer(scene, here, answer);
        }
        self.order(scene, here, &outbox.changed_orders);
        publisher.release(&self.cluster, outbox.maps, now);
        publisher.publish(scene, here, Some(&self.cluster));
    }

    fn answer(&self, scene: &mut Scene, here: Place, (to, via, message): Incoming) {
        if let (Place::Node(node), Message::Orders(orders)) = (to, &message) {
            self.ordered(scene, node, orders);
        }
        scene.send(here, to, via, message);
    }

    /// Sends nodes what has changed of their orders.
    pub fn order(&self, scene: &mut Scene, here: Place, nodes: &BTreeSet<NodeId>) {
        for id in nodes {
            let Some((place @ Place::Node(node), Some(stream), applied)) = self.workers.get(id) else {
                continue;
            };
            if let Some(orders) = self.cluster.orders_since(id, *applied, None) {
                self.ordered(scene, *node, &orders);
                scene.send(here, *place, Via::Stream(*stream), Message::Orders(orders));
            }
        }
    }

    /// Orders go out: what they grant must be free (O5), and the leader's to give (O10; where the store is planted to
    /// take what a deposed leader commits, the commits are looked at alone).
    fn ordered(&self, scene: &mut Scene, node: usize, orders: &Orders) {
        for order in &orders.changed {
            let findings = scene.oracles.granted(scene.now, node, order);
            findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
        }
        let gives = orders.lease.is_some() || orders.changed.iter().any(|order| order.granted);
        let gives = gives && !planted::is(Planted::O10);
        let finding = scene.oracles.gives(scene.now, self.term).filter(|_| gives);
        finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
    }
}

/// What the oracles need of a beat that the cluster takes in, noted before it does.
struct TakenBeat {
    id: NodeId,
    applied: u64,
    heard: Heard,
    of_others: Vec<(ReplicaKey, Option<Observed>)>,
}

impl TakenBeat {
    fn of(cluster: &Cluster, beat: &Beat, seen: Seen) -> TakenBeat {
        let heard = Heard { incarnation: beat.incarnation, sequence: beat.sequence, seen };
        let of_others = reports_of_others(cluster, beat);
        TakenBeat { id: beat.node.clone(), applied: beat.applied, heard, of_others }
    }
}

/// W1: a beat that was taken comes after the one before it.
fn overtaken(id: &NodeId, before: Heard, after: Heard) -> Option<Finding> {
    let is_late = before.incarnation == after.incarnation && after.sequence <= before.sequence;
    let text = || format!("beat {} of {id} is taken after beat {}", after.sequence, before.sequence);
    is_late.then(|| ("W1", text()))
}

/// What a beat says of replicas that the map has on another node or in another incarnation, and what is known of them.
fn reports_of_others(cluster: &Cluster, beat: &Beat) -> Vec<(ReplicaKey, Option<Observed>)> {
    let of_others = beat.reports.iter().filter_map(|report| {
        let keyspace = cluster.keyspaces().get(&report.replica.keyspace)?;
        let replica = keyspace.map.shard(report.replica.shard)?.replica(report.replica.placement)?;
        let is_its = replica.node == beat.node && replica.incarnation == beat.incarnation;
        let seen = keyspace.observed.get(&report.replica.placement).cloned();
        (!is_its).then(|| (report.replica.clone(), seen))
    });
    of_others.collect()
}

/// O3: what a node says of a replica that is another's changes nothing.
fn taken_from_strangers(
    cluster: &Cluster,
    id: &NodeId,
    before: Vec<(ReplicaKey, Option<Observed>)>,
) -> Option<Finding> {
    let seen =
        |replica: &ReplicaKey| cluster.keyspaces().get(&replica.keyspace)?.observed.get(&replica.placement);
    let taken = before.into_iter().find(|(replica, before)| seen(replica) != before.as_ref());
    taken.map(|(replica, _)| ("O3", format!("{id} is believed about {} of others", replica.placement)))
}

/// What was committed, in words.
pub fn words(writes: &[Write]) -> String {
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

fn shard_words(shard: &partage_core::keyspace::map::Shard) -> String {
    let replicas: Vec<_> = shard
        .replicas
        .iter()
        .map(|r| format!("{}@{}/{} {} {}", r.placement, r.node, r.incarnation, r.state, r.role))
        .collect();
    format!("{} {} {:?} [{}]", shard.id, shard.epoch, shard.stage(), replicas.join(", "))
}
