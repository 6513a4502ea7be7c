//! Nothing stands still: workers that announce a wrong address, several that never let go, and crash loops.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at the first surprise")]

use chaos::cluster::{Cluster, SHARDS};
use chaos::until;
use partage_wire::json::Command;
use std::time::{Duration, Instant};
use tokio::time::sleep;

async fn leads(cluster: &Cluster, node: &str) -> usize {
    cluster.admin.node(node).await.map_or(0, |node| node.leaders)
}

/// Seen before: it was up at once, and led a third of the shards from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a11_a_worker_that_announces_a_wrong_address_is_given_nothing() {
    let mut cluster = Cluster::start(2).await;
    // Port 1 of the loopback: no program listens there.
    cluster.add_node("n3", &["--announce", "127.0.0.1:1"]).await;
    cluster.keyspace("kv", "exclusive", "automatic").await;
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let node = cluster.admin.node("n3").await.unwrap();
        assert!(node.leaders == 0 && !node.health.is(partage_core::node::Health::Up), "{node:?}");
        sleep(Duration::from_millis(200)).await;
    }
    cluster.admin.is_seen_as("n3", &["unreachable"]).await;
    assert_eq!(leads(&cluster, "n1").await + leads(&cluster, "n2").await, SHARDS as usize);
}

/// Seen before: the second one was never revoked, and its shards had no owner for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_l4_two_workers_that_never_let_go_lose_their_shards_all_the_same() {
    let mut cluster = Cluster::start(2).await;
    for stuck in ["n3", "n4"] {
        cluster.add_node(stuck, &["--fault", "unload=hang", "--patience-ms", "600000"]).await;
    }
    cluster.keyspace("kv", "exclusive", "automatic").await;
    for stuck in ["n3", "n4"] {
        assert!(leads(&cluster, stuck).await > 0);
        let reason = "a test".to_owned();
        let drain = Command::DrainNode { node: stuck.to_owned(), reason, max_down: None };
        cluster.admin.command(drain).await.unwrap();
    }
    until("the others serve everything", || async {
        let shards = cluster.admin.shards("kv").await;
        let replicas = shards.iter().flat_map(|shard| &shard.replicas);
        let serving = replicas.filter(|r| {
            r.role.is(partage_core::keyspace::map::Role::Leader)
                && r.phase == Some(partage_wire::json::ReplicaPhase::Serving.into())
                && ["n1", "n2"].contains(&&*r.node)
        });
        if serving.count() == SHARDS as usize { Ok(()) } else { Err(format!("{shards:#?}")) }
    })
    .await;
}

/// Seen before: most shards were set aside for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_crash_loop_of_all_sets_nothing_aside_and_everything_serves_soon_after() {
    crash_loop(3, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: `./test long` runs it"]
async fn r5_crash_loops_of_twenty_rounds_of_three_to_ten_nodes() {
    for nodes in [3, 5, 7, 10] {
        crash_loop(nodes, 20).await;
    }
}

/// Every node is killed and started, again and again; then they stay.
#[expect(clippy::print_stdout, reason = "the figure is wanted")]
async fn crash_loop(nodes: usize, rounds: usize) {
    let mut cluster = Cluster::start(nodes).await;
    cluster.keyspace("kv", "exclusive", "automatic").await;
    let nodes: Vec<String> = (1..=nodes).map(|number| format!("n{number}")).collect();
    for _ in 0..rounds {
        for node in &nodes {
            cluster.node_mut(node).process.kill();
        }
        for node in &nodes {
            cluster.restart_node(node).await;
        }
        sleep(Duration::from_millis(1_000)).await;
    }
    let begun = Instant::now();
    let status = cluster.admin.settled().await;
    let took = begun.elapsed();
    println!("{} nodes, {rounds} rounds: everything served after {took:?}", nodes.len());
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(status.set_aside.is_empty(), "{status:?}");
    let log = cluster.coordinator_log();
    assert!(!log.contains("is set aside and placed nowhere"), "{log}");
}
