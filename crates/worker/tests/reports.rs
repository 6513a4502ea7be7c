//! What a service says to its worker: that it cannot serve a shard, that a load gets on, that it stays after all.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{KS, TestCoordinator, eventually, keyspace};
use partage_core::cluster::admin::{Command, Presplit};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::sharding::Sharding;
use partage_core::keyspace::{Keyspace, Throttle};
use partage_worker::{
    Access, Admission, Assignment, CallbackTimeouts, DropReason, Epoch, Failure, Handler, Health,
    LayDownError, LeaveError, NoSuccessor, Ownership, Peer, Phase, Role, Worker, async_trait,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A service on a disk that can die.
#[derive(Default)]
struct Service {
    disk_is_dead: AtomicBool,
    calls: Mutex<Vec<&'static str>>,
    loads: AtomicU32,
    /// Loads take that many steps of 50 ms, each of them reported.
    steps: AtomicU32,
    worker: OnceLock<Worker>,
}

impl Service {
    fn called(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().clone()
    }
}

#[async_trait]
impl Handler for Service {
    async fn load(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.called("load");
        self.loads.fetch_add(1, Ordering::SeqCst);
        for _ in 0..self.steps.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Some(worker) = self.worker.get() {
                worker.load_progressed(&shard.replica);
            }
        }
        if self.disk_is_dead.load(Ordering::SeqCst) {
            return Err("the disk is dead".into());
        }
        Ok(())
    }
    async fn serve(&self, _: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        self.called("serve");
        Ok(())
    }
    async fn unload(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.called("unload");
        Ok(())
    }
    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        self.called("drop");
        Ok(())
    }
}

async fn start(node: &str, coordinator: &str, service: &Arc<Service>, load_ms: u64) -> Worker {
    let (_, address) = common::address().await;
    let callback_timeouts =
        CallbackTimeouts { load_ms, callback_ms: 5_000, drain_ms: 200, retry_ms: 20, retry_max_ms: 50 };
    let worker = Worker::builder(node, [coordinator], address.to_string())
        .callback_timeouts(callback_timeouts)
        .start_shared(service.clone())
        .await
        .unwrap();
    service.worker.set(worker.clone()).unwrap();
    worker
}

fn create_replicated(test_coordinator: &TestCoordinator) {
    let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1 };
    let keyspace =
        Keyspace { ownership: Ownership::Exclusive, replicas: 2, ..Keyspace::new(keyspace(), sharding) };
    test_coordinator.command(Command::CreateKeyspace {
        keyspace: Box::new(keyspace),
        presplit: Presplit::None,
        ahead: false,
    });
}

fn is_led_by(worker: &Worker) -> bool {
    matches!(worker.enter(&keyspace(), b"key", Access::Write), Admission::Serve(guard) if guard.role() == Role::Leader)
}

fn serves(worker: &Worker) -> bool {
    worker.replicas().iter().any(|replica| replica.phase == Phase::Serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_leader_whose_disk_died_lays_down_its_lead_and_follows_once_it_can_load_again() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    create_replicated(&test_coordinator);
    let services = [Arc::new(Service::default()), Arc::new(Service::default())];
    let a = start("a", &coordinator, &services[0], 5_000).await;
    let b = start("b", &coordinator, &services[1], 5_000).await;
    eventually("both serve", || serves(&a) && serves(&b) && (is_led_by(&a) || is_led_by(&b))).await;
    let (leader, follower, service) =
        if is_led_by(&a) { (&a, &b, &services[0]) } else { (&b, &a, &services[1]) };
    let Admission::Serve(guard) = leader.enter(&keyspace(), b"key", Access::Write) else { panic!() };

    service.disk_is_dead.store(true, Ordering::SeqCst);
    leader.report_unhealthy(&keyspace(), test_coordinator.shard(), "the disk is dead").await.unwrap();
    eventually("no request is let in", || !is_led_by(leader)).await;
    tokio::time::timeout(Duration::from_secs(5), guard.cancelled()).await.unwrap();
    assert!(!is_led_by(follower), "nobody else leads while a request is inside (O1)");
    drop(guard);
    eventually("the follower leads", || is_led_by(follower)).await;
    let said = test_coordinator.call(|cluster, _| {
        let failed = |phase: &Phase| match phase {
            Phase::Failed(failure) => Some(failure.reason.clone()),
            _ => None,
        };
        cluster.keyspaces()[KS].observed.values().find_map(|seen| failed(seen.phase()))
    });
    assert_eq!(said.as_deref(), Some("the disk is dead"), "the coordinator knows why");
    assert!(
        service.calls().starts_with(&["load", "serve", "unload", "load"])
            || service.calls().contains(&"unload")
    );

    service.disk_is_dead.store(false, Ordering::SeqCst);
    eventually("it follows again", || serves(leader)).await;
    assert!(is_led_by(follower), "the lead does not come back by itself");
    // What is not served here has nothing to lose.
    let unknown = partage_worker::ShardId(999);
    leader.report_unhealthy(&keyspace(), unknown, "whatever").await.unwrap();
    assert!(serves(leader));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_gets_on_may_take_longer_than_its_limit() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let service = Arc::new(Service::default());
    service.steps.store(40, Ordering::SeqCst);
    let a = start("a", &coordinator, &service, 1_000).await;
    test_coordinator.create(1, Ownership::Exclusive);
    eventually("it serves", || is_led_by(&a)).await;
    assert_eq!(service.loads.load(Ordering::SeqCst), 1, "2 s of loading with a limit of 1 s");
}

/// The coordinator's own patience is shorter than the load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b11_a_load_that_gets_on_may_take_longer_than_the_limit_of_its_keyspace() {
    let test_coordinator = TestCoordinator::with_long_leases();
    let (coordinator, _door) = test_coordinator.open().await;
    let service = Arc::new(Service::default());
    service.steps.store(160, Ordering::SeqCst);
    let a = start("a", &coordinator, &service, 60_000).await;
    let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1 };
    let throttle = Throttle { load_ms: 4_000, ..Throttle::default() };
    let keyspace = Keyspace { throttle, ..Keyspace::new(keyspace(), sharding) };
    test_coordinator.command(Command::CreateKeyspace {
        keyspace: Box::new(keyspace),
        presplit: Presplit::None,
        ahead: false,
    });
    eventually("it serves", || is_led_by(&a)).await;
    assert_eq!(service.calls(), ["load", "serve"], "8 s of loading with a limit of 4 s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b11_a_lead_that_is_laid_down_goes_to_the_follower_without_any_load() {
    let test_coordinator = TestCoordinator::with_long_leases();
    let (coordinator, _door) = test_coordinator.open().await;
    create_replicated(&test_coordinator);
    let services = [Arc::new(Service::default()), Arc::new(Service::default())];
    let a = start("a", &coordinator, &services[0], 5_000).await;
    let lay_down = |worker: Worker| async move {
        worker.lay_down_lead(&keyspace(), partage_worker::ShardId(1), "it is too hot").await
    };
    eventually("a leads", || is_led_by(&a)).await;
    let shard = test_coordinator.shard();
    assert_eq!(shard, partage_worker::ShardId(1));
    assert_eq!(lay_down(a.clone()).await, Err(LayDownError::Refused(NoSuccessor::Alone)));
    assert!(is_led_by(&a), "it goes on");

    let b = start("b", &coordinator, &services[1], 5_000).await;
    eventually("both serve", || serves(&a) && serves(&b)).await;
    assert_eq!(lay_down(b.clone()).await, Err(LayDownError::Refused(NoSuccessor::DoesNotLead)));
    let Admission::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else {
        panic!("a does not lead")
    };
    // It may serve before the orders of the other name it.
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    while let Err(refused) = lay_down(a.clone()).await {
        assert!(
            refused == LayDownError::Refused(NoSuccessor::Alone) && tokio::time::Instant::now() < end,
            "{refused}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!is_led_by(&b), "nobody else leads while a request is inside (O1)");
    drop(guard);
    eventually("b leads", || is_led_by(&b)).await;
    eventually("a follows", || serves(&a)).await;
    let calls = services[0].calls();
    assert!(
        !calls.contains(&"unload") && calls.iter().filter(|call| **call == "load").count() == 1,
        "{calls:?}"
    );
    // And the lead can come back.
    lay_down(b.clone()).await.unwrap();
    eventually("a leads again", || is_led_by(&a)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_a_leave_can_be_undone() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let service = Arc::new(Service::default());
    let a = start("a", &coordinator, &service, 5_000).await;
    eventually("a serves", || is_led_by(&a)).await;
    let leaving = tokio::spawn({
        let a = a.clone();
        async move { a.leave(Duration::from_secs(60)).await }
    });
    let is_leaving = || test_coordinator.call(|cluster, _| cluster.nodes()["a"].leaving);
    eventually("the coordinator knows", is_leaving).await;
    eventually("it says so", || a.health() == Health::Leaving).await;
    a.stay().await.unwrap();
    assert_eq!(leaving.await.unwrap(), Err(LeaveError::Undone));
    eventually("the coordinator knows", || !is_leaving()).await;
    assert_eq!(a.health(), Health::Up);
    let other = Arc::new(Service::default());
    let b = start("b", &coordinator, &other, 5_000).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(is_led_by(&a), "nothing is moved off it any more");
    b.leave(Duration::from_secs(10)).await.unwrap();
    assert_eq!(b.stay().await, Err(LeaveError::Stopped), "it has left");
}
