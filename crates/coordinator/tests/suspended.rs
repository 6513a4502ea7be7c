//! A machine that sleeps for an hour with a coordinator and workers on it. When it wakes, no lease holds any more and the
//! coordinator's own session is over; nobody is declared dead for the time that it slept, nothing moves, and all is served
//! again without a person (L1, R6).

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

mod door;
mod idle_workers;

use door::{Door, PATIENCE};
use idle_workers::{Counts, worker};
use partage_clock::suspended;
use partage_core::base::name::KeyspaceName;
use partage_core::base::settings::Settings;
use partage_worker::{Access, Admission, Worker};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: usize = 50;

/// How many of the keys have an owner; two owners of one key are a panic.
fn owned(workers: &[&Worker]) -> usize {
    let keyspace: KeyspaceName = "kv".parse().unwrap();
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

async fn all_are_owned(workers: &[&Worker]) {
    let looking = async {
        while owned(workers) < KEYS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let all = tokio::time::timeout(PATIENCE, looking).await;
    all.unwrap_or_else(|_| panic!("{} of {KEYS} keys have an owner", owned(workers)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_r6_when_the_machine_wakes_nothing_has_moved_and_all_is_served_again() {
    let settings = Settings { settle_ms: 100, ..Settings::default() };
    let dir = tempfile::tempdir().unwrap();
    sleeps_well(&Door::with(settings.clone()).await).await;
    sleeps_well(&Door::on_disk(settings, dir.path(), "127.0.0.1:0").await).await;
}

async fn sleeps_well(door: &Door) {
    let counts = Arc::new(Counts::default());
    let (a, _a) = worker(door, "a", &counts).await;
    let (b, _b) = worker(door, "b", &counts).await;
    let keyspace = json!({
        "name": "kv", "sharding": { "type": "fixed", "hash": "xxh3-64", "shards": 12 }, "ownership": "exclusive",
    });
    door.done(json!({ "command": "create_keyspace", "keyspace": keyspace })).await;
    all_are_owned(&[&a, &b]).await;
    let loads = counts.loads.load(Ordering::SeqCst);
    for _ in 0..3 {
        suspended::wake_after(HOUR);
        all_are_owned(&[&a, &b]).await;
    }
    assert_eq!(counts.drops.load(Ordering::SeqCst), 0);
    assert_eq!(counts.loads.load(Ordering::SeqCst), loads, "nothing has moved");
    let status = door.read("/v1/status").await;
    assert_eq!(status["nodes"]["up"], 2, "{status}");
    assert_eq!(status["brake"], serde_json::Value::Null, "{status}");
}
