//! The reverse proxy as its clients see it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod world;

use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use partage_core::keyspace::KeyspaceKind;
use partage_core::routing::retry::RetryPolicy;
use partage_router::proxy::{Config, KeyFrom, KeyspaceFrom, Proxy, Rule, serve};
use partage_router::{CallOptions, Hedging, Options, Router};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_stream::wrappers::ReceiverStream;
use world::coordinator::Coordinator;
use world::node::{Does, Node};
use world::{Maps, eventually, router};

struct World {
    _coordinator: Coordinator,
    _router: Router,
    nodes: [Node; 2],
    proxy: Proxy,
}

async fn world(rules: Vec<Rule>, threads: usize) -> World {
    let nodes = [Node::start("a").await, Node::start("b").await];
    let mut maps = Maps::new("ks", &[("", &["a"]), ("m", &["b"])]);
    maps.nodes = nodes.iter().map(Node::at).collect();
    let coordinator = Coordinator::start(maps).await;
    let retry = RetryPolicy { deadline_ms: 1_000, ..RetryPolicy::default() };
    let call = CallOptions { retry, hedging: Hedging::Off, ..CallOptions::default() };
    let router = router(&coordinator, call).await;
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), rules, threads, ..Config::default() };
    let proxy = serve(&router, config).await.unwrap();
    World { _coordinator: coordinator, _router: router, nodes, proxy }
}

fn rule(keyspace: KeyspaceFrom, key: KeyFrom) -> Rule {
    Rule { prefix: String::new(), keyspace, key }
}

async fn ask(proxy: &Proxy, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    send.send_request(request).await.unwrap()
}

async fn text(answer: Response<Incoming>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn get(proxy: &Proxy, path: &str) -> (u16, String) {
    let request = Request::get(path).header("host", "localhost").body(Full::default()).unwrap();
    let answer = ask(proxy, request).await;
    (answer.status().as_u16(), text(answer).await)
}

#[tokio::test]
async fn by_default_the_path_says_keyspace_and_key() {
    let World { nodes, proxy, _coordinator, _router } = world(vec![Rule::default()], 1).await;
    assert_eq!(get(&proxy, "/ks/apple/pie?x=1").await, (200, "a GET /ks/apple/pie?x=1 ".into()));
    assert_eq!(get(&proxy, "/ks/zebra").await.1, "b GET /ks/zebra ");
    // The key is "/a" with the slash decoded, and so below "m"; the path is passed on as it came.
    assert_eq!(get(&proxy, "/ks/%2Fa").await.1, "a GET /ks/%2Fa ");
    assert_eq!(get(&proxy, "/ks/%7Ea").await.1, "b GET /ks/%7Ea ", "a tilde sorts above m");
    let (status, said) = get(&proxy, "/other/x").await;
    assert_eq!(status, 404);
    assert!(said.contains("unknown_keyspace") && said.contains("known are ks"), "{said}");
    for path in ["/ks", "/ks/"] {
        let (status, said) = get(&proxy, path).await;
        assert!(status == 400 && said.contains("the rest of the path"), "{status} {said}");
    }
    let long = format!("/ks/{}", "k".repeat(4_097));
    let (status, said) = get(&proxy, &long).await;
    assert!(status == 400 && said.contains("4096"), "{status} {said}");
    assert_eq!(get(&proxy, &long[..long.len() - 1]).await.0, 200);
    nodes[0].does(&[Does::Says(404)]);
    assert_eq!(get(&proxy, "/ks/apple").await.0, 404, "the service's own");
}

#[tokio::test]
async fn a_call_for_a_coordinator_is_told_that_this_is_a_router() {
    let World { proxy, _coordinator, _router, .. } = world(vec![Rule::default()], 1).await;
    let request = Request::post("/partage.v1.Worker/Connect").header("host", "localhost");
    let request = request.header("content-type", "application/grpc").body(Full::default()).unwrap();
    let answer = ask(&proxy, request).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &"9".parse().unwrap()));
    let said = answer.headers()["grpc-message"].to_str().unwrap();
    assert!(said.contains("router") && said.contains("--join"), "{said}");
    let put = Request::put("/partage.v1.x/key").header("host", "localhost").body(Full::default()).unwrap();
    assert_eq!(ask(&proxy, put).await.status().as_u16(), 404, "a keyspace may have such a name");
    let (status, said) = get(&proxy, "/v1/status").await;
    assert!(status == 404 && said.contains("the API (/v1/…) is at the coordinator"), "{status} {said}");
}

/// The keys of a request for several are in memory until it is answered, however often it is tried: they count.
#[tokio::test]
async fn z3_the_keys_of_a_request_for_several_count_against_the_budget() {
    let node = Node::start("a").await;
    let mut maps = Maps::new("ks", &[("", &["a"])]);
    maps.kind = KeyspaceKind::Dataset;
    maps.nodes = vec![node.at()];
    let coordinator = Coordinator::start(maps).await;
    let router = router(&coordinator, CallOptions::default()).await;
    let door = partage_door::Settings {
        budget: Arc::new(partage_door::Budget::new(256 << 10, None)),
        ..Default::default()
    };
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 1, door, ..Config::default() };
    let proxy = serve(&router, config).await.unwrap();
    let keys = async |bytes: usize| {
        let request = Request::post("/ks").header("host", "localhost");
        let answer = ask(&proxy, request.body(Full::from(vec![b'k'; bytes])).unwrap()).await;
        (answer.status().as_u16(), text(answer).await)
    };
    assert_eq!(keys(100 << 10).await.0, 200);
    let (status, said) = keys(512 << 10).await;
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("bytes_in_flight_per_address_mib"), "{said}");
    assert_eq!(keys(100 << 10).await.0, 200, "it is given back");
}

#[tokio::test]
async fn rules_find_keys_in_headers_segments_and_parameters() {
    let name = || KeyspaceFrom::Name("ks".parse().unwrap());
    let header = HeaderName::from_static("x-user");
    let under = |prefix: &str, rule: Rule| Rule { prefix: prefix.to_owned(), ..rule };
    let rules = vec![
        under("/users/", rule(name(), KeyFrom::PathSegment(2))),
        under("/search", rule(name(), KeyFrom::Query("for".into()))),
        under("/tail/", rule(name(), KeyFrom::Rest)),
        under("/any", rule(KeyspaceFrom::Query("in".into()), KeyFrom::Header(header.clone()))),
    ];
    let World { proxy, nodes: _nodes, _coordinator, _router } = world(rules, 1).await;
    let cases = [
        ("/users/zoe/items", "b "),
        ("/search?a=b&for=zo%65+x", "b "),
        ("/search?for=amy", "a "),
        ("/tail/zebra/x", "b "),
    ];
    for (path, by) in cases {
        let (status, said) = get(&proxy, path).await;
        assert!(status == 200 && said.starts_with(by), "{path}: {status} {said}");
    }
    let with = Request::get("/any?in=ks")
        .header("host", "localhost")
        .header(header, "zoe")
        .body(Full::default())
        .unwrap();
    assert!(text(ask(&proxy, with).await).await.starts_with("b "));
    let (status, said) = get(&proxy, "/any?in=ks").await;
    assert!(status == 400 && said.contains("the header x-user"), "{status} {said}");
    let (status, said) = get(&proxy, "/nowhere").await;
    assert!(status == 404 && said.contains("no_rule"), "{status} {said}");
}

#[tokio::test]
async fn headers_are_those_of_a_good_proxy() {
    let World { nodes, proxy, _coordinator, _router } = world(vec![Rule::default()], 1).await;
    let request = Request::post("/ks/apple")
        .header("host", "localhost")
        .header("connection", "keep-alive, x-mine")
        .header("x-mine", "1")
        .header("te", "trailers")
        .header("x-yours", "2")
        .header("x-forwarded-for", "10.1.1.1")
        .body(Full::from("body"))
        .unwrap();
    let answer = ask(&proxy, request).await;
    assert_eq!(
        (&answer.headers()["x-kept"], &answer.headers()["partage-node"]),
        (&"1".parse().unwrap(), &"a".parse().unwrap())
    );
    assert!(!answer.headers().contains_key("keep-alive"));
    let saw = &nodes[0].saw()[0];
    for gone in ["connection", "x-mine", "te"] {
        assert!(!saw.headers.contains_key(gone), "{gone}");
    }
    let kept = ["x-forwarded-host", "x-yours", "x-forwarded-for", "content-length"]
        .map(|name| saw.headers[name].to_str().unwrap());
    assert_eq!(kept, ["localhost", "2", "10.1.1.1, 127.0.0.1", "4"]);
    assert_eq!(saw.body, "body");
}

#[tokio::test]
async fn bodies_stream_both_ways_and_http2_is_spoken() {
    let World { nodes, proxy, _coordinator, _router } = world(vec![Rule::default()], 1).await;
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (out, chunks) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    tokio::spawn(async move {
        for _ in 0..64 {
            out.send(Ok(Frame::data(Bytes::from(vec![b'x'; 16 << 10])))).await.unwrap();
        }
    });
    let body = StreamBody::new(ReceiverStream::new(chunks));
    let uri = format!("http://{}/ks/zebra", proxy.address());
    let answer = send.send_request(Request::put(uri).body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let said = text(answer).await;
    assert_eq!(said.len(), "b PUT /ks/zebra ".len() + (1 << 20));
    let saw = &nodes[1].saw()[0];
    assert_eq!(saw.headers["x-forwarded-host"], proxy.address().to_string().as_str());
    assert_eq!(saw.body.len(), 1 << 20);
}

#[tokio::test]
async fn failures_are_json_with_the_right_status() {
    let World { mut nodes, proxy, _coordinator, _router } = world(vec![Rule::default()], 1).await;
    let post =
        |path: &'static str| Request::post(path).header("host", "localhost").body(Full::from("x")).unwrap();
    nodes[0].does(&[Does::Breaks]);
    let answer = ask(&proxy, post("/ks/apple")).await;
    assert_eq!(answer.status(), 502);
    assert!(text(answer).await.contains("\"broken\""));
    nodes[0].does(&[Does::Waits(Duration::from_secs(30))]);
    let answer = ask(&proxy, post("/ks/apple")).await;
    assert_eq!(answer.status(), 504);
    assert!(text(answer).await.contains("\"timeout\""));
    nodes[0].kill().await;
    let answer = ask(&proxy, post("/ks/apple")).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    let said = text(answer).await;
    assert!(said.contains("no connection opened") && said.contains("node a"), "{said}");
}

#[tokio::test]
async fn it_says_how_it_is() {
    let World { nodes, proxy, _coordinator, _router } = world(vec![Rule::default()], 2).await;
    nodes[1].does(&[Does::Says(404)]);
    for path in ["/ks/a", "/ks/b", "/ks/c", "/ks/z", "/nothing/a"] {
        get(&proxy, path).await;
    }
    let (status, health) = get(&proxy, "/partage/health").await;
    assert!(status == 200 && health.contains("\"connected\":true"), "{health}");
    let (_, metrics) = get(&proxy, "/partage/metrics").await;
    for line in [
        "partage_router_requests_total{outcome=\"good\"} 3",
        "partage_router_requests_total{outcome=\"client_error\"} 1",
        "partage_router_requests_total{outcome=\"refused\"} 1",
        "partage_router_retries_total 0",
        "partage_router_map_generation{keyspace=\"ks\"} 1",
        "partage_router_connected 1",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let (_, routes) = get(&proxy, "/partage/routes").await;
    let routes: serde_json::Value = serde_json::from_str(&routes).unwrap();
    assert_eq!(routes["keyspaces"][0]["shards"][1]["replicas"][0]["node"], "b");
    assert_eq!(routes["nodes"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn it_ends_when_requests_under_way_have() {
    let World { nodes, proxy, _coordinator, _router } = world(vec![Rule::default()], 2).await;
    nodes[0].does(&[Does::Waits(Duration::from_millis(300))]);
    let address = proxy.address();
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/ks/a").header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
    let under_way = tokio::spawn(async move { send.send_request(request).await.unwrap().status() });
    eventually("it is under way", || nodes[0].saw().len() == 1).await;
    proxy.stop().await;
    assert_eq!(under_way.await.unwrap(), 200);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let router = Router::connect(vec![], Options::default()).await;
    for threads in [1, 2] {
        let config = Config { listen, threads, ..Config::default() };
        let error = serve(&router, config).await.unwrap_err().to_string();
        assert!(error.contains(&listen.to_string()), "{error}");
    }
}

#[tokio::test]
async fn a_write_to_a_table_that_may_be_done_has_the_status_that_nodes_give_it() {
    let node = Node::start("a").await;
    let mut maps = Maps::new("ks", &[("", &["a"])]);
    maps.kind = KeyspaceKind::Table;
    maps.nodes = vec![node.at()];
    let coordinator = Coordinator::start(maps).await;
    let router = router(&coordinator, CallOptions::default()).await;
    let config = Config { listen: ([127, 0, 0, 1], 0).into(), threads: 1, ..Config::default() };
    let proxy = serve(&router, config).await.unwrap();
    let put = |name: Option<&str>| {
        let request = Request::put("/ks/apple").header("host", "localhost");
        let named = name.into_iter().fold(request, |request, name| request.header("idempotency-key", name));
        named.body(Full::<Bytes>::from("x")).unwrap()
    };
    node.does(&[Does::Breaks, Does::Answers]);
    let answer = ask(&proxy, put(None)).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    let said = text(answer).await;
    assert!(said.contains("unknown_outcome") && said.contains("idempotency-key"), "{said}");
    node.does(&[Does::Breaks, Does::Answers]);
    assert_eq!(ask(&proxy, put(Some("order-17"))).await.status(), StatusCode::OK);
    assert_eq!(node.saw().len(), 3);
}
