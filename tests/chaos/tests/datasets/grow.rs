//! Versions come: to clusters that are empty, and that serve another; to one node later than to the others, or not at all.

use chaos::dataset::{Ground, Nodes};
use partage_coordination::Backend;
use partage_service::dataset::Dealing;

/// Nodes of a large cluster.
const LARGE: usize = 30;
/// Nodes of a cluster in which most still have no partition, and which start in a third of the time.
const SEVERAL: usize = 12;

/// Nodes with nothing come up, and upgrade twice.
async fn grows(backend: Backend, nodes: usize, min: &str) {
    let mut nodes = Nodes::new(Ground::of(backend).await, nodes, &[("min_replication", min)]);
    nodes.start_with("v1").await;
    nodes.check("v1").await;
    for version in ["v2", "v3"] {
        nodes.upgrade(version).await;
        nodes.check(version).await;
    }
    nodes.have_all_seen("v1 -> v2 -> v3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_alone_on_etcd() {
    grows(Backend::Etcd, 1, "1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_on_etcd() {
    grows(Backend::Etcd, 3, "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_on_zookeeper() {
    grows(Backend::ZooKeeper, 3, "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_by_gossip() {
    grows(Backend::Gossip, 3, "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "`./test long` runs it"]
async fn three_nodes_on_mysql() {
    grows(Backend::MySql, 3, "2").await;
}

/// Many nodes of which most have nothing: all answer, and all upgrade.
async fn large(backend: Backend, count: usize) {
    let mut nodes = Nodes::new(Ground::of(backend).await, count, &[("min_replication", "2")]);
    nodes.start_with("v1").await;
    nodes.check_at(&[1, count / 2, count], "v1").await;
    nodes.upgrade("v2").await;
    nodes.check_at(&[1, count / 2, count], "v2").await;
    nodes.have_all_seen("v1 -> v2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_nodes_on_etcd() {
    large(Backend::Etcd, SEVERAL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn thirty_nodes_on_etcd() {
    large(Backend::Etcd, LARGE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn thirty_nodes_on_zookeeper() {
    large(Backend::ZooKeeper, LARGE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn thirty_nodes_by_gossip() {
    large(Backend::Gossip, LARGE).await;
}

/// S10, S14: a node that is told of a version long before the others waits for them, and nobody loses a read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_comes_to_one_node_first() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 3, &[("min_replication", "2")]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let shares = nodes.shares(Dealing::Interleaved, 2).await;
    nodes.source(1).add("v2");
    nodes.refresh(1);
    nodes.hold("v2", &shares[..1]).await;
    nodes.are_watched().await;
    nodes.check("v1").await;
    nodes.source(2).add("v2");
    nodes.source(3).add("v2");
    nodes.refresh_all();
    nodes.all_serve("v2").await;
    nodes.check("v2").await;
    nodes.have_all_seen("v1 -> v2").await;
}

/// S10: a node whose own load takes for ever upgrades with the others, and asks them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_loads_slowly_upgrades_with_the_others() {
    let mut nodes = Nodes::new(Ground::of(Backend::Gossip).await, 3, &[]);
    nodes.set(2, "load_bytes_s", "20000");
    nodes.start_with("v1").await;
    nodes.publish_heavy("v2", 2_000_000);
    nodes.refresh_all();
    nodes.all_serve("v2").await;
    nodes.check("v2").await;
    nodes.hold("v2", &[(2, [].into())]).await;
    nodes.have_all_seen("v1 -> v2").await;
}

/// S14: the source loses the version that is served, and has an earlier one instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_back_to_an_earlier_version() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 3, &[("min_replication", "2")]);
    nodes.start_with("v3").await;
    nodes.publish("v2");
    nodes.numbers().into_iter().for_each(|node| nodes.source(node).remove("v3"));
    nodes.have_looked().await;
    nodes.check("v3").await;
    // Not even for who has nothing of it in its source any more, and starts anew.
    nodes.stop(2).await;
    nodes.start(2);
    nodes.serves(2, "v3").await;
    nodes.have_seen(&["v3", "v3 -> down -> v3", "v3"]).await;
}

/// S13: who joins serves what the others have as soon as its own source was heard, long before it has loaded anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_late_serves_what_the_others_do() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 3, &[("min_replication", "2")]);
    nodes.start_with("v3").await;
    let late = nodes.add(&[("stable_s", "3600")]);
    nodes.source(late).add("v3");
    nodes.start(late);
    nodes.serves(late, "v3").await;
    nodes.hold("v3", &[(late, [].into())]).await;
    nodes.check("v3").await;
    nodes.have_all_seen("v3").await;
}

/// Z5: a node whose source never gets v2 goes on with v1, which it has, though both others have v2 and v1 no more; and
/// goes on to v3 with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_a_node_whose_source_lacks_a_version_does_not_serve_it() {
    let settings = [("replication", "3"), ("min_replication", "2"), ("keep_s", "2")];
    let mut nodes = Nodes::new(Ground::of(Backend::Gossip).await, 3, &settings);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    nodes.source(2).add("v2");
    nodes.source(3).add("v2");
    nodes.refresh_all();
    nodes.serves(2, "v2").await;
    nodes.serves(3, "v2").await;
    nodes.is_gone(2, "v1").await;
    nodes.is_gone(3, "v1").await;
    chaos::dataset::watch::check(&nodes.http, nodes.address(1), "v1").await;
    nodes.upgrade("v3").await;
    nodes.check("v3").await;
    nodes.have_seen(&["v1 -> v3", "v1 -> v2 -> v3", "v1 -> v2 -> v3"]).await;
}

/// Z5: three nodes, and one that reads another source, which has a later version. It serves that, to its own clients: no
/// other node does. When it goes no client misses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_one_node_with_another_source_changes_nothing_for_the_others() {
    let settings = [("replication", "2"), ("min_replication", "1")];
    let mut nodes = Nodes::new(Ground::of(Backend::Gossip).await, 3, &settings);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let stranger = nodes.add(&[("replication", "9"), ("min_replication", "1")]);
    nodes.source(stranger).add("v9");
    nodes.start(stranger);
    nodes.serves(stranger, "v9").await;
    nodes.hold("v9", &[(stranger, (0..chaos::dataset::source::FILES).collect())]).await;
    // All others see what it has, and have looked for it.
    for node in [1, 2, 3] {
        nodes.knows_of(node, stranger, "v9").await;
    }
    nodes.are_watched().await;
    for node in [1, 2, 3] {
        chaos::dataset::watch::check(&nodes.http, nodes.address(node), "v1").await;
    }
    nodes.kill(stranger).await;
    nodes.source(1).add("v2");
    nodes.source(2).add("v2");
    nodes.source(3).add("v2");
    nodes.refresh_all();
    for node in [1, 2, 3] {
        nodes.serves(node, "v2").await;
        assert_eq!(nodes.lacked(node), [""; 0]);
    }
    nodes.excuse();
    nodes.have_seen(&["v1 -> v2", "v1 -> v2", "v1 -> v2", "v9 -> down"]).await;
}
