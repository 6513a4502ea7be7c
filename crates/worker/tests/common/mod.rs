//! A coordinator in memory that speaks the real protocol: the state machine of the cluster behind a gRPC server, without a
//! disk, for which every address answers, and with switches for what a test wants to go wrong.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod services;

use futures::StreamExt;
use partage_core::base::id::{Incarnation, SessionDigest, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::admin::{Command, Presplit};
use partage_core::cluster::{Cluster, Moment, Records};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::Sharding;
use partage_core::keyspace::{Keyspace, Ownership};
use partage_core::node::Health;
use partage_core::node::exchange::Beat;
use partage_core::node::exchange::Registration;
use partage_wire::proto::worker_server::{Worker as WorkerService, WorkerServer};
use partage_wire::proto::{FromWorker, ToWorker, from_worker, to_worker};
use partage_wire::{Refusal, Retry};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

pub const KS: &str = "users";

/// Quick, so that tests are.
pub fn settings() -> Settings {
    Settings {
        heartbeat_ms: 50,
        lease_ms: 600,
        dead_after_ms: 900,
        settle_ms: 50,
        rebalance_ms: 60_000,
        ..Settings::default()
    }
}

pub fn keyspace() -> KeyspaceName {
    KeyspaceName::new(KS).unwrap()
}

struct Inner {
    cluster: Mutex<Cluster>,
    start: Instant,
    transactions: AtomicU64,
    changes: watch::Sender<u64>,
    /// Notified to end all sessions.
    cuts: watch::Sender<u64>,
    /// Beats are swallowed: the workers' leases run out.
    silent: AtomicBool,
    /// What every registration is answered.
    refusal: Mutex<Option<Refusal>>,
}

/// A coordinator in memory that speaks the real protocol, with switches for faults that a test wants.
#[derive(Clone)]
pub struct TestCoordinator {
    inner: Arc<Inner>,
}

impl TestCoordinator {
    pub fn new() -> TestCoordinator {
        TestCoordinator::with(settings())
    }

    /// Leases that no busy machine lets lapse, for what must not depend on how fast a test runs.
    pub fn with_long_leases() -> TestCoordinator {
        TestCoordinator::with(Settings { lease_ms: 20_000, dead_after_ms: 30_000, ..settings() })
    }

    fn with(settings: Settings) -> TestCoordinator {
        let start = Instant::now();
        let at = Moment { now: Millis(1), wall_ms: 0 };
        let cluster = Cluster::recover(at, settings, Records::default()).unwrap();
        let test_coordinator = TestCoordinator {
            inner: Arc::new(Inner {
                cluster: Mutex::new(cluster),
                start,
                transactions: AtomicU64::new(1),
                changes: watch::Sender::new(0),
                cuts: watch::Sender::new(0),
                silent: AtomicBool::new(false),
                refusal: Mutex::new(None),
            }),
        };
        let ticking = test_coordinator.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                ticking.call(|_, _| ());
            }
        });
        test_coordinator
    }

    /// Opens a server; it can be stopped by aborting the task.
    pub async fn open(&self) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.open_on(listener)
    }

    pub fn open_on(&self, listener: TcpListener) -> (String, JoinHandle<()>) {
        let address = listener.local_addr().unwrap().to_string();
        let test_coordinator = self.clone();
        let task = tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(WorkerServer::new(test_coordinator));
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        (address, task)
    }

    /// Works on the cluster, decides, and lets out what follows.
    pub fn call<T>(&self, work: impl FnOnce(&mut Cluster, Moment) -> T) -> T {
        let mut cluster = self.inner.cluster.lock().unwrap();
        let at = Moment { now: Millis(self.inner.start.elapsed().as_millis() as u64 + 2), wall_ms: 0 };
        let result = work(&mut cluster, at);
        // Every address answers.
        for (node, incarnation, ..) in cluster.checks_due(at.now) {
            cluster.checked_back(at, &node, incarnation, true);
        }
        for _ in 0..1_000 {
            let wake = cluster.decide(at, self.transaction());
            if wake > at.now {
                break;
            }
        }
        let outbox = cluster.take_outbox();
        drop(cluster);
        if !outbox.changed_orders.is_empty() {
            self.inner.changes.send_modify(|count| *count += 1);
        }
        result
    }

    fn transaction(&self) -> TransactionId {
        let mut bytes = [0; 20];
        let count = self.inner.transactions.fetch_add(1, Ordering::Relaxed);
        bytes[..8].copy_from_slice(&count.to_be_bytes());
        TransactionId(bytes)
    }

    pub fn command(&self, command: Command) {
        let transaction = self.transaction();
        self.call(|cluster, at| cluster.command(at, transaction, "test", command)).unwrap();
    }

    /// `users`, of as many fixed shards.
    pub fn create(&self, shards: u32, ownership: Ownership) {
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards };
        let keyspace = Box::new(Keyspace { ownership, ..Keyspace::new(keyspace(), sharding) });
        self.command(Command::CreateKeyspace { keyspace, presplit: Presplit::None, ahead: false });
    }

    /// Waits until `to` is up: before that nothing is placed there.
    pub async fn move_shard(&self, shard: ShardId, from: &str, to: &str) {
        let health = |cluster: &mut Cluster, at: Moment| {
            let node = cluster.nodes().get(to)?;
            Some(node.signs.health(at.now, cluster.settings()))
        };
        let is_up = || self.call(health) == Some(Health::Up);
        eventually("the new owner is up", is_up).await;
        let (from, to) = (NodeId::new(from).unwrap(), NodeId::new(to).unwrap());
        self.command(Command::MoveShard { keyspace: keyspace(), shard, from, to });
    }

    pub fn map(&self) -> ShardMap {
        self.call(|cluster, _| cluster.keyspaces()[KS].map.clone())
    }

    /// The node that leads the only shard.
    pub fn leader(&self) -> Option<String> {
        let map = self.map();
        let shard = map.shards().next()?;
        Some(shard.leader()?.node.to_string())
    }

    pub fn shard(&self) -> ShardId {
        self.map().shards().next().unwrap().id
    }

    /// Ends every connection that is open.
    pub fn cut_connections(&self) {
        self.inner.cuts.send_modify(|count| *count += 1);
    }

    pub fn be_silent(&self, silent: bool) {
        self.inner.silent.store(silent, Ordering::SeqCst);
    }

    pub fn refuse(&self, refusal: Option<(&str, Retry)>) {
        *self.inner.refusal.lock().unwrap() = refusal.map(|(text, retry)| Refusal::new("test", text, retry));
    }
}

struct Session {
    test_coordinator: TestCoordinator,
    out: mpsc::Sender<Result<ToWorker, Status>>,
    who: Option<(NodeId, Incarnation)>,
    sent: u64,
}

#[tonic::async_trait]
impl WorkerService for TestCoordinator {
    type AttendStream = ReceiverStream<Result<ToWorker, Status>>;

    async fn attend(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        let (out, answers) = mpsc::channel(16);
        let session = Session { test_coordinator: self.clone(), out, who: None, sent: 0 };
        tokio::spawn(session.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}

impl Session {
    async fn run(mut self, mut from: Streaming<FromWorker>) {
        let mut changes = self.test_coordinator.inner.changes.subscribe();
        let mut cuts = self.test_coordinator.inner.cuts.subscribe();
        loop {
            let answer = tokio::select! {
                message = from.next() => match message {
                    Some(Ok(FromWorker { message: Some(message) })) => self.take(message),
                    _ => return,
                },
                _ = changes.changed() => self.push(),
                _ = cuts.changed() => return,
            };
            let Ok(answer) = answer else { return };
            if let Some(message) = answer
                && self.out.send(Ok(ToWorker { message: Some(message) })).await.is_err()
            {
                return;
            }
        }
    }

    fn take(&mut self, message: from_worker::Message) -> Result<Option<to_worker::Message>, ()> {
        let answer = match message {
            from_worker::Message::Register(form) => self.register(form.try_into().unwrap()),
            from_worker::Message::Beat(_) if self.test_coordinator.inner.silent.load(Ordering::SeqCst) => {
                return Ok(None);
            }
            from_worker::Message::Beat(form) => {
                let mut beat: Beat = form.try_into().unwrap();
                beat.applied = beat.applied.max(self.sent);
                self.test_coordinator
                    .call(|cluster, at| cluster.beat(at, beat))
                    .map_err(|e| Refusal::from(&e))
                    .map(|orders| {
                        self.sent = orders.version;
                        to_worker::Message::Orders((&orders).into())
                    })
            }
            from_worker::Message::Leave(form) => {
                let node = NodeId::new(&form.node).unwrap();
                let incarnation = Incarnation(form.incarnation);
                self.test_coordinator
                    .call(|cluster, at| cluster.leave(at, &node, incarnation, SessionDigest::default()))
                    .unwrap();
                return Err(());
            }
        };
        Ok(Some(answer.unwrap_or_else(|refusal| to_worker::Message::Refused((&refusal).into()))))
    }

    fn register(&mut self, registration: Registration) -> Result<to_worker::Message, Refusal> {
        if let Some(refusal) = self.test_coordinator.inner.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        let node = registration.spec.id.clone();
        let welcome = self
            .test_coordinator
            .call(|cluster, at| cluster.register(at, registration))
            .map_err(|error| Refusal::from(&error))?;
        self.who = Some((node, welcome.incarnation));
        self.sent = 0;
        Ok(to_worker::Message::Welcome((&welcome).into()))
    }

    fn push(&mut self) -> Result<Option<to_worker::Message>, ()> {
        let Some((node, incarnation)) = self.who.clone() else { return Ok(None) };
        let sent = self.sent;
        let orders = self.test_coordinator.call(|cluster, _| cluster.orders_since(&node, sent, None));
        let orders = orders.filter(|orders| orders.incarnation == incarnation && orders.version > sent);
        Ok(orders.map(|orders| {
            self.sent = orders.version;
            to_worker::Message::Orders((&orders).into())
        }))
    }
}

/// Asks until it is so.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// An address that no other process takes for as long as the listener is kept.
pub async fn address() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
