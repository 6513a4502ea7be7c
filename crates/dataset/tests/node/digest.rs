//! A node whose source has a version of the same name, in as many files, with other contents.

use super::log;
use super::test_cluster::{KEYS, TestCluster, until};
use partage_dataset::node::NodeOptions;
use partage_dataset::source::Source;
use partage_service::dataset::Replication;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use tokio::time::sleep;

/// Peers of a node that have other files under the name of v1.
const DIFFERING: &str = "partage_dataset_peers_differing{dataset=\"names\",version=\"v1\"}";

/// A node that has all of a version, if it loads at all.
fn options(test_cluster: &TestCluster, node: u32) -> NodeOptions {
    let mut options = NodeOptions { unlisted: Duration::from_millis(500), ..test_cluster.options(node) };
    options.spread.replication = Replication { wanted: 3, min: 1, max: None };
    options
}

/// What a node gives for each key is of this source, if it gives anything.
async fn gives_nothing_foreign(test_cluster: &TestCluster, node: u32) {
    for key in 0..KEYS {
        let answer = test_cluster.get(node, &format!("/names/key-{key}")).await;
        assert!(answer.status != 200 || answer.body == format!("v1 {key}"), "node {node}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_who_has_other_files_under_the_same_name_is_told_of_and_never_asked() {
    log::listen();
    let (mut test_cluster, others) = (TestCluster::new(), TestCluster::new());
    test_cluster.write("v1");
    others.write_values("v1", "staging");
    let foreign = Source::open(&others.source().display().to_string(), &BTreeMap::new()).unwrap();
    let of_stranger = options(&test_cluster, 3);
    test_cluster.start_silent(3, of_stranger, foreign).await;
    let stranger = test_cluster.nodes[&3].address().to_string();
    until("the stranger serves its own clients", async || {
        test_cluster.get(3, "/names/key-1").await.body == "staging 1"
    })
    .await;

    // This node never loads anything: all that it has for its clients is of peers.
    let own = Source::open(&test_cluster.source().display().to_string(), &BTreeMap::new()).unwrap();
    let idle = NodeOptions { stable: Duration::from_secs(3_600), ..options(&test_cluster, 2) };
    test_cluster.start_silent(2, idle, own).await;
    until("node 2 knows of the difference", async || {
        gives_nothing_foreign(&test_cluster, 2).await;
        test_cluster.metric(2, DIFFERING).await == 1.0
    })
    .await;
    for _ in 0..10 {
        gives_nothing_foreign(&test_cluster, 2).await;
        sleep(Duration::from_millis(50)).await;
    }
    assert_ne!(test_cluster.get(2, "/names/key-1").await.status, 200, "nobody has what its source lists");
    let whole = options(&test_cluster, 1);
    test_cluster.start_with(1, whole).await;
    for node in [1, 2] {
        test_cluster.serves(node, "v1").await;
        until("the difference is counted", async || test_cluster.metric(node, DIFFERING).await == 1.0).await;
        let told = test_cluster.told(node, "names", "v1").await;
        assert_eq!(told["differing"], serde_json::json!([stranger]), "{told}");
    }
    assert!(test_cluster.here(2, "v1").is_empty());

    let lines = || log::count(&["other files under the name of this version", "version=v1", &stranger]);
    until("both nodes say so", async || lines() == 2).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(lines(), 2, "each says so once");
    assert_eq!(
        test_cluster.get(3, "/names/key-1").await.body,
        "staging 1",
        "nor does the stranger take what they have"
    );
    assert_eq!(test_cluster.metric(3, DIFFERING).await, 1.0);

    // A restart without a source: what is on the disk is known to be of the right files.
    fs::rename(test_cluster.source().join("names"), test_cluster.source().with_file_name("away")).unwrap();
    test_cluster.stop(1).await;
    gives_nothing_foreign(&test_cluster, 2).await;
    let whole = options(&test_cluster, 1);
    test_cluster.start_with(1, whole).await;
    test_cluster.serves(1, "v1").await;
    test_cluster.serves(2, "v1").await;
    until("it knows of the difference", async || test_cluster.metric(1, DIFFERING).await == 1.0).await;
    test_cluster.stop(3).await;
    for node in [1, 2] {
        until("the difference is gone", async || test_cluster.metric(node, DIFFERING).await == 0.0).await;
    }
    test_cluster.end().await;
}
