//! A worker at a coordinator, over the real protocol: registration, callbacks that fail, leases, leaving.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod common;

use common::{KS, Town, eventually, keyspace};
use partage_wire::Retry;
use partage_worker::{
    Access, Assignment, DropReason, Entrance, Epoch, Failure, Handler, Health, LeaveError, Ownership,
    Patience, Peer, Phase, Role, StartError, Worker, async_trait,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Writes down what is called, and does wrong what it is told to.
#[derive(Default)]
struct Diary {
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

impl Diary {
    fn goes_wrong(self: &Arc<Diary>, call: &'static str, how: Wrong, times: u32) {
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

struct Service(Arc<Diary>);

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

fn impatient() -> Patience {
    Patience { load_ms: 150, callback_ms: 150, drain_ms: 200, retry_ms: 20, retry_max_ms: 50 }
}

async fn worker(node: &str, coordinator: &str, diary: &Arc<Diary>) -> Worker {
    patient_worker(node, coordinator, diary, impatient()).await
}

async fn patient_worker(node: &str, coordinator: &str, diary: &Arc<Diary>, patience: Patience) -> Worker {
    let (_, address) = common::address().await;
    Worker::builder(node, [coordinator], address.to_string())
        .patience(patience)
        .start(Service(diary.clone()))
        .await
        .unwrap()
}

fn is_served(worker: &Worker, access: Access) -> bool {
    matches!(worker.enter(&keyspace(), b"key", access), Entrance::Serve(_))
}

fn phase(town: &Town) -> Option<Phase> {
    town.call(|cluster, _| cluster.keyspaces()[KS].observed.values().next().map(|seen| seen.phase().clone()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_it_registers_by_itself_and_serves_what_it_is_given() {
    let town = Town::new();
    let (coordinator, _door) = town.open().await;
    town.create(1, Ownership::Exclusive);
    let diary = Arc::new(Diary::default());
    let a = worker("a", &coordinator, &diary).await;
    assert_eq!(a.health(), Health::Up);
    eventually("the shard is served", || is_served(&a, Access::Write)).await;
    assert_eq!(diary.calls()[0], "load from 0");
    assert_eq!(diary.count("serve leader"), 1);
    let Entrance::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
    assert!(guard.mine_all_along() && guard.role() == Role::Leader);
    assert!(guard.assignment().holds(b"key"));
    assert_eq!(a.replicas()[0].inside, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_two_closures_are_called_exactly_when_the_set_changes() {
    let town = Town::new();
    let (coordinator, _door) = town.open().await;
    town.create(4, Ownership::Exclusive);
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
    town.command(partage_core::cluster::admin::Command::DeleteKeyspace { keyspace: keyspace() });
    eventually("all are deleted", || deleted.load(Ordering::SeqCst) == 4).await;
    assert_eq!(served.load(Ordering::SeqCst), 4);
    drop(a);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_callbacks_that_refuse_panic_or_hang_are_reported_and_tried_again() {
    // Only what hangs is given up soon: to print the trace of a panic takes a slow machine its time.
    let patient = Patience { load_ms: 60_000, ..impatient() };
    for (how, said, patience) in [
        (Wrong::Refuses, "load says no", patient),
        (Wrong::Panics, "panicked: load falls over", patient),
        (Wrong::Hangs, "load has not returned for 150 ms", impatient()),
    ] {
        let town = Town::new();
        let (coordinator, _door) = town.open().await;
        town.create(1, Ownership::Exclusive);
        let diary = Arc::new(Diary::default());
        diary.goes_wrong("load", how, 2);
        let a = patient_worker("a", &coordinator, &diary, patience).await;
        let mut reported = false;
        eventually("it is served in the end", || {
            if let Some(Phase::Failed(failure)) = phase(&town) {
                assert_eq!(failure.reason, said);
                reported = true;
            }
            is_served(&a, Access::Write)
        })
        .await;
        assert!(reported, "the failure was told: {said}");
        let calls: Vec<_> = diary.calls().iter().map(|call| call[..4].to_owned()).collect();
        assert_eq!(calls, ["load", "load", "load", "serv"], "served only when it was loaded");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_without_a_coordinator_exclusive_shards_lapse_and_eventual_ones_go_on() {
    for ownership in [Ownership::Exclusive, Ownership::Eventual] {
        let town = Town::new();
        let (coordinator, _door) = town.open().await;
        town.create(1, ownership);
        let diary = Arc::new(Diary::default());
        let a = worker("a", &coordinator, &diary).await;
        eventually("served", || is_served(&a, Access::Write)).await;
        let tenure = a.tenure(&keyspace(), town.shard()).unwrap();
        let Entrance::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
        assert!(tenure.mine_all_along() && tenure.still_mine() && guard.mine_all_along());
        town.be_silent(true);
        tokio::time::sleep(Duration::from_millis(700)).await;
        let lapsed = matches!(a.enter(&keyspace(), b"key", Access::Write), Entrance::Lapsed);
        assert_eq!(lapsed, ownership == Ownership::Exclusive);
        assert_eq!(tenure.still_mine(), !lapsed);
        town.be_silent(false);
        eventually("served again", || is_served(&a, Access::Write)).await;
        assert_eq!(guard.mine_all_along(), ownership == Ownership::Eventual, "a lapse is not forgotten");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_the_last_worker_is_never_given_up_and_goes_on_with_its_data() {
    let town = Town::new();
    let (coordinator, _door) = town.open().await;
    town.create(1, Ownership::Exclusive);
    let diary = Arc::new(Diary::default());
    let a = worker("a", &coordinator, &diary).await;
    eventually("served", || is_served(&a, Access::Write)).await;
    let first = a.incarnation().unwrap();
    town.be_silent(true);
    // Else it comes back in time, and lives.
    town.refuse(Some(("not now", Retry::Later)));
    eventually("the brake is on", || town.call(|cluster, _| cluster.brake().is_some())).await;
    town.be_silent(false);
    town.refuse(None);
    eventually("served again", || is_served(&a, Access::Write)).await;
    eventually("the brake is released", || town.call(|cluster, _| cluster.brake().is_none())).await;
    assert_eq!(a.incarnation(), Some(first), "it was not given up");
    assert_eq!((diary.count("load"), diary.count("drop")), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_comes_back_finds_the_same_incarnation_and_nothing_moves() {
    let town = Town::new();
    let (listener, address) = common::address().await;
    let (coordinator, door) = town.open_on(listener);
    town.create(1, Ownership::Exclusive);
    let diary = Arc::new(Diary::default());
    let a = worker("a", &coordinator, &diary).await;
    eventually("served", || is_served(&a, Access::Write)).await;
    let (incarnation, calls) = (a.incarnation(), diary.calls());
    door.abort();
    town.cut_lines();
    eventually("noticed", || a.health() == Health::Lapsed).await;
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let _door = town.open_on(listener);
    eventually("back", || a.health() == Health::Up).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(a.incarnation(), incarnation);
    assert_eq!(diary.calls(), calls);
    assert!(is_served(&a, Access::Write));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_coordinators_is_tried_in_turn() {
    let town = Town::new();
    let (coordinator, _door) = town.open().await;
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
    let town = Town::new();
    let (coordinator, _door) = town.open().await;
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
    town.refuse(Some(("this house takes no more workers", Retry::Never)));
    assert!(said(start("a", &[&coordinator], 1.0).await).contains("takes no more workers"));
    town.refuse(Some(("not now", Retry::Later)));
    assert!(said(start("a", &[&coordinator], 1.0).await).contains("within"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a13_leaving_goes_when_everything_is_served_elsewhere() {
    let town = Town::new();
    let (coordinator, _door) = town.open().await;
    town.create(1, Ownership::Exclusive);
    let (da, db) = (Arc::new(Diary::default()), Arc::new(Diary::default()));
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
    let left = town.call(|cluster, _| cluster.nodes()["a"].signs.left);
    assert!(left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_a_move_waits_for_the_last_request_and_evicts_it_in_the_end() {
    let town = Town::with_long_leases();
    let (coordinator, _door) = town.open().await;
    town.create(1, Ownership::Exclusive);
    let (da, db) = (Arc::new(Diary::default()), Arc::new(Diary::default()));
    let patient = Patience { drain_ms: 3_000, ..impatient() };
    let a = patient_worker("a", &coordinator, &da, patient).await;
    eventually("a serves", || is_served(&a, Access::Write)).await;
    let b = worker("b", &coordinator, &db).await;
    let Entrance::Serve(guard) = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
    town.move_shard(town.shard(), "a", "b").await;
    eventually("the gate is shut", || !is_served(&a, Access::Write)).await;
    let Entrance::Elsewhere { node, .. } = a.enter(&keyspace(), b"key", Access::Write) else { panic!() };
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
    let town = Town::new();
    let (coordinator, door) = town.open().await;
    let diary = Arc::new(Diary::default());
    let a = worker("a", &coordinator, &diary).await;
    town.create(1, Ownership::Exclusive);
    eventually("it serves", || is_served(&a, Access::Write)).await;
    door.abort();
    town.be_silent(true);
    town.cut_lines();
    let begun = tokio::time::Instant::now();
    let error = a.leave(Duration::from_secs(60)).await.unwrap_err();
    assert!(matches!(error, LeaveError::NoCoordinator { held: 1 }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited for {:?}", begun.elapsed());
    assert!(!is_served(&a, Access::Write), "the lease is over");
}
