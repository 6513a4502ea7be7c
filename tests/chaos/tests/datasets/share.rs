//! Which node has which partitions.

use chaos::dataset::{Ground, Nodes, dealt};
use chaos::until;
use partage_coordination::Backend;
use partage_service::dataset::Dealing;
use std::collections::BTreeSet;

fn sets(expected: &[&[u32]]) -> Vec<(usize, BTreeSet<u32>)> {
    (1..).zip(expected).map(|(node, held)| (node, held.iter().copied().collect())).collect()
}

/// Every node knows all others when `version` comes, so that the shares follow from the seats alone.
async fn deals(nodes: &mut Nodes, before: &str, version: &str) {
    nodes.are_acquainted(before).await;
    nodes.upgrade(version).await;
}

/// S11: what Sequins deals, and what it deals when a node joins; those that were there keep what they have until the
/// next version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_ring_index_deals_as_sequins_does() {
    let settings = [("replication", "3"), ("dealing", "'ring_index'")];
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 0, &[]);
    for seat in 1..=5 {
        let seat = seat.to_string();
        nodes.add(&[settings[0], settings[1], ("shard_id", &seat)]);
    }
    nodes.start_with("v0").await;
    deals(&mut nodes, "v0", "v1").await;
    let five = sets(&[&[0, 1, 3], &[0, 2, 3], &[0, 2, 4], &[1, 2, 4], &[1, 3, 4]]);
    assert_eq!(five, nodes.shares(Dealing::RingIndex, 3).await);
    nodes.hold("v1", &five).await;

    let sixth = nodes.add(&[settings[0], settings[1], ("shard_id", "6")]);
    nodes.source(sixth).add("v1");
    nodes.start(sixth);
    nodes.serves(sixth, "v1").await;
    nodes.hold("v1", &sets(&[&[], &[], &[], &[], &[], &[1, 3]])[5..]).await;
    nodes.hold("v1", &five).await;

    deals(&mut nodes, "v1", "v2").await;
    let six = sets(&[&[0, 2, 4], &[0, 2, 4], &[0, 2, 4], &[1, 3], &[1, 3], &[1, 3]]);
    nodes.hold("v2", &six).await;
    let old = "v0 -> v1 -> v2";
    nodes.have_seen(&[old, old, old, old, old, "v1 -> v2"]).await;
}

/// The default, with seats that are found and not configured: shares follow from them all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interleaved_deals_as_core_says() {
    let mut nodes = Nodes::new(Ground::of(Backend::Gossip).await, 4, &[]);
    nodes.start_with("v0").await;
    deals(&mut nodes, "v0", "v1").await;
    nodes.hold("v1", &nodes.shares(Dealing::Interleaved, 2).await).await;
    nodes.have_all_seen("v0 -> v1").await;
}

/// `max_replication`: a node that comes when there are enough takes nothing, unless it is told otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_max_replication() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 0, &[]);
    let all: &[u32] = &[0, 1, 2, 3, 4];
    let mut expected: Vec<&[u32]> = Vec::new();
    for (seat, max, takes) in [("1", "2", all), ("2", "2", all), ("3", "2", &[]), ("4", "9", &[1, 3])] {
        let settings = [("max_replication", max), ("shard_id", seat), ("dealing", "'ring_index'")];
        let node = nodes.add(&settings);
        nodes.source(node).add("v1");
        nodes.start(node);
        nodes.serves(node, "v1").await;
        nodes.is_settled(node).await;
        expected.push(takes);
        nodes.hold("v1", &sets(&expected)).await;
    }
    assert!(!nodes.log(3).contains("loading"), "{}", nodes.log(3));
    nodes.check("v1").await;
    nodes.have_all_seen("v1").await;
}

/// `min_replication` below `replication`: a node without the version holds nobody up, and stays at what its source has (Z5);
/// equal to it, all wait for it.
async fn a_node_lacks_it(min: &str, expected: &str) {
    let settings = [("replication", "3"), ("min_replication", min)];
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 4, &settings);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let shares = nodes.shares(Dealing::Interleaved, 3).await;
    (1..=3).for_each(|node| nodes.source(node).add("v2"));
    nodes.refresh_all();
    nodes.hold("v2", &shares[..3]).await;
    nodes.are_watched().await;
    for (node, expected) in [(1, expected), (2, expected), (3, expected), (4, "v1")] {
        nodes.serves(node, expected).await;
        chaos::dataset::watch::check(&nodes.http, nodes.address(node), expected).await;
    }

    // It is missed, and what is dealt anew is dealt to the others.
    let observer = nodes.observer().await;
    nodes.kill(4).await;
    observer.counts(nodes.address(4), 0).await;
    nodes.refresh_all();
    for node in 1..=3 {
        nodes.serves(node, "v2").await;
    }
    nodes.check("v2").await;
    nodes.have_seen(&["v1 -> v2", "v1 -> v2", "v1 -> v2", "v1 -> down"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_a_version_waits_for_its_minimum() {
    a_node_lacks_it("3", "v1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_a_version_does_not_wait_for_more_than_its_minimum() {
    a_node_lacks_it("2", "v2").await;
}

/// Seats are found one by one, and one that is left is taken by who comes next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_seats_are_assigned_and_taken_over() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 3, &[]);
    nodes.publish("v1");
    for node in 1..=3 {
        nodes.start(node);
        nodes.sits(node, &node.to_string()).await;
        nodes.is_settled(node).await;
    }
    nodes.all_serve("v1").await;
    let (observer, shares) = (nodes.observer().await, dealt(Dealing::Interleaved, &[1, 2, 3], 2));
    for node in 1..=3 {
        nodes.stop(node).await;
        observer.counts(nodes.address(node), 0).await;
        let next = nodes.add(&[]);
        nodes.source(next).add("v1");
        nodes.start(next);
        nodes.sits(next, &node.to_string()).await;
        nodes.hold("v1", &[(next, shares[node - 1].clone())]).await;
        nodes.are_acquainted("v1").await;
    }
    nodes.check("v1").await;
    let (gone, new) = ("v1 -> down", "v1");
    nodes.have_seen(&[gone, gone, gone, new, new, new]).await;
}

/// All start at the same time: they find different seats.
async fn in_parallel(backend: Backend) {
    let mut nodes = Nodes::new(Ground::of(backend).await, 5, &[]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    until("they have five seats", async || {
        let mut seats = BTreeSet::new();
        for node in nodes.numbers() {
            nodes.is_settled(node).await;
            seats.insert(nodes.seat(node).await?);
        }
        if seats == (1..=5).collect() { Ok(()) } else { Err(format!("{seats:?}")) }
    })
    .await;
    nodes.have_all_seen("v1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_seats_in_parallel_on_zookeeper() {
    in_parallel(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_seats_in_parallel_by_gossip() {
    in_parallel(Backend::Gossip).await;
}

/// Two nodes with one configured seat have the same, and stand in for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_two_of_one_seat_stand_in_for_each_other() {
    let mut nodes = Nodes::new(Ground::of(Backend::Etcd).await, 0, &[]);
    for seat in ["1", "2", "2"] {
        nodes.add(&[("shard_id", seat), ("replication", "1")]);
    }
    nodes.start_with("v0").await;
    deals(&mut nodes, "v0", "v1").await;
    let shares = dealt(Dealing::Interleaved, &[1, 2, 2], 1);
    assert_eq!(shares[1], shares[2]);
    let twice: Vec<_> = (1..).zip(shares).collect();
    nodes.hold("v1", &twice).await;
    nodes.kill(2).await;
    nodes.check("v1").await;
    nodes.have_seen(&["v0 -> v1", "v0 -> v1 -> down", "v0 -> v1"]).await;
}
