//! D20: an engine is restored from an older state of itself while coordinators and workers run. The leader steps down,
//! the next one refuses the keyspace whose map was set back and says so, no key has two owners, no term has two leaders,
//! nothing is dropped, and what was acknowledged is there when all coordinators were stopped and the newest state was
//! restored.
//!
//! What the leader notices first differs: on etcd, and where a dump is loaded into MariaDB, that the engine's version is
//! lower than it was; where MariaDB starts on older files, that its last commit is gone, or, as all sessions are over in
//! files that are older than one, its key. ZooKeeper
//! lets nobody in who has seen a later change than it knows of itself, so there the leader cannot renew its session.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::engine::Engine;
use chaos::fleet::Fleet;
use chaos::load::Load;
use chaos::past::Way;
use chaos::trial::Watch;
use chaos::until;
use partage_coordination::Backend;
use partage_wire::json::{Command, Summary};
use std::time::Duration;

/// How long leases and sessions are.
struct Pace {
    settings: &'static str,
    /// Longer than the lease of a worker.
    long: Duration,
}

/// An engine that is stopped and started is gone for less than a session. A test may take every node away.
const STEADY: Pace = Pace {
    settings: "settle_ms = 500\nbrake_share = 1.0\nlease_ms = 12000\n[coordination]\nsession_ms = 10000\n",
    long: Duration::from_secs(14),
};

/// For an engine that runs on.
const BRISK: Pace =
    Pace { settings: "settle_ms = 500\nbrake_share = 1.0\nlease_ms = 4000\n", long: Duration::from_secs(5) };

async fn move_a_shard(fleet: &Fleet) {
    let shard = fleet.admin.shards("kv").await.swap_remove(0);
    let from = shard.replicas[0].node.clone();
    let to = ["n1", "n2", "n3"].into_iter().find(|node| *node != from).unwrap().to_owned();
    let moved = Command::MoveShard { keyspace: "kv".to_owned(), shard: shard.shard, from, to };
    fleet.admin.command(moved).await.unwrap();
    fleet.admin.settled().await;
}

/// Waits until `status` says so.
async fn told(fleet: &Fleet, what: &str, is_so: impl Fn(&Summary) -> bool) {
    until(what, || async {
        let status: Summary = fleet.admin.try_get("/v1/status").await?;
        if is_so(&status) { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

/// Two keyspaces that are served, of which the older state has none of one, and an older map of the other.
async fn live_on(fleet: &Fleet, way: Way) -> (Load, Load) {
    fleet.admin.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::routed(&fleet.router("kv").await, "kv", true);
    load.rounds(3).await;
    fleet.engine.keep(way, "older");
    move_a_shard(fleet).await;
    move_a_shard(fleet).await;
    load.rounds(3).await;
    fleet.admin.keyspace("late", "exclusive", "suggested").await;
    let late = Load::routed(&fleet.router("late").await, "late", true);
    late.rounds(3).await;
    fleet.engine.keep(way, "newest");
    (load, late)
}

/// The older state comes back under coordinators that run, and then the newest.
async fn set_back_and_forth(backend: Backend, way: Way, pace: Pace) -> (Fleet, Load, Load) {
    let engine = Engine::start(backend, &[]).await;
    let mut fleet = Fleet::on(engine, 3, pace.settings).await;
    let (load, late) = live_on(&fleet, way).await;
    let (_, term) = fleet.leader().await;
    let watch = Watch::start(fleet.addresses());

    fleet.engine.set_back(way, "older").await;
    // The leader notices by itself and steps down; the next one reads what is there.
    fleet.leader_since(term + 1).await;
    told(&fleet, "the keyspace is refused, and it is told", |status| {
        let told = format!("{:?}", status.quarantine);
        told.contains("kv") && told.contains("somebody set it back")
    })
    .await;
    tokio::time::sleep(pace.long).await;
    assert_eq!((load.lies(), late.lies()), (Vec::new(), Vec::new()));
    let warned = format!("{:?}", fleet.warnings());
    for says in ["restored from an older state", "keyspace late was at"] {
        assert!(warned.contains(says), "{warned}");
    }

    // The newest state is put back, and the keyspace is taken up without a person.
    fleet.engine.set_back(way, "newest").await;
    told(&fleet, "the quarantine is over", |status| status.quarantine.is_empty()).await;
    fleet.whole().await;
    assert_eq!((load.lies(), late.lies()), (Vec::new(), Vec::new()));
    watch.agrees_with(&fleet.reigns());
    (fleet, load, late)
}

async fn restored_under_coordinators(backend: Backend, way: Way) {
    let (mut fleet, load, late) = set_back_and_forth(backend, way, STEADY).await;
    // As the book says: all coordinators are stopped first.
    for id in fleet.ids() {
        fleet.stop(&id).await;
    }
    fleet.engine.set_back(way, "newest").await;
    fleet.ids().iter().for_each(|id| fleet.revive(id));
    fleet.whole().await;
    fleet.admin.command(Command::ReleaseBrake {}).await.ok();
    fleet.admin.settled().await;
    for load in [load, late] {
        load.rounds(2).await;
        load.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_d10_an_older_dump_loaded_under_coordinators_is_refused_and_told() {
    let (_fleet, load, late) = set_back_and_forth(Backend::MySql, Way::Tool, BRISK).await;
    for load in [load, late] {
        load.rounds(2).await;
        load.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute: `./test long` runs it"]
async fn o1_d10_an_older_snapshot_of_etcd_restored_under_coordinators_is_refused_and_told() {
    restored_under_coordinators(Backend::Etcd, Way::Tool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute: `./test long` runs it"]
async fn o1_d10_an_older_dump_of_mariadb_under_coordinators_and_the_newest_with_none() {
    restored_under_coordinators(Backend::MySql, Way::Tool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute: `./test long` runs it"]
async fn o1_d10_older_files_of_mariadb_put_back_under_coordinators_are_refused_and_told() {
    restored_under_coordinators(Backend::MySql, Way::Files).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute: `./test long` runs it"]
async fn o1_d10_older_files_of_zookeeper_put_back_under_coordinators_are_refused_and_told() {
    restored_under_coordinators(Backend::ZooKeeper, Way::Files).await;
}
