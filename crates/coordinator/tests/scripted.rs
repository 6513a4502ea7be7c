//! The example worker in Python against a coordinator that says, step by step, what a test wants.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;
#[path = "examples/process.rs"]
mod process;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use door::PATIENCE;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use process::{Process, example, port};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A coordinator that says what a test wants: what it answers heartbeats with, by the incarnation, and what it was told.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    registered: Vec<Value>,
    beats: Vec<Value>,
    /// Orders without what is the same in all; none = "this incarnation has ended".
    orders: Option<Value>,
}

impl Script {
    fn said(&self) -> std::sync::MutexGuard<'_, Said> {
        self.0.lock().unwrap()
    }

    /// From now on: whole orders of that version.
    fn orders(&self, version: u64, changed: Value, permissions: Value) {
        let brief = json!({
            "name": "kv", "sharding": { "type": "key_range" }, "partition_key": { "type": "whole" },
            "ownership": "eventual", "generation": { "sequence": version }, "first_shard": 1, "durable": false,
        });
        self.said().orders = Some(json!({
            "version": version, "base": 0, "keyspaces": [brief], "changed": changed, "removed": [],
            "permissions": permissions, "cluster": "1".repeat(32), "may_go": false,
        }));
    }

    async fn register(State(script): State<Script>, body: String) -> String {
        let registered = &mut script.said().registered;
        registered.push(serde_json::from_str(&body).unwrap());
        let (incarnation, cluster) = (registered.len(), "1".repeat(32));
        json!({ "incarnation": incarnation, "heartbeat_ms": 100, "lease_ms": 3_000, "cluster": cluster })
            .to_string()
    }

    async fn heartbeat(State(script): State<Script>, body: String) -> (StatusCode, String) {
        let beat: Value = serde_json::from_str(&body).unwrap();
        let mut said = script.said();
        let is_newest = beat["incarnation"] == said.registered.len();
        let answer = match said.orders.clone().filter(|_| is_newest) {
            None => {
                let error = json!({ "kind": "ended", "message": "a test", "help": "register_as_new" });
                (StatusCode::GONE, json!({ "error": error }).to_string())
            }
            Some(mut orders) => {
                orders["incarnation"] = beat["incarnation"].clone();
                orders["lease"] = json!({ "sent_at_ms": beat["sent_at_ms"], "lease_ms": 3_000 });
                (StatusCode::OK, orders.to_string())
            }
        };
        said.beats.push(beat);
        answer
    }

    async fn open(&self) -> String {
        let routes = Router::new()
            .route("/v1/worker/register", post(Script::register))
            .route("/v1/worker/heartbeat", post(Script::heartbeat))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        url
    }

    /// Waits until the worker reports its replica so.
    async fn reported(&self, phase: &str) {
        let mut last = Value::Null;
        let wait = async {
            loop {
                last = self.said().beats.last().cloned().unwrap_or_default();
                if last["reports"][0]["phase"] == phase {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE / 3, wait).await.is_ok();
        assert!(in_time, "not {phase}: {last}");
    }
}

fn order(state: &str, epoch: u64, peers: Value) -> Value {
    json!([{
        "replica": { "keyspace": "kv", "shard": 1, "placement": 7 }, "role": "leader", "state": state,
        "bounds": { "type": "keys", "begin": "", "end": "" }, "epoch": epoch, "granted": true,
        "peers": peers, "had_data": true,
    }])
}

fn python_at(url: &str, port: u16) -> Process {
    let mut command = Command::new("python3");
    command.arg(example("worker-python/worker.py")).args(["--coordinator", url, "--id", "a", "--port"]);
    Process::start(command.arg(port.to_string()))
}

async fn at(method: Method, port: u16, body: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let uri = format!("http://127.0.0.1:{port}/kv/key");
    let request = Request::builder().method(method).uri(uri).body(body.to_owned().into()).unwrap();
    let answer = client.request(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// D7, step by step: ended, it keeps its data and names it; ordered again, it serves it; permitted, it deletes it.
#[tokio::test]
async fn d7_a_python_worker_keeps_what_is_withdrawn_until_a_permission() {
    let (script, port) = (Script::default(), port());
    let url = script.open().await;
    script.orders(1, order("live", 3, json!([])), json!([]));
    let _python = python_at(&url, port);
    script.reported("serving").await;
    assert_eq!(at(Method::PUT, port, "value").await.0, 200);

    script.said().orders = None;
    let ended = async {
        while script.said().registered.len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE / 3, ended).await.expect("it registers anew");
    script.orders(1, json!([]), json!([]));
    script.reported("kept").await;
    let again = script.said().registered.last().cloned().unwrap();
    assert_eq!(again["incarnation"], Value::Null, "as a new process");
    assert_eq!(again["cluster"], "1".repeat(32));
    assert_eq!(
        (&again["stored"][0]["replica"]["placement"], &again["stored"][0]["epoch"]),
        (&json!(7), &json!(3))
    );
    assert_eq!(at(Method::GET, port, "").await.0, 421, "it serves nothing");

    script.orders(2, order("live", 4, json!([])), json!([]));
    script.reported("serving").await;
    assert_eq!(at(Method::GET, port, "").await, (200, "value".to_owned()));

    script.orders(3, json!([]), json!([]));
    script.reported("kept").await;
    let permission = |epoch| json!([{ "replica": order("", 0, json!([]))[0]["replica"], "reason": "moved", "epoch": epoch }]);
    script.orders(4, json!([]), permission(3));
    tokio::time::sleep(Duration::from_millis(500)).await;
    script.reported("kept").await;
    script.orders(5, json!([]), permission(4));
    script.reported("dropped").await;
}

/// Seen before: each copy from a peer that was paused held up the heartbeats for 5 s, until the worker was declared dead.
#[tokio::test]
async fn l4_a_python_worker_beats_while_a_peer_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let peer = json!([{
        "shard": 1, "placement": 4, "bounds": { "type": "keys", "begin": "", "end": "" }, "node": "b", "address": address,
        "role": "leader", "state": "live",
    }]);
    let script = Script::default();
    let url = script.open().await;
    script.orders(1, order("load", 3, peer), json!([]));
    let _python = python_at(&url, port());
    script.reported("loading").await;
    let before = script.said().beats.len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let beats = script.said().beats.len() - before;
    assert!(beats >= 6, "{beats} heartbeats in 3 s");
}
