//! One connection, from its first byte to its end.

use crate::body::{InFlightRequest, RequestBody, ResponseBody};
use crate::connection_limiter::ConnectionPermit;
use crate::limits;
use crate::refusal::{Reason, Refusal};
use crate::timeout_writer::TimeoutWriter;
use crate::unreadable::ErrorBodyWriter;
use crate::usage::{CloseReason, ConnectionTimeouts, TrackedStream, Usage};
use crate::{Door, Ending};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::future::Future;
use std::io::Cursor;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// A service behind a door: it answers each request that the door admits.
pub trait Service: Clone + Send + Sync + 'static {
    /// The body of its answers; the door watches how the client reads it.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// The answer to one request.
    fn answer(&self, request: Request<RequestBody>) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// A service of tower, such as a router of axum. It is behind a pointer, so that the compiler makes the server of hyper for it
/// once, in this crate, and not again in each crate that listens.
#[derive(Debug, Clone)]
pub struct TowerService(BoxCloneSyncService<Request<RequestBody>, Response<TowerBody>, Infallible>);

type TowerBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

impl TowerService {
    /// `service`, to listen with.
    pub fn new<S, B>(service: S) -> TowerService
    where
        S: tower::Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let boxed = |response: Response<B>| response.map(|body| body.map_err(Into::into).boxed_unsync());
        TowerService(BoxCloneSyncService::new(service.map_response(boxed)))
    }
}

impl Service for TowerService {
    type Body = TowerBody;

    async fn answer(&self, request: Request<RequestBody>) -> Response<TowerBody> {
        self.0.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
    }
}

/// The client's address, by the connection and not by headers: among the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// What counts as one client: an IPv4 address, or an IPv6 network of /64, the least that a provider gives one
    /// machine.
    pub fn client_group(self) -> String {
        match self.0.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                format!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        }
    }
}

/// The two addresses of a connection.
#[derive(Debug, Clone, Copy)]
struct Addresses {
    peer: Peer,
    local: IpAddr,
}

/// A connection on its way from the thread that accepted it to the one that serves it.
#[derive(Debug)]
pub struct DetachedConnection {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    local: IpAddr,
    permit: ConnectionPermit,
}

impl DetachedConnection {
    /// Gives the connection to the runtime of this thread.
    pub fn attach(self) -> std::io::Result<AcceptedConnection> {
        let DetachedConnection { stream, peer, local, permit } = self;
        Ok(AcceptedConnection { stream: TcpStream::from_std(stream)?, peer, local, permit })
    }
}

/// An accepted connection, before or after its first byte.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The stream, with the bytes that were not read yet.
    pub stream: TcpStream,
    /// The address of the client.
    pub peer: SocketAddr,
    local: IpAddr,
    permit: ConnectionPermit,
}

impl AcceptedConnection {
    pub(crate) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        permit: ConnectionPermit,
    ) -> std::io::Result<AcceptedConnection> {
        let local = stream.local_addr()?.ip();
        Ok(AcceptedConnection { stream, peer, local, permit })
    }

    /// Takes the connection from this runtime, so that another thread can attach it.
    pub fn detach(self) -> std::io::Result<DetachedConnection> {
        let AcceptedConnection { stream, peer, local, permit } = self;
        Ok(DetachedConnection { stream: stream.into_std()?, peer, local, permit })
    }

    /// The address at which it arrived.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether it may ask once only, since all places are taken.
    pub fn is_in_reserve(&self) -> bool {
        self.permit.is_in_reserve()
    }
}

impl Door {
    /// Waits for the connection's first byte, then takes a place. `None`: neither, or it is displaced.
    pub async fn wait_for_first_byte(&self, mut accepted: AcceptedConnection) -> Option<AcceptedConnection> {
        let refuse = |reason, message: &str| {
            self.counts().refused(reason, &message);
            None
        };
        let mut first = [0];
        tokio::select! {
            biased;
            // The runtime may report a new socket as readable too early: only a byte, or the end, tells.
            peeked = accepted.stream.peek(&mut first) => { peeked.ok()?; }
            () = accepted.permit.displaced() => return None,
            () = tokio::time::sleep(self.settings().first_byte) => {
                return refuse(Reason::Silent, "a connection said nothing and was closed");
            }
        }
        match accepted.permit.admit() {
            Ok(()) => Some(accepted),
            Err(reason) => {
                refuse(reason, "all places for connections are taken, the reserve too: one was closed")
            }
        }
    }

    /// Serves the connection to its end; `read` was read already.
    pub async fn serve(
        &self,
        accepted: AcceptedConnection,
        read: Bytes,
        service: impl Service,
        stop: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let in_reserve = accepted.is_in_reserve();
        let AcceptedConnection { stream, peer, local, permit } = accepted;
        let is_h2 = self.is_h2(&stream, &read).await?;
        let addresses = Addresses { peer: Peer(peer.ip()), local };
        if !in_reserve {
            return self.connection(stream, read, (is_h2, addresses, true), service, stop).await;
        }
        if is_h2 {
            // HTTP/2 allows many requests at once. Commands use HTTP/1.1.
            self.counts()
                .refused(Reason::Connections, &"all places for connections are taken: one was closed");
            return Ok(());
        }
        let served = self.connection(stream, read, (false, addresses, false), service, stop);
        let served = tokio::time::timeout(limits::RESERVE_TIME, served).await.unwrap_or(Ok(()));
        drop(permit);
        served
    }

    /// Whether it speaks HTTP/2. No method of HTTP/1 begins as its preface does.
    async fn is_h2(&self, stream: &TcpStream, read: &[u8]) -> std::io::Result<bool> {
        let told = |bytes: &[u8]| bytes.len() >= 3 || !limits::PREFACE.starts_with(bytes);
        if !read.is_empty() && told(read) {
            return Ok(read.starts_with(limits::PREFACE));
        }
        let latest = tokio::time::Instant::now() + self.settings().head;
        let (mut first, mut rest) = ([0; 3], limits::PREFACE_REST);
        loop {
            let peeked = tokio::time::timeout_at(latest, stream.peek(&mut first)).await;
            let Ok(count) = peeked else { return Ok(false) };
            let all = [read, &first[..count?]].concat();
            // Less than three bytes is rare, and nothing wakes at the third.
            if all.is_empty() || told(&all) || tokio::time::Instant::now() >= latest {
                return Ok(all.starts_with(limits::PREFACE));
            }
            tokio::time::sleep(rest).await;
            rest *= 2;
        }
    }

    async fn connection(
        &self,
        stream: TcpStream,
        read: Bytes,
        (is_h2, addresses, keep_alive): (bool, Addresses, bool),
        service: impl Service,
        mut stop: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let usage = Usage::new();
        let (rest, write) = stream.into_split();
        let write = TimeoutWriter::new(write, self.role().write);
        let write = ErrorBodyWriter::new(write, (!is_h2).then(|| usage.clone()), self.counts().clone());
        let stream = tokio::io::join(Cursor::new(read).chain(rest), write);
        let (door, asked) = (self.clone(), usage.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (door, service) = (door.clone(), service.clone());
            let held = door.reserved_bytes(addresses.peer.0);
            let in_flight = InFlightRequest::new(asked.begin(), held, door.counts().clone());
            async move {
                Ok::<_, Infallible>(
                    door.handle_request(request, addresses, service, Arc::new(in_flight)).await,
                )
            }
        });
        let builder = self.builder(is_h2, keep_alive);
        // On HTTP/2 not all bytes are requests.
        let heard = TrackedStream::new(stream, if is_h2 { Usage::new() } else { usage.clone() });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(heard), service));
        let role = self.role();
        let timeouts =
            ConnectionTimeouts { idle: role.idle, head: self.settings().head, stalled: role.stalled };
        let served = tokio::select! {
            served = &mut connection => served,
            reason = usage.ended(&timeouts) => match reason {
                CloseReason::Idle => {
                    connection.as_mut().graceful_shutdown();
                    usage.touch();
                    // The client may not close, and may have sent a request at this very moment.
                    let closing = ConnectionTimeouts { idle: limits::CLOSING, ..timeouts };
                    tokio::select! {
                        served = connection => served,
                        _ = usage.ended(&closing) => return Ok(()),
                    }
                }
                CloseReason::Head => {
                    self.refuse_slow_head();
                    return Ok(());
                }
                CloseReason::Stalled => {
                    self.refuse_stalled();
                    return Ok(());
                }
            },
            () = is_over(&mut stop) => match role.ending {
                Ending::AtOnce => return Ok(()),
                Ending::After(most) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::time::timeout(most, connection).await.unwrap_or(Ok(()))
                }
            }
        };
        served.map_err(std::io::Error::other)
    }

    fn builder(&self, is_h2: bool, keep_alive: bool) -> auto::Builder<TokioExecutor> {
        let role = self.role();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // `Usage` watches the times.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
        builder.http1().keep_alive(keep_alive).max_buf_size(role.head_bytes);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(role.ping))
            .keep_alive_timeout(role.ping)
            .max_header_list_size(u32::try_from(role.head_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(role.streams)
            .initial_stream_window_size(role.windows.stream)
            .initial_connection_window_size(role.windows.connection);
        if is_h2 { builder.http2_only() } else { builder.http1_only() }
    }

    async fn handle_request<S: Service>(
        &self,
        request: Request<Incoming>,
        addresses: Addresses,
        service: S,
        in_flight: Arc<InFlightRequest>,
    ) -> Response<ResponseBody<S::Body>> {
        let (mut parts, body) = request.into_parts();
        let version = parts.version;
        if let Err(refusal) = self.policy().admit(&parts, addresses.local) {
            self.counts().refused(refusal.reason, &refusal);
            return refused(&refusal, version);
        }
        parts.extensions.insert(addresses.peer);
        let body = match RequestBody::new(body, in_flight.clone(), (&parts.headers, version), self) {
            Ok(body) => body,
            Err(refusal) => {
                self.counts().refused(refusal.reason, &refusal);
                return refused(&refusal, version);
            }
        };
        let answer = service.answer(Request::from_parts(parts, body)).await;
        match in_flight.broken() {
            // Whatever the service answers, all doors answer the same.
            Some(refusal) if !answer.status().is_success() => refused(refusal, version),
            _ => answer.map(|body| ResponseBody::Served(body, in_flight)),
        }
    }
}

/// Waits until `stop` is true or gone.
pub(crate) async fn is_over(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn refused<B>(refusal: &Refusal, version: Version) -> Response<ResponseBody<B>> {
    let mut response = refusal.response().map(ResponseBody::Refused);
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_is_one_client_group_however_many_addresses_it_has() {
        let group = |address: &str| Peer(address.parse().unwrap()).client_group();
        assert_eq!(group("10.0.0.7"), "10.0.0.7");
        assert_eq!(group("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(group("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(group("2001:db8:1:2::1"), group("2001:db8:1:2:ffff::9"));
        assert_ne!(group("2001:db8:1:2::1"), group("2001:db8:1:3::1"));
    }
}
