//! Real nodes at a real coordinator, over HTTP: what is written is there, through moves, splits, merges,
//! drains and deaths.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use partage_coordinator::{Config as CoordinatorConfig, Coordinator};
use partage_core::base::settings::Settings;
use partage_kv::{Config, Node, Seed};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

type Http = HttpClient<HttpConnector, Body>;

/// A client as simple as can be: asks some node, and follows what a node that has not got the key says.
#[derive(Clone)]
struct Client {
    http: Http,
    addresses: Arc<Mutex<Vec<String>>>,
}

struct Said {
    status: StatusCode,
    headers: http::HeaderMap,
    body: String,
}

impl Client {
    async fn once(&self, method: &Method, address: &str, path: &str, value: &str) -> Result<Said, String> {
        let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        self.tell(address, request.body(Body::from(value.to_owned())).unwrap()).await
    }

    /// Asks that node alone: it is not to send the request on.
    async fn ask_only(&self, address: &str, path: &str) -> Said {
        let request = Request::get(format!("http://{address}{path}")).header("partage-hop", "1");
        self.tell(address, request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn tell(&self, address: &str, request: Request<Body>) -> Result<Said, String> {
        let answer = self.http.request(request).await.map_err(|error| format!("{address}: {error:?}"))?;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.map_err(|error| format!("{address}: {error:?}"))?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Said { status: parts.status, headers: parts.headers, body })
    }

    async fn send(&self, method: Method, first: usize, path: &str, value: &str) -> Result<Said, String> {
        let addresses = self.addresses.lock().unwrap().clone();
        let mut hint = None;
        for turn in 0..200 {
            let next = addresses[(first + turn) % addresses.len()].clone();
            let said = self.once(&method, &hint.take().unwrap_or(next), path, value).await?;
            if said.status != StatusCode::MISDIRECTED_REQUEST {
                return Ok(said);
            }
            let owner = said.headers.get("partage-owner-address");
            hint = owner.map(|address| address.to_str().unwrap().to_owned());
            if turn >= addresses.len() {
                sleep(Duration::from_millis(5)).await;
            }
        }
        Err(format!("nobody knows who has {path}"))
    }
}

struct Cluster {
    coordinator: Coordinator,
    nodes: BTreeMap<String, Node>,
    client: Client,
}

impl Cluster {
    async fn start(nodes: &[&str], seed: Option<Seed>) -> Cluster {
        let settings = Settings {
            heartbeat_ms: 100,
            lease_ms: 800,
            dead_after_ms: 1_200,
            settle_ms: 300,
            check_back_ms: 200,
            ..Settings::default()
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let coordinator =
            Coordinator::start(CoordinatorConfig { settings, ..CoordinatorConfig::new(listen) })
                .await
                .unwrap();
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        let client = Client { http, addresses: Arc::default() };
        let mut cluster = Cluster { coordinator, nodes: BTreeMap::new(), client };
        for name in nodes {
            cluster.join(name, seed.clone()).await;
        }
        cluster
    }

    async fn join(&mut self, name: &str, seed: Option<Seed>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let coordinator = self.coordinator.address().to_string();
        let config = Config { seed, ..Config::new(name, coordinator, listener) };
        let node = Node::start(config).await.unwrap();
        self.client.addresses.lock().unwrap().push(node.address().to_string());
        self.nodes.insert(name.to_owned(), node);
    }

    /// The client asks this node no more, unless another node says that it has a key.
    fn forget(&mut self, name: &str) -> Node {
        let node = self.nodes.remove(name).unwrap();
        let address = node.address().to_string();
        self.client.addresses.lock().unwrap().retain(|known| *known != address);
        node
    }

    async fn command(&self, command: Value) {
        let body = Body::from(json!({ "do": command }).to_string());
        let uri = format!("http://{}/v1/commands", self.coordinator.address());
        let request = Request::post(uri).header("content-type", "application/json").body(body).unwrap();
        let answer = self.client.http.request(request).await.unwrap();
        let status = answer.status();
        let said = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(status.is_success(), "{command}: {status}: {}", String::from_utf8_lossy(&said));
    }

    async fn ask(&self, path: &str) -> Value {
        let uri = format!("http://{}{path}", self.coordinator.address()).parse().unwrap();
        let body = self.client.http.get(uri).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    async fn create(&self, sharding: Value, presplit: Value, replicas: u32) {
        let keyspace = json!({ "name": "users", "sharding": sharding, "replicas": replicas });
        self.command(json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": presplit }))
            .await;
    }

    async fn get(&self, path: &str) -> Said {
        self.client.send(Method::GET, 0, path, "").await.unwrap()
    }

    async fn put(&self, path: &str, value: &str) -> StatusCode {
        self.client.send(Method::PUT, 0, path, value).await.unwrap().status
    }

    /// What the workers hold, as they say themselves: node, shard, phase.
    fn held(&self) -> Vec<(String, u64, String)> {
        let of = |(name, node): (&String, &Node)| {
            let replicas = node.worker().replicas().into_iter();
            let name = name.clone();
            replicas
                .map(move |r| (name.clone(), r.assignment.shard().0, format!("{:?}", r.phase)))
                .collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    /// Until the workers hold as many replicas, and all serve.
    async fn settled(&self, replicas: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let held = self.held();
            if held.len() == replicas && held.iter().all(|(.., phase)| phase == "Serving") {
                return;
            }
            if Instant::now() >= end {
                let map = self.ask("/v1/keyspaces/users/shards").await;
                panic!("not settled at {replicas} replicas: {held:?}, {map:#}");
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn fixed(shards: u32) -> Value {
    json!({ "type": "fixed", "hash": "xxh3-64", "shards": shards })
}

/// Writers and readers that note what was acknowledged and what failed.
struct Crowd {
    stop: Arc<AtomicBool>,
    failures: Arc<Mutex<Vec<String>>>,
    done: Arc<AtomicU64>,
    slowest_ms: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<(String, u64)>>,
}

impl Crowd {
    /// Each writes ever higher numbers to a key of its own, by way of any node, and reads them back.
    fn gather(client: &Client, people: usize) -> Crowd {
        let mut crowd = Crowd {
            stop: Arc::default(),
            failures: Arc::default(),
            done: Arc::default(),
            slowest_ms: Arc::default(),
            tasks: Vec::new(),
        };
        for person in 0..people {
            let client = client.clone();
            let (stop, failures) = (crowd.stop.clone(), crowd.failures.clone());
            let (done, slowest) = (crowd.done.clone(), crowd.slowest_ms.clone());
            crowd.tasks.push(tokio::spawn(async move {
                let (path, mut number) = (format!("/kv/users/person{person}"), 0u64);
                let fail = |why: String| failures.lock().unwrap().push(why);
                while !stop.load(Ordering::Relaxed) {
                    let (first, value) = (person + number as usize, (number + 1).to_string());
                    let begun = Instant::now();
                    match client.send(Method::PUT, first, &path, &value).await {
                        Ok(said) if said.status == StatusCode::NO_CONTENT => number += 1,
                        Ok(said) => fail(format!("put: {} {:?} {}", said.status, said.headers, said.body)),
                        Err(error) => fail(format!("put: {error}")),
                    }
                    slowest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
                    match client.send(Method::GET, first, &path, "").await {
                        Ok(said) if said.status == StatusCode::OK && said.body == number.to_string() => {}
                        Ok(said) => fail(format!("get: {} {}, not {number}", said.status, said.body)),
                        Err(error) => fail(format!("get: {error}")),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(1)).await;
                }
                (path, number)
            }));
        }
        crowd
    }

    async fn works(&self, more: u64) {
        let (before, end) = (self.done.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(20));
        while self.done.load(Ordering::Relaxed) < before + more {
            assert!(Instant::now() < end, "the crowd does not get on");
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn go_home(self) -> (Vec<(String, u64)>, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut written = Vec::new();
        for task in self.tasks {
            written.push(task.await.unwrap());
        }
        let failures = self.failures.lock().unwrap().clone();
        (written, failures)
    }
}

/// By the owner, and by way of another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_that_no_key_has_is_refused_and_the_others_are_named() {
    let cluster = Cluster::start(&["n1", "n2"], None).await;
    cluster.create(fixed(1), json!({ "type": "none" }), 1).await;
    cluster.settled(1).await;
    for node in cluster.nodes.values() {
        let address = node.address().to_string();
        for method in [Method::POST, Method::PATCH, Method::OPTIONS] {
            let said = cluster.client.once(&method, &address, "/kv/users/alice", "v").await.unwrap();
            assert_eq!(said.status, StatusCode::METHOD_NOT_ALLOWED, "{method}: {}", said.body);
            assert_eq!(said.headers["allow"], "GET, HEAD, PUT, DELETE");
            assert_eq!(said.headers["content-type"], "application/json");
            let body: Value = serde_json::from_str(&said.body).unwrap();
            let help = "use GET, PUT or DELETE";
            let message = format!("{method} is not for a key: {help}");
            assert_eq!(body, json!({ "error": { "kind": "malformed", "message": message, "help": help } }));
        }
    }
    assert_eq!(cluster.get("/kv/users/alice").await.status, StatusCode::NOT_FOUND, "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d4_a_node_answers_only_for_what_it_has_and_says_who_it_is() {
    let cluster = Cluster::start(&["n1", "n2", "n3"], None).await;
    cluster.create(fixed(12), json!({ "type": "none" }), 1).await;
    cluster.settled(12).await;
    assert_eq!(cluster.put("/kv/users/a%2Fb", "slash").await, StatusCode::NO_CONTENT);
    let mut answered = 0;
    for (name, node) in &cluster.nodes {
        let address = node.address().to_string();
        let said = cluster.client.ask_only(&address, "/kv/users/a%2Fb").await;
        assert_eq!(said.headers["partage-node"].to_str().unwrap(), name);
        if said.status == StatusCode::OK {
            assert_eq!(said.body, "slash");
            assert!(said.headers["partage-epoch"].to_str().unwrap().parse::<u64>().unwrap() > 0);
            answered += 1;
        } else {
            assert_eq!(said.status, StatusCode::MISDIRECTED_REQUEST);
            assert!(said.headers["partage-generation"].to_str().unwrap().parse::<u64>().unwrap() > 0);
        }
    }
    assert_eq!(answered, 1);
    let address = cluster.nodes["n2"].address().to_string();
    for (path, status) in [
        ("/kv/nobody/k", StatusCode::MISDIRECTED_REQUEST),
        ("/kv/us%00ers/k", StatusCode::BAD_REQUEST),
        ("/kv", StatusCode::BAD_REQUEST),
        ("/partage/worker", StatusCode::OK),
    ] {
        let said = cluster.client.once(&Method::GET, &address, path, "").await.unwrap();
        assert_eq!(said.status, status, "{path}: {}", said.body);
    }
    assert_eq!(cluster.get("/kv/users/never").await.status, StatusCode::NOT_FOUND);
    let me = cluster.client.once(&Method::GET, &address, "/partage/worker", "").await.unwrap();
    let me: Value = serde_json::from_str(&me.body).unwrap();
    assert_eq!((me["node"].as_str(), me["health"].as_str()), (Some("n2"), Some("up")));
    assert!(me["incarnation"].as_u64().unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_d1_a_drain_and_a_leave_under_load_fail_no_request_and_lose_no_write() {
    let mut cluster = Cluster::start(&["n1", "n2", "n3"], None).await;
    cluster.create(fixed(12), json!({ "type": "none" }), 1).await;
    cluster.settled(12).await;
    let crowd = Crowd::gather(&cluster.client, 24);
    crowd.works(200).await;
    cluster.command(json!({ "command": "drain_node", "node": "n1", "reason": "test", "max_down": 1 })).await;
    let end = Instant::now() + Duration::from_secs(20);
    while cluster.held().iter().any(|(node, ..)| node == "n1") {
        assert!(Instant::now() < end, "not drained: {:?}", cluster.held());
        sleep(Duration::from_millis(20)).await;
    }
    cluster.command(json!({ "command": "undrain_node", "node": "n1" })).await;
    crowd.works(200).await;
    cluster.join("n4", None).await;
    crowd.works(200).await;
    cluster.forget("n2").leave(Duration::from_secs(20)).await.unwrap();
    crowd.works(200).await;
    let slowest = crowd.slowest_ms.load(Ordering::Relaxed);
    let (written, failures) = crowd.go_home().await;
    assert_eq!(failures, Vec::<String>::new());
    for (path, number) in written {
        assert_eq!(cluster.get(&path).await.body, number.to_string(), "{path}");
    }
    println!("slowest write: {slowest} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o8_d3_splits_and_merges_under_load_lose_nothing_and_bring_nothing_back() {
    let cluster = Cluster::start(&["n1", "n2"], None).await;
    cluster.create(json!({ "type": "key_range" }), json!({ "type": "none" }), 1).await;
    cluster.settled(1).await;
    assert_eq!(cluster.put("/kv/users/deleted", "x").await, StatusCode::NO_CONTENT);
    let deleted = cluster.client.send(Method::DELETE, 0, "/kv/users/deleted", "").await.unwrap();
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    let crowd = Crowd::gather(&cluster.client, 12);
    crowd.works(100).await;
    let shard = cluster.held()[0].1;
    let at = json!({ "type": "keys", "keys": ["person5"] });
    cluster.command(json!({ "command": "split_shard", "keyspace": "users", "shard": shard, "at": at })).await;
    cluster.settled(2).await;
    crowd.works(100).await;
    let mut ids: Vec<_> = cluster.held().into_iter().map(|(_, shard, _)| shard).collect();
    ids.sort_unstable();
    let merge = json!({ "command": "merge_shards", "keyspace": "users", "left": ids[0], "right": ids[1] });
    cluster.command(merge).await;
    cluster.settled(1).await;
    crowd.works(100).await;
    let (written, failures) = crowd.go_home().await;
    assert_eq!(failures, Vec::<String>::new());
    for (path, number) in written {
        assert_eq!(cluster.get(&path).await.body, number.to_string(), "{path}");
    }
    assert_eq!(cluster.get("/kv/users/deleted").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_is_replaced_by_its_followers_with_what_was_acknowledged() {
    let mut cluster = Cluster::start(&["n1", "n2", "n3"], None).await;
    cluster.create(fixed(6), json!({ "type": "none" }), 2).await;
    cluster.settled(12).await;
    for n in 0..50 {
        let (path, value) = (format!("/kv/users/k{n}"), format!("v{n}"));
        assert_eq!(cluster.client.send(Method::PUT, n, &path, &value).await.unwrap().status, 204);
    }
    cluster.forget("n1").kill().await;
    cluster.settled(12).await;
    for n in 0..50 {
        assert_eq!(cluster.get(&format!("/kv/users/k{n}")).await.body, format!("v{n}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_is_there_at_once_and_each_row_where_it_belongs() {
    let mut file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    for n in 0..500 {
        writeln!(file, "{}", json!({ "name": format!("u{n}"), "n": n })).unwrap();
    }
    let seed = Seed::from_json_lines("users", file.path(), "name").unwrap();
    assert_eq!(seed.len(), 500);
    let cluster = Cluster::start(&["n1", "n2"], Some(seed)).await;
    cluster.create(fixed(8), json!({ "type": "none" }), 1).await;
    cluster.settled(8).await;
    for n in (0..500).step_by(17) {
        let said = cluster.get(&format!("/users/u{n}")).await;
        assert_eq!(said.headers["content-type"], "application/json");
        let row: Value = serde_json::from_str(&said.body).unwrap();
        assert_eq!(row["n"], n);
    }
    writeln!(file, "{{\"other\": 1}}").unwrap();
    let error = Seed::from_json_lines("users", file.path(), "name").err().unwrap().to_string();
    assert!(error.contains("line 501") && error.contains("\"name\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn k19_a_client_that_knows_one_node_reaches_every_key_by_one_hop() {
    let mut cluster = Cluster::start(&["a", "b", "c"], None).await;
    cluster.create(fixed(2), json!({ "type": "none" }), 1).await;
    cluster.settled(2).await;
    let held = cluster.held();
    let has = |name: &str| held.iter().any(|(node, ..)| node == name);
    let idle = ["a", "b", "c"].into_iter().find(|name| !has(name)).expect("two shards on three nodes");
    let door = cluster.nodes[idle].address().to_string();
    let only = Client { addresses: Arc::new(Mutex::new(vec![door.clone()])), ..cluster.client.clone() };

    let mut owners = std::collections::BTreeSet::new();
    for n in 0..40 {
        let path = format!("/kv/users/k{n}");
        let put = only.once(&Method::PUT, &door, &path, &format!("v{n}")).await.unwrap();
        assert_eq!(put.status, StatusCode::NO_CONTENT, "{}", put.body);
        let got = only.once(&Method::GET, &door, &path, "").await.unwrap();
        assert_eq!((got.status, got.body), (StatusCode::OK, format!("v{n}")));
        let owner = got.headers["partage-proxied-to"].to_str().unwrap().to_owned();
        assert!(owner != idle && got.headers["partage-node"] == owner, "one hop, to who answers");
        owners.insert(owner);
    }
    assert_eq!(owners.len(), 2, "both shards were reached");

    // A node that gets a request that was sent on already does not send it on again.
    let refused = only.ask_only(&door, "/kv/users/k1").await;
    assert_eq!(refused.status, StatusCode::MISDIRECTED_REQUEST);
    assert!(refused.headers.contains_key("partage-owner-address"), "but it says who has the key");

    // An owner leaves: the same client, at the same door, reads everything all the same.
    let leaver = owners.into_iter().next().unwrap();
    cluster.forget(&leaver).leave(Duration::from_secs(20)).await.unwrap();
    for n in 0..40 {
        let said = only.send(Method::GET, 0, &format!("/kv/users/k{n}"), "").await.unwrap();
        assert_eq!((said.status, said.body), (StatusCode::OK, format!("v{n}")));
    }
}
