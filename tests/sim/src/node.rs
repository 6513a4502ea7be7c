//! A worker process: the driver around [`Worker`], as the SDK is, on simulated time.
//!
//! It keeps a link to whichever coordinator leads (a stream, or single posts as over plain HTTP), beats, carries
//! out what its worker says, and tells the oracles after every change which keys it believes to own. The
//! service that it runs is in `service.rs`.

use crate::calls::{Calls, Ended};
use crate::clock::{Clock, MS, True};
use crate::draw::Draw;
use crate::message::{Event, Message, Place, Via};
use crate::model::KeyAt;
use crate::oracle::ownership::Claim;
use crate::scene::Scene;
use crate::service::Service;
use crate::slow::Slow;
use crate::stuck::Stuck;
use crate::table::LOOKS_AGAIN;
use crate::touched;
use crate::words::{order_words, report_words};
use partage_core::base::id::{ClusterId, SessionDigest};
use partage_core::base::name::{KeyspaceName, NodeId, Zone};
use partage_core::base::time::Millis;
use partage_core::cluster::{BeatError, RegisterError};
use partage_core::keyspace::map::Access;
use partage_core::keyspace::map::{Replica, Shard};
use partage_core::node::NodeSpec;
use partage_core::node::exchange::{Orders, Phase, ReplicaKey, Report};
use partage_core::worker::gates::{Gates, Verdict};
use partage_core::worker::{Action, Callback, CallbackTimeouts, Gate, Task, Worker};
use std::collections::VecDeque;

/// How long a question to a coordinator waits for its answer.
const ANSWER_MS: u64 = 700;

/// Between two beats that carry news.
const NEWS_MS: u64 = 20;

/// Timeouts of the callbacks of the run's workers: short, so that they pass within a run.
pub const CALLBACK_TIMEOUTS: CallbackTimeouts = CallbackTimeouts {
    load_ms: 4_000,
    callback_ms: 1_000,
    drain_ms: 500,
    retry_ms: 100,
    retry_max_ms: 1_000,
};

/// How callbacks fare at present. In thousandths, and microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Mood {
    /// Callbacks that fail or refuse.
    pub fails: u64,
    /// Callbacks that never return.
    pub hangs: u64,
    /// How long a callback usually takes.
    pub takes: True,
}

impl Mood {
    /// A service whose callbacks never fail or hang.
    pub const FAIR: Mood = Mood { fails: 0, hangs: 0, takes: 5 * MS };

    /// A bad service, as chance has it.
    pub fn drawn(draw: &mut Draw) -> Mood {
        Mood { fails: draw.between(0, 700), hangs: draw.between(0, 400), takes: draw.between(MS, 600 * MS) }
    }
}

/// The link to a coordinator.
#[derive(Debug)]
struct Link {
    coordinator: usize,
    via: Via,
    welcomed: bool,
    /// The number of the registration, where it speaks by single posts.
    first: u64,
    /// When the question that waits was asked, or the last answer came.
    heard: Millis,
    /// Not before then, when the last one was in vain.
    rests_until: Millis,
}

impl Link {
    /// Whether a message is for this link: on its stream, or in answer to its last post; orders to any since it
    /// registered, as a worker over plain HTTP need not wait for one answer before it asks again.
    fn takes(&self, via: Via, message: &Message) -> bool {
        let is_late = match (self.via, via) {
            (Via::Post(_), Via::Post(number)) => self.welcomed && number > self.first,
            _ => false,
        };
        self.via == via || (is_late && matches!(message, Message::Orders(_)))
    }
}

/// A running process of a worker.
#[derive(Debug)]
pub struct Process {
    /// Core's state machine of a worker.
    pub worker: Worker,
    /// What requests are judged by.
    pub gates: Gates,
    /// The registers that it serves, and the requests inside.
    pub service: Service,
    link: Option<Link>,
    heartbeat_ms: u64,
    next_beat: Millis,
    last_beat: Millis,
    next_coordinator: usize,
    calls: Calls,
    timer: (u64, Millis),
    numbers: u64,
    /// How often its lease was over when it was renewed.
    pub lapses: u32,
    /// What it serves is about to kill it.
    poisoned: bool,
    /// It has said goodbye.
    gone: bool,
    /// Of the token that it was given last.
    session: SessionDigest,
    /// How often it has registered as a new process.
    sessions: u32,
}

/// A place for a worker.
#[derive(Debug)]
pub struct Node {
    /// Its position among the workers of the run.
    pub at: usize,
    /// Its name: `node-` and its position.
    pub id: NodeId,
    /// The monotonic and the wall clock of its process.
    pub clock: Clock,
    /// How often its process was started: events of earlier processes are void.
    pub process_number: u32,
    /// How its callbacks fare.
    pub mood: Mood,
    /// How it does not get on.
    pub stuck: Stuck,
    /// Whether all that it does takes long.
    pub slow: Slow,
    /// So many of its next beats report on a replica of another node, too.
    pub strays: u64,
    /// Speaks by single posts.
    pub by_posts: bool,
    /// The process, if it runs.
    pub process: Option<Box<Process>>,
    coordinators: usize,
    /// The cluster whose data its disk has.
    cluster: Option<ClusterId>,
}

impl Node {
    /// A place without a process.
    pub fn new(at: usize, coordinators: usize, by_posts: bool, clock: Clock) -> Node {
        let id = NodeId::new(&format!("node-{at}")).expect("a plain word is a name");
        Node {
            at,
            id,
            clock,
            process_number: 0,
            mood: Mood::FAIR,
            stuck: Stuck::No,
            slow: Slow::default(),
            strays: 0,
            by_posts,
            process: None,
            coordinators,
            cluster: None,
        }
    }

    /// Its place in the network.
    pub fn place(&self) -> Place {
        Place::Node(self.at)
    }

    /// What it says of itself.
    fn spec(&self) -> NodeSpec {
        let zone = Zone::new(&format!("zone-{}", self.at % 3)).expect("a plain word is a name");
        NodeSpec { zone: Some(zone), ..NodeSpec::new(self.id.clone(), format!("node-{}:1", self.at)) }
    }

    /// A new process at the same address.
    pub fn start(&mut self, scene: &mut Scene) {
        self.process_number += 1;
        self.clock = Clock::drawn(&mut scene.draw, scene.now).beside(&self.clock);
        scene.trace.event(scene.now, (10u8, self.at, self.process_number), || format!("{} starts", self.id));
        let callback_timeouts = self.stuck.callback_timeouts(CALLBACK_TIMEOUTS);
        let disks = &mut scene.oracles.storage.disks;
        disks.running.insert(self.at, self.process_number);
        disks.asleep.remove(&self.at);
        let worker = Worker::new(self.id.clone(), callback_timeouts);
        let mut stored = disks.stored_on(self.at);
        stored.extend(scene.oracles.storage.tables.stored_on(self.at));
        let of = self.cluster.filter(|_| !stored.is_empty());
        let worker = worker.with_stored(of, stored);
        self.process = Some(Box::new(Process {
            gates: worker.gates(),
            worker,
            service: Service::default(),
            link: None,
            heartbeat_ms: 500,
            next_beat: Millis(0),
            last_beat: Millis(0),
            next_coordinator: scene.draw.index(self.coordinators),
            calls: Calls::default(),
            timer: (0, Millis::NEVER),
            numbers: 0,
            lapses: 0,
            poisoned: false,
            gone: false,
            session: SessionDigest::default(),
            sessions: 0,
        }));
        self.tick(scene);
    }

    /// The process is killed.
    pub fn crash(&mut self, scene: &mut Scene) {
        self.process = None;
        self.slow.restart();
        scene.oracles.storage.disks.running.remove(&self.at);
        scene.trace.event(scene.now, (11u8, self.at), || format!("{} dies", self.id));
        scene.oracles.ownership.claims(self.at, self.process_number, Vec::new(), 0);
        scene.drop_connections(self.place());
    }

    /// Asks to leave, as on SIGTERM.
    pub fn leave(&mut self, scene: &mut Scene) {
        if let Some(process) = &mut self.process {
            scene.trace.event(scene.now, (12u8, self.at), || format!("{} asks to leave", self.id));
            process.worker.leave();
            process.next_beat = Millis(0);
            self.tick(scene);
        }
    }

    /// Asks to stay after all.
    pub fn stay(&mut self, scene: &mut Scene) {
        if let Some(process) = self.process.as_mut().filter(|process| !process.gone) {
            scene.count("stays");
            scene.trace.event(scene.now, (16u8, self.at), || format!("{} asks to stay", self.id));
            process.worker.stay();
            process.next_beat = Millis(0);
            self.tick(scene);
        }
    }

    /// Its service says of one replica that serves that it cannot serve it.
    pub fn give_one_up(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let serving = process.worker.local_replicas().iter().filter(|(_, local)| local.gate() != Gate::Shut);
        let serving: Vec<_> = serving.map(|(replica, _)| replica.clone()).collect();
        let Some(replica) = scene.draw.pick(&serving).cloned() else { return };
        scene.count("unhealthy replicas");
        scene.trace.event(scene.now, (17u8, self.at, replica.placement.0), || {
            format!("{} says that {} is unhealthy", self.id, replica.placement)
        });
        let actions = process.worker.unhealthy(now, &replica, "its disk died");
        self.carry_out(scene, actions);
        self.tick(scene);
    }

    /// Leaves at once, as when the time to leave is up: serves no more, says so, and is gone.
    pub fn leave_now(&mut self, scene: &mut Scene) {
        let Some(process) = &self.process else { return };
        let (incarnation, link) = (process.worker.incarnation(), process.link.as_ref());
        let target = link.map(|link| (link.coordinator, link.via));
        if let (Some(incarnation), Some((coordinator, via))) = (incarnation, target) {
            let goodbye = Message::Goodbye(self.id.clone(), incarnation, process.session);
            scene.send(self.place(), Place::Coordinator(coordinator), via, goodbye);
        }
        self.crash(scene);
    }

    /// A timer has rung.
    pub fn wake(&mut self, scene: &mut Scene, timer: u64) {
        if let Some(process) = &mut self.process
            && process.timer.0 == timer
        {
            process.timer.1 = Millis::NEVER;
            self.tick(scene);
        }
    }

    /// A connection is gone.
    pub fn closed(&mut self, scene: &mut Scene, stream: u64) {
        let Some(process) = &mut self.process else { return };
        if process.link.as_ref().is_some_and(|link| link.via == Via::Stream(stream)) {
            process.link = None;
            process.worker.unanswered();
            self.tick(scene);
        }
    }

    /// Does what is due: runs the worker, keeps the link, beats, sets the timer.
    pub fn tick(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        let actions = process.worker.run(now);
        self.carry_out(scene, actions);
        self.keep_link(scene);
        self.beat_if_due(scene);
        self.set_timer(scene);
    }

    fn keep_link(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let place = self.place();
        let spec = self.spec();
        let Some(process) = &mut self.process else { return };
        let patience_ms = ANSWER_MS + process.heartbeat_ms;
        match &process.link {
            Some(link) if link.rests_until > now => return,
            Some(link) if link.rests_until == Millis(0) && now.since(link.heard) < patience_ms => return,
            _ => {}
        }
        if let Some(Link { via: Via::Stream(stream), .. }) = process.link.take() {
            scene.close(stream, place);
        }
        process.worker.unanswered();
        process.next_coordinator = (process.next_coordinator + 1) % self.coordinators;
        let coordinator = process.next_coordinator;
        let to = Place::Coordinator(coordinator);
        process.numbers += 1;
        let via = if self.by_posts {
            Via::Post(process.numbers)
        } else {
            Via::Stream(scene.network.open(place, to))
        };
        let (first, rests_until) = (process.numbers, Millis(0));
        process.link = Some(Link { coordinator, via, welcomed: false, first, heard: now, rests_until });
        let mut registration = process.worker.registration(spec);
        if registration.incarnation.is_none() {
            process.sessions += 1;
            process.session = token(self.at, self.process_number, process.sessions);
        }
        registration.session = process.session;
        scene.send(place, to, via, Message::Register(registration));
    }

    fn beat_if_due(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let place = Place::Node(self.at);
        let Some(process) = &mut self.process else { return };
        if process.worker.has_news() {
            process.next_beat = process.next_beat.min(process.last_beat + NEWS_MS);
        }
        let Some(link) = &mut process.link else { return };
        if !link.welcomed || process.next_beat > now {
            return;
        }
        if let Via::Post(number) = &mut link.via {
            // The last question may not have been answered; whatever comes for it is not waited for.
            process.worker.unanswered();
            process.numbers += 1;
            *number = process.numbers;
        }
        scene.heat.measured(&scene.oracles.spaces, &mut process.worker);
        let Some(mut beat) = process.worker.beat(now) else { return };
        beat.session = process.session;
        if self.strays > 0 {
            self.strays -= 1;
            let stray = stray(scene, &self.id);
            beat.reports
                .extend(stray.filter(|stray| !process.worker.local_replicas().contains_key(&stray.replica)));
        }
        process.last_beat = now;
        process.next_beat = now + process.heartbeat_ms;
        let (to, via) = (Place::Coordinator(link.coordinator), link.via);
        let node = self.at;
        scene.trace.event(scene.now, (15u8, node, beat.sequence), || {
            let reports: Vec<_> = beat.reports.iter().map(report_words).collect();
            let whole = if beat.whole { "whole" } else { "news" };
            format!(
                "node-{node} beats {} to {to:?}, has v{}, {whole} {reports:?}",
                beat.sequence, beat.applied
            )
        });
        scene.send(place, to, via, Message::Beat(beat));
    }

    fn set_timer(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let place = self.place();
        let number = self.process_number;
        let Some(process) = &mut self.process else { return };
        let link = match &process.link {
            None => now,
            Some(link) if link.rests_until > Millis(0) => link.rests_until,
            Some(link) => link.heard + (ANSWER_MS + process.heartbeat_ms),
        };
        let welcomed = process.link.as_ref().is_some_and(|link| link.welcomed);
        let beat = if welcomed { process.next_beat } else { Millis::NEVER };
        let wake = process.worker.wake_at().min(link).min(beat).max(now + 1);
        if wake < process.timer.1 {
            process.timer = (process.timer.0 + 1, wake);
            let at = self.clock.when(wake, scene.now);
            scene.at(at, Event::Wake(place, number, process.timer.0));
        }
    }

    /// A message from a coordinator.
    pub fn deliver(&mut self, scene: &mut Scene, from: Place, via: Via, message: Message) {
        let now = self.clock.read(scene.now);
        if let Message::CheckBack(node, incarnation) = message {
            let ours = self.process.as_ref().is_some_and(|p| p.worker.incarnation() == Some(incarnation));
            if ours && node == self.id {
                scene.send(self.place(), from, via, Message::CheckedBack(node, incarnation));
            }
            return;
        }
        let Some(process) = &mut self.process else { return };
        let Some(link) = process.link.as_mut().filter(|link| link.takes(via, &message)) else { return };
        if link.via != via {
            // The answer to an earlier beat has been overtaken.
            if let Message::Orders(orders) = message {
                self.ordered(scene, now, orders);
            }
            return;
        }
        if let Via::Post(number) = &mut link.via {
            // Answered: a second copy of the answer is dropped.
            *number = 0;
        }
        link.heard = now;
        match message {
            Message::Welcome(welcome) => {
                let before = process.worker.cluster();
                if process.worker.welcomed(&welcome).is_ok() {
                    touched::welcomed(scene, Place::Node(self.at), before, welcome.cluster);
                    link.welcomed = true;
                    process.heartbeat_ms = welcome.heartbeat_ms;
                    process.next_beat = now;
                    self.cluster = process.worker.cluster();
                } else {
                    link.rests_until = now + 500;
                }
            }
            Message::Orders(orders) => return self.ordered(scene, now, orders),
            Message::NotLeader => link.rests_until = now + scene.draw.between(100, 300),
            Message::NotRegistered(
                RegisterError::Ended { .. } | RegisterError::Unknown { .. } | RegisterError::WrongToken(_),
            )
            | Message::BeatRefused(BeatError::Ended { .. } | BeatError::WrongToken(_)) => {
                link.rests_until = now + 1;
                let actions = process.worker.ended(now);
                if process.worker.lease().holds(now) {
                    scene.violate("O6", format!("{} has ended and keeps its lease", self.id));
                }
                self.carry_out(scene, actions);
            }
            Message::NotRegistered(_) => link.rests_until = now + 500,
            Message::BeatRefused(BeatError::Unknown(_) | BeatError::NotYet(_)) => link.rests_until = now + 1,
            _ => {}
        }
        self.tick(scene);
    }

    fn ordered(&mut self, scene: &mut Scene, now: Millis, orders: Orders) {
        let Some(process) = &mut self.process else { return };
        let node = self.at;
        scene.trace.event(scene.now, (14u8, node, orders.version), || {
            let (version, base, lease) = (orders.version, orders.base, orders.lease.is_some());
            let changed: Vec<_> = orders.changed.iter().map(order_words).collect();
            format!(
                "node-{node} is ordered v{version} from v{base}, lease {lease}: {changed:?} -{:?}",
                orders.removed.len()
            )
        });
        process.lapses += u32::from(!process.worker.lease().holds(now));
        let actions = process.worker.apply_orders(now, orders);
        let goes = process.worker.may_go() && !process.gone;
        self.carry_out(scene, actions);
        if goes {
            self.leave_now(scene);
        } else {
            self.tick(scene);
        }
    }

    /// Carries out what the worker says, and what follows from that.
    pub fn carry_out(&mut self, scene: &mut Scene, actions: Vec<Action>) {
        let mut queue: VecDeque<Action> = actions.into();
        while let Some(Action { replica, task }) = queue.pop_front() {
            let now = self.clock.read(scene.now);
            let node = self.at;
            scene.trace.event(scene.now, (13u8, node, replica.placement.0, task_number(task)), || {
                format!("node-{node} {}/{} {}: {task:?}", replica.keyspace, replica.shard, replica.placement)
            });
            let Some(process) = &mut self.process else { return };
            match task {
                Task::Call(callback) => self.call(scene, replica, callback),
                Task::Abandon(callback) => {
                    let stops = scene.draw.chance(500);
                    if let Some(call) = process.calls.abandon(&replica, stops) {
                        let (process, takes) = (self.process_number, scene.draw.around(MS));
                        scene.after(takes, Event::CallbackEnds { node, process, replica, callback, call });
                    }
                }
                Task::AwaitRequests => {
                    if process.service.drain(&replica) {
                        queue.extend(process.worker.requests_ended(now, &replica));
                    }
                }
                // Requests that are inside are told to end, and no more: the last one says that the replica is drained.
                Task::CancelRequests => process.service.evict(scene, (node, self.process_number), &replica),
            }
        }
        self.order_tables(scene);
        self.refresh(scene);
    }

    fn call(&mut self, scene: &mut Scene, replica: ReplicaKey, callback: Callback) {
        if callback == Callback::Unload {
            self.close_table(&replica);
        }
        let Some(process) = &mut self.process else { return };
        process.numbers += 1;
        let call = process.numbers;
        let hangs = scene.draw.chance(self.mood.hangs) || self.stuck.hangs(callback);
        if !process.calls.begin(&replica, callback, call, hangs) || hangs {
            return;
        }
        let takes = self.slow.takes(scene.now, scene.draw.around(self.mood.takes));
        let (node, process) = (self.at, self.process_number);
        scene.after(takes, Event::CallbackEnds { node, process, replica, callback, call });
    }

    /// Whether a callback runs, and its worker waits for it.
    pub fn awaits(&self, replica: &ReplicaKey, call: u64) -> bool {
        self.process.as_ref().is_some_and(|process| process.calls.is_awaited(replica, call))
    }

    /// A callback of the service ends.
    pub fn callback_ends(&mut self, scene: &mut Scene, replica: &ReplicaKey, callback: Callback, call: u64) {
        let now = self.clock.read(scene.now);
        if self.waits_for_base(scene, replica, callback, call) {
            let (node, process, replica) = (self.at, self.process_number, replica.clone());
            return scene.after(LOOKS_AGAIN, Event::CallbackEnds { node, process, replica, callback, call });
        }
        let fails = scene.draw.chance(self.mood.fails);
        let who = (self.at, self.process_number);
        let is_table = scene
            .oracles
            .spaces
            .iter()
            .any(|space| space.is_replicated() && space.keyspace.name == replica.keyspace);
        let Some(process) = &mut self.process else { return };
        let Some(ended) = process.calls.end(replica, call) else { return };
        let fails = fails
            || self.stuck.fails(callback, self.process_number, process.worker.local_replicas().get(replica));
        let result = if fails || ended == Ended::Stopped {
            Err("the service refused".to_owned())
        } else {
            match (callback, process.worker.local_replicas().get(replica)) {
                (Callback::Load, Some(local)) if is_table => {
                    let order = local.order.clone();
                    self.open_table(scene, &order)
                }
                (Callback::Serve(_, epoch), Some(_)) if is_table => self.serve_table(scene, replica, epoch),
                (Callback::Load, Some(local)) => process.service.load(scene, who, local),
                (Callback::Serve(_, epoch), Some(local)) => {
                    process.service.serve(scene, who, &local.order, epoch)
                }
                (Callback::Drop(_), Some(local)) => {
                    process.service.tables.remove(replica);
                    process.service.bases.remove(replica);
                    let needed = scene.oracles.maps.still_needs(self.at, replica);
                    process.service.delete(scene, local);
                    needed.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
                    Ok(())
                }
                (Callback::Unload, _) | (_, None) => Ok(()),
            }
        };
        let Some(process) = &mut self.process else { return };
        if ended == Ended::Awaited {
            let actions = process.worker.returned(now, replica, callback, result);
            self.carry_out(scene, actions);
            self.tick(scene);
        } else if let Some(next) = process.calls.next(replica) {
            self.call(scene, replica.clone(), next);
        }
    }

    /// Has the requests judged by what the worker says now, and tells the oracles which keys it owns.
    fn refresh(&mut self, scene: &mut Scene) {
        let now = self.clock.read(scene.now);
        let Some(process) = &mut self.process else { return };
        process.gates = process.worker.gates();
        let mut claims = Vec::new();
        let spaces = std::rc::Rc::clone(&scene.oracles.spaces);
        for (keyspace, space) in spaces.iter().enumerate().filter(|(_, space)| space.is_exclusive()) {
            for (key, bytes) in space.keys.iter().enumerate() {
                let verdict = process.gates.judge(now, &space.keyspace.name, bytes, Access::Write);
                if let Verdict::Serve(permit) = verdict {
                    claims.push(Claim {
                        key: KeyAt { keyspace, key },
                        epoch: permit.epoch,
                        shard: permit.replica.shard,
                    });
                }
            }
        }
        let serving = process.worker.local_replicas().iter().filter(|(_, local)| local.gate() != Gate::Shut);
        serving.for_each(|(replica, _)| scene.oracles.maps.serves(replica));
        let kills = claims.iter().any(|claim| scene.poison.contains(&claim.key));
        if kills && !std::mem::replace(&mut process.poisoned, true) {
            let (node, process) = (self.at, self.process_number);
            let takes = scene.draw.between(MS, 500 * MS);
            scene.after(takes, Event::Poisoned { node, process });
        }
        let until = self.clock.when(process.worker.lease().end(), scene.now);
        let incarnation = process.worker.incarnation();
        let findings =
            scene.oracles.own(scene.now, (self.at, self.process_number, incarnation), claims, until);
        findings.into_iter().for_each(|(invariant, text)| scene.violate(invariant, text));
    }

    /// Whether it can no longer do any work: nothing runs, or it is on its way out.
    pub fn is_down(&self) -> bool {
        self.process.is_none()
    }
}

/// The digest of a token that only that process has, for one of its registrations.
fn token(node: usize, process: u32, registration: u32) -> SessionDigest {
    let mut digest = SessionDigest([1; 32]);
    digest.0[..8].copy_from_slice(&(node as u64).to_le_bytes());
    digest.0[8..12].copy_from_slice(&process.to_le_bytes());
    digest.0[12..16].copy_from_slice(&registration.to_le_bytes());
    digest
}

/// What a service that is wrong says of a replica of another node.
fn stray(scene: &mut Scene, node: &NodeId) -> Option<Report> {
    let shards = scene.oracles.maps.all().flat_map(|map| map.shards().map(|shard| (map.keyspace(), shard)));
    let of_others = |(name, shard): (&KeyspaceName, &Shard)| {
        let others = shard.replicas.iter().filter(|r| r.node != *node);
        let key = |r: &Replica| (name.clone(), shard.id, r.placement, shard.epoch);
        others.map(key).collect::<Vec<_>>()
    };
    let known: Vec<_> = shards.flat_map(of_others).collect();
    let (keyspace, shard, placement, epoch) = scene.draw.pick(&known).cloned()?;
    let phases = [Phase::Ready, Phase::Serving, Phase::Unloaded, Phase::Dropped];
    let phase = scene.draw.pick(&phases).cloned()?;
    Some(Report {
        replica: ReplicaKey { keyspace, shard, placement },
        phase,
        epoch,
        load: None,
        progress: 0,
        served: None,
        replication: None,
    })
}

fn task_number(task: Task) -> u64 {
    match task {
        Task::Call(Callback::Load) => 1,
        Task::Call(Callback::Serve(_, epoch)) => 100 + epoch.0,
        Task::Call(Callback::Unload) => 2,
        Task::Call(Callback::Drop(_)) => 3,
        Task::Abandon(_) => 4,
        Task::AwaitRequests => 5,
        Task::CancelRequests => 6,
    }
}
