//! Rows over HTTP: `GET`, `PUT` and `DELETE` of `/v1/tables/<table>/keys/<key>`, or `/<table>/<key>` as routers and other
//! services have it, with raw bodies.
//!
//! Any node takes any request: the worker's layer ([`partage_worker::http::Sharded`]) lets it in, or sends it on once to the node
//! that serves the key.
//!
//! | request | says |
//! |---|---|
//! | `<key>` | the bytes of the key, percent-encoded |
//! | `GET ?consistency=linearizable` | (the default) reads at the leader what was acknowledged before |
//! | `GET ?consistency=bounded&bound_ms=N` | reads at any replica what is at most so old |
//! | `GET ?consistency=any` | reads at any replica |
//! | `GET ?at_least=VERSION` | reads nothing older than that version: an earlier answer's `partage-applied` |
//! | `PUT ?ttl_ms=N` | the row ends so long after the write, by the leader's clock |
//! | `If-Match: "VERSION"`, `If-Match: *` | writes only if the row has this version, or is there |
//! | `If-None-Match: *` | writes only if there is no row |
//! | `Idempotency-Key: ID` | the same write again within ten minutes changes nothing and gets the first answer |
//!
//! `GET /v1/tables/<table>/rows` scans a table ([`crate::scans`] says in which order) and answers
//! `{"rows": [{"key": …, "value": …, "version": …, "expires_ms": …}], "next": …}`, with keys and values that are not UTF-8 as
//! `{"hex": …}`.
//!
//! | parameter | says |
//! |---|---|
//! | `from`, `to`, `prefix` | from which key on, before which one, with what keys begin: bytes, percent-encoded |
//! | `limit` | how many rows the page has at most: 1 to 1000, else 100 |
//! | `filter` | which rows are wanted, by their JSON values: [`partage_service::table::filter`] |
//! | `token` | where to go on: `next` of the page before; the last page has none |
//! | `keys_only` | leaves the values out |
//! | `consistency`, `bound_ms` | as for a key, of each shard |
//!
//! Requests for several rows are in [`crate::bulk`]; their bodies and answers are JSON ([`partage_wire::table`]):
//!
//! | request | says |
//! |---|---|
//! | `POST /v1/tables/<table>/batch` | operations within one partition key, done as one or not at all |
//! | `POST /v1/tables/<table>/get` | reads several keys, with `consistency` as for one |
//! | `POST /v1/tables/<table>/put` | writes several rows, each for itself |
//!
//! Indexes and checks ([`crate::indexes`]):
//!
//! | request | says |
//! |---|---|
//! | `GET`, `POST /v1/tables/<table>/indexes` | lists indexes, creates one: `{"name": …, "field": …}`, `dry_run` |
//! | `GET /v1/tables/<table>/indexes/<index>` | rows by value and key: `equals`, or `from` and `to`; `limit`, `token`, `keys_only`, `consistency` |
//! | `DELETE /v1/tables/<table>/indexes/<index>` | drops an index; `dry_run` |
//! | `POST /v1/tables/<table>/check` | compares replicas, and rows with indexes; `token` |
//!
//! `GET /v1/tables/<table>/feed` reads [the change feed](crate::feed) of a table and answers
//! `{"changes": [{"key": …, "change": "put", "value": …, "version": …, "at_ms": …, "shard": …}], "next": …}`:
//!
//! | parameter | says |
//! |---|---|
//! | `after` | behind which page: its `next`; `now`: what comes from now on; else from the oldest change on |
//! | `left` | of a reader that does not follow: `all` with the first page, then the `left` of the page before. One without `left` has come to where each shard had its end when the first page was asked for |
//! | `limit` | how many changes the page has at most: 1 to 1000, else 100 |
//! | `wait_ms` | how long to wait where there are none: 0 to 25000, else 0 |
//! | `shard` | only the changes of this shard |
//!
//! `GET /v1/openapi.json` is the API document (`openapi.rs`).
//!
//! | status | kind | meaning |
//! |---|---|---|
//! | 200, 204 | | done; `etag` is the version of the row |
//! | 207 | | some rows of several have another outcome than wanted: each says which |
//! | 400, 413 | `malformed`, `invalid`, `too_large` | the request cannot be carried out as it is |
//! | 404 | `not_found` | there is no such row (with `partage-applied`), or no such table |
//! | 421 | `misdirected` | the node that was sent this on does not serve the key |
//! | 409 | `index_not_ready`, `index_exists`, `too_many` | the index cannot be asked, or created |
//! | 409 | `refused` | an operation cannot be done on the row that is there |
//! | 410 | `gone` | changes behind the token of a feed are no longer kept |
//! | 412 | `not_met` | the condition does not hold; `etag` is the version of the row that is there |
//! | 422 | `request_id_taken` | another write had this idempotency key |
//! | 502, 503 | `broken`, `moved` | of reads: the answer was lost; try again |
//! | 503 | `soon`, `unreachable`, `too_few_in_sync`, `busy`, `stopped`, `too_old` | nothing was done; try again |
//! | 504 | `unknown_outcome` | the write may or may not have been done |
//! | 507 | `no_room` | the disk of the leader is full; nothing was done |

mod answer;
mod backup;
mod bulk;
mod feed;
mod indexes;
mod internal;
mod openapi;
mod parse;
mod rows;

use crate::bulk::Bulk;
use crate::feed::Feeds;
use crate::indexes::Indexes;
use crate::scans::{self, Scans};
use crate::service::{Refused, Tables};
use answer::{error, found, malformed, not_for_a_key, refused, written};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::request::Parts;
use http::{Method, StatusCode};
use parse::{KeyRequest, key_request};
use partage_core::limits::VALUE_BYTES;
use partage_service::table::rows::{Action, Operation, Request as WriteRequest, Write};
use partage_worker::http::{Aim, Sharded};
use partage_worker::{Guard, Worker};
use std::sync::Arc;
use tower::Layer;

/// The beginning of every path of a table.
pub const PREFIX: &str = scans::TABLES;

/// Where a row is, as the API document has it.
#[cfg(test)]
const KEYS: &str = "/v1/tables/{table}/keys/{key}";

pub(crate) use answer::APPLIED;
pub(crate) use backup::backup_routes;
pub(crate) use internal::Internal;
pub(crate) use parse::{consistency_of, idempotency_name, named, version, version_text};

/// The rows of all tables, for the node that `worker` is.
pub fn routes(worker: &Worker, tables: Tables, (scans, feeds): (Scans, Feeds), bulk: Bulk) -> Router {
    let fed = Router::new()
        .route(feed::FEED, get(feed::of_table))
        .route(feed::SHARDS, post(feed::of_shards))
        .with_state(feeds);
    let scanned = Router::new()
        .route(rows::TABLE, get(rows::of_table))
        .route(rows::SHARD, get(rows::of_shard))
        .with_state(scans.clone());
    let several = Router::new()
        .route(bulk::BATCH, post(bulk::batch))
        .route(bulk::GET, post(bulk::get))
        .route(bulk::PUT, post(bulk::put))
        .with_state(bulk);
    let indexes = Indexes::new(&scans);
    let of_shards =
        Router::new().route(indexes::SHARD, post(indexes::of_shard)).with_state((indexes.clone(), scans));
    let indexed = Router::new()
        .route(indexes::INDEXES, get(indexes::list).post(indexes::create))
        .route(indexes::INDEX, get(indexes::query).delete(indexes::drop_index))
        .route(indexes::CHECK, post(indexes::check))
        .with_state(indexes)
        .merge(of_shards);
    let document = Arc::new(openapi::document());
    let documented = Router::new().route(openapi::PATH, get(async move || axum::Json(Arc::clone(&document))));
    let of_tables = scanned
        .merge(several)
        .merge(fed)
        .merge(indexed)
        .merge(documented)
        .method_not_allowed_fallback(answer::other_method);
    let rows = of_keys(tables).merge(of_tables);
    Router::new().fallback_service(Sharded::new(worker, aim).definite_statuses().layer(rows))
}

/// The rows of single keys, of requests that have been let in.
pub(crate) fn of_keys(tables: Tables) -> Router {
    Router::new().fallback(row).with_state(tables)
}

/// Which key a request is about.
pub(crate) fn aim(parts: &Parts) -> Aim {
    let path = parts.uri.path();
    if path == openapi::PATH || rows::is_of_table(path) {
        return Aim::Unsharded;
    }
    match internal::target(parts) {
        Some(Ok(target)) => return Aim::Key(target),
        Some(Err(why)) => return Aim::Bad(why),
        None => {}
    }
    // Which is answered here, whatever else the request has.
    if !matches!(parts.method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE) {
        return Aim::Unsharded;
    }
    match key_request(parts) {
        Ok(request) => Aim::Key(request.target()),
        Err(why) => Aim::Bad(why),
    }
}

/// One row. The request has been let in: the guard says to which replica, and keeps it here meanwhile.
async fn row(
    State(tables): State<Tables>,
    guard: Option<Extension<Arc<Guard>>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let Some(Extension(guard)) = guard else { return not_for_a_key(&parts.method) };
    if internal::target(&parts).is_some() {
        return internal::carry_out(&tables, &guard, body).await.unwrap_or_else(|why| refused(&why));
    }
    let asked = match key_request(&parts) {
        Ok(asked) => asked,
        Err(why) => return malformed(&why),
    };
    let answer = match parts.method {
        Method::GET | Method::HEAD => read(&tables, &guard, &asked).await,
        Method::PUT | Method::DELETE => {
            let value = match value(&parts.method, body).await {
                Ok(value) => value,
                Err(response) => return *response,
            };
            write(&tables, &guard, &asked, value).await
        }
        other => return not_for_a_key(&other),
    };
    answer.unwrap_or_else(|why| refused(&why))
}

/// What a `PUT` puts; none of a `DELETE`.
async fn value(method: &Method, body: Body) -> Result<Option<Bytes>, Box<Response>> {
    if method == Method::DELETE {
        return Ok(None);
    }
    let too_large = |_| {
        let what = format!("the value is longer than {VALUE_BYTES} bytes");
        Box::new(error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &what, "store it in parts"))
    };
    to_bytes(body, VALUE_BYTES).await.map(Some).map_err(too_large)
}

async fn read(tables: &Tables, guard: &Guard, asked: &KeyRequest) -> Result<Response, Refused> {
    let replica = &guard.permit().replica;
    let answer = tables.read(replica, &asked.key, asked.consistency, asked.at_least).await?;
    Ok(found(answer))
}

async fn write(
    tables: &Tables,
    guard: &Guard,
    asked: &KeyRequest,
    value: Option<Bytes>,
) -> Result<Response, Refused> {
    let request =
        asked.request_id(value.as_deref()).map(|(id, fingerprint)| WriteRequest { id, fingerprint });
    let action = match value {
        Some(value) => Action::Put(value[..].into(), asked.expiry()),
        None => Action::Delete,
    };
    let (key, condition) = (asked.key.clone(), asked.condition);
    let operation = Operation { key, condition, action, wants_former: false };
    // The node sets the time.
    let write = Write { at_ms: 0, request, operations: vec![operation] };
    let outcome = tables.write(&guard.permit().replica, &write).await?;
    Ok(written(outcome))
}
