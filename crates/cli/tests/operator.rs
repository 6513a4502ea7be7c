//! What an operator sees at the command line: exit codes, drains, and why nobody leads.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

#[allow(dead_code, reason = "the doors are shared, and not all of them are used here")]
mod doors;

use doors::Doors;
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, Key, Transaction};
use partage_coordinator::{Backing, Config, Coordinator};
use serde_json::{Value, json};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[track_caller]
fn done(doors: &Doors, arguments: &[&str]) {
    assert_eq!(doors.shell(arguments), (0, None), "{arguments:?}");
}

/// C13: a script sees by the exit code alone whether a person has to look.
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_of_status_says_whether_something_is_wrong() {
    let doors = Doors::open().await;
    let (code, told) = doors.shell(&["status"]);
    assert!(code == 1 && told.unwrap().message.contains("wrong, see above"), "no shard is served");
    let said = doors.text(&["status"]);
    assert!(said.starts_with("WRONG      4 of 4 shards are not served"), "{said}");
    // Both streams into one file, as in `partage status >log 2>&1`.
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut status = Command::new(env!("CARGO_BIN_EXE_partage"));
    status.args(["status", "--coordinator", &doors.address()]);
    let file = std::fs::OpenOptions::new().append(true).open(log.path()).unwrap();
    status.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert!(said.trim_end().ends_with("wrong, see above"), "{said}");
    done(&doors, &["keyspace", "delete", "kv", "--yes"]);
    done(&doors, &["keyspace", "delete", "parts", "--yes"]);
    done(&doors, &["status"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zone_is_drained_and_taken_back() {
    let doors = Doors::open().await;
    doors.join("b", "z1").await;
    doors.join("c", "z1").await;
    let drained = async || -> Vec<Value> {
        let nodes = doors.get("/v1/nodes").await.unwrap();
        let nodes = nodes["nodes"].as_array().unwrap().iter();
        nodes.filter(|node| node["draining"].is_string()).map(|node| node["id"].clone()).collect()
    };
    done(&doors, &["node", "drain", "--zone", "z1", "--reason", "power"]);
    assert_eq!(drained().await, ["b", "c"]);
    done(&doors, &["node", "undrain", "--zone", "z1"]);
    assert_eq!(drained().await, [] as [Value; 0]);
    let (code, told) = doors.shell(&["node", "undrain", "--zone", "z1"]);
    assert!(code == 4 && told.unwrap().message.contains("no node of zone z1 is being drained"));
}

/// C15: it says once that no node can take it, what to do, and that the coordinator goes on trying.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_no_node_can_take_says_once_that_it_goes_on() {
    let doors = Doors::open().await;
    let create = json!({
        "command": "create_keyspace", "keyspace": { "name": "k", "sharding": { "type": "key_range" } },
        "presplit": { "type": "none" },
    });
    doors.command(&create, false).await.unwrap();
    let _listener = doors.takes_one_of("k").await;
    let said = doors.text(&["node", "drain", "w"]);
    assert_eq!(said.matches("goes on trying").count(), 1, "{said}");
    assert_eq!(said.matches("partage node undrain").count(), 1, "{said}");
    assert!(said.contains("no node could take shard s1 of keyspace k from w: add a node"), "{said}");
}

async fn coordinator(store: &Arc<Embedded>, id: &str) -> Coordinator {
    let session = Duration::from_millis(500);
    let backing = Backing::Open { coordination: store.clone(), data_dir: None, session };
    let listen = "127.0.0.1:0".parse().unwrap();
    Coordinator::start(Config { backing, id: Some(id.to_owned()), ..Config::new(listen) }).await.unwrap()
}

/// The exit code of `partage status`, and all that it says.
fn status(coordinator: &Coordinator) -> (i32, String) {
    let address = coordinator.address().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_partage"))
        .args(["status", "--coordinator", &address])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

/// D18: the records cannot be read, so no coordinator leads; the one that is asked says which key it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_says_why_nobody_leads() {
    let store = Embedded::in_memory();
    let first = coordinator(&store, "c1").await;
    while status(&first).0 != 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let second = coordinator(&store, "c2").await;
    let damaged = Transaction::new().put(&Key::new("redo/head").unwrap(), &b"damaged"[..]);
    store.commit(damaged).await.unwrap();
    first.stop().await;
    let mut said = status(&second);
    for _ in 0..200 {
        if said.1.contains("redo/head") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        said = status(&second);
    }
    assert!(
        said.0 != 0 && said.1.contains("redo/head") && said.1.contains("no coordinator leads"),
        "{said:?}"
    );
}
