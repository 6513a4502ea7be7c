//! Disks that fail, fill up, and lose bytes.

use crate::disk::TroubledDisk;
use crate::support::{Cluster, key, node_id, put, replica, until};
use partage_journal::faulty_disk::{Fault, FaultyDisk};
use partage_service::table::replication::{Consistency, Failed};
use partage_table::{Notice, ReadError, ReplicaError, WriteError};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Changes a byte in the middle of what was written to a file of the folder since then.
fn damage(folder: &Path, before: &BTreeMap<PathBuf, Vec<u8>>) {
    for (path, mut bytes) in files(folder) {
        let former = &before[&path];
        let differs = |at: &usize| bytes[*at] != former[*at];
        let all = 0..bytes.len();
        if let (Some(first), Some(last)) = (all.clone().find(differs), all.rev().find(differs)) {
            bytes[first.midpoint(last)] ^= 1;
            return fs::write(path, bytes).unwrap();
        }
    }
    panic!("nothing was written to {}", folder.display());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_byte_of_the_log_damages_one_replica_and_the_others_serve() {
    let mut cluster = Cluster::started().await;
    cluster.add_shard(2).await;
    cluster.write(2, &put("a", "of the second shard")).await;
    let log = cluster.folder(1).join("log");
    let before = files(&log);
    // So large that what else is written meanwhile is not in the middle.
    cluster.write(1, &put("a", vec![7; 300 << 10])).await;
    (1..=3).for_each(|node| cluster.kill(node));
    damage(&log, &before);
    let stored = cluster.start(1);
    let damaged: Vec<_> =
        stored.iter().filter(|one| one.damaged.is_some()).map(|one| one.replica.clone()).collect();
    assert_eq!(damaged, [replica(1, 1)], "{stored:?}");
    let refused = cluster.node(1).open_replica(&replica(1, 1), cluster.replica, false).await;
    assert!(matches!(refused, Err(ReplicaError::Damaged(..))), "{refused:?}");
    cluster.open(2, 1).await;
    for node in [2, 3] {
        cluster.start(node);
        cluster.open(1, node).await;
        cluster.open(2, node).await;
    }
    cluster.lead(2, 1);
    assert_eq!(cluster.read(2, "a").await, Some(b"of the second shard".to_vec()));
    // The coordinator lets another one lead, and the damaged one is dropped and filled.
    cluster.world.change(1, |shard| {
        (shard.leader, shard.in_sync) = (2, [2, 3].into());
        shard.epoch += 1;
    });
    assert_eq!(cluster.read(1, "a").await, Some(vec![7; 300 << 10]));
    cluster.node(1).drop_replica(&replica(1, 1)).await.unwrap();
    cluster.node(1).open_replica(&replica(1, 1), cluster.replica, true).await.unwrap();
    cluster.world.announce(1);
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.comes_to(1, 1, "a", &vec![7; 300 << 10]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_rows_do_not_reach_its_log_is_damaged() {
    let mut cluster = Cluster::new();
    cluster.replica.replication.catch_up_log_bytes = 1;
    cluster.settings.flush_bytes = 1;
    cluster.start_all().await;
    cluster.add_shard(1).await;
    for number in 0..20 {
        cluster.write(1, &put(&format!("k{number}"), "x")).await;
    }
    // Closed, its log begins where its rows end.
    cluster.node(2).close_replica(&replica(1, 2)).await.unwrap();
    cluster.kill(2);
    fs::remove_dir_all(cluster.folder(2).join("rows/orders")).unwrap();
    let stored = cluster.start(2);
    let why = stored[0].damaged.clone().unwrap();
    assert!(why.contains("the log begins behind"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_ends_the_node_and_another_leads_on() {
    let mut cluster = Cluster::new();
    let disk = FaultyDisk::default();
    cluster.set_disk(1, Arc::new(disk.clone()));
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.write(1, &put("a", "1")).await;
    disk.arm(0, Fault::SyncFails);
    // Each beat of a leader that writes nothing leaves the disk alone, so this write finds the fault.
    let error = cluster.write_once(1, &put("b", "2")).await.unwrap_err();
    assert!(matches!(error, WriteError::Unknown(_)), "{error}");
    let is_end = |notice: &Notice| matches!(notice, Notice::Ended(_));
    until("the owner hears", async || {
        cluster.world.has_heard(|node, notice| *node == node_id(1) && is_end(notice)).then_some(())
    })
    .await;
    let error = cluster.write_once(1, &put("c", "3")).await.unwrap_err();
    assert!(matches!(error, WriteError::Stopped(_)) && error.is_definite(), "{error}");
    let read = cluster.node(1).read(&replica(1, 1), &key("a"), Consistency::Any, 0).await;
    assert!(matches!(read, Err(ReadError::Stopped(_))), "{read:?}");
    let dropped = cluster.node(1).drop_replica(&replica(1, 1)).await;
    assert!(matches!(dropped, Err(ReplicaError::Ended(_) | ReplicaError::NotOpen(_))), "{dropped:?}");
    cluster.world.change(1, |shard| {
        (shard.leader, shard.in_sync) = (2, [2, 3].into());
        shard.epoch += 1;
    });
    assert_eq!(cluster.read(1, "a").await, Some(b"1".to_vec()));
    // Opened again, it has what was synced, and follows.
    cluster.kill(1);
    disk.kill();
    let stored = cluster.start(1);
    assert_eq!(stored[0].damaged, None);
    cluster.open(1, 1).await;
    cluster.world.announce(1);
    cluster.write(1, &put("d", "4")).await;
    cluster.in_sync(1, &[1, 2, 3]).await;
    cluster.comes_to(1, 1, "d", b"4").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_refuses_writes_and_goes_on_when_there_is_room() {
    let mut cluster = Cluster::new();
    cluster.settings.log.segment_bytes = 256 << 10;
    cluster.settings.log.entry_bytes = 64 << 10;
    let disk = TroubledDisk::default();
    cluster.set_disk(1, Arc::new(disk.clone()));
    cluster.start_all().await;
    cluster.add_shard(1).await;
    cluster.write(1, &put("a", "1")).await;
    disk.is_full.store(true, Ordering::Release);
    let mut waiting = Vec::new();
    for number in 0..40 {
        let (node, write) = (cluster.node(1), put(&format!("k{number}"), vec![7; 20 << 10]));
        waiting.push(tokio::spawn(async move { node.write(&replica(1, 1), &write).await }));
    }
    let refused = until("the log is full", async || {
        match tokio::time::timeout(
            std::time::Duration::from_millis(50),
            cluster.write_once(1, &put("b", "2")),
        )
        .await
        {
            Ok(Err(WriteError::DiskIsFull)) => Some(WriteError::DiskIsFull),
            _ => None,
        }
    });
    assert!(refused.await.is_definite());
    assert_eq!(cluster.read(1, "a").await, Some(b"1".to_vec()), "reads go on");
    disk.is_full.store(false, Ordering::Release);
    for write in waiting {
        match write.await.unwrap() {
            Ok(_) | Err(WriteError::DiskIsFull) => {}
            Err(WriteError::Refused(Failed::TooFewInSync { .. } | Failed::NotBegun)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    cluster.write(1, &put("c", "3")).await;
    assert_eq!(cluster.read(1, "c").await, Some(b"3".to_vec()));
    assert!(cluster.world.has_heard(|_, notice| matches!(notice, Notice::DiskHasRoom)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_stops_its_replica_which_goes_on_when_it_is_opened_again() {
    let cluster = Cluster::started().await;
    cluster.add_shard(2).await;
    // So much that it is flushed when the replica closes.
    let value = vec![1; 40 << 10];
    for number in 0..10 {
        cluster.write(1, &put(&format!("k{number}"), &value)).await;
    }
    cluster.comes_to(1, 3, "k9", &value).await;
    // The folder of its rows goes away under it, so that its flush fails.
    let rows = cluster.folder(3).join("rows/orders");
    let [folder]: [PathBuf; 1] = fs::read_dir(&rows)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("1."))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let away = cluster.folder(3).join("away");
    fs::rename(&folder, &away).unwrap();
    cluster.node(3).close_replica(&replica(1, 3)).await.unwrap();
    fs::rename(&away, &folder).unwrap();
    let is_failure = |notice: &Notice| matches!(notice, Notice::Failed(of, _) | Notice::Damaged(of, _) if *of == replica(1, 3));
    assert!(cluster.world.has_heard(|_, notice| is_failure(notice)));
    cluster.write(2, &put("other", "2")).await;
    if cluster.world.has_heard(|_, notice| matches!(notice, Notice::Failed(..))) {
        cluster.open(1, 3).await;
        cluster.world.announce(1);
        cluster.in_sync(1, &[1, 2, 3]).await;
        cluster.comes_to(1, 3, "k9", &value).await;
    }
}

/// The thread of the log serves replicas, and must not be the last that has the node: it would wait for its own end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_dropped_while_its_replicas_are_served_can_be_opened_at_once() {
    let mut cluster = Cluster::started().await;
    let stop = Arc::new(AtomicBool::new(false));
    let leader = cluster.node(1);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (leader, stop) = (Arc::clone(&leader), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut written = 0;
                while !stop.load(Ordering::Relaxed) {
                    let write = put(&format!("w{writer}"), format!("{written}"));
                    written += usize::from(leader.write(&replica(1, 1), &write).await.is_ok());
                }
                written
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cluster.kill(2);
        cluster.start(2);
        cluster.open(1, 2).await;
    }
    stop.store(true, Ordering::Relaxed);
    for (number, writer) in writers.into_iter().enumerate() {
        let written = writer.await.unwrap();
        assert!(written > 0);
        assert!(cluster.read(1, &format!("w{number}")).await.is_some());
    }
}
