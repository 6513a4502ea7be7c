//! Clusters of one and three nodes: empty, upgrading, joined late, left and come back to, and told to go back.

use super::test_cluster::{FILES, TestCluster, dataset, get, until, version};
use partage_dataset::node::{Node, NodeOptions};
use partage_dataset::source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_goes_from_version_to_version_and_removes_the_old_ones() {
    let mut test_cluster = TestCluster::new();
    test_cluster.start(1).await;
    let mut seen = Vec::new();
    until("it knows that nothing is there", async || {
        let answer = test_cluster.get(1, "/names/key-1").await;
        seen.push(answer.status);
        answer.status == 404
    })
    .await;
    assert!(seen.iter().all(|status| [404, 503].contains(status)), "{seen:?}");
    for name in ["v1", "v2", "v3"] {
        test_cluster.write(name);
        test_cluster.all_serve(name).await;
    }
    assert_eq!(test_cluster.here(1, "v3"), (0..FILES).collect::<Vec<_>>());
    until("v1 is gone", async || !test_cluster.is_stored(1, "v1") && !test_cluster.is_stored(1, "v2")).await;
    assert_eq!(test_cluster.end().await, [["v1", "v2", "v3"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_s11_three_nodes_share_a_version_and_upgrade_without_a_failed_read() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(3, 2).await;
    test_cluster.all_serve("v1").await;
    let held: Vec<BTreeSet<u32>> =
        (1..=3).map(|node| test_cluster.here(node, "v1").into_iter().collect()).collect();
    for partition in 0..FILES {
        let replicas = held.iter().filter(|held| held.contains(&partition)).count();
        assert!(replicas >= 2, "partition {partition}: {held:?}");
    }
    assert_ne!(held[0], held[1]);
    for name in ["v2", "v3"] {
        test_cluster.write(name);
        test_cluster.nodes[&1].refresh();
        test_cluster.all_serve(name).await;
    }
    assert_eq!(test_cluster.end().await, vec![["v1", "v2", "v3"]; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s13_who_joins_late_serves_at_once_by_asking_the_others() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(2, 1).await;
    test_cluster.all_serve("v1").await;
    let mut options = test_cluster.options(3);
    // It never comes to load anything, and need not.
    options.stable = Duration::from_secs(3_600);
    test_cluster.start_with(3, options).await;
    test_cluster.serves(3, "v1").await;
    assert!(test_cluster.here(3, "v1").is_empty());
    assert_eq!(test_cluster.end().await, vec![["v1"]; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_comes_back_to_what_the_others_have() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(3, 1).await;
    test_cluster.all_serve("v1").await;
    // A version is served from one copy of each partition on; a node that stops takes its only copies along.
    test_cluster.all_know_copies("v1", 2).await;
    assert_eq!(test_cluster.stop(3).await, ["v1"]);
    test_cluster.write("v2");
    test_cluster.all_serve("v2").await;
    test_cluster.start(3).await;
    test_cluster.serves(3, "v2").await;
    let seen = test_cluster.end().await;
    assert_eq!(seen[..2], [["v1", "v2"], ["v1", "v2"]]);
    assert!(seen[2].ends_with(&["v2".to_owned()]), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s14_never_back_though_the_source_has_only_an_earlier_version() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v3");
    test_cluster.start(1).await;
    test_cluster.all_serve("v3").await;
    std::fs::remove_dir_all(test_cluster.source().join("names/v3")).unwrap();
    test_cluster.write("v2");
    test_cluster.stop(1).await;
    // It was told to look at the source as it starts; what it had is later.
    test_cluster.start(1).await;
    test_cluster.all_serve("v3").await;
    test_cluster.write("v4");
    test_cluster.all_serve("v4").await;
    assert_eq!(test_cluster.end().await, [["v3", "v4"]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_to_go_back_reaches_all_nodes_and_is_taken_back() {
    let mut test_cluster = TestCluster::new();
    test_cluster.write("v1");
    test_cluster.start_many(2, 1).await;
    test_cluster.all_serve("v1").await;
    test_cluster.write("v2");
    test_cluster.all_serve("v2").await;
    let told = test_cluster.nodes[&1].pin(&dataset(), Some(&version("v9"))).unwrap_err();
    assert!(told.to_string().contains("it has v1, v2"), "{told}");
    test_cluster.nodes[&1].pin(&dataset(), Some(&version("v1"))).unwrap();
    test_cluster.all_serve("v1").await;
    // Each node tells of the order, in every node's answer.
    for node in [1, 2] {
        let pinned = test_cluster.json(node, &format!("/{}", dataset())).await["pinned"].clone();
        let versions: Vec<_> =
            pinned.as_object().into_iter().flatten().map(|(_, version)| version.clone()).collect();
        assert_eq!(versions, ["v1", "v1"], "{pinned}");
    }
    test_cluster.write("v3");
    test_cluster.nodes[&2].pin(&dataset(), None).unwrap();
    test_cluster.all_serve("v3").await;
    assert!(test_cluster.json(1, &format!("/{}", dataset())).await["pinned"].is_null());
    let seen = test_cluster.end().await;
    assert!(
        seen.iter().all(|seen| seen == &["v1", "v2", "v1", "v3"] || seen == &["v1", "v2", "v1", "v2", "v3"]),
        "{seen:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dataset_that_is_removed_is_let_go_and_may_come_back() {
    let test_cluster = TestCluster::new();
    test_cluster.write("v1");
    let source = Source::open(&test_cluster.source().display().to_string(), &BTreeMap::new()).unwrap();
    let start = async |node| {
        Node::start(test_cluster.options(node), test_cluster.service.clone(), source.clone()).await.unwrap()
    };
    let nodes = [(1, start(1).await), (2, start(2).await)];
    let all_answer = async |status: u16| {
        for (_, node) in &nodes {
            until("both nodes answer so", async || {
                get(node.address(), "/names/key-1").await.is_some_and(|answer| answer.status == status)
            })
            .await;
        }
    };
    all_answer(200).await;
    let settings = test_cluster.source().join("names").join(partage_dataset::settings::FILE);
    let before = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, format!("{before}\nserved = false\n")).unwrap();
    all_answer(404).await;
    for (node, _) in &nodes {
        until("its files are deleted", async || !test_cluster.is_stored(*node, "v1")).await;
    }
    std::fs::write(&settings, before).unwrap();
    all_answer(200).await;
    for (_, node) in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_versions_of_another_source_are_counted_and_logged_once() {
    super::log::listen();
    let (mut test_cluster, others) = (TestCluster::new(), TestCluster::new());
    test_cluster.write("v1");
    others.write("day-9");
    let options = |node| NodeOptions { unlisted: Duration::from_millis(500), ..test_cluster.options(node) };
    let (own, foreign) = (options(1), options(2));
    let source = Source::open(&others.source().display().to_string(), &BTreeMap::new()).unwrap();
    test_cluster.start_with(1, own).await;
    test_cluster.serves(1, "v1").await;
    let unlisted = "partage_dataset_versions_unlisted{dataset=\"names\"}";
    assert_eq!(test_cluster.metric(1, unlisted).await, 0.0);
    test_cluster.start_silent(2, foreign, source).await;
    until("it knows of the version that it cannot have", async || {
        test_cluster.metric(1, unlisted).await == 1.0
    })
    .await;
    let lines = || super::log::count(&["the source of this node does not list", "day-9"]);
    until("it says so", async || lines() == 1).await;
    // It looks again and again meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((lines(), test_cluster.metric(1, unlisted).await), (1, 1.0));
    test_cluster.stop(2).await;
    until("the version is gone", async || test_cluster.metric(1, unlisted).await == 0.0).await;
    assert_eq!(test_cluster.end().await, [["v1"]]);
}
