//! Nodes that die, come back, leave, and are drained, while clients write and read.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::admin::leader;
use chaos::cluster::Cluster;
use chaos::load::Load;
use partage_wire::json::Change;
use std::collections::BTreeMap;

/// Epoch of every shard.
async fn epochs(cluster: &Cluster) -> BTreeMap<u64, u64> {
    cluster.admin.shards("kv").await.iter().map(|shard| (shard.shard, shard.epoch)).collect()
}

/// Shards that `node` leads.
async fn led_by(cluster: &Cluster, node: &str) -> Vec<u64> {
    let shards = cluster.admin.shards("kv").await;
    shards.iter().filter(|shard| leader(shard) == Some(node)).map(|shard| shard.shard).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shards_of_a_killed_node_are_served_elsewhere_under_higher_epochs() {
    let mut cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;
    let (before, lost) = (epochs(&cluster).await, led_by(&cluster, "n2").await);
    assert!(!lost.is_empty(), "n2 leads something");

    load.may_lose("n2");
    cluster.node_mut("n2").process.kill();
    cluster.admin.is_seen_as("n2", &["down"]).await;
    cluster.admin.settled().await;
    load.rounds(3).await;

    let after = epochs(&cluster).await;
    assert!(led_by(&cluster, "n2").await.is_empty());
    for (shard, epoch) in &before {
        if lost.contains(shard) {
            assert!(
                after[shard] > *epoch,
                "s{shard} has a new owner under a new epoch: {before:?} {after:?}"
            );
        } else {
            assert_eq!(after[shard], *epoch, "s{shard} stays where it was: {before:?} {after:?}");
        }
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_again_at_once_is_a_new_incarnation_and_gets_its_shards_back() {
    let mut cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::start(&cluster.admin, "kv", true);
    // Who dies just after it took its shards on is suspected to have died of them, and they go elsewhere.
    tokio::time::sleep(2 * chaos::cluster::POISON_WINDOW).await;
    load.rounds(3).await;
    let (before, lost) = (epochs(&cluster).await, led_by(&cluster, "n2").await);
    let incarnation = cluster.admin.node("n2").await.unwrap().incarnation;

    load.may_lose("n2");
    cluster.node_mut("n2").process.kill();
    cluster.restart_node("n2").await;
    cluster.admin.settled().await;
    load.rounds(3).await;

    let after = epochs(&cluster).await;
    let node = cluster.admin.node("n2").await.unwrap();
    assert!(node.incarnation > incarnation, "{node:?}");
    // All of it, but for what the loads measured meanwhile have sent elsewhere.
    let led = led_by(&cluster, "n2").await;
    assert!(
        !led.is_empty() && led.iter().all(|shard| lost.contains(shard)),
        "it had {lost:?} and has {led:?}"
    );
    for shard in &lost {
        assert!(after[shard] > before[shard], "s{shard} begins anew under a new epoch");
    }
    let stayed = |shard: &&u64| !lost.contains(shard);
    for shard in before.keys().filter(stayed) {
        assert_eq!(after[shard], before[shard], "s{shard} stays where it was");
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_asked_to_end_hands_everything_over_and_no_request_fails() {
    let mut cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "automatic").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;

    cluster.node("n3").process.terminate();
    let status = cluster.node_mut("n3").process.end().await;
    assert!(status.success(), "{status}");
    load.rounds(3).await;

    assert!(led_by(&cluster, "n3").await.is_empty());
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_under_load_fails_no_request() {
    use partage_wire::json::{Command, DrainState};
    let cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "automatic").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;

    let drain = Command::DrainNode { node: "n1".to_owned(), reason: "a test".to_owned(), max_down: None };
    cluster.admin.command(drain).await.unwrap();
    chaos::until("the drain ends", || async {
        let status = cluster.admin.status().await;
        let done = status.drains.iter().any(|drain| drain.progress.is(DrainState::SafeToStop));
        if done { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    load.rounds(3).await;
    assert!(led_by(&cluster, "n1").await.is_empty());

    // And back: a rebalance that a drained node takes part in again.
    cluster.admin.command(Command::UndrainNode { node: "n1".to_owned() }).await.unwrap();
    load.rounds(3).await;
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_death_loads_are_evened_out_without_moving_a_shard_to_and_fro() {
    let mut cluster = Cluster::start(3).await;
    cluster.keyspace("kv", "exclusive", "automatic").await;
    let load = Load::start(&cluster.admin, "kv", true);
    load.rounds(3).await;
    load.may_lose("n2");
    cluster.node_mut("n2").process.kill();
    cluster.admin.is_seen_as("n2", &["down"]).await;
    // Long enough for newcomers to be measured, and for what follows from that.
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    cluster.admin.settled().await;
    let plans = cluster.admin.plans("kv").await.plans;
    let mut moves: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for planned in plans
        .iter()
        .rev()
        .filter(|plan| plan.origin.is(partage_wire::json::PlanOrigin::Rebalance))
        .flat_map(|plan| &plan.changes)
    {
        if let Change::Move { shard, .. } = planned.change {
            moves.entry(shard).or_default().push(planned.reason.clone());
        }
    }
    let to_and_fro: Vec<_> = moves.values().filter(|reasons| reasons.len() > 1).collect();
    assert!(to_and_fro.is_empty(), "{to_and_fro:#?} of {moves:#?}");
    load.finish().await;
}
