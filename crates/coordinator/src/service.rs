//! A coordinator from start to stop: backend, election, mind, doors.
//!
//! ```text
//!            ┌────────────── the backend cannot be reached, the session is lost ◄─────────────┐
//!            ▼                                                                                 │
//!  opens the backend ──► stands by: who leads? passes on ──elected──► leads: mind, doors ──► ended
//! ```
//!
//! When the mind ends with an error (the session is lost, the outcome of a commit is not known) the state in memory is
//! thrown away, and everything begins again from what is durable, with an election. When it ends because the disk is
//! full, it begins again from what is durable without one: it leads on, answers questions and renews leases, refuses
//! changes, and decides again when there is room. Workers and routers go on with what they have.
//! The embedded backend has one coordinator, which is elected at once.

use crate::audience::Herald;
use crate::backing::{Backing, Footing, Remembered};
use crate::clock::Clock;
use crate::desk::Desk;
use crate::events::Keeping;
use crate::front::Front;
use crate::grpc::{AdminDoor, MapsDoor, WorkerDoor, with_reflection};
use crate::mind::{Audience, Ended, Leading, Mind, NotStored};
use crate::publish::Publisher;
use crate::roster::Roster;
use crate::standby::{LastFailure, Leads, Standby};
use crate::store::{self, SetBack, Store, StoreError};
use crate::{callback, check_back, leaders, limits, listen, upkeep};
use axum::Router;
use partage_coordination::{Advice, Error, LeaderLease, Leadership};
use partage_core::cluster::{Ahead, Cluster, Records, RecoverError, StoredFaults, Witness, note};
use partage_core::event::{About, EventKind, event};
use partage_core::name::KeyspaceName;
use partage_core::placement::Policies;
use partage_core::settings::Settings;
use partage_door::{Door, Tower};
use partage_wire::proto::admin_server::AdminServer;
use partage_wire::proto::worker_server::WorkerServer;
use partage_wire::stored::Presence;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
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
    #[error("cannot listen on {address}: {error}: choose another address, or stop who has this one")]
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
    pub async fn start(config: Config) -> Result<Coordinator, StartError> {
        let listen_error = |error| StartError::Listen { address: config.listen, error };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        if config.backing.is_shared() && config.address.is_none() && address.ip().is_unspecified() {
            return Err(StartError::Unreachable { listen: address });
        }
        let (stop, stopped) = watch::channel(false);
        let house = House::new(config, address);
        let (door, service) = (house.door.clone(), Tower(house.front.router()));
        let open_until = stopped.clone();
        let doors = tokio::spawn(async move { door.listen(listener, service, open_until).await });
        let (begun, has_begun) = oneshot::channel();
        let task = tokio::spawn(async move {
            house.live(Some(begun), stopped).await;
            let _ = doors.await;
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
        // Nobody listens when it has stopped by itself.
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

/// Told once, when the coordinator answers or cannot.
type Begun = Option<oneshot::Sender<Result<(), StartError>>>;

/// Turns true, once.
type Stopped = watch::Receiver<bool>;

/// What outlives standing by and leading.
struct House {
    config: Config,
    presence: Presence,
    clock: Clock,
    front: Front,
    door: Door,
    publisher: Arc<Publisher>,
    herald: Arc<Herald>,
    /// Why it does not lead.
    failure: LastFailure,
    remembered: Remembered,
    /// What workers, and the leaders so far, have said of keyspaces that the engine knows less of.
    ahead: Mutex<Ahead>,
}

/// One leadership, with all that hangs on it.
struct Life {
    mind: Mind,
    task: JoinHandle<Result<(), Ended>>,
    router: Router,
    /// Keyspaces that cannot be read as they are stored, or were set back.
    quarantine: BTreeSet<KeyspaceName>,
    /// Those of them that were set back.
    set_back: SetBack,
    /// Stores what happens.
    keeping: Keeping,
}

impl House {
    fn new(config: Config, listen: SocketAddr) -> House {
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
        let herald = Arc::new(Herald::new(publisher.clone(), clock, door.clone()));
        let front = Front::new(crate::http::closed());
        let failure = LastFailure::default();
        House {
            config,
            presence,
            clock,
            front,
            door,
            publisher,
            herald,
            failure,
            remembered: Remembered::default(),
            ahead: Mutex::default(),
        }
    }

    /// Stands by and leads, in turns, until it is told to stop.
    async fn live(self, mut begun: Begun, mut stopped: Stopped) {
        let first = Duration::from_millis(limits::RESTART_MS);
        let mut rest = first;
        while !*stopped.borrow() {
            let before = tokio::time::Instant::now();
            let Err(error) = self.stand_and_lead(&mut begun, &mut stopped).await else { return };
            let own = !self.config.backing.is_shared();
            if begun.is_some() && (own || !error.passes()) {
                tell(&mut begun, Err(error));
                return;
            }
            self.failure.note(&error);
            let place = self.config.backing.place();
            tracing::error!(%error, backend = %place, "no place among the coordinators at the moment; trying again");
            tell(&mut begun, Ok(()));
            rest = if own || before.elapsed() > 2 * rest { first } else { rest * 2 };
            rest = rest.min(Duration::from_millis(limits::RESTART_MOST_MS));
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                _ = stopped.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Ends well when it is told to stop, else with the reason why it begins anew.
    async fn stand_and_lead(&self, begun: &mut Begun, stopped: &mut Stopped) -> Result<(), StartError> {
        let mut standby = Standby::begin(self.publisher.clone(), self.presence.address.clone());
        self.stand_by(&standby, None);
        let footing = tokio::select! {
            footing = Footing::open(&self.config.backing, &self.presence, &self.remembered) => footing?,
            _ = stopped.wait_for(|stop| *stop) => return Ok(()),
        };
        if self.config.backing.is_shared() {
            standby.look_at(footing.coordination.clone(), footing.election.clone(), footing.terms.clone());
            self.stand_by(&standby, Some(&footing));
            tell(begun, Ok(()));
        }
        let won = tokio::select! {
            won = self.win(&footing) => won,
            () = leaders::stay_present(&footing, &self.presence, &self.herald, |_| {}) => return Ok(()),
            _ = stopped.wait_for(|stop| *stop) => Err(None),
        };
        let ended = match won {
            Ok(leadership) => {
                let ended = self.lead(&footing, leadership, standby, begun, stopped).await;
                self.herald.events().fall();
                ended
            }
            Err(why) => why.map_or(Ok(()), Err),
        };
        self.publisher.fall_silent();
        footing.close().await;
        ended
    }

    /// Waits until it leads. What is not known for sure is looked at again.
    async fn win(&self, footing: &Footing) -> Result<Leadership, Option<StartError>> {
        loop {
            // It leads since it is elected, not since it was started.
            let candidate =
                || Presence { since_ms: self.clock.moment().wall_ms, ..self.presence.clone() }.to_bytes();
            match footing.election.lead(&footing.session, candidate).await {
                Ok(leadership) => return Ok(leadership),
                Err(error @ (Error::Indefinite { .. } | Error::Unavailable { .. })) => {
                    tracing::warn!(%error, "the election cannot be seen; looking again");
                    tokio::time::sleep(Duration::from_millis(limits::LOOK_AGAIN_MS)).await;
                }
                Err(error) => return Err(Some(error.into())),
            }
        }
    }

    fn stand_by(&self, standby: &Standby, footing: Option<&Footing>) {
        let (publisher, herald) = (self.publisher.clone(), self.herald.clone());
        let (leads, roster) = (standby.who_leads(), footing.map(Roster::of).unwrap_or_default());
        let failure = self.failure.clone();
        let doors =
            crate::http::standby::router(publisher, herald, leads, roster, &self.presence.id, failure);
        self.front.open(match footing {
            Some(footing) => footing.doors(doors),
            None => doors,
        });
    }

    /// Leads until that is over; then every handle to the mind is gone.
    async fn lead(
        &self,
        footing: &Footing,
        leadership: Leadership,
        standby: Standby,
        begun: &mut Begun,
        stopped: &mut Stopped,
    ) -> Result<(), StartError> {
        let term = leadership.term().get();
        let (mut standby, mut full) = (Some(standby), None);
        loop {
            let Life { mind, mut task, router, quarantine, set_back, keeping } = tokio::select! {
                begun = self.begin(footing, leadership.clone(), standby.as_ref(), full.take()) => begun?,
                _ = stopped.wait_for(|stop| *stop) => return Ok(()),
            };
            self.failure.clear();
            self.front.open(footing.doors(router));
            if let Some(standby) = standby.take() {
                tracing::info!(term, backend = footing.coordination.backend(), "this coordinator leads");
                let text = format!(
                    "coordinator {} at {} leads at term {term}",
                    self.presence.id, self.presence.address
                );
                self.herald.happened(&[event(EventKind::LeaderChanged, About::all(), text)]);
                standby.end(Leads { address: self.presence.address.clone(), term });
            }
            drop(mind);
            tell(begun, Ok(()));
            let since_ms = self.clock.moment().wall_ms;
            let presence = Presence { leads: Some(term), since_ms, ..self.presence.clone() };
            let ended = tokio::select! {
                ended = &mut task => ended,
                keyspace = store::readable_again(&*footing.coordination, footing.maps(), &quarantine, &set_back) => {
                    self.front.open(crate::http::closed());
                    task.abort();
                    return Err(StoreError::ReadableAgain { keyspace }.into());
                }
                () = leaders::say_and_watch(footing, presence, &self.herald) => return Ok(()),
                // What it gives may not be held over the rest.
                () = async { drop(stopped.wait_for(|stop| *stop).await) } => {
                    self.front.open(crate::http::closed());
                    task.abort();
                    keeping.end().await;
                    return Ok(());
                }
            };
            self.front.open(crate::http::closed());
            match ended {
                // What is durable is as good as before, and so is the leadership.
                Ok(Err(Ended::Full(why))) => {
                    let (place, way_out) = (self.config.backing.place(), why.way_out());
                    tracing::error!(
                        place,
                        "{why}; it answers questions and renews leases, and changes nothing: {way_out}"
                    );
                    full = Some(why);
                }
                Ok(Err(Ended::Ahead(ahead))) => return Err(self.is_behind(ahead).into()),
                ended => return Err(why(ended)),
            }
        }
    }

    /// Keeps the term of a leadership that was won, so that it is not given again, and begins to watch over it.
    async fn secure(&self, footing: &Footing, leadership: &Leadership) -> Result<LeaderLease, StoreError> {
        let term = leadership.term();
        if let Some(stored) = leadership.set_back() {
            let (term, stored) = (term.get(), stored.get());
            self.herald.alarm(
                &format!(
                    "the engine says (key `election/term`) that term {stored} was the last, and this coordinator knows of a later one: the key \
                     was changed, or the engine was restored from an older state; this coordinator leads at term \
                     {term}. Stop all coordinators and see \"Restoring\" in the book's page on the backend if the \
                     engine was restored"
                ),
            );
        }
        // Without room for it the term is remembered by this process, and by those that stand by.
        if let Err(error) = footing.terms.keep(term).await {
            self.herald.alarm(&error.to_string());
        }
        let (coordination, session) = (footing.coordination.clone(), footing.session.clone());
        let lead = LeaderLease::begin(coordination, session, leadership, footing.about.clone()).await?;
        lead.check()?;
        Ok(lead)
    }

    fn known_ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what workers know that the leader did not, for what is read next.
    fn is_behind(&self, ahead: Ahead) -> StoreError {
        let first = ahead.values().next().map(|witness| (witness.who.clone(), witness.known.clone()));
        ahead.into_values().for_each(|witness| note(&mut self.known_ahead(), witness));
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
            note(&mut ahead, Witness { who: "this coordinator".to_owned(), known });
        }
        records.refuse_older(faults, &mut ahead);
        let refused = ahead.iter().filter(|(name, _)| faults.quarantine.contains_key(*name));
        refused.map(|(name, witness)| (name.clone(), witness.known.clone())).collect()
    }

    /// From what is durable to a mind with its doors.
    async fn begin(
        &self,
        footing: &Footing,
        leadership: Leadership,
        standby: Option<&Standby>,
        full: Option<NotStored>,
    ) -> Result<Life, StartError> {
        let term = leadership.term().get();
        let lead = self.secure(footing, &leadership).await?;
        let events = self.herald.events();
        events.lead(&*footing.coordination, term, &self.config.settings).await;
        let keeping = Keeping::begin(events.clone(), footing.coordination.clone(), leadership.clone());
        let maps = footing.maps().cloned();
        let (store, mut records, mut faults) =
            Store::open(footing.coordination.clone(), leadership, maps).await?;
        let lists = store.lists();
        let at = self.clock.moment();
        let set_back = self.refuse_older(standby, &mut records, &mut faults);
        let quarantine = faults.quarantine.keys().cloned().collect();
        let mended = records.mend(&mut faults, at.wall_ms);
        let mut cluster = Cluster::recover(at, self.config.settings.clone(), records)?
            .with_policies(self.config.policies.clone())
            .identified(partage_core::id::ClusterId(footing.cluster.0));
        cluster.take_faults(faults, mended);
        if self.config.backing.is_shared() {
            let late = LeaderLease::bound(footing.session.ttl());
            cluster.allow_for_predecessor(self.clock.now(), late.as_millis() as u64);
        }
        let herald = self.herald.clone();
        let begin =
            |mind: &Mind, cluster: &Cluster| self.publisher.lead(mind.clone(), cluster, self.clock.now());
        let leading = Leading { cluster, store, lead, clock: self.clock, full };
        let (mind, task) = Mind::start(leading, herald.clone(), begin);
        tokio::spawn(check_back::run(mind.clone(), Duration::from_millis(limits::CHECK_TICK_MS)));
        tokio::spawn(callback::run(mind.clone()));
        if let (Some(part), Some(lists)) = (&footing.part, lists) {
            tokio::spawn(upkeep::run(mind.clone(), lists, part.directory(), self.clock));
        }
        let router = doors(&mind, self.publisher.clone(), herald, Roster::of(footing), term);
        Ok(Life { mind, task, router, quarantine, set_back, keeping })
    }
}

fn tell(begun: &mut Begun, what: Result<(), StartError>) {
    if let Some(begun) = begun.take() {
        // Whoever started it may have gone.
        let _ = begun.send(what);
    }
}

fn why(ended: Result<Result<(), Ended>, tokio::task::JoinError>) -> StartError {
    let stopped = |what: String| StoreError::Coordination(Error::Unavailable { what });
    StartError::Store(match ended {
        Ok(Ok(())) => stopped("nobody held on to the mind".to_owned()),
        Ok(Err(Ended::Store(error))) => error,
        Ok(Err(ended @ (Ended::Full(_) | Ended::Ahead(_)))) => stopped(ended.to_string()),
        Err(error) => stopped(error.to_string()),
    })
}

/// Everything that the one port of a leader answers.
fn doors(mind: &Mind, publisher: Arc<Publisher>, herald: Arc<Herald>, roster: Roster, term: u64) -> Router {
    let grpc = tonic::service::Routes::new(WorkerServer::new(WorkerDoor::new(mind.clone())))
        .add_service(MapsDoor::new(publisher))
        .add_service(
            AdminServer::new(AdminDoor::new(Desk::new(mind.clone(), herald.clone())))
                .max_decoding_message_size(limits::BODY_BYTES),
        );
    let grpc = with_reflection(grpc);
    // Paths that neither knows are answered by the JSON doors, which know both ways of saying so.
    let json = crate::http::router(mind.clone(), herald, roster, term);
    grpc.into_axum_router().reset_fallback().merge(json)
}
