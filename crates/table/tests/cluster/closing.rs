//! Replicas that are closed, and what the log keeps for them.

use crate::disk::TroubledDisk;
use crate::support::{Cluster, node_id, put, replica, until};
use partage_engine::replica::{Direction, Engine, Snapshot, Store, TreeEngine};
use partage_table::{Notice, StoredReplica};
use std::sync::Arc;
use std::time::Duration;

/// What node 3 finds at its start of its replica of a shard.
fn found(stored: &[StoredReplica], shard: u64) -> StoredReplica {
    stored.iter().find(|one| one.replica == replica(shard, 3)).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_little_in_memory_is_closed_without_a_flush_and_has_all_when_it_is_opened() {
    let mut cluster = Cluster::started().await;
    cluster.add_shard(2).await;
    for number in 0..20 {
        cluster.write(1, &put(&format!("k{number}"), format!("v{number}"))).await;
    }
    cluster.write(2, &put("large", vec![7; 300 << 10])).await;
    cluster.comes_to(1, 3, "k19", b"v19").await;
    cluster.comes_to(2, 3, "large", &vec![7; 300 << 10]).await;
    for shard in [1, 2] {
        cluster.node(3).close_replica(&replica(shard, 3)).await.unwrap();
    }
    // In the same process.
    cluster.open(1, 3).await;
    cluster.comes_to(1, 3, "k19", b"v19").await;
    cluster.node(3).close_replica(&replica(1, 3)).await.unwrap();
    // In the next one, of which nobody says what is committed.
    cluster.kill(3);
    let stored = cluster.start(3);
    let (little, much) = (found(&stored, 1), found(&stored, 2));
    assert_eq!((little.flushed.index, little.damaged), (0, None), "nothing was flushed");
    assert!(much.flushed.index > 0 && much.damaged.is_none(), "{much:?}");
    cluster.open(1, 3).await;
    cluster.comes_to(1, 3, "k19", b"v19").await;
    cluster.open(2, 3).await;
    for shard in [1, 2] {
        cluster.world.announce(shard);
        cluster.in_sync(shard, &[1, 2, 3]).await;
    }
    cluster.lead(1, 3);
    for number in 0..20 {
        let value = cluster.read(1, &format!("k{number}")).await;
        assert_eq!(value, Some(format!("v{number}").into_bytes()));
    }
}

/// Three nodes whose logs have few and small segments, and a table that keeps changes for so long.
async fn short_of_log(feed_ms: u64) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.replica.feed_ms = feed_ms;
    cluster.settings.log.segment_bytes = 256 << 10;
    cluster.settings.log.entry_bytes = 64 << 10;
    cluster.settings.writer.segments = 3;
    cluster.settings.flush_bytes = 64 << 10;
    cluster.replica.replication.catch_up_log_bytes = 1;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.add_shard(2).await;
    cluster
}

fn segments(cluster: &Cluster) -> usize {
    std::fs::read_dir(cluster.folder(3).join("log")).unwrap().count()
}

/// Fills some forty segments with rows of the first shard.
async fn fill(cluster: &Cluster) {
    for number in 0..200 {
        cluster.write(1, &put(&format!("f{}", number % 10), vec![number as u8; 50 << 10])).await;
    }
}

/// Node 3 closes its replica of the second shard, which has one row.
async fn close_with_a_row(cluster: &Cluster) {
    cluster.write(2, &put("little", "1")).await;
    cluster.comes_to(2, 3, "little", b"1").await;
    cluster.node(3).close_replica(&replica(2, 3)).await.unwrap();
}

/// Writes to the first shard until the log of node 3 is short again.
async fn log_shrinks(cluster: &Cluster) {
    fill(cluster).await;
    until("the log shrinks", async || {
        cluster.write(1, &put("f", "1")).await;
        (segments(cluster) < 12).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_replica_does_not_keep_the_log_and_has_all_when_it_is_opened() {
    let mut cluster = short_of_log(0).await;
    close_with_a_row(&cluster).await;
    log_shrinks(&cluster).await;
    let is_held = |notice: &Notice| *notice == Notice::HoldsLog(replica(2, 3));
    assert!(!cluster.world.has_heard(|node, notice| *node == node_id(3) && is_held(notice)));
    cluster.open(2, 3).await;
    cluster.comes_to(2, 3, "little", b"1").await;
    cluster.kill(3);
    let stored = cluster.start(3);
    assert!(found(&stored, 2).flushed.index > 0, "{stored:?}");
    assert!(stored.iter().all(|one| one.damaged.is_none()), "{stored:?}");
    cluster.open(1, 3).await;
    cluster.open(2, 3).await;
    for shard in [1, 2] {
        cluster.world.announce(shard);
        cluster.in_sync(shard, &[1, 2, 3]).await;
    }
    cluster.comes_to(2, 3, "little", b"1").await;
    cluster.lead(2, 3);
    assert_eq!(cluster.read(2, "little").await, Some(b"1".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_hears_of_a_replica_that_was_never_open_and_keeps_the_log() {
    let mut cluster = short_of_log(0).await;
    close_with_a_row(&cluster).await;
    cluster.kill(3);
    cluster.start(3);
    cluster.open(1, 3).await;
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
    fill(&cluster).await;
    let is_held = |notice: &Notice| *notice == Notice::HoldsLog(replica(2, 3));
    until("the owner hears", async || {
        cluster.world.has_heard(|node, notice| *node == node_id(3) && is_held(notice)).then_some(())
    })
    .await;
    cluster.open(2, 3).await;
    cluster.comes_to(2, 3, "little", b"1").await;
}

/// Stored keys of shard 2 on node 3, which is down, that name this key of a row.
fn stored_of(cluster: &Cluster, key: &[u8]) -> usize {
    let of_table = cluster.folder(3).join("rows").join(replica(2, 3).keyspace.as_str());
    let stores = std::fs::read_dir(of_table).unwrap().map(|store| store.unwrap().path());
    let mut of_shard = stores.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("2."));
    let store = TreeEngine::default().open(&of_shard.next().unwrap()).unwrap();
    let snapshot = store.snapshot().unwrap();
    snapshot
        .range(None, None, Direction::Forward)
        .filter(|row| row.as_ref().unwrap().key.ends_with(key))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_flushed_of_a_closed_replica_has_the_changes_of_its_feed() {
    let cluster = short_of_log(600_000).await;
    close_with_a_row(&cluster).await;
    log_shrinks(&cluster).await;
    cluster.kill(3);
    assert_eq!(stored_of(&cluster, b"little"), 2, "the row, and its change");
}

/// Reports of the log name a replica and a number. One that comes after the replica was opened again, and counts anew, would say
/// of records that are not on disk that they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_closed_when_its_last_record_is_on_disk() {
    let mut cluster = Cluster::new();
    let disk = TroubledDisk::default();
    cluster.set_disk(3, Arc::new(disk.clone()));
    cluster.start_all().await;
    cluster.add_shard(1).await;
    for number in 0..5 {
        cluster.write(1, &put(&format!("k{number}"), "1")).await;
    }
    cluster.comes_to(1, 3, "k4", b"1").await;
    disk.held.set(true);
    let node = cluster.node(3);
    let mut closed = tokio::spawn(async move { node.close_replica(&replica(1, 3)).await });
    let early = tokio::time::timeout(Duration::from_millis(300), &mut closed).await;
    assert!(
        early.is_err(),
        "it is closed, and its record of what is committed waits for the disk: {early:?}"
    );
    disk.held.set(false);
    closed.await.unwrap().unwrap();
    cluster.open(1, 3).await;
    cluster.comes_to(1, 3, "k4", b"1").await;
    cluster.write(1, &put("k5", "1")).await;
    cluster.comes_to(1, 3, "k5", b"1").await;
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
}
