//! Somebody puts an older copy of a coordinator's folder in the place of the newest, while no coordinator runs. The next
//! one cannot see it by what is stored; its workers know. It commands nobody by older maps, says so, gives no number
//! twice, and takes everything up again when the newest state is back (D10, D11, M5).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;
mod idle_workers;

use door::{Door, PATIENCE};
use idle_workers::{Counts, worker};
use partage_core::base::name::KeyspaceName;
use partage_core::base::settings::Settings;
use partage_worker::{Access, Admission, Worker};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

const KEYS: usize = 50;

/// A coordinator waits for as long as a node may be silent: let that be short.
fn settings() -> Settings {
    Settings { settle_ms: 100, ..Settings::default() }
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn create(name: &str) -> Value {
    let sharding = json!({ "type": "fixed", "hash": "xxh3-64", "shards": 12 });
    let keyspace = json!({ "name": name, "sharding": sharding, "ownership": "exclusive" });
    json!({ "command": "create_keyspace", "keyspace": keyspace })
}

/// How many of the keys have an owner; two owners of one key are a panic.
fn owned(workers: &[&Worker], keyspace: &str) -> usize {
    let keyspace: KeyspaceName = keyspace.parse().unwrap();
    let owners = |key: usize| {
        let name = format!("key {key}");
        let enters = |worker: &&&Worker| {
            matches!(worker.enter(&keyspace, name.as_bytes(), Access::Write), Admission::Serve(_))
        };
        workers.iter().filter(enters).count()
    };
    assert!((0..KEYS).all(|key| owners(key) < 2), "O1");
    (0..KEYS).filter(|key| owners(*key) == 1).count()
}

async fn all_are_owned(workers: &[&Worker], keyspace: &str) {
    let looking = async {
        while owned(workers, keyspace) < KEYS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let all = tokio::time::timeout(PATIENCE, looking).await;
    all.unwrap_or_else(|_| panic!("{} of {KEYS} keys of {keyspace} have an owner", owned(workers, keyspace)));
}

/// Waits until the coordinator's status is so.
async fn status(door: &Door, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut seen = (0, Value::Null);
    for _ in 0..600 {
        seen = door.get("/v1/status").await;
        if seen.0 == 200 && is_so(&seen.1) {
            return seen.1;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not in 30 s: {seen:?}");
}

async fn shards(door: &Door, keyspace: &str) -> Vec<Value> {
    let page = door.read(&format!("/v1/keyspaces/{keyspace}/shards")).await;
    page["shards"].as_array().unwrap().clone()
}

async fn move_a_shard(door: &Door) {
    let shard = shards(door, "kv").await.swap_remove(0);
    let from = shard["replicas"][0]["node"].as_str().unwrap().to_owned();
    let to = if from == "a" { "b" } else { "a" };
    let moved =
        json!({ "command": "move_shard", "keyspace": "kv", "shard": shard["shard"], "from": from, "to": to });
    door.done(moved).await;
    let arrived = |page: &Value| page["moves"] == 0;
    status(door, "the shard has moved", arrived).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_d11_m5_an_older_copy_of_the_folder_is_refused_by_what_workers_know_and_told() {
    let place = tempfile::tempdir().unwrap();
    let [dir, older, newest] = ["now", "older", "newest"].map(|name| place.path().join(name));
    let door = Door::on_disk(settings(), &dir, "127.0.0.1:0").await;
    let address = door.coordinator.address().to_string();
    let counts = Arc::new(Counts::default());
    let (a, _a) = worker(&door, "a", &counts).await;
    let (b, _b) = worker(&door, "b", &counts).await;
    let workers = [&a, &b];
    door.done(create("kv")).await;
    all_are_owned(&workers, "kv").await;
    door.coordinator.stop().await;
    copy(&dir, &older);

    let door = Door::on_disk(settings(), &dir, &address).await;
    status(&door, "both are back", |status| status["nodes"]["up"] == 2).await;
    move_a_shard(&door).await;
    while counts.drops.load(Ordering::SeqCst) == 0 {
        sleep(Duration::from_millis(20)).await;
    }
    door.done(create("late")).await;
    all_are_owned(&workers, "late").await;
    let given = shards(&door, "late").await;
    door.coordinator.stop().await;
    copy(&dir, &newest);

    copy(&older, &dir);
    let door = Door::on_disk(settings(), &dir, &address).await;
    let told = status(&door, "it is told", |status| {
        let all = status.to_string();
        status["quarantine"][0]["keyspace"] == "kv" && all.contains("keyspace late was at")
    });
    let told = told.await;
    assert!(told["brake"].as_str().unwrap().contains("restored from an older state"), "{told}");
    status(&door, "who knows more is taken in", |status| status["nodes"]["up"] == 2).await;
    door.done(create("late")).await;
    let again = shards(&door, "late").await;
    let last = given.iter().map(|shard| shard["shard"].as_u64().unwrap()).max().unwrap();
    assert!(again[0]["shard"].as_u64().unwrap() > last, "M5: {again:?}");
    door.coordinator.stop().await;

    copy(&newest, &dir);
    let door = Door::on_disk(settings(), &dir, &address).await;
    status(&door, "nothing is wrong", |status| {
        status["quarantine"].as_array().is_none_or(Vec::is_empty) && status["nodes"]["up"] == 2
    })
    .await;
    all_are_owned(&workers, "kv").await;
    assert_eq!(counts.drops.load(Ordering::SeqCst), 1, "D10: only what was moved off");
    door.coordinator.stop().await;
}
