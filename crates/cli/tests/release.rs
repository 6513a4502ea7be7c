//! `partage shard release --all` at a coordinator that refuses one of the shards.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

type Asked = Arc<Mutex<Vec<u64>>>;

async fn answer(
    State(asked): State<Asked>,
    Json(request): Json<Value>,
) -> Result<Json<Value>, (axum::http::StatusCode, Json<Value>)> {
    let shard = request["do"]["shard"].as_u64().unwrap();
    asked.lock().unwrap().push(shard);
    if shard == 2 {
        let error =
            json!({ "kind": "refused", "message": "it was released meanwhile", "help": "nothing to do" });
        return Err((axum::http::StatusCode::CONFLICT, Json(json!({ "error": error }))));
    }
    let summary = format!("shard s{shard} of keyspace kv is placed again");
    Ok(Json(json!({ "dry_run": request["dry_run"], "summary": summary, "warnings": [] })))
}

/// A coordinator with this status, and the shards that commands ask it to release.
async fn door(status: Value) -> (String, Asked) {
    let asked = Asked::default();
    let doors = Router::new()
        .route("/v1/status", get(move || async move { Json(status) }))
        .route("/v1/commands", post(answer))
        .route("/v1/coordinators", get(async || Json(json!({ "backend": "embedded", "coordinators": [] }))))
        .with_state(asked.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, doors).await.unwrap() });
    (address, asked)
}

/// As a coordinator with nothing in it says it, but for the shards that are set aside.
async fn status() -> Value {
    let config = partage_coordinator::Config::new("127.0.0.1:0".parse().unwrap());
    let coordinator = partage_coordinator::Coordinator::start(config).await.unwrap();
    let address = coordinator.address().to_string();
    let said = run(&address, &["status", "--json"]).await;
    let mut status: Value = serde_json::from_slice(&said.stdout).unwrap();
    let aside = |shard: u64, why: &str| json!({ "keyspace": "kv", "shard": shard, "why": why });
    status["set_aside"] =
        json!([aside(1, "3 nodes died"), aside(2, "3 nodes died"), aside(3, "it could not be loaded")]);
    status
}

async fn run(address: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    command.args(arguments).args(["--coordinator", address]);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l5_all_are_released_but_the_one_that_is_refused_and_that_is_said() {
    let (address, asked) = door(status().await).await;
    let said = run(&address, &["shard", "release", "--all"]).await;
    let (out, err) = (String::from_utf8(said.stdout).unwrap(), String::from_utf8(said.stderr).unwrap());
    assert_eq!(*asked.lock().unwrap(), [1, 2, 3], "{err}");
    assert_eq!(said.status.code(), Some(1), "{out} {err}");
    assert!(out.contains("shard s1 of keyspace kv") && out.contains("shard s3 of keyspace kv"), "{out}");
    assert!(err.contains("shard s2 of keyspace kv is not released: it was released meanwhile"), "{err}");
    assert!(err.contains("2 of 3 shards are released; these are not: s2 of kv"), "{err}");

    let said = run(&address, &["shard", "release", "--all", "--json"]).await;
    let json: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said.status.code(), Some(1));
    assert_eq!(json["released"].as_array().map(Vec::len), Some(2), "{json}");
    assert_eq!((&json["failed"][0]["shard"], &json["failed"][0]["keyspace"]), (&json!(2), &json!("kv")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l5_a_filter_releases_those_that_it_names() {
    let (address, asked) = door(status().await).await;
    let said = run(&address, &["shard", "release", "--all", "kv", "--reason", "loaded"]).await;
    assert_eq!((said.status.code(), asked.lock().unwrap().clone()), (Some(0), vec![3]));
    let said = run(&address, &["shard", "release", "--all", "other"]).await;
    assert_eq!((said.status.code(), asked.lock().unwrap().clone()), (Some(0), vec![3]));
    assert!(String::from_utf8(said.stdout).unwrap().contains("no such shard is set aside"));
}
