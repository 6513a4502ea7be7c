//! D20: MariaDB is restored from an older dump of itself while coordinators and workers run. The next leader refuses the
//! keyspace whose map was set back and says so, no key has two owners, and what was acknowledged is there when all
//! coordinators were stopped and the newest dump was restored.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::engine::Engine;
use chaos::fleet::Fleet;
use chaos::load::Load;
use chaos::until;
use partage_coordination::Backend;
use partage_wire::json::{Command, Summary};
use std::time::Duration;

const TABLES: [&str; 4] = ["partage_roots", "partage_keys", "partage_sessions", "partage_history"];

/// Longer than the lease of a worker, which is 8 s beside an engine.
const LONG: Duration = Duration::from_secs(10);

fn sql(fleet: &Fleet, statements: &[String]) {
    let Engine::MariaDb(server) = &fleet.engine else { panic!("not MariaDB") };
    drop(server.sql(&format!("START TRANSACTION; {}; COMMIT", statements.join("; "))));
}

/// What `mariadb-dump` writes to a file, in the server itself.
fn dump(fleet: &Fleet, name: &str) {
    let of = |table: &str| format!("CREATE TABLE partage.{name}_{table} AS SELECT * FROM partage.{table}");
    sql(fleet, &TABLES.map(of));
}

/// The rows of that dump in place of those that are there.
fn restore(fleet: &Fleet, name: &str) {
    let of = |table: &str| {
        let dumped = format!("SELECT * FROM partage.{name}_{table}");
        format!("DELETE FROM partage.{table}; INSERT INTO partage.{table} {dumped}")
    };
    sql(fleet, &TABLES.map(of));
}

async fn move_a_shard(fleet: &Fleet) {
    let shard = fleet.admin.shards("kv").await.swap_remove(0);
    let from = shard.replicas[0].node.clone();
    let to = ["n1", "n2", "n3"].into_iter().find(|node| *node != from).unwrap().to_owned();
    let moved = Command::MoveShard { keyspace: "kv".to_owned(), shard: shard.shard, from, to };
    fleet.admin.command(moved).await.unwrap();
    fleet.admin.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes: `./test long` runs it"]
async fn o1_d10_an_older_dump_restored_under_running_coordinators_is_refused_and_told() {
    let mut fleet = Fleet::start(Backend::MySql, 3).await;
    fleet.admin.keyspace("kv", "exclusive", "suggested").await;
    let load = Load::routed(&fleet.router("kv").await, "kv", true);
    load.rounds(3).await;
    dump(&fleet, "older");
    move_a_shard(&fleet).await;
    move_a_shard(&fleet).await;
    load.rounds(3).await;
    fleet.admin.keyspace("late", "exclusive", "suggested").await;
    let late = Load::routed(&fleet.router("late").await, "late", true);
    late.rounds(3).await;
    dump(&fleet, "newest");

    let (_, term) = fleet.leader().await;
    restore(&fleet, "older");
    // The leader notices by itself and steps down; the next one reads what is there.
    fleet.leader_since(term + 1).await;
    until("the keyspace is refused, and it is told", || async {
        let status: Summary = fleet.admin.try_get("/v1/status").await?;
        let told = format!("{:?}", status.quarantine);
        if told.contains("kv") && told.contains("somebody set it back") { Ok(()) } else { Err(told) }
    })
    .await;
    tokio::time::sleep(LONG).await;
    assert_eq!(load.lies(), Vec::<String>::new());

    let warned = format!("{:?}", fleet.warnings());
    assert!(warned.contains("it was restored from an older state while coordinators ran"), "{warned}");
    assert!(warned.contains("keyspace late was at"), "{warned}");

    // The newest rows are put back, and the keyspace is taken up without a person.
    restore(&fleet, "newest");
    until("the quarantine is over", || async {
        let status: Summary = fleet.admin.try_get("/v1/status").await?;
        if status.quarantine.is_empty() { Ok(()) } else { Err(format!("{:?}", status.quarantine)) }
    })
    .await;
    fleet.whole().await;
    assert_eq!(load.lies(), Vec::<String>::new());

    // As the book says: all coordinators are stopped first.
    for id in fleet.ids() {
        fleet.stop(&id).await;
    }
    restore(&fleet, "newest");
    fleet.ids().iter().for_each(|id| fleet.revive(id));
    fleet.whole().await;
    fleet.admin.command(Command::ReleaseBrake {}).await.ok();
    fleet.admin.settled().await;
    load.rounds(2).await;
    assert_eq!(load.lies(), Vec::<String>::new());
    late.rounds(2).await;
    load.finish().await;
    late.finish().await;
}
