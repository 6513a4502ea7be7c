//! The coordination service is gone, or takes a node for dead.

use chaos::dataset::{Ground, Nodes};
use partage_coordination::Backend;
use partage_service::dataset::Dealing;

/// S2: it goes while versions are served, and comes back. Nobody who reads notices; what is new waits for it.
async fn gone_midway(backend: Backend) {
    let mut nodes = Nodes::new(Ground::of(backend).await, 3, &[]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let shares = nodes.shares(Dealing::Interleaved, 2).await;
    nodes.ground.engine().kill();
    nodes.check("v1").await;
    nodes.publish("v2");
    nodes.refresh_all();
    nodes.hold("v2", &shares).await;
    nodes.are_watched().await;
    nodes.check("v1").await;
    nodes.ground.engine().revive().await;
    nodes.all_serve("v2").await;
    nodes.check("v2").await;
    nodes.have_all_seen("v1 -> v2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_etcd_is_gone_and_comes_back() {
    gone_midway(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_zookeeper_is_gone_and_comes_back() {
    gone_midway(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "`./test long` runs it"]
async fn s2_mysql_is_gone_and_comes_back() {
    gone_midway(Backend::MySql).await;
}

/// S20: it is gone for all of a restart. Each node serves what it has in its local store, and loads what is new; with a
/// replica of everything that is all.
async fn gone_all_the_time(backend: Backend) {
    let mut nodes = Nodes::new(Ground::of(backend).await, 3, &[("replication", "3")]);
    nodes.start_with("v1").await;
    nodes.hold("v1", &nodes.shares(Dealing::Interleaved, 3).await).await;
    for node in nodes.numbers() {
        nodes.stop(node).await;
    }
    nodes.ground.engine().kill();
    nodes.start_all();
    nodes.all_serve("v1").await;
    nodes.check("v1").await;
    nodes.have_all_seen("v1 -> down -> v1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_all_start_without_etcd() {
    gone_all_the_time(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_all_start_without_zookeeper() {
    gone_all_the_time(Backend::ZooKeeper).await;
}

/// Gossip has no service; what can be gone is the node that all others were told of. They go on with each other, and one
/// that starts alone serves what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_the_node_that_all_were_told_of_is_gone() {
    let mut nodes =
        Nodes::new(Ground::of(Backend::Gossip).await, 4, &[("replication", "4"), ("min_replication", "3")]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    nodes.kill(1).await;
    nodes.publish("v2");
    nodes.refresh_all();
    for node in [2, 3, 4] {
        nodes.serves(node, "v2").await;
    }
    nodes.check("v2").await;
    nodes.stop(2).await;
    nodes.start(2);
    nodes.serves(2, "v2").await;
    nodes.check("v2").await;
    nodes.start(1);
    nodes.serves(1, "v2").await;
    nodes.are_acquainted("v2").await;
    nodes.have_seen(&["v1 -> down -> [v1 -> ]v2", "v1 -> v2 -> down -> v2", "v1 -> v2", "v1 -> v2"]).await;
}

/// The service sleeps for longer than sessions live. When it wakes it ends them all, and the nodes come back by themselves
/// with all they had; nothing that is served stops.
async fn sessions_expire(backend: Backend) {
    let mut nodes = Nodes::new(Ground::of(backend).await, 3, &[]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let observer = nodes.observer().await;
    let before = observer.sessions().await.unwrap();
    nodes.ground.engine().pause();
    nodes.have_lost_their_sessions().await;
    nodes.check("v1").await;
    nodes.ground.engine().wake();
    observer.are_renewed(&before).await;
    nodes.upgrade("v2").await;
    nodes.check("v2").await;
    nodes.have_all_seen("v1 -> v2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_sessions_on_etcd_expire() {
    sessions_expire(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_sessions_on_zookeeper_expire() {
    sessions_expire(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s9_sessions_on_mysql_expire() {
    sessions_expire(Backend::MySql).await;
}
