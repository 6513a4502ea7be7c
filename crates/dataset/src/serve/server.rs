//! Listens, and spreads connections over threads.

use super::own::Orders;
use super::peers::{Pool, SlowPeers};
use super::refusal::Refusal;
use super::{fast_path, full};
use crate::catalogue::{Catalogue, Dataset, Reading};
use crate::limits;
use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use partage_clock::{Clock, unix_seconds};
use partage_core::base::time::Millis;
use partage_door::{Changes, DetachedConnection, Door, Ending, Role};
use partage_service::dataset::fetch::FetchSettings;
use partage_service::dataset::name::DatasetName;
use partage_wire::request::at_least::{self, AT_LEAST};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};

/// How a server serves.
#[derive(Clone)]
pub struct Settings {
    /// Threads, each with its share of the connections; 0 for one a core.
    pub threads: usize,
    /// When peers are asked, and for how long.
    pub fetch: FetchSettings,
    /// How long a peer that was slow is asked after the others.
    pub slow_rest: Duration,
    /// Connections at a time.
    pub connections: usize,
    /// How long a connection may ask nothing before it is closed.
    pub idle: Duration,
    /// Requests at a time that wait for peers; further ones are answered 503.
    pub waiting: usize,
    /// The node that carries out orders of an operator at `/-/`; none: those pages are 404.
    pub orders: Option<Arc<dyn Orders>>,
    /// Who may connect, and what that may cost.
    pub door: partage_door::Settings,
    /// `host:port` where others reach it, if that is not where it listens.
    pub announced: Option<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            threads: 0,
            fetch: FetchSettings::default(),
            slow_rest: limits::SLOW_REST,
            connections: limits::CONNECTIONS,
            idle: limits::IDLE,
            waiting: limits::WAITING,
            orders: None,
            door: partage_door::Settings::default(),
            announced: None,
        }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("threads", &self.threads)
            .field("fetch", &self.fetch)
            .field("connections", &self.connections)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// The server could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the door for dataset requests at {at} cannot be opened: {source}")]
pub struct ServeError {
    /// The address on which it should listen.
    pub at: String,
    /// What the system said.
    pub source: std::io::Error,
}

/// The state that all threads of a server share.
pub struct ServerState {
    pub catalogue: Arc<Catalogue>,
    pub settings: Settings,
    pub clock: Clock,
    pub stopping: AtomicBool,
    pub door: Door,
    pub waiting: Semaphore,
    /// The time for the header `date`, at most a second or two old.
    date: ArcSwap<String>,
}

impl ServerState {
    /// The time of day, for headers.
    pub fn date(&self) -> Guard<Arc<String>> {
        self.date.load()
    }

    fn update_date(&self) {
        let now = std::time::UNIX_EPOCH + Duration::from_secs(unix_seconds());
        self.date.store(Arc::new(httpdate::fmt_http_date(now)));
    }

    /// All datasets of one moment, without counting.
    pub fn datasets(&self) -> Guard<Arc<BTreeMap<DatasetName, Arc<Dataset>>>> {
        self.catalogue.snapshot()
    }

    /// The refusal for something that is not there; of a node that was just started, one that says it does not know yet.
    pub fn not_there(&self, refusal: Refusal) -> Refusal {
        self.catalogue.awaited().map_or(refusal, |awaited| Refusal::starting(&awaited))
    }

    /// The version that a request is answered from, all of it (D5); nothing that is behind `at_least`.
    pub fn open(
        &self,
        name: &str,
        by_peer: Option<&str>,
        at_least: Option<&[u8]>,
        nanos: u64,
    ) -> Result<Reading, Refusal> {
        let datasets = self.datasets();
        let reading = match (datasets.get(name), by_peer) {
            (None, None) => return Err(self.not_there(Refusal::no_dataset(name))),
            (None, Some(_)) => return Err(Refusal::not_that_version(name, "any")),
            (Some(dataset), None) => {
                let reading = dataset.read().ok_or_else(|| self.not_there(Refusal::no_version(name)));
                match at_least {
                    None => reading?,
                    Some(at_least) => caught_up(dataset, reading, at_least)?,
                }
            }
            (Some(dataset), Some(version)) => {
                dataset.read_named(version).ok_or_else(|| Refusal::not_that_version(name, version))?
            }
        };
        reading.asked_at(Millis(nanos / 1_000_000));
        Ok(reading)
    }
}

/// What clients get here, or, where that is behind, the version that is asked for, as far as it is known here and all
/// of it can be had: others give it to their clients already.
fn caught_up(
    dataset: &Dataset,
    reading: Result<Reading, Refusal>,
    at_least: &[u8],
) -> Result<Reading, Refusal> {
    let text = || String::from_utf8_lossy(&at_least[..at_least.len().min(100)]).into_owned();
    let wanted = at_least::read(at_least).ok_or_else(|| {
        let what = format!("{AT_LEAST} is {:?}", text());
        Refusal::bad("at_least", what, "send an order and a version, as in \"0 20240102\"")
    })?;
    let is_there = |reading: &Reading| (reading.order(), reading.name()) >= (wanted.order, &wanted.version);
    if let Some(reading) = reading.ok().filter(is_there) {
        return Ok(reading);
    }
    let can_be_had = |reading: &Reading| {
        reading.places().iter().all(|place| place.here.is_some() || !place.peers.is_empty())
    };
    let named = dataset.read_named(wanted.version.as_str()).filter(can_be_had);
    named
        .map(|reading| reading.by_order(wanted.order))
        .ok_or_else(|| Refusal::behind(dataset.name().as_str(), &text()))
}

/// The state of one thread of a server.
pub struct ThreadState {
    pub server: Arc<ServerState>,
    pub pool: Pool,
    pub slow: SlowPeers,
    draws: AtomicU64,
}

impl ThreadState {
    fn new(server: Arc<ServerState>) -> ThreadState {
        let draws = AtomicU64::new(partage_random::seed());
        ThreadState { server, pool: Pool::default(), slow: SlowPeers::default(), draws }
    }

    /// Another number each time.
    pub fn draw(&self) -> u64 {
        self.draws.fetch_add(1, Ordering::Relaxed)
    }
}

/// A server that runs until it is stopped or dropped.
pub struct Server {
    address: SocketAddr,
    state: Arc<ServerState>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves what the catalogue holds, from now on.
    pub fn start(
        listener: TcpListener,
        catalogue: Arc<Catalogue>,
        settings: Settings,
    ) -> Result<Server, ServeError> {
        let named = |source| ServeError { at: format!("{listener:?}"), source };
        let address = listener.local_addr().map_err(named)?;
        let failed = |source| ServeError { at: address.to_string(), source };
        listener.set_nonblocking(true).map_err(failed)?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = if settings.threads == 0 { cores } else { settings.threads.min(limits::THREADS) };
        let server = Arc::new(ServerState {
            clock: catalogue.clock(),
            waiting: Semaphore::new(settings.waiting),
            catalogue,
            door: door(&settings, address),
            settings,
            stopping: AtomicBool::new(false),
            date: ArcSwap::default(),
        });
        server.update_date();
        let (stop, stopped) = watch::channel(false);
        let mut threads = Vec::new();
        let mut queues = Vec::new();
        for number in 0..count {
            let (queue, arrivals) = mpsc::channel(limits::ARRIVALS);
            queues.push(queue);
            let (server, stopped) = (server.clone(), stopped.clone());
            let work = move |runtime: tokio::runtime::Runtime| {
                runtime.block_on(run_thread(server, arrivals, stopped))
            };
            threads.push(spawn_thread(&format!("dataset-{number}"), work).map_err(failed)?);
        }
        let (shared, stopped) = (server.clone(), stopped);
        let work = move |runtime: tokio::runtime::Runtime| {
            if let Err(error) = runtime.block_on(accept(listener, shared, queues, stopped)) {
                tracing::error!("the door for dataset requests at {address} is closed: {error}");
            }
        };
        threads.push(spawn_thread("dataset-door", work).map_err(failed)?);
        Ok(Server { address, state: server, stop, threads })
    }

    /// The socket address, with the port that the system has chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, closes each with its next answer, and waits for [`limits::CLOSING`].
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.state.stopping.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the dataset server ended by a panic");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn_thread(
    name: &str,
    work: impl FnOnce(tokio::runtime::Runtime) + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || work(runtime))
}

async fn accept(
    listener: TcpListener,
    server: Arc<ServerState>,
    queues: Vec<mpsc::Sender<DetachedConnection>>,
    mut stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut turn = 0;
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => return Ok(()),
            _ = tick.tick() => {
                server.update_date();
                continue;
            }
            accepted = server.door.accept(&listener) => accepted,
        };
        turn = (turn + 1) % queues.len();
        if let Ok(detached) = accepted.detach() {
            // The thread is behind with its arrivals, or at its end: the client comes again.
            let _ = queues[turn].try_send(detached);
        }
    }
}

async fn run_thread(
    server: Arc<ServerState>,
    mut arrivals: mpsc::Receiver<DetachedConnection>,
    mut stopped: watch::Receiver<bool>,
) {
    let thread = Arc::new(ThreadState::new(server));
    loop {
        let detached = tokio::select! {
            _ = stopped.changed() => break,
            Some(detached) = arrivals.recv() => detached,
        };
        tokio::spawn(connection(thread.clone(), detached, stopped.clone()));
    }
    // What is being answered now may still be.
    tokio::time::sleep(limits::CLOSING).await;
}

async fn connection(thread: Arc<ThreadState>, detached: DetachedConnection, stopped: watch::Receiver<bool>) {
    let served = async {
        let Some(accepted) = thread.server.door.wait_for_first_byte(detached.attach()?).await else {
            return Ok(());
        };
        // A client in the reserve may ask once; the fast path lets each ask on.
        if accepted.is_in_reserve() {
            return full::serve(thread, accepted, Bytes::new(), stopped).await;
        }
        match fast_path::serve(&thread, accepted).await? {
            fast_path::End::Closed => Ok(()),
            fast_path::End::PassedOn { accepted, read } => full::serve(thread, accepted, read, stopped).await,
        }
    };
    let ended: std::io::Result<()> = served.await;
    if let Err(error) = ended {
        tracing::debug!("a connection broke: {error}");
    }
}

/// The door of a server with those settings that listens at `address`.
fn door(settings: &Settings, address: SocketAddr) -> Door {
    let announced = [Some(address.to_string()), settings.announced.clone()];
    let role = Role {
        announced: announced.into_iter().flatten().collect(),
        // A multi-get is a `POST`, and changes nothing.
        changes: Changes::Below("/-/"),
        connections: settings.connections,
        idle: settings.idle,
        stalled: Some(limits::WRITE_TIMEOUT),
        write: limits::WRITE_TIMEOUT,
        head_bytes: limits::HEAD_BYTES,
        body_bytes: limits::MANY_BYTES as u64,
        ping: limits::PING,
        streams: limits::STREAMS,
        ending: Ending::After(limits::CLOSING),
        ..Role::default()
    };
    Door::new(role, settings.door.clone())
}
