//! A coordinator from start to stop: store, election, mind, doors.
//!
//! When the mind ends with an error (the disk is full, the leadership is lost) the doors close, the state in
//! memory is thrown away, and everything begins again from what is durable. Workers and routers go on with
//! what they have and connect anew.

use crate::audience::Herald;
use crate::clock::Clock;
use crate::desk::Desk;
use crate::grpc::{AdminDoor, MapsDoor, WorkerDoor};
use crate::mind::Mind;
use crate::publish::Publisher;
use crate::store::{Store, StoreError};
use crate::{callback, check_back, limits, listen};
use axum::Router;
use bytes::Bytes;
use partage_coordination::embedded::{Embedded, Options};
use partage_coordination::{Coordination, Election, Key, Session};
use partage_core::cluster::{Cluster, RecoverError};
use partage_core::placement::Policies;
use partage_core::settings::Settings;
use partage_wire::proto::admin_server::AdminServer;
use partage_wire::proto::worker_server::WorkerServer;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a coordinator needs to be told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// Where it keeps its state; none = in memory, gone with the process.
    pub data_dir: Option<PathBuf>,
    /// The numbers that the cluster runs by.
    pub settings: Settings,
    /// The placement policies that keyspaces may name: `Policies::default()`, and one's own (A3).
    pub policies: Policies,
}

impl Config {
    /// In memory, with default settings and the shipped policies.
    pub fn new(listen: SocketAddr) -> Config {
        Config { listen, data_dir: None, settings: Settings::default(), policies: Policies::default() }
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
    /// Its state cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its state is no cluster.
    #[error(transparent)]
    Recover(#[from] RecoverError),
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
    /// Starts a coordinator; returns when it answers.
    ///
    /// # Errors
    /// When its address is taken, or its state is damaged (with file and offset), of another version, or in use.
    pub async fn start(config: Config) -> Result<Coordinator, StartError> {
        let listen_error = |error| StartError::Listen { address: config.listen, error };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let (stop, stopped) = watch::channel(false);
        let house = House { config, listener: Arc::new(listener), clock: Clock::start(), address };
        let life = house.begin().await?;
        let task = tokio::spawn(house.live(life, stopped));
        Ok(Coordinator { address, stop, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it and waits until its directory is free.
    pub async fn stop(self) {
        // Nobody listens when it has stopped by itself.
        let _ = self.stop.send(true);
        let _ = self.task.await;
    }
}

/// What outlives a mind.
struct House {
    config: Config,
    listener: Arc<TcpListener>,
    clock: Clock,
    address: SocketAddr,
}

/// One life of the mind with all that hangs on it.
struct Life {
    store: Arc<Embedded>,
    /// Held for as long as it leads.
    _session: Session,
    mind: Mind,
    task: JoinHandle<Result<(), StoreError>>,
    router: Router,
}

impl House {
    async fn begin(&self) -> Result<Life, StartError> {
        let embedded = match &self.config.data_dir {
            Some(dir) => Embedded::open(dir, Options::default()).await?,
            None => Embedded::in_memory(),
        };
        let coordination: Arc<dyn Coordination> = embedded.clone();
        let ttl = Duration::from_millis(limits::SESSION_MS);
        let session = Session::open(coordination.clone(), ttl).await?;
        let place = Key::new("election").map_err(StoreError::from)?;
        let election = Election::new(coordination.clone(), &place)?;
        let leadership = election.lead(&session, &Bytes::from(self.address.to_string())).await?;
        let (store, records) = Store::open(coordination, leadership).await?;
        let cluster = Cluster::recover(self.clock.moment(), self.config.settings.clone(), records)?
            .with_policies(self.config.policies.clone());
        let publisher = Arc::new(Publisher::new(&cluster, self.clock.now()));
        let herald = Arc::new(Herald::new(publisher.clone(), self.clock));
        let (mind, task) = Mind::start(cluster, store, self.clock, herald.clone());
        tokio::spawn(check_back::run(mind.clone(), Duration::from_millis(limits::CHECK_TICK_MS)));
        tokio::spawn(callback::run(mind.clone()));
        let router = doors(&mind, publisher, herald);
        Ok(Life { store: embedded, _session: session, mind, task, router })
    }

    async fn live(self, mut life: Life, mut stopped: watch::Receiver<bool>) {
        loop {
            let (close, closed) = watch::channel(false);
            let doors = tokio::spawn(listen::serve(self.listener.clone(), life.router, closed));
            drop(life.mind);
            let stopping = tokio::select! {
                ended = &mut life.task => {
                    tracing::error!(error = %why(ended), "the coordinator starts anew from what is durable");
                    false
                }
                _ = stopped.wait_for(|stop| *stop) => true,
            };
            // Closing the doors ends every handle to the mind, and so the mind.
            let _ = close.send(true);
            let _ = doors.await;
            life.task.abort();
            life.store.close().await;
            if stopping {
                return;
            }
            life = match self.begin_again(&mut stopped).await {
                Some(life) => life,
                None => return,
            };
        }
    }

    /// Tries until it succeeds or is told to stop.
    async fn begin_again(&self, stopped: &mut watch::Receiver<bool>) -> Option<Life> {
        loop {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(limits::RESTART_MS)) => {}
                _ = stopped.wait_for(|stop| *stop) => return None,
            }
            match self.begin().await {
                Ok(life) => return Some(life),
                Err(error) => tracing::error!(%error, "the coordinator cannot start; it tries again"),
            }
        }
    }
}

fn why(ended: Result<Result<(), StoreError>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(())) => "nobody held on to it".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Everything that one port answers.
fn doors(mind: &Mind, publisher: Arc<Publisher>, herald: Arc<Herald>) -> Router {
    let grpc = tonic::service::Routes::new(WorkerServer::new(WorkerDoor::new(mind.clone())))
        .add_service(MapsDoor::new(mind.clone(), publisher))
        .add_service(
            AdminServer::new(AdminDoor::new(Desk::new(mind.clone())))
                .max_decoding_message_size(limits::BODY_BYTES),
        );
    // Paths that neither knows are answered by the JSON doors, which know both ways of saying so.
    grpc.into_axum_router().reset_fallback().merge(crate::http::router(mind.clone(), herald))
}
