//! Services whose `load` hangs, panics or refuses: their shards are served elsewhere, and why can be seen.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::cluster::{Cluster, SHARDS};
use chaos::until;

/// Shards land on the healthy nodes, though the third one takes none, and its reason is shown meanwhile.
async fn shards_go_elsewhere(flags: &[&str], reason: &'static str) {
    let mut cluster = Cluster::start(2).await;
    cluster.add_node("n3", flags).await;
    let watch = cluster.admin.clone();
    let seen = tokio::spawn(async move {
        until("the reason is shown", || async {
            let shards: partage_wire::json::Shards = watch.try_get("/v1/keyspaces/kv/shards").await?;
            let replicas = shards.shards.iter().flat_map(|shard| &shard.replicas);
            let failures: Vec<_> = replicas.filter_map(|replica| replica.failure.clone()).collect();
            let shown = failures.iter().any(|why| why.contains(reason));
            if shown { Ok(()) } else { Err(format!("{failures:?}")) }
        })
        .await;
    });
    cluster.keyspace("kv", "exclusive", "automatic").await;
    seen.await.unwrap();
    let nodes = cluster.admin.nodes().await;
    let led: usize = nodes.iter().map(|node| node.leaders).sum();
    assert_eq!(led, SHARDS as usize, "{nodes:#?}");
    let bad = nodes.iter().find(|node| node.id == "n3").unwrap();
    assert_eq!(bad.leaders, 0, "{bad:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_refuses_is_tried_elsewhere() {
    shards_go_elsewhere(&["--refuse-load"], "this node refuses every load").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_panics_is_tried_elsewhere() {
    shards_go_elsewhere(&["--panic-load"], "this node panics at every load").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_hangs_is_tried_elsewhere() {
    shards_go_elsewhere(&["--hang-load", "--load-patience-ms", "500"], "500").await;
}
