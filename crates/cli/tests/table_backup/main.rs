//! Backups of tables, from processes and into them: what is in them, what is written anew, what is refused, what becomes of a
//! restore that does not end.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../table_cluster/mod.rs"]
mod cluster;
mod damage;
mod interrupted;
mod named;
mod prune;
mod snapshots;

use cluster::{Cluster, Rows, files, noise, put};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A table of key ranges with rows that are awkward: the empty key, any bytes, the largest value.
fn awkward(cluster: &Cluster, table: &str) -> Rows {
    let mut rows: Rows = (0..60_u64).map(|n| (format!("key-{n:03}").into_bytes(), noise(n, 500))).collect();
    rows.insert(vec![], b"of the empty key".to_vec());
    rows.insert(vec![0], vec![]);
    rows.insert(vec![0xff; 4_096], b"of the longest key".to_vec());
    rows.insert(b"a/b c%\0\xfe".to_vec(), vec![0, 0xff, 0x80]);
    rows.insert(b"large".to_vec(), noise(1, 1 << 20));
    rows.iter().for_each(|(key, value)| cluster.put(table, key, "", value));
    rows
}

#[test]
fn every_row_comes_back_in_a_table_of_other_shards_with_its_expiry_and_new_versions() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--sharding", "key-range", "--split", "k,key-030"]);
    let mut rows = awkward(&cluster, "stock");
    cluster.put("stock", b"ends late", "?ttl_ms=86400000", b"1");
    cluster.put("stock", b"ends soon", "?ttl_ms=1", b"1");
    rows.insert(b"ends late".to_vec(), b"1".to_vec());
    let ends = cluster.get("stock", b"ends late").header("partage-expires-ms").unwrap().to_owned();
    // The clock of a shard goes on with its writes.
    std::thread::sleep(std::time::Duration::from_millis(5));
    cluster.put("stock", b"", "", &rows[&b""[..]]);
    cluster.delete("stock", b"key-001");
    rows.remove(&b"key-001"[..]);
    let made = cluster.backup("stock");
    assert_eq!((&made["rows"], &made["shards"]), (&json!(rows.len()), &json!(3)));

    let folder = cluster.folder();
    let verified = cluster.table(&["backup", "verify", &folder]).json();
    assert_eq!((&verified["backups"], &verified["damaged"]), (&json!(1), &json!([])));
    let foreseen = cluster.table(&["restore", &folder, "copy", "--dry-run"]).json();
    assert_eq!((&foreseen["rows"], &foreseen["verified"]), (&json!(rows.len()), &json!(true)));
    assert_eq!(cluster.keyspaces(), ["stock"]);
    for (name, flags, shards) in [("copy", vec![], 3), ("few", vec!["--shards", "1", "--replicas", "2"], 1)] {
        let restored = cluster.table(&[&["restore", &folder, name], &flags[..]].concat()).json();
        assert_eq!((&restored["written"], &restored["resumed"]), (&json!(rows.len()), &json!(false)));
        assert!(cluster.rows(name) == rows, "{name} has other rows");
        assert_eq!(cluster.shards(name).len(), shards);
    }
    assert_eq!(cluster.keyspaces(), ["copy", "few", "stock"]);
    assert_eq!(cluster.get("copy", b"ends late").header("partage-expires-ms"), Some(ends.as_str()));
    // M5: a table of the same name has other shards than the one before.
    let numbers = || {
        let shards = cluster.shards("few");
        shards.iter().map(|shard| shard["shard"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let before = numbers();
    assert_eq!(cluster.run(&["table", "drop", "few", "--yes", "--wait"]).code, Some(0));
    cluster.table(&["restore", &folder, "few", "--shards", "1", "--replicas", "2"]).json();
    assert!(numbers().iter().all(|number| !before.contains(number)), "{before:?} {:?}", numbers());

    cluster.table(&["restore", &folder, "stock"]).refused(4, &["there is a keyspace stock already"]);
    assert!(cluster.rows("stock") == rows);
}

#[test]
fn a_second_backup_after_few_changes_writes_little_from_whichever_replica_it_is_read() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--sharding", "key-range"]);
    for number in 0..300_u64 {
        cluster.put("stock", format!("{number:05}").as_bytes(), "", &noise(number, 100_000));
    }
    let first = cluster.backup("stock");
    let written = |made: &serde_json::Value| made["bytes_written"].as_u64().unwrap();
    assert!(written(&first) > 29_000_000, "{first}");
    let same = cluster.backup("stock");
    assert_eq!((written(&same), &same["base"]), (0, &first["backup"]));

    // Another replica leads, and has other runs.
    let led = cluster.leader(&cluster.shards("stock")[0]);
    cluster.nodes[led].process.kill();
    let others: Vec<String> = cluster
        .nodes
        .iter()
        .enumerate()
        .filter(|(n, _)| *n != led)
        .map(|(_, node)| node.address.clone())
        .collect();
    put(&others[0], "stock", b"00100", "", b"changed");
    put(&others[0], "stock", b"00100-added", "", b"new");
    let second = cluster.backup("stock");
    let bytes = written(&second);
    assert!((1..12_000_000).contains(&bytes), "{second}");
    assert_eq!((&second["rows"], &second["base"]), (&json!(301), &same["backup"]));
    let listed = cluster.table(&["backup", "list", &cluster.folder()]).json();
    assert_eq!(listed["backups"].as_array().unwrap().len(), 3);
}

#[test]
fn what_was_acknowledged_before_a_backup_is_in_it_and_nothing_that_was_not_written() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "4"]);
    let stop = Arc::new(AtomicBool::new(false));
    // Each thread counts its own keys up: (key, acknowledged, sent) is what it knows at any time.
    type Counts = Arc<std::sync::Mutex<BTreeMap<Vec<u8>, (u64, u64)>>>;
    let counts: Counts = Arc::default();
    let writers: Vec<_> = (0..3)
        .map(|thread| {
            let (stop, counts, address) =
                (Arc::clone(&stop), Arc::clone(&counts), cluster.nodes[thread].address.clone());
            std::thread::spawn(move || {
                for turn in 1_u64.. {
                    let key = format!("{thread}-{:03}", turn % 40).into_bytes();
                    counts.lock().unwrap().entry(key.clone()).or_default().1 = turn;
                    put(&address, "stock", &key, "", turn.to_string().as_bytes());
                    counts.lock().unwrap().get_mut(&key).unwrap().0 = turn;
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            })
        })
        .collect();
    let mut checks = Vec::new();
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(700));
        let before = counts.lock().unwrap().clone();
        let made = cluster.backup("stock");
        let after = counts.lock().unwrap().clone();
        checks.push((before, made["backup"].as_str().unwrap().to_owned(), after));
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for (number, (before, id, after)) in checks.iter().enumerate() {
        let name = format!("copy{number}");
        cluster.table(&["restore", &cluster.folder(), &name, "--backup", id, "--shards", "2"]).json();
        let rows = cluster.rows(&name);
        for (key, (acknowledged, _)) in before.iter().filter(|(_, (acknowledged, _))| *acknowledged > 0) {
            let found: u64 = std::str::from_utf8(&rows[key]).unwrap().parse().unwrap();
            assert!((*acknowledged..=after[key].1).contains(&found), "{key:?}: {found} {acknowledged}");
        }
        assert!(rows.keys().all(|key| after.contains_key(key)));
    }
}

#[test]
fn an_empty_table_and_a_cluster_of_one_node() {
    let cluster = Cluster::start(3);
    cluster.create(&["empty", "--shards", "3"]);
    let made = cluster.backup("empty");
    assert_eq!((&made["rows"], &made["chunks"]), (&json!(0), &json!(0)));
    let folder = cluster.folder();
    assert_eq!(files(cluster.path("backups").as_path()).len(), 1);
    cluster.create(&["full", "--shards", "3"]);
    let rows: Rows = (0..50_u64).map(|n| (n.to_be_bytes().to_vec(), noise(n, 99))).collect();
    rows.iter().for_each(|(key, value)| cluster.put("full", key, "", value));
    let full = cluster.backup("full");

    let one = Cluster::start(1);
    one.table(&["restore", &folder, "copy"]).refused(2, &["several tables", "--backup ID"]);
    for (made, rows) in [(&made, Rows::new()), (&full, rows)] {
        let id = made["backup"].as_str().unwrap();
        one.table(&["restore", &folder, "copy", "--backup", id, "--replicas", "1"]).json();
        assert!(one.rows("copy") == rows);
        assert_eq!(one.shards("copy").len(), 3);
        assert_eq!(one.run(&["table", "drop", "copy", "--yes", "--wait"]).code, Some(0));
    }
}

#[test]
fn places_and_tables_that_are_not_there_are_named() {
    let cluster = Cluster::start(1);
    cluster.create(&["stock", "--replicas", "1", "--shards", "1"]);
    let folder = cluster.folder();
    let none = cluster.path("none");
    let none = none.to_str().unwrap();
    cluster
        .table(&["backup", "create", "other", &folder])
        .refused(4, &["there is no table other", "table list"]);
    cluster.table(&["backup", "list", none]).refused(4, &["there is no folder", "none"]);
    cluster.table(&["backup", "verify", none]).refused(4, &["there is no folder"]);
    cluster.table(&["restore", none, "copy"]).refused(4, &["there is no folder"]);
    cluster
        .table(&["backup", "create", "stock", "s4://bucket/x"])
        .refused(2, &["no source has the scheme s4"]);
    cluster.table(&["backup", "create", "stock", "s3:/bucket/x"]).refused(2, &["looks like a URL"]);
    assert!(!std::path::Path::new(&folder).exists());
    let foreseen = cluster.table(&["backup", "create", "stock", &folder, "--dry-run"]).json();
    assert_eq!((&foreseen["dry_run"], &foreseen["base"]), (&json!(true), &json!(null)));
    assert!(!std::path::Path::new(&folder).exists(), "a dry run makes no folder");
    std::fs::create_dir(&folder).unwrap();
    cluster.table(&["restore", &folder, "copy"]).refused(4, &["has no backup of a table"]);
    cluster.backup("stock");
    cluster.table(&["restore", &folder, "copy", "--backup", "x"]).refused(4, &["has no backup x"]);
    cluster.table(&["backup", "create", "stock", &folder, "--base", "x"]).refused(4, &["has no backup x"]);
    assert_eq!(cluster.keyspaces(), ["stock"]);
}
