//! A worker at a coordinator, over the real protocol: registration, callbacks that fail, leases, leaving.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{KS, TestCoordinator, eventually, keyspace};
use partage_wire::Retry;
use partage_worker::{
    Access, Admission, Assignment, CallbackTimeouts, DropReason, Epoch, Failure, Handler, Health, LeaveError,
    Ownership, Peer, Phase, Role, StartError, Worker, async_trait,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Writes down what is called, and does wrong what it is told to.
#[derive(Default)]
struct CallLog {
    calls: Mutex<Vec<String>>,
    /// What goes wrong, and how often still.
    wrong: Mutex<BTreeMap<&'static str, (Wrong, u32)>>,
}

#[derive(Clone, Copy)]
enum Wrong {
    Refuses,
    Panics,
    Hangs,
}

impl CallLog {
    fn goes_wrong(self: &Arc<CallLog>, call: &'static str, how: Wrong, times: u32) {
        self.wrong.lock().unwrap().insert(call, (how, times));
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|made| made.starts_with(call)).count()
    }

    async fn note(&self, call: &'static str, more: String) -> Result<(), Failure> {
        self.calls.lock().unwrap().push(format!("{call}{more}"));
        let wrong = {
            let mut wrong = self.wrong.lock().unwrap();
            wrong.get_mut(call).filter(|(_, times)| *times > 0).map(|(how, times)| {
                *times -= 1;
                *how
            })
        };
        match wrong {
            None => Ok(()),
            Some(Wrong::Refuses) => Err(format!("{call} says no").into()),
            Some(Wrong::Panics) => panic!("{call} falls over"),
            Some(Wrong::Hangs) => std::future::pending().await,
        }
    }
}

struct Service(Arc<CallLog>);

#[async_trait]
impl Handler for Service {
    async fn load(&self, _: &Assignment, sources: &[Peer]) -> Result<(), Failure> {
        self.0.note("load", format!(" from {}", sources.len())).await
    }
    async fn serve(&self, _: &Assignment, role: Role, epoch: Epoch) -> Result<(), Failure> {
        self.0.note("serve", format!(" {role} {epoch}")).await
    }
    async fn unload(&self, _: &Assignment, successors: &[Peer]) -> Result<(), Failure> {
        self.0.note("unload", format!(" to {}", successors.len())).await
    }
    async fn drop(&self, _: &Assignment, _: DropReason) -> Result<(), Failure> {
        self.0.note("drop", String::new()).await
    }
}

fn impatient() -> CallbackTimeouts {
    CallbackTimeouts { load_ms: 150, callback_ms: 150, drain_ms: 200, retry_ms: 20, retry_max_ms: 50 }
}

async fn worker(node: &str, coordinator: &str, call_log: &Arc<CallLog>) -> Worker {
    patient_worker(node, coordinator, call_log, impatient()).await
}

async fn patient_worker(
    node: &str,
    coordinator: &str,
    call_log: &Arc<CallLog>,
    callback_timeouts: CallbackTimeouts,
) -> Worker {
    let (_, address) = common::address().await;
    Worker::builder(node, [coordinator], address.to_string())
        .callback_timeouts(callback_timeouts)
        .start(Service(call_log.clone()))
        .await
        .unwrap()
}

fn is_served(worker: &Worker, access: Access) -> bool {
    matches!(worker.enter(&keyspace(), b"key", access), Admission::Serve(_))
}

fn phase(test_coordinator: &TestCoordinator) -> Option<Phase> {
    test_coordinator
        .call(|cluster, _| cluster.keyspaces()[KS].observed.values().next().map(|seen| seen.phase().clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_it_registers_by_itself_and_serves_what_it_is_given() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let call_log = Arc::new(CallLog::default());
    let a = worker("a", &coordinator, &call_log).await;
    assert_eq!(a.health(), Health::Up);
    eventually("the shard is served", || is_served(&a, Access::Write)).await;
    assert_eq!(call_log.calls()[0], "load from 0");
    assert_eq!(call_log.count("serve leader"), 1);
    let Admission::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
    assert!(guard.mine_all_along() && guard.role() == Role::Leader);
    assert!(guard.assignment().holds(b"key"));
    assert_eq!(a.replicas()[0].in_flight, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_two_closures_are_called_exactly_when_the_set_changes() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(4, Ownership::Exclusive);
    let (served, deleted) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let counter = |count: &Arc<AtomicU32>| {
        let count = count.clone();
        move |_: Assignment| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        }
    };
    let (_, address) = common::address().await;
    let a = Worker::with_closures(coordinator, address.to_string(), counter(&served), counter(&deleted))
        .await
        .unwrap();
    eventually("all are served", || served.load(Ordering::SeqCst) == 4).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((served.load(Ordering::SeqCst), deleted.load(Ordering::SeqCst)), (4, 0));
    test_coordinator.command(partage_core::cluster::admin::Command::DeleteKeyspace { keyspace: keyspace() });
    eventually("all are deleted", || deleted.load(Ordering::SeqCst) == 4).await;
    assert_eq!(served.load(Ordering::SeqCst), 4);
    drop(a);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_callbacks_that_refuse_panic_or_hang_are_reported_and_tried_again() {
    // Only what hangs is given up soon: to print the trace of a panic takes a slow machine its time.
    let patient = CallbackTimeouts { load_ms: 60_000, ..impatient() };
    for (how, said, callback_timeouts) in [
        (Wrong::Refuses, "load says no", patient),
        (Wrong::Panics, "panicked: load falls over", patient),
        (Wrong::Hangs, "load has not returned for 150 ms", impatient()),
    ] {
        let test_coordinator = TestCoordinator::new();
        let (coordinator, _door) = test_coordinator.open().await;
        test_coordinator.create(1, Ownership::Exclusive);
        let call_log = Arc::new(CallLog::default());
        call_log.goes_wrong("load", how, 2);
        let a = patient_worker("a", &coordinator, &call_log, callback_timeouts).await;
        let mut reported = false;
        eventually("it is served in the end", || {
            if let Some(Phase::Failed(failure)) = phase(&test_coordinator) {
                assert_eq!(failure.reason, said);
                reported = true;
            }
            is_served(&a, Access::Write)
        })
        .await;
        assert!(reported, "the failure was told: {said}");
        let calls: Vec<_> = call_log.calls().iter().map(|call| call[..4].to_owned()).collect();
        assert_eq!(calls, ["load", "load", "load", "serv"], "served only when it was loaded");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_without_a_coordinator_exclusive_shards_lapse_and_eventual_ones_go_on() {
    for ownership in [Ownership::Exclusive, Ownership::Eventual] {
        let test_coordinator = TestCoordinator::new();
        let (coordinator, _door) = test_coordinator.open().await;
        test_coordinator.create(1, ownership);
        let call_log = Arc::new(CallLog::default());
        let a = worker("a", &coordinator, &call_log).await;
        eventually("served", || is_served(&a, Access::Write)).await;
        let handle = a.ownership(&keyspace(), test_coordinator.shard()).unwrap();
        let Admission::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
        assert!(handle.mine_all_along() && handle.still_mine() && guard.mine_all_along());
        test_coordinator.be_silent(true);
        tokio::time::sleep(Duration::from_millis(700)).await;
        let lapsed = matches!(a.enter(&keyspace(), b"key", Access::Write), Admission::Lapsed);
        assert_eq!(lapsed, ownership == Ownership::Exclusive);
        assert_eq!(handle.still_mine(), !lapsed);
        test_coordinator.be_silent(false);
        eventually("served again", || is_served(&a, Access::Write)).await;
        assert_eq!(guard.mine_all_along(), ownership == Ownership::Eventual, "a lapse is not forgotten");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_the_last_worker_is_never_given_up_and_goes_on_with_its_data() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let call_log = Arc::new(CallLog::default());
    let a = worker("a", &coordinator, &call_log).await;
    eventually("served", || is_served(&a, Access::Write)).await;
    let first = a.incarnation().unwrap();
    test_coordinator.be_silent(true);
    // Else it comes back in time, and lives.
    test_coordinator.refuse(Some(("not now", Retry::Later)));
    eventually("the brake is on", || test_coordinator.call(|cluster, _| cluster.brake().is_some())).await;
    test_coordinator.be_silent(false);
    test_coordinator.refuse(None);
    eventually("served again", || is_served(&a, Access::Write)).await;
    eventually("the brake is released", || test_coordinator.call(|cluster, _| cluster.brake().is_none()))
        .await;
    assert_eq!(a.incarnation(), Some(first), "it was not given up");
    assert_eq!((call_log.count("load"), call_log.count("drop")), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_comes_back_finds_the_same_incarnation_and_nothing_moves() {
    let test_coordinator = TestCoordinator::new();
    let (listener, address) = common::address().await;
    let (coordinator, door) = test_coordinator.open_on(listener);
    test_coordinator.create(1, Ownership::Exclusive);
    let call_log = Arc::new(CallLog::default());
    let a = worker("a", &coordinator, &call_log).await;
    eventually("served", || is_served(&a, Access::Write)).await;
    let (incarnation, calls) = (a.incarnation(), call_log.calls());
    door.abort();
    test_coordinator.cut_connections();
    eventually("noticed", || a.health() == Health::Lapsed).await;
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let _door = test_coordinator.open_on(listener);
    eventually("back", || a.health() == Health::Up).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(a.incarnation(), incarnation);
    assert_eq!(call_log.calls(), calls);
    assert!(is_served(&a, Access::Write));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_coordinators_is_tried_in_turn() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let (nobody, dead) = common::address().await;
    drop(nobody);
    let started = Worker::builder("a", [dead.to_string(), coordinator], "127.0.0.1:9")
        .register_within(Duration::from_secs(10))
        .start(Service(Arc::default()))
        .await;
    assert!(started.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_can_never_be_says_why() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    let start = |node: &str, coordinators: &[&str], capacity: f64| {
        Worker::builder(node, coordinators.iter().copied(), "127.0.0.1:9")
            .capacity(capacity)
            .register_within(Duration::from_millis(300))
            .start(Service(Arc::default()))
    };
    let said = |result: Result<Worker, StartError>| result.unwrap_err().to_string();
    assert!(said(start("a/b", &[&coordinator], 1.0).await).contains("a/b"));
    assert!(said(start("a", &[&coordinator], f64::NAN).await).contains("capacity"));
    assert!(said(start("a", &[], 1.0).await).contains("no coordinator"));
    test_coordinator.refuse(Some(("this house takes no more workers", Retry::Never)));
    assert!(said(start("a", &[&coordinator], 1.0).await).contains("takes no more workers"));
    test_coordinator.refuse(Some(("not now", Retry::Later)));
    assert!(said(start("a", &[&coordinator], 1.0).await).contains("within"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_leaving_goes_when_everything_is_served_elsewhere() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let (da, db) = (Arc::new(CallLog::default()), Arc::new(CallLog::default()));
    let a = worker("a", &coordinator, &da).await;
    eventually("a serves", || is_served(&a, Access::Write)).await;
    let refused = a.leave(Duration::from_millis(300)).await.unwrap_err();
    assert!(refused.to_string().contains("1 replica is still here"), "nobody to take over: {refused}");
    assert!(is_served(&a, Access::Write), "it goes on serving");
    let b = worker("b", &coordinator, &db).await;
    a.leave(Duration::from_secs(10)).await.unwrap();
    assert!(is_served(&b, Access::Write));
    assert_eq!(da.calls().last().unwrap(), "drop");
    assert!(da.calls().contains(&"unload to 1".to_owned()));
    assert!(!is_served(&a, Access::Read));
    let left = test_coordinator.call(|cluster, _| cluster.nodes()["a"].signs.left);
    assert!(left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_a_move_waits_for_the_last_request_and_evicts_it_in_the_end() {
    let test_coordinator = TestCoordinator::with_long_leases();
    let (coordinator, _door) = test_coordinator.open().await;
    test_coordinator.create(1, Ownership::Exclusive);
    let (da, db) = (Arc::new(CallLog::default()), Arc::new(CallLog::default()));
    let patient = CallbackTimeouts { drain_ms: 3_000, ..impatient() };
    let a = patient_worker("a", &coordinator, &da, patient).await;
    eventually("a serves", || is_served(&a, Access::Write)).await;
    let b = worker("b", &coordinator, &db).await;
    let Admission::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
    test_coordinator.move_shard(test_coordinator.shard(), "a", "b").await;
    eventually("the gate is shut", || !is_served(&a, Access::Write)).await;
    let Admission::Elsewhere { node, .. } = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
    assert_eq!(node.as_str(), "b");
    assert!(guard.mine_all_along(), "nobody else can have begun");
    assert!(!is_served(&b, Access::Write), "b waits for a's last request");
    tokio::time::timeout(Duration::from_secs(20), guard.cancelled()).await.unwrap();
    assert!(!guard.mine_all_along());
    assert!(!is_served(&b, Access::Write), "told to go, but not gone");
    drop(guard);
    eventually("b serves", || is_served(&b, Access::Write)).await;
    assert_eq!(da.count("unload"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_a_worker_whose_coordinator_is_gone_leaves_when_its_lease_is_over() {
    let test_coordinator = TestCoordinator::new();
    let (coordinator, door) = test_coordinator.open().await;
    let call_log = Arc::new(CallLog::default());
    let a = worker("a", &coordinator, &call_log).await;
    test_coordinator.create(1, Ownership::Exclusive);
    eventually("it serves", || is_served(&a, Access::Write)).await;
    door.abort();
    test_coordinator.be_silent(true);
    test_coordinator.cut_connections();
    let begun = tokio::time::Instant::now();
    let error = a.leave(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, LeaveError::NoCoordinator { held: 1 }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited for {:?}", begun.elapsed());
    assert!(!is_served(&a, Access::Write), "the lease is over");
}
