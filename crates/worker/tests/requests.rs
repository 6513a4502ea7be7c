//! Requests and gates: nobody slips in behind the last one, nobody waits for ever.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{TestCoordinator, eventually, keyspace};
use partage_worker::{
    Access, Admission, Assignment, DropReason, Epoch, Failure, Handler, Ownership, Peer, Role, Worker,
    async_trait,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A shard of which each worker believes that it has it between `serve` and `unload`.
#[derive(Default)]
struct Owners {
    now: Mutex<BTreeSet<String>>,
    /// What must not be, and was. (A panic in a callback would only be reported, and tried again.)
    wrong: Mutex<Vec<String>>,
}

struct Owner {
    name: &'static str,
    owners: Arc<Owners>,
    /// Requests of this worker that are inside, as the requests themselves count.
    inside: Arc<AtomicI64>,
}

#[async_trait]
impl Handler for Owner {
    async fn load(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }
    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        let mut owners = self.owners.now.lock().unwrap();
        owners.insert(self.name.to_owned());
        if owners.len() > 1 {
            self.owners.wrong.lock().unwrap().push(format!("two owners: {owners:?}"));
        }
        Ok(())
    }
    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        let inside = self.inside.load(Ordering::SeqCst);
        if inside > 0 {
            self.owners.wrong.lock().unwrap().push(format!("{inside} inside while it unloads"));
        }
        self.owners.now.lock().unwrap().remove(self.name);
        Ok(())
    }
    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        Ok(())
    }
}

async fn owner(name: &'static str, coordinator: &str, owners: &Arc<Owners>) -> (Worker, Arc<AtomicI64>) {
    let inside = Arc::new(AtomicI64::new(0));
    let handler = Owner { name, owners: owners.clone(), inside: inside.clone() };
    let (_, address) = common::address().await;
    let worker = Worker::builder(name, [coordinator], address.to_string()).start(handler).await.unwrap();
    (worker, inside)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn o1_nobody_is_inside_while_a_shard_is_handed_over_however_many_come() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let owners = Arc::new(Owners::default());
    let a = owner("a", &coordinator, &owners).await;
    eventually("a serves", || test_coordinator.leader().as_deref() == Some("a")).await;
    let b = owner("b", &coordinator, &owners).await;
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    for (worker, inside) in [a, b] {
        for client in 0..16 {
            let (worker, inside) = (worker.clone(), inside.clone());
            let (stop, served, owners) = (stop.clone(), served.clone(), owners.clone());
            clients.push(tokio::spawn(async move {
                let key = format!("key{client}");
                while !stop.load(Ordering::Relaxed) {
                    if let Admission::Serve(guard) = worker.enter(&keyspace(), key.as_bytes(), Access::Write)
                    {
                        inside.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        let there = owners.now.lock().unwrap().contains(worker.node().as_str());
                        assert!(there && guard.mine_all_along(), "served by who is not the owner");
                        inside.fetch_sub(1, Ordering::SeqCst);
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::task::yield_now().await;
                }
            }));
        }
    }
    for (from, to) in [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")] {
        let before = served.load(Ordering::Relaxed);
        test_coordinator.move_shard(test_coordinator.shard(), from, to).await;
        eventually("it has moved", || test_coordinator.leader().as_deref() == Some(to)).await;
        eventually("it has settled", || {
            test_coordinator.call(|cluster, _| cluster.keyspaces()[common::KS].unsettled().is_empty())
        })
        .await;
        eventually("requests go on", || served.load(Ordering::Relaxed) > before + 100).await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(*owners.wrong.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_who_comes_early_waits_for_the_gate_and_not_beyond_its_patience() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let owners = Arc::new(Owners::default());
    let (a, _) = owner("a", &coordinator, &owners).await;
    eventually("a serves", || matches!(a.enter(&keyspace(), b"k", Access::Write), Admission::Serve(_))).await;
    let (b, _) = owner("b", &coordinator, &owners).await;
    let enter = async |hold| a.enter_or_wait(&keyspace(), b"key", Access::Write, hold).await;
    let Admission::Serve(last) = enter(Duration::from_secs(5)).await else { panic!() };
    test_coordinator.move_shard(test_coordinator.shard(), "a", "b").await;
    eventually("b is to lead", || test_coordinator.leader().as_deref() == Some("b")).await;
    eventually("b has heard so", || matches!(b.enter(&keyspace(), b"key", Access::Write), Admission::Soon))
        .await;
    let brief = b.enter_or_wait(&keyspace(), b"key", Access::Write, Duration::from_millis(50)).await;
    assert!(matches!(brief, Admission::Soon), "{brief:?}");
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.enter_or_wait(&keyspace(), b"key", Access::Write, Duration::from_secs(10)).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(last);
    assert!(matches!(waiting.await.unwrap(), Admission::Serve(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_handle_stops_the_worker_and_shutdown_evicts() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let owners = Arc::new(Owners::default());
    let (a, _) = owner("a", &coordinator, &owners).await;
    eventually("a serves", || matches!(a.enter(&keyspace(), b"k", Access::Write), Admission::Serve(_))).await;
    let Admission::Serve(guard) = a.enter(&keyspace(), b"k", Access::Write) else { panic!() };
    a.shutdown().await;
    tokio::time::timeout(Duration::from_secs(1), guard.cancelled()).await.unwrap();
    assert!(!guard.mine_all_along());
    assert!(matches!(a.enter(&keyspace(), b"k", Access::Write), Admission::Unknown { .. }));
    assert!(a.leave(Duration::from_secs(1)).await.is_err());
    let (b, _) = owner("b", &coordinator, &Arc::default()).await;
    drop(b);
    let dead =
        || test_coordinator.call(|cluster, at| !cluster.nodes()["b"].accepts(at.now, cluster.settings()));
    eventually("b is not heard any more", dead).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k12_requests_processor_time_and_hot_keys_are_counted_and_reported() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let owners = Arc::new(Owners::default());
    let (a, _) = owner("a", &coordinator, &owners).await;
    eventually("a serves", || matches!(a.enter(&keyspace(), b"k", Access::Write), Admission::Serve(_))).await;
    let load = || {
        for n in 0..40u32 {
            let key = if n % 2 == 0 { b"hot".to_vec() } else { n.to_be_bytes().to_vec() };
            let Admission::Serve(guard) = a.enter(&keyspace(), &key, Access::Read) else { continue };
            guard.meter(|| std::hint::black_box((0..50_000u64).map(std::hint::black_box).sum::<u64>()));
        }
        let observed = |cluster: &partage_core::cluster::Cluster| {
            let seen = cluster.keyspaces()[common::KS].observed.values().next()?;
            seen.load().cloned()
        };
        test_coordinator.call(|cluster, _| observed(cluster))
    };
    eventually("a load with the hot key is reported", || {
        load().is_some_and(|load| {
            let hot = load.profile.hot_keys().first();
            load.requests_per_s > 10.0
                && load.cpu_ms_per_s > 0.1
                && hot.is_some_and(|hot| {
                    hot.key.as_bytes() == b"hot" && hot.requests_per_s > 0.2 * load.requests_per_s
                })
        })
    })
    .await;
}
