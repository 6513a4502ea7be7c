//! For services that speak HTTP: what mounts on the user's own server.
//!
//! [`router`] answers the coordinator's check-back. [`sharded`] stands before the service and lets each
//! request in, forwards it to the owner, or refuses it with a hint:
//!
//! | admission   | request                       | answer                                                |
//! |-------------|-------------------------------|-------------------------------------------------------|
//! | `Serve`     |                               | the service's, with `partage-node`, `partage-epoch`   |
//! | `Elsewhere` | as the client sent it         | the owner's, with `partage-proxied-to`                |
//! | `Elsewhere` | forwarded (`partage-hop: 1`)  | 421 with `partage-owner-node`, `partage-owner-address`|
//! | `Soon`      |                               | waits; in the end 503 with `retry-after`              |
//! | `Lapsed`    |                               | 503 with `retry-after`                                |
//! | `Unknown`   |                               | as `Elsewhere` if the maps know; 421                  |
//!
//! What is refused has a body as all errors have, an [`ErrorBody`]; that of a 421 names the owner, too. The `kind` of a
//! 503 says whether the request was begun: see [`partage_wire::request::unavailable`]. After `soon`,
//! `lapsed` and `unreachable` nothing was done, and any request may be sent again; after `moved` and
//! `lapsed_while_served` it may have been carried out. A service whose clients go by the status alone tells such writes apart
//! by it, and requests for a keyspace that does not exist: [`Sharded::definite_statuses`].
//!
//! So any node takes any request (K19). The maps are followed only once they are needed: see
//! [`Sharded::hints_only`] to do without, [`Sharded::locate_by`] to bring one's own.
//!
//! A request is forwarded once at most, so two nodes that name each other cannot play ball with it. Whoever
//! sends a request by a map says so by `partage-generation` (its sequence); a node whose own map is older waits
//! until its orders arrive rather than send the request back to where it has just come from. That is the
//! moment between the two ends of a move hearing of it.
//!
//! A request that is sent on and breaks may have been carried out. The same holds when the
//! owner stops answering with the connection open, as a stopped process does: after [`limits::HOP_QUIET`] this node asks it
//! whether it is there, and gives the request up when [`limits::HOP_CHECKS`] such questions in a row have no answer. Each
//! request is tried once, unless the service wants that this node sends it again itself where it may: [`Sharded::sends_again`].
//!
//! A worker that has left closes each HTTP/1 connection with its next answer, so that no client sends a request
//! into a server that is about to end; HTTP/2 says that itself. End the server gracefully after
//! [`Worker::leave`], so that requests in flight are answered.

use crate::admission::{Admission, Guard};
use crate::limits;
pub use crate::locate::Locate;
use crate::locate::{Finder, Located, Locator};
use crate::worker::Worker;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::Access;
use partage_core::routing::retry::Event;
pub use partage_core::routing::retry::RetryPolicy;
use partage_wire::json::{ErrorBody, Owner};
pub use partage_wire::request::headers::{
    EPOCH, GENERATION, HOP, NODE, OWNER_ADDRESS, OWNER_NODE, PROXIED_TO,
};
use partage_wire::request::headers::{FORWARDED_HOST, drop_hop_by_hop, number};
use partage_wire::request::unavailable;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

mod guarded_body;
mod hop;
mod repeats;

use guarded_body::GuardedBody;
use hop::{HopError, Hops};
use repeats::{Repeats, Tried, is_short};

/// The path at which [`router`] answers the coordinator's check-back.
pub const WORKER_PATH: &str = "/partage/worker";

/// Where [`router`] answers 204, with no look at what the node has: for one that asks whether the node answers at all.
pub const ALIVE_PATH: &str = "/partage/worker/alive";

/// Where [`router`] gives metrics in the text form of Prometheus.
pub const METRICS_PATH: &str = "/partage/worker/metrics";

/// The way out when nothing was done.
const AGAIN: &str = "try again";

/// The way out when something may have been done.
const LOOK: &str = "before you send it again, look whether it was carried out, unless it can be done twice";

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The keyspace that the key is in.
    pub keyspace: KeyspaceName,
    /// The key whose shard the request is for.
    pub key: Vec<u8>,
    /// What it wants; none = by its method, [`access_of`].
    pub access: Option<Access>,
}

/// What the service's key extractor finds in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Aim {
    /// The key whose shard the request is for.
    Key(Target),
    /// Not about a key: passed to the service as it is.
    Unsharded,
    /// About a key that cannot be; the sentence is answered with 400.
    Bad(String),
}

/// `GET` and `HEAD` read, everything else writes.
pub fn access_of(method: &Method) -> Access {
    if method == Method::GET || method == Method::HEAD { Access::Read } else { Access::Write }
}

/// Answers the coordinator's check-back at [`WORKER_PATH`] with [`about`], the checks of other nodes at [`ALIVE_PATH`], and `GET`
/// of [`METRICS_PATH`] with [`Worker::metrics`].
pub fn router(worker: &Worker) -> Router {
    router_with(worker, String::new)
}

/// The same, with more metrics of the service's own after those of the worker, in the text form of Prometheus.
pub fn router_with(worker: &Worker, more: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let (checked, measured) = (worker.clone(), worker.clone());
    let form = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Router::new()
        .route(WORKER_PATH, get(move || async move { axum::Json(about(&checked)) }))
        .route(ALIVE_PATH, get(async || StatusCode::NO_CONTENT))
        .route(METRICS_PATH, get(move || async move { (form, measured.metrics() + &more()) }))
}

/// The node's name, its health and its replicas: for services with a server of their own to answer with.
pub fn about(worker: &Worker) -> serde_json::Value {
    let replica = |replica: &crate::worker::Replica| {
        let shard = &replica.assignment;
        serde_json::json!({
            "keyspace": shard.keyspace().as_str(),
            "shard": shard.shard().0,
            "placement": shard.replica.placement.0,
            "bounds": shard.bounds.to_string(),
            "role": shard.role.to_string(),
            "epoch": shard.epoch.0,
            "phase": format!("{:?}", replica.phase),
            "requests": replica.requests,
        })
    };
    serde_json::json!({
        "node": worker.node().as_str(),
        "incarnation": worker.incarnation().map(|incarnation| incarnation.0),
        "health": worker.health().to_string(),
        "replicas": worker.replicas().iter().map(replica).collect::<Vec<_>>(),
    })
}

/// Finds the key in a request's head.
pub trait KeyOf: Fn(&Parts) -> Aim + Send + Sync + 'static {}
impl<F: Fn(&Parts) -> Aim + Send + Sync + 'static> KeyOf for F {}

/// A router whose requests are let in by `worker`, each by the key that `key_of` finds in it.
///
/// Inside, a handler may take `Extension<Arc<Guard>>` to learn its epoch and shard.
pub fn sharded(worker: &Worker, key_of: impl KeyOf, inner: Router) -> Router {
    Router::new().fallback_service(Sharded::new(worker, key_of).layer(inner))
}

/// The layer behind [`sharded`], for services that are not axum routers.
#[derive(Clone)]
pub struct Sharded {
    worker: Worker,
    key_of: Arc<dyn Fn(&Parts) -> Aim + Send + Sync>,
    hops: Hops,
    hold: Duration,
    locator: Locator,
    has_definite_statuses: bool,
    /// None: each request is tried once.
    repeats: Option<Arc<Repeats>>,
}

impl Sharded {
    /// A layer that holds a request of a shard that is about to come for [`limits::HOLD`].
    pub fn new(worker: &Worker, key_of: impl KeyOf) -> Sharded {
        let finder = Finder::new(worker.node().clone(), worker.shared().coordinators.clone());
        let locator = Locator::Maps(Arc::new(finder));
        Sharded {
            worker: worker.clone(),
            key_of: Arc::new(key_of),
            hops: Hops::new(),
            hold: limits::HOLD,
            locator,
            has_definite_statuses: false,
            repeats: None,
        }
    }

    /// Asks `locate` where the worker does not know, instead of following the maps: for a service that has a
    /// router in it anyway.
    #[must_use]
    pub fn locate_by(self, locate: impl Locate) -> Sharded {
        Sharded { locator: Locator::Service(Arc::new(locate)), ..self }
    }

    /// Never follows the maps: a request for a key that the worker knows nothing of is refused with 421.
    #[must_use]
    pub fn hints_only(self) -> Sharded {
        Sharded { locator: Locator::Nobody, ..self }
    }

    /// Gives two answers a status that no other answer has. A write that may have been carried out, by the method of the request
    /// ([`access_of`]), gets 504 with the kind [`unavailable::UNKNOWN_OUTCOME`], instead of a 503 or 502: of a read nothing can
    /// be unknown. A request for a keyspace that none of the maps is of gets 404 with the kind `not_found`, instead of 421.
    #[must_use]
    pub fn definite_statuses(self) -> Sharded {
        Sharded { has_definite_statuses: true, ..self }
    }

    /// Sends a request of a client again itself, as patiently as `policy` says: one of which nothing was done, and one that may
    /// have been carried out, if it reads by its method ([`access_of`]) or has an `idempotency-key`. So the service must know a
    /// repetition by that header, at whichever node, and answer it as it has answered the first one.
    ///
    /// No try begins after the deadline of the policy. A try that is under way then is given up if the request reads, or may have
    /// been carried out by an earlier one; otherwise its answer is awaited, as the client would else not know whether the request
    /// was carried out. An answer is never asked for again.
    ///
    /// A body of more than [`limits::KEPT_BODY_BYTES`] or of unknown length is not kept, nor one for which there is no room among
    /// [`limits::KEPT_BODIES_BYTES`] of all that are. Such a request is sent once.
    #[must_use]
    pub fn sends_again(self, policy: RetryPolicy) -> Sharded {
        let repeats = Repeats::new(policy, self.worker.shared().clock);
        Sharded { repeats: Some(Arc::new(repeats)), ..self }
    }

    /// Whether the maps are followed at this moment; never before they were needed.
    pub fn is_following(&self) -> bool {
        matches!(&self.locator, Locator::Maps(finder) if finder.is_following())
    }

    /// How long a request is held whose replica is about to serve.
    #[must_use]
    pub fn hold(self, hold: Duration) -> Sharded {
        Sharded { hold, ..self }
    }
}

impl<S> Layer<S> for Sharded {
    type Service = ShardedService<S>;
    fn layer(&self, inner: S) -> ShardedService<S> {
        ShardedService { gate: self.clone(), inner }
    }
}

/// A service behind [`Sharded`].
#[derive(Clone)]
pub struct ShardedService<S> {
    gate: Sharded,
    inner: S,
}

impl<S> Service<Request> for ShardedService<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let ShardedService { gate, inner } = self.clone();
        Box::pin(async move { Ok(gate.pass(request, inner).await) })
    }
}

/// An [`Admission`] that is settled, as far as it can be.
enum AdmitOutcome {
    Serve(Guard),
    Forward { node: NodeId, address: String, sequence: Option<u64> },
    Reply(Tried),
}

impl Sharded {
    async fn pass<S>(&self, request: Request, inner: S) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Clone + Send,
        S::Future: Send,
    {
        let closable = request.version() <= Version::HTTP_11;
        let mut response = self.answer(request, inner).await;
        if closable && self.worker.shared().has_left.load(Ordering::Relaxed) {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn answer<S>(&self, request: Request, inner: S) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Clone + Send,
        S::Future: Send,
    {
        let (parts, body) = request.into_parts();
        let target = match (self.key_of)(&parts) {
            Aim::Key(target) => target,
            Aim::Unsharded => return answer(inner, Request::from_parts(parts, body)).await,
            Aim::Bad(why) => {
                let help = "mend the request";
                return self.refusal(StatusCode::BAD_REQUEST, ErrorBody::told("malformed", why, help));
            }
        };
        let access = target.access.unwrap_or_else(|| access_of(&parts.method));
        let of = (&target, access);
        match self.repeats.as_deref().filter(|_| !parts.headers.contains_key(HOP)) {
            Some(repeats) => self.answer_repeatedly(repeats, of, (parts, body), inner).await,
            None => self.attempt(of, (parts, body), self.hold_until(), inner).await.response,
        }
    }

    /// How long a request that comes now is held.
    fn hold_until(&self) -> Instant {
        Instant::now() + self.hold
    }

    /// One try: answers the request here, or by the node that has its key at this moment. It is held here until `until` at most.
    async fn attempt<S>(
        &self,
        (target, access): (&Target, Access),
        (parts, body): (Parts, Body),
        until: Instant,
        inner: S,
    ) -> Tried
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send,
        S::Future: Send,
    {
        match self.admit(target, access, &parts.headers, until).await {
            AdmitOutcome::Serve(guard) => self.serve(guard, Request::from_parts(parts, body), inner).await,
            AdmitOutcome::Forward { node, address, sequence } => {
                let request = Request::from_parts(parts, body);
                self.hop(target, node.as_str(), &address, sequence, request).await
            }
            AdmitOutcome::Reply(tried) => tried,
        }
    }

    async fn admit(
        &self,
        target: &Target,
        access: Access,
        headers: &HeaderMap,
        until: Instant,
    ) -> AdmitOutcome {
        let hopped = headers.contains_key(HOP);
        let admission = self.enter(target, access, number(headers, &GENERATION), until).await;
        match admission {
            Admission::Serve(guard) => return AdmitOutcome::Serve(guard),
            Admission::Soon => {
                let text = "the shard is being handed over to this node";
                return self.not_yet(text);
            }
            Admission::Lapsed => {
                let text = "this node does not hear its coordinator, so it may not own the shard any more; nothing was done";
                // A node that is cut off does not know who has the key: its client had better ask another one at once.
                let refused = self.unavailable(unavailable::LAPSED, text, AGAIN);
                return AdmitOutcome::Reply(Tried::answered(refused));
            }
            Admission::Elsewhere { .. } | Admission::Unknown { .. } => {}
        }
        match self.locator.locate(&admission, target, access, hopped, until).await {
            Located::At { node, .. } if node == *self.worker.node() => self.not_mine(target, None),
            Located::At { node, address, .. } if hopped => {
                self.not_mine(target, Some((node.as_str(), &address)))
            }
            Located::At { node, address, sequence } => AdmitOutcome::Forward { node, address, sequence },
            Located::Nobody if !hopped => {
                let text = "no node serves the shard at this moment, it is being handed over";
                self.not_yet(text)
            }
            Located::NoKeyspace if !hopped && self.has_definite_statuses => {
                AdmitOutcome::Reply(Tried::answered(self.no_keyspace(target)))
            }
            // It would be the same a moment later.
            Located::NoKeyspace | Located::NoShard => {
                AdmitOutcome::Reply(Tried::answered(self.misdirected(target, None)))
            }
            Located::Nobody | Located::Unknown => self.not_mine(target, None),
        }
    }

    fn not_yet(&self, text: &str) -> AdmitOutcome {
        AdmitOutcome::Reply(Tried::not_sent(self.unavailable(unavailable::SOON, text, AGAIN)))
    }

    fn not_mine(&self, target: &Target, owner: Option<(&str, &str)>) -> AdmitOutcome {
        AdmitOutcome::Reply(Tried::not_sent(self.misdirected(target, owner)))
    }

    /// Enters, waiting while a gate is about to open, or while the sender goes by a newer map than this node.
    async fn enter(&self, target: &Target, access: Access, theirs: Option<u64>, until: Instant) -> Admission {
        let ours = || self.worker.generation(&target.keyspace).map(|generation| generation.sequence);
        let is_early = |admission: &Admission| match admission {
            Admission::Soon => true,
            Admission::Elsewhere { .. } | Admission::Unknown { .. } => theirs > ours().or(theirs),
            Admission::Serve(_) | Admission::Lapsed => false,
        };
        let attempt = || self.worker.enter(&target.keyspace, &target.key, access);
        self.worker.shared().await_change(until, attempt, is_early).await
    }

    async fn serve<S>(&self, guard: Guard, mut request: Request, inner: S) -> Tried
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send,
        S::Future: Send,
    {
        let guard = Arc::new(guard);
        let access = access_of(request.method());
        request.extensions_mut().insert(guard.clone());
        let mut response = tokio::select! {
            response = guard.metered(whole(inner, request)) => response,
            () = guard.cancelled() => {
                let text = "the shard had to be handed over before the request was done: it may or may not have been carried out";
                let otherwise = || self.unavailable(unavailable::MOVED, text, LOOK);
                return Tried::unknown(self.begun(access, text, otherwise));
            }
        };
        if !guard.mine_all_along() {
            let text =
                "the lease ran out while the request was answered: it may or may not have been carried out";
            let otherwise = || self.unavailable(unavailable::LAPSED_WHILE_SERVED, text, LOOK);
            return Tried::unknown(self.begun(access, text, otherwise));
        }
        let headers = response.headers_mut();
        headers.insert(NODE, value(self.worker.node().as_str()));
        headers.insert(EPOCH, guard.epoch().0.into());
        if is_short(response.body()) {
            return self.judged(access, response).await;
        }
        Tried::answered(response.map(|body| Body::new(GuardedBody::new(body, guard))))
    }

    /// Forwards the request to the owner, once, by the map of `sequence` if that is later than the worker's
    /// orders. Bodies are streamed both ways.
    async fn hop(
        &self,
        target: &Target,
        node: &str,
        address: &str,
        sequence: Option<u64>,
        mut request: Request,
    ) -> Tried {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let Ok(uri) = format!("http://{address}{path}").parse::<Uri>() else {
            return Tried::answered(self.misdirected(target, Some((node, address))));
        };
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        drop_hop_by_hop(request.headers_mut());
        // A node answers to its own names only; the client adds that of the owner.
        if let Some(asked) = request.headers_mut().remove(header::HOST)
            && !request.headers().contains_key(&FORWARDED_HOST)
        {
            request.headers_mut().insert(FORWARDED_HOST, asked);
        }
        request.headers_mut().insert(HOP, HeaderValue::from_static("1"));
        let ours = self.worker.generation(&target.keyspace).map(|generation| generation.sequence);
        if let Some(sequence) = ours.max(sequence) {
            request.headers_mut().insert(GENERATION, sequence.into());
        }
        let access = access_of(request.method());
        let broken = |text: &str| Tried::unknown(self.broken(access, text));
        match self.hops.send(address, request).await {
            Ok(mut response) => {
                let theirs = number(response.headers(), &GENERATION);
                if let (StatusCode::MISDIRECTED_REQUEST, Some(theirs)) = (response.status(), theirs) {
                    self.locator.lags(target, theirs);
                }
                drop_hop_by_hop(response.headers_mut());
                response.headers_mut().insert(PROXIED_TO, value(node));
                self.judged(access, response).await
            }
            Err(HopError::NotConnected) => {
                let text = format!("the owner, node {node}, does not answer at {address}; nothing was done");
                let response = self.unavailable(unavailable::UNREACHABLE, &text, AGAIN);
                Tried { response, event: Event::NotConnected { another: false } }
            }
            Err(HopError::Broken) => broken(&format!(
                "the connection to the owner, node {node}, broke: the request may have been carried out"
            )),
            Err(HopError::Silent) => broken(&format!(
                "the owner, node {node}, has the request and answers nothing any more: it may be carried out, also later"
            )),
        }
    }

    /// The answer to a request that was begun, and may have been carried out.
    fn begun(&self, access: Access, text: &str, otherwise: impl FnOnce() -> Response) -> Response {
        if !self.has_definite_statuses || access == Access::Read {
            return otherwise();
        }
        self.refusal(StatusCode::GATEWAY_TIMEOUT, ErrorBody::told(unavailable::UNKNOWN_OUTCOME, text, LOOK))
    }

    /// The same, where no answer of the service came.
    fn broken(&self, access: Access, text: &str) -> Response {
        self.begun(access, text, || {
            self.refusal(StatusCode::BAD_GATEWAY, ErrorBody::told("broken", text, LOOK))
        })
    }

    fn no_keyspace(&self, target: &Target) -> Response {
        let text = format!("there is no keyspace {}", target.keyspace);
        self.refusal(StatusCode::NOT_FOUND, ErrorBody::told("not_found", text, "name one that exists"))
    }

    fn misdirected(&self, target: &Target, owner: Option<(&str, &str)>) -> Response {
        let keyspace = &target.keyspace;
        let (text, help) = match owner {
            Some((node, _)) => {
                (format!("the key of keyspace {keyspace} is served by node {node}"), "ask that node")
            }
            None => {
                (format!("this node has no shard of keyspace {keyspace} for the key"), "ask for a newer map")
            }
        };
        let mut body = ErrorBody::told("misdirected", text, help);
        body.error.owner = owner
            .map(|(node, address)| Box::new(Owner { node: node.to_owned(), address: address.to_owned() }));
        let mut response = self.refusal(StatusCode::MISDIRECTED_REQUEST, body);
        let headers = response.headers_mut();
        if let Some((node, address)) = owner {
            headers.insert(OWNER_NODE, value(node));
            headers.insert(OWNER_ADDRESS, value(address));
        }
        if let Some(generation) = self.worker.generation(keyspace) {
            headers.insert(GENERATION, generation.sequence.into());
        }
        response
    }

    fn unavailable(&self, kind: &str, text: &str, help: &str) -> Response {
        let body = ErrorBody::told(kind, text, help);
        let mut response = self.refusal(StatusCode::SERVICE_UNAVAILABLE, body);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }

    fn refusal(&self, status: StatusCode, body: ErrorBody) -> Response {
        let mut response = (status, axum::Json(body)).into_response();
        response.headers_mut().insert(NODE, value(self.worker.node().as_str()));
        response
    }
}

async fn answer<S>(inner: S, request: Request) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    match inner.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Names and addresses were checked when they came in; what no header can hold is left out.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// The service's answer; a short one with its whole body.
async fn whole<S>(inner: S, request: Request) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let response = answer(inner, request).await;
    if !is_short(response.body()) || response.body().is_end_stream() {
        return response;
    }
    let (parts, body) = response.into_parts();
    match axum::body::to_bytes(body, limits::BUFFERED_BYTES).await {
        Ok(bytes) => Response::from_parts(parts, Body::from(bytes)),
        Err(error) => {
            tracing::warn!("the service's answer broke off: {error}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
