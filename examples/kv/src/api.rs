//! What clients can ask, and what nodes ask each other.

use crate::limits;
use crate::peers::{LOG, PLACE};
use crate::records::Record;
use crate::service::{Service, in_request};
use crate::shard::Shard;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::BytesMut;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use partage_door::Door;
use partage_wire::json::ErrorBody;
use partage_worker::http::{Aim, Target, router_with, sharded};
use partage_worker::{Guard, KeyspaceName, PlacementId, ReplicaKey, ShardId, Worker};
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything that one port answers.
pub fn routes(worker: &Worker, service: Arc<Service>, door: &Door) -> Router {
    let door = door.clone();
    let rows = Router::new().fallback(row).with_state(service.clone());
    let internal = Router::new()
        .route("/internal/export", get(export))
        .route("/internal/import", post(import))
        .with_state(service);
    router_with(worker, move || door.text("partage_worker")).merge(internal).merge(sharded(worker, aim, rows))
}

/// Which keyspace and key a request is about: `/kv/<keyspace>/<key>` or `/<keyspace>/<key>`.
fn aim(parts: &Parts) -> Aim {
    let path = parts.uri.path().trim_start_matches('/');
    let path = path.strip_prefix("kv/").unwrap_or(path);
    let Some((keyspace, key)) = path.split_once('/') else {
        return Aim::Bad("ask for /kv/<keyspace>/<key>".to_owned());
    };
    let key: Vec<u8> = percent_decode_str(key).collect();
    match KeyspaceName::new(&percent_decode_str(keyspace).decode_utf8_lossy()) {
        Err(error) => Aim::Bad(error.to_string()),
        Ok(_) if key.len() > limits::KEY_BYTES => {
            Aim::Bad(format!("a key of {} bytes: the limit is {}", key.len(), limits::KEY_BYTES))
        }
        Ok(keyspace) => Aim::Key(Target { keyspace, key, access: None }),
    }
}

/// One row. The request has been let in: the guard says to which replica, and keeps it here meanwhile.
async fn row(
    State(service): State<Arc<Service>>,
    Extension(guard): Extension<Arc<Guard>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let (Aim::Key(Target { key, .. }), Some(shard)) = (aim(&parts), service.shard(&guard.permit().replica))
    else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let value = match parts.method {
        Method::GET | Method::HEAD => {
            let raw = parts.uri.path().starts_with("/kv/");
            let kind = if raw { "application/octet-stream" } else { "application/json" };
            return match shard.get(&key) {
                Some(value) => ([(header::CONTENT_TYPE, kind)], value).into_response(),
                None => refused(StatusCode::NOT_FOUND, "not_found", "there is no such key", "PUT it"),
            };
        }
        Method::PUT => match to_bytes(body, limits::VALUE_BYTES).await {
            Ok(value) => Some(value),
            Err(_) => {
                let why = format!("the value is longer than {} bytes", limits::VALUE_BYTES);
                return refused(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &why, "store it in parts");
            }
        },
        Method::DELETE => None,
        other => return not_for_a_row(&other),
    };
    let epoch = guard.epoch().0;
    let written = in_request(guard.clone(), &shard, move |shard| shard.write(epoch, key.into(), value)).await;
    let record = match written {
        Ok(Ok(record)) => record,
        Ok(Err(error)) => return unavailable("unavailable", error),
        Err(error) => return unavailable("unavailable", error),
    };
    match service.replicate(&guard, &record).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => unavailable("not_replicated", error),
    }
}

fn not_for_a_row(method: &Method) -> Response {
    let what = format!("{method} is not for a key");
    let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, "malformed", &what, "use GET, PUT or DELETE");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE"));
    response
}

/// Something may have been done: without `retry-after`, so that a router passes the answer on and does not repeat the write.
fn unavailable(kind: &str, why: impl std::fmt::Display) -> Response {
    refused(StatusCode::SERVICE_UNAVAILABLE, kind, &why.to_string(), "look whether it was done")
}

/// An error in the shape that all listeners of Partage use.
fn refused(status: StatusCode, kind: &str, what: &str, way_out: &str) -> Response {
    (status, Json(ErrorBody::told(kind, what, way_out))).into_response()
}

type Asked = Query<BTreeMap<String, String>>;

fn number(asked: &BTreeMap<String, String>, name: &str) -> u64 {
    asked.get(name).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The replica that another node names.
fn asked_for(service: &Service, asked: &BTreeMap<String, String>) -> Option<Arc<Shard>> {
    let keyspace = asked.get("keyspace")?.parse().ok()?;
    let shard = ShardId(number(asked, "shard"));
    service.shard(&ReplicaKey { keyspace, shard, placement: PlacementId(number(asked, "placement")) })
}

fn no_replica() -> Response {
    refused(StatusCode::NOT_FOUND, "not_found", "there is no such replica here", "ask for the map again")
}

/// A replica's records after a place in its log, for a node that copies it.
async fn export(State(service): State<Arc<Service>>, Query(asked): Asked) -> Response {
    let Some(shard) = asked_for(&service, &asked) else {
        return no_replica();
    };
    let log = shard.log_id();
    let since = if number(&asked, "log") == log { number(&asked, "since") } else { 0 };
    let end = shard.last_place();
    let pieces = futures::stream::unfold(since, move |at| {
        let piece = shard.piece(at, end);
        async move { piece.map(|(reached, piece)| (Ok::<_, std::convert::Infallible>(piece), reached)) }
    });
    let headers = [(LOG, log.to_string()), (PLACE, end.to_string())];
    (headers, Body::from_stream(pieces)).into_response()
}

/// Records that another node has.
async fn import(State(service): State<Arc<Service>>, Query(asked): Asked, body: Body) -> Response {
    let Some(shard) = asked_for(&service, &asked) else {
        return no_replica();
    };
    let Ok(records) = to_bytes(body, limits::IMPORT_BYTES).await else {
        let why = format!("the records are longer than {} bytes", limits::IMPORT_BYTES);
        return refused(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &why, "send them in parts");
    };
    let records = match all(records) {
        Ok(records) => records,
        Err(why) => {
            return refused(StatusCode::BAD_REQUEST, "malformed", &why.to_string(), "send whole records");
        }
    };
    match in_request((), &shard, |shard| shard.merge(records)).await {
        Ok(Ok(())) => StatusCode::OK.into_response(),
        Ok(Err(error)) => unavailable("unavailable", error),
        Err(error) => unavailable("unavailable", error),
    }
}

fn all(bytes: Bytes) -> Result<Vec<Record>, String> {
    let (mut bytes, mut records) = (BytesMut::from(bytes), Vec::new());
    while let Some(record) = Record::take(&mut bytes).map_err(|error| error.to_string())? {
        records.push(record);
    }
    if bytes.is_empty() { Ok(records) } else { Err("it breaks off within a record".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Version;
    use axum::body::to_bytes;

    /// What a node answers to a client that asks for `words`: the status, the number of its log, and the keys.
    async fn exported(service: &Arc<Service>, words: &str) -> (StatusCode, String, Vec<Bytes>) {
        let asked = words.split('&').filter_map(|word| word.split_once('='));
        let asked = asked.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let answer = export(State(service.clone()), Query(asked)).await;
        let (status, log) = (answer.status(), answer.headers().get(LOG).cloned());
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let keys = if status == StatusCode::OK { all(body).unwrap() } else { Vec::new() };
        let log = log.map(|log| log.to_str().unwrap().to_owned()).unwrap_or_default();
        (status, log, keys.into_iter().map(|record| record.key).collect())
    }

    /// Seed 40876 of the simulator: the node has kept a replica of a higher number, and what it serves is another.
    #[tokio::test]
    async fn d1_a_node_is_asked_for_the_replica_that_an_order_names_and_reads_a_new_log_from_its_beginning() {
        let service = Arc::new(Service::new(None, None));
        for (placement, key) in [(3, "served"), (7, "kept")] {
            let replica = ReplicaKey {
                keyspace: "users".parse().unwrap(),
                shard: ShardId(1),
                placement: PlacementId(placement),
            };
            let record = Record { key: key.into(), value: Some("v".into()), version: Version::default() };
            let shard = Shard::default();
            shard.merge(vec![record]).unwrap();
            service.shards().insert(replica, Arc::new(shard));
        }
        let replica = "keyspace=users&shard=1&placement=3";
        let (status, log, keys) = exported(&service, replica).await;
        assert_eq!((status, keys), (StatusCode::OK, vec![Bytes::from("served")]));
        let (_, _, none) = exported(&service, &format!("{replica}&log={log}&since=1")).await;
        let (_, _, again) = exported(&service, &format!("{replica}&log=1&since=1")).await;
        assert_eq!((none.len(), again.len()), (0, 1), "a place in another log says nothing");
        let (status, ..) = exported(&service, "keyspace=users&shard=1&placement=8").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        let (status, ..) = exported(&service, "keyspace=users&shard=1").await;
        assert_eq!(status, StatusCode::NOT_FOUND, "no other replica answers in its place");
    }
}
