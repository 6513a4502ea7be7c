//! Indexes of a shard whose leader changes while they are built, and of a follower that is filled anew.

use crate::support::{Cluster, put, replica, until};
use partage_core::base::name::IndexName;
use partage_service::table::filter::Path;
use partage_service::table::index::{IndexChange, IndexState};
use partage_service::table::replication::Consistency;

/// The states of the indexes that a replica has.
async fn states(cluster: &Cluster, node: u64) -> Vec<(String, IndexState)> {
    let found = cluster.node(node).indexes(&replica(1, node), Consistency::Any).await;
    let found = found.unwrap_or_default();
    found.into_iter().map(|definition| (definition.name.to_string(), definition.state)).collect()
}

async fn change(cluster: &Cluster, change: &IndexChange) {
    until("an index is changed", async || {
        let leader = cluster.world.shard(1).leader;
        cluster.node(leader).change_index(&replica(1, leader), change).await.ok()
    })
    .await;
}

async fn are_ready(cluster: &Cluster, node: u64, count: usize) {
    until("the indexes are ready", async || {
        let found = states(cluster, node).await;
        let is_so = found.len() == count && found.iter().all(|(_, state)| *state == IndexState::Ready);
        is_so.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_is_built_on_by_the_next_leader_and_comes_to_all_replicas() {
    let mut cluster = Cluster::started().await;
    // More than one step of a build takes.
    for row in 0..700 {
        cluster.write(1, &put(&format!("k{row}"), format!("{{\"n\": {row}}}"))).await;
    }
    let name = |of: &str| IndexName::new(of).unwrap();
    for of in ["one", "other"] {
        change(&cluster, &IndexChange::Create(name(of), Path::parse("n").unwrap())).await;
    }
    cluster.lead(1, 2);
    for node in 1..=3 {
        are_ready(&cluster, node, 2).await;
    }
    // One that was away has it from the log or from a snapshot.
    cluster.kill(3);
    cluster.in_sync(1, &[1, 2]).await;
    change(&cluster, &IndexChange::Drop(name("one"))).await;
    until("the index is gone", async || (states(&cluster, 2).await.len() == 1).then_some(())).await;
    cluster.start(3);
    cluster.open(1, 3).await;
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
    for node in 1..=3 {
        are_ready(&cluster, node, 1).await;
        assert_eq!(states(&cluster, node).await[0].0, "other");
    }
}
