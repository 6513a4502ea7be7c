//! Nodes that sleep longer than their lease, or that do not hear the coordinator, while clients write and read.
//! The clients keep asking the old owner until it refuses; that it never answers after the new one has begun
//! is checked by [`chaos::load`].

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use backends::link::Way;
use chaos::admin::leader;
use chaos::cluster::Cluster;
use chaos::http::Http;
use chaos::load::Load;
use chaos::until;
use std::time::Duration;

/// A key whose shard `node` leads.
async fn key_of(cluster: &Cluster, keyspace: &str, node: &str) -> String {
    for number in 0..10 {
        let key = format!("key{number}");
        let told = cluster.admin.explain(keyspace, &key).await;
        if leader(&told.explanation.shard) == Some(node) {
            return key;
        }
    }
    panic!("{node} leads none of the keys")
}

/// Waits until `node` itself refuses `key`, because it does not hear the coordinator.
async fn lapses(cluster: &Cluster, node: &str, key: &str) {
    let (http, address) = (Http::default(), &cluster.node(node).address);
    until("the node stops to answer by itself", || async {
        let reply = http.get(address, &format!("/kv/kv/{key}")).await?;
        if reply.status.as_u16() == 503 && reply.text().contains("lapsed") {
            Ok(())
        } else {
            Err(format!("{} {}", reply.status, reply.text()))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_sleeps_longer_than_its_lease_answers_nothing_as_owner_when_it_wakes() {
    let cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;
    let key = key_of(&cluster, "kv", "n2").await;

    load.may_lose("n2");
    let sleeper = cluster.node("n2");
    sleeper.process.pause();
    cluster.admin.is_seen_as("n2", &["down"]).await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    let new = cluster.admin.explain("kv", &key).await.explanation.shard.epoch;

    // These wait in the sockets of the sleeper; they are the first thing that it sees.
    let tempted: Vec<_> = (0..20)
        .map(|_| {
            let (address, path) = (sleeper.address.clone(), format!("/kv/kv/{key}"));
            tokio::spawn(async move { Http::default().get(&address, &path).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    sleeper.process.wake();
    let mut answers = 0;
    for one in tempted {
        let Ok(reply) = one.await.unwrap() else { continue };
        answers += 1;
        let epoch: Option<u64> = reply.header("partage-epoch").map(|epoch| epoch.parse().unwrap());
        assert!(
            epoch.is_none_or(|epoch| epoch >= new),
            "answered in {epoch:?} after {new} had begun: {reply:?}"
        );
    }
    assert!(answers > 0, "the sleeper has answered somehow");

    cluster.admin.is_seen_as("n2", &["up"]).await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cut_off_from_the_coordinator_stops_exclusive_shards_and_goes_on_with_eventual_ones() {
    let cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    cluster.keyspace("soft", "eventual", "suggested").await;
    let (load, soft) = (Load::start(&cluster.admin, "kv", true), Load::start(&cluster.admin, "soft", false));
    load.rounds(3).await;
    soft.rounds(3).await;
    let (key, soft_key) = (key_of(&cluster, "kv", "n2").await, key_of(&cluster, "soft", "n2").await);

    load.may_lose("n2");
    let failed = soft.account().failed;
    cluster.node("n2").link.cut();
    lapses(&cluster, "n2", &key).await;
    let address = &cluster.node("n2").address;
    let eventual = Http::default().get(address, &format!("/kv/soft/{soft_key}")).await.unwrap();
    assert_eq!(eventual.status, 200, "{eventual:?}");
    assert_eq!(eventual.header("partage-node"), Some("n2"));
    cluster.admin.is_seen_as("n2", &["down"]).await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    soft.rounds(3).await;
    assert_eq!(soft.account().failed, failed, "{:?}", soft.account());

    cluster.node("n2").link.mend();
    cluster.admin.is_seen_as("n2", &["up"]).await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    load.finish().await;
    soft.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_heard_and_does_not_hear_loses_its_shards() {
    let cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;
    let key = key_of(&cluster, "kv", "n2").await;

    load.may_lose("n2");
    cluster.node("n2").link.hold(Way::Back);
    lapses(&cluster, "n2", &key).await;
    until("somebody else serves", || async {
        let told = cluster.admin.explain("kv", &key).await;
        match leader(&told.explanation.shard) {
            Some("n2") | None => Err(told.text),
            Some(_) => Ok(()),
        }
    })
    .await;
    cluster.admin.settled().await;
    load.rounds(3).await;

    cluster.node("n2").link.mend();
    cluster.admin.is_seen_as("n2", &["up"]).await;
    cluster.admin.settled().await;
    load.finish().await;
}

/// The check of the checkers: an eventual shard may be answered for by two nodes, so clients that take it for an
/// exclusive one must find out lies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[should_panic(expected = "lies")]
async fn the_clients_find_out_a_node_that_answers_after_another_has_begun() {
    let cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "eventual", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;
    cluster.node("n2").link.cut();
    cluster.admin.is_seen_as("n2", &["down"]).await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    load.finish().await;
}
