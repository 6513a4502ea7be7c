//! A node of the tests: a key-value service in memory, built on the SDK like any user's, that can be told to
//! misbehave.
//!
//! | request                    | answer                                                          |
//! |----------------------------|-----------------------------------------------------------------|
//! | `PUT /kv/{keyspace}/{key}` | 204; the body is the value                                      |
//! | `GET /kv/{keyspace}/{key}` | 200 with the value, or 404                                      |
//! | `GET /raw/{keyspace}/{n}`  | everything this process has of shard `n`, for who takes it over |
//!
//! A shard is copied when it is loaded, from an owner that goes on writing, and once more when it is served,
//! from the owner that has just stopped: so nothing that was acknowledged is left behind. Each value carries
//! (epoch, count), and of two the later one wins. Nothing is on disk: what is killed is lost, and the tests
//! count on that.

use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Json, Router};
use clap::Parser;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_worker::http::{self, Aim, Target};
use partage_worker::{
    Assignment, CallbackTimeouts, DropReason, Epoch, Failure, Guard, Handler, Peer, ReplicaState, Role,
    Worker,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

#[derive(Debug, Parser)]
struct Args {
    /// The node's name in the cluster
    #[arg(long)]
    id: String,
    /// host:port of the coordinators
    #[arg(long, value_delimiter = ',')]
    coordinator: Vec<String>,
    /// host:port to listen on
    #[arg(long)]
    listen: String,
    /// host:port to announce, where it is not the one to listen on
    #[arg(long)]
    announce: Option<String>,
    /// Each `load` takes that long
    #[arg(long, default_value_t = 0)]
    load_ms: u64,
    /// What a callback does instead of its work, every time: `load=hang`, `serve=panic`, `drop=refuse`
    #[arg(long, value_parser = fault)]
    fault: Option<(String, Fault)>,
    /// How long the SDK lets a callback run
    #[arg(long, default_value_t = 10_000)]
    patience_ms: u64,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Hang,
    Panic,
    Refuse,
}

fn fault(text: &str) -> Result<(String, Fault), String> {
    let (callback, what) = text.split_once('=').ok_or("say which callback does what: load=hang")?;
    let fault = match what {
        "hang" => Fault::Hang,
        "panic" => Fault::Panic,
        "refuse" => Fault::Refuse,
        other => return Err(format!("{other} is none of hang, panic, refuse")),
    };
    match callback {
        "load" | "serve" | "unload" | "drop" => Ok((callback.to_owned(), fault)),
        other => Err(format!("{other} is no callback")),
    }
}

/// How long another node may take to hand over a shard.
const COPY: Duration = Duration::from_secs(3);

/// How long leaving may take.
const LEAVE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Value {
    written: (u64, u64),
    text: String,
}

type Rows = BTreeMap<String, Value>;

#[derive(Default)]
struct Data {
    shards: BTreeMap<(String, u64), Rows>,
    count: u64,
}

impl Data {
    fn merge(&mut self, shard: &Assignment, copied: Rows) {
        let rows = self.shards.entry(name(shard)).or_default();
        for (key, value) in copied.into_iter().filter(|(key, _)| shard.holds(key.as_bytes())) {
            let newer = rows.get(&key).is_none_or(|have| have.written < value.written);
            if newer {
                rows.insert(key, value);
            }
        }
    }
}

fn name(shard: &Assignment) -> (String, u64) {
    (shard.keyspace().as_str().to_owned(), shard.shard().0)
}

struct Store {
    args: Args,
    data: Mutex<Data>,
    client: Client<HttpConnector, Empty<bytes::Bytes>>,
}

impl Store {
    fn data(&self) -> std::sync::MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that `peer` has of its shard; none = no node listens there any more.
    async fn copy(&self, shard: &Assignment, peer: &Peer) -> Result<Option<Rows>, Failure> {
        let removed = || format!("node {} is removed from the cluster", peer.node);
        let address = peer.address.as_deref().ok_or_else(removed)?;
        let path = format!("http://{address}/raw/{}/{}", shard.keyspace(), peer.shard.0);
        let answered = tokio::time::timeout(COPY, async {
            let answer = match self.client.get(path.parse()?).await {
                Ok(answer) => answer,
                Err(error) if error.is_connect() => return Ok(None),
                Err(error) => return Err(Failure::from(error)),
            };
            let bytes = answer.into_body().collect().await?.to_bytes();
            Ok::<_, Failure>(Some(serde_json::from_slice(&bytes)?))
        });
        answered.await.map_err(|_| format!("{} does not hand over {}", peer.node, shard.shard()))?
    }

    async fn misbehave(&self, callback: &str) -> Result<(), Failure> {
        match self.args.fault.as_ref().filter(|(of, _)| of == callback) {
            None => Ok(()),
            Some((_, Fault::Hang)) => std::future::pending().await,
            Some((_, Fault::Panic)) => panic!("this node panics at every {callback}"),
            Some((_, Fault::Refuse)) => Err(format!("this node refuses every {callback}").into()),
        }
    }

    async fn copy_all(&self, shard: &Assignment, from: &[Peer]) -> Result<(), Failure> {
        for peer in from {
            if let Some(copied) = self.copy(shard, peer).await? {
                self.data().merge(shard, copied);
            }
        }
        Ok(())
    }
}

#[partage_worker::async_trait]
impl Handler for Store {
    async fn load(&self, shard: &Assignment, sources: &[Peer]) -> Result<(), Failure> {
        tokio::time::sleep(Duration::from_millis(self.args.load_ms)).await;
        self.misbehave("load").await?;
        self.copy_all(shard, sources).await
    }

    async fn serve(&self, shard: &Assignment, role: Role, _: Epoch) -> Result<(), Failure> {
        self.misbehave("serve").await?;
        if role != Role::Leader {
            return Ok(());
        }
        let has_stopped =
            |peer: &&Peer| matches!(peer.state, ReplicaState::Unload | ReplicaState::UnloadFinal);
        let former: Vec<_> = shard.peers.iter().filter(has_stopped).cloned().collect();
        self.copy_all(shard, &former).await
    }

    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.misbehave("unload").await
    }

    async fn drop(&self, shard: &Assignment, _: DropReason) -> Result<(), Failure> {
        self.misbehave("drop").await?;
        self.data().shards.remove(&name(shard));
        Ok(())
    }
}

async fn put(
    State(store): State<Arc<Store>>,
    Extension(guard): Extension<Arc<Guard>>,
    Path((_, key)): Path<(String, String)>,
    text: String,
) -> StatusCode {
    let shard = name(&guard.assignment());
    let mut data = store.data();
    data.count += 1;
    let written = (guard.epoch().0, data.count);
    data.shards.entry(shard).or_default().insert(key, Value { written, text });
    StatusCode::NO_CONTENT
}

async fn read(
    State(store): State<Arc<Store>>,
    Extension(guard): Extension<Arc<Guard>>,
    Path((_, key)): Path<(String, String)>,
) -> Result<String, StatusCode> {
    let shard = name(&guard.assignment());
    let data = store.data();
    let value = data.shards.get(&shard).and_then(|rows| rows.get(&key));
    value.map(|value| value.text.clone()).ok_or(StatusCode::NOT_FOUND)
}

async fn raw(State(store): State<Arc<Store>>, Path(shard): Path<(String, u64)>) -> Json<Rows> {
    Json(store.data().shards.get(&shard).cloned().unwrap_or_default())
}

fn key_of(parts: &Parts) -> Aim {
    let mut path = parts.uri.path().strip_prefix("/kv/").unwrap_or_default().splitn(2, '/');
    match (path.next().and_then(|name| name.parse().ok()), path.next()) {
        (Some(keyspace), Some(key)) => Aim::Key(Target { keyspace, key: key.into(), access: None }),
        _ => Aim::Bad("the path is /kv/KEYSPACE/KEY".to_owned()),
    }
}

fn service(worker: &Worker, store: Arc<Store>) -> Router {
    let kv = Router::new().route("/kv/{keyspace}/{key}", get(read).put(put)).with_state(store.clone());
    Router::new()
        .route("/raw/{keyspace}/{shard}", get(raw))
        .with_state(store)
        .merge(http::router(worker))
        .fallback_service(http::sharded(worker, key_of, kv))
}

#[tokio::main(worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "a program of its own, which catches its signals")]
async fn main() -> Result<(), Failure> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(&args.listen).await?;
    let builder =
        Worker::builder(&args.id, &args.coordinator, args.announce.as_ref().unwrap_or(&args.listen))
            .check_path(http::WORKER_PATH)
            .callback_timeouts(CallbackTimeouts {
                load_ms: args.patience_ms,
                callback_ms: args.patience_ms,
                ..CallbackTimeouts::default()
            });
    let client = Client::builder(TokioExecutor::new()).build_http();
    let store = Arc::new(Store { args, data: Mutex::default(), client });
    let worker = builder.start_shared(store.clone()).await?;
    let (close, mut closed) = watch::channel(());
    let server = axum::serve(listener, service(&worker, store)).with_graceful_shutdown(async move {
        // An error says that the node is gone, and the server with it.
        let _ = closed.changed().await;
    });
    let server = tokio::spawn(server.into_future());
    terminate.recv().await;
    worker.leave(LEAVE).await?;
    close.send(())?;
    Ok(server.await??)
}
