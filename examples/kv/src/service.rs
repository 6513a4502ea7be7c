//! The HTTP side: values for clients, and the copies that nodes make of each other.

use crate::copy::{self, Courier};
use crate::store::{Store, Version};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, OriginalUri, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::request::Parts;
use http::{Method, StatusCode, header};
use partage_core::exchange::ReplicaKey;
use partage_core::id::Epoch;
use partage_core::lifecycle::ReplicaState;
use partage_core::limits;
use partage_core::name::KeyspaceName;
use partage_worker::http::{self as sharded_http, Aim, Target};
use partage_worker::{Guard, Worker};
use serde::Deserialize;
use std::sync::Arc;

/// What the handlers share.
#[derive(Clone)]
struct Shared {
    store: Arc<Store>,
    courier: Courier,
}

/// Everything that a node answers.
pub fn router(worker: &Worker, store: Arc<Store>) -> Router {
    let shared = Shared { store, courier: Courier::default() };
    let values = Router::new().fallback(value).with_state(shared.clone());
    Router::new()
        .route("/internal/export", get(export))
        .route("/internal/replicate", post(replicate))
        .with_state(shared)
        .merge(sharded_http::router(worker))
        .fallback_service(sharded_http::sharded(worker, aim, values))
}

/// The keyspace and key of a path: `/<keyspace>/<key…>`, with or without `/kv` before it.
fn aim(parts: &Parts) -> Aim {
    let path = parts.uri.path();
    let path = path.strip_prefix("/kv/").or(path.strip_prefix('/')).unwrap_or(path);
    let Some((keyspace, key)) = path.split_once('/') else {
        return Aim::Bad("ask for /<keyspace>/<key>".to_owned());
    };
    let keyspace = match KeyspaceName::new(keyspace) {
        Ok(keyspace) => keyspace,
        Err(error) => return Aim::Bad(error.to_string()),
    };
    let Some(key) = percent_decoded(key) else {
        return Aim::Bad(format!("{key:?} is not percent-encoded as it should be: % and two hex digits"));
    };
    if key.len() > limits::KEY_BYTES {
        return Aim::Bad(format!(
            "a key of {} bytes is too long: the limit is {}",
            key.len(),
            limits::KEY_BYTES
        ));
    }
    Aim::Key(Target { keyspace, key, access: None })
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    Some(bytes)
}

/// A read or write of one key; the guard says by which replica, in which epoch.
async fn value(
    State(shared): State<Shared>,
    Extension(guard): Extension<Arc<Guard>>,
    OriginalUri(uri): OriginalUri,
    method: Method,
    body: Bytes,
) -> Response {
    let replica = guard.permit().replica.clone();
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.uri = uri;
    let Aim::Key(Target { key, .. }) = aim(&parts) else { return StatusCode::BAD_REQUEST.into_response() };
    match method {
        Method::GET | Method::HEAD => match shared.store.read(&replica, &key) {
            Some(value) => ([(header::CONTENT_TYPE, kind(&value))], value).into_response(),
            None => (StatusCode::NOT_FOUND, "no such key\n").into_response(),
        },
        Method::PUT | Method::POST => write(&shared, &guard, &replica, key, Some(body)).await,
        Method::DELETE => write(&shared, &guard, &replica, key, None).await,
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET, PUT or DELETE\n").into_response(),
    }
}

fn kind(value: &[u8]) -> &'static str {
    if value.first() == Some(&b'{') { "application/json" } else { "application/octet-stream" }
}

async fn write(
    shared: &Shared,
    guard: &Guard,
    replica: &ReplicaKey,
    key: Vec<u8>,
    value: Option<Bytes>,
) -> Response {
    let Some(entry) = shared.store.write(replica, guard.epoch(), &key, value) else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the shard is going\n").into_response();
    };
    let assignment = guard.assignment();
    let follows = |state| matches!(state, ReplicaState::Live | ReplicaState::Load);
    let followers = assignment.peers.iter().filter(|peer| peer.shard == replica.shard && follows(peer.state));
    let sent = followers.map(|peer| shared.courier.send(&replica.keyspace, peer, key.clone(), entry.clone()));
    futures::future::join_all(sent).await;
    StatusCode::NO_CONTENT.into_response()
}

/// Which shard, and after which version.
#[derive(Debug, Deserialize)]
struct ShardQuery {
    keyspace: String,
    shard: u64,
    epoch: Option<u64>,
    count: Option<u64>,
}

async fn export(State(shared): State<Shared>, Query(query): Query<ShardQuery>) -> Response {
    let since = query.epoch.zip(query.count).map(|(epoch, count)| Version { epoch: Epoch(epoch), count });
    let replica = shared.store.find(&query.keyspace, query.shard);
    match replica.and_then(|replica| shared.store.since(&replica, since)) {
        Some(entries) => copy::encode(&entries).into_response(),
        None => (StatusCode::NOT_FOUND, "that shard is not here\n").into_response(),
    }
}

async fn replicate(State(shared): State<Shared>, Query(query): Query<ShardQuery>, body: Bytes) -> Response {
    let Some(replica) = shared.store.find(&query.keyspace, query.shard) else {
        return (StatusCode::NOT_FOUND, "that shard is not here\n").into_response();
    };
    let Some(entries) = copy::decode(body) else {
        return (StatusCode::BAD_REQUEST, "cut off\n").into_response();
    };
    let taken = entries.into_iter().all(|(key, entry)| shared.store.replicate(&replica, key, entry));
    if taken { StatusCode::NO_CONTENT.into_response() } else { StatusCode::NOT_FOUND.into_response() }
}
