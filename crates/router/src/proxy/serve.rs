//! Threads, listeners, clients, and each request on its way through.

use super::Config;
use super::dataset::{self, DatasetRequest, SeenVersions};
use super::pages::{self, refused};
use super::rule::{RuleError, find};
use crate::call::Caller;
use crate::call::body::{AnswerBody, Outgoing};
use crate::error::CallError;
use crate::limits;
use crate::router::Router;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::map::Access;
use partage_door::{AcceptedConnection, Bodies, Changes, Door, Ending, RequestBody, Role, Service};
use partage_wire::request::headers::{FORWARDED_FOR, drop_hop_by_hop};
use partage_wire::request::unavailable::UNKNOWN_OUTCOME;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

/// A proxy that could not begin.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The system refuses to listen on the address.
    #[error("cannot listen on {address}: {why}; choose another address or end who has it")]
    Listen {
        /// The address on which the proxy could not listen.
        address: SocketAddr,
        /// What the system says.
        why: std::io::Error,
    },
    /// A thread cannot begin.
    #[error("a thread of the proxy cannot begin: {0}")]
    Thread(std::io::Error),
}

/// A proxy that runs. Dropped, it ends without waiting; [`Proxy::stop`] waits for requests under way.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// The address that clients reach the proxy at, with the port that the system has chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more clients, lets requests under way end, for [`limits::DRAIN`] at the most.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let join = tokio::task::spawn_blocking(move || {
            for thread in self.threads {
                // A thread that panicked has logged it.
                let _ = thread.join();
            }
        });
        let _ = join.await;
    }
}

/// What all threads share.
pub(super) struct ProxyState {
    pub config: Config,
    pub router: Router,
    pub door: Door,
    /// The caller of each thread, whose counts the metrics sum.
    pub callers: Vec<Arc<Caller>>,
    /// How far datasets have come.
    pub seen: SeenVersions,
}

/// What one thread works with.
pub(super) struct ThreadState {
    pub proxy: Arc<ProxyState>,
    pub caller: Arc<Caller>,
}

/// Begins to proxy by the maps of `router`.
///
/// # Errors
/// When its address cannot be listened on, or a thread cannot begin.
pub async fn serve(router: &Router, config: Config) -> Result<Proxy, ProxyError> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let count = if config.threads == 0 { cores() } else { config.threads };
    let callers = (0..count).map(|_| Arc::new(router.caller())).collect();
    let mut address = config.listen;
    let door = door(&config, router.kept_body_bytes());
    let proxy =
        Arc::new(ProxyState { config, router: router.clone(), door, callers, seen: SeenVersions::default() });
    let (stop, stopped) = watch::channel(false);
    let mut threads = Vec::with_capacity(count);
    if count > 1 {
        // Shared ports are for our own threads: without this, two proxies could take each other's requests.
        drop(listen(address, false).map_err(|why| ProxyError::Listen { address, why })?);
    }
    for number in 0..count {
        let (proxy, stopped) = (proxy.clone(), stopped.clone());
        let (begun, begins) = oneshot::channel();
        let body = move || run_thread(&proxy, number, (address, count > 1), stopped, begun);
        let builder = std::thread::Builder::new().name(format!("proxy-{number}"));
        threads.push(builder.spawn(body).map_err(ProxyError::Thread)?);
        let gone = || std::io::Error::other("the thread has ended");
        let listening = begins.await.map_err(|_| ProxyError::Thread(gone()))?;
        address = listening.map_err(|why| ProxyError::Listen { address, why })?;
    }
    Ok(Proxy { address, stop, threads })
}

fn run_thread(
    proxy: &Arc<ProxyState>,
    number: usize,
    (address, shared): (SocketAddr, bool),
    stopped: watch::Receiver<bool>,
    begun: oneshot::Sender<std::io::Result<SocketAddr>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = begun.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        let listening = listen(address, shared).and_then(|listener| Ok((listener.local_addr()?, listener)));
        match listening {
            Ok((address, listener)) => {
                let _ = begun.send(Ok(address));
                accept(proxy, number, listener, stopped).await;
            }
            Err(error) => {
                let _ = begun.send(Err(error));
            }
        }
    });
}

fn listen(address: SocketAddr, shared: bool) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    #[cfg(unix)]
    socket.set_reuseport(shared)?;
    socket.bind(address)?;
    socket.listen(1_024)
}

async fn accept(
    proxy: &Arc<ProxyState>,
    number: usize,
    listener: TcpListener,
    stopped: watch::Receiver<bool>,
) {
    let caller = proxy.callers[number].clone();
    let pools = Arc::downgrade(caller.pools());
    tokio::spawn(async move {
        while let Some(pools) = pools.upgrade() {
            pools.sweep();
            drop(pools);
            sleep(limits::SWEEP).await;
        }
    });
    let thread = Arc::new(ThreadState { proxy: proxy.clone(), caller });
    let client = |accepted: &AcceptedConnection| {
        let address = HeaderValue::from_str(&accepted.peer.ip().to_canonical().to_string());
        let address = address.unwrap_or(HeaderValue::from_static("unknown"));
        Client { thread: thread.clone(), address }
    };
    proxy.door.listen_with(listener, client, stopped).await;
}

/// The service for the requests of one client's connection.
#[derive(Clone)]
struct Client {
    thread: Arc<ThreadState>,
    address: HeaderValue,
}

impl Service for Client {
    type Body = AnswerBody;

    async fn answer(&self, request: Request<RequestBody>) -> Response<AnswerBody> {
        handle(&self.thread, request, &self.address).await
    }
}

/// The door of a proxy with those settings.
fn door(config: &Config, kept_body_bytes: usize) -> Door {
    let role = Role {
        announced: vec![config.listen.to_string()],
        // The service decides the form of its requests; the proxy's own pages change nothing.
        changes: Changes::None,
        bodies: Bodies::PassedOn { kept: kept_body_bytes as u64 },
        connections: limits::CLIENTS,
        // One to the client, one to a node.
        files_each: 2,
        ping: limits::CLIENT_PING,
        ending: Ending::After(limits::DRAIN),
        ..Role::default()
    };
    Door::new(role, config.door.clone())
}

async fn handle(
    thread: &ThreadState,
    request: Request<RequestBody>,
    peer: &HeaderValue,
) -> Response<AnswerBody> {
    let ThreadState { proxy, caller } = thread;
    if let Some(page) = pages::page(proxy, &request) {
        return page;
    }
    if *request.method() == Method::CONNECT {
        let what = "this proxy does not open tunnels";
        return refused(StatusCode::NOT_IMPLEMENTED, "unsupported", what, "ask it for what you want");
    }
    let (mut parts, body) = request.into_parts();
    let found = match find(&proxy.config.rules, &caller.cache().routes(), &parts) {
        Ok(found) => Ok(found),
        // A router that has just begun may know no keyspace yet.
        Err(RuleError::Keyspace(_)) if !caller.cache().has_heard() => {
            Box::pin(proxy.router.ready(Duration::from_millis(caller.deadline_ms()))).await;
            find(&proxy.config.rules, &caller.cache().routes(), &parts)
        }
        Err(error) => Err(error),
    };
    let found = match found {
        Ok(found) => found,
        Err(error) => return misplaced(caller, &error),
    };
    let read = parts.method == Method::GET || parts.method == Method::HEAD;
    let access = if read { Access::Read } else { Access::Write };
    forwarded_for(&mut parts.headers, peer);
    // A client asks for several keys by POST; a node refuses other POSTs.
    let is_read = read || found.key.is_empty() && parts.method == Method::POST;
    if found.kind == KeyspaceKind::Dataset && is_read {
        let key = (!found.key.is_empty()).then_some(found.key);
        let asked = DatasetRequest { keyspace: found.keyspace, key, parts, body: Outgoing::Incoming(body) };
        let mut answer = Box::pin(dataset::answer(thread, asked)).await;
        drop_hop_by_hop(answer.headers_mut());
        return answer;
    }
    let request = Request::from_parts(parts, Outgoing::Incoming(body));
    match caller.request(request, found.keyspace.as_str(), &found.key, access).await {
        Ok(mut answer) => {
            drop_hop_by_hop(answer.headers_mut());
            answer
        }
        Err(error) if found.kind == KeyspaceKind::Table && !read && error.is_indefinite() => unknown(&error),
        Err(error) => failed(&error),
    }
}

fn forwarded_for(headers: &mut HeaderMap, peer: &HeaderValue) {
    let value = match headers.get(&FORWARDED_FOR) {
        None => peer.clone(),
        Some(before) => {
            let all = [before.as_bytes(), b", ", peer.as_bytes()].concat();
            HeaderValue::from_bytes(&all).unwrap_or_else(|_| peer.clone())
        }
    };
    headers.insert(FORWARDED_FOR, value);
}

fn misplaced(caller: &Caller, error: &RuleError) -> Response<AnswerBody> {
    caller.counters().refused();
    let (status, kind, way_out) = match error {
        RuleError::Keyspace(_) if !caller.cache().has_heard() => (
            StatusCode::SERVICE_UNAVAILABLE,
            "no_maps",
            "this router has heard no coordinator yet, try again",
        ),
        RuleError::Keyspace(_) => (
            StatusCode::NOT_FOUND,
            "unknown_keyspace",
            "`partage keyspace list` shows those there are; this is a router, the API (/v1/…) is at the coordinator",
        ),
        RuleError::NoRule { .. } => (StatusCode::NOT_FOUND, "no_rule", "ask as one of the rules says"),
        RuleError::NoKey { .. } => (StatusCode::BAD_REQUEST, "no_key", "put the key there"),
        RuleError::KeyTooLong { .. } => (StatusCode::BAD_REQUEST, "key_too_long", "take a shorter one"),
    };
    let mut answer = refused(status, kind, &error.to_string(), way_out);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

/// A write to a table that may have been done, in the words of its nodes.
fn unknown(error: &CallError) -> Response<AnswerBody> {
    let way_out = "send it again under its idempotency-key, or read the row";
    refused(StatusCode::GATEWAY_TIMEOUT, UNKNOWN_OUTCOME, &error.to_string(), way_out)
}

pub(super) fn failed(error: &CallError) -> Response<AnswerBody> {
    let mut answer = refused(error.status(), error.kind(), &error.to_string(), error.way_out());
    if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}
