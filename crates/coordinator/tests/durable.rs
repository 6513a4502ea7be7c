//! Workers over HTTP whose data outlives them: every process is restarted, and each finds its replicas again (A2).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;

use door::{Door, Hand, until};
use partage_core::base::settings::Settings;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

fn quick() -> Settings {
    Settings {
        settle_ms: 50,
        heartbeat_ms: 100,
        lease_ms: 1_000,
        dead_after_ms: 1_200,
        check_back_ms: 200,
        ..Settings::default()
    }
}

fn create(shards: u32, replicas: u32) -> Value {
    json!({
        "command": "create_keyspace",
        "keyspace": {
            "name": "kv", "sharding": { "type": "hash_range", "hash": "xxh3-64" }, "replicas": replicas,
            "durable": true, "throttle": { "replace_after_ms": 600_000 },
        },
        "presplit": { "type": "hash_ranges", "shards": shards },
    })
}

/// The replicas of each shard with their nodes, and the epochs.
async fn table(door: &Door) -> (BTreeMap<u64, BTreeSet<(u64, String)>>, BTreeMap<u64, u64>) {
    let table = door.read("/v1/keyspaces/kv/shards").await;
    let (mut placed, mut epochs) = (BTreeMap::new(), BTreeMap::new());
    for shard in table["shards"].as_array().unwrap() {
        let id = shard["shard"].as_u64().unwrap();
        let replicas = shard["replicas"].as_array().unwrap().iter();
        let replicas =
            replicas.map(|r| (r["placement"].as_u64().unwrap(), r["node"].as_str().unwrap().to_owned()));
        placed.insert(id, replicas.collect());
        epochs.insert(id, shard["epoch"].as_u64().unwrap());
    }
    (placed, epochs)
}

fn all_led(status: &Value) -> bool {
    status["shards"]["led"] == 8 && status["moves"] == 0 && status["loads"] == 0
}

#[tokio::test]
async fn d10_o3_every_process_is_restarted_and_holds_what_it_held_under_higher_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let mut door = Door::on_disk(quick(), dir.path(), "127.0.0.1:0").await;
    let (mut a, mut b, mut c) =
        (Hand::join(&door, "a").await, Hand::join(&door, "b").await, Hand::join(&door, "c").await);
    door.done(create(8, 3)).await;
    until(&door, &mut [&mut a, &mut b, &mut c], all_led).await;
    for round in 0..3 {
        let before = table(&door).await;
        if round > 0 {
            door.coordinator.stop().await;
            door = Door::on_disk(quick(), dir.path(), "127.0.0.1:0").await;
        }
        (a, b, c) = (a.restart(&door).await, b.restart(&door).await, c.restart(&door).await);
        until(&door, &mut [&mut a, &mut b, &mut c], all_led).await;
        let now = table(&door).await;
        assert_eq!(now.0, before.0, "round {round}");
        assert!(now.1.iter().all(|(id, epoch)| *epoch > before.1[id]), "O3, round {round}: {now:?}");
        assert!([&a, &b, &c].iter().all(|hand| hand.stored.is_empty() && hand.orders.len() == 8));
    }
}

fn choose(shard: u64, generation: u64) -> Value {
    let command = "force_join_shard";
    json!({ "command": command, "keyspace": "kv", "shard": shard, "node": "b", "generation": generation })
}

#[tokio::test]
async fn d10_a_shard_waits_for_its_node_until_a_person_chooses_another_copy() {
    let door = Door::with(quick()).await;
    let (mut a, mut b) = (Hand::join(&door, "a").await, Hand::join(&door, "b").await);
    door.done(create(8, 2)).await;
    until(&door, &mut [&mut a, &mut b], all_led).await;
    // b misses what is written while it is away, and then a goes for good.
    let led_by_a = |s: &Value| {
        s["shards"]["led"] == 8 && s["nodes"]["down"] == 1 && s["replicas"] == json!({ "live": 8, "load": 8 })
    };
    let away = b;
    until(&door, &mut [&mut a], led_by_a).await;
    // Until a serves under the epochs in which b has no part, b has all that was acknowledged.
    for _ in 0..3 {
        a.go_on(&door, 0).await;
    }
    drop(a);
    // The last holder of shards is given up by a person only.
    until(&door, &mut [], |s| s["brake"].to_string().contains("no node answers")).await;
    let mut b = away.restart(&door).await;
    until(&door, &mut [&mut b], |s| s["nodes"]["up"] == 1).await;
    assert!(door.refused(choose(1, 0)).await.2.contains("has not ended"));
    door.done(json!({ "command": "release_brake" })).await;
    let waits = |s: &Value| s["problems"].to_string().contains("hold the only copies of their data");
    let status = until(&door, &mut [&mut b], waits).await;
    assert_eq!(status["shards"]["led"], 0, "{status}");
    assert!(b.stored.len() + b.orders.len() == 8, "nothing of it may be deleted");
    let explained = door.read("/v1/explain/kv?key=k").await;
    assert!(explained["blocked"].to_string().contains("it waits for a, which has its data"), "{explained}");

    let (status, kind, message) = door.refused(choose(1, 0)).await;
    assert_eq!(kind, "refused", "{status} {message}");
    let present: u64 = message.split("is at ").nth(1).unwrap().split(':').next().unwrap().parse().unwrap();
    let answer = door.done(choose(1, present)).await;
    assert!(answer["warnings"].to_string().contains("may be missing"), "{answer}");
    until(&door, &mut [&mut b], |s| s["shards"]["led"] == 1).await;
}
