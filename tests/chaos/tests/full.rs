//! C14: the engine has no room. What was asked is refused, and it is told what is full; questions and leases go on, and
//! the same leader makes changes again when there is room.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::admin::bulky_keyspace;
use chaos::engine::Engine;
use chaos::fleet::Fleet;
use chaos::load::Load;
use chaos::until;
use partage_coordination::{Backend, Error, Key, Transaction, connect};
use partage_wire::json::Summary;
use partage_wire::stored::describe;
use std::time::Duration;

/// Longer than the lease of a worker, which is 8 s beside an engine.
const LONG: Duration = Duration::from_secs(10);

/// What fills the engine, beside the cluster.
const JUNK: &str = "junk";

/// The hard quota of the ZooKeeper, in bytes, over what the cluster has when it is set.
const LITTLE_MORE: u64 = 100;

/// Writes until nothing more of these sizes goes in.
async fn fill(engine: &Engine, sizes: &[usize]) {
    let store = connect(&engine.root_through(&engine.address(), JUNK)).await.unwrap();
    for bytes in sizes {
        for number in 0..200 {
            let key = Key::new(format!("junk/{bytes}/{number}")).unwrap();
            match store.commit(Transaction::new().put(&key, vec![7; *bytes])).await {
                Ok(_) => {}
                Err(Error::NoRoom { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Uses up the room of the engine.
async fn use_up(engine: &Engine) {
    match engine {
        Engine::Etcd(_) => fill(engine, &[900_000, 16 << 10, 512]).await,
        Engine::MariaDb(_) => panic!("not filled here"),
        Engine::ZooKeeper(server) => server.limit_bytes("/chaos", Some(LITTLE_MORE)).await,
    }
}

/// Makes room, as the page on the engine says.
async fn make_room(engine: &Engine) {
    match engine {
        Engine::Etcd(server) => server.make_room(JUNK),
        Engine::MariaDb(_) => panic!("not filled here"),
        Engine::ZooKeeper(server) => server.limit_bytes("/chaos", None).await,
    }
}

/// The engine is filled under a cluster. `says` is what is full, in the words that a person reads.
async fn leases_go_on_and_the_leader_stays(backend: Backend, settings: &[&str], says: [&str; 2]) {
    let engine = Engine::start(backend, settings).await;
    let fleet = Fleet::on(engine, 3, "settle_ms = 500\n").await;
    fleet.admin.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::routed(&fleet.router("kv").await, "kv", true);
    load.rounds(3).await;
    let led = fleet.leader().await;

    use_up(&fleet.engine).await;
    let refused = fleet.admin.command(bulky_keyspace("one")).await.unwrap_err();
    let all = ["not_stored", "nothing was changed", "make room", says[0], says[1]];
    assert_eq!(all.iter().find(|says| !refused.contains(**says)), None, "{refused}");
    until("status says what is full", || async {
        let status: Summary = fleet.admin.try_get("/v1/status").await?;
        let told = status.problems.iter().any(|problem| problem.what.contains(says[1]));
        if told { Ok(()) } else { Err(format!("{:?}", status.problems)) }
    })
    .await;
    tokio::time::sleep(LONG).await;
    load.rounds(3).await;
    assert_eq!(fleet.leader().await, led, "it leads all along");
    let again = fleet.admin.command(bulky_keyspace("two")).await.unwrap_err();
    assert!(again.contains("nothing was changed"), "{again}");
    let log = fleet.log(&led.0);
    assert_eq!(log.matches(ROOM_AGAIN).count(), 0, "it takes a full engine for one with room: {log}");

    make_room(&fleet.engine).await;
    until("changes are made again", || fleet.admin.command(bulky_keyspace("three"))).await;
    assert_eq!(fleet.leader().await, led, "it leads all along");
    assert_eq!(fleet.lapses(), 0, "a lease lapsed");
    assert!(!fleet.state().await.contains_key("room"), "a look for room leaves nothing");
    load.rounds(3).await;
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
}

/// What a leader says that has found room.
const ROOM_AGAIN: &str = "there is room on the disk again";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_on_an_etcd_without_room_leases_go_on_and_the_leader_stays() {
    let quota = "--quota-backend-bytes=16777216";
    leases_go_on_and_the_leader_stays(Backend::Etcd, &[quota], ["etcd://", "space quota"]).await;
}

/// A hard quota is what ZooKeeper refuses changes for; with a full disk it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_on_a_zookeeper_without_room_leases_go_on_and_the_leader_stays() {
    let says = ["zookeeper://", "setquota"];
    leases_go_on_and_the_leader_stays(Backend::ZooKeeper, &["enforceQuota=true"], says).await;
}

/// Logs and small maps stay below so many bytes, and a bulky map does not.
const LITTLE_ROOM: u64 = 200 << 10;

/// The coordinators that keep the map of a keyspace, by the engine's word.
async fn keepers(fleet: &Fleet, keyspace: &str) -> String {
    let key = format!("keyspaces/{keyspace}/map/metadata");
    fleet.state().await.get(&key).map_or("nobody".to_owned(), |value| describe(&key, value).unwrap())
}

/// The own disks of all coordinators are full, then those of all but the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_a_map_that_no_coordinator_has_room_for_is_refused_and_a_leader_with_room_keeps_it_alone() {
    let mut fleet = Fleet::start(Backend::Etcd, 1).await;
    fleet.admin.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::routed(&fleet.router("kv").await, "kv", true);
    load.rounds(3).await;
    let (ids, led) = (fleet.ids(), fleet.leader().await);
    ids.iter().for_each(|id| fleet.one(id).process.limit_files(Some(LITTLE_ROOM)));
    let refused = fleet.admin.command(bulky_keyspace("one")).await.unwrap_err();
    assert_eq!(keepers(&fleet, "one").await, "nobody", "{refused}");
    let folder = format!("{}: cannot write `", led.0);
    let all = ["not_stored", "nothing was changed", "make room", &folder, "/one/"];
    assert_eq!(all.iter().find(|says| !refused.contains(**says)), None, "{refused}");
    until("status says what is full", || async {
        let status: Summary = fleet.admin.try_get("/v1/status").await?;
        let told = status.problems.iter().any(|problem| problem.what.contains(&folder));
        if told { Ok(()) } else { Err(format!("{:?}", status.problems)) }
    })
    .await;
    tokio::time::sleep(LONG).await;
    load.rounds(3).await;
    let again = fleet.admin.command(bulky_keyspace("two")).await.unwrap_err();
    assert!(again.contains("nothing was changed"), "{again}");
    assert_eq!(fleet.leader().await, led, "it leads all along");
    let log = fleet.log(&led.0);
    assert_eq!(log.matches(ROOM_AGAIN).count(), 0, "it takes full disks for disks with room: {log}");

    let leader = &led.0;
    fleet.one(leader).process.limit_files(None);
    until("the leader has room", || fleet.admin.command(bulky_keyspace("one"))).await;
    let kept = keepers(&fleet, "one").await;
    assert!(kept.ends_with(&format!("kept by {leader}")), "{leader} alone: {kept}");
    assert_eq!(fleet.leader().await, led, "it leads all along");

    ids.iter().for_each(|id| fleet.one(id).process.limit_files(None));
    until("the others keep it, too", || async {
        let kept = keepers(&fleet, "one").await;
        if ids.iter().all(|id| kept.contains(id.as_str())) { Ok(()) } else { Err(kept) }
    })
    .await;
    assert_eq!(fleet.lapses(), 0, "a lease lapsed");
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
}
