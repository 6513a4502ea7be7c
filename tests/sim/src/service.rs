//! The registers that a node serves: requests on their way through it.
//!
//! A request is judged by the gates, worked on for a moment, and, when it writes, sent to storage under the
//! epoch of its permit. A leader answers reads from its copies, after asking once more whether it is still the
//! owner (A18). Until it is answered it is *inside*, and a drain waits for it; one that is told to end does so at once or
//! when its work is done, and what it has then is not acknowledged. Where data is carried, no
//! storage refuses a late write: there the owner asks once more before it acknowledges one, too.

use crate::clock::{MS, SECOND};
use crate::disk;
use crate::message::{Event, Message, Outcome, Place, Request, Response, Via};
use crate::model::{Deed, KeyAt, Life, Op, Seen};
use crate::node::Node;
use crate::scene::Scene;
use crate::table::{Bases, Locals};
use partage_core::base::id::Epoch;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::map::Role;
use partage_core::node::exchange::{Order, ReplicaKey};
use partage_core::worker::LocalReplica;
use partage_core::worker::gates::{Permit, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// How often a request that is too early is looked at again.
const HOLD: u64 = 5 * MS;

/// Requests that take up to a second to be worked on, in thousandths.
const SLOW: u64 = 40;

/// Of those, how many take up to six: longer than any lease.
const VERY_SLOW: u64 = 100;

/// Requests that end when they are told to. The others end when their work is done, and so do all of tables: no write to one ends
/// before its replication answers it.
const HEEDFUL: u64 = 700;

/// Answers after which the service asks again, later, whether it has been the owner all along.
const TENURES: u64 = 50;

/// How often at most.
const HELD_AT_MOST: u32 = 60;

/// A request that is inside.
#[derive(Debug)]
struct Inside {
    request: Request,
    permit: Permit,
    /// Owners of the key so far, for O7.
    owners: u64,
    /// How often the lease had lapsed when it came in.
    lapses: u32,
    /// It was told to end.
    evicted: bool,
}

/// The requests inside a worker, and its copies of registers.
#[derive(Debug, Default)]
pub struct Service {
    inside: BTreeMap<(Op, u32), Inside>,
    draining: BTreeSet<ReplicaKey>,
    copies: BTreeMap<(KeyAt, Life), Seen>,
    held: BTreeMap<(Op, u32), u32>,
    /// The replicas of tables.
    pub tables: Locals,
    /// Bases of children of tables.
    pub bases: Bases,
}

impl Service {
    /// Whether no request is inside a replica whose gate is shut; if there is one, the last will say so.
    pub fn drain(&mut self, replica: &ReplicaKey) -> bool {
        let empty = self.is_empty(replica);
        if !empty {
            self.draining.insert(replica.clone());
        }
        empty
    }

    /// A request that is inside, and whether it asks the leader.
    pub fn asked(&self, op: Op, attempt: u32) -> Option<(&Request, bool)> {
        let inside = self.inside.get(&(op, attempt))?;
        Some((&inside.request, inside.permit.role == Role::Leader))
    }

    fn is_empty(&self, replica: &ReplicaKey) -> bool {
        !self.inside.values().any(|inside| inside.permit.replica == *replica)
    }

    /// Tells what is inside to end. Most do so at once, others when their work is done; the replica is drained when the
    /// last one is out.
    pub fn evict(&mut self, scene: &mut Scene, (node, process): (usize, u32), replica: &ReplicaKey) {
        let mut tables = scene.oracles.spaces.iter().filter(|space| space.is_replicated());
        let is_table = tables.any(|space| space.keyspace.name == replica.keyspace);
        for ((op, attempt), inside) in &mut self.inside {
            if inside.permit.replica != *replica || std::mem::replace(&mut inside.evicted, true) {
                continue;
            }
            if !is_table && scene.draw.chance(HEEDFUL) {
                let (takes, op, attempt) = (scene.draw.around(MS), *op, *attempt);
                scene.after(takes, Event::Evicted { node, process, op, attempt });
            }
        }
    }

    /// Begins to serve: fences storage, then copies what is there.
    pub fn serve(
        &mut self,
        scene: &mut Scene,
        who: (usize, u32),
        order: &Order,
        epoch: Epoch,
    ) -> Result<(), String> {
        let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
        let Some((keyspace, space)) =
            spaces.iter().enumerate().find(|(_, space)| space.keyspace.name == order.replica.keyspace)
        else {
            return Err("no such keyspace".to_owned());
        };
        if space.keyspace.durable {
            return disk::serve(scene, who, (keyspace, space), order, epoch);
        }
        for key in space.keys_in(&order.bounds) {
            let (at, storage) = (KeyAt { keyspace, key }, &mut scene.oracles.storage);
            let seen = match order.role {
                Role::Leader => storage.open(at, order.replica.shard, epoch, order.replica.placement),
                Role::Follower | Role::ReadReplica => {
                    Some(storage.seen(at, storage.life_of(keyspace, order.replica.shard)))
                }
            };
            let seen = seen.ok_or_else(|| format!("storage has seen an epoch later than {epoch}"))?;
            self.copies.insert((at, seen.life), seen);
        }
        Ok(())
    }

    /// Prepares: there are shards whose data no service can read at present.
    pub fn load(&self, scene: &mut Scene, who: (usize, u32), local: &LocalReplica) -> Result<(), String> {
        let (order, spaces) = (&local.order, std::rc::Rc::clone(&scene.oracles.spaces));
        let of_it = spaces.iter().enumerate().find(|(_, s)| s.keyspace.name == order.replica.keyspace);
        let broken = of_it.is_some_and(|(keyspace, space)| {
            let unloadable = |key| scene.unloadable.contains(&KeyAt { keyspace, key });
            space.keys_in(&order.bounds).any(unloadable)
        });
        if broken {
            return Err("its data cannot be read".to_owned());
        }
        match of_it.filter(|(_, space)| space.keyspace.durable) {
            Some(space) => disk::load(scene, who, space, order, local.has_data()),
            None => Ok(()),
        }
    }

    /// Deletes what the worker says may be deleted, as a service of the SDK does.
    pub fn delete(&self, scene: &mut Scene, local: &LocalReplica) {
        let replica = &local.order.replica;
        let spaces = &scene.oracles.spaces;
        let keyspace = spaces.iter().position(|space| space.keyspace.name == replica.keyspace);
        if let Some(keyspace) = keyspace.filter(|at| spaces[*at].keyspace.durable) {
            scene.oracles.storage.tables.delete(replica);
            scene.oracles.storage.disks.delete(replica);
            let lost = scene.oracles.data.lost(&scene.oracles.storage, Some(keyspace));
            lost.into_iter()
                .for_each(|(_, text)| scene.violate("D10", format!("{replica:?} is deleted: {text}")));
        } else if let Some(keyspace) = keyspace {
            scene.oracles.storage.discard(replica.placement, keyspace);
        }
    }
}

impl Node {
    /// A request has come, or is looked at again.
    pub fn request(&mut self, scene: &mut Scene, request: Request) {
        let now = self.clock.read(scene.now);
        let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
        let space = &spaces[request.key.keyspace];
        let key = &space.keys[request.key.key];
        let (node, process_number) = (self.at, self.process_number);
        let Some(process) = &mut self.process else { return };
        let name = (request.op, request.attempt);
        if process.service.inside.contains_key(&name) {
            return;
        }
        match process.gates.judge(now, &space.keyspace.name, key, request.access) {
            Verdict::Serve(permit) => {
                process.service.held.remove(&name);
                let incarnation = process.worker.incarnation();
                let findings = scene.oracles.served(scene.now, (node, incarnation), &request, &permit);
                findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
                let owners = scene.oracles.ownership.owners(request.key);
                // Most work is short. Some outlasts the patience of a drain, or a lease.
                let long = scene.draw.chance(SLOW);
                let most = if scene.draw.chance(VERY_SLOW) { 6 * SECOND } else { SECOND };
                let takes = if long { scene.draw.between(MS, most) } else { scene.draw.around(MS) };
                let lapses = process.lapses;
                process
                    .service
                    .inside
                    .insert(name, Inside { permit, owners, lapses, request, evicted: false });
                let (op, attempt) = name;
                scene.after(takes, Event::Worked { node, process: process_number, op, attempt });
            }
            Verdict::Elsewhere { address, .. } => {
                process.service.held.remove(&name);
                let Some(other) = crate::coordinator::node_at(&address) else {
                    return respond(scene, node, &request, Outcome::NotNow("nobody knows where it is"));
                };
                if request.forwarded || scene.draw.chance(500) {
                    respond(scene, node, &request, Outcome::Elsewhere(other));
                } else {
                    let forwarded = Request { forwarded: true, ..request };
                    let (from, to) = (Place::Node(node), Place::Node(other));
                    scene.send(from, to, Via::Post(0), Message::Request(forwarded));
                }
            }
            Verdict::Soon => {
                let times = process.service.held.entry(name).or_default();
                *times += 1;
                if *times > HELD_AT_MOST {
                    process.service.held.remove(&name);
                    respond(scene, node, &request, Outcome::NotNow("not granted yet"));
                } else {
                    let request = Box::new(request);
                    scene.after(HOLD, Event::HeldAgain { node, process: process_number, request });
                }
            }
            Verdict::Lapsed => respond(scene, node, &request, Outcome::NotNow("the lease has lapsed")),
            Verdict::Unknown { .. } => respond(scene, node, &request, Outcome::NotNow("not here")),
        }
    }

    /// A request has been worked on: answer it, or write.
    pub fn worked(&mut self, scene: &mut Scene, op: Op, attempt: u32) {
        let now = self.clock.read(scene.now);
        let (node, process_number) = (self.at, self.process_number);
        let Some(process) = &mut self.process else { return };
        let Some(inside) = process.service.inside.get(&(op, attempt)) else { return };
        let key = inside.request.key;
        let leads = inside.permit.role == Role::Leader;
        let is_durable = scene.oracles.spaces[key.keyspace].keyspace.durable;
        let deed = inside.request.deed;
        if scene.oracles.spaces[key.keyspace].is_replicated() {
            let (replica, request) = (inside.permit.replica.clone(), inside.request.clone());
            return self.ask_table(scene, &request, &replica, leads);
        }
        if deed.is_some() || (is_durable && leads) {
            let (shard, epoch) = (inside.permit.replica.shard, inside.permit.epoch);
            let way = scene.draw.around(300);
            let process = process_number;
            return scene
                .after(way, Event::StorageWrite { node, process, op, attempt, key, shard, epoch, deed });
        }
        let owns = process.gates.still_holds(now, &inside.permit) && !inside.evicted;
        let holds = planted::is(Planted::D2) || owns;
        let outcome = if holds {
            let findings = scene.oracles.still_held(scene.now, node, &inside.permit, key, inside.owners);
            findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
            let life = scene.oracles.storage.life_of(key.keyspace, inside.permit.replica.shard);
            let nothing = Seen { life, ..Seen::default() };
            let seen = match is_durable {
                true => scene.oracles.storage.disks.seen_by(&inside.permit.replica, key, life),
                false => process.service.copies.get(&(key, life)).copied().unwrap_or(nothing),
            };
            Outcome::Done(seen, leads)
        } else {
            Outcome::NotNow("not the owner any more")
        };
        self.finish(scene, op, attempt, outcome);
    }

    /// A write, or a read of a leader, reaches its own disk and those of the other replicas.
    pub fn replicate(&mut self, scene: &mut Scene, op: Op, attempt: u32, (key, deed): (KeyAt, Option<Deed>)) {
        let (node, process_number) = (self.at, self.process_number);
        let Some(process) = &mut self.process else { return };
        let Some(inside) = process.service.inside.get(&(op, attempt)) else { return };
        let Some(local) = process.worker.local_replicas().get(&inside.permit.replica) else { return };
        let write = deed.map(|deed| (op, deed));
        let outcome = disk::replicate(scene, node, &local.order, inside.permit.epoch, key, write);
        let way = scene.draw.around(300);
        scene.after(way, disk::event(node, process_number, (op, attempt), outcome));
    }

    /// Storage has answered a write.
    pub fn storage_answers(&mut self, scene: &mut Scene, op: Op, attempt: u32, seen: Option<Seen>) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let Some(inside) = process.service.inside.get(&(op, attempt)) else { return };
        let key = inside.request.key;
        let space = &scene.oracles.spaces[key.keyspace];
        // Nobody has begun after us: we are the owner all along, or on the way out with the lease unbroken, and
        // have not said that we are done.
        let on_the_way_out =
            || inside.lapses == process.lapses && !process.gates.has_lapsed(now, &space.keyspace.name);
        let owns = (process.gates.still_holds(now, &inside.permit) || on_the_way_out()) && !inside.evicted;
        let outcome = match seen {
            Some(_) if (space.is_carried || space.keyspace.durable) && !owns => Outcome::Indefinite,
            Some(seen) => {
                let copy = process.service.copies.entry((key, seen.life)).or_default();
                if seen.version > copy.version {
                    *copy = seen;
                }
                Outcome::Done(seen, true)
            }
            None => Outcome::NotNow("storage has seen a later epoch"),
        };
        self.finish(scene, op, attempt, outcome);
    }

    /// A request that was told to end does so: what becomes of it is not known.
    pub fn evicted(&mut self, scene: &mut Scene, op: Op, attempt: u32) {
        self.finish(scene, op, attempt, Outcome::Indefinite);
    }

    /// Long after its answer the service asks whether it has been the owner ever since (A18).
    pub fn tenure(&mut self, scene: &mut Scene, permit: &Permit, key: KeyAt, owners: u64) {
        let now = self.clock.read(scene.now);
        let Some(process) = &self.process else { return };
        if process.gates.still_holds(now, permit) {
            let findings = scene.oracles.still_held(scene.now, self.at, permit, key, owners);
            findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
        }
    }

    /// A request is answered.
    pub fn finish(&mut self, scene: &mut Scene, op: Op, attempt: u32, outcome: Outcome) {
        let now = self.clock.read(scene.now);
        let (node, process_number) = (self.at, self.process_number);
        let Some(process) = &mut self.process else { return };
        let Some(inside) = process.service.inside.remove(&(op, attempt)) else { return };
        if scene.draw.chance(TENURES) && matches!(outcome, Outcome::Done(..)) {
            let (permit, key, owners) = (Box::new(inside.permit.clone()), inside.request.key, inside.owners);
            let after = scene.draw.between(100 * MS, 8 * SECOND);
            scene.after(after, Event::Tenure { node, process: process_number, permit, key, owners });
        }
        respond(scene, self.at, &inside.request, outcome);
        let replica = inside.permit.replica;
        if process.service.is_empty(&replica) && process.service.draining.remove(&replica) {
            let actions = process.worker.requests_ended(now, &replica);
            self.carry_out(scene, actions);
            self.tick(scene);
        }
    }
}

fn respond(scene: &mut Scene, node: usize, request: &Request, outcome: Outcome) {
    let response = Response { op: request.op, attempt: request.attempt, outcome, node };
    scene.send(Place::Node(node), Place::Router(request.router), Via::Post(0), Message::Response(response));
}
