//! Tables whose coordinator keeps its state on a server of its own, each backend in turn: leaders, coordinators and all
//! processes are killed, the server too, while clients write and read.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::admin::leader;
use chaos::cluster::Cluster;
use chaos::engine::Engine;
use chaos::load::Load;
use chaos::rows::Quiet;
use chaos::until;
use partage_coordination::Backend;
use std::time::Duration;
use tokio::time::sleep;

const NODES: [&str; 3] = ["t1", "t2", "t3"];

/// The node that leads the first shard of the table.
async fn first_leader(cluster: &Cluster) -> &'static str {
    until("a node leads the first shard", || async {
        let shards = cluster.admin.shards("stock").await;
        let leads = |node: &&&str| shards.first().and_then(leader) == Some(**node);
        NODES.iter().find(leads).copied().ok_or_else(|| format!("{shards:?}"))
    })
    .await
}

async fn nothing_is_lost_on(backend: Backend) {
    let mut cluster = Cluster::on(Engine::start(backend, &[]).await).await;
    for node in NODES {
        cluster.add_table_node(node).await;
    }
    cluster.admin.table("stock").await;
    let quiet = Quiet::start(&cluster).await;
    let load = Load::of_table(&cluster.admin, "stock");
    // Leads are spread two seconds after the last change of the map.
    sleep(Duration::from_secs(4)).await;
    cluster.admin.settled().await;
    load.rounds(3).await;

    // The coordinator: until it is back, its session may have to end first.
    let before = load.account();
    cluster.coordinator().kill();
    // Longer than any lease lasts.
    load.rounds(75).await;
    let after = load.account();
    assert_eq!((before.failed, before.refused), (after.failed, after.refused), "{backend}: {after:?}");
    cluster.start_coordinator().await;
    cluster.admin.settled().await;
    load.rounds(3).await;

    // A leader.
    let killed = first_leader(&cluster).await;
    cluster.node_mut(killed).process.kill();
    load.rounds(3).await;
    cluster.restart_node(killed).await;
    cluster.admin.settled().await;
    load.rounds(3).await;

    // All at once, the server of the backend too.
    for node in NODES {
        cluster.node_mut(node).process.kill();
    }
    cluster.coordinator().kill();
    cluster.engine().unwrap().restart().await;
    cluster.start_coordinator().await;
    cluster.restart_nodes(&NODES).await;
    cluster.admin.settled().await;
    load.rounds(3).await;
    load.finish().await;
    quiet.is_unchanged(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_on_etcd_a_table_loses_nothing_when_processes_are_killed() {
    nothing_is_lost_on(Backend::Etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn d10_on_zookeeper_a_table_loses_nothing_when_processes_are_killed() {
    nothing_is_lost_on(Backend::ZooKeeper).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute: `./test long` runs it"]
async fn d10_on_mysql_a_table_loses_nothing_when_processes_are_killed() {
    nothing_is_lost_on(Backend::MySql).await;
}
