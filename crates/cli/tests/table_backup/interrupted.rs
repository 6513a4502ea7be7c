//! Restores and backups that do not end at the first try.

use crate::cluster::{Cluster, Rows, eventually, files, flip, noise};
use serde_json::json;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// A table with chunks enough that a restore takes a while.
fn large(cluster: &Cluster) -> Rows {
    let rows: Rows = (0..200_u64).map(|n| (format!("{n:04}").into_bytes(), noise(n, 100_000))).collect();
    rows.iter().for_each(|(key, value)| cluster.put("stock", key, "", value));
    rows
}

#[test]
fn a_killed_restore_is_told_and_the_same_command_goes_on() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--sharding", "key-range"]);
    let rows = large(&cluster);
    cluster.backup("stock");
    let folder = cluster.folder();
    let mut command = cluster.command(&["table", "restore", &folder, "copy", "--parallel", "1"]);
    let mut restoring = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("a chunk is loaded", || {
        let said = cluster.run(&["table", "scan", "copy.restore", "--keys-only", "--prefix", "done/"]);
        if said.code == Some(0) && said.out.contains("done/") { Ok(()) } else { Err(format!("{said:?}")) }
    });
    restoring.kill().unwrap();
    restoring.wait().unwrap();
    let listed = cluster.run(&["table", "list"]);
    assert!(listed.err.contains("table copy is not whole"), "{listed:?}");
    let shown = cluster.run(&["table", "show", "copy"]);
    assert!(shown.err.contains("table copy is not whole"), "{shown:?}");
    let has = cluster.rows("copy").len();
    assert!(has > 0 && has < rows.len(), "{has}");
    // Another backup is not mixed into it.
    cluster.put("stock", b"0000", "", b"changed");
    let other = cluster.backup("stock")["backup"].as_str().unwrap().to_owned();
    let said = cluster.table(&["restore", &folder, "copy", "--backup", &other]);
    said.refused(4, &["table copy is being restored from backup"]);

    // The latest is the other one now.
    let listed = cluster.table(&["backup", "list", &folder]).json();
    let first = listed["backups"][0]["backup"].as_str().unwrap().to_owned();
    let resumed = cluster.table(&["restore", &folder, "copy", "--backup", &first]).json();
    assert_eq!((&resumed["resumed"], &resumed["rows"]), (&json!(true), &json!(200)));
    assert!(resumed["loaded_before"].as_u64().unwrap() > 0, "{resumed}");
    assert!(cluster.rows("copy") == rows);
    assert_eq!(cluster.keyspaces(), ["copy", "stock"]);
    let listed = cluster.run(&["table", "list"]);
    assert!(!listed.err.contains("not whole"), "{listed:?}");
}

#[test]
fn damage_that_is_met_while_loading_leaves_a_table_that_says_so_and_can_be_dropped_or_finished() {
    let cluster = Cluster::start(1);
    cluster.create(&["stock", "--replicas", "1", "--sharding", "key-range"]);
    let rows = large(&cluster);
    cluster.backup("stock");
    let (folder, chunks) = (cluster.folder(), files(&cluster.path("backups").join("chunks")));
    assert!(chunks.len() > 3, "{chunks:?}");
    let damaged = chunks.last().unwrap();
    flip(damaged);
    let restore = ["restore", &folder, "copy", "--parallel", "1", "--skip-verify"];
    let name = damaged.file_name().unwrap().to_str().unwrap();
    cluster.table(&restore).refused(4, &[name, "table copy is not whole", "partage table drop copy"]);
    let listed = cluster.run(&["table", "list"]);
    assert!(listed.err.contains("table copy is not whole"), "{listed:?}");
    let dropped = cluster.run(&["table", "drop", "copy", "--yes", "--wait"]);
    assert_eq!(dropped.code, Some(0), "{dropped:?}");
    assert_eq!(cluster.keyspaces(), ["stock"], "its progress is dropped with it");

    cluster.table(&restore).refused(4, &[name]);
    cluster.put("copy", b"of a client", "", b"meanwhile");
    flip(damaged);
    let resumed = cluster.table(&restore).json();
    assert_eq!(resumed["resumed"], true);
    let mut expected = rows;
    expected.insert(b"of a client".to_vec(), b"meanwhile".to_vec());
    assert!(cluster.rows("copy") == expected);
}

#[test]
fn a_backup_goes_on_after_the_death_of_a_leader() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "6"]);
    let rows = large(&cluster);
    let folder = cluster.folder();
    let mut command = cluster.command(&["table", "backup", "create", "stock", &folder, "--parallel", "1"]);
    let backing_up = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    eventually("a chunk is written", || {
        if files(&cluster.path("backups").join("chunks")).is_empty() {
            Err("none".to_owned())
        } else {
            Ok(())
        }
    });
    // The last node may lead the shards that are read then, or not; both must do.
    cluster.nodes[2].process.kill();
    let ended = backing_up.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.table(&["restore", &folder, "copy", "--replicas", "2"]).json();
    assert!(cluster.rows("copy") == rows);
}

#[test]
fn two_restores_of_a_table_do_not_run_at_once_and_one_that_created_nothing_leaves_nothing() {
    let cluster = Cluster::start(1);
    cluster.create(&["stock", "--replicas", "1", "--shards", "1"]);
    cluster.put("stock", b"a", "", b"1");
    cluster.backup("stock");
    let (folder, chunks) = (cluster.folder(), files(&cluster.path("backups").join("chunks")));
    let restore = ["restore", &folder, "copy", "--skip-verify"];
    let too_many = cluster.table(&[&restore[..], &["--min-in-sync", "9"]].concat());
    too_many.refused(2, &["min_in_sync is 9"]);
    assert_eq!(cluster.keyspaces(), ["stock"]);

    flip(&chunks[0]);
    cluster.table(&restore).refused(4, &[chunks[0].to_str().unwrap()]);
    assert_eq!(cluster.keyspaces(), ["copy", "copy.restore", "stock"]);
    flip(&chunks[0]);
    // The lock of a command that lives.
    cluster.put("copy.restore", b"lock", "", b"another");
    cluster.table(&restore).refused(4, &["another command restores table copy"]);
    cluster.delete("copy.restore", b"lock");
    assert_eq!(cluster.table(&restore).json()["written"], 1);
}

#[test]
fn a_table_that_has_the_name_of_a_progress_and_is_none_is_left_alone() {
    let cluster = Cluster::start(1);
    for table in ["stock", "copy.restore"] {
        cluster.create(&[table, "--replicas", "1", "--shards", "1"]);
        cluster.put(table, b"a", "", b"1");
    }
    cluster.backup("stock");
    let restore = ["restore", &cluster.folder(), "copy"];
    cluster.table(&restore).refused(4, &["copy.restore", "no restore has made it"]);
    assert_eq!(cluster.keyspaces(), ["copy.restore", "stock"]);
    cluster.create(&["copy", "--replicas", "1", "--shards", "1"]);
    cluster.table(&["drop", "copy", "--yes"]);
    eventually("only copy is dropped", || match cluster.keyspaces() {
        left if left == ["copy.restore", "stock"] => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

#[test]
fn shards_that_split_under_backups_cost_them_no_row_and_the_next_one_little() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--sharding", "key-range"]);
    let rows = large(&cluster);
    let folder = cluster.folder();
    let first = cluster.backup("stock");
    let serving = || -> Vec<u64> {
        let shards = cluster.shards("stock");
        let serving = shards.iter().filter(|shard| shard["stage"] == "serving");
        serving.map(|shard| shard["shard"].as_u64().unwrap()).collect()
    };
    let splits_end = AtomicBool::new(false);
    let under: Vec<_> = std::thread::scope(|scope| {
        // One after the other, so that each step of the splits meets one.
        let backups = scope.spawn(|| {
            let mut made = Vec::new();
            while !splits_end.load(Ordering::Relaxed) {
                made.push(cluster.table(&["backup", "create", "stock", &folder, "--full"]).json());
            }
            made
        });
        let split = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for turn in 0..2 {
                // A plan of before may still be carried out.
                eventually("a shard is split", || {
                    let shard = serving().get(turn).ok_or("it does not serve yet")?.to_string();
                    let split =
                        cluster.run(&["shard", "split", "stock", &shard, "--wait", "--timeout", "60"]);
                    if split.code == Some(0) { Ok(()) } else { Err(format!("{split:?}")) }
                });
            }
        }));
        splits_end.store(true, Ordering::Relaxed);
        split.unwrap();
        backups.join().unwrap()
    });
    assert!(under.iter().all(|made| made["rows"] == 200), "{under:?}");
    assert_eq!(serving().len(), 3);
    let after = cluster.backup("stock");
    assert_eq!((&after["shards"], &after["rows"]), (&json!(3), &json!(200)));
    assert!(
        after["bytes_written"].as_u64().unwrap() < first["bytes_written"].as_u64().unwrap() / 2,
        "{after}"
    );
    let some = [&under[under.len() / 2], &under[under.len() - 1], &after];
    for (number, made) in some.into_iter().enumerate() {
        let (id, name) = (made["backup"].as_str().unwrap(), format!("copy{number}"));
        cluster.table(&["restore", &folder, &name, "--backup", id]).json();
        assert!(cluster.rows(&name) == rows, "{name}");
    }
}
