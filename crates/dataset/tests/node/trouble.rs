//! The source away, the coordination service away, and versions that cannot be read.

use super::test_cluster::{TestCluster, until};
use partage_dataset::catalogue::State;
use std::fs;
use std::time::Duration;
use tokio::time::sleep;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_a_restart_while_the_source_is_away_serves_what_is_stored() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(2, 1).await;
    test_cluster.all_serve("v1").await;
    for node in 1..=2 {
        test_cluster.stop(node).await;
    }
    let (source, away) = (test_cluster.source(), test_cluster.source().with_file_name("away"));
    let held: Vec<_> = (1..=2).map(|node| test_cluster.data_dir(node)).collect();
    assert!(held.iter().all(|held| held.exists()));
    fs::rename(source.join("names"), &away).unwrap();
    test_cluster.start_many(2, 1).await;
    test_cluster.all_serve("v1").await;
    fs::rename(&away, source.join("names")).unwrap();
    test_cluster.write("v2");
    test_cluster.all_serve("v2").await;
    assert_eq!(test_cluster.end().await, vec![["v1", "v2"]; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_without_the_coordination_service_all_is_served_on() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(3, 2).await;
    test_cluster.all_serve("v1").await;
    test_cluster.service.is_away(true);
    // Sessions end meanwhile; the readers read on.
    sleep(Duration::from_secs(4)).await;
    test_cluster.all_serve("v1").await;
    test_cluster.write("v2");
    test_cluster.service.is_away(false);
    test_cluster.all_serve("v2").await;
    assert_eq!(test_cluster.end().await, vec![["v1", "v2"]; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_a_node_alone_restarts_without_any_service() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.stop(1).await;
    test_cluster.service.is_away(true);
    fs::rename(test_cluster.source().join("names"), test_cluster.source().with_file_name("away")).unwrap();
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s19_a_version_that_cannot_be_read_is_an_error_and_the_old_one_serves() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start(1).await;
    test_cluster.all_serve("v1").await;
    // Made unreadable aside, so that nobody ever sees it whole.
    test_cluster.write("_v2");
    let names = test_cluster.source().join("names");
    fs::write(names.join("_v2/part-00003.tsv"), "a line without a tab\n").unwrap();
    fs::rename(names.join("_v2"), names.join("v2")).unwrap();
    until("v2 is an error that names the file", async || {
        let dataset = test_cluster.nodes[&1].catalogue().dataset("names").unwrap();
        let state = dataset.version("v2").map(|version| version.state());
        matches!(&state, Some(State::Error { reason, .. }) if reason.contains("part-00003.tsv"))
    })
    .await;
    test_cluster.all_serve("v1").await;
    test_cluster.write("v3");
    test_cluster.all_serve("v3").await;
    assert_eq!(test_cluster.end().await, [["v1", "v3"]]);
}
