//! The other clerk: hyper, for all that the quick one does not do.

use super::answer;
use super::ask::{Ask, Target, Wants, by_peer, fields, target};
use super::fetch::Errand;
use super::lookup::{Looked, look};
use super::patient::Patient;
use super::refusal::Refusal;
use super::server::Desk;
use super::usage::{Moving, Usage, Useless};
use super::{many, own, scan, status};
use crate::catalogue::{Hop, Outcome};
use crate::limits;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use partage_wire::at_least::AT_LEAST;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// A body that is whole, or comes bit by bit and may break off.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A body that is whole.
pub fn whole(response: Response<Bytes>) -> Response<Body> {
    response.map(|body| Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

/// Serves a connection to its end, of which `read` has been read already.
pub async fn serve(desk: Arc<Desk>, stream: TcpStream, read: Bytes) -> std::io::Result<()> {
    let (rest, write) = stream.into_split();
    let io = TokioIo::new(tokio::io::join(
        Cursor::new(read).chain(rest),
        Patient::new(write, limits::WRITE_TIMEOUT),
    ));
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(limits::HEAD_BYTES);
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(limits::HEAD_TIMEOUT))
        .max_header_list_size(limits::HEAD_BYTES as u32)
        .max_concurrent_streams(limits::STREAMS);
    let usage = Usage::new(desk.house.clock);
    let (idle, asked) = (desk.house.settings.idle, usage.clone());
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (desk, open) = (desk.clone(), Arc::new(asked.begin()));
        let request = request.map(|body| Moving::new(body, open.clone()));
        async move {
            let response = answer(&desk, request).await;
            Ok::<_, std::convert::Infallible>(response.map(|body| Moving::new(body, open)))
        }
    });
    let mut connection = std::pin::pin!(server.serve_connection(io, service));
    let served = tokio::select! {
        served = &mut connection => served,
        useless = usage.ended(idle, limits::WRITE_TIMEOUT) => match useless {
            Useless::Stalled => return Err(stalled()),
            Useless::Idle => {
                connection.as_mut().graceful_shutdown();
                usage.touch();
                // The client may not answer that it has heard it, and may have asked something at this very moment.
                tokio::select! {
                    served = connection => served,
                    useless = usage.ended(limits::CLOSING, limits::WRITE_TIMEOUT) => {
                        return if useless == Useless::Idle { Ok(()) } else { Err(stalled()) };
                    }
                }
            }
        },
    };
    served.map_err(std::io::Error::other)
}

fn stalled() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the client takes nothing of what is answered")
}

/// What a request brings along.
pub type Brought = Moving<Incoming>;

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
    let places = reading.places();
    let partition = match look(&reading, &places, &ask.key) {
        Looked::Value(value) => {
            count(Outcome::Found, value.len() as u64);
            let head = answer::head_of(&reading);
            return Ok(answer::found(&head, value, &ask.wants));
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
