//! Keys of the coordination state that somebody deletes or sets back: what is needed is refused by name, all else goes
//! on, and it is told.

use super::*;
use partage_coordination::Scope;
use std::path::{Path, PathBuf};

whoever_keeps_the_maps! {
    faults_in_the_store:
    a_missing_head_puts_its_keyspace_in_quarantine_and_no_other
    a_map_that_no_server_has_puts_its_keyspace_in_quarantine_and_no_other
    a_record_of_the_past_that_is_damaged_stops_nobody
    every_key_deleted_or_set_back_is_refused_or_mended_and_told
    while_nobody_can_lead_every_coordinator_says_why
}

impl Several {
    async fn entries(&self) -> BTreeMap<String, Bytes> {
        let page = self.store.list(&Scope::All, None, usize::MAX).await.unwrap();
        page.entries.into_iter().map(|(key, entry)| (key.to_string(), entry.value)).collect()
    }

    async fn put(&self, key: &str, value: Bytes) {
        let key: Key = key.parse().unwrap();
        self.store.commit(Transaction::new().put(&key, value)).await.unwrap();
    }

    async fn remove(&self, key: &str) {
        let key: Key = key.parse().unwrap();
        self.store.commit(Transaction::new().delete(&key)).await.unwrap();
    }

    /// Has everything read anew.
    async fn next_leader(&mut self) {
        let (leader, _) = self.leader("c1").await;
        self.stop(&leader).await;
        self.add(&leader).await;
        // It has read everything: what is touched from now on is for the one after it.
        self.status().await;
    }

    async fn status(&self) -> Value {
        until("somebody leads", async || match self.ask("c1", "/v1/status", None).await? {
            (200, body) => Ok(body),
            (status, body) => Err(format!("{status} {body}")),
        })
        .await
    }

    /// Until `k` has left the quarantine, with its one shard.
    async fn is_taken_up(&self) {
        until("it is taken up", async || match self.shards("c1", "k").await? {
            1 => Ok(()),
            other => Err(format!("{other} shards")),
        })
        .await;
        assert!(self.quarantine().await.is_empty());
    }

    /// The keyspaces in quarantine.
    async fn quarantine(&self) -> Vec<String> {
        let status = self.status().await;
        let all = status["quarantine"].as_array().unwrap_or_else(|| panic!("{status}"));
        all.iter().map(|one| one["keyspace"].as_str().unwrap().to_owned()).collect()
    }
}

async fn begun(kept: Kept) -> Several {
    let several = Several::start(kept, LONG, &["c1", "c2"]).await;
    for keyspace in ["k", "other"] {
        several.create_named("c1", keyspace).await;
        several.register("c1", keyspace, "north").await;
        several.is_safe(keyspace).await;
    }
    several
}

fn head(kept: Kept) -> &'static str {
    match kept {
        Kept::InStore => "keyspaces/k/map/head",
        Kept::InFiles => "keyspaces/k/map/metadata",
    }
}

async fn a_missing_head_puts_its_keyspace_in_quarantine_and_no_other(kept: Kept) {
    let mut several = begun(kept).await;
    let head = head(kept);
    let value = several.entries().await[head].clone();
    several.remove(head).await;
    several.next_leader().await;
    assert_eq!(several.quarantine().await, ["k"]);
    assert_eq!(several.shards("c1", "other").await, Ok(1), "the other one goes on");
    several.register("c1", "other", "south").await;
    let register = json!({"command": "register_partitions", "keyspace": "k", "partitions": ["south"]});
    let (status, body) = several.command("c1", register).await;
    let said = body.to_string();
    assert!(status == 422 && said.contains("quarantine") && said.contains(head), "{status} {said}");
    let (status, body) = several.create("c1", "k").await;
    assert!(status == 422 && body.to_string().contains("quarantine"), "{status} {body}");
    // A person writes the key again: the keyspace is as it was.
    several.put(head, value).await;
    several.is_taken_up().await;
    several.register("c1", "k", "south").await;
    // Or gives it up: its name is free again, and its ids are not used twice.
    several.remove(head).await;
    several.next_leader().await;
    assert_eq!(several.quarantine().await, ["k"]);
    let (status, body) = several.command("c1", json!({"command": "delete_keyspace", "keyspace": "k"})).await;
    assert_eq!(status, 200, "{body}");
    until("the name is free", async || match several.create("c1", "k").await {
        (200, _) => Ok(()),
        (status, body) => Err(format!("{status} {body}")),
    })
    .await;
}

async fn a_map_that_no_server_has_puts_its_keyspace_in_quarantine_and_no_other(kept: Kept) {
    if kept == Kept::InStore {
        // Its map is a key like others.
        return;
    }
    let mut several = begun(kept).await;
    let folders: Vec<_> = ["c1", "c2"].map(|id| folder_of("k", &several.files.path().join(id))).into();
    for id in ["c1", "c2"] {
        several.stop(id).await;
    }
    let away = several.files.path().join("away");
    std::fs::rename(&folders[1], &away).unwrap();
    std::fs::remove_dir_all(&folders[0]).unwrap();
    for id in ["c1", "c2"] {
        several.add(id).await;
    }
    assert_eq!(several.quarantine().await, ["k"]);
    let status = several.status().await.to_string();
    assert!(status.contains("no metadata server gives its map"), "{status}");
    assert_eq!(several.shards("c1", "other").await, Ok(1), "the other one goes on");
    several.register("c1", "other", "south").await;
    // The directory of one of them comes back.
    several.stop("c2").await;
    let _ = std::fs::remove_dir_all(&folders[1]);
    std::fs::rename(&away, &folders[1]).unwrap();
    several.add("c2").await;
    several.is_taken_up().await;
    several.register("c1", "k", "south").await;
}

/// Where a metadata server keeps the map of a keyspace.
fn folder_of(keyspace: &str, dir: &Path) -> PathBuf {
    let mut below: Vec<PathBuf> = vec![dir.to_path_buf()];
    while let Some(next) = below.pop() {
        if next.file_name().is_some_and(|name| name == keyspace) {
            return next;
        }
        let entries = std::fs::read_dir(&next).into_iter().flatten();
        below.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()));
    }
    panic!("{keyspace} is not below {}", dir.display())
}

async fn a_record_of_the_past_that_is_damaged_stops_nobody(kept: Kept) {
    let mut several = begun(kept).await;
    several.put("plans/7", Bytes::from_static(b"damaged")).await;
    several.put("nodes/gone", Bytes::from_static(b"damaged")).await;
    several.put("somebody/elses", Bytes::from_static(b"x")).await;
    several.next_leader().await;
    let status = several.status().await.to_string();
    assert!(status.contains("plans/7") && status.contains("nodes/gone"), "{status}");
    assert_eq!(several.shards("c1", "k").await, Ok(1));
}

async fn while_nobody_can_lead_every_coordinator_says_why(kept: Kept) {
    let mut several = begun(kept).await;
    several.put("redo/head", Bytes::from_static(b"damaged")).await;
    let (leader, _) = several.leader("c1").await;
    several.stop(&leader).await;
    let left = several.all.keys().next().unwrap().clone();
    until("it says why", async || {
        let (status, body) = several.ask(&left, "/v1/status", None).await?;
        let said = body.to_string();
        if status == 503 && said.contains("redo/head") { Ok(()) } else { Err(format!("{status} {said}")) }
    })
    .await;
    several.remove("redo/head").await;
    until("it leads", async || several.shards(&left, "k").await).await;
}

/// Every key of a keyspace and of the cluster, one at a time.
async fn every_key_deleted_or_set_back_is_refused_or_mended_and_told(kept: Kept) {
    let mut several = begun(kept).await;
    let before = several.entries().await;
    several.register("c1", "k", "south").await;
    several.next_leader().await;
    let now = several.entries().await;
    let is_state = |key: &String| {
        ["about", "coordinators", "election", "events"].iter().all(|root| !key.starts_with(root))
            && !key.starts_with("keyspaces/other")
    };
    for key in now.keys().filter(|key| is_state(key)) {
        for earlier in [None, before.get(key)] {
            if earlier.is_some() && earlier == now.get(key) {
                continue;
            }
            let what = format!("{key} {}", if earlier.is_some() { "set back" } else { "deleted" });
            let latest = several.entries().await[key].clone();
            match earlier {
                Some(earlier) => several.put(key, earlier.clone()).await,
                None => several.remove(key).await,
            }
            several.next_leader().await;
            let status = several.status().await;
            let quarantine = several.quarantine().await;
            let told =
                !quarantine.is_empty() || status["stored_faults"].as_array().is_some_and(|f| !f.is_empty());
            assert!(told, "{what}: nobody is told: {status}");
            assert_eq!(several.shards("c1", "other").await, Ok(1), "{what}: another keyspace");
            if quarantine.is_empty() {
                assert_eq!(several.shards("c1", "k").await, Ok(2), "{what}");
            } else {
                assert_eq!(quarantine, ["k"], "{what}");
                several.put(key, latest).await;
                until(&format!("{what}: it is taken up"), async || match several.shards("c1", "k").await? {
                    2 => Ok(()),
                    other => Err(format!("{other} shards")),
                })
                .await;
            }
        }
    }
}
