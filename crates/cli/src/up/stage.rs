//! The nodes of `up`, of both kinds, each with a runtime of its own, so that one can be killed as if its machine had lost
//! power: its tasks, connections and listener are gone at once, and nobody is told.

use super::library::Library;
use crate::output::Failure;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use partage_door::{Door, Role, Settings, Tower};
use partage_kv::{Config, Node};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// Threads of one node.
const THREADS: usize = 1;

struct Actor {
    address: SocketAddr,
    /// Kept for the node inside it; taken when it is dropped.
    runtime: Option<Runtime>,
    /// A node of the dataset answers requests on threads of its own.
    reader: Option<partage_dataset::node::Node>,
}

impl Drop for Actor {
    /// In the background: whoever drops it may stand on a runtime, which must not wait.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        let reader = self.reader.take();
        std::thread::spawn(move || drop(reader));
    }
}

/// Whether a node of that name is one of the dataset: `d1`, and not `n1`.
pub fn is_of_dataset(id: &str) -> bool {
    id.starts_with('d')
}

/// Where the nodes are.
#[derive(Clone)]
pub struct Stage {
    coordinator: String,
    library: Arc<Library>,
    door: Settings,
    actors: Arc<Mutex<BTreeMap<String, Actor>>>,
}

impl Stage {
    /// Empty.
    pub fn new(coordinator: String, library: Library, door: Settings) -> Stage {
        Stage { coordinator, library: Arc::new(library), door, actors: Arc::default() }
    }

    fn actors(&self) -> MutexGuard<'_, BTreeMap<String, Actor>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All nodes that are alive.
    pub fn nodes(&self) -> Vec<(String, SocketAddr)> {
        self.actors().iter().map(|(id, actor)| (id.clone(), actor.address)).collect()
    }

    /// Where the dataset is.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// One node more; by its name one of the dataset, or one of the key-value service.
    pub async fn add(&self, id: &str, listen: SocketAddr) -> Result<SocketAddr, Failure> {
        if self.actors().contains_key(id) {
            return Err(Failure::refused(format!("node {id} is up already: choose another name")));
        }
        let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
        let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start node {id}: {error}")))?;
        let (name, coordinator, library) = (id.to_owned(), self.coordinator.clone(), self.library.clone());
        let door = self.door.clone();
        let started = runtime.spawn(async move {
            if is_of_dataset(&name) {
                let node = library.node(&name, listen, &coordinator, door).await?;
                return Ok((node.address(), Some(node)));
            }
            let address = keep(name, listen, coordinator, door).await?;
            Ok((address, None))
        });
        match started.await.map_err(|error| error.to_string()).and_then(|node| node) {
            Ok((address, reader)) => {
                let actor = Actor { address, runtime: Some(runtime), reader };
                self.actors().insert(id.to_owned(), actor);
                Ok(address)
            }
            Err(why) => {
                runtime.shutdown_background();
                Err(Failure::failed(format!("node {id}: {why}")).help("choose a free --port, or 0 for any"))
            }
        }
    }

    /// Takes a node away, as a power cut would.
    pub fn kill(&self, id: &str) -> bool {
        self.actors().remove(id).is_some()
    }

    /// Takes all nodes away.
    pub fn clear(&self) {
        for (id, _) in self.nodes() {
            self.kill(&id);
        }
    }

    /// Opens the stage door: `POST /kill/<node>` and `POST /add/<node>`.
    pub async fn open(&self, listen: SocketAddr) -> Result<SocketAddr, Failure> {
        let cannot = |error| Failure::failed(format!("cannot listen on {listen}: {error}"));
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let router = Router::new()
            .route("/kill/{node}", post(kill))
            .route("/add/{node}", post(add))
            .with_state(self.clone());
        let door = Door::new(Role::default(), self.door.clone());
        // It ends with the process.
        tokio::spawn(async move {
            let (_open, stop) = watch::channel(false);
            door.listen(listener, Tower(router), stop).await;
        });
        Ok(address)
    }
}

/// Starts a node of the key-value service on this runtime, to live as long as that does.
async fn keep(
    name: String,
    listen: SocketAddr,
    coordinator: String,
    door: Settings,
) -> Result<SocketAddr, String> {
    let listener =
        TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let node = Node::start(Config { door, ..Config::new(name, coordinator, listener) }).await;
    let node = node.map_err(|error| error.to_string())?;
    let address = node.address();
    tokio::spawn(async move {
        let _node = node;
        std::future::pending::<()>().await;
    });
    Ok(address)
}

async fn kill(State(stage): State<Stage>, Path(node): Path<String>) -> (StatusCode, String) {
    if stage.kill(&node) {
        return (StatusCode::OK, format!("{node} is dead; see `partage status`\n"));
    }
    let names: Vec<_> = stage.nodes().into_iter().map(|(id, _)| id).collect();
    (StatusCode::NOT_FOUND, format!("there is no node {node} here: choose one of {}\n", names.join(", ")))
}

async fn add(State(stage): State<Stage>, Path(node): Path<String>) -> (StatusCode, String) {
    match stage.add(&node, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await {
        Ok(address) => (StatusCode::OK, format!("{node} is up at {address}\n")),
        Err(failure) => (StatusCode::CONFLICT, format!("{failure}\n")),
    }
}
