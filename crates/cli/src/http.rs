//! One question over HTTP, and what became of it.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_dialer::Dialer;
use std::time::Duration;

/// How long an answer may take: a plan of a million shards is made in less.
pub const ANSWER: Duration = Duration::from_secs(30);

/// A `host:port`, also as the `http://host:port` that `partage up` prints.
pub fn address(text: &str) -> Result<String, String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    let bare = rest.strip_suffix('/').unwrap_or(rest);
    match bare.parse::<Authority>() {
        Ok(authority) if authority.port_u16().is_some() && scheme == "http" => Ok(bare.to_owned()),
        Ok(authority) if authority.port_u16().is_some() => {
            Err(format!("{scheme} is not spoken there: give host:port alone: {bare}"))
        }
        Ok(_) | Err(_) => Err("give host:port, such as 127.0.0.1:7400".to_owned()),
    }
}

/// There was no answer.
pub struct RequestError {
    /// Whether the request may have arrived.
    pub sent: bool,
    /// Why there was no answer, in words.
    pub why: String,
}

impl RequestError {
    /// No answer came in time.
    pub fn late() -> RequestError {
        RequestError { sent: true, why: format!("no answer within {} s", ANSWER.as_secs()) }
    }
}

/// Asks; returns with the head of the answer.
pub async fn send(request: Request<Full<Bytes>>) -> Result<Response<Incoming>, RequestError> {
    let client: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build(Dialer::COMMAND.http());
    let to_error = |error: hyper_util::client::legacy::Error| RequestError {
        sent: !error.is_connect(),
        why: root_cause(&error),
    };
    let answered = tokio::time::timeout(ANSWER, client.request(request)).await;
    answered.map_or_else(|_| Err(RequestError::late()), |answered| answered.map_err(to_error))
}

/// What a node answered.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The whole body, in memory.
    pub body: Bytes,
    /// Whether a node that was asked before this one may have got the request too: it broke off, or was silent.
    pub is_repeated: bool,
}

/// The answer of the first of `nodes` that gives one, whatever it says. For requests that may be sent twice.
pub async fn first_answer(
    nodes: &[String],
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<Reply, RequestError> {
    let mut last = RequestError { sent: false, why: "no node is named".to_owned() };
    for node in nodes {
        let request = Request::builder()
            .method(method.clone())
            .uri(format!("http://{node}{path}"))
            .body(Full::new(body.clone()));
        let mut request = request.map_err(|error| RequestError { sent: false, why: error.to_string() })?;
        request.headers_mut().extend(headers.clone());
        request.headers_mut().insert(partage_wire::request::headers::REQUEST, HeaderValue::from_static("1"));
        match exchange(request).await {
            Ok(reply) => return Ok(Reply { is_repeated: last.sent, ..reply }),
            Err(error) => last = RequestError { sent: last.sent || error.sent, why: error.why },
        }
    }
    Err(last)
}

async fn exchange(request: Request<Full<Bytes>>) -> Result<Reply, RequestError> {
    let (head, body) = send(request).await?.into_parts();
    match tokio::time::timeout(ANSWER, body.collect()).await {
        Ok(Ok(body)) => {
            let (status, headers, body) = (head.status, head.headers, body.to_bytes());
            Ok(Reply { status, headers, body, is_repeated: false })
        }
        Ok(Err(error)) => Err(RequestError { sent: true, why: root_cause(&error) }),
        Err(_) => Err(RequestError::late()),
    }
}

/// The innermost reason: "connection refused" says more than "client error".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// `text` as one segment of a path, percent-encoded.
pub fn segment(text: &str) -> String {
    segment_of(text.as_bytes())
}

/// `bytes` as one segment of a path, percent-encoded.
pub fn segment_of(bytes: &[u8]) -> String {
    // Unencoded they would lead to other paths, and every door refuses them.
    if matches!(bytes, b"." | b"..") {
        return "%2E".repeat(bytes.len());
    }
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    bytes.iter().map(|&b| if safe(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
