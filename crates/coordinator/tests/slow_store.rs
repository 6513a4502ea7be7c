//! A store that takes three seconds for each commit, and real workers: no lease runs out for it (L1, O5).

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

mod altered;
mod door;
mod idle_workers;

use altered::Altered;
use door::{Door, PATIENCE};
use idle_workers::worker;
use partage_coordination::embedded::Embedded;
use partage_coordinator::{Backing, Config};
use partage_core::base::name::KeyspaceName;
use partage_core::base::settings::Settings;
use partage_worker::{Access, Admission, Worker};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const COMMIT: Duration = Duration::from_secs(3);
/// As of a coordinator that is alone: as long as a commit takes.
const LEASE_MS: u64 = 3_000;

/// The longest time in which a key had no owner; two owners at once are a panic.
async fn longest_gap(workers: &[&Worker], keys: usize, over: &AtomicBool) -> Duration {
    let keyspace: KeyspaceName = "kv".parse().unwrap();
    let (mut longest, mut ownerless) = (Duration::ZERO, BTreeMap::new());
    while !over.load(Ordering::Relaxed) {
        for key in 0..keys {
            let name = format!("key {key}");
            let enters = |worker: &&&Worker| {
                matches!(worker.enter(&keyspace, name.as_bytes(), Access::Write), Admission::Serve(_))
            };
            match workers.iter().filter(enters).count() {
                0 => longest = longest.max(ownerless.entry(key).or_insert_with(Instant::now).elapsed()),
                1 => drop(ownerless.remove(&key)),
                owners => panic!("{name} has {owners} owners"),
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    longest
}

fn create(name: &str) -> Value {
    let sharding = json!({"type": "fixed", "hash": "xxh3-64", "shards": 12});
    json!({"command": "create_keyspace", "keyspace": {"name": name, "sharding": sharding, "ownership": "exclusive"}})
}

async fn led(door: &Door, count: u64) {
    let latest = Instant::now() + PATIENCE;
    loop {
        let status = door.read("/v1/status").await;
        if status["shards"]["led"] == count && status["moves"] == 0 && status["loads"] == 0 {
            return;
        }
        assert!(Instant::now() < latest, "{status}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Keyspaces come, a node is drained and comes back: each step is a commit of three seconds, and the moves go on for
/// longer than many leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_no_lease_runs_out_while_each_commit_takes_as_long_as_a_lease() {
    let store = Embedded::in_memory();
    let slow = Altered::of(store);
    let backing =
        Backing::Open { coordination: slow.clone(), data_dir: None, session: Duration::from_secs(600) };
    let settings =
        Settings { settle_ms: 100, lease_ms: LEASE_MS, dead_after_ms: 4_000, ..Settings::default() };
    let config = Config { backing, settings, ..Config::new("127.0.0.1:0".parse().unwrap()) };
    let door = Door::serving(config).await;
    let counts = Arc::default();
    let (a, _a) = worker(&door, "a", &counts).await;
    let (b, _b) = worker(&door, "b", &counts).await;
    door.done(create("kv")).await;
    led(&door, 12).await;

    slow.delay_commits(COMMIT);
    let kv: KeyspaceName = "kv".parse().unwrap();
    let held = b.replicas();
    let held: Vec<_> =
        held.iter().filter_map(|replica| b.ownership(&kv, replica.assignment.shard())).collect();
    assert!(!held.is_empty(), "b has none of the shards");
    let (over, both) = (AtomicBool::new(false), [&a, &b]);
    let steps = async {
        door.done(json!({"command": "drain_node", "node": "a", "reason": "kernel"})).await;
        door.done(create("more")).await;
        sleep(Duration::from_secs(12)).await;
        let lost = held.iter().filter(|handle| !handle.mine_all_along()).count();
        door.done(json!({"command": "undrain_node", "node": "a"})).await;
        sleep(Duration::from_secs(6)).await;
        over.store(true, Ordering::Relaxed);
        lost
    };
    let (lost, gap) = tokio::join!(steps, longest_gap(&both, 12, &over));
    let commits = slow.delayed_commits();
    println!("{commits} commits of {COMMIT:?}, {lost} leases lapsed, longest time without an owner {gap:?}");
    assert!(commits >= 6, "only {commits} commits were slow");
    assert_eq!(lost, 0, "of {} shards that stayed, so many leases ran out", held.len());
}
