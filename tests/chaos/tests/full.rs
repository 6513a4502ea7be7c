//! C14: the engine has no room. What was asked is refused, and it is told what is full; questions and leases go on, and
//! the same leader makes changes again when there is room.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::engine::Engine;
use chaos::fleet::Fleet;
use chaos::load::Load;
use chaos::until;
use partage_coordination::{Backend, Coordination, Error, Key, Transaction, connect};
use partage_wire::json::Summary;
use std::time::Duration;

/// Longer than the lease of a worker, which is 8 s beside an engine.
const LONG: Duration = Duration::from_secs(10);

/// What fills the engine, beside the cluster.
const JUNK: &str = "junk";

/// Writes until nothing more goes in.
async fn fill(store: &dyn Coordination) {
    for bytes in [1 << 20, 16 << 10, 512] {
        for number in 0..200 {
            let key = Key::new(format!("junk/{bytes}/{number}")).unwrap();
            match store.commit(Transaction::new().put(&key, vec![7; bytes.min(900_000)])).await {
                Ok(_) => {}
                Err(Error::NoRoom { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Makes room, as the page on the engine says.
fn make_room(engine: &Engine) {
    let Engine::Etcd(server) = engine else { panic!("not filled here") };
    server.control(&["del", "--prefix", &format!("/partage/{JUNK}/")]);
    let status = server.control(&["endpoint", "status", "--write-out=json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    server.control(&["compact", &revision]);
    server.control(&["defrag"]);
    server.control(&["alarm", "disarm"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c14_on_an_etcd_without_room_leases_go_on_and_the_leader_stays() {
    let engine = Engine::start(Backend::Etcd, &["--quota-backend-bytes=16777216"]).await;
    let junk = connect(&engine.root_through(&engine.address(), JUNK)).await.unwrap();
    let fleet = Fleet::on(engine, 3, "settle_ms = 500\n").await;
    fleet.admin.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::routed(&fleet.router("kv").await, "kv", true);
    load.rounds(3).await;
    let led = fleet.leader().await;

    fill(&*junk).await;
    let refused = fleet.change(&led.0, "one").await.unwrap_err();
    let says = ["not_stored", "nothing was changed", "space quota", "etcd://", "make room"];
    assert_eq!(says.iter().find(|says| !refused.contains(**says)), None, "{refused}");
    until("status says what is full", || async {
        let status: Summary = fleet.admin.try_get("/v1/status").await?;
        let told = status.problems.iter().any(|problem| problem.what.contains("space quota"));
        if told { Ok(()) } else { Err(format!("{:?}", status.problems)) }
    })
    .await;
    tokio::time::sleep(LONG).await;
    load.rounds(3).await;
    assert_eq!(fleet.leader().await, led, "it leads all along");
    let again = fleet.change(&led.0, "two").await.unwrap_err();
    assert!(again.contains("nothing was changed"), "{again}");

    make_room(&fleet.engine);
    until("changes are made again", || fleet.change(&led.0, "three")).await;
    assert_eq!(fleet.leader().await, led, "it leads all along");
    assert_eq!(fleet.lapses(), 0, "a lease lapsed");
    load.rounds(3).await;
    let account = load.finish().await;
    assert_eq!(account.failed, 0, "{account:?}");
}
