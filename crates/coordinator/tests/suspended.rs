//! A machine that sleeps for an hour with a coordinator and workers on it. When it wakes, no lease holds any more and the
//! coordinator's own session is over; nobody is declared dead for the time that it slept, nothing moves, and all is served
//! again without a person (A5, L1, R4).

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

mod door;

use async_trait::async_trait;
use door::{Door, PATIENCE};
use partage_clock::suspended;
use partage_core::name::KeyspaceName;
use partage_core::settings::Settings;
use partage_worker::{Access, Assignment, DropReason, Entrance, Epoch, Failure, Handler, Peer, Role, Worker};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: usize = 50;

#[derive(Default)]
struct Counts {
    loads: AtomicUsize,
    drops: AtomicUsize,
}

struct Counting(Arc<Counts>);

#[async_trait]
impl Handler for Counting {
    async fn load(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        Ok(())
    }
    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }
    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        self.0.drops.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn worker(door: &Door, node: &str, counts: &Arc<Counts>) -> (Worker, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let coordinator = door.coordinator.address().to_string();
    let starting = Worker::builder(node, [coordinator], address).register_within(PATIENCE);
    (starting.start(Counting(counts.clone())).await.unwrap(), listener)
}

/// How many of the keys have an owner; two owners of one key are a panic.
fn owned(workers: &[&Worker]) -> usize {
    let keyspace: KeyspaceName = "kv".parse().unwrap();
    let owners = |key: usize| {
        let name = format!("key {key}");
        let enters = |worker: &&&Worker| {
            matches!(worker.enter(&keyspace, name.as_bytes(), Access::Write), Entrance::Serve(_))
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
async fn a5_when_the_machine_wakes_nothing_has_moved_and_all_is_served_again() {
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
