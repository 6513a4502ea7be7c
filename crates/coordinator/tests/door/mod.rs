//! A coordinator in this process, and its JSON doors as a client sees them.

#![allow(dead_code, reason = "each test file uses a part of it")]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_coordination::Error;
use partage_coordinator::{Backing, Config, Coordinator, StartError, StoreError};
use partage_core::base::settings::Settings;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Door {
    pub coordinator: Coordinator,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Door {
    pub async fn open() -> Door {
        Door::with(Settings { settle_ms: 100, ..Settings::default() }).await
    }

    pub async fn with(settings: Settings) -> Door {
        let config = Config { settings, ..Config::new("127.0.0.1:0".parse().unwrap()) };
        Door::serving(config).await
    }

    /// With its state in a directory, which a later one finds again. Waits for an address that somebody's outgoing
    /// connection has taken meanwhile.
    pub async fn on_disk(settings: Settings, dir: &Path, listen: &str) -> Door {
        let started = async {
            while TcpListener::bind(listen).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let listen = listen.parse().unwrap();
            let backing = Backing::Directory(dir.to_path_buf());
            Door::serving(Config { backing, settings, ..Config::new(listen) }).await
        };
        tokio::time::timeout(PATIENCE, started).await.expect("the address stays taken")
    }

    /// Waits for a directory whose lock a test beside this one holds: a process that it is starting has, until it runs its
    /// program, whatever files were open here.
    pub async fn serving(config: Config) -> Door {
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        let coordinator = loop {
            match Coordinator::start(config.clone()).await {
                Err(StartError::Store(StoreError::Coordination(Error::InUse { .. })))
                    if tokio::time::Instant::now() < end =>
                {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                started => break started.unwrap(),
            }
        };
        Door { coordinator, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.coordinator.address())
    }

    pub async fn answer(&self, request: Request<Full<Bytes>>) -> hyper::Response<hyper::body::Incoming> {
        self.client.request(request).await.unwrap()
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> (u16, String) {
        let answer = self.answer(request).await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let (status, text) = self.send(Request::get(self.url(path)).body(Full::default()).unwrap()).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path} answered {text:?}")))
    }

    /// A `GET` that must succeed.
    pub async fn read(&self, path: &str) -> Value {
        let (status, body) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_text(path, body.to_string()).await
    }

    pub async fn post_text(&self, path: &str, body: String) -> (u16, Value) {
        let request = Request::post(self.url(path))
            .header("content-type", "application/json")
            .body(Full::from(body))
            .unwrap();
        let (status, text) = self.send(request).await;
        (status, if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() })
    }

    /// A command that must succeed.
    pub async fn done(&self, command: Value) -> Value {
        let (status, answer) = self.post("/v1/commands", &json!({ "do": command })).await;
        assert_eq!(status, 200, "{command}: {answer}");
        answer
    }

    /// A command that must not; gives its status, kind and message.
    pub async fn refused(&self, command: Value) -> (u16, String, String) {
        let (status, answer) = self.post("/v1/commands", &json!({ "do": command })).await;
        assert_ne!(status, 200, "{command}: {answer}");
        told(status, &answer)
    }
}

/// What an error says; every one has a kind, a sentence and a way out.
pub fn told(status: u16, answer: &Value) -> (u16, String, String) {
    let text = |field: &str| {
        let text = answer["error"][field].as_str().unwrap_or_else(|| panic!("no {field} in {answer}"));
        assert!(!text.is_empty(), "an empty {field} in {answer}");
        text.to_owned()
    };
    text("help");
    (status, text("kind"), text("message"))
}

/// A worker that does at once whatever it is ordered, over HTTP; or never gets beyond loading.
pub struct Hand {
    pub node: String,
    pub incarnation: u64,
    /// Of that incarnation.
    pub token: String,
    pub sequence: u64,
    pub applied: u64,
    pub orders: std::collections::BTreeMap<(String, u64, u64), Value>,
    /// What it says of every replica instead of getting on.
    pub hangs: Option<Value>,
    /// What it has stored and no order is about.
    pub stored: Vec<Value>,
    address: String,
    /// Answers at the address until the hand is dropped: the coordinator checks that somebody does.
    answers: JoinSet<()>,
}

impl Hand {
    pub async fn join(door: &Door, node: &str) -> Hand {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, mut answers) = (listener.local_addr().unwrap().to_string(), JoinSet::new());
        answers.spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
        Hand::start(door, node, vec![], (address, answers)).await
    }

    /// The same node as a new process, which finds on its disk what the former one held.
    pub async fn restart(self, door: &Door) -> Hand {
        let mut stored = self.stored;
        stored.extend(self.orders.values().map(|order| {
            json!({ "replica": order["replica"], "bounds": order["bounds"], "epoch": order["epoch"] })
        }));
        Hand::start(door, &self.node, stored, (self.address, self.answers)).await
    }

    async fn start(
        door: &Door,
        node: &str,
        stored: Vec<Value>,
        (address, answers): (String, JoinSet<()>),
    ) -> Hand {
        let mut wanted = json!({ "id": node, "address": address });
        if !stored.is_empty() {
            wanted["stored"] = json!(stored);
        }
        let (status, welcome) = door.post("/v1/worker/register", &wanted).await;
        assert_eq!(status, 200, "{welcome}");
        let incarnation = welcome["incarnation"].as_u64().unwrap();
        let token = welcome["token"].as_str().unwrap().to_owned();
        let (node, orders) = (node.to_owned(), Default::default());
        Hand {
            node,
            incarnation,
            token,
            sequence: 0,
            applied: 0,
            orders,
            hangs: None,
            stored,
            address,
            answers,
        }
    }

    /// The same process, which has found another leader.
    pub async fn register_again(&mut self, door: &Door) {
        let form = json!({
            "id": self.node, "address": self.address, "incarnation": self.incarnation, "token": self.token,
        });
        let (status, welcome) = door.post("/v1/worker/register", &form).await;
        assert_eq!((status, welcome["incarnation"].as_u64()), (200, Some(self.incarnation)), "{welcome}");
        assert!(welcome["token"].is_null(), "it has its token: {welcome}");
        self.applied = 0;
    }

    pub fn beat(&mut self) -> Value {
        self.sequence += 1;
        let phase = |state: &str| match state {
            "load" => "ready",
            "live" => "serving",
            "unload" => "unloaded",
            _ => "dropped",
        };
        let kept = self
            .stored
            .iter()
            .map(|stored| json!({ "replica": stored["replica"], "phase": "kept", "epoch": stored["epoch"] }));
        let kept: Vec<Value> = kept.collect();
        let reports: Vec<Value> = self
            .orders
            .values()
            .map(|order| {
                let phase = phase(order["state"].as_str().unwrap());
                let mut report =
                    json!({ "replica": order["replica"], "phase": phase, "epoch": order["epoch"] });
                for (field, said) in self.hangs.iter().filter_map(Value::as_object).flatten() {
                    report[field] = said.clone();
                }
                report
            })
            .chain(kept)
            .collect();
        json!({
            "node": self.node, "incarnation": self.incarnation, "token": self.token, "sequence": self.sequence,
            "sent_at_ms": 1_000 + self.sequence, "applied": self.applied, "whole": true, "reports": reports,
        })
    }

    pub fn take(&mut self, orders: &Value) {
        let key = |replica: &Value| {
            let number = |field: &str| replica[field].as_u64().unwrap();
            (replica["keyspace"].as_str().unwrap().to_owned(), number("shard"), number("placement"))
        };
        if orders["base"] == 0 {
            self.orders.clear();
        }
        for order in orders["changed"].as_array().unwrap() {
            self.stored.retain(|stored| stored["replica"] != order["replica"]);
            self.orders.insert(key(&order["replica"]), order.clone());
        }
        for gone in orders["removed"].as_array().unwrap() {
            self.orders.remove(&key(gone));
        }
        for permission in orders["permissions"].as_array().into_iter().flatten() {
            self.stored.retain(|stored| stored["replica"] != permission["replica"]);
        }
        self.applied = orders["version"].as_u64().unwrap();
    }

    /// One heartbeat; gives the orders back.
    pub async fn go_on(&mut self, door: &Door, wait_ms: u64) -> Value {
        let beat = self.beat();
        let (status, orders) = door.post(&format!("/v1/worker/heartbeat?wait_ms={wait_ms}"), &beat).await;
        assert_eq!(status, 200, "{orders}");
        self.take(&orders);
        orders
    }
}

/// Lets the workers work until `wanted` holds of the status.
pub async fn until(door: &Door, hands: &mut [&mut Hand], wanted: impl Fn(&Value) -> bool) -> Value {
    let mut status = Value::Null;
    let tries = async {
        loop {
            for hand in hands.iter_mut() {
                hand.go_on(door, 0).await;
            }
            status = door.read("/v1/status").await;
            if wanted(&status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, tries).await.is_ok();
    assert!(in_time, "not in time: {status}");
    status
}
