//! Tables on real processes, killed, paused and without a coordinator, while clients write and read.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::admin::leader;
use chaos::cluster::Cluster;
use chaos::load::Load;

const NODES: [&str; 3] = ["t1", "t2", "t3"];

/// A table `stock` on three nodes.
async fn cluster() -> Cluster {
    let mut cluster = Cluster::start(0).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table("stock").await;
    cluster
}

async fn leads(cluster: &Cluster, node: &str) -> usize {
    let shards = cluster.admin.shards("stock").await;
    shards.iter().filter(|shard| leader(shard) == Some(node)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_killed_node_costs_a_table_no_acknowledged_write_and_comes_back_with_what_it_has() {
    let mut cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for node in NODES {
        assert!(leads(&cluster, node).await > 0, "each node leads something, {node} too");
        cluster.node_mut(node).process.kill();
        load.rounds(3).await;
        cluster.restart_node(node).await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_a_table_has_everything_after_all_processes_were_killed_at_once() {
    let mut cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    for _ in 0..3 {
        load.rounds(3).await;
        for node in NODES {
            cluster.node_mut(node).process.kill();
        }
        cluster.coordinator().kill();
        cluster.start_coordinator().await;
        cluster.restart_nodes(&NODES).await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o8_a_table_is_written_and_read_while_no_coordinator_is_there() {
    let mut cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    cluster.coordinator().kill();
    let before = load.account();
    // Longer than any lease lasts.
    load.rounds(75).await;
    let after = load.account();
    assert_eq!((before.failed, before.refused), (after.failed, after.refused), "{after:?}");
    cluster.start_coordinator().await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_a_node_that_sleeps_and_wakes_answers_nothing_that_is_out_of_date() {
    let cluster = cluster().await;
    let load = Load::of_table(&cluster.admin, "stock");
    load.rounds(3).await;
    for node in NODES {
        cluster.node(node).process.pause();
        cluster.admin.is_seen_as(node, &["down"]).await;
        load.rounds(3).await;
        cluster.node(node).process.wake();
        cluster.admin.is_seen_as(node, &["up"]).await;
        cluster.admin.settled().await;
        load.rounds(3).await;
    }
    load.finish().await;
}
