//! Services whose callbacks hang, panic or refuse: their shards are served elsewhere, and why can be seen.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::cluster::{Cluster, SHARDS};
use chaos::load::Load;
use chaos::until;
use partage_wire::json::Command;

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
    shards_go_elsewhere(&["--fault", "load=refuse"], "this node refuses every load").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_panics_is_tried_elsewhere() {
    shards_go_elsewhere(&["--fault", "load=panic"], "this node panics at every load").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_hangs_is_tried_elsewhere() {
    shards_go_elsewhere(&["--fault", "load=hang", "--patience-ms", "500"], "500").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_serve_that_refuses_is_tried_elsewhere() {
    shards_go_elsewhere(&["--fault", "serve=refuse"], "this node refuses every serve").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_serve_that_panics_is_tried_elsewhere() {
    shards_go_elsewhere(&["--fault", "serve=panic"], "this node panics at every serve").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_serve_that_hangs_is_tried_elsewhere() {
    shards_go_elsewhere(&["--fault", "serve=hang", "--patience-ms", "500"], "500").await;
}

/// A drain ends though no callback of the kind does: everything is served elsewhere in the end, by one at a time.
async fn a_drain_ends(flags: &[&str]) {
    let mut cluster = Cluster::start(2).await;
    cluster.add_node("n3", flags).await;
    cluster.keyspace("kv", "exclusive", "automatic").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;
    load.may_lose("n3");
    let drain = Command::DrainNode { node: "n3".to_owned(), reason: "a test".to_owned(), max_down: None };
    cluster.admin.command(drain).await.unwrap();
    until("the others lead everything", || async {
        let nodes = cluster.admin.nodes().await;
        let (mut led, mut bad) = (0, 0);
        for node in &nodes {
            *if node.id == "n3" { &mut bad } else { &mut led } += node.leaders;
        }
        if led == SHARDS as usize && bad == 0 { Ok(()) } else { Err(format!("{nodes:#?}")) }
    })
    .await;
    load.rounds(3).await;
    // No node lied: at no moment did two answer as owners.
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_o1_an_unload_that_refuses_does_not_stop_a_drain() {
    a_drain_ends(&["--fault", "unload=refuse"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_o1_an_unload_that_panics_does_not_stop_a_drain() {
    a_drain_ends(&["--fault", "unload=panic"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_o1_an_unload_that_hangs_does_not_stop_a_drain() {
    a_drain_ends(&["--fault", "unload=hang", "--patience-ms", "500"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_drop_that_refuses_panics_or_hangs_does_not_stop_a_drain() {
    let patience = ["--patience-ms", "500"];
    let flags = |fault: &'static str| ["--fault", fault, patience[0], patience[1]];
    a_drain_ends(&flags("drop=refuse")).await;
    a_drain_ends(&flags("drop=panic")).await;
    a_drain_ends(&flags("drop=hang")).await;
}
