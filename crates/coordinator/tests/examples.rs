//! The example workers, as real processes against a coordinator in this one.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;
#[path = "examples/process.rs"]
mod process;

use door::{Door, PATIENCE};
use hyper::{Method, Request};
use partage_core::base::settings::Settings;
use process::{Process, example, port};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Short enough to wait for, long enough for a busy machine.
fn settings() -> Settings {
    Settings { settle_ms: 500, lease_ms: 4_000, dead_after_ms: 4_500, ..Settings::default() }
}

fn python(door: &Door, id: &str, port: u16) -> Process {
    let mut command = Command::new("python3");
    command.arg(example("worker-python/worker.py")).args(["--coordinator", &door.url(""), "--id", id]);
    Process::start(command.args(["--port", &port.to_string()]))
}

fn shell(door: &Door, id: &str, port: u16, dir: &Path) -> Process {
    let mut command = Command::new("bash");
    command.arg(example("worker-shell/worker.sh")).args([&door.url(""), id]);
    Process::start(command.arg(format!("127.0.0.1:{port}")).arg(dir))
}

/// Any server of files.
fn files(port: u16, dir: &Path) -> Process {
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]).arg(dir).arg(port.to_string());
    Process::start(command.stderr(std::process::Stdio::null()))
}

fn create(name: &str, ownership: &str) -> Value {
    let keys = ["b", "d", "f", "h", "j", "l", "n"];
    json!({
        "command": "create_keyspace",
        "keyspace": { "name": name, "sharding": { "type": "key_range" }, "ownership": ownership },
        "presplit": { "type": "points", "keys": keys },
    })
}

/// Waits until every shard is served on one of `nodes`, and on each of them at least one.
async fn served_by(door: &Door, keyspace: &str, nodes: &[&str]) -> Vec<(u64, String)> {
    let mut shards = Value::Null;
    let wait = async {
        loop {
            shards = door.read(&format!("/v1/keyspaces/{keyspace}/shards")).await;
            let owner = |shard: &Value| match shard["replicas"].as_array().unwrap().as_slice() {
                [one] if one["phase"] == "serving" && one["state"] == "live" => {
                    Some((shard["shard"].as_u64().unwrap(), one["node"].as_str().unwrap().to_owned()))
                }
                _ => None,
            };
            let owners: Option<Vec<_>> = shards["shards"].as_array().unwrap().iter().map(owner).collect();
            if let Some(owners) = owners
                && owners.iter().all(|(_, node)| nodes.contains(&node.as_str()))
                && nodes.iter().all(|node| owners.iter().any(|(_, owner)| owner == node))
            {
                return owners;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let served = tokio::time::timeout(PATIENCE, wait).await;
    served.unwrap_or_else(|_| panic!("not served by {nodes:?}: {shards}"))
}

async fn up(door: &Door, nodes: usize) {
    let wait = async {
        while door.read("/v1/status").await["nodes"]["up"] != nodes {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("they do not join");
}

async fn ask(door: &Door, method: Method, port: u16, path: &str, body: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(format!("http://127.0.0.1:{port}{path}"));
    door.send(request.body(body.to_owned().into()).unwrap()).await
}

#[tokio::test]
async fn python_and_a_shell_share_a_keyspace() {
    let door = Door::with(settings()).await;
    let dir = tempfile::tempdir().unwrap();
    let (snake, shore) = (port(), port());
    let _files = files(shore, dir.path());
    let mut python = python(&door, "snake", snake);
    let dead = shell(&door, "shore", shore, dir.path());
    up(&door, 2).await;
    door.done(create("kv", "eventual")).await;

    let owners = served_by(&door, "kv", &["shore", "snake"]).await;
    for (shard, node) in &owners {
        if node == "shore" {
            let (status, text) = ask(&door, Method::GET, shore, &format!("/kv/{shard}"), "").await;
            assert_eq!(status, 200);
            assert!(text.starts_with("shore epoch "), "{text}");
        }
    }
    let first = owners.iter().find(|(shard, _)| *shard == 1).unwrap();
    let (status, _) = ask(&door, Method::PUT, snake, "/kv/a", "apple").await;
    assert_eq!(status, if first.1 == "snake" { 200 } else { 421 });

    // Killed: what it served goes to the other.
    dead.signal("KILL");
    served_by(&door, "kv", &["snake"]).await;
    assert_eq!(ask(&door, Method::PUT, snake, "/kv/a", "apple").await.0, 200);
    assert_eq!(ask(&door, Method::GET, snake, "/kv/a", "").await, (200, "apple".to_owned()));

    // Back: it begins with nothing, and whatever the former process left is gone.
    let mut shell = shell(&door, "shore", shore, dir.path());
    up(&door, 2).await;
    python.signal("TERM");
    served_by(&door, "kv", &["shore"]).await;
    assert!(python.ended().await);
    assert_eq!(door.read("/v1/status").await["nodes"]["left"], 1);
    assert_eq!(ask(&door, Method::GET, shore, "/kv/8", "").await.0, 200);

    // Nobody is left to take over: it stays until somebody is.
    let mut python = self::python(&door, "snake", snake);
    up(&door, 2).await;
    shell.signal("TERM");
    served_by(&door, "kv", &["snake"]).await;
    assert!(shell.ended().await);
    assert_eq!(ask(&door, Method::GET, shore, "/kv/8", "").await.0, 404);
    python.signal("KILL");
    assert!(!python.ended().await);
}

#[tokio::test]
async fn python_hands_its_data_over_and_honours_its_lease() {
    let door = Door::with(settings()).await;
    let ports = [port(), port()];
    let mut a = python(&door, "a", ports[0]);
    let b = python(&door, "b", ports[1]);
    up(&door, 2).await;
    door.done(create("kv", "exclusive")).await;
    let owners = served_by(&door, "kv", &["a", "b"]).await;

    // Each key at its owner; the other refuses it.
    let port_of = |node: &str| ports[usize::from(node == "b")];
    for (shard, node) in &owners {
        let key = char::from(b"acegikmo"[*shard as usize - 1]);
        let (status, _) = ask(&door, Method::PUT, port_of(node), &format!("/kv/{key}"), "value").await;
        assert_eq!(status, 200, "{key} at {node}");
        let other = if node == "a" { "b" } else { "a" };
        assert_eq!(ask(&door, Method::GET, port_of(other), &format!("/kv/{key}"), "").await.0, 421);
    }

    a.signal("TERM");
    served_by(&door, "kv", &["b"]).await;
    assert!(a.ended().await);
    for key in "acegikmo".chars() {
        let (status, value) = ask(&door, Method::GET, ports[1], &format!("/kv/{key}"), "").await;
        assert_eq!((status, value.as_str()), (200, "value"), "{key}");
    }

    // Paused beyond its lease, it answers nothing when it wakes: somebody else may own the key by now.
    let _c = python(&door, "c", ports[0]);
    up(&door, 2).await;
    b.signal("STOP");
    served_by(&door, "kv", &["c"]).await;
    b.signal("CONT");
    let (status, _) = ask(&door, Method::GET, ports[1], "/kv/a", "").await;
    assert!([503, 421].contains(&status), "it answered {status}");
}

/// An empty keyspace that is sharded by a hash, eight shards.
fn hashed(name: &str, hash: &str) -> Value {
    json!({
        "command": "create_keyspace",
        "keyspace": {
            "name": name, "sharding": { "type": "hash_range", "hash": hash }, "ownership": "eventual",
            "throttle": { "load_ms": 3_000 },
        },
        "presplit": { "type": "hash_ranges", "shards": 4 },
    })
}

/// It says so and how to mend it; and what it cannot serve it can still let go.
#[tokio::test]
async fn python_refuses_a_hash_that_it_does_not_have_and_keeps_nothing_of_it() {
    let door = Door::with(Settings { load_attempts: 3, ..settings() }).await;
    let snake = port();
    let _python = python(&door, "snake", snake);
    up(&door, 1).await;
    door.done(hashed("other", "xxh3-64")).await;
    let reason = "this worker knows only the hash md5: create the keyspace with --hash md5";
    let replicas = |shards: &Value| -> Vec<Value> {
        let shards = shards["shards"].as_array().unwrap().iter();
        shards.flat_map(|shard| shard["replicas"].as_array().unwrap().clone()).collect()
    };
    let (mut told, mut gone) = (false, false);
    let wait = async {
        while !(told && gone) {
            let shards = door.read("/v1/keyspaces/other/shards").await;
            told |= shards.to_string().contains(reason);
            gone = told && replicas(&shards).is_empty();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, wait).await.is_ok();
    assert!(in_time, "told {told}, gone {gone}: {}", door.read("/v1/keyspaces/other/shards").await);
    door.done(hashed("own", "md5")).await;
    served_by(&door, "own", &["snake"]).await;
}

/// A shard that cannot be loaded at first is tried again and counted; the coordinator hears why.
#[tokio::test]
async fn a_shell_tries_again_what_failed() {
    let door = Door::with(Settings { load_attempts: 1_000, ..settings() }).await;
    let dir = tempfile::tempdir().unwrap();
    let shore = port();
    let _files = files(shore, dir.path());
    let _shell = shell(&door, "shore", shore, dir.path());
    up(&door, 1).await;
    // Where the keyspace's directory should be there is a file.
    let in_the_way = dir.path().join("kv");
    std::fs::write(&in_the_way, "a file").unwrap();
    door.done(create("kv", "eventual")).await;
    let wait = async {
        loop {
            let shards = door.read("/v1/keyspaces/kv/shards").await.to_string();
            if shards.contains("load failed") && !shards.contains("\"attempts\":1,") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let told = tokio::time::timeout(PATIENCE, wait).await.is_ok();
    assert!(told, "{}", door.read("/v1/keyspaces/kv/shards").await);
    std::fs::remove_file(&in_the_way).unwrap();
    served_by(&door, "kv", &["shore"]).await;
}

/// The shell deletes nothing but what is its own, and says what to do.
#[tokio::test]
async fn a_shell_refuses_a_directory_that_is_not_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    std::fs::write(&precious, "of the user").unwrap();
    let run = |id: &str, dir: &Path| {
        let mut command = Command::new("bash");
        command.arg(example("worker-shell/worker.sh")).args(["http://127.0.0.1:1", id, "127.0.0.1:2"]);
        command.arg(dir).output().unwrap()
    };
    let refused = run("shore", dir.path());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("is not empty") && said.contains("give a new or an empty one"), "{said}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "of the user");

    std::fs::write(dir.path().join(".partage-worker"), "lake\n").unwrap();
    let refused = run("shore", dir.path());
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("belongs to node lake"), "{said}");
    assert!(precious.exists());
}

/// Who is not registered holds nothing: SIGTERM ends it at once, also while a coordinator lets it wait.
#[tokio::test]
async fn a_shell_that_cannot_register_ends_when_it_is_told_to() {
    // It takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for coordinator in ["http://127.0.0.1:1", &url] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("bash");
        command.arg(example("worker-shell/worker.sh")).args([coordinator, "shore", "127.0.0.1:2"]);
        let mut shell = Process::start(command.arg(dir.path()).stderr(std::process::Stdio::null()));
        let begun = async {
            while !dir.path().join(".partage-worker.answer").exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.expect("it does not ask");
        shell.signal("TERM");
        assert!(shell.ended().await);
    }
}

async fn epochs_of(door: &Door) -> Vec<u64> {
    let shards = door.read("/v1/keyspaces/kv/shards").await;
    shards["shards"].as_array().unwrap().iter().map(|shard| shard["epoch"].as_u64().unwrap()).collect()
}

/// A coordinator that starts again moves nothing: workers over HTTP register as who they are, and keep what they hold.
#[tokio::test]
async fn a_coordinator_that_restarts_costs_nobody_a_shard() {
    let (state, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let door = Door::on_disk(settings(), state.path(), "127.0.0.1:0").await;
    let address = door.coordinator.address().to_string();
    let (snake, shore) = (port(), port());
    let _files = files(shore, dir.path());
    let _python = python(&door, "snake", snake);
    let _shell = shell(&door, "shore", shore, dir.path());
    up(&door, 2).await;
    door.done(create("kv", "eventual")).await;
    let before = served_by(&door, "kv", &["shore", "snake"]).await;
    let (shard, _) = before.iter().find(|(_, node)| node == "snake").unwrap();
    let path = format!("/kv/{}", char::from(b"acegikmo"[*shard as usize - 1]));
    assert_eq!(ask(&door, Method::PUT, snake, &path, "kept").await.0, 200);
    let epochs = epochs_of(&door).await;

    door.coordinator.stop().await;
    let door = Door::on_disk(settings(), state.path(), &address).await;
    up(&door, 2).await;
    // Longer than it takes to call a silent node dead.
    tokio::time::sleep(Duration::from_millis(settings().dead_after_ms + 1_500)).await;
    assert_eq!(served_by(&door, "kv", &["shore", "snake"]).await, before);
    assert_eq!(epochs_of(&door).await, epochs);
    assert_eq!(ask(&door, Method::GET, snake, &path, "").await, (200, "kept".to_owned()));
}

/// Whoever leaves waits for its shards to be taken over, but not for a coordinator that is gone, and not for ever.
#[tokio::test]
async fn a_worker_leaves_in_the_end_whoever_is_gone() {
    let door = Door::with(settings()).await;
    let (dir, shore) = (tempfile::tempdir().unwrap(), port());
    let mut alone = python(&door, "alone", port());
    up(&door, 1).await;
    door.done(create("kv", "eventual")).await;
    served_by(&door, "kv", &["alone"]).await;
    let mut hurried = Command::new("python3");
    hurried.arg(example("worker-python/worker.py")).args(["--coordinator", &door.url(""), "--id", "hurried"]);
    let mut hurried = Process::start(hurried.args(["--port", &port().to_string(), "--leave-within", "0"]));
    served_by(&door, "kv", &["alone", "hurried"]).await;

    // Its time is over at once: it goes with what it holds, and says so.
    hurried.signal("TERM");
    assert!(!hurried.ended().await, "what was not handed over is no success");
    served_by(&door, "kv", &["alone"]).await;
    assert_eq!(door.read("/v1/status").await["nodes"]["left"], 1);

    // Nobody is there to take over, and then nobody to say so to.
    let _files = files(shore, dir.path());
    let mut shell = shell(&door, "shore", shore, dir.path());
    served_by(&door, "kv", &["alone", "shore"]).await;
    alone.signal("TERM");
    shell.signal("TERM");
    door.coordinator.stop().await;
    assert!(!alone.ended().await && !shell.ended().await);
}

fn key_of(shard: u64) -> char {
    char::from(b"acegikmo"[shard as usize - 1])
}

/// Writes a key to each shard of `kv` at the node that serves it.
async fn fill(door: &Door, owners: &[(u64, String)], port_of: impl Fn(&str) -> u16) {
    for (shard, node) in owners {
        let path = format!("/kv/{}", key_of(*shard));
        assert_eq!(ask(door, Method::PUT, port_of(node), &path, "value").await.0, 200, "{path} at {node}");
    }
}

/// Which of the eight keys are answered with their value by one of the ports, once all are or time is over.
async fn keys_served(door: &Door, ports: &[u16]) -> String {
    let mut found = String::new();
    let wait = async {
        while found.len() < 8 {
            found.clear();
            for shard in 1..=8 {
                let path = format!("/kv/{}", key_of(shard));
                for port in ports {
                    if ask(door, Method::GET, *port, &path, "").await == (200, "value".to_owned()) {
                        found.push(key_of(shard));
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let _ = tokio::time::timeout(PATIENCE / 2, wait).await;
    found
}

/// D7: workers that the coordinator has declared dead keep their data, and serve it again.
#[tokio::test]
async fn d7_python_workers_that_all_were_paused_have_every_key() {
    let door = Door::with(settings()).await;
    let ports = [port(), port()];
    let (a, b) = (python(&door, "a", ports[0]), python(&door, "b", ports[1]));
    up(&door, 2).await;
    door.done(create("kv", "exclusive")).await;
    let owners = served_by(&door, "kv", &["a", "b"]).await;
    fill(&door, &owners, |node| ports[usize::from(node == "b")]).await;

    a.signal("STOP");
    b.signal("STOP");
    tokio::time::sleep(Duration::from_millis(settings().dead_after_ms + 1_500)).await;
    a.signal("CONT");
    b.signal("CONT");
    assert_eq!(keys_served(&door, &ports).await, "acegikmo");
}

/// The files with the data of shards, as the shell keeps them.
fn data_files(dir: &Path) -> usize {
    fn files(path: &Path) -> usize {
        match std::fs::read_dir(path) {
            Ok(inside) => inside.flatten().map(|entry| files(&entry.path())).sum(),
            Err(_) => usize::from(path.is_file()),
        }
    }
    files(&dir.join(".data/kv"))
}

/// D11: a coordinator whose state was emptied is not obeyed; with the former state everything goes on.
#[tokio::test]
async fn d11_workers_keep_their_data_from_a_coordinator_on_an_empty_folder() {
    let (state, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let door = Door::on_disk(settings(), state.path(), "127.0.0.1:0").await;
    let address = door.coordinator.address().to_string();
    let (snake, shore) = (port(), port());
    let _files = files(shore, dir.path());
    let _python = python(&door, "snake", snake);
    let mut shell = shell(&door, "shore", shore, dir.path());
    up(&door, 2).await;
    door.done(create("kv", "eventual")).await;
    let owners = served_by(&door, "kv", &["shore", "snake"]).await;
    let at_snake: Vec<_> = owners.iter().filter(|(_, node)| node == "snake").cloned().collect();
    fill(&door, &at_snake, |_| snake).await;
    let kept = owners.len() - at_snake.len();
    assert_eq!(data_files(dir.path()), kept);

    door.coordinator.stop().await;
    let empty = tempfile::tempdir().unwrap();
    let door = Door::on_disk(settings(), empty.path(), &address).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(door.read("/v1/nodes").await["nodes"], json!([]));
    // Also one that starts again meanwhile.
    drop(shell);
    shell = self::shell(&door, "shore", shore, dir.path());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(door.read("/v1/nodes").await["nodes"], json!([]));
    assert_eq!(data_files(dir.path()), kept);

    door.coordinator.stop().await;
    let door = Door::on_disk(settings(), state.path(), &address).await;
    up(&door, 2).await;
    served_by(&door, "kv", &["shore", "snake"]).await;
    for (shard, _) in at_snake {
        let path = format!("/kv/{}", key_of(shard));
        assert_eq!(ask(&door, Method::GET, snake, &path, "").await, (200, "value".to_owned()));
    }
    drop(shell);
}
