//! Real processes: `kv` nodes and a coordinator, paused, killed and started again, and what they must still have.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a test stops at the first surprise, waits in real time, and says its figures"
)]

#[path = "processes/test_cluster.rs"]
mod test_cluster;

use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};
use test_cluster::TestCluster;
use tokio::time::sleep;

/// Runs a coordinator, in a process of its own that is killed in the end: the other tests start it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process that the other tests start"]
async fn coordinator_process() {
    test_cluster::run_coordinator().await;
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key{number}")).collect()
}

/// D7, D10: the whole cluster was paused for longer than it takes to call a node dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d7_two_nodes_that_were_paused_together_have_every_key() {
    let mut test_cluster = TestCluster::start(&[]).await;
    test_cluster.add("n1", &[]).await;
    test_cluster.add("n2", &[]).await;
    test_cluster.create(json!({ "name": "users", "sharding": test_cluster::fixed(12), "replicas": 1 })).await;
    test_cluster.serves("users", 12, Duration::from_secs(20)).await;
    let keys = keys(40);
    for key in &keys {
        test_cluster.put("users", key, key).await.unwrap();
    }
    for node in ["n1", "n2"] {
        test_cluster.node(node).signal("STOP");
    }
    sleep(Duration::from_secs(6)).await;
    let (code, status) = test_cluster.ask("/v1/status").await;
    assert_eq!(code, 200);
    assert!(status["shards"]["unserved"].as_u64() == Some(12), "it says what is so: {status:#}");
    for node in ["n1", "n2"] {
        test_cluster.node(node).signal("CONT");
    }
    test_cluster.serves("users", 12, Duration::from_secs(20)).await;
    for key in &keys {
        assert_eq!(test_cluster.get("users", key).await.unwrap().as_deref(), Some(key.as_str()));
    }
}

/// D11: the coordinator's state was emptied. Nodes refuse it loudly, and go on when the right one is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d11_nodes_refuse_a_coordinator_on_an_empty_folder_and_lose_nothing() {
    let mut test_cluster = TestCluster::start(&[]).await;
    test_cluster.add("n1", &[]).await;
    test_cluster.add("n2", &[]).await;
    test_cluster.create(json!({ "name": "users", "sharding": test_cluster::fixed(12), "replicas": 1 })).await;
    test_cluster.serves("users", 12, Duration::from_secs(20)).await;
    let keys = keys(40);
    for key in &keys {
        test_cluster.put("users", key, key).await.unwrap();
    }
    test_cluster.kill_coordinator();
    test_cluster.start_coordinator("empty").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(test_cluster.ask("/v1/nodes").await.1["nodes"], json!([]), "none takes part");
    for node in ["n1", "n2"] {
        let log = test_cluster.node(node).log();
        let said =
            log.lines().filter(|line| line.contains("ERROR") && line.contains("restore it from a backup"));
        assert_eq!(said.count(), 1, "{node} says it, and not with every attempt: {log}");
    }
    test_cluster.kill_coordinator();
    test_cluster.start_coordinator("state").await;
    test_cluster.serves("users", 12, Duration::from_secs(20)).await;
    // The nodes' own clients of maps took the empty coordinator at its word, and come back within seconds.
    let end = Instant::now() + Duration::from_secs(20);
    for key in &keys {
        let found = loop {
            match test_cluster.get("users", key).await {
                Err(_) if Instant::now() < end => sleep(Duration::from_millis(100)).await,
                found => break found.unwrap(),
            }
        };
        assert_eq!(found.as_deref(), Some(key.as_str()));
    }
}

/// A folder that was there before the node is made private, and so is one that the node makes, whatever the umask is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_durable_data_is_for_its_user_alone() {
    let mut test_cluster = TestCluster::start(&[]).await;
    let made = test_cluster.folder("n1");
    std::fs::create_dir(&made).unwrap();
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o755)).unwrap();
    for node in ["n1", "n2"] {
        test_cluster.add(node, &["--durable"]).await;
        let mode = std::fs::metadata(test_cluster.folder(node)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{node}");
    }
}

/// D10: every process killed at once and started again, as often as `rounds` says.
async fn everything_is_killed(rounds: usize, shards: u32) {
    let mut test_cluster = TestCluster::start(&[]).await;
    let nodes = ["n1", "n2", "n3"];
    for node in nodes {
        test_cluster.add(node, &["--durable"]).await;
    }
    test_cluster
        .create(json!({
            "name": "users", "sharding": test_cluster::fixed(shards), "replicas": 3, "durable": true,
        }))
        .await;
    test_cluster.serves("users", shards as usize, Duration::from_secs(60)).await;
    let mut acknowledged = BTreeMap::new();
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        // Written until the very moment at which everything is killed.
        let written = test_cluster.write_meanwhile("users", round).await;
        test_cluster.kill_coordinator();
        for node in nodes {
            test_cluster.node(node).signal("KILL");
        }
        acknowledged.extend(written.acknowledged().await);
        assert!(!acknowledged.is_empty(), "round {round}: no write was acknowledged");
        let begun = Instant::now();
        test_cluster.start_coordinator("state").await;
        for node in nodes {
            test_cluster.restart(node).await;
        }
        test_cluster.serves("users", shards as usize, Duration::from_secs(60)).await;
        slowest = slowest.max(begun.elapsed());
        for (key, value) in &acknowledged {
            let found: u64 =
                test_cluster.get("users", key).await.unwrap().unwrap_or_default().parse().unwrap_or_default();
            assert!(found >= *value, "round {round}: {key} was {value}, and is {found}");
        }
        let status = test_cluster.ask("/v1/status").await.1;
        assert_eq!(status["set_aside"], json!([]), "round {round}: {status:#}");
    }
    println!(
        "{rounds} rounds, {shards} shards, {} keys, served after {slowest:?} at most",
        acknowledged.len()
    );
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_every_process_is_killed_and_nothing_acknowledged_is_lost() {
    everything_is_killed(3, 20).await;
}

/// D1, D10: the number of shards changes back and forth, and everything is killed at another moment of it each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_everything_is_killed_while_shards_are_split_and_nothing_acknowledged_is_lost() {
    let mut test_cluster = TestCluster::start(&[]).await;
    let nodes = ["n1", "n2", "n3"];
    for node in nodes {
        test_cluster.add(node, &["--durable"]).await;
    }
    test_cluster
        .create(
            json!({ "name": "users", "sharding": test_cluster::fixed(4), "replicas": 2, "durable": true }),
        )
        .await;
    test_cluster.serves("users", 4, Duration::from_secs(60)).await;
    let mut acknowledged = BTreeMap::new();
    let mut shards = 4;
    for round in 0..4 {
        let to = if shards < 8 { 8 } else { 4 };
        let written = test_cluster.write_meanwhile("users", round).await;
        test_cluster
            .command(
                json!({ "command": "update_keyspace", "keyspace": "users", "changes": { "shards": to } }),
            )
            .await;
        if round % 2 == 0 {
            test_cluster.has_switched("users", Duration::from_secs(20)).await;
        } else {
            sleep(Duration::from_millis(150 * round as u64)).await;
        }
        test_cluster.kill_coordinator();
        for node in nodes {
            test_cluster.node(node).signal("KILL");
        }
        acknowledged.extend(written.acknowledged().await);
        test_cluster.start_coordinator("state").await;
        for node in nodes {
            test_cluster.restart(node).await;
        }
        shards = test_cluster.settles("users", Duration::from_secs(60)).await;
        assert!((4..=8).contains(&shards), "{shards}");
        for (key, value) in &acknowledged {
            let found: u64 =
                test_cluster.get("users", key).await.unwrap().unwrap_or_default().parse().unwrap_or_default();
            assert!(found >= *value, "round {round}: {key} was {value}, and is {found}");
        }
    }
    assert!(!acknowledged.is_empty());
}

/// D8, D10: a node comes back with files that cannot be read, and another one with nothing. The others have the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_nodes_that_come_back_with_damaged_files_and_with_an_empty_disk_serve_everything_again() {
    let mut test_cluster = TestCluster::start(&[]).await;
    for node in ["n1", "n2", "n3"] {
        test_cluster.add(node, &["--durable"]).await;
    }
    test_cluster
        .create(
            json!({ "name": "users", "sharding": test_cluster::fixed(12), "replicas": 2, "durable": true }),
        )
        .await;
    test_cluster.serves_from(2, "users", 12, Duration::from_secs(60)).await;
    let keys = keys(40);
    for key in &keys {
        test_cluster.put("users", key, key).await.unwrap();
    }
    test_cluster.node("n1").signal("KILL");
    let damaged = test_cluster.damage("n1", "users");
    assert!(damaged > 1, "n1 has replicas");
    test_cluster.restart("n1").await;
    test_cluster.registers("n1", 2).await;
    test_cluster.serves_from(2, "users", 12, Duration::from_secs(60)).await;
    let said = test_cluster.node("n1").log().lines().filter(|line| line.contains("damaged at byte")).count();
    assert_eq!(said, damaged, "each is named: {}", test_cluster.node("n1").log());

    test_cluster.node("n2").signal("KILL");
    std::fs::remove_dir_all(test_cluster.folder("n2")).unwrap();
    test_cluster.restart("n2").await;
    test_cluster.registers("n2", 2).await;
    test_cluster.serves("users", 12, Duration::from_secs(60)).await;
    for key in &keys {
        assert_eq!(test_cluster.get("users", key).await.unwrap().as_deref(), Some(key.as_str()));
    }
    // What was damaged is not kept for ever: others serve it.
    let end = Instant::now() + Duration::from_secs(60);
    while test_cluster.damaged("n1", "users") > 0 {
        assert!(Instant::now() < end, "{}", test_cluster.node("n1").log());
        sleep(Duration::from_millis(200)).await;
    }
}

/// R5: a release whose processes die a second after they have started, all of them, again and again. The brake is the one
/// that every cluster has, and no person releases anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_a_crash_loop_of_every_process_sets_nothing_aside_and_everything_serves_within_ten_seconds() {
    const ROUNDS: usize = 5;
    let mut test_cluster = TestCluster::start(&[]).await;
    let nodes = ["n1", "n2", "n3"];
    for node in nodes {
        test_cluster.add(node, &[]).await;
    }
    test_cluster.create(json!({ "name": "users", "sharding": test_cluster::fixed(12), "replicas": 1 })).await;
    test_cluster.serves("users", 12, Duration::from_secs(20)).await;
    for round in 1..=ROUNDS {
        for node in nodes {
            test_cluster.node(node).signal("KILL");
        }
        for node in nodes {
            test_cluster.restart(node).await;
        }
        for node in nodes {
            test_cluster.registers(node, 1 + round).await;
        }
        sleep(Duration::from_millis(1_000)).await;
    }
    let begun = Instant::now();
    test_cluster.serves("users", 12, Duration::from_secs(10)).await;
    println!("{ROUNDS} rounds, served after {:?}", begun.elapsed());
    let status = test_cluster.ask("/v1/status").await.1;
    assert_eq!(status["set_aside"], json!([]), "{status:#}");
    assert!(
        !status["problems"].to_string().contains("release`"),
        "no person has to release anything: {status:#}"
    );
    test_cluster.put("users", "key", "value").await.unwrap();
    assert_eq!(test_cluster.get("users", "key").await.unwrap().as_deref(), Some("value"));
}

/// `cargo test --release -p partage-kv --test processes -- --ignored d10_long --nocapture`; `KV_TEST_ROUNDS` and
/// `KV_TEST_SHARDS` say otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "100 rounds of 1,000 shards take half an hour"]
async fn d10_long_every_process_is_killed_a_hundred_times() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (rounds, shards) =
        (number("KV_TEST_ROUNDS").unwrap_or(100), number("KV_TEST_SHARDS").unwrap_or(1_000));
    everything_is_killed(rounds as usize, shards).await;
}
