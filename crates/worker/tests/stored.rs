//! What outlives a worker: the data that it has stored (D7, D10), and the goodbye by which others may begin.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{KS, TestCoordinator, eventually, keyspace};
use partage_core::base::name::NodeId;
use partage_core::cluster::admin::Command;
use partage_worker::{
    Access, Admission, Assignment, DropReason, Epoch, Failure, Handler, Ownership, Peer, Role, Stored,
    StoredReplicas, Worker, async_trait,
};
use std::sync::{Arc, Mutex};

/// Has a disk of a kind: what is found there at the start, and what was deleted why.
#[derive(Default)]
struct Disk {
    stored: Vec<Stored>,
    dropped: Mutex<Vec<(Stored, DropReason)>>,
}

fn named(shard: &Assignment) -> Stored {
    let (replica, bounds) = (shard.replica.clone(), shard.bounds.clone());
    Stored { replica, bounds, epoch: shard.epoch, store: 9, damaged: false }
}

#[async_trait]
impl Handler for Disk {
    async fn stored(&self) -> Result<StoredReplicas, Failure> {
        Ok(StoredReplicas { cluster: None, replicas: self.stored.clone() })
    }
    async fn load(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }
    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        Ok(())
    }
    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }
    async fn drop(&self, shard: &Assignment, reason: DropReason) -> Result<(), Failure> {
        self.dropped.lock().unwrap().push((named(shard), reason));
        Ok(())
    }
}

async fn worker(node: &str, coordinator: &str, disk: &Arc<Disk>) -> Worker {
    let (_, address) = common::address().await;
    Worker::builder(node, [coordinator], address.to_string()).start_shared(disk.clone()).await.unwrap()
}

fn serves(worker: &Worker) -> bool {
    matches!(worker.enter(&keyspace(), b"key", Access::Write), Admission::Serve(_))
}

/// What a worker `a` that served and crashed has on its disk.
async fn crashed(coordinator: &str) -> Stored {
    let a = worker("a", coordinator, &Arc::default()).await;
    eventually("a serves", || serves(&a)).await;
    let stored = named(&a.replicas()[0].assignment);
    a.abort().await;
    stored
}

fn accepts(test_coordinator: &TestCoordinator, node: &str) -> bool {
    test_coordinator.call(|cluster, at| cluster.nodes()[node].accepts(at.now, cluster.settings()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_stored_replicas_are_named_kept_and_deleted_when_others_serve() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let stored = crashed(&coordinator).await;
    let disk = Arc::new(Disk { stored: vec![stored.clone()], ..Disk::default() });
    let a = worker("a", &coordinator, &disk).await;
    let id = NodeId::new("a").unwrap();
    let kept = test_coordinator
        .call(|cluster, _| cluster.kept_on(&id).map(|(key, _)| key.clone()).collect::<Vec<_>>());
    assert_eq!(kept, std::slice::from_ref(&stored.replica));
    eventually("a serves again", || serves(&a)).await;
    eventually("it may delete", || !disk.dropped.lock().unwrap().is_empty()).await;
    let (dropped, reason) = disk.dropped.lock().unwrap()[0].clone();
    assert_eq!((dropped.replica, reason), (stored.replica, DropReason::Superseded));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_stored_replicas_of_a_deleted_keyspace_are_deleted_for_that_reason() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let stored = crashed(&coordinator).await;
    eventually("a is dead", || !accepts(&test_coordinator, "a")).await;
    test_coordinator.command(Command::DeleteKeyspace { keyspace: keyspace() });
    eventually("it is gone", || test_coordinator.call(|cluster, _| !cluster.keyspaces().contains_key(KS)))
        .await;
    let disk = Arc::new(Disk { stored: vec![stored.clone()], ..Disk::default() });
    let _a = worker("a", &coordinator, &disk).await;
    eventually("it may delete", || !disk.dropped.lock().unwrap().is_empty()).await;
    let dropped = disk.dropped.lock().unwrap()[0].clone();
    assert_eq!((dropped.0.replica, dropped.1), (stored.replica, DropReason::Deleted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_a_worker_that_is_shut_down_says_goodbye() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let (a, b) = (worker("a", &coordinator, &Arc::default()).await, Arc::default());
    eventually("a serves", || serves(&a)).await;
    let b = worker("b", &coordinator, &b).await;
    a.shutdown().await;
    assert!(!accepts(&test_coordinator, "a"), "it has left, and its lease counts no more");
    eventually("b serves", || serves(&b)).await;
    b.abort().await;
    assert!(accepts(&test_coordinator, "b"), "a crash says nothing");
}

#[tokio::test]
async fn l1_what_was_asked_just_before_a_shutdown_is_done_and_the_worker_says_goodbye() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let a = worker("a", &coordinator, &Arc::default()).await;
    eventually("a serves", || serves(&a)).await;
    // Both wait when the driver looks next: it has no thread of its own here.
    a.report_unhealthy(&keyspace(), test_coordinator.shard(), "the disk is dead").await.unwrap();
    a.shutdown().await;
    // Not only silent by now: it has waited for nothing, and has said that it leaves.
    assert!(test_coordinator.call(|cluster, _| cluster.nodes()["a"].record.left));
}
