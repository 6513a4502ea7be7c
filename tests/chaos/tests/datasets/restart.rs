//! Nodes end, are killed, and come back.

use chaos::dataset::watch::Sight;
use chaos::dataset::{Ground, Nodes};
use partage_coordination::Backend;
use partage_service::dataset::Dealing;

/// One after the other, on the same version: no client notices, and each serves it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 3, &[("min_replication", "2")]);
    nodes.start_with("v3").await;
    nodes.are_acquainted("v3").await;
    for node in nodes.numbers() {
        nodes.stop(node).await;
        nodes.check("v3").await;
        nodes.start(node);
        nodes.serves(node, "v3").await;
        nodes.are_acquainted("v3").await;
    }
    nodes.check("v3").await;
    nodes.have_all_seen("v3 -> down -> v3").await;
}

/// A node is away while the others upgrade, and comes back to what they have, never to what it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 3, &[]);
    nodes.start_with("v2").await;
    nodes.are_acquainted("v2").await;
    nodes.stop(2).await;
    nodes.publish("v3");
    nodes.refresh_all();
    nodes.serves(1, "v3").await;
    nodes.serves(3, "v3").await;
    nodes.start(2);
    nodes.serves(2, "v3").await;
    nodes.check("v3").await;
    // What it has stored it serves as soon as it is there; that there is a later version it hears from its source a moment after.
    nodes.have_seen(&["v2 -> v3", "v2 -> down -> [v2 -> ]v3", "v2 -> v3"]).await;
}

/// S10: of three nodes, one cannot load v2. Then one of the two that have it is killed.
///
/// | `min_replication` | before       | after                            |
/// |-------------------|--------------|----------------------------------|
/// | 1                 | v2 is served | what only the dead one had fails |
/// | 2                 | v1 is served | v1 is served, all of it          |
async fn crashes(backend: Backend, min: &str) {
    let mut nodes = Nodes::new(Ground::of(backend).await, 3, &[("min_replication", min)]);
    nodes.set(2, "load_bytes_s", "20000");
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let shares = nodes.shares(Dealing::Interleaved, 2).await;
    nodes.publish_heavy("v2", 2_000_000);
    nodes.refresh_all();
    let is_whole = min == "1";
    nodes.hold("v2", &[shares[0].clone(), shares[2].clone()]).await;
    if is_whole {
        nodes.all_serve("v2").await;
    } else {
        nodes.are_watched().await;
        nodes.check("v1").await;
    }
    nodes.lack_nothing();
    nodes.kill(3).await;
    nodes.are_watched().await;
    let lacked = nodes.lacked(1);
    assert_eq!(!lacked.is_empty(), is_whole, "reads at node 1 failed: {lacked:?}");
    nodes.excuse();

    // When they come back, all is well.
    nodes.kill(2).await;
    nodes.unset(2, "load_bytes_s");
    nodes.start(2);
    nodes.start(3);
    // It was killed while it loaded v2, and rests; a person knows that it loads fast now.
    nodes.is_settled(2).await;
    nodes.refresh(2);
    nodes.all_serve("v2").await;
    nodes.are_acquainted("v2").await;
    nodes.hold("v2", &shares[1..2]).await;
    nodes.excuse();
    nodes.check("v2").await;
    let after = if is_whole {
        ["v1 -> v2", "v1 -> v2 -> down -> v2", "v1 -> v2 -> down -> v2"]
    } else {
        ["v1 -> v2", "v1 -> down -> [v1 -> ]v2", "v1 -> down -> [v1 -> ]v2"]
    };
    nodes.have_seen(&after).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_with_a_minimum_of_one_on_etcd() {
    crashes(Backend::Etcd, "1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_with_a_minimum_of_two_on_etcd() {
    crashes(Backend::Etcd, "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_with_a_minimum_of_two_on_zookeeper() {
    crashes(Backend::ZooKeeper, "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_with_a_minimum_of_two_by_gossip() {
    crashes(Backend::Gossip, "2").await;
}

/// S20: without its source a node starts from what it has, and what is new waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_while_the_source_is_away() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 1, &[]);
    nodes.start_with("v1").await;
    nodes.stop(1).await;
    nodes.publish("v2");
    nodes.source(1).go_away();
    nodes.start(1);
    nodes.serves(1, "v1").await;
    nodes.check("v1").await;
    nodes.refresh(1);
    nodes.are_watched().await;
    nodes.source(1).come_back();
    nodes.refresh(1);
    nodes.serves(1, "v2").await;
    nodes.have_all_seen("v1 -> down -> v1 -> v2").await;
}

/// A peer that sleeps costs its askers a stage, and no read. When it wakes it is as if nothing had happened.
async fn a_peer_sleeps(backend: Backend) {
    let mut nodes = Nodes::new(Ground::of(backend).await, 3, &[]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let observer = nodes.observer().await;
    nodes.process(2).pause();
    observer.counts(nodes.address(2), 0).await;
    nodes.serves_with(1, 3, "v1").await;
    nodes.serves_with(3, 1, "v1").await;
    nodes.process(2).wake();
    nodes.sees(2, &Sight::Version("v1".to_owned())).await;
    // It finds that its session is over, and publishes itself and its share anew.
    observer.counts(nodes.address(2), 2).await;
    nodes.are_acquainted("v1").await;
    nodes.have_all_seen("v1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_a_peer_on_etcd_sleeps() {
    a_peer_sleeps(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_a_peer_by_gossip_sleeps() {
    a_peer_sleeps(Backend::Gossip).await;
}
