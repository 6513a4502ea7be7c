//! The other clerk: hyper, for all that the quick one does not do.

use super::answer;
use super::ask::{Ask, Target, Wants, by_peer, fields, target};
use super::fetch::Errand;
use super::lookup::{Looked, look};
use super::refusal::Refusal;
use super::server::Desk;
use super::{many, own, scan, status};
use crate::catalogue::{Hop, Outcome};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use partage_door::{Arrival, Brought, Service};
use partage_engine::readonly::Losses;
use partage_wire::at_least::AT_LEAST;
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
    desk: Arc<Desk>,
    arrival: Arrival,
    read: Bytes,
    stopped: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let door = desk.house.door.clone();
    door.serve(arrival, read, Clerk(desk), stopped).await
}

/// Answers what comes in over one connection.
#[derive(Clone)]
struct Clerk(Arc<Desk>);

impl Service for Clerk {
    type Body = Body;

    async fn answer(&self, request: Request<Brought>) -> Response<Body> {
        answer(&self.0, request).await
    }
}

async fn answer(desk: &Arc<Desk>, request: Request<Brought>) -> Response<Body> {
    let version = request.version();
    let is_head = *request.method() == Method::HEAD;
    let mut response = match route(desk, request).await {
        Ok(response) => response,
        Err(refusal) => whole(answer::refused(&refusal)),
    };
    let date = answer::text(&desk.house.date());
    response.headers_mut().insert(header::DATE, date);
    if version <= http::Version::HTTP_11 && desk.house.stopping.load(Ordering::Relaxed) {
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

async fn route(desk: &Arc<Desk>, request: Request<Brought>) -> Result<Response<Body>, Refusal> {
    let (parts, body) = request.into_parts();
    let is_read = parts.method == Method::GET || parts.method == Method::HEAD;
    match target(parts.uri.path())? {
        Target::Key(dataset, key) if is_read => {
            let by_peer = by_peer(parts.uri.query())?;
            let is_head = parts.method == Method::HEAD;
            let ask = Ask { is_head, dataset, key, by_peer, wants: wants(&parts.headers) };
            Ok(whole(one(desk, &ask).await?))
        }
        Target::Key(..) => Err(Refusal::method("GET, HEAD")),
        Target::Home if is_read => status::home(desk, &parts).await.map(whole),
        Target::Home => Err(Refusal::method("GET, HEAD")),
        Target::Own(own) => own::page(desk, own, &parts.method, parts.uri.query()).map(whole),
        Target::Dataset("healthz") if is_read && !desk.house.shelf().contains_key("healthz") => {
            Ok(whole(status::healthz(&desk.house)))
        }
        Target::Dataset(dataset) if is_read => {
            let fields = fields(parts.uri.query().unwrap_or(""))?;
            if scan::is_scan(&fields) {
                return scan::answer(desk, dataset, &fields, &parts).await;
            }
            status::dataset(desk, dataset, &parts).await.map(whole)
        }
        Target::Dataset(dataset) if parts.method == Method::POST => {
            many::answer(desk, dataset, &parts, body).await
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

async fn one(desk: &Desk, ask: &Ask<'_>) -> Result<Response<Bytes>, Refusal> {
    let began = desk.house.clock.nanos();
    let reading = desk.house.open(ask.dataset, ask.by_peer.as_deref(), ask.wants.at_least, began)?;
    let hop = if ask.by_peer.is_some() { Hop::Peer } else { Hop::Here };
    let count = |outcome, bytes| {
        let nanos = desk.house.clock.nanos().saturating_sub(began);
        reading.meter().count(outcome, hop, nanos, 1, bytes);
    };
    if let Some(columns) = reading.partitioner().lacks(&ask.key) {
        return Err(Refusal::not_that_many_columns(ask.dataset, columns));
    }
    let places = reading.places();
    let losses = Losses::from_now();
    let partition = match look(&reading, &places, &ask.key) {
        Looked::Value(value) => {
            let length = value.len() as u64;
            let head = answer::head_of(&reading);
            let found = answer::found(&head, value, &ask.wants);
            if losses.have_been() {
                count(Outcome::Failed, 0);
                return Err(Refusal::lost());
            }
            count(Outcome::Found, length);
            return Ok(found);
        }
        Looked::Absent => {
            count(Outcome::Absent, 0);
            return Ok(answer::absent(&reading));
        }
        Looked::Elsewhere(partition) => partition,
    };
    if ask.by_peer.is_some() {
        count(Outcome::Failed, 0);
        return Err(Refusal::not_that_partition(ask.dataset, reading.name().as_str(), partition));
    }
    Ok(desk.proxied(&reading, &places, partition, began, |version| Errand::key(ask, version)).await)
}
