//! The handle that a service holds, and how it is made.

use crate::admission::{Admission, OwnershipHandle, Shared};
use crate::calls::{Calls, sentence};
use crate::connection::CoordinatorConnection;
use crate::driver::{Driver, Event, State};
use crate::error::{LayDownError, LeaveError, StartError};
use crate::handler::{Assignment, Closures, Failure, Handler};
use crate::replication::ReplicationReports;
use crate::{limits, measure, metrics};
use futures::future::BoxFuture;
use partage_clock::Clock;
use partage_core::base::id::{Generation, Incarnation, ShardId};
use partage_core::base::name::{KeyspaceName, Label, NodeId, Zone};
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::map::Access;
use partage_core::node::exchange::{Phase, ReplicaKey};
use partage_core::node::{CheckBack, NodeSpec};
use partage_core::worker::{CallbackTimeouts, Worker as Machine};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// This process as a node of the cluster. Cheap to clone; when the last clone is dropped the worker stops as by
/// [`Worker::abort`], so that others get its shards when its lease is over: call [`Worker::shutdown`] before.
#[derive(Clone)]
pub struct Worker {
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
}

/// Everything a worker says of itself, before it starts.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing before it is started"]
pub struct Builder {
    node: String,
    coordinators: Vec<String>,
    address: String,
    capacity: f64,
    zone: Option<String>,
    rack: Option<String>,
    labels: Vec<String>,
    kinds: BTreeSet<KeyspaceKind>,
    check_back: CheckBack,
    resp_address: Option<String>,
    callback_timeouts: CallbackTimeouts,
    within: Option<Duration>,
    replication: ReplicationReports,
    loads: usize,
    serves: usize,
}

/// How a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The worker is not registered yet, or any more.
    Joining,
    /// The worker hears the coordinator.
    Up,
    /// The worker does not hear the coordinator, and does not serve exclusive shards.
    Lapsed,
    /// The worker is leaving, and serves until it may go.
    Leaving,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Health::Joining => "joining",
            Health::Up => "up",
            Health::Lapsed => "lapsed",
            Health::Leaving => "leaving",
        })
    }
}

/// One replica as this worker has it.
#[derive(Debug, Clone)]
pub struct Replica {
    /// The newest order for the replica.
    pub assignment: Arc<Assignment>,
    /// How far it is.
    pub phase: Phase,
    /// Requests that were let in and have not ended.
    pub in_flight: usize,
    /// Requests let in since it came.
    pub requests: u64,
    /// Processor time of its requests since it came.
    pub cpu: Duration,
}

impl Builder {
    /// Its share of every load, relative to other nodes; 1 unless said.
    pub fn capacity(self, capacity: f64) -> Builder {
        Builder { capacity, ..self }
    }

    /// What fails with it: a data centre, a building.
    pub fn zone(self, zone: impl Into<String>) -> Builder {
        Builder { zone: Some(zone.into()), ..self }
    }

    /// A smaller failure domain inside the zone.
    pub fn rack(self, rack: impl Into<String>) -> Builder {
        Builder { rack: Some(rack.into()), ..self }
    }

    /// Words to pin and exclude shards by.
    pub fn labels<L: Into<String>>(self, labels: impl IntoIterator<Item = L>) -> Builder {
        Builder { labels: labels.into_iter().map(Into::into).collect(), ..self }
    }

    /// Which kinds of keyspaces it serves; unless said, `app`: no shard of another comes here.
    pub fn kinds(self, kinds: impl IntoIterator<Item = KeyspaceKind>) -> Builder {
        Builder { kinds: kinds.into_iter().collect(), ..self }
    }

    /// The coordinator checks that `GET` of this path answers 200; unless said, that the port opens. Say
    /// [`crate::http::WORKER_PATH`] where [`crate::http::router`] is mounted.
    pub fn check_path(self, path: impl Into<String>) -> Builder {
        Builder { check_back: CheckBack::Get(path.into()), ..self }
    }

    /// Where clients of Redis reach the node, `host:port`: what redirects of other nodes name.
    pub fn resp_address(self, address: impl Into<String>) -> Builder {
        Builder { resp_address: Some(address.into()), ..self }
    }

    /// How long callbacks and last requests may take.
    pub fn callback_timeouts(self, callback_timeouts: CallbackTimeouts) -> Builder {
        Builder { callback_timeouts, ..self }
    }

    /// How many `load` callbacks may run at once; [`limits::LOADS`] unless said, at least one. Further loads wait,
    /// and their timeout ([`CallbackTimeouts::load_ms`]) runs meanwhile.
    pub fn loads_at_once(self, loads: usize) -> Builder {
        Builder { loads, ..self }
    }

    /// How many `serve` callbacks may run at once; [`limits::SERVES`] unless said, at least one. Further ones wait, and
    /// their timeout ([`CallbackTimeouts::callback_ms`]) runs meanwhile.
    pub fn serves_at_once(self, serves: usize) -> Builder {
        Builder { serves, ..self }
    }

    /// Where the replicas of replicated keyspaces report. A wish for another in-sync set, and a leader that is silent, go to
    /// the coordinator at once; everything else goes with the next beat.
    pub fn replication(self, reports: &ReplicationReports) -> Builder {
        Builder { replication: reports.clone(), ..self }
    }

    /// Give up if no coordinator takes it within that time; unless said, it tries for ever.
    pub fn register_within(self, within: Duration) -> Builder {
        Builder { within: Some(within), ..self }
    }

    fn spec(&self) -> Result<NodeSpec, StartError> {
        let zone = |name: &Option<String>| name.as_deref().map(Zone::new).transpose();
        let labels: Result<BTreeSet<_>, _> = self.labels.iter().map(|label| Label::new(label)).collect();
        let spec = NodeSpec {
            capacity: self.capacity,
            zone: zone(&self.zone)?,
            rack: zone(&self.rack)?,
            labels: labels?,
            kinds: self.kinds.clone(),
            check_back: self.check_back.clone(),
            resp_address: self.resp_address.clone(),
            ..NodeSpec::new(NodeId::new(&self.node)?, self.address.as_str())
        };
        spec.check()?;
        if self.coordinators.is_empty() {
            return Err(StartError::NoCoordinator(self.node.clone()));
        }
        Ok(spec)
    }

    /// Registers, and begins to serve what the coordinator gives it. Callbacks may come before this returns.
    ///
    /// # Errors
    /// When what it announces cannot be, when the coordinator refuses it for good (its name is taken by a node that
    /// lives), or when no coordinator has taken it in the time allowed.
    pub async fn start(self, handler: impl Handler) -> Result<Worker, StartError> {
        self.start_shared(Arc::new(handler)).await
    }

    /// The same with a handler that the service keeps a hand on.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub fn start_shared(self, handler: Arc<dyn Handler>) -> BoxFuture<'static, Result<Worker, StartError>> {
        // Boxed, so that the compiler makes the code of a worker in this crate, and not in each that starts one.
        Box::pin(self.begin(handler))
    }

    async fn begin(self, handler: Arc<dyn Handler>) -> Result<Worker, StartError> {
        let spec = self.spec()?;
        let shared = Arc::new(Shared::new(spec.id.clone(), self.coordinators.clone(), Clock::start()));
        let (events, inbox) = mpsc::channel(limits::EVENTS);
        let (starter, started) = oneshot::channel();
        let found = handler.stored().await;
        let found = found.map_err(|failure| StartError::Stored {
            node: self.node.clone(),
            why: sentence(failure.to_string()),
        })?;
        let driver = Driver {
            machine: Machine::new(spec.id.clone(), self.callback_timeouts)
                .with_stored(found.cluster, found.replicas),
            spec,
            shared: shared.clone(),
            connection: CoordinatorConnection::new(self.coordinators.clone()),
            calls: Calls::new(handler.clone(), events.downgrade(), self.loads, self.serves),
            handler: handler.clone(),
            replication: self.replication,
            events: inbox,
            own: events.downgrade(),
            starter: Some(starter),
            state: State::default(),
        };
        tokio::spawn(driver.run());
        tokio::spawn(measure::run(shared.clone(), handler, events.downgrade()));
        let worker = Worker { shared, events };
        let started = match self.within {
            None => started.await,
            Some(within) => timeout(within, started).await.map_err(|_| StartError::TimedOut {
                node: self.node,
                coordinators: self.coordinators.join(", "),
                within,
            })?,
        };
        started.map_err(|_| StartError::Stopped)?.map(|()| worker)
    }
}

impl Worker {
    /// A worker by its name (kept across restarts), the coordinators it may register at, and the address
    /// where its own requests come in, `host:port` as other processes reach it.
    pub fn builder<C: Into<String>>(
        node: impl Into<String>,
        coordinators: impl IntoIterator<Item = C>,
        address: impl Into<String>,
    ) -> Builder {
        Builder {
            node: node.into(),
            coordinators: coordinators.into_iter().map(Into::into).collect(),
            address: address.into(),
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: Vec::new(),
            kinds: [KeyspaceKind::App].into(),
            check_back: CheckBack::Connect,
            resp_address: None,
            callback_timeouts: CallbackTimeouts::default(),
            within: None,
            replication: ReplicationReports::default(),
            loads: limits::LOADS,
            serves: limits::SERVES,
        }
    }

    /// The short form (A10): a coordinator, its own address (which is its name too), what to do when a shard
    /// comes and when it goes. See [`Closures`].
    pub async fn with_closures<S, D, FS, FD>(
        coordinator: impl Into<String>,
        address: impl Into<String>,
        serve: S,
        delete: D,
    ) -> Result<Worker, StartError>
    where
        S: Fn(Assignment) -> FS + Send + Sync + 'static,
        D: Fn(Assignment) -> FD + Send + Sync + 'static,
        FS: Future<Output = Result<(), Failure>> + Send + 'static,
        FD: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let address = address.into();
        let builder = Worker::builder(address.clone(), [coordinator], address);
        builder.start(Closures::new(serve, delete)).await
    }

    /// The name under which the node registers.
    pub fn node(&self) -> &NodeId {
        &self.shared.node
    }

    /// Which start of it this is; none while it is not registered.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.shared.published.load().incarnation
    }

    /// How it is doing.
    pub fn health(&self) -> Health {
        let published = self.shared.published.load();
        match published.incarnation {
            None => Health::Joining,
            Some(_) if published.leaving => Health::Leaving,
            Some(_) if published.connected => Health::Up,
            Some(_) => Health::Lapsed,
        }
    }

    /// Each replica that the node holds, as it is at this moment.
    pub fn replicas(&self) -> Vec<Replica> {
        let published = self.shared.published.load();
        let replica = |held: &crate::admission::Held| Replica {
            assignment: held.in_flight.assignment(),
            phase: held.phase.clone(),
            in_flight: held.in_flight.count(),
            requests: held.in_flight.requests(),
            cpu: Duration::from_nanos(held.in_flight.cpu()),
        };
        published.replicas.values().map(replica).collect()
    }

    /// Which map of that keyspace its orders are from; none if it has nothing of it.
    pub fn generation(&self, keyspace: &KeyspaceName) -> Option<Generation> {
        self.shared.published.load().gates.generation(keyspace)
    }

    /// Lets a request for `key` in, or says why not. Costs well under a microsecond and never waits.
    pub fn enter(&self, keyspace: &KeyspaceName, key: &[u8], access: Access) -> Admission {
        self.shared.enter(keyspace, key, access)
    }

    /// The same; while the answer is [`Admission::Soon`] it waits, at most for `hold`, and at once gives up
    /// when [`limits::WAITERS`] wait already.
    pub async fn enter_or_wait(
        &self,
        keyspace: &KeyspaceName,
        key: &[u8],
        access: Access,
        hold: Duration,
    ) -> Admission {
        self.shared.enter_or_wait(keyspace, key, access, Instant::now() + hold).await
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether it has left or stopped: it hears of no change any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_left.load(Ordering::Relaxed) || self.events.is_closed()
    }

    /// A handle on a shard that is served here now, to be asked later whether it still is.
    pub fn ownership(&self, keyspace: &KeyspaceName, shard: ShardId) -> Option<OwnershipHandle> {
        OwnershipHandle::of(&self.shared, keyspace, shard)
    }

    /// Says which share of this node's capacity foreground work takes, 0 to 1; moves give way above 0.5
    /// (K17).
    pub fn set_busy(&self, busy: f64) {
        let busy = if busy.is_finite() { busy.clamp(0.0, 1.0) } else { 0.0 };
        self.shared.busy.store(busy.to_bits(), Ordering::Relaxed);
    }

    /// Says whether the disk of this node has no room, so that it takes no writes. While it is so, the coordinator places nothing
    /// new here, and lets other nodes lead that take writes; where none does, this one leads on. The next beat says it.
    pub fn set_disk_full(&self, disk_full: bool) {
        self.shared.disk_full.store(disk_full, Ordering::Relaxed);
    }

    /// Says whether the disk of this node has little room: while it is so, the coordinator places nothing new here. The node
    /// keeps what it has, and leads on. The next beat says it.
    pub fn set_disk_nearly_full(&self, disk_nearly_full: bool) {
        self.shared.disk_nearly_full.store(disk_nearly_full, Ordering::Relaxed);
    }

    /// Says whether the disk of this node has stored nothing for so long that writes should not wait for it. The same follows as
    /// of [`Worker::set_disk_full`].
    pub fn set_disk_stalled(&self, disk_stalled: bool) {
        self.shared.disk_stalled.store(disk_stalled, Ordering::Relaxed);
    }

    /// Leaves gracefully (A13): asks the coordinator to have everything served elsewhere, goes on serving
    /// until it is, sends `leave`, and waits for [`limits::LINGER`]: a client that has not heard yet is told
    /// where to go, which a closed listener could not do. Call it on SIGTERM, keep the server running
    /// meanwhile, end afterwards.
    ///
    /// `within` bounds the handing over; whatever is held then goes down with the process.
    ///
    /// # Errors
    /// [`LeaveError::TimedOut`] when it still holds replicas then; [`LeaveError::NoCoordinator`] when no coordinator
    /// answers and the lease is over; [`LeaveError::Undone`] after [`Worker::stay`]; [`LeaveError::Stopped`] when it has
    /// stopped already.
    pub async fn leave(&self, within: Duration) -> Result<(), LeaveError> {
        let (leaver, left) = oneshot::channel();
        self.events.send(Event::Leave(leaver)).await.map_err(|_| LeaveError::Stopped)?;
        let left = unless_abandoned(left, self.wait_until_abandoned());
        match timeout(within, left).await {
            Ok(None) => Err(LeaveError::NoCoordinator { held: self.shared.published.load().replicas.len() }),
            Ok(Some(Ok(()))) => {
                self.shared.has_left.store(true, Ordering::Relaxed);
                sleep(limits::LINGER).await;
                Ok(())
            }
            Ok(Some(Err(_))) if self.events.is_closed() => Err(LeaveError::Stopped),
            Ok(Some(Err(_))) => Err(LeaveError::Undone),
            Err(_) => {
                let held = self.shared.published.load().replicas.len();
                Err(LeaveError::TimedOut { within, held })
            }
        }
    }

    /// Returns when no coordinator has this worker and its lease is over.
    async fn wait_until_abandoned(&self) {
        loop {
            let published = self.shared.published.load_full();
            let holds = published.gates.lease().holds(self.shared.clock.now());
            if !published.connected && !holds {
                return;
            }
            sleep(limits::LOOK_AGAIN).await;
        }
    }

    /// Undoes a [`Worker::leave`] that waits or has timed out: shards may come here again. Calls of `leave` that wait
    /// return [`LeaveError::Undone`].
    ///
    /// # Errors
    /// [`LeaveError::Stopped`] when it has left or stopped already.
    pub async fn stay(&self) -> Result<(), LeaveError> {
        let (asker, heard) = oneshot::channel();
        self.events.send(Event::Stay(asker)).await.map_err(|_| LeaveError::Stopped)?;
        heard.await.map_err(|_| LeaveError::Stopped)
    }

    /// Reports that this worker cannot serve a shard which it serves now ("its disk died"): no further request is let
    /// in, those inside end, `unload` is called and then `load`, which should fail for as long as the reason lasts.
    /// Until `load` has succeeded the replica is reported failed with `reason`: a follower that serves leads in
    /// its place, and one that stays failed is moved to another node. A leader that could still follow calls
    /// [`Worker::lay_down_lead`] instead.
    ///
    /// Reports about shards that are not served here do nothing.
    ///
    /// # Errors
    /// [`LeaveError::Stopped`] when the worker has stopped.
    pub async fn report_unhealthy(
        &self,
        keyspace: &KeyspaceName,
        shard: ShardId,
        reason: impl Into<String>,
    ) -> Result<(), LeaveError> {
        let reason = sentence(reason.into());
        let report = Event::Unhealthy(keyspace.clone(), shard, reason);
        self.events.send(report).await.map_err(|_| LeaveError::Stopped)
    }

    /// Lays down the lead of a shard ("the machine is too hot"): no further request is let in, those inside end, and the
    /// replica is reported failed with `reason` until the coordinator names another leader. Then `serve` comes, to
    /// follow. Nothing is unloaded. When every other replica goes before that, this one leads again.
    ///
    /// # Errors
    /// [`LayDownError::Refused`] where this worker does not lead the shard, or no other replica of it is live; nothing
    /// has changed. [`LayDownError::Stopped`] when the worker has stopped.
    pub async fn lay_down_lead(
        &self,
        keyspace: &KeyspaceName,
        shard: ShardId,
        reason: impl Into<String>,
    ) -> Result<(), LayDownError> {
        let (asker, heard) = oneshot::channel();
        let report = Event::LayDown(keyspace.clone(), shard, sentence(reason.into()), asker);
        self.events.send(report).await.map_err(|_| LayDownError::Stopped)?;
        Ok(heard.await.map_err(|_| LayDownError::Stopped)??)
    }

    /// Says that the `load` of `replica` gets on: it may take another [`CallbackTimeouts::load_ms`] from now. Cheap; never
    /// waits. The next beat says so to the coordinator, whose own limit, `load_ms` of the keyspace, begins anew then,
    /// too; in all it gives a load [`partage_core::limits::LOAD_STRETCH`] times that.
    pub fn load_progressed(&self, replica: &ReplicaKey) {
        // When the driver has much to do, or is gone, the next report will say the same.
        let _ = self.events.try_send(Event::Progressed(replica.clone()));
    }

    /// What this worker does, in the text form of Prometheus; [`crate::http::router`] answers with it.
    pub fn metrics(&self) -> String {
        metrics::text(self)
    }

    /// Stops without handing over: no further request is let in, the worker asks those inside to end, `unload` is called, all
    /// data stays. Then it sends `leave`, so that other workers get its shards at once. When requests or `unload` take
    /// longer than [`limits::SHUTDOWN`], it stops without sending `leave`, and the coordinator waits for its lease.
    pub async fn shutdown(&self) {
        // When the driver is gone it has stopped already.
        let _ = self.events.send(Event::Stop).await;
        self.events.closed().await;
    }

    /// Stops at once and without sending `leave`, as a process that crashes does: `unload` is not called, and the coordinator
    /// finds out when the lease has run out. For tests.
    pub async fn abort(&self) {
        // When the driver is gone it has stopped already.
        let _ = self.events.send(Event::Abort).await;
        self.events.closed().await;
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("node", self.node()).field("health", &self.health()).finish()
    }
}

/// What `left` says, or nothing when the worker is abandoned first. A worker that has left has no coordinator any more
/// either, so that both may be true when the caller looks: then it has left.
async fn unless_abandoned<T>(
    left: impl Future<Output = T>,
    abandoned: impl Future<Output = ()>,
) -> Option<T> {
    tokio::select! {
        biased;
        left = left => Some(left),
        () = abandoned => None,
    }
}

#[cfg(test)]
mod tests {
    use super::unless_abandoned;
    use std::future::{pending, ready};

    #[tokio::test]
    async fn a13_who_has_left_is_not_abandoned() {
        for _ in 0..100 {
            assert_eq!(unless_abandoned(ready("left"), ready(())).await, Some("left"));
        }
        assert_eq!(unless_abandoned(pending::<()>(), ready(())).await, None);
    }
}
