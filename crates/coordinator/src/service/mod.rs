//! A coordinator from start to stop: backend, election, decision loop, routes.
//!
//! ```text
//!            ┌────────────── the backend cannot be reached, the session is lost ◄─────────────────────────┐
//!            ▼                                                                                            │
//!  opens the backend ──► stands by: who leads? passes on ──elected──► leads: decision loop, routes ──► ended
//! ```
//!
//! When the decision loop ends with an error (the session is lost, the outcome of a commit is not known) the state in
//! memory is thrown away, and everything begins again from what is durable, with an election. When it ends because the
//! disk is full, it begins again from what is durable without one: it leads on, answers questions and renews leases,
//! refuses changes, and decides again when there is room. Workers and routers go on with what they have.
//! The embedded backend has one coordinator, which is elected at once.

mod listen;
mod presence;
mod running_leader;
mod swappable_router;

use crate::api::admin::AdminHandler;
use crate::api::coordinator_list::CoordinatorList;
use crate::api::grpc::{AdminService, MapsService, WorkerService, with_reflection};
use crate::backend::map_store::MapStore;
use crate::backend::store::{SetBack, Store, StoreError};
use crate::backend::{BackendConnection, BackendState, Backing};
use crate::clock::Clock;
use crate::lead::decision_loop::{DecisionLoop, LeaderState, LoopError, NotStored, Observer};
use crate::lead::{callback, check_back};
use crate::limits;
use crate::publish::Publisher;
use crate::publish::events::EventWriter;
use crate::publish::notifier::Notifier;
use crate::standby::{LastFailure, LeaderInfo, Standby};
use axum::Router;
use futures::future::BoxFuture;
use partage_coordination::{Advice, Error, LeaderLease, Leadership};
use partage_core::base::settings::Settings;
use partage_core::cluster::event::{About, EventKind, event};
use partage_core::cluster::{Cluster, LaterMap, LaterMaps, Records, RecoverError, StoredFaults, note_later};
use partage_core::placement::Policies;
use partage_door::{Door, TowerService};
use partage_wire::proto::admin_server::AdminServer;
use partage_wire::proto::worker_server::WorkerServer;
use partage_wire::stored::Presence;
use running_leader::{LeadEnd, LoopEnd, RunningLeader};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use swappable_router::SwappableRouter;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// What a coordinator needs to be told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// `host:port` where others reach it; none = where it listens.
    pub address: Option<String>,
    /// Its name among the coordinators, the same across its restarts; none = its address.
    pub id: Option<String>,
    /// Where the state is kept.
    pub backing: Backing,
    /// The numbers that the cluster runs by.
    pub settings: Settings,
    /// Who may connect, and what that may cost.
    pub door: partage_door::Settings,
    /// The placement policies that keyspaces may name: `Policies::default()`, and one's own (A3).
    pub policies: Policies,
}

impl Config {
    /// In memory, with default settings and the shipped policies.
    pub fn new(listen: SocketAddr) -> Config {
        Config {
            listen,
            address: None,
            id: None,
            backing: Backing::Memory,
            settings: Settings::default(),
            door: partage_door::Settings::default(),
            policies: Policies::default(),
        }
    }
}

/// A coordinator that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its address is not to be had.
    #[error(
        "cannot listen on {address}: {error}: choose another address, or stop the process that uses this one"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// Others could not reach it at the address that they would be told.
    #[error(
        "the coordinator listens on {listen}, which is every address of this machine: say at which of them the other \
         coordinators and the workers reach it"
    )]
    Unreachable {
        /// Where it listens.
        listen: SocketAddr,
    },
    /// Its state cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its state is no cluster.
    #[error(transparent)]
    Recover(#[from] RecoverError),
}

impl StartError {
    /// Whether it may go better later, without a person.
    fn passes(&self) -> bool {
        match self {
            StartError::Store(StoreError::Coordination(error)) => {
                matches!(error.advice(), Advice::Retry | Advice::Reread | Advice::NewSession)
            }
            StartError::Store(
                StoreError::Deposed(_)
                | StoreError::FencedOff
                | StoreError::Overtaken
                | StoreError::Map(_)
                | StoreError::Ahead { .. }
                | StoreError::IdTaken { .. }
                | StoreError::ReadableAgain { .. },
            ) => true,
            StartError::Store(_)
            | StartError::Listen { .. }
            | StartError::Unreachable { .. }
            | StartError::Recover(_) => false,
        }
    }
}

impl From<partage_coordination::Error> for StartError {
    fn from(error: partage_coordination::Error) -> StartError {
        StartError::Store(error.into())
    }
}

/// A running coordinator. Dropping it stops it at once; [`Coordinator::stop`] waits until it has.
pub struct Coordinator {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Coordinator {
    /// Starts a coordinator; returns when it answers: as the leader where it is alone, else as one that stands by,
    /// or that waits for its backend.
    ///
    /// # Errors
    /// When its address is taken, or its state is damaged (with file and offset, or the key), of another version or
    /// cluster, or in use.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Coordinator, StartError>> {
        // Boxed, so that the compiler makes the code of a coordinator in this crate, and not in each that starts one.
        Box::pin(Coordinator::begin(config))
    }

    async fn begin(config: Config) -> Result<Coordinator, StartError> {
        let listen_error = |error| StartError::Listen { address: config.listen, error };
        let listener = partage_door::bind(config.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        if config.backing.is_shared() && config.address.is_none() && address.ip().is_unspecified() {
            return Err(StartError::Unreachable { listen: address });
        }
        let (stop, stopped) = watch::channel(false);
        let supervisor = Supervisor::new(config, address);
        let (door, service) = (supervisor.door.clone(), TowerService::new(supervisor.routes.router()));
        let open_until = stopped.clone();
        let listening = tokio::spawn(door.listen(listener, service, open_until));
        let (begun, has_begun) = oneshot::channel();
        let task = tokio::spawn(async move {
            supervisor.run(Some(begun), stopped).await;
            let _ = listening.await;
        });
        // The sender is dropped without an answer only if the task panics.
        match has_begun.await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Ok(Coordinator { address, stop, task }),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it and waits until its directory is free. One that leads lets the next one lead at once.
    pub async fn stop(self) {
        // No task listens when it has stopped by itself.
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

/// Told once, when the coordinator answers or cannot.
type StartSender = Option<oneshot::Sender<Result<(), StartError>>>;

/// Turns true, once.
type StopSignal = watch::Receiver<bool>;

/// Runs a coordinator: stands by and leads, in turns. It outlives each leadership.
struct Supervisor {
    config: Config,
    presence: Presence,
    clock: Clock,
    routes: SwappableRouter,
    door: Door,
    publisher: Arc<Publisher>,
    notifier: Arc<Notifier>,
    /// Why it does not lead.
    failure: LastFailure,
    backend_state: BackendState,
    /// What workers, and the leaders so far, have said of keyspaces that the backend knows less of.
    ahead: Mutex<LaterMaps>,
}

impl Supervisor {
    fn new(config: Config, listen: SocketAddr) -> Supervisor {
        let (clock, publisher) = (Clock::start(), Arc::new(Publisher::default()));
        let address = config.address.clone().unwrap_or_else(|| listen.to_string());
        let presence = Presence {
            id: config.id.clone().unwrap_or_else(|| address.clone()),
            address,
            since_ms: clock.moment().wall_ms,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leads: None,
        };
        let door = listen::door(config.door.clone(), &presence.address, listen);
        let notifier = Arc::new(Notifier::new(publisher.clone(), clock, door.clone()));
        let routes = SwappableRouter::new(crate::api::http::unavailable());
        let failure = LastFailure::default();
        Supervisor {
            config,
            presence,
            clock,
            routes,
            door,
            publisher,
            notifier,
            failure,
            backend_state: BackendState::default(),
            ahead: Mutex::default(),
        }
    }

    /// Stands by and leads, in turns, until it gets the order to stop.
    async fn run(self, mut begun: StartSender, mut stopped: StopSignal) {
        let first = Duration::from_millis(limits::RESTART_MS);
        let mut rest = first;
        while !*stopped.borrow() {
            let before = tokio::time::Instant::now();
            let Err(error) = self.run_once(&mut begun, &mut stopped).await else { return };
            let own = !self.config.backing.is_shared();
            if begun.is_some() && (own || !error.passes()) {
                report_start(&mut begun, Err(error));
                return;
            }
            self.failure.note(&error);
            let place = self.config.backing.place();
            tracing::error!(%error, backend = %place, "no place among the coordinators at the moment; trying again");
            report_start(&mut begun, Ok(()));
            rest = if own || before.elapsed() > 2 * rest { first } else { rest * 2 };
            rest = rest.min(Duration::from_millis(limits::RESTART_MOST_MS));
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Ends well on an order to stop, else with the reason why it begins anew.
    async fn run_once(&self, begun: &mut StartSender, stopped: &mut StopSignal) -> Result<(), StartError> {
        let mut standby = Standby::begin(self.publisher.clone(), self.presence.address.clone());
        self.serve_as_standby(&standby, None);
        let connection = tokio::select! {
            connection = BackendConnection::open(&self.config.backing, &self.presence, &self.backend_state) => connection?,
            _ = stopped.wait_for(|stop| *stop) => return Ok(()),
        };
        if self.config.backing.is_shared() {
            standby.look_at(
                connection.coordination.clone(),
                connection.election.clone(),
                connection.terms.clone(),
            );
            self.serve_as_standby(&standby, Some(&connection));
            report_start(begun, Ok(()));
        }
        let won = tokio::select! {
            won = self.campaign(&connection) => won,
            never = presence::keep_presence(&connection, &self.presence, &self.notifier, |_| {}) => match never {},
            _ = stopped.wait_for(|stop| *stop) => Err(None),
        };
        let ended = match won {
            Ok(leadership) => {
                let ended = self.lead(&connection, leadership, standby, begun, stopped).await;
                self.notifier.events().step_down();
                ended
            }
            Err(why) => why.map_or(Ok(()), Err),
        };
        self.publisher.clear_source();
        connection.close().await;
        ended
    }

    /// Waits until it leads. What is not known for sure is looked at again.
    async fn campaign(&self, connection: &BackendConnection) -> Result<Leadership, Option<StartError>> {
        loop {
            // It leads since it is elected, not since it was started.
            let candidate =
                || Presence { since_ms: self.clock.moment().wall_ms, ..self.presence.clone() }.to_bytes();
            match connection.election.lead(&connection.session, candidate).await {
                Ok(leadership) => return Ok(leadership),
                Err(error @ (Error::Indefinite { .. } | Error::Unavailable { .. })) => {
                    tracing::warn!(%error, "the election cannot be seen; looking again");
                    tokio::time::sleep(Duration::from_millis(limits::LOOK_AGAIN_MS)).await;
                }
                Err(error) => return Err(Some(error.into())),
            }
        }
    }

    fn serve_as_standby(&self, standby: &Standby, connection: Option<&BackendConnection>) {
        let (publisher, notifier) = (self.publisher.clone(), self.notifier.clone());
        let leads = standby.watch_leader();
        let coordinators = connection.map(CoordinatorList::of).unwrap_or_default();
        let failure = self.failure.clone();
        let id = &self.presence.id;
        let routes = crate::api::http::standby::router(publisher, notifier, leads, coordinators, id, failure);
        self.routes.replace(match connection {
            Some(connection) => connection.with_metadata_routes(routes),
            None => routes,
        });
    }

    /// Leads until that is over; then every handle to the decision loop is gone.
    async fn lead(
        &self,
        connection: &BackendConnection,
        leadership: Leadership,
        standby: Standby,
        begun: &mut StartSender,
        stopped: &mut StopSignal,
    ) -> Result<(), StartError> {
        let term = leadership.term().get();
        let (mut standby, mut full) = (Some(standby), None);
        loop {
            let (mut running, router) = tokio::select! {
                begun = self.begin(connection, leadership.clone(), standby.as_ref(), full.take()) => begun?,
                _ = stopped.wait_for(|stop| *stop) => return Ok(()),
            };
            self.failure.clear();
            self.routes.replace(connection.with_metadata_routes(router));
            if let Some(standby) = standby.take() {
                tracing::info!(term, backend = connection.coordination.backend(), "this coordinator leads");
                self.end_standby(standby, term);
            }
            report_start(begun, Ok(()));
            let since_ms = self.clock.moment().wall_ms;
            let presence = Presence { leads: Some(term), since_ms, ..self.presence.clone() };
            let end = tokio::select! {
                end = running.ended(connection, stopped) => end,
                never = presence::announce_and_watch(connection, presence, &self.notifier) => match never {},
            };
            self.routes.replace(crate::api::http::unavailable());
            match end {
                LeadEnd::Stop => {
                    running.task.abort();
                    running.event_writer.end().await;
                    return Ok(());
                }
                LeadEnd::Readable(keyspace) => {
                    running.task.abort();
                    return Err(StoreError::ReadableAgain { keyspace }.into());
                }
                // What is durable is as good as before, and so is the leadership.
                LeadEnd::Loop(Ok(Err(LoopError::Full(why)))) => {
                    let (place, way_out) = (self.config.backing.place(), why.way_out());
                    tracing::error!(
                        place,
                        "{why}; it answers questions and renews leases, and changes nothing: {way_out}"
                    );
                    full = Some(why);
                }
                LeadEnd::Loop(Ok(Err(LoopError::LaterMaps(ahead)))) => {
                    return Err(self.record_later_maps(ahead).into());
                }
                LeadEnd::Loop(ended) => return Err(end_reason(ended)),
            }
        }
    }

    /// Says who leads, to people and to those who followed the leader through this coordinator.
    fn end_standby(&self, standby: Standby, term: u64) {
        let Presence { id, address, .. } = &self.presence;
        let text = format!("coordinator {id} at {address} leads at term {term}");
        self.notifier.happened(&[event(EventKind::LeaderChanged, About::all(), text)]);
        standby.end(LeaderInfo { address: address.clone(), term });
    }

    /// Keeps the term of a leadership that was won, so that it is not given again, and begins to watch over it.
    async fn start_lease(
        &self,
        connection: &BackendConnection,
        leadership: &Leadership,
    ) -> Result<LeaderLease, StoreError> {
        let term = leadership.term();
        if let Some(stored) = leadership.set_back() {
            let (term, stored) = (term.get(), stored.get());
            self.notifier.alarm(
                &format!(
                    "the backend says (key `election/term`) that term {stored} was the last, and this coordinator knows of a later one: the key \
                     was changed, or the backend was restored from an older state; this coordinator leads at term \
                     {term}. Stop all coordinators and see \"Restoring\" in the book's page on the backend if the \
                     backend was restored"
                ),
            );
        }
        // Without room for it the term is remembered by this process, and by those that stand by.
        if let Err(error) = connection.terms.keep(term).await {
            self.notifier.alarm(&error.to_string());
        }
        let (coordination, session) = (connection.coordination.clone(), connection.session.clone());
        let lead = LeaderLease::begin(coordination, session, leadership, connection.about.clone()).await?;
        lead.check()?;
        Ok(lead)
    }

    fn known_ahead(&self) -> MutexGuard<'_, LaterMaps> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what workers know that the leader did not, for what is read next.
    fn record_later_maps(&self, ahead: LaterMaps) -> StoreError {
        let first = ahead.values().next().map(|later_map| (later_map.who.clone(), later_map.known.clone()));
        ahead.into_values().for_each(|later_map| note_later(&mut self.known_ahead(), later_map));
        match first {
            Some((who, known)) => StoreError::Ahead { who, keyspace: known.keyspace, at: known.generation },
            None => StoreError::Overtaken,
        }
    }

    /// Puts what was set back into quarantine, by what was passed on here and what workers were told. Gives the
    /// generations that it was at.
    fn refuse_older(
        &self,
        standby: Option<&Standby>,
        records: &mut Records,
        faults: &mut StoredFaults,
    ) -> SetBack {
        let mut ahead = self.known_ahead();
        for known in standby.map(Standby::known).unwrap_or_default() {
            note_later(&mut ahead, LaterMap { who: "this coordinator".to_owned(), known });
        }
        records.refuse_older(faults, &mut ahead);
        let refused = ahead.iter().filter(|(name, _)| faults.quarantine.contains_key(*name));
        refused.map(|(name, later_map)| (name.clone(), later_map.known.clone())).collect()
    }

    /// From what is durable to a decision loop, and the routes to it.
    async fn begin(
        &self,
        connection: &BackendConnection,
        leadership: Leadership,
        standby: Option<&Standby>,
        full: Option<NotStored>,
    ) -> Result<(RunningLeader, Router), StartError> {
        let term = leadership.term().get();
        let lead = self.start_lease(connection, &leadership).await?;
        let events = self.notifier.events();
        events.lead(&*connection.coordination, term, &self.config.settings).await;
        let event_writer =
            EventWriter::begin(events.clone(), connection.coordination.clone(), leadership.clone());
        let maps = connection.map_store(leadership.clone());
        let (store, mut records, mut faults) =
            Store::open(connection.coordination.clone(), leadership, maps.clone()).await?;
        let at = self.clock.moment();
        let set_back = self.refuse_older(standby, &mut records, &mut faults);
        let quarantine = faults.quarantine.keys().cloned().collect();
        let mended = records.mend(&mut faults, at.wall_ms);
        let mut cluster = Cluster::recover(at, self.config.settings.clone(), records)?
            .with_policies(self.config.policies.clone())
            .identified(partage_core::base::id::ClusterId(connection.cluster.0));
        cluster.take_faults(faults, mended);
        if self.config.backing.is_shared() {
            let late = LeaderLease::bound(connection.session.ttl());
            cluster.allow_for_predecessor(self.clock.now(), late.as_millis() as u64);
        }
        let notifier = self.notifier.clone();
        let begin = |decision_loop: &DecisionLoop, cluster: &Cluster| {
            self.publisher.lead(decision_loop.clone(), cluster, self.clock.now())
        };
        let state = LeaderState { cluster, store, lead, clock: self.clock, full };
        let (decision_loop, task) = DecisionLoop::start(state, notifier.clone(), begin);
        tokio::spawn(check_back::run(decision_loop.clone(), Duration::from_millis(limits::CHECK_TICK_MS)));
        tokio::spawn(callback::run(decision_loop.clone()));
        tokio::spawn(keep_up(maps.clone(), decision_loop.clone(), self.clock));
        let router = leader_router(
            &decision_loop,
            self.publisher.clone(),
            notifier,
            CoordinatorList::of(connection),
            term,
        );
        Ok((RunningLeader { task, maps, quarantine, set_back, event_writer }, router))
    }
}

/// Has the map store looked after while the decision loop answers.
async fn keep_up(maps: Arc<dyn MapStore>, decision_loop: DecisionLoop, clock: Clock) {
    let leads = move || -> BoxFuture<'static, bool> {
        let decision_loop = decision_loop.clone();
        Box::pin(async move { decision_loop.call(|_, _| ()).await.is_ok() })
    };
    maps.upkeep(clock, &leads).await;
}

fn report_start(begun: &mut StartSender, what: Result<(), StartError>) {
    if let Some(begun) = begun.take() {
        // The task that started it may have gone.
        let _ = begun.send(what);
    }
}

fn end_reason(ended: LoopEnd) -> StartError {
    let stopped = |what: String| StoreError::Coordination(Error::Unavailable { what });
    StartError::Store(match ended {
        Ok(Ok(())) => stopped("every handle on the decision loop was dropped".to_owned()),
        Ok(Err(LoopError::Store(error))) => error,
        Ok(Err(ended @ (LoopError::Full(_) | LoopError::LaterMaps(_)))) => stopped(ended.to_string()),
        Err(error) => stopped(error.to_string()),
    })
}

/// Everything that the one port of a leader answers.
fn leader_router(
    decision_loop: &DecisionLoop,
    publisher: Arc<Publisher>,
    notifier: Arc<Notifier>,
    coordinators: CoordinatorList,
    term: u64,
) -> Router {
    let grpc = tonic::service::Routes::new(WorkerServer::new(WorkerService::new(decision_loop.clone())))
        .add_service(MapsService::new(publisher))
        .add_service(
            AdminServer::new(AdminService::new(AdminHandler::new(decision_loop.clone(), notifier.clone())))
                .max_decoding_message_size(limits::BODY_BYTES),
        );
    let grpc = with_reflection(grpc);
    // Paths that neither knows are answered by the JSON API, which knows both ways of saying so.
    let json = crate::api::http::router(decision_loop.clone(), notifier, coordinators, term);
    grpc.into_axum_router().reset_fallback().merge(json)
}
