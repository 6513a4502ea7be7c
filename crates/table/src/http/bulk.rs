//! Requests for several rows over HTTP: `batch`, `get` and `put` of a table.
//!
//! With `here=true` a node answers for what it has itself, and sends nothing on: so nodes ask each other.

use super::answer::{failed, malformed, refused};
use super::parse::{consistency_of, idempotency_key};
use crate::bulk::{Batch, Bulk, Get, Got, Put, PutItem, Question, check_count, check_rows, condition, value};
use crate::limits;
use crate::service::Refused;
use crate::stored::values;
use crate::table_error::TableError;
use axum::Json;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use partage_core::keyspace::key::Key;
use partage_core::node::exchange::KeyspaceBrief;
use partage_service::table::replication::Consistency;
use partage_service::table::rows::KeptOutcome;
use partage_wire::json::{ErrorBody, parse};
use partage_wire::table::{
    BatchAnswer, BatchRequest, BytesText, GetAnswer, GetOutcome, GetRequest, PutAnswer, PutOutcome,
    PutRequest, PutRow,
};
use partage_worker::KeyspaceName;
use serde::de::DeserializeOwned;

/// Where a batch is sent, as axum has it.
pub(super) const BATCH: &str = "/v1/tables/{table}/batch";

/// Where a multi-get is.
pub(super) const GET: &str = "/v1/tables/{table}/get";

/// Where a multi-put is.
pub(super) const PUT: &str = "/v1/tables/{table}/put";

/// A response instead of the one that was wanted.
type Otherwise = Box<Response>;

/// What stands beside the body.
#[derive(Debug, PartialEq, Eq)]
struct Beside {
    is_here: bool,
    consistency: Consistency,
}

impl Beside {
    fn parse(query: Option<&str>, is_read: bool) -> Result<Beside, String> {
        let (mut is_here, mut word, mut bound_ms) = (false, None, None);
        for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "here" if value == "true" => is_here = true,
                "consistency" if is_read => word = Some(value.into_owned()),
                "bound_ms" if is_read => {
                    let number = value.parse();
                    bound_ms = Some(number.map_err(|_| format!("bound_ms={value}: give a whole number"))?);
                }
                _ => {
                    return Err(format!(
                        "there is no parameter {name}={value}: get has consistency and bound_ms"
                    ));
                }
            }
        }
        Ok(Beside { is_here, consistency: consistency_of(word.as_deref(), bound_ms)? })
    }
}

async fn body_of(body: Body) -> Result<Bytes, Otherwise> {
    to_bytes(body, limits::BULK_BODY_BYTES).await.map_err(|_| {
        let what = format!("the body is longer than {} bytes", limits::BULK_BODY_BYTES);
        instead(TableError::too_many(what))
    })
}

fn instead(why: impl Into<TableError>) -> Otherwise {
    Box::new(failed(&why.into()))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Otherwise> {
    parse(body).map_err(|why| Box::new((StatusCode::BAD_REQUEST, Json(why)).into_response()))
}

/// The settings of the table of a path.
async fn table(bulk: &Bulk, name: &str) -> Result<KeyspaceBrief, Otherwise> {
    let name = KeyspaceName::new(name).map_err(|why| Box::new(malformed(&why.to_string())))?;
    bulk.table(&name).await.map_err(instead)
}

/// The outcomes of the items: from all nodes, or from this one alone.
async fn settle<Q: Question>(
    bulk: &Bulk,
    brief: &KeyspaceBrief,
    is_here: bool,
    question: &Q,
    items: Vec<Q::Item>,
) -> Vec<Result<Q::Answer, Refused>> {
    if is_here {
        return question.own(bulk.client(), items).await;
    }
    bulk.settle(&brief.name, question, &items).await
}

/// 200, or 207 where some rows have another outcome than wanted.
fn status(failed: usize) -> StatusCode {
    if failed == 0 { StatusCode::OK } else { StatusCode::MULTI_STATUS }
}

/// Reads several keys, each for itself.
#[utoipa::path(
    post, path = "/v1/tables/{table}/get", tag = "rows", request_body = GetRequest,
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("consistency" = Option<String>, Query, description = "How fresh: linearizable (the default), bounded, any"),
        ("bound_ms" = Option<u64>, Query, description = "With bounded: how old what is read may be, in milliseconds"),
    ),
    responses(
        (status = 200, body = GetAnswer, description = "Each key is found or absent"),
        (status = 207, body = GetAnswer, description = "Some keys have failed or are left out"),
        (status = 404, body = ErrorBody, description = "there is no such table"),
    )
)]
pub(super) async fn get(
    State(bulk): State<Bulk>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Response {
    got(&bulk, &name, query.as_deref(), body).await.unwrap_or_else(|otherwise| *otherwise)
}

async fn got(bulk: &Bulk, name: &str, query: Option<&str>, body: Body) -> Result<Response, Otherwise> {
    let Beside { is_here, consistency } =
        Beside::parse(query, true).map_err(|why| Box::new(malformed(&why)))?;
    let GetRequest { keys } = read(&body_of(body).await?)?;
    check_count(keys.len(), "keys").map_err(instead)?;
    let items = keys
        .into_iter()
        .enumerate()
        .map(|(at, key)| Key::try_from(key).map_err(|why| Box::new(malformed(&format!("key {at}: {why}")))));
    let items = items.collect::<Result<Vec<Key>, Otherwise>>()?;
    let brief = table(bulk, name).await?;
    let question = Get::new(brief.name.clone(), consistency);
    let outcomes = settle(bulk, &brief, is_here, &question, items.clone()).await;
    let rows: Vec<_> = items
        .iter()
        .zip(outcomes)
        .map(|(key, outcome): (&Key, Result<Got, Refused>)| Get::result(BytesText::from(key), outcome))
        .collect();
    let is_failed = |outcome| matches!(outcome, GetOutcome::Failed | GetOutcome::LeftOut);
    let failed = rows.iter().filter(|row| is_failed(row.outcome)).count();
    Ok((status(failed), Json(GetAnswer { rows, failed })).into_response())
}

/// Writes several rows, each for itself.
#[utoipa::path(
    post, path = "/v1/tables/{table}/put", tag = "rows", request_body = PutRequest,
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("idempotency-key" = Option<String>, Header, description = "The same again within ten minutes changes nothing"),
    ),
    responses(
        (status = 200, body = PutAnswer, description = "All rows are written"),
        (status = 207, body = PutAnswer, description = "Some rows are not written, or not known to be"),
        (status = 404, body = ErrorBody, description = "there is no such table"),
    )
)]
pub(super) async fn put(
    State(bulk): State<Bulk>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    was_put(&bulk, &name, query.as_deref(), &headers, body).await.unwrap_or_else(|otherwise| *otherwise)
}

async fn was_put(
    bulk: &Bulk,
    name: &str,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Otherwise> {
    let bad = |why: String| Box::new(malformed(&why));
    let Beside { is_here, .. } = Beside::parse(query, false).map_err(bad)?;
    let request_name = idempotency_key(headers).map_err(bad)?;
    let PutRequest { rows } = read(&body_of(body).await?)?;
    check_count(rows.len(), "rows").map_err(instead)?;
    let items = items(rows)?;
    let brief = table(bulk, name).await?;
    let question = Put::new(brief.name.clone(), request_name);
    let outcomes = settle(bulk, &brief, is_here, &question, items.clone()).await;
    let results: Vec<_> = items
        .iter()
        .zip(outcomes)
        .map(|(item, outcome)| Put::result(BytesText::from(&item.key), outcome))
        .collect();
    let failed = results.iter().filter(|result| result.outcome != PutOutcome::Written).count();
    Ok((status(failed), Json(PutAnswer { results, failed })).into_response())
}

/// The rows that are put.
fn items(rows: Vec<PutRow>) -> Result<Vec<PutItem>, Otherwise> {
    let rows = rows.into_iter().enumerate();
    let items =
        rows.map(|(at, row)| item(row).map_err(|why| TableError::Malformed(format!("row {at}: {why}"))));
    let items = items.collect::<Result<Vec<PutItem>, TableError>>().map_err(instead)?;
    check_rows(&items).map_err(instead)?;
    Ok(items)
}

fn item(row: PutRow) -> Result<PutItem, String> {
    let key = Key::try_from(row.key).map_err(|why| why.to_string())?;
    let value = value(row.value, row.json.as_deref())?;
    let condition = condition(row.if_version.as_deref(), row.if_absent)?;
    Ok(PutItem { key, value, ttl_ms: row.ttl_ms, condition })
}

/// Operations within one partition key, done as one or not at all.
#[utoipa::path(
    post, path = "/v1/tables/{table}/batch", tag = "rows", request_body = BatchRequest,
    params(
        ("table" = String, Path, description = "The name of the table"),
        ("idempotency-key" = Option<String>, Header, description = "The same again within ten minutes changes nothing"),
    ),
    responses(
        (status = 200, body = BatchAnswer, description = "Done"),
        (status = 404, body = ErrorBody, description = "there is no such table"),
        (status = 409, body = ErrorBody, description = "an operation cannot be done on the row that is there"),
        (status = 412, body = ErrorBody, description = "a condition does not hold"),
        (status = 422, body = ErrorBody, description = "another write had this idempotency key"),
        (status = 507, body = ErrorBody, description = "the disk of the leader is full"),
    )
)]
pub(super) async fn batch(
    State(bulk): State<Bulk>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    done(&bulk, &name, query.as_deref(), &headers, body).await.unwrap_or_else(|otherwise| *otherwise)
}

async fn done(
    bulk: &Bulk,
    name: &str,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Otherwise> {
    let bad = |why: String| Box::new(malformed(&why));
    let Beside { is_here, .. } = Beside::parse(query, false).map_err(bad)?;
    let request_name = idempotency_key(headers).map_err(bad)?;
    let body = body_of(body).await?;
    let request: BatchRequest = read(&body)?;
    let brief = table(bulk, name).await?;
    let batch = Batch::new(brief.name.clone(), request_name, body, request).map_err(instead)?;
    batch.check(brief.partition_key).map_err(instead)?;
    let outcome = settle(bulk, &brief, is_here, &batch, vec![batch.first_key()]).await.pop();
    let outcome = match outcome {
        Some(Ok(outcome)) => outcome,
        Some(Err(why)) => return Err(Box::new(refused(&why))),
        None => return Err(bad("the batch has no key".to_owned())),
    };
    if is_here {
        let answered = KeptOutcome { at_ms: 0, fingerprint: 0, outcome };
        return Ok(values::encode_answered(&answered).into_response());
    }
    let (version, results) = TableError::of(outcome, |at| batch.operation_name(at)).map_err(instead)?;
    Ok(Json(batch.answer(version, results)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::limits::VALUE_BYTES;

    #[test]
    fn a_query_says_how_fresh_and_who_answers() {
        let parsed = Beside::parse(Some("here=true&consistency=bounded&bound_ms=7"), true);
        assert_eq!(parsed, Ok(Beside { is_here: true, consistency: Consistency::Bounded(7) }));
        assert_eq!(
            Beside::parse(None, false),
            Ok(Beside { is_here: false, consistency: Consistency::Linearizable })
        );
        for (bad, is_read) in
            [("consistency=any", false), ("bound_ms=x", true), ("what=1", true), ("here=1", true)]
        {
            assert!(Beside::parse(Some(bad), is_read).is_err(), "{bad}");
        }
    }

    fn status_of(text: &str) -> StatusCode {
        items(serde_json::from_str(text).unwrap()).map_or_else(|why| why.status(), |_| StatusCode::OK)
    }

    #[test]
    fn rows_have_bounds_and_each_its_own_key() {
        assert_eq!(status_of(r#"[{"key":"a","value":"1"},{"key":"b","json":[1]}]"#), StatusCode::OK);
        let twice = r#"[{"key":"a","value":"1"},{"key":{"hex":"61"},"value":"2"}]"#;
        assert_eq!(status_of(twice), StatusCode::BAD_REQUEST);
        let row = |key: usize, bytes: usize| format!(r#"{{"key":"{key}","value":"{}"}}"#, "x".repeat(bytes));
        assert_eq!(status_of(&format!("[{}]", row(1, VALUE_BYTES))), StatusCode::OK);
        assert_eq!(status_of(&format!("[{}]", row(1, VALUE_BYTES + 1))), StatusCode::PAYLOAD_TOO_LARGE);
        let rows: Vec<String> = (0..5).map(|key| row(key, VALUE_BYTES - 1)).collect();
        assert_eq!(status_of(&format!("[{}]", rows[..4].join(","))), StatusCode::OK);
        assert_eq!(status_of(&format!("[{}]", rows.join(","))), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
