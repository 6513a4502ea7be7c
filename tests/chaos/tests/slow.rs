//! B10: an engine takes three seconds for each commit, while nodes are drained and keyspaces come: no lease of a worker
//! lapses, no request fails, and no key has two owners.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::engine::Engine;
use chaos::fleet::{Fleet, SETTINGS};
use chaos::load::Load;
use chaos::slow::Slow;
use partage_coordination::Backend;
use partage_wire::json::Command;
use std::time::Duration;

const COMMIT: Duration = Duration::from_secs(3);

/// Longer than the lease of a worker, which is 8 s beside an engine.
const LONG: Duration = Duration::from_secs(10);

#[expect(clippy::print_stdout, reason = "how many commits were slow is the figure")]
async fn nothing_lapses(backend: Backend) {
    let engine = Engine::start(backend, &[]).await;
    let slow = Slow::before(&engine).await;
    let fleet = Fleet::through(engine, slow.address(), 3, SETTINGS).await;
    fleet.admin.keyspace("kv", "exclusive", "automatic").await;
    let load = Load::routed(&fleet.router("kv").await, "kv", true);
    load.rounds(3).await;
    let led = fleet.leader().await;

    slow.delay(COMMIT);
    let drain = Command::DrainNode { node: "n1".to_owned(), reason: "a test".to_owned(), max_down: None };
    fleet.admin.command(drain).await.unwrap();
    tokio::time::sleep(LONG).await;
    fleet.change("c1", "one").await.unwrap();
    load.rounds(5).await;
    fleet.admin.command(Command::UndrainNode { node: "n1".to_owned() }).await.unwrap();
    tokio::time::sleep(LONG).await;
    let (commits, lapses) = (slow.delayed(), fleet.lapses());
    println!(
        "{backend}: {commits} commits of {COMMIT:?}, {lapses} leases lapsed, led by {led:?}, then {:?}",
        fleet.leader().await
    );
    assert!(commits >= 6, "{backend}: only {commits} commits were slow");
    assert_eq!(lapses, 0, "{backend}: leases lapsed");

    slow.delay(Duration::ZERO);
    fleet.whole().await;
    load.rounds(3).await;
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{backend}: {account:?}");
    assert_eq!(fleet.lapses(), 0, "{backend}: leases lapsed");
    assert_eq!(fleet.leader().await, led, "{backend}: it leads all along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn l1_no_lease_lapses_while_etcd_takes_three_seconds_for_each_commit() {
    nothing_lapses(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn l1_no_lease_lapses_while_mariadb_takes_three_seconds_for_each_commit() {
    nothing_lapses(Backend::MySql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_no_lease_lapses_while_zookeeper_takes_three_seconds_for_each_commit() {
    nothing_lapses(Backend::ZooKeeper).await;
}
