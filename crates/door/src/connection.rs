//! One connection, from its first byte to its end.

use crate::body::{Brought, Given, Pace, Visit};
use crate::crowd::Place;
use crate::limits;
use crate::patient::Patient;
use crate::refusal::{Reason, Refusal};
use crate::unreadable::Answering;
use crate::usage::{Heard, Patience, Usage, Useless};
use crate::{Door, Ending};
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Request, Response, Version};
use http_body::Body;
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

/// What answers requests.
pub trait Service: Clone + Send + Sync + 'static {
    /// Of its answers.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// The answer to one request.
    fn answer(&self, request: Request<Brought>) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// What answers as a service of tower does, such as a router of axum.
#[derive(Debug, Clone)]
pub struct Tower<S>(pub S);

impl<S, B> Service for Tower<S>
where
    S: tower::Service<Request<Brought>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    type Body = B;

    async fn answer(&self, request: Request<Brought>) -> Response<B> {
        self.0.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
    }
}

/// Where a request comes from, as the connection says and not its headers: among the extensions of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl Peer {
    /// Who is counted as one: an address of IPv4, or the network of an address of IPv6, since a network of /64 is the
    /// least that one machine is given.
    pub fn origin(self) -> String {
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
struct Ends {
    peer: Peer,
    local: IpAddr,
}

/// A connection on its way from the thread that accepted it to the one that serves it.
#[derive(Debug)]
pub struct Handed {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    local: IpAddr,
    place: Place,
}

impl Handed {
    /// To this thread's runtime.
    pub fn take(self) -> std::io::Result<Arrival> {
        let Handed { stream, peer, local, place } = self;
        Ok(Arrival { stream: TcpStream::from_std(stream)?, peer, local, place })
    }
}

/// A connection that has been let in and has said something.
#[derive(Debug)]
pub struct Arrival {
    /// What of it was not read yet.
    pub stream: TcpStream,
    /// Where it comes from.
    pub peer: SocketAddr,
    local: IpAddr,
    place: Place,
}

impl Arrival {
    pub(crate) fn new(stream: TcpStream, peer: SocketAddr, place: Place) -> std::io::Result<Arrival> {
        let local = stream.local_addr()?.ip();
        Ok(Arrival { stream, peer, local, place })
    }

    /// To the runtime of another thread.
    pub fn hand_over(self) -> std::io::Result<Handed> {
        let Arrival { stream, peer, local, place } = self;
        Ok(Handed { stream: stream.into_std()?, peer, local, place })
    }

    /// The address at which it arrived.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// Whether it may ask once only, since all places are taken.
    pub fn is_in_reserve(&self) -> bool {
        self.place.is_in_reserve()
    }
}

impl Door {
    /// Waits until the connection says something and finds a place. `None`: it does not, or must go.
    pub async fn first_word(&self, mut arrival: Arrival) -> Option<Arrival> {
        let refuse = |reason, message: &str| {
            self.counts().refused(reason, &message);
            None
        };
        let mut first = [0];
        tokio::select! {
            biased;
            // The runtime may take a new socket for readable that is not: only a byte, or the end, tells.
            peeked = arrival.stream.peek(&mut first) => { peeked.ok()?; }
            () = arrival.place.displaced() => return None,
            () = tokio::time::sleep(self.settings().first_byte) => {
                return refuse(Reason::Silent, "a connection said nothing and was closed");
            }
        }
        match arrival.place.speak() {
            Ok(()) => Some(arrival),
            Err(reason) => {
                refuse(reason, "all places for connections are taken, the reserve too: one was closed")
            }
        }
    }

    /// Serves the connection to its end, of which `read` has been read already.
    pub async fn serve(
        &self,
        arrival: Arrival,
        read: Bytes,
        service: impl Service,
        stop: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let in_reserve = arrival.is_in_reserve();
        let Arrival { stream, peer, local, place } = arrival;
        let is_h2 = self.is_h2(&stream, &read).await?;
        let ends = Ends { peer: Peer(peer.ip()), local };
        if !in_reserve {
            return self.connection(stream, read, (is_h2, ends, true), service, stop).await;
        }
        if is_h2 {
            // It may ask for much at a time. Commands use HTTP/1.1.
            self.counts()
                .refused(Reason::Connections, &"all places for connections are taken: one was closed");
            return Ok(());
        }
        let served = self.connection(stream, read, (false, ends, false), service, stop);
        let served = tokio::time::timeout(limits::RESERVE_TIME, served).await.unwrap_or(Ok(()));
        drop(place);
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
            // Two bytes of it are rare, and there is no waiting for the third.
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
        (is_h2, ends, keep_alive): (bool, Ends, bool),
        service: impl Service,
        mut stop: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let usage = Usage::new();
        let (rest, write) = stream.into_split();
        let write = Patient::new(write, self.role().write);
        let write = Answering::new(write, (!is_h2).then(|| usage.clone()), self.counts().clone());
        let stream = tokio::io::join(Cursor::new(read).chain(rest), write);
        let (door, asked) = (self.clone(), usage.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (door, service) = (door.clone(), service.clone());
            let visit = Visit::new(asked.begin(), door.settings().budget.clone(), door.counts().clone());
            async move { Ok::<_, Infallible>(door.visit(request, ends, service, Arc::new(visit)).await) }
        });
        let builder = self.builder(is_h2, keep_alive);
        // On HTTP/2 there is more to hear than requests.
        let heard = Heard::new(stream, if is_h2 { Usage::new() } else { usage.clone() });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(heard), service));
        let role = self.role();
        let patience = Patience { idle: role.idle, head: self.settings().head, stalled: role.stalled };
        let served = tokio::select! {
            served = &mut connection => served,
            useless = usage.ended(&patience) => match useless {
                Useless::Idle => {
                    connection.as_mut().graceful_shutdown();
                    usage.touch();
                    // The client may not answer that it has heard it, and may have asked something at this very moment.
                    let closing = Patience { idle: limits::CLOSING, ..patience };
                    tokio::select! {
                        served = connection => served,
                        _ = usage.ended(&closing) => return Ok(()),
                    }
                }
                Useless::Head => {
                    self.refuse_slow_head();
                    return Ok(());
                }
                Useless::Stalled => {
                    self.counts().refused(Reason::Stalled, &"a client takes nothing of what is answered");
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
        // Times are watched by `Usage`.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
        builder.http1().keep_alive(keep_alive).max_buf_size(role.head_bytes);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(role.ping))
            .keep_alive_timeout(role.ping)
            .max_header_list_size(u32::try_from(role.head_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(role.streams);
        if is_h2 { builder.http2_only() } else { builder.http1_only() }
    }

    async fn visit<S: Service>(
        &self,
        request: Request<Incoming>,
        ends: Ends,
        service: S,
        visit: Arc<Visit>,
    ) -> Response<Given<S::Body>> {
        let (mut parts, body) = request.into_parts();
        let version = parts.version;
        if let Err(refusal) = self.guest().admit(&parts, ends.local) {
            self.counts().refused(refusal.reason, &refusal);
            return refused(&refusal, version);
        }
        parts.extensions.insert(ends.peer);
        let pace = Pace::new(self.settings().body_bytes_s, self.settings().body_window);
        let body = Brought::new(body, visit.clone(), &parts.headers, (self.role().bodies, pace));
        let answer = service.answer(Request::from_parts(parts, body)).await;
        match visit.broken() {
            // Whatever the service makes of it, all doors say the same.
            Some(refusal) if !answer.status().is_success() => refused(refusal, version),
            _ => answer.map(|body| Given::Served(body, visit)),
        }
    }
}

/// Waits until `stop` is true or gone.
pub(crate) async fn is_over(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn refused<B>(refusal: &Refusal, version: Version) -> Response<Given<B>> {
    let mut response = refusal.response().map(Given::Refused);
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_is_one_origin_however_many_addresses_it_has() {
        let origin = |address: &str| Peer(address.parse().unwrap()).origin();
        assert_eq!(origin("10.0.0.7"), "10.0.0.7");
        assert_eq!(origin("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(origin("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(origin("2001:db8:1:2::1"), origin("2001:db8:1:2:ffff::9"));
        assert_ne!(origin("2001:db8:1:2::1"), origin("2001:db8:1:3::1"));
    }
}
