//! Snapshots of shards over HTTP, and rows in bulk.
//!
//! | request | says |
//! |---|---|
//! | `POST /v1/tables/<table>/shards/<shard>/snapshots` | pins the rows of a shard of which this node has a replica; `?consistency=linearizable` (the default: at its leader), `any`, or `bounded` with `&bound_ms=N` |
//! | `GET …/snapshots/<snapshot>/rows` | a page of them; `?from=`, `to=`, `prefix=`, `limit=`, `keys_only=` as for a scan |
//! | `GET …/snapshots/<snapshot>/chunk?from=KEY` | a chunk of a backup ([`partage_wire::table::backup::rows`]); `etag` is its digest, `partage-next` where the next one begins; 304 if `If-None-Match` names it |
//! | `DELETE …/snapshots/<snapshot>` | ends it |
//! | `POST /v1/tables/<table>/chunks` | writes the rows of the body, which is as a chunk, where a key has none yet |

use super::answer::{error, malformed, refused};
use super::parse::{consistency_of, version_text};
use super::rows::Asked;
use crate::access::TableClient;
use crate::backup::{Loader, Pinned, SnapshotError, Snapshots};
use crate::limits;
use crate::scans::for_client;
use crate::service::Refusal;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use partage_core::base::id::ShardId;
use partage_core::keyspace::key::Key;
use partage_service::table::replication::Consistency;
use partage_wire::json::KeyText;
use partage_wire::table::PlaceForm;
use partage_wire::table::backup::messages::{NEXT, PinnedSnapshot, ROWS, SnapshotRows};
use partage_worker::KeyspaceName;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use std::sync::Arc;

const SNAPSHOTS: &str = "/v1/tables/{table}/shards/{shard}/snapshots";
const SNAPSHOT: &str = "/v1/tables/{table}/shards/{shard}/snapshots/{snapshot}";
const ROWS_OF: &str = "/v1/tables/{table}/shards/{shard}/snapshots/{snapshot}/rows";
const CHUNK_OF: &str = "/v1/tables/{table}/shards/{shard}/snapshots/{snapshot}/chunk";
const CHUNKS: &str = "/v1/tables/{table}/chunks";

/// The doors for backups, of the node whose client it is.
pub(crate) fn backup_routes(client: TableClient) -> Router {
    let snapshots = Snapshots::new(client.tables().clone());
    let of_shards = Router::new()
        .route(SNAPSHOTS, post(pin))
        .route(SNAPSHOT, axum::routing::delete(end))
        .route(ROWS_OF, get(rows))
        .route(CHUNK_OF, get(chunk))
        .with_state(snapshots);
    Router::new().route(CHUNKS, post(load)).with_state(Loader::new(client)).merge(of_shards)
}

fn not_read(why: &SnapshotError) -> Response {
    let (status, kind, help) = match why {
        SnapshotError::Refused(why) => return refused(why),
        SnapshotError::Elsewhere(..) => {
            (StatusCode::MISDIRECTED_REQUEST, Refusal::Soon.word(), "ask its leader by the map")
        }
        SnapshotError::Gone(_) => (StatusCode::GONE, "gone", "make another one, and begin anew"),
    };
    error(status, kind, &why.to_string(), help)
}

/// A way of a path to a shard.
fn shard_of(table: &str, shard: u64) -> Result<(KeyspaceName, ShardId), Box<Response>> {
    let table = KeyspaceName::new(table).map_err(|error| Box::new(malformed(&error.to_string())))?;
    Ok((table, ShardId(shard)))
}

async fn pin(
    State(snapshots): State<Snapshots>,
    Path((table, shard)): Path<(String, u64)>,
    RawQuery(query): RawQuery,
) -> Response {
    let consistency = match how_fresh(query.as_deref().unwrap_or_default()) {
        Ok(consistency) => consistency,
        Err(why) => return malformed(&why),
    };
    let (table, shard) = match shard_of(&table, shard) {
        Ok(found) => found,
        Err(response) => return *response,
    };
    match snapshots.pin(&table, shard, consistency).await {
        Ok(pinned) => (StatusCode::CREATED, Json(told(&pinned))).into_response(),
        Err(why) => not_read(&why),
    }
}

fn how_fresh(query: &str) -> Result<Consistency, String> {
    let (mut word, mut bound_ms) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("consistency", value) => word = Some(value),
            ("bound_ms", value) => {
                let number = value.parse().map_err(|_| format!("bound_ms={value}: give a whole number"))?;
                bound_ms = Some(number);
            }
            (other, _) => {
                return Err(format!(
                    "a snapshot has no parameter {other:?}: it has consistency and bound_ms"
                ));
            }
        }
    }
    consistency_of(word, bound_ms)
}

fn told(pinned: &Pinned) -> PinnedSnapshot {
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (begin, end) = PlaceForm::of(&pinned.bounds);
    PinnedSnapshot {
        snapshot: pinned.id.clone(),
        shard: pinned.replica.shard.0,
        begin: Some(begin),
        end,
        position: version_text(pinned.rows.position()),
        clock_ms: pinned.rows.clock_ms(),
        idle_ms: ms(limits::SNAPSHOT_IDLE),
        life_ms: ms(limits::SNAPSHOT_LIFE),
    }
}

fn find(
    snapshots: &Snapshots,
    (table, shard, snapshot): (String, u64, String),
) -> Result<Arc<Pinned>, Box<Response>> {
    let (table, shard) = shard_of(&table, shard)?;
    snapshots.find(&table, shard, &snapshot).map_err(|why| Box::new(not_read(&why)))
}

async fn end(
    State(snapshots): State<Snapshots>,
    Path((table, shard, snapshot)): Path<(String, u64, String)>,
) -> Response {
    let (table, shard) = match shard_of(&table, shard) {
        Ok(found) => found,
        Err(response) => return *response,
    };
    snapshots.end(&table, shard, &snapshot);
    // A snapshot that was gone before is answered in the same way.
    StatusCode::NO_CONTENT.into_response()
}

async fn rows(
    State(snapshots): State<Snapshots>,
    Path(path): Path<(String, u64, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let asked = match Asked::parse(query.as_deref().unwrap_or_default()) {
        Ok(asked) if asked.is_only_range() => asked,
        Ok(_) => {
            return malformed(
                "rows of a snapshot are of its state, and go on at `from`: leave token and consistency out",
            );
        }
        Err(why) => return malformed(&why),
    };
    let pinned = match find(&snapshots, path) {
        Ok(pinned) => pinned,
        Err(response) => return *response,
    };
    let range = asked.range;
    match snapshots.read(&pinned, move |rows| rows.page(&range)).await {
        Ok(page) => {
            let rows = page.rows.into_iter().map(for_client).collect();
            Json(SnapshotRows { rows, next: page.next.map(|key| KeyText::from(&key)) }).into_response()
        }
        Err(why) => not_read(&why),
    }
}

async fn chunk(
    State(snapshots): State<Snapshots>,
    Path(path): Path<(String, u64, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    let from = match query.strip_prefix("from=") {
        Some(key) if !key.contains('&') => key,
        None if query.is_empty() => "",
        _ => return malformed("a chunk has one parameter, from"),
    };
    let from: Vec<u8> = percent_decode_str(from).collect();
    let from = match Key::new(&from) {
        Ok(from) => from,
        Err(why) => return malformed(&why.to_string()),
    };
    let pinned = match find(&snapshots, path) {
        Ok(pinned) => pinned,
        Err(response) => return *response,
    };
    let read = snapshots.read(&pinned, move |rows| {
        let chunk = rows.chunk(&from)?;
        Ok((chunk.digest(), chunk))
    });
    let (digest, chunk) = match read.await {
        Ok(read) => read,
        Err(why) => return not_read(&why),
    };
    let tag = format!("\"{digest}\"");
    let is_known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = is_known.is_some_and(|known| known.split(',').any(|known| known.trim() == tag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Body::from(chunk.content).into_response(),
    };
    let headers = response.headers_mut();
    let text = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ETAG, text(&tag));
    headers.insert(HeaderName::from_static(ROWS), chunk.rows.into());
    if let Some(next) = &chunk.next {
        let next = percent_encode(next.as_bytes(), NON_ALPHANUMERIC).to_string();
        headers.insert(HeaderName::from_static(NEXT), text(&next));
    }
    response
}

async fn load(State(loader): State<Loader>, Path(table): Path<String>, body: Body) -> Response {
    let table = match KeyspaceName::new(&table) {
        Ok(table) => table,
        Err(why) => return malformed(&why.to_string()),
    };
    let Ok(content) = to_bytes(body, limits::RESTORE_BYTES).await else {
        let what = format!("the rows are longer than {} bytes", limits::RESTORE_BYTES);
        return error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &what, "send several requests");
    };
    match loader.load(&table, &content).await {
        Ok(taken) => Json(taken).into_response(),
        Err(why) => refused(&why),
    }
}
