//! The leader's part of a coordinator: the cluster, what has come for it, and what waits to be durable before it is
//! told.

use crate::coordinator::node_at;
use crate::message::{Message, Place, Via};
use crate::publisher::Publisher;
use crate::scene::Scene;
use crate::store::Committed;
use partage_core::cluster::{Cluster, Moment, Outbox, Write};
use partage_core::exchange::Orders;
use partage_core::id::Incarnation;
use partage_core::name::NodeId;
use partage_core::planted::{self, Planted};
use partage_core::settings::Settings;
use partage_core::time::Millis;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How long an announced address has to answer.
const CHECK_BACK_MS: u64 = 500;

/// A message with where it came from.
pub type Incoming = (Place, Via, Message);

/// A transaction under way.
#[derive(Debug)]
pub struct UnderWay {
    /// Its number.
    pub number: u64,
    /// What follows from it.
    pub outbox: Outbox,
    /// How it ended, as far as the coordinator is told.
    pub outcome: Option<Committed>,
}

/// The leader's part.
#[derive(Debug)]
pub struct Leading {
    /// Under which term.
    pub term: u64,
    /// When it began to listen, by its own clock.
    pub since: Millis,
    /// The mind.
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
    /// Takes in a message.
    pub fn take_in(&mut self, moment: Moment, (from, via, message): Incoming) {
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
            _ => return,
        };
        self.answers.push((from, via, answer));
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
            let to = Place::Node(node_at(&address));
            self.checks.insert((id.clone(), incarnation), now + CHECK_BACK_MS);
            scene.send(Place::Coordinator(at), to, Via::Post(0), Message::CheckBack(id, incarnation));
        }
    }

    /// R6: whoever is declared dead has been silent since long before, as far as this leader can know.
    pub fn declares_dead(&self, scene: &mut Scene, now: Millis, settings: &Settings, writes: &[Write]) {
        for write in writes {
            if let Write::Node(node) = write
                && scene.oracles.maps.is_death(node)
                && now.since(self.since) < settings.dead_after_ms
            {
                let (id, led) = (&node.spec.id, now.since(self.since));
                scene.violate("R6", format!("{id} is dead for a leader that leads since {led} ms"));
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
        for (to, via, message) in std::mem::take(&mut self.answers) {
            if let (Place::Node(node), Message::Orders(orders)) = (to, &message) {
                self.ordered(scene, node, orders);
            }
            scene.send(here, to, via, message);
        }
        self.order(scene, here, &outbox.orders);
        publisher.release(&self.cluster, outbox.maps, now);
        publisher.publish(scene, here, Some(&self.cluster));
    }

    /// Sends nodes what has changed of their orders.
    pub fn order(&self, scene: &mut Scene, here: Place, nodes: &BTreeSet<NodeId>) {
        for id in nodes {
            let Some((place, Some(stream), applied)) = self.workers.get(id) else { continue };
            if let Some(orders) = self.cluster.orders_since(id, *applied, None) {
                self.ordered(scene, node_at(id.as_str()), &orders);
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
        let finding = scene.oracles.maps.gives(self.term).filter(|_| gives);
        finding.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
    }
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

fn shard_words(shard: &partage_core::map::Shard) -> String {
    let replicas: Vec<_> = shard
        .replicas
        .iter()
        .map(|r| format!("{}@{}/{} {} {}", r.placement, r.node, r.incarnation, r.state, r.role))
        .collect();
    format!("{} {} {:?} [{}]", shard.id, shard.epoch, shard.stage(), replicas.join(", "))
}
