//! What a node asks another one for a client of a protocol other than HTTP: a whole write in its stored form, and reads as HTTP
//! clients ask for them.

use super::answer::{self, EXPIRES_MS};
use super::parse;
use super::{APPLIED, PREFIX};
use crate::node::ReadAnswer;
use crate::scans::consistency_query;
use crate::service::{Refused, Tables};
use crate::stored::{values, write};
use axum::body::{Body, Bytes, to_bytes};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Access;
use partage_core::limits::{BATCH_BYTES, BATCH_OPERATIONS};
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{KeptOutcome, Outcome, Row, Write};
use partage_wire::request::headers::IDEMPOTENCY_KEY;
use partage_worker::http::Target;
use partage_worker::{Guard, KeyspaceName};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// The last part of the path of a whole write.
const WRITES: &str = "/writes";

/// Bytes of a batch with what its stored form puts around each operation.
const BODY_BYTES: usize = BATCH_BYTES + BATCH_OPERATIONS * 64;

/// Requests between nodes, and their answers.
pub(crate) struct Internal;

fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, NON_ALPHANUMERIC).to_string()
}

fn request(method: Method, path: &str, body: Vec<u8>) -> Request<Body> {
    let mut request = Request::new(Body::from(body));
    *request.method_mut() = method;
    // What is encoded is a path always.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

impl Internal {
    /// Asks for a write, in the partition of that key.
    pub(crate) fn write(table: &KeyspaceName, key: &Key, asked: &Write) -> Request<Body> {
        let path = format!("{PREFIX}{table}{WRITES}?key={}", encoded(key.as_bytes()));
        request(Method::POST, &path, write::encode(asked))
    }

    /// The outcome in the answer to a write; none if it is not understood.
    pub(crate) fn outcome(body: &[u8]) -> Option<Outcome> {
        values::decode_answered(body).ok().map(|answered| answered.outcome)
    }

    /// Asks for a row.
    pub(crate) fn read(
        table: &KeyspaceName,
        key: &Key,
        consistency: Consistency,
        at_least: u64,
    ) -> Request<Body> {
        let mut query = consistency_query(consistency);
        if at_least > 0 {
            // Only the index counts.
            query += &format!("&at_least=0-{at_least}");
        }
        let path = format!("{PREFIX}{table}/keys/{}?{query}", encoded(key.as_bytes()));
        request(Method::GET, &path, Vec::new())
    }

    /// What a read has found; none if the answer is not understood.
    pub(crate) fn found(headers: &HeaderMap, body: Bytes) -> Option<ReadAnswer> {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name| text(name).and_then(|text| text.parse().ok());
        let row = match text(header::ETAG) {
            Some(tag) => Some(Row {
                value: body[..].into(),
                version: parse::version(tag.trim_matches('"'))?,
                expires_ms: number(EXPIRES_MS),
            }),
            None => None,
        };
        let position = parse::version(text(APPLIED)?)?;
        Some(ReadAnswer { row, position, age_ms: number(answer::AGE_MS) })
    }
}

/// The table and the key that a write is for, if the path is that of a write.
pub(super) fn target(parts: &Parts) -> Option<Result<Target, String>> {
    let table = parts.uri.path().strip_prefix(PREFIX)?.strip_suffix(WRITES)?;
    if table.contains('/') {
        return None;
    }
    let key = parts.uri.query().and_then(|query| query.strip_prefix("key="));
    let target = || {
        let keyspace = KeyspaceName::new(table).map_err(|error| error.to_string())?;
        // By the header it would be sent again, and nothing here would know it as a repetition.
        if parts.headers.contains_key(&IDEMPOTENCY_KEY) {
            return Err(format!(
                "{}: the name of a whole write is in its body, not in a header",
                parts.uri.path()
            ));
        }
        let key = key.ok_or_else(|| format!("{}: add ?key=<a key of the write>", parts.uri.path()))?;
        Ok(Target { keyspace, key: percent_decode_str(key).collect(), access: Some(Access::Write) })
    };
    Some(target())
}

/// Carries out a write that another node has sent on.
pub(super) async fn carry_out(tables: &Tables, guard: &Guard, body: Body) -> Result<Response, Refused> {
    let Ok(body) = to_bytes(body, BODY_BYTES).await else {
        let what = format!("the write is longer than {BODY_BYTES} bytes");
        return Ok(answer::error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &what, "send several"));
    };
    let Ok(asked) = write::decode(&body) else {
        return Ok(answer::malformed("the body is no write in its stored form"));
    };
    let outcome = tables.write(&guard.permit().replica, &asked).await?;
    let answered = KeptOutcome { at_ms: 0, fingerprint: 0, outcome };
    Ok(values::encode_answered(&answered).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_service::table::replication::LogPosition;

    #[test]
    fn a_write_is_found_by_the_key_that_it_was_sent_for() {
        let (table, key) =
            (KeyspaceName::new("stock").expect("a name"), Key::new(b"a/b\0?&=\xff").expect("a key"));
        let asked = Write { at_ms: 1, request: None, operations: Vec::new() };
        let (parts, _) = Internal::write(&table, &key, &asked).into_parts();
        let target = target(&parts).expect("a write").expect("a target");
        assert_eq!((&target.keyspace, &target.key[..]), (&table, key.as_bytes()));
        let mut named = Internal::write(&table, &Key::new(b"a").expect("a key"), &asked);
        named.headers_mut().insert(IDEMPOTENCY_KEY, header::HeaderValue::from_static("order-17"));
        let refused = super::target(&named.into_parts().0).expect("a write");
        assert!(refused.expect_err("no target").contains("in its body"), "it would be sent twice");
        let other = Request::builder().uri("/v1/tables/stock/keys/a/writes").body(()).expect("a request");
        assert_eq!(super::target(&other.into_parts().0), None);
    }

    #[test]
    fn a_row_survives_the_way() {
        let version = LogPosition { epoch: Epoch(3), index: 7 };
        let row = Row { value: b"v\0"[..].into(), version, expires_ms: Some(9) };
        for answer in [
            ReadAnswer { row: Some(row), position: version, age_ms: Some(4) },
            ReadAnswer { row: None, position: version, age_ms: None },
        ] {
            let expected = answer.clone();
            let (parts, _) = answer::found(answer).into_parts();
            assert_eq!(Internal::found(&parts.headers, Bytes::from_static(b"v\0")), Some(expected));
        }
        assert_eq!(parse::version_text(version), "3-7");
    }
}
