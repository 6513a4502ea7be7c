//! A coordinator and `kv` nodes as processes, on addresses and in a folder of their own.

use axum::body::Body;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use partage_coordinator::{Backing, Config, Coordinator};
use partage_core::base::settings::Settings;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long nodes may disagree about which of them owns a key.
const MISDIRECTED: Duration = Duration::from_secs(5);

/// Where the process of `coordinator_process` listens, and where its state is.
const LISTEN: &str = "KV_TEST_LISTEN";
const STATE: &str = "KV_TEST_STATE";

pub async fn run_coordinator() {
    let (Ok(listen), Ok(state)) = (std::env::var(LISTEN), std::env::var(STATE)) else { return };
    let settings = Settings {
        heartbeat_ms: 200,
        lease_ms: 2_500,
        dead_after_ms: 3_000,
        check_back_ms: 1_000,
        settle_ms: 500,
        ..Settings::default()
    };
    let backing = Backing::Directory(PathBuf::from(state));
    let config = Config { backing, settings, ..Config::new(listen.parse().unwrap()) };
    let _coordinator = Coordinator::start(config).await.unwrap();
    std::future::pending::<()>().await;
}

pub fn fixed(shards: u32) -> Value {
    json!({ "type": "fixed", "hash": "xxh3-64", "shards": shards })
}

/// A process with its log, killed with its handle.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Process {
        let file = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Process { child: command.spawn().unwrap(), log: log.to_owned() }
    }

    pub fn signal(&mut self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
        if name == "KILL" {
            self.child.wait().unwrap();
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Node {
    process: Process,
    port: u16,
    flags: Vec<String>,
}

#[derive(Clone)]
struct Http(Client<HttpConnector, Body>);

impl Http {
    async fn send(&self, method: Method, uri: &str, body: String) -> Result<(StatusCode, String), String> {
        let request = Request::builder().method(method).uri(uri).header("content-type", "application/json");
        let request = request.body(Body::from(body)).unwrap();
        let answer = timeout(Duration::from_secs(10), self.0.request(request)).await;
        let answer =
            answer.map_err(|_| format!("{uri}: no answer"))?.map_err(|error| format!("{uri}: {error}"))?;
        let status = answer.status();
        let body = answer.into_body().collect().await.map_err(|error| format!("{uri}: {error}"))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

pub struct TestCluster {
    port: u16,
    coordinator: Option<Process>,
    nodes: BTreeMap<String, Node>,
    http: Http,
    /// The last field, so that the folder goes after the processes that write into it.
    dir: TempDir,
}

/// A port that was free a moment ago, below those that the system gives to outgoing connections.
fn port() -> u16 {
    let mut ports = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    let low = |port: u16| 10_000 + port % 20_000;
    ports.find(|port| TcpListener::bind(("127.0.0.1", low(*port))).is_ok()).map(low).unwrap()
}

/// Clients that write until they are told to stop.
pub struct Writer {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<BTreeMap<String, u64>>>,
}

impl Writer {
    /// Stops the clients. Gives the value of each key that was acknowledged last.
    pub async fn acknowledged(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

impl TestCluster {
    /// A coordinator on a folder `state`.
    pub async fn start(nodes: &[&str]) -> TestCluster {
        let http = Http(Client::builder(TokioExecutor::new()).build_http());
        let dir = TempDir::new().unwrap();
        let mut test_cluster =
            TestCluster { port: port(), coordinator: None, nodes: BTreeMap::new(), http, dir };
        test_cluster.start_coordinator("state").await;
        for node in nodes {
            test_cluster.add(node, &[]).await;
        }
        test_cluster
    }

    pub async fn start_coordinator(&mut self, state: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "coordinator_process", "--ignored", "--nocapture"]);
        command.env(LISTEN, format!("127.0.0.1:{}", self.port)).env(STATE, self.dir.path().join(state));
        self.coordinator = Some(Process::start(command, &self.dir.path().join("coordinator.log")));
        let end = Instant::now() + Duration::from_secs(30);
        let uri = format!("http://127.0.0.1:{}/v1/status", self.port);
        while self.http.send(Method::GET, &uri, String::new()).await.is_err() {
            let log = self.coordinator.as_ref().unwrap().log();
            assert!(Instant::now() < end, "the coordinator does not answer: {log}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn kill_coordinator(&mut self) {
        self.coordinator.take().unwrap().signal("KILL");
    }

    /// A node; `--durable` without a folder gets one of its own.
    pub async fn add(&mut self, name: &str, flags: &[&str]) {
        let folder = self.dir.path().join(name).display().to_string();
        let flags = flags.iter().flat_map(|flag| match *flag {
            "--durable" => vec!["--durable".to_owned(), folder.clone()],
            other => vec![other.to_owned()],
        });
        let (port, flags) = (port(), flags.collect::<Vec<_>>());
        let process = self.run(name, port, &flags);
        self.nodes.insert(name.to_owned(), Node { process, port, flags });
        self.is_up(name).await;
    }

    /// Starts a killed node again, at its address.
    pub async fn restart(&mut self, name: &str) {
        let Node { port, flags, .. } = &self.nodes[name];
        let process = self.run(name, *port, flags);
        self.nodes.get_mut(name).unwrap().process = process;
    }

    fn run(&self, name: &str, port: u16, flags: &[String]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
        command.args(["--node", name, "--coordinator", &format!("127.0.0.1:{}", self.port)]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]).args(flags).env("NO_COLOR", "1");
        Process::start(command, &self.dir.path().join(format!("{name}.log")))
    }

    /// Until a node has registered so often, all its processes together: before that the coordinator may think of the
    /// former one.
    pub async fn registers(&mut self, name: &str, times: usize) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.node(name).log().matches("registered at").count() < times {
            assert!(Instant::now() < end, "{name} does not register: {}", self.node(name).log());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Where a durable node keeps its data.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn files(&self, name: &str, keyspace: &str) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.folder(name).join(keyspace)).unwrap();
        let mut files: Vec<_> = listed.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Damages every file of a node that is down, in turn in its first record, in its header, and by cutting it off.
    /// Returns how many.
    pub fn damage(&self, name: &str, keyspace: &str) -> usize {
        let files = self.files(name, keyspace);
        for (number, file) in files.iter().enumerate() {
            let mut bytes = std::fs::read(file).unwrap();
            match number % 3 {
                0 => bytes[100] ^= 1,
                1 => bytes[0] ^= 1,
                _ => bytes.clear(),
            }
            std::fs::write(file, bytes).unwrap();
            std::fs::write(file.with_extension("was_damaged"), "").unwrap();
        }
        files.len()
    }

    /// How many of them are still there.
    pub fn damaged(&self, name: &str, keyspace: &str) -> usize {
        let files = self.files(name, keyspace);
        let is_marked = |file: &&PathBuf| file.extension().is_some_and(|end| end == "was_damaged");
        files.iter().filter(is_marked).filter(|mark| mark.with_extension("log").exists()).count()
    }

    async fn is_up(&self, name: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let nodes = self.ask("/v1/nodes").await.1;
            let up =
                nodes["nodes"].as_array().unwrap().iter().any(|n| n["id"] == name && n["health"] == "up");
            if up {
                return;
            }
            assert!(Instant::now() < end, "{name} is not up: {nodes:#} {}", self.nodes[name].process.log());
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn node(&mut self, name: &str) -> &mut Process {
        &mut self.nodes.get_mut(name).unwrap().process
    }

    pub async fn ask(&self, path: &str) -> (u16, Value) {
        let uri = format!("http://127.0.0.1:{}{path}", self.port);
        let (status, body) = self.http.send(Method::GET, &uri, String::new()).await.unwrap();
        (status.as_u16(), serde_json::from_str(&body).unwrap())
    }

    pub async fn create(&self, keyspace: Value) {
        self.command(
            json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": { "type": "none" } }),
        )
        .await;
    }

    pub async fn command(&self, command: Value) {
        let uri = format!("http://127.0.0.1:{}/v1/commands", self.port);
        let (status, said) =
            self.http.send(Method::POST, &uri, json!({ "do": command }).to_string()).await.unwrap();
        assert!(status.is_success(), "{status}: {said}");
    }

    /// Until every shard is led by a replica that serves, and all replicas do.
    pub async fn serves(&self, keyspace: &str, shards: usize, within: Duration) {
        self.serves_from(1, keyspace, shards, within).await;
    }

    /// The same, with so many replicas of each shard at least: while a replica that was lost has no successor yet, those
    /// that are left may all serve.
    pub async fn serves_from(&self, least: usize, keyspace: &str, shards: usize, within: Duration) {
        let end = Instant::now() + within;
        loop {
            // A coordinator that has just started answers 503.
            let (code, found) = self.ask(&format!("/v1/keyspaces/{keyspace}/shards?limit=1000")).await;
            let serves = |replica: &Value| replica["phase"] == "serving" && replica["health"] == "up";
            let is_served = |shard: &Value| {
                let replicas = shard["replicas"].as_array().unwrap();
                replicas.len() >= least
                    && replicas.iter().any(|replica| replica["role"] == "leader")
                    && replicas.iter().all(serves)
            };
            let all = found["shards"].as_array().cloned().unwrap_or_default();
            let count = all.iter().filter(|shard| is_served(shard)).count();
            if code == 200 && count == shards {
                return;
            }
            if Instant::now() >= end {
                let bad: Vec<_> = all.iter().filter(|shard| !is_served(shard)).take(2).collect();
                let logs: Vec<_> = self.nodes.values().map(|node| last(&node.process.log())).collect();
                let status = self.ask("/v1/status").await.1;
                panic!("{count} of {shards} are served: {bad:#?} {status:#} {logs:#?}");
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn shards(&self, keyspace: &str) -> Vec<Value> {
        let (_, found) = self.ask(&format!("/v1/keyspaces/{keyspace}/shards?limit=1000")).await;
        found["shards"].as_array().cloned().unwrap_or_default()
    }

    /// Until a shard has been split or merged, and what it was is still there.
    pub async fn has_switched(&self, keyspace: &str, within: Duration) {
        let end = Instant::now() + within;
        let closes = |shard: &Value| shard["stage"].to_string().contains("closing");
        while !self.shards(keyspace).await.iter().any(closes) {
            assert!(Instant::now() < end, "{:#?}", self.ask("/v1/plans").await.1);
        }
    }

    /// Until nothing is under way. Returns how many shards there are: a split or merge that processes died in may have been
    /// given up.
    pub async fn settles(&self, keyspace: &str, within: Duration) -> usize {
        let end = Instant::now() + within;
        loop {
            let all = self.shards(keyspace).await;
            let plans = self.ask("/v1/plans").await.1;
            let rests = |plan: &Value| plan["status"] != "approved";
            let is_quiet = plans["plans"].as_array().is_some_and(|plans| plans.iter().all(rests));
            let serves = |shard: &Value| shard["stage"].to_string().contains("serving");
            if is_quiet && !all.is_empty() && all.iter().all(serves) {
                self.serves(keyspace, all.len(), end.saturating_duration_since(Instant::now())).await;
                return all.len();
            }
            assert!(Instant::now() < end, "{all:#?} {plans:#?}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn uris(&self, keyspace: &str, key: &str) -> Vec<String> {
        self.nodes
            .values()
            .map(|node| format!("http://127.0.0.1:{}/kv/{keyspace}/{key}", node.port))
            .collect()
    }

    pub async fn put(&self, keyspace: &str, key: &str, value: &str) -> Result<(), String> {
        let uri = &self.uris(keyspace, key)[0];
        match self.send(Method::PUT, uri, value).await? {
            (StatusCode::NO_CONTENT, _) => Ok(()),
            (status, said) => Err(format!("{uri}: {status}: {said}")),
        }
    }

    /// The value, if there is one.
    pub async fn get(&self, keyspace: &str, key: &str) -> Result<Option<String>, String> {
        let uri = &self.uris(keyspace, key)[0];
        match self.send(Method::GET, uri, "").await? {
            (StatusCode::OK, value) => Ok(Some(value)),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, said) => Err(format!("{uri}: {status}: {said}")),
        }
    }

    /// Sends again, as a router does, for as long as the answer is that the node does not own the key now (421): a lead may
    /// move at any time, and the nodes learn of it one after the other.
    async fn send(&self, method: Method, uri: &str, body: &str) -> Result<(StatusCode, String), String> {
        let end = Instant::now() + MISDIRECTED;
        loop {
            let answer = self.http.send(method.clone(), uri, body.to_owned()).await?;
            if answer.0 != StatusCode::MISDIRECTED_REQUEST || Instant::now() >= end {
                return Ok(answer);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Begins to write ever higher numbers by way of all nodes; returns when some were acknowledged.
    pub async fn write_meanwhile(&self, keyspace: &str, round: usize) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let task = |number: usize| {
            let keys: Vec<_> = (0..10).map(|key| format!("w{number}-{key}")).collect();
            let uris: Vec<_> =
                keys.iter().map(|key| self.uris(keyspace, key)[number % self.nodes.len()].clone()).collect();
            let (http, stop) = (self.http.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut acknowledged, mut value) = (BTreeMap::new(), round as u64 * 1_000_000);
                while !stop.load(Ordering::Relaxed) {
                    value += 1;
                    for (key, uri) in keys.iter().zip(&uris) {
                        let sent = http.send(Method::PUT, uri, value.to_string()).await;
                        if matches!(sent, Ok((StatusCode::NO_CONTENT, _))) {
                            acknowledged.insert(key.clone(), value);
                        }
                    }
                }
                acknowledged
            })
        };
        let tasks = (0..6).map(task).collect();
        sleep(Duration::from_millis(1_000)).await;
        Writer { stop, tasks }
    }
}

fn last(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
