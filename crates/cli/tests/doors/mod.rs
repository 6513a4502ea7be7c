//! A coordinator in this process, with its three doors as their users see them.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_coordinator::{Config, Coordinator};
use partage_core::base::settings::Settings;
use partage_wire::proto::admin_client::AdminClient;
use partage_wire::proto::command_request::Command as Rpc;
use partage_wire::proto::worker_client::WorkerClient;
use partage_wire::proto::{self, from_worker, to_worker};
use serde_json::{Value, json};
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::Status;
use tonic::transport::Channel;
use tonic_types::StatusExt;

/// What an error says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub kind: String,
    pub message: String,
    pub help: Option<String>,
}

/// What an error of gRPC says, in the words of the others.
pub fn word_of(status: Status) -> Told {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("{status:?} has no details"));
    assert_eq!(info.domain, "partage");
    let help = info.metadata.get("help").cloned();
    Told { kind: info.reason, message: status.message().to_owned(), help }
}

/// A node that sends a heartbeat when the test asks for one.
pub struct Taker {
    pub listener: TcpListener,
    welcome: Value,
    sequence: u64,
}

pub struct Doors {
    coordinator: Coordinator,
    client: Client<HttpConnector, Full<Bytes>>,
    pub admin: AdminClient<Channel>,
    worker: WorkerClient<Channel>,
    /// The incarnation that node `a` has registered with.
    pub incarnation: u64,
    /// The token of that incarnation, which its heartbeats carry.
    token: String,
}

impl Doors {
    /// With node `a`, keyspace `kv` cut at "g" and "n", and keyspace `parts` with the partition `north`. Both are in
    /// mode manual, so nothing changes by itself.
    pub async fn open() -> Doors {
        // Node `a` sends no heartbeats, and is not to be found silent however long a test takes.
        let settings = Settings {
            heartbeat_ms: 200_000,
            lease_ms: 600_000,
            dead_after_ms: 600_000,
            ..Settings::default()
        };
        let config = Config { settings, ..Config::new("127.0.0.1:0".parse().unwrap()) };
        let coordinator = Coordinator::start(config).await.unwrap();
        let channel = Channel::from_shared(format!("http://{}", coordinator.address())).unwrap();
        let channel = channel.connect().await.unwrap();
        let mut doors = Doors {
            coordinator,
            client: Client::builder(TokioExecutor::new()).build_http(),
            admin: AdminClient::new(channel.clone()),
            worker: WorkerClient::new(channel),
            incarnation: 0,
            token: String::new(),
        };
        let node = json!({ "id": "a", "address": "a.invalid:80" });
        let welcome = doors.post("/v1/worker/register", &node).await.unwrap();
        doors.incarnation = welcome["incarnation"].as_u64().unwrap();
        doors.token = welcome["token"].as_str().unwrap().to_owned();
        let create = |name: &str, sharding: Value, presplit: Value| {
            let keyspace = json!({ "name": name, "sharding": sharding, "mode": "manual" });
            json!({ "command": "create_keyspace", "keyspace": keyspace, "presplit": presplit })
        };
        let points = json!({ "type": "points", "keys": ["g", "n"] });
        let names = json!({ "type": "names", "names": ["north"] });
        doors.command(&create("kv", json!({ "type": "key_range" }), points), false).await.unwrap();
        doors.command(&create("parts", json!({ "type": "named" }), names), false).await.unwrap();
        doors
    }

    /// One more node, or node `a` again, in that zone.
    pub async fn join(&self, id: &str, zone: &str) {
        let node = json!({ "id": id, "address": format!("{id}.invalid:80"), "zone": zone });
        self.post("/v1/worker/register", &node).await.unwrap();
    }

    /// Node `w`, which answers at its address and beats until it is given a replica of `keyspace`.
    pub async fn takes_one_of(&self, keyspace: &str) -> Taker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let node = json!({ "id": "w", "address": address });
        let welcome = self.post("/v1/worker/register", &node).await.unwrap();
        let mut taker = Taker { listener, welcome, sequence: 0 };
        let shards = format!("/v1/keyspaces/{keyspace}/shards");
        loop {
            self.beat_of(&mut taker, 0).await;
            if self.get(&shards).await.unwrap()["shards"][0]["replicas"] != json!([]) {
                return taker;
            }
            assert!(taker.sequence < 1_000, "it is given nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A beat of a node that has taken in that version of its orders. Gives what is ordered now.
    pub async fn beat_of(&self, taker: &mut Taker, applied: u64) -> Value {
        taker.sequence += 1;
        let beat = json!({
            "node": "w", "incarnation": taker.welcome["incarnation"], "token": taker.welcome["token"],
            "sequence": taker.sequence, "sent_at_ms": taker.sequence, "applied": applied,
        });
        self.post("/v1/worker/heartbeat?wait_ms=0", &beat).await.unwrap()
    }

    /// The address on which the coordinator listens.
    pub fn address(&self) -> String {
        self.coordinator.address().to_string()
    }

    /// The durable record of the coordinator, as `/v1/dump` prints it.
    pub async fn record(&self) -> Value {
        self.get("/v1/dump").await.unwrap()
    }

    async fn ask(&self, method: &str, path: &str, body: String) -> Result<Value, Told> {
        let request = hyper::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.coordinator.address()))
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap();
        let answer = self.client.request(request).await.unwrap();
        let is_good = answer.status().is_success();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if is_good {
            return Ok(body);
        }
        let text = |field: &str| {
            body["error"][field].as_str().unwrap_or_else(|| panic!("{path}: {body}")).to_owned()
        };
        Err(Told { kind: text("kind"), message: text("message"), help: Some(text("help")) })
    }

    pub async fn get(&self, path: &str) -> Result<Value, Told> {
        self.ask("GET", path, String::new()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Told> {
        self.ask("POST", path, body.to_string()).await
    }

    /// A command over HTTP.
    pub async fn command(&self, command: &Value, dry_run: bool) -> Result<Value, Told> {
        self.post("/v1/commands", &json!({ "do": command, "dry_run": dry_run })).await
    }

    /// A command over gRPC.
    pub async fn call(&mut self, command: Rpc, dry_run: bool) -> Result<proto::CommandAnswer, Told> {
        let request = proto::CommandRequest { dry_run, command: Some(command) };
        self.admin.command(request).await.map(tonic::Response::into_inner).map_err(word_of)
    }

    /// What a command line says for people, on both outputs, the second one last.
    pub fn text(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_partage"))
            .args(arguments)
            .env("PARTAGE_COORDINATOR", self.coordinator.address().to_string())
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// A command line: its exit code, and what it says when it does not end well.
    pub fn shell(&self, arguments: &[&str]) -> (i32, Option<Told>) {
        let address = self.coordinator.address().to_string();
        let output = Command::new(env!("CARGO_BIN_EXE_partage"))
            .arg("--json")
            .args(arguments)
            .env("PARTAGE_COORDINATOR", address)
            .output()
            .unwrap();
        let code = output.status.code().unwrap();
        if code == 0 {
            return (code, None);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = said.lines().rev().find(|line| line.starts_with('{'));
        let form: Value =
            serde_json::from_str(last.unwrap_or_else(|| panic!("{arguments:?}: {said}"))).unwrap();
        let text = |field: &str| form["error"][field].as_str().map(str::to_owned);
        let (kind, message) = (text("kind").unwrap_or_default(), text("message").unwrap());
        (code, Some(Told { kind, message, help: text("help") }))
    }

    async fn attend(&mut self, messages: Vec<from_worker::Message>) -> Vec<to_worker::Message> {
        let count = messages.len();
        let messages = messages.into_iter().map(|message| proto::FromWorker { message: Some(message) });
        let stream = self.worker.attend(tokio_stream::iter(messages.collect::<Vec<_>>())).await.unwrap();
        let mut stream = stream.into_inner();
        let mut answers = Vec::new();
        while answers.len() < count {
            answers.push(stream.message().await.unwrap().unwrap().message.unwrap());
        }
        answers
    }

    /// A registration over gRPC.
    pub async fn register(&mut self, spec: proto::NodeSpec) -> Result<(), Told> {
        let register = proto::Register { spec: Some(spec), ..Default::default() };
        let answers = self.attend(vec![from_worker::Message::Register(register)]).await;
        refused(answers.last()).map_or(Ok(()), Err)
    }

    /// What the coordinator answers on a stream on which another process pretends to be node `a`: with these registrations
    /// before, and then a heartbeat and a goodbye.
    pub async fn forged(&mut self, register: Option<proto::Register>) -> Vec<Option<Told>> {
        let (node, incarnation) = ("a".to_owned(), self.incarnation);
        let beat = proto::Beat { node: node.clone(), incarnation, sequence: 1, ..Default::default() };
        let mut messages: Vec<_> = register.into_iter().map(from_worker::Message::Register).collect();
        messages.push(from_worker::Message::Beat(beat));
        messages.push(from_worker::Message::Leave(proto::Leave { node, incarnation }));
        self.attend(messages).await.iter().map(|answer| refused(Some(answer))).collect()
    }

    /// A beat of node `a` over gRPC that reports this load.
    pub async fn report(&mut self, requests_per_s: f64) -> Told {
        let replica = proto::ReplicaKey { keyspace: "kv".into(), shard: 1, placement: 1 };
        let load = proto::Load { requests_per_s, ..Default::default() };
        let report = proto::Report {
            replica: Some(replica),
            phase: proto::PhaseKind::Serving.into(),
            epoch: 1,
            load: Some(load),
            ..Default::default()
        };
        let beat = proto::Beat {
            node: "a".into(),
            incarnation: self.incarnation,
            sequence: 1,
            reports: vec![report],
            ..Default::default()
        };
        // A beat counts on the stream on which its incarnation has registered.
        let spec = proto::NodeSpec {
            id: "a".into(),
            address: "a.invalid:80".into(),
            capacity: Some(1.0),
            ..Default::default()
        };
        let (incarnation, token) = (self.incarnation, self.token.clone());
        let register = proto::Register { spec: Some(spec), incarnation, token, ..Default::default() };
        let messages = vec![from_worker::Message::Register(register), from_worker::Message::Beat(beat)];
        let answers = self.attend(messages).await;
        refused(answers.last()).unwrap()
    }

    /// The same beat in JSON.
    pub fn beat(&self, requests_per_s: f64) -> Value {
        let replica = json!({ "keyspace": "kv", "shard": 1, "placement": 1 });
        let load = json!({ "requests_per_s": requests_per_s });
        json!({
            "node": "a", "incarnation": self.incarnation, "token": self.token, "sequence": 1, "sent_at_ms": 1,
            "reports": [{ "replica": replica, "phase": "serving", "epoch": 1, "load": load }],
        })
    }
}

fn refused(answer: Option<&to_worker::Message>) -> Option<Told> {
    match answer {
        Some(to_worker::Message::Refused(refused)) => {
            Some(Told { kind: refused.kind.clone(), message: refused.message.clone(), help: None })
        }
        _ => None,
    }
}
