//! The change feed of a table on real processes: what a reader gets while leaders die and shards split and merge, and when it is
//! too late.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../table_cluster/mod.rs"]
mod cluster;
mod grpc;

use cluster::{Cluster, ask, bytes, coded, eventually, put};
use grpc::StreamReader;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What became of a row, and its value since.
type Seen = (String, Option<Vec<u8>>);

/// What a reader of a feed has got.
#[derive(Default)]
struct Reader {
    after: Option<String>,
    /// Of each key what became of it, in the order in which it came.
    seen: BTreeMap<Vec<u8>, Vec<Seen>>,
    pages: usize,
}

impl Reader {
    /// Asks for a page until a node gives one. Says how many changes it has.
    fn read(&mut self, nodes: &[String], query: &str) -> usize {
        let after = self.after.as_ref().map(|after| format!("&after={after}")).unwrap_or_default();
        let path = format!("/v1/tables/stock/feed?{query}{after}");
        let mut turn = self.pages;
        let page = eventually("a page of the feed", || {
            turn += 1;
            match ask(&nodes[turn % nodes.len()], "GET", &path, &[], &[]) {
                Ok(answer) if answer.status == 200 => Ok(answer.json()),
                other => Err(format!("{other:?}")),
            }
        });
        self.pages += 1;
        self.after = Some(page["next"].as_str().unwrap().to_owned());
        let changes = page["changes"].as_array().unwrap();
        for change in changes {
            let value = change.get("value").map(bytes);
            let kind = change["change"].as_str().unwrap().to_owned();
            self.seen.entry(bytes(&change["key"])).or_default().push((kind, value));
        }
        changes.len()
    }
}

fn serving(cluster: &Cluster) -> Vec<Value> {
    let shards = cluster.shards("stock").into_iter();
    let mut serving: Vec<Value> = shards.filter(|shard| shard["stage"] == "serving").collect();
    serving.sort_by_key(|shard| shard["bounds"].to_string());
    serving
}

/// Writes one counter of each key after the other, and keeps which were acknowledged, until it is to stop.
fn write(nodes: &[String], key: &str, stop: &AtomicBool, acknowledged: &Mutex<BTreeMap<String, Vec<u64>>>) {
    let path = format!("/v1/tables/stock/keys/{}", coded(key.as_bytes()));
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        for node in nodes.iter().cycle().skip(number as usize).take(2) {
            let put = ask(node, "PUT", &path, &[], number.to_string().as_bytes());
            if put.is_ok_and(|answer| answer.status == 204) {
                acknowledged.lock().unwrap().entry(key.to_owned()).or_default().push(number);
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Splits a shard, merges its children, and kills the leader of what they become.
fn disturb(cluster: &Cluster) {
    let run = |what: &str, arguments: &dyn Fn() -> Option<Vec<String>>| {
        eventually(what, || {
            let arguments = arguments().ok_or("the shards are not there yet")?;
            let said = cluster.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
        });
    };
    let shard = |at: usize| Some(serving(cluster).get(at)?["shard"].to_string());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let wait = ["--wait", "--timeout", "60"];
    run("a split", &|| {
        Some(words(&[&["shard", "split", "stock", &shard(0)?, "--at", "key-3"], &wait[..]].concat()))
    });
    run("a merge", &|| {
        let (low, high) = (shard(0)?, shard(1)?);
        Some(words(&[&["shard", "merge", "stock", &low, &high], &wait[..]].concat()))
    });
    let leader = cluster.leader(&serving(cluster)[0]);
    let pid = cluster.nodes[leader].process.0.id().to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    put(&cluster.nodes[(leader + 1) % 3].address, "stock", b"key-9", "", b"after the leader's death");
}

#[test]
fn each_acknowledged_write_is_in_the_feed_in_order_over_the_death_of_a_leader_a_split_and_a_merge() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--sharding", "key-range", "--feed", "10m"]);
    let shown = cluster.table(&["show", "stock"]).json();
    assert_eq!(shown["feed_ms"].as_u64().or(shown["keyspace"]["feed_ms"].as_u64()), Some(600_000), "{shown}");
    cluster.put("stock", b"key-0", "", b"first");
    let all: Vec<String> = cluster.addresses();
    let (stop, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let acknowledged = Mutex::new(BTreeMap::new());
    let (mut reader, mut stream) = std::thread::scope(|scope| {
        let (all, stop, done, acknowledged) = (&all, &stop, &done, &acknowledged);
        let writers: Vec<_> = (1..7)
            .map(|key| scope.spawn(move || write(all, &format!("key-{key}"), stop, acknowledged)))
            .collect();
        let reading = scope.spawn(move || {
            let mut reader = Reader::default();
            while !done.load(Ordering::Relaxed) {
                reader.read(all, "limit=7&wait_ms=2000");
            }
            reader
        });
        let streaming = scope.spawn(move || StreamReader::default().read(all, done));
        let disturbed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| disturb(&cluster)));
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
        disturbed.unwrap();
        (reading.join().unwrap(), streaming.join().unwrap())
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() == 6 && acknowledged.values().all(|of| of.len() > 20), "{acknowledged:?}");
    let living =
        all.iter().find(|node| ask(node, "GET", "/partage/worker/metrics", &[], &[]).is_ok()).unwrap();
    stream.read_rest(living);
    stream.check(&acknowledged);
    assert!(stream.seen[&b"key-0"[..]].len() == 1 && stream.seen.contains_key(&b"key-9"[..]));
    let is_missing = |reader: &Reader| {
        acknowledged.iter().any(|(key, numbers)| {
            let last = numbers.last().unwrap().to_string();
            let seen = reader.seen.get(key.as_bytes());
            seen.is_none_or(|seen| !seen.iter().any(|(_, value)| value.as_deref() == Some(last.as_bytes())))
        })
    };
    let until = Instant::now() + Duration::from_secs(30);
    while is_missing(&reader) && Instant::now() < until {
        reader.read(&all, "limit=1000&wait_ms=500");
    }
    assert_eq!(reader.seen[&b"key-0"[..]], [("put".to_owned(), Some(b"first".to_vec()))]);
    assert!(reader.seen.contains_key(&b"key-9"[..]));
    for (key, numbers) in &acknowledged {
        let seen: Vec<u64> = reader.seen[key.as_bytes()]
            .iter()
            .map(|(kind, value)| {
                assert_eq!(kind, "put");
                String::from_utf8(value.clone().unwrap()).unwrap().parse().unwrap()
            })
            .collect();
        // A write that was sent twice may have been done twice, one after the other.
        assert!(seen.is_sorted(), "{key}: {seen:?}");
        let missing: Vec<_> = numbers.iter().filter(|number| !seen.contains(number)).collect();
        assert!(missing.is_empty(), "{key} lacks {missing:?} of {numbers:?}");
    }
}

#[test]
fn a_feed_is_followed_resumed_and_refused() {
    let cluster = Cluster::start(2);
    cluster.create(&["stock", "--shards", "4", "--replicas", "2", "--feed", "2s"]);
    cluster.create(&["plain", "--shards", "1", "--replicas", "2"]);
    let all: Vec<String> = cluster.addresses();
    for key in ["a", "b", "c"] {
        cluster.put("stock", key.as_bytes(), "", b"1");
    }
    cluster.put("stock", b"b", "?ttl_ms=200", b"2");
    cluster.delete("stock", b"a");
    let said = cluster.run(&["table", "feed", "stock", "--limit", "5"]);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(said.code == Some(0) && lines.len() == 5, "{said:?}");
    let of = |key: &str| {
        lines.iter().filter(|line| line.split('\t').nth(1) == Some(key)).copied().collect::<Vec<_>>()
    };
    assert_eq!(
        (of("a"), of("b"), of("c")),
        (vec!["put\ta\t1", "delete\ta"], vec!["put\tb\t1", "put\tb\t2"], vec!["put\tc\t1"])
    );
    let token = said.err.split("--after ").nth(1).unwrap().trim().to_owned();
    // The row ends by itself, though nobody writes.
    let mut reader = Reader { after: Some(token.clone()), ..Reader::default() };
    let begun = Instant::now();
    while reader.seen.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing comes");
        reader.read(&all, "wait_ms=10000");
    }
    assert_eq!(reader.seen[&b"b"[..]], [("expired".to_owned(), None)]);

    // A reader that has everything is not late, however long ago that was; one that lacks something is.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(reader.read(&all, ""), 0);
    let old = format!("/v1/tables/stock/feed?after={token}");
    eventually("the old token is too old", || match ask(&all[0], "GET", &old, &[], &[]) {
        Ok(answer) if answer.status == 410 && answer.json()["error"]["kind"] == "gone" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    cluster.run(&["table", "feed", "stock", "--after", &token]).refused(4, &["too old", "after=now"]);
    cluster.put("stock", b"a", "", b"3");
    let begun = Instant::now();
    while reader.seen.len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing comes");
        reader.read(&all, "wait_ms=5000");
    }
    assert_eq!(reader.seen[&b"a"[..]], [("put".to_owned(), Some(b"3".to_vec()))]);
    let mut now = Reader { after: Some("now".to_owned()), ..Reader::default() };
    assert_eq!(now.read(&all, ""), 0, "what was written before does not count");
    let waited = Instant::now();
    assert_eq!(now.read(&all, "wait_ms=1000"), 0);
    assert!((900..8_000).contains(&waited.elapsed().as_millis()), "{:?}", waited.elapsed());
    let json = cluster.table(&["feed", "stock", "--after", now.after.as_ref().unwrap()]).json();
    assert!(json["changes"].as_array().unwrap().is_empty() && json["next"].is_string(), "{json}");

    let refused = |path: &str| {
        let answer = ask(&all[0], "GET", path, &[], &[]).unwrap();
        (answer.status, answer.json()["error"]["kind"].as_str().unwrap().to_owned())
    };
    assert_eq!(refused("/v1/tables/plain/feed"), (409, "refused".to_owned()));
    assert_eq!(refused(&format!("/v1/tables/plain/feed?after={token}")).0, 409);
    assert_eq!(refused("/v1/tables/none/feed"), (404, "not_found".to_owned()));
    assert_eq!(refused("/v1/tables/stock/feed?shard=99"), (404, "not_found".to_owned()));
    assert_eq!(refused("/v1/tables/stock/feed?after=abc"), (400, "malformed".to_owned()));
    let said = cluster.table(&["create", "bad", "--feed", "30d"]);
    said.refused(2, &["604800000"]);
}

#[test]
fn one_that_does_not_follow_ends_while_writers_go_on_and_has_what_was_written_before_it_began() {
    let cluster = Cluster::start(2);
    cluster.create(&["stock", "--shards", "4", "--replicas", "2", "--feed", "10m"]);
    let all: Vec<String> = cluster.addresses();
    let stop = AtomicBool::new(false);
    let acknowledged = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        let (all, stop, acknowledged) = (&all, &stop, &acknowledged);
        let writers: Vec<_> = (0..8)
            .map(|key| scope.spawn(move || write(all, &format!("key-{key}"), stop, acknowledged)))
            .collect();
        let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..5 {
                std::thread::sleep(Duration::from_millis(300));
                let before = acknowledged.lock().unwrap().clone();
                let begun = Instant::now();
                let said = cluster.run(&["table", "feed", "stock"]);
                assert!(said.code == Some(0) && begun.elapsed() < Duration::from_secs(20), "{said:?}");
                for (key, numbers) in &before {
                    let last = format!("put\t{key}\t{}", numbers.last().unwrap());
                    assert!(said.out.lines().any(|line| line == last), "{last:?} is not in {}", said.out);
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        listed.unwrap();
    });
    assert!(acknowledged.into_inner().unwrap().len() == 8);
}
