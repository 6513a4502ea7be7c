//! The full path: hyper, for all that the fast path does not do.

use super::answer;
use super::fetch::PeerRequest;
use super::lookup::{LookupResult, lookup};
use super::refusal::Refusal;
use super::request::{KeyRequest, Target, Wants, by_peer, fields, target};
use super::server::ThreadState;
use super::{many, own, scan, status};
use crate::catalogue::{Hop, Outcome};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use partage_door::{AcceptedConnection, RequestBody, Service};
use partage_engine::readonly::Losses;
use partage_wire::request::at_least::AT_LEAST;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;

/// A body that is whole, or comes bit by bit and may break off.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A body that is whole.
pub fn whole(response: Response<Bytes>) -> Response<Body> {
    response.map(|body| Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

/// Serves a connection to its end, of which `read` has been read already.
pub async fn serve(
    thread: Arc<ThreadState>,
    accepted: AcceptedConnection,
    read: Bytes,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let door = thread.server.door.clone();
    door.serve(accepted, read, DatasetService(thread), stopped).await
}

/// Answers what comes in over one connection.
#[derive(Clone)]
struct DatasetService(Arc<ThreadState>);

impl Service for DatasetService {
    type Body = Body;

    async fn answer(&self, request: Request<RequestBody>) -> Response<Body> {
        answer(&self.0, request).await
    }
}

async fn answer(thread: &Arc<ThreadState>, request: Request<RequestBody>) -> Response<Body> {
    let version = request.version();
    let is_head = *request.method() == Method::HEAD;
    let mut response = match route(thread, request).await {
        Ok(response) => response,
        Err(refusal) => whole(answer::refused(&refusal)),
    };
    let date = answer::text(&thread.server.date());
    response.headers_mut().insert(header::DATE, date);
    if version <= http::Version::HTTP_11 && thread.server.stopping.load(Ordering::Relaxed) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if is_head && !response.headers().contains_key(header::CONTENT_LENGTH) {
        // hyper does not send the body, and tells its length by its hint.
        if let Some(length) = http_body::Body::size_hint(response.body()).exact()
            && response.status() != StatusCode::NOT_MODIFIED
        {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
    }
    response
}

async fn route(thread: &Arc<ThreadState>, request: Request<RequestBody>) -> Result<Response<Body>, Refusal> {
    let (parts, body) = request.into_parts();
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    match target(parts.uri.path())? {
        Target::Key(dataset, key) if is_read => {
            let by_peer = by_peer(parts.uri.query())?;
            let is_head = parts.method == Method::HEAD;
            let request = KeyRequest { is_head, dataset, key, by_peer, wants: wants(&parts.headers) };
            Ok(whole(one(thread, &request).await?))
        }
        Target::Key(..) => Err(Refusal::method("GET, HEAD")),
        Target::Home if is_read => status::home(thread, &parts).await.map(whole),
        Target::Home => Err(Refusal::method("GET, HEAD")),
        Target::Own(own) => own::page(thread, own, &parts.method, parts.uri.query()).map(whole),
        Target::Dataset("healthz") if is_read && !thread.server.datasets().contains_key("healthz") => {
            Ok(whole(status::healthz(&thread.server)))
        }
        Target::Dataset(dataset) if is_read => {
            let fields = fields(parts.uri.query().unwrap_or(""))?;
            if scan::is_scan(&fields) {
                return scan::answer(thread, dataset, &fields, &parts).await;
            }
            status::dataset(thread, dataset, &parts).await.map(whole)
        }
        Target::Dataset(dataset) if parts.method == Method::POST => {
            many::answer(thread, dataset, &parts, body).await
        }
        Target::Dataset(_) => Err(Refusal::method("GET, HEAD, POST")),
    }
}

fn wants(headers: &HeaderMap) -> Wants<'_> {
    let of = |name: HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    Wants {
        range: of(header::RANGE),
        if_range: of(header::IF_RANGE),
        if_none_match: of(header::IF_NONE_MATCH),
        accept_encoding: of(header::ACCEPT_ENCODING),
        at_least: of(AT_LEAST),
    }
}

async fn one(thread: &ThreadState, request: &KeyRequest<'_>) -> Result<Response<Bytes>, Refusal> {
    let began = thread.server.clock.nanos();
    let reading =
        thread.server.open(request.dataset, request.by_peer.as_deref(), request.wants.at_least, began)?;
    let hop = if request.by_peer.is_some() { Hop::Peer } else { Hop::Here };
    let count = |outcome, bytes| {
        let nanos = thread.server.clock.nanos().saturating_sub(began);
        reading.meter().count(outcome, hop, nanos, 1, bytes);
    };
    if let Some(columns) = reading.partitioner().lacks(&request.key) {
        return Err(Refusal::not_that_many_columns(request.dataset, columns));
    }
    let places = reading.places();
    let losses = Losses::from_now();
    let partition = match lookup(&reading, &places, &request.key) {
        LookupResult::Value(value) => {
            let length = value.len() as u64;
            let head = answer::head_of(&reading);
            let found = answer::found(&head, value, &request.wants);
            if losses.have_been() {
                count(Outcome::Failed, 0);
                return Err(Refusal::lost());
            }
            count(Outcome::Found, length);
            return Ok(found);
        }
        LookupResult::Absent => {
            count(Outcome::Absent, 0);
            return Ok(answer::absent(&reading));
        }
        LookupResult::Elsewhere(partition) => partition,
    };
    if request.by_peer.is_some() {
        count(Outcome::Failed, 0);
        return Err(Refusal::not_that_partition(request.dataset, reading.name().as_str(), partition));
    }
    Ok(thread
        .proxied(&reading, &places, partition, began, |version| PeerRequest::key(request, version))
        .await)
}
