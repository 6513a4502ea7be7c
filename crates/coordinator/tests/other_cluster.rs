//! Who follows maps believes a coordinator of its own cluster only: one whose state is gone, or of another cluster, knows
//! nothing of the keyspaces, and would have them forgotten (D11).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

mod door;

use door::Door;
use partage_core::base::settings::Settings;
use partage_maps::{Cache, Kept, MapClient};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// Long enough for several streams to be made anew.
const SEVERAL_TRIES: Duration = Duration::from_secs(3);

fn create(name: &str) -> Value {
    json!({
        "command": "create_keyspace",
        "keyspace": { "name": name, "sharding": { "type": "hash_range", "hash": "xxh3-64" } },
        "presplit": { "type": "hash_ranges", "shards": 4 },
    })
}

fn has(cache: &Cache, name: &str) -> bool {
    cache.full().keyspace(name).is_some()
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..400 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: not in 20 s");
}

async fn start(dir: &Path, address: &str) -> Door {
    Door::on_disk(Settings::default(), dir, address).await
}

/// Seen before: a router whose coordinator was started on an empty folder forgot all keyspaces, and answered 404.
#[tokio::test]
async fn d11_maps_are_kept_while_a_coordinator_of_another_cluster_answers() {
    let [right, empty] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let file = empty.path().join("kept-maps");
    let door = start(right.path(), "127.0.0.1:0").await;
    let address = door.coordinator.address().to_string();
    door.done(create("kv")).await;
    let kept = Some(Kept::read(file.clone()).await);
    let maps = MapClient::follow(vec![address.clone()], BTreeSet::new(), kept);
    eventually("the map comes", || has(maps.cache(), "kv")).await;
    eventually("the map is kept", || file.exists()).await;
    door.coordinator.stop().await;

    let emptied = start(&empty.path().join("coordinator"), &address).await;
    emptied.done(create("other")).await;
    let fresh = MapClient::follow(vec![address.clone()], BTreeSet::new(), None);
    eventually("who knows no cluster yet believes this one", || has(fresh.cache(), "other")).await;
    // A start from kept maps makes no difference.
    let kept = Some(Kept::read(file).await);
    let restarted = MapClient::follow(vec![address.clone()], BTreeSet::new(), kept);
    tokio::time::sleep(SEVERAL_TRIES).await;
    for cache in [maps.cache(), restarted.cache()] {
        assert!(has(cache, "kv") && !has(cache, "other"), "its word is not taken");
        assert!(!cache.is_connected(), "nor is it counted as there");
    }
    emptied.coordinator.stop().await;

    let door = start(right.path(), &address).await;
    door.done(create("later")).await;
    for cache in [maps.cache(), restarted.cache()] {
        eventually("the right one is followed again", || has(cache, "later") && has(cache, "kv")).await;
    }
}
