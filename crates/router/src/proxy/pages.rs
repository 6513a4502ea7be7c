//! The proxy's own pages: health, metrics, routes.

use super::serve::ProxyState;
use crate::call::body::AnswerBody;
use crate::counters::Counts;
use crate::limits;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use partage_core::node::NodeAddress;
use partage_core::routing::routes::{Route, RouteReplica};
use partage_wire::json::ErrorBody;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde_json::{Value, json};

/// The path prefix of a coordinator's methods.
const COORDINATOR_METHODS: &str = "/partage.v1.";

/// The page that a request asks for, if it is one of ours.
pub fn page<B>(proxy: &ProxyState, request: &Request<B>) -> Option<Response<AnswerBody>> {
    let path = request.uri().path();
    let is_grpc = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/grpc");
    if path.starts_with(COORDINATOR_METHODS)
        && request.headers().get(header::CONTENT_TYPE).is_some_and(is_grpc)
    {
        return Some(for_a_coordinator());
    }
    match path.strip_prefix("/partage/")? {
        "health" => Some(health(proxy)),
        "metrics" => Some(metrics(proxy)),
        "routes" => Some(routes(proxy)),
        _ => None,
    }
}

/// The answer to a worker or a command that was given the address of a router.
fn for_a_coordinator() -> Response<AnswerBody> {
    let mut answer = bytes(StatusCode::OK, "application/grpc", Vec::new());
    // gRPC has the status among the headers where there is no message; 9 is FAILED_PRECONDITION.
    answer.headers_mut().insert("grpc-status", HeaderValue::from_static("9"));
    let what = "this is a router, and the call is for a coordinator: give the address of a coordinator (--join, --coordinator)";
    answer.headers_mut().insert("grpc-message", HeaderValue::from_static(what));
    answer
}

/// An error of the proxy itself: what is wrong, and the way out.
pub fn refused(status: StatusCode, kind: &str, what: &str, way_out: &str) -> Response<AnswerBody> {
    bytes(status, "application/json", ErrorBody::told(kind, what, way_out).bytes())
}

fn value(status: StatusCode, value: &Value) -> Response<AnswerBody> {
    bytes(status, "application/json", value.to_string().into())
}

fn bytes(status: StatusCode, kind: &'static str, bytes: Vec<u8>) -> Response<AnswerBody> {
    let mut answer = Response::new(AnswerBody::from(Bytes::from(bytes)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// The proxy is well while it can route, also without a coordinator.
fn health(proxy: &ProxyState) -> Response<AnswerBody> {
    let maps = proxy.router.generations();
    let well = !maps.is_empty() || proxy.router.is_connected();
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if well { "ok" } else { "no maps yet" };
    value(
        status,
        &json!({ "status": word, "connected": proxy.router.is_connected(), "keyspaces": maps.len() }),
    )
}

/// Each thread counts for itself; a registry is only made for each answer.
fn metrics(proxy: &ProxyState) -> Response<AnswerBody> {
    let mut counts = Counts::default();
    proxy.callers.iter().for_each(|caller| caller.counters().add_to(&mut counts));
    let mut written = String::new();
    match encode(&mut written, &registry(proxy, &counts)) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            bytes(StatusCode::OK, kind, written.into())
        }
        Err(error) => refused(StatusCode::INTERNAL_SERVER_ERROR, "metrics", &error.to_string(), ""),
    }
}

type Labels = [(&'static str, String); 1];

fn registry(proxy: &ProxyState, counts: &Counts) -> Registry {
    let mut registry = Registry::with_prefix("partage_router");
    let requests = Family::<Labels, Counter>::default();
    let outcomes = [
        ("good", counts.good),
        ("client_error", counts.client_errors),
        ("server_error", counts.server_errors),
        ("failed", counts.failed),
        ("refused", counts.refused),
    ];
    for (outcome, count) in outcomes {
        requests.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(count);
    }
    registry.register("requests", "Requests by what became of them", requests);
    let sums = [
        ("retries", "Tries after the first", counts.retries),
        ("hedges", "Second nodes asked for the same read", counts.hedges),
        ("misdirected", "Answers of 421: the map was older than the node's", counts.misdirected),
        ("behind", "Answers of dataset nodes that were behind a version that was seen", counts.behind),
        ("map_streams", "Streams of maps opened", proxy.router.streams()),
    ];
    for (name, help, count) in sums {
        let counter = Counter::<u64>::default();
        counter.inc_by(count);
        registry.register(name, help, counter);
    }
    proxy.door.register(&mut registry);
    let generations = Family::<Labels, Gauge>::default();
    for (keyspace, generation) in proxy.router.generations() {
        let labels = [("keyspace", keyspace.to_string())];
        generations.get_or_create(&labels).set(i64::try_from(generation.sequence).unwrap_or(i64::MAX));
    }
    registry.register("map_generation", "Sequence of the map of each keyspace", generations);
    let connected = Gauge::<i64>::default();
    connected.set(i64::from(proxy.router.is_connected()));
    registry.register("connected", "Whether a coordinator is connected", connected);
    if let Some(silence) = proxy.router.silence() {
        let age = Gauge::<f64, std::sync::atomic::AtomicU64>::default();
        age.set(silence.as_secs_f64());
        let help = "Since a coordinator last sent anything";
        registry.register_with_unit("map_age", help, Unit::Seconds, age);
    }
    registry
}

/// Every shard with its replicas, [`limits::ROUTES_SHOWN`] at the most.
fn routes(proxy: &ProxyState) -> Response<AnswerBody> {
    let routes = proxy.router.routes();
    let mut left = limits::ROUTES_SHOWN;
    let keyspaces: Vec<Value> = routes
        .keyspaces()
        .map(|keyspace| {
            let shown: Vec<Value> =
                routes.routes_of(keyspace).take(left).map(|route| shard(&route)).collect();
            left -= shown.len();
            json!({
                "keyspace": keyspace.brief().name.as_str(),
                "generation": keyspace.generation().sequence,
                "sharding": keyspace.brief().sharding.to_string(),
                "count": keyspace.shards(),
                "shards": shown,
            })
        })
        .collect();
    let nodes: Vec<Value> =
        routes.nodes().iter().flatten().filter_map(|node| node.at.as_deref()).map(node).collect();
    value(StatusCode::OK, &json!({ "keyspaces": keyspaces, "nodes": nodes }))
}

fn shard(route: &Route<'_>) -> Value {
    let replica = |replica: RouteReplica<'_>| json!({ "node": replica.node.id.as_str(), "role": replica.role.to_string() });
    json!({
        "shard": route.shard().0,
        "epoch": route.epoch().0,
        "replicas": route.replicas().map(replica).collect::<Vec<_>>(),
    })
}

fn node(node: &NodeAddress) -> Value {
    json!({
        "node": node.id.as_str(),
        "address": node.address,
        "incarnation": node.incarnation.0,
        "zone": node.zone.as_ref().map(|zone| zone.as_str()),
        "health": node.health.to_string(),
    })
}
