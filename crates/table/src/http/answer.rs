//! Answers to requests for a key.

use super::parse::version_text;
use crate::node::ReadAnswer;
use crate::service::{Refusal, Refused};
use crate::table_error::TableError;
use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{Outcome, Row};
use partage_wire::json::ErrorBody;

/// Up to which entry of the shard's log an answer is read: for a later read's `at_least`.
pub(crate) const APPLIED: HeaderName = HeaderName::from_static("partage-applied");

/// How old what was read may be at most, in milliseconds; absent where that is not known.
pub(super) const AGE_MS: HeaderName = HeaderName::from_static("partage-age-ms");

/// When the row ends, in milliseconds of Unix time.
pub(super) const EXPIRES_MS: HeaderName = HeaderName::from_static("partage-expires-ms");

/// Whether there was a row before the write.
const EXISTED: HeaderName = HeaderName::from_static("partage-existed");

fn text(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).unwrap_or(HeaderValue::from_static(""))
}

fn etag(version: LogPosition) -> HeaderValue {
    text(&format!("\"{}\"", version_text(version)))
}

/// What a read has found.
pub(super) fn found(answer: ReadAnswer) -> Response {
    let mut response = match answer.row {
        Some(row) => of_row(&row),
        None => error(StatusCode::NOT_FOUND, "not_found", "there is no row of that key", "PUT it"),
    };
    let headers = response.headers_mut();
    headers.insert(APPLIED, text(&version_text(answer.position)));
    if let Some(age_ms) = answer.age_ms {
        headers.insert(AGE_MS, age_ms.into());
    }
    response
}

fn of_row(row: &Row) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ETAG, etag(row.version));
    if let Some(expires_ms) = row.expires_ms {
        headers.insert(EXPIRES_MS, expires_ms.into());
    }
    (headers, Body::from(row.value.to_vec())).into_response()
}

/// What a write of one row has done.
pub(super) fn written(outcome: Outcome) -> Response {
    let (version, results) = match TableError::of(outcome, |_| String::new()) {
        Ok(done) => done,
        Err(why) => return failed(&why),
    };
    let existed = results.first().is_some_and(|done| done.existed);
    let is_there = results.first().is_some_and(|done| done.now.is_some());
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    if is_there {
        headers.insert(header::ETAG, etag(version));
    }
    headers.insert(APPLIED, text(&version_text(version)));
    headers.insert(EXISTED, HeaderValue::from_static(if existed { "true" } else { "false" }));
    response
}

/// A request that was not carried out, or may not have been.
pub(super) fn failed(why: &TableError) -> Response {
    let mut response = error(status(why), why.word(), &why.to_string(), why.help());
    let headers = response.headers_mut();
    if let Some(after) = why.retry_after() {
        headers.insert(header::RETRY_AFTER, after.as_secs().into());
    }
    if let TableError::NotMet { current: Some(version), .. } = why {
        headers.insert(header::ETAG, etag(*version));
    }
    response
}

fn status(why: &TableError) -> StatusCode {
    match why {
        TableError::Malformed(_) | TableError::Invalid(_) => StatusCode::BAD_REQUEST,
        TableError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        TableError::NoTable(_) => StatusCode::NOT_FOUND,
        TableError::NotMet { .. } => StatusCode::PRECONDITION_FAILED,
        TableError::NotDone(_) | TableError::NoFeed(_) => StatusCode::CONFLICT,
        TableError::Gone(_) => StatusCode::GONE,
        TableError::RequestIdTaken => StatusCode::UNPROCESSABLE_ENTITY,
        TableError::Refused(why) => match why.refusal {
            Refusal::Invalid => StatusCode::BAD_REQUEST,
            Refusal::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
            Refusal::Unknown => StatusCode::GATEWAY_TIMEOUT,
            Refusal::Soon | Refusal::TooFewInSync | Refusal::Busy | Refusal::Stopped | Refusal::TooOld => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        },
    }
}

/// What a replica has refused.
pub(super) fn refused(why: &Refused) -> Response {
    failed(&why.clone().into())
}

/// A request that is not understood.
pub(super) fn malformed(why: &str) -> Response {
    failed(&TableError::Malformed(why.to_owned()))
}

/// A method that a path does not have.
pub(super) async fn other_method(method: Method, uri: Uri) -> Response {
    let what = format!("{} is not for {method}", uri.path());
    error(
        StatusCode::METHOD_NOT_ALLOWED,
        "malformed",
        &what,
        "scans and feeds use GET, batch, get and put use POST",
    )
}

/// A method that a key does not have.
pub(super) fn not_for_a_key(method: &Method) -> Response {
    let what = format!("{method} is not for a key");
    let help = "use GET, HEAD, PUT or DELETE";
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "malformed", &what, help);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, PUT, DELETE"));
    response
}

/// An error in the form that all listeners of Partage use.
pub(super) fn error(status: StatusCode, kind: &str, what: &str, help: &str) -> Response {
    (status, Json(ErrorBody::told(kind, what, help))).into_response()
}
