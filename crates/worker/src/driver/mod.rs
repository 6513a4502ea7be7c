//! The task that owns the worker's state machine ([`partage_core::worker::Worker`]) and carries out what it decides.
//!
//! ```text
//!  connection to the coordinator ─┐                  ┌─ publish gates      (always first)
//!  events: callbacks, ...        ─┼─► one step of ───┼─ begin callbacks, wait until replicas are empty
//!  time                          ─┘   the machine    └─ send a heartbeat, if one is due or there is news
//! ```
//!
//! The driver carries out the actions of the machine in that order. It publishes gates before it waits until a replica is
//! empty, so that no request comes in behind the last one ([`crate::in_flight`]).

mod leaving;

use crate::admission::{Held, Published, Shared};
use crate::calls::Calls;
use crate::connection::{ConnectionEvent, CoordinatorConnection};
use crate::error::StartError;
use crate::handler::{Assignment, Handler};
use crate::in_flight::InFlight;
use crate::limits;
use crate::replication::ReplicationReports;
use partage_core::base::count::counted_with;
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use partage_core::keyspace::Ownership;
use partage_core::keyspace::map::Role;
use partage_core::node::NodeSpec;
use partage_core::node::exchange::{KeyspaceBrief, Orders, ReplicaKey, Welcome};
use partage_core::node::load::Load;
use partage_core::worker::{Action, Callback, LocalReplica, NoSuccessor, Task, Worker as Machine};
use partage_wire::proto::{self, from_worker, to_worker};
use partage_wire::{Refusal, Retry};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, WeakSender};
use tokio::sync::oneshot;
use tokio::time::sleep;

const NO_CONNECTION: &str = "no connection to a coordinator";
const REFUSED: &str = "the coordinator refuses this node";

/// What reaches the driver besides the coordinator's messages and time.
pub enum Event {
    /// A callback has returned.
    Returned {
        /// The replica that the callback was called for.
        replica: ReplicaKey,
        /// The number of the call; each call that this worker begins has a higher one.
        number: u64,
        /// The callback that has returned.
        callback: Callback,
        /// Ok, or the reason that the service gave.
        result: Result<(), String>,
    },
    /// A `load` finds that what is stored is damaged; its return follows.
    Damaged {
        /// The replica that was being loaded.
        replica: ReplicaKey,
        /// The number of the call.
        number: u64,
    },
    /// No request is in flight in that replica.
    Emptied(ReplicaKey),
    /// Newly measured loads of replicas, for the next heartbeat.
    Measured(Vec<(ReplicaKey, Load)>),
    /// The service wants to leave; answered when it may end.
    Leave(oneshot::Sender<()>),
    /// The service wants to stay after all; answered when that is on its way.
    Stay(oneshot::Sender<()>),
    /// The service cannot serve what it has of that shard, for that reason.
    Unhealthy(KeyspaceName, ShardId, String),
    /// The service no longer leads that shard, for that reason; answered with whether it has laid the lead down.
    LayDown(KeyspaceName, ShardId, String, oneshot::Sender<Result<(), NoSuccessor>>),
    /// The load of that replica gets on.
    Progressed(ReplicaKey),
    /// Unload everything, say goodbye, and end.
    Stop,
    /// End at once, without sending `leave`.
    Abort,
}

/// What the loop does next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Stop,
    End,
}

enum Step {
    Event(Option<Event>),
    Connection(ConnectionEvent),
    Replication,
    Time,
}

/// The task that owns the worker's state machine, [`Machine`], and carries out what it decides.
pub struct Driver {
    pub machine: Machine,
    pub spec: NodeSpec,
    pub shared: Arc<Shared>,
    pub connection: CoordinatorConnection,
    pub calls: Calls,
    pub handler: Arc<dyn Handler>,
    pub replication: ReplicationReports,
    pub events: Receiver<Event>,
    pub own: WeakSender<Event>,
    /// Waits for the first registration.
    pub starter: Option<oneshot::Sender<Result<(), StartError>>>,
    pub state: State,
}

/// What the driver remembers beside the machine.
#[derive(Default)]
pub struct State {
    in_flight: BTreeMap<ReplicaKey, Arc<InFlight>>,
    /// The present coordinator's answer to the registration; none without such a coordinator.
    welcome: Option<Welcome>,
    /// Proves that this is the process that registered; given by the first welcome of an incarnation.
    token: String,
    last_beat: Millis,
    last_answer: Millis,
    lapses: u64,
    /// The gates may differ from what is published.
    dirty: bool,
    /// Only the lease or the connection differs from what is published.
    renewed: bool,
    beat_now: bool,
    /// When the driver last logged that it is not registered, and why; none once it is.
    warned: Option<(Millis, &'static str)>,
    /// Why the worker refused a coordinator, and when the driver logged it.
    refused: Option<(String, Millis)>,
    leavers: Vec<oneshot::Sender<()>>,
}

impl Driver {
    /// Runs until it gets the order to stop, may leave, or the last handle of the worker is gone.
    pub async fn run(mut self) {
        while self.step().await == Flow::On {}
        // Requests in flight find that this node is no owner any more; no new one begins.
        self.shared.publish(Published { lapses: u64::MAX, ..Published::default() }, true);
        self.state.in_flight.values().for_each(|in_flight| in_flight.evict());
    }

    async fn step(&mut self) -> Flow {
        let rest = Duration::from_millis(self.wake_at().since(self.now()).min(60_000));
        let step = tokio::select! {
            event = self.events.recv() => Step::Event(event),
            event = self.connection.next() => Step::Connection(event),
            () = self.replication.changed() => Step::Replication,
            () = sleep(rest) => Step::Time,
        };
        let mut actions = Vec::new();
        let flow = match step {
            Step::Event(None) => Flow::End,
            Step::Event(Some(event)) => self.events(event, &mut actions),
            Step::Connection(event) => self.connection_event(event, &mut actions),
            Step::Replication | Step::Time => Flow::On,
        };
        for (replica, report) in self.replication.take() {
            self.machine.replicates(&replica, report);
        }
        match flow {
            Flow::On => {}
            // Actions of earlier events in the same batch still run.
            Flow::Stop => {
                self.stop(actions).await;
                return flow;
            }
            Flow::End => return flow,
        }
        actions.extend(self.machine.run(self.now()));
        self.state.dirty |= !actions.is_empty();
        self.publish();
        self.tell_starter();
        actions.into_iter().for_each(|action| self.carry_out(action));
        self.send_beat_if_due();
        // The machine forgets dropped replicas once it has reported them.
        if self.machine.local_replicas().len() != self.state.in_flight.len() {
            self.state.dirty = true;
            self.publish();
        }
        if self.machine.may_go() && self.state.welcome.is_some() {
            self.say_goodbye().await;
            return Flow::End;
        }
        Flow::On
    }

    /// Answers the starter after the registration is published, as it may use the worker at once.
    fn tell_starter(&mut self) {
        if self.state.welcome.is_some()
            && let Some(starter) = self.starter.take()
        {
            // The caller that started it may have given up; then the worker ends with its last handle.
            let _ = starter.send(Ok(()));
        }
    }

    fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    fn wake_at(&self) -> Millis {
        let welcome = self.state.welcome.as_ref();
        let beat = welcome.map(|welcome| self.state.last_beat + welcome.heartbeat_ms);
        self.machine.wake_at().min(beat.unwrap_or(Millis::NEVER))
    }

    /// Handles an event and those that wait behind it, so that a burst costs one publication and one heartbeat.
    fn events(&mut self, first: Event, actions: &mut Vec<Action>) -> Flow {
        let mut next = Some(first);
        for _ in 0..limits::BATCH {
            let Some(event) = next else { break };
            let flow = self.event(event, actions);
            if flow != Flow::On {
                return flow;
            }
            next = self.events.try_recv().ok();
        }
        match next {
            Some(event) => self.event(event, actions),
            None => Flow::On,
        }
    }

    fn event(&mut self, event: Event, actions: &mut Vec<Action>) -> Flow {
        let now = self.now();
        match event {
            Event::Returned { replica, number, callback, result } => {
                if self.calls.ended(&replica, number) {
                    if let Err(reason) = &result {
                        let shard = replica.shard;
                        tracing::warn!(keyspace = %replica.keyspace, %shard, ?callback, "failed: {reason}");
                    }
                    self.state.dirty = true;
                    actions.extend(self.machine.returned(now, &replica, callback, result));
                }
            }
            Event::Damaged { replica, number } => {
                if self.calls.is_running(&replica, number) {
                    self.machine.damaged(&replica);
                }
            }
            Event::Emptied(replica) => {
                self.state.dirty = true;
                actions.extend(self.machine.requests_ended(now, &replica));
            }
            Event::Measured(loads) => {
                loads.into_iter().for_each(|(replica, load)| self.machine.measured(&replica, load));
            }
            Event::Leave(leaver) => {
                self.machine.leave();
                self.state.leavers.push(leaver);
                self.state.beat_now = true;
                self.state.renewed = true;
            }
            Event::Stay(asker) => {
                self.machine.stay();
                // Each `leave` that waits finds that its answer will not come.
                self.state.leavers.clear();
                self.state.beat_now = true;
                self.state.renewed = true;
                // The caller may have stopped waiting.
                let _ = asker.send(());
            }
            Event::Unhealthy(keyspace, shard, reason) => {
                self.unhealthy(&keyspace, shard, &reason, actions);
            }
            Event::LayDown(keyspace, shard, reason, asker) => {
                let laid_down = self.lay_down(&keyspace, shard, &reason, actions);
                // The caller may have stopped waiting.
                let _ = asker.send(laid_down);
            }
            Event::Progressed(replica) => self.machine.progressed(now, &replica),
            Event::Stop => return Flow::Stop,
            Event::Abort => return Flow::End,
        }
        Flow::On
    }

    fn unhealthy(
        &mut self,
        keyspace: &KeyspaceName,
        shard: ShardId,
        reason: &str,
        actions: &mut Vec<Action>,
    ) {
        let of_shard = |key: &&ReplicaKey| key.keyspace == *keyspace && key.shard == shard;
        let replicas: Vec<_> = self.machine.local_replicas().keys().filter(of_shard).cloned().collect();
        for replica in replicas {
            tracing::warn!(%keyspace, %shard, "the service reports it unhealthy: {reason}");
            actions.extend(self.machine.unhealthy(self.now(), &replica, reason));
        }
        self.state.dirty = true;
    }

    fn lay_down(
        &mut self,
        keyspace: &KeyspaceName,
        shard: ShardId,
        reason: &str,
        actions: &mut Vec<Action>,
    ) -> Result<(), NoSuccessor> {
        let leads = |(key, held): &(&ReplicaKey, &LocalReplica)| {
            key.keyspace == *keyspace && key.shard == shard && held.order.role == Role::Leader
        };
        let replica = self.machine.local_replicas().iter().find(leads).map(|(key, _)| key.clone());
        let replica = replica.ok_or(NoSuccessor::DoesNotLead)?;
        actions.extend(self.machine.lay_down(self.now(), &replica, reason)?);
        tracing::warn!(%keyspace, %shard, "the service lays down its lead: {reason}");
        self.state.dirty = true;
        Ok(())
    }

    fn connection_event(&mut self, event: ConnectionEvent, actions: &mut Vec<Action>) -> Flow {
        match event {
            ConnectionEvent::BackoffOver => {
                let registration = self.machine.registration(self.spec.clone());
                let token = self.state.token.clone();
                self.connection.open(proto::Register { token, ..(&registration).into() });
            }
            ConnectionEvent::Opened => {}
            ConnectionEvent::Lost { coordinator, why } => self.lost(&coordinator, NO_CONNECTION, &why),
            ConnectionEvent::Redirected(why) => {
                tracing::debug!(node = %self.spec.id, "{why}");
                self.connection_is_down();
            }
            ConnectionEvent::Message(to_worker::Message::Welcome(mut form)) => {
                let token = std::mem::take(&mut form.token);
                match Welcome::try_from(form) {
                    Ok(welcome) => self.welcomed(welcome, token),
                    Err(malformed) => self.give_up_connection(NO_CONNECTION, &malformed.to_string()),
                }
            }
            ConnectionEvent::Message(to_worker::Message::Orders(form)) => match Orders::try_from(form) {
                Ok(orders) => self.ordered(orders, actions),
                Err(malformed) => self.give_up_connection(NO_CONNECTION, &malformed.to_string()),
            },
            ConnectionEvent::Message(to_worker::Message::Refused(form)) => {
                return self.refused(form.into(), actions);
            }
        }
        Flow::On
    }

    fn welcomed(&mut self, welcome: Welcome, token: String) {
        if let Err(refusal) = self.machine.welcomed(&welcome) {
            return self.refuse_coordinator(&refusal.to_string());
        }
        if !token.is_empty() {
            self.state.token = token;
        }
        tracing::info!(
            node = %self.spec.id, incarnation = %welcome.incarnation,
            "registered at {}", self.connection.coordinator()
        );
        self.connection.settled(welcome.lease_ms);
        self.state.warned = None;
        self.state.last_answer = self.now();
        self.state.welcome = Some(welcome);
        self.state.beat_now = true;
        self.state.renewed = true;
    }

    fn ordered(&mut self, orders: Orders, actions: &mut Vec<Action>) {
        let now = self.now();
        let quiet = orders.changed.is_empty() && orders.removed.is_empty() && orders.base != 0;
        self.state.dirty |= !quiet;
        if let Some(lease) = orders.lease {
            self.connection.told(lease.spread_ms);
            self.state.last_answer = now;
            self.state.renewed = true;
        }
        let (had_lapsed, end) = (!self.machine.lease().holds(now), self.machine.lease().end());
        let changed: Vec<_> = orders.changed.iter().map(|order| order.replica.clone()).collect();
        actions.extend(self.machine.apply_orders(now, orders));
        self.pass_on(&changed);
        if let Some(refusal) = self.machine.refusal().cloned() {
            self.refuse_coordinator(&refusal.to_string());
        }
        if had_lapsed && self.machine.lease().holds(now) {
            if self.state.lapses > 0 {
                let late_ms = now.since(end);
                tracing::warn!(node = %self.spec.id, late_ms, "the lease had lapsed: exclusive shards waited");
            }
            self.state.lapses += 1;
            self.state.dirty = true;
        }
    }

    /// Passes orders for replicas of replicated keyspaces to the service. It keeps none of a replica whose data it deletes: an
    /// order that came behind that would stay with it for ever.
    fn pass_on(&self, changed: &[ReplicaKey]) {
        let Some(incarnation) = self.machine.incarnation() else { return };
        for replica in changed {
            let is_replicated = |brief: &&KeyspaceBrief| brief.ownership == Ownership::Replicated;
            let brief = self.machine.keyspace(&replica.keyspace).filter(is_replicated);
            let local = self.machine.local_replicas().get(replica).filter(|local| !local.is_being_dropped());
            if let (Some(brief), Some(local)) = (brief, local) {
                self.handler.ordered(&local.order, brief, incarnation);
            }
        }
    }

    /// Leaves a coordinator of another cluster, or of an older state, for the next one, and keeps all data. Logs it at once and
    /// again now and then, as a person has to act.
    fn refuse_coordinator(&mut self, why: &str) {
        let now = self.now();
        let is_said = |(said, at): &(String, Millis)| said == why && now.since(*at) < limits::WARN_AGAIN_MS;
        if !self.state.refused.as_ref().is_some_and(is_said) {
            tracing::error!(node = %self.spec.id, coordinator = self.connection.coordinator(), "{why}");
            self.state.refused = Some((why.to_owned(), now));
        }
        self.give_up_connection(NO_CONNECTION, why);
    }

    /// The coordinator refused a registration, a heartbeat or a leave.
    fn refused(&mut self, refusal: Refusal, actions: &mut Vec<Action>) -> Flow {
        let starting = self.starter.is_some();
        match refusal.retry {
            Retry::Needless => {}
            Retry::Register => {
                let coordinator = self.connection.coordinator().to_owned();
                self.lost(&coordinator, NO_CONNECTION, &refusal.to_string());
                self.connection.reopen();
            }
            Retry::AsNew => {
                tracing::warn!(node = %self.spec.id, "{refusal}");
                actions.extend(self.machine.ended(self.now()));
                self.connection_is_down();
                self.state.dirty = true;
                self.connection.reopen();
            }
            Retry::Never if starting => {
                if let Some(starter) = self.starter.take() {
                    let _ = starter.send(Err(StartError::Refused(refusal)));
                }
                return Flow::End;
            }
            Retry::Later if refusal.kind == Refusal::OTHER_CLUSTER => {
                self.refuse_coordinator(&refusal.message)
            }
            Retry::Never | Retry::Later => self.give_up_connection(REFUSED, &refusal.to_string()),
        }
        Flow::On
    }

    fn give_up_connection(&mut self, what: &'static str, reason: &str) {
        let coordinator = self.connection.coordinator().to_owned();
        self.lost(&coordinator, what, reason);
        self.connection.leave_for_next();
    }

    /// Logs it once, and again now and then: a leader that was killed is tried many times until the next one leads.
    fn lost(&mut self, coordinator: &str, what: &'static str, reason: &str) {
        let (now, node) = (self.now(), &self.spec.id);
        let is_known = |(at, said)| said == what && now.since(at) < limits::WARN_AGAIN_MS;
        if !self.state.warned.is_some_and(is_known) {
            tracing::warn!(%node, coordinator, "{what}: {reason}; trying all of them");
            self.state.warned = Some((now, what));
        } else {
            tracing::debug!(%node, coordinator, "{what}: {reason}");
        }
        self.connection_is_down();
    }

    fn connection_is_down(&mut self) {
        self.machine.unanswered();
        self.state.welcome = None;
        self.state.renewed = true;
    }

    /// Sends a heartbeat if one is due or there is news; leaves a coordinator that does not answer heartbeats.
    fn send_beat_if_due(&mut self) {
        let Some(Welcome { heartbeat_ms, lease_ms, .. }) = self.state.welcome.clone() else { return };
        let now = self.now();
        let due = now.since(self.state.last_beat) >= heartbeat_ms;
        if !(due || self.state.beat_now || self.machine.has_news()) {
            return;
        }
        let patience_ms = (limits::SILENT_BEATS * heartbeat_ms).max(lease_ms / 2);
        if now.since(self.state.last_answer) > patience_ms {
            self.connection.said_nothing();
            self.give_up_connection(NO_CONNECTION, "it does not answer heartbeats");
            return;
        }
        self.state.last_beat = now;
        if !self.connection.is_free() {
            self.machine.unanswered();
            return;
        }
        self.machine.set_busy(f64::from_bits(self.shared.busy.load(Ordering::Relaxed)));
        self.machine.set_disk(self.shared.disk());
        if let Some(beat) = self.machine.beat(now) {
            self.state.beat_now = false;
            self.connection.send(from_worker::Message::Beat((&beat).into()));
        }
    }

    fn carry_out(&mut self, Action { replica, task }: Action) {
        match task {
            Task::Call(callback) => {
                // One that was taken back while its data went: the service has not got the order yet.
                if callback == Callback::Load {
                    self.pass_on(std::slice::from_ref(&replica));
                }
                if let Some(shard) = self.assignment(&replica) {
                    self.calls.begin(shard, callback);
                }
            }
            Task::Abandon(_) => self.calls.abandon(&replica),
            Task::AwaitRequests => {
                let Some(in_flight) = self.state.in_flight.get(&replica).cloned() else { return };
                let events = self.own.clone();
                tokio::spawn(async move {
                    in_flight.emptied().await;
                    if let Some(events) = events.upgrade() {
                        let _ = events.send(Event::Emptied(replica)).await;
                    }
                });
            }
            // The callback still waits until the replica is empty: the next owner may not begin before.
            Task::CancelRequests => {
                if let Some(in_flight) = self.state.in_flight.get(&replica) {
                    let (shard, count) = (replica.shard, in_flight.count());
                    let requests = counted_with(count, "request", ("is", "are"));
                    tracing::warn!(keyspace = %replica.keyspace, %shard, "{requests} told to end");
                    in_flight.evict();
                }
            }
        }
    }

    fn assignment(&self, replica: &ReplicaKey) -> Option<Assignment> {
        let local = self.machine.local_replicas().get(replica)?;
        Some(Assignment::new(local, self.machine.keyspace(&replica.keyspace), self.machine.cluster()))
    }

    /// Publishes what has changed to the threads that answer requests.
    fn publish(&mut self) {
        let (dirty, renewed) =
            (std::mem::take(&mut self.state.dirty), std::mem::take(&mut self.state.renewed));
        if !dirty && !renewed {
            return;
        }
        let before = self.shared.published.load_full();
        let (gates, replicas) = if dirty {
            (self.machine.gates(), Arc::new(self.replicas()))
        } else {
            (before.gates.renewed(*self.machine.lease()), before.replicas.clone())
        };
        let published = Published {
            gates,
            replicas,
            lapses: self.state.lapses,
            incarnation: self.machine.incarnation(),
            connected: self.state.welcome.is_some(),
            leaving: !self.state.leavers.is_empty(),
        };
        self.shared.publish(published, dirty);
    }

    fn replicas(&mut self) -> BTreeMap<ReplicaKey, Held> {
        let mut replicas = BTreeMap::new();
        for (key, local) in self.machine.local_replicas() {
            let (brief, cluster) = (self.machine.keyspace(&key.keyspace), self.machine.cluster());
            let assignment = Assignment::new(local, brief, cluster);
            let in_flight = match self.state.in_flight.remove(key) {
                Some(in_flight) => in_flight,
                None => Arc::new(InFlight::new(assignment.clone())),
            };
            in_flight.assign(assignment);
            replicas.insert(key.clone(), Held { in_flight, phase: local.phase() });
        }
        self.state.in_flight =
            replicas.iter().map(|(key, held)| (key.clone(), held.in_flight.clone())).collect();
        replicas
    }
}
