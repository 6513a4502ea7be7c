//! Indexes of a table on three nodes: built on rows that are there, asked while rows are written, while leaders are killed, and
//! while shards are split and merged; and checks, which find nothing.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

mod asked_shards;
#[path = "../table_cluster/mod.rs"]
mod cluster;

use cluster::{Cluster, ask_json, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Rows that are there from the beginning to the end.
const ROWS: usize = 2_000;

fn section(number: usize) -> String {
    format!("s{}", number % 10)
}

fn fill(cluster: &Cluster) {
    for first in (0..ROWS).step_by(500) {
        let row = |number: usize| {
            let json = json!({ "section": section(number), "size": number, "x": { "deep": number % 3 } });
            json!({ "key": format!("k{number:05}"), "json": json })
        };
        let rows: Vec<Value> = (first..first + 500).map(row).collect();
        let body = json!({ "rows": rows }).to_string();
        eventually("rows are put", || {
            match ask_json(&cluster.nodes[0].address, "POST", "/v1/tables/parts/put", &body) {
                Some((200, _)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
    for (key, value) in [("not-json", "x"), ("none", "{}"), ("odd", "{\"section\": \"s1\", \"x\": 1e999}")] {
        let said = cluster.run(&["table", "put", "parts", key, value]);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
}

/// The keys that a query finds, page by page, from the node of that number.
fn query(addresses: &[String], node: usize, path: &str) -> Vec<String> {
    let (mut keys, mut token) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/tables/parts/indexes/{path}&keys_only=true{token}");
        let (_, page) = eventually("a page", || match ask_json(&addresses[node], "GET", &path, "") {
            Some((200, page)) => Ok((200, page)),
            other => Err(format!("{other:?}")),
        });
        keys.extend(
            page["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(next) => token = format!("&token={next}"),
            None => return keys,
        }
    }
}

/// The rows of the beginning with that section, in their order.
fn expected(of: &str) -> Vec<String> {
    let mut keys: Vec<String> =
        (0..ROWS).filter(|number| section(*number) == of).map(|number| format!("k{number:05}")).collect();
    if of == "s1" {
        keys.push("odd".to_owned());
    }
    keys
}

/// The keys without those of [`writer`].
fn of_beginning(keys: Vec<String>) -> Vec<String> {
    keys.into_iter().filter(|key| !key.starts_with('w')).collect()
}

/// Writes rows of its own until `stops` is set; returns what each should have then.
fn writer(
    nodes: Arc<Vec<String>>,
    stops: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
) -> std::thread::JoinHandle<BTreeMap<String, String>> {
    std::thread::spawn(move || {
        let mut rows = BTreeMap::new();
        for number in 0.. {
            if stops.load(Ordering::Relaxed) {
                break;
            }
            // Each time round, a key has another section, or is deleted.
            let turn = number + number / 100;
            let (key, section, deletes) = (format!("w{:04}", number % 100), section(turn), turn % 5 == 0);
            let path = format!("/v1/tables/parts/keys/{key}");
            let node = &nodes[number % nodes.len()];
            let answer = match deletes {
                true => ask_json(node, "DELETE", &path, ""),
                false => ask_json(node, "PUT", &path, &json!({ "section": section, "size": 1 }).to_string()),
            };
            let has = match answer {
                Some((204, _)) if deletes => String::new(),
                Some((204, _)) => section,
                // It may have been done, or not.
                _ => "?".to_owned(),
            };
            rows.insert(key, has);
            written.fetch_add(1, Ordering::Relaxed);
        }
        rows
    })
}

/// Splits a shard between two pages of a query.
fn split_between_pages(cluster: &Cluster, addresses: &[String], shard: &Value) {
    let split = |at: &str, shard: &Value| {
        let shard = shard["shard"].as_u64().unwrap().to_string();
        eventually("a shard is split", || {
            let said = cluster.run(&["shard", "split", "parts", &shard, "--at", at, "--wait"]);
            if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
        });
    };
    let first = "/v1/tables/parts/indexes/by-section?equals=s3&limit=50&keys_only=true";
    let page = eventually("a page", || match ask_json(&addresses[1], "GET", first, "") {
        Some((200, page)) => Ok(page),
        other => Err(format!("{other:?}")),
    });
    split("k00500", shard);
    assert_eq!(cluster.shards("parts").len(), 3);
    let rest = format!("by-section?equals=s3&limit=50&token={}", page["next"].as_str().unwrap());
    let keys = page["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned());
    let keys: Vec<String> = keys.chain(query(addresses, 1, &rest)).collect();
    assert_eq!(of_beginning(keys), expected("s3"));
}

#[test]
fn an_index_is_built_on_a_filled_table_and_asked_while_everything_changes() {
    let mut cluster = Cluster::start(3);
    let said =
        cluster.run(&["table", "create", "parts", "--sharding", "key-range", "--split", "k01000", "--wait"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    fill(&cluster);
    let addresses = Arc::new(cluster.addresses());
    let (stops, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writing = writer(Arc::clone(&addresses), Arc::clone(&stops), Arc::clone(&written));

    let created =
        cluster.table(&["index", "create", "parts", "by-section", "--field", "section", "--wait"]).json();
    assert_eq!((&created["state"], &created["shards"]), (&json!("ready"), &json!(2)));
    cluster.table(&["index", "create", "parts", "by-size", "--field", "size", "--wait"]).json();
    for node in 0..3 {
        assert_eq!(of_beginning(query(&addresses, node, "by-section?equals=s1&limit=37")), expected("s1"));
    }
    let sizes = query(&addresses, 1, "by-size?from=10&to=20&limit=3");
    assert_eq!(sizes, (10..20).map(|number| format!("k{number:05}")).collect::<Vec<_>>());
    cluster.nothing_differs("parts");

    // A leader is killed: others lead, and have the index.
    let shard = cluster.shards("parts")[0].clone();
    let leader = cluster.leader(&shard);
    cluster.nodes[leader].process.kill();
    let other = (leader + 1) % 3;
    assert_eq!(of_beginning(query(&addresses, other, "by-section?equals=s2&limit=100")), expected("s2"));
    cluster.start_again(leader);

    split_between_pages(&cluster, &addresses, &shard);
    for number in 0..10 {
        let of = section(number);
        assert_eq!(
            of_beginning(query(&addresses, number % 3, &format!("by-section?equals={of}&limit=1000"))),
            expected(&of)
        );
    }
    // The children of the split have the last numbers.
    let merged: Vec<String> = cluster
        .shards("parts")
        .iter()
        .skip(1)
        .map(|shard| shard["shard"].as_u64().unwrap().to_string())
        .collect();
    eventually("shards are merged", || {
        let said = cluster.run(&["shard", "merge", "parts", &merged[0], &merged[1], "--wait"]);
        if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
    });
    assert_eq!(of_beginning(query(&addresses, 2, "by-section?equals=s4&limit=33")), expected("s4"));

    let before = written.load(Ordering::Relaxed);
    eventually("the writer goes on", || {
        (written.load(Ordering::Relaxed) > before + 20).then_some(()).ok_or(String::new())
    });
    stops.store(true, Ordering::Relaxed);
    let rows = writing.join().unwrap();
    for number in 0..10 {
        let of = section(number);
        let found = query(&addresses, 0, &format!("by-section?equals={of}&limit=1000"));
        for (key, has) in rows.iter().filter(|(_, has)| *has != "?") {
            assert_eq!(found.contains(key), *has == of, "{key} has {has:?}, and index says {of}");
        }
    }
    cluster.nothing_differs("parts");
    let listed = cluster.table(&["index", "list", "parts"]).json();
    let names: Vec<&str> =
        listed["indexes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["by-section", "by-size"]);
    assert!(listed["indexes"].as_array().unwrap().iter().all(|one| one["state"] == "ready"), "{listed}");

    cluster.table(&["index", "drop", "parts", "by-section", "--wait"]).json();
    let (status, gone) =
        ask_json(&addresses[1], "GET", "/v1/tables/parts/indexes/by-section?equals=s1", "").unwrap();
    assert_eq!((status, &gone["error"]["kind"]), (404, &json!("not_found")), "{gone}");
    cluster.nothing_differs("parts");
}

#[test]
fn what_cannot_be_asked_is_refused_with_the_way_out() {
    let cluster = Cluster::start(3);
    let said = cluster.run(&["table", "create", "parts", "--shards", "4", "--wait"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let create =
        |name: &str, field: &str| cluster.table(&["index", "create", "parts", name, "--field", field]);
    let dry = cluster.table(&["index", "create", "parts", "a", "--field", "a.b", "--dry-run"]).json();
    assert_eq!((&dry["state"], &dry["shards"]), (&json!("building"), &json!(4)));
    assert_eq!(cluster.table(&["index", "list", "parts"]).json(), json!({ "indexes": [] }));
    create("a", "a.b").json();
    create("a", "a.b").json();
    create("a", "c").refused(4, &["of field a.b already"]);
    create("b", "a..b").refused(2, &["character 3"]);
    create("b/c", "a").refused(2, &["index name"]);
    cluster.table(&["index", "create", "none", "a", "--field", "a"]).refused(4, &["no table none"]);
    cluster.table(&["index", "query", "parts", "x", "--equals", "1"]).refused(4, &["no index x"]);
    cluster.table(&["index", "query", "parts", "a", "--from", "1", "--to", "x"]).refused(2, &["kinds"]);
    cluster.table(&["index", "query", "parts", "a", "--equals", "null"]).refused(2, &["no index"]);
    cluster.table(&["index", "drop", "parts", "x"]).refused(4, &["no index x"]);
    cluster.table(&["index", "drop", "parts", "a", "--dry-run"]).json();
    for number in 1..partage_core::limits::INDEXES {
        create(&format!("i{number}"), "a").json();
    }
    create("more", "a").refused(4, &["may have no more"]);
    let put = cluster.run(&["table", "put", "parts", "k", "{\"a\": {\"b\": -7}}"]);
    assert_eq!(put.code, Some(0), "{put:?}");
    eventually("the index is ready", || {
        let said = cluster.run(&["table", "index", "query", "parts", "a", "--equals", "-7", "--keys-only"]);
        if (said.code, said.out.as_str()) == (Some(0), "k\n") { Ok(()) } else { Err(format!("{said:?}")) }
    });
    let page = |path: &str| {
        ask_json(&cluster.nodes[0].address, "GET", &format!("/v1/tables/parts/indexes/{path}"), "").unwrap()
    };
    for (path, expected) in [
        ("a?token=abc", (400, "malformed")),
        ("a?limit=0", (400, "malformed")),
        ("a?what=1", (400, "malformed")),
        ("none", (404, "not_found")),
    ] {
        let (status, body) = page(path);
        assert_eq!((status, body["error"]["kind"].as_str().unwrap()), expected, "{path}: {body}");
    }
    cluster.table(&["check", "none"]).refused(4, &["no table none"]);
    assert_eq!(cluster.table(&["check", "parts"]).json()["replicas"], 12);
}

#[test]
fn a_partition_that_is_registered_after_an_index_has_it_when_it_is_asked() {
    let cluster = Cluster::start(3);
    let named = ["--sharding", "named", "--partition-key", "hash-tag", "--partitions", "red,blue"];
    cluster.create(&[&["parts"], &named[..]].concat());
    let put = |room: &str, size: usize| {
        let key = format!("{{{room}}}{size}");
        cluster.put("parts", key.as_bytes(), "", json!({ "size": size }).to_string().as_bytes());
        key
    };
    put("red", 1);
    cluster.table(&["index", "create", "parts", "by-size", "--field", "size", "--wait"]).json();
    cluster.table(&["index", "create", "parts", "gone", "--field", "gone", "--wait"]).json();
    cluster.table(&["index", "drop", "parts", "gone", "--wait"]).json();
    for (number, room) in ["green", "white"].into_iter().enumerate() {
        let said = cluster.run(&["shard", "register", "parts", room, "--wait"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let key = put(room, 5 + number);
        let states = |cluster: &Cluster| {
            let listed = cluster.table(&["index", "list", "parts"]).json();
            let indexes = listed["indexes"].as_array().unwrap().iter();
            indexes.map(|one| format!("{} {}", one["name"], one["state"])).collect::<Vec<_>>()
        };
        assert_eq!(states(&cluster), ["\"by-size\" \"incomplete\""]);
        let path = format!("/v1/tables/parts/indexes/by-size?equals={}&keys_only=true", 5 + number);
        let (status, page) = ask_json(&cluster.nodes[number].address, "GET", &path, "").unwrap();
        assert_eq!((status, &page["rows"][0]["key"]), (200, &json!(key)), "{page}");
        assert_eq!(states(&cluster), ["\"by-size\" \"ready\""], "what was dropped does not come back");
    }
    cluster.nothing_differs("parts");
}
