//! Read replicas of a hot shard of a table on real processes: one comes, it answers reads, no write waits for it, and it goes
//! when the shard is hot no more. A hot key among others gets a shard of its own first.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test of processes waits by the clock, and uses a part of the cluster of others"
)]

#[path = "../table_cluster/mod.rs"]
mod cluster;

use cluster::{Cluster, ask, coded, eventually};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEY: &[u8] = b"hot";

/// A shard that is asked for more often than this, on each of its replicas, gets another one. The machine of the test may be
/// slow.
const RATE: &str = "10";

/// No write takes as long as this: one that waited for the read replica would wait for as long as that stands still.
const PROMPT: Duration = Duration::from_secs(2);

fn shard(cluster: &Cluster) -> Value {
    cluster.shards("stock").into_iter().next().unwrap()
}

fn replicas(shard: &Value) -> &[Value] {
    shard["replicas"].as_array().unwrap()
}

/// The nodes of the in-sync set, and the epoch.
fn set(shard: &Value) -> (Vec<&str>, u64) {
    let members = replicas(shard).iter().filter(|replica| replica["in_sync"] == true);
    (members.map(|replica| replica["node"].as_str().unwrap()).collect(), shard["epoch"].as_u64().unwrap())
}

/// The number of the node with the read replica that serves, from 0.
fn reader(shard: &Value) -> Option<usize> {
    let reads = |replica: &&Value| replica["role"] == "read_replica" && replica["state"] == "live";
    let reader = replicas(shard).iter().find(reads)?;
    assert_ne!(reader["in_sync"], true, "D1: {shard}");
    Some(reader["node"].as_str()?[1..].parse::<usize>().unwrap() - 1)
}

/// Asks one node for the hot key, with one of these queries after the other, until it is to stop.
fn read_on(address: &str, queries: &[&str], stop: &AtomicBool) {
    for query in queries.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // What a node that stands still does not answer is none of this thread's business.
        let path = format!("/v1/tables/stock/keys/{}?{query}", coded(KEY));
        let _ = ask(address, "GET", &path, &[], &[]);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Does this while every node is asked for the hot key with these queries.
fn while_read(cluster: &Cluster, queries: &[&str], look: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for node in &cluster.nodes {
            let (address, stop) = (&node.address, &stop);
            scope.spawn(move || read_on(address, queries, stop));
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        stop.store(true, Ordering::Relaxed);
        if let Err(why) = ended {
            std::panic::resume_unwind(why);
        }
    });
}

/// How many reads of a kind a node has answered by itself.
fn own_reads(address: &str, kind: &str) -> u64 {
    let text = ask(address, "GET", "/partage/worker/metrics", &[], &[]).unwrap().body;
    let text = String::from_utf8(text).unwrap();
    let name = format!("partage_table_reads_total{{consistency=\"{kind}\"}} ");
    let count = text.lines().find_map(|line| line.strip_prefix(&name));
    count.map_or(0, |count| count.parse().unwrap())
}

/// The read replica has what is written, and says how old that may be; what only the leader may answer it sends on.
fn reads_are_answered(cluster: &Cluster, node: usize) {
    let address = &cluster.nodes[node].address;
    let read = |query: &str| {
        let path = format!("/v1/tables/stock/keys/{}{query}", coded(KEY));
        ask(address, "GET", &path, &[], &[]).unwrap()
    };
    let (bounded, linearizable) = (own_reads(address, "bounded"), own_reads(address, "linearizable"));
    for value in 0..5 {
        let value = format!("value {value}");
        cluster.put("stock", KEY, "", value.as_bytes());
        assert_eq!(read("").body, value.as_bytes());
        // At most this old: then it has the write, after a moment.
        eventually("a bounded read has the write", || {
            let found = read("?consistency=bounded&bound_ms=10000");
            (found.status == 200 && found.body == value.as_bytes()).then_some(()).ok_or(format!("{found:?}"))
        });
    }
    assert!(own_reads(address, "bounded") >= bounded + 5, "it answers bounded reads itself");
    assert_eq!(own_reads(address, "linearizable"), linearizable, "only a leader answers those");
}

/// It stands still: writes go on at once, and in the end it is out of the map, while set and epoch stay.
fn writes_do_not_wait(cluster: &Cluster, node: usize) {
    let before = shard(cluster);
    let leader = cluster.leader(&before);
    let path = format!("/v1/tables/stock/keys/{}", coded(KEY));
    cluster.nodes[node].process.signal("-STOP");
    let mut longest = Duration::ZERO;
    for number in 0..100 {
        let begun = Instant::now();
        let put =
            ask(&cluster.nodes[leader].address, "PUT", &path, &[], format!("{number}").as_bytes()).unwrap();
        assert_eq!(put.status, 204, "{put:?}");
        longest = longest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(longest < PROMPT, "a write took {longest:?} while a read replica stood still");
    let after = eventually("the read replica leaves the map", || {
        let now = shard(cluster);
        let is_there = replicas(&now).iter().any(|replica| replica["role"] == "read_replica");
        if is_there { Err(now.to_string()) } else { Ok(now) }
    });
    assert_eq!(set(&after), set(&before));
    cluster.nodes[node].process.signal("-CONT");
}

#[test]
fn a_hot_shard_gets_a_read_replica_which_answers_reads_and_for_which_no_write_waits() {
    let cluster = Cluster::start(3);
    let hot = ["--split-requests-per-s", RATE, "--window-ms", "2000", "--max-replicas", "3"];
    let table = ["stock", "--shards", "1", "--max-shards", "1", "--replicas", "2"];
    cluster.create(&[&table[..], &hot].concat());
    cluster.put("stock", KEY, "", b"first");
    let before = shard(&cluster);
    while_read(&cluster, &["consistency=any"], || {
        let node = eventually("a read replica serves", || {
            let now = shard(&cluster);
            reader(&now).ok_or(now.to_string())
        });
        assert_eq!(set(&shard(&cluster)), set(&before), "it is none of the set");
        reads_are_answered(&cluster, node);
        writes_do_not_wait(&cluster, node);
        // It is back, and gets a read replica again.
        eventually("a read replica serves again", || {
            let now = shard(&cluster);
            reader(&now).ok_or(now.to_string())
        });
        assert_eq!(set(&shard(&cluster)).0, set(&before).0);
    });
}

/// The shard that has the hot key, as `partage shard show` prints it.
fn shown(cluster: &Cluster) -> Value {
    cluster.run(&["shard", "show", "stock", "hot", "--key", "--json"]).json()
}

/// Whether that shard begins with the hot key, and the next key that may be there is in another one.
fn is_alone(cluster: &Cluster, shard: &Value) -> bool {
    let next = cluster.run(&["explain", "stock", "hot0", "--json"]).json();
    shard["bounds"]["begin"] == "hot" && next["shard"]["shard"] != shard["shard"]
}

/// The hot key has a shard of its own, whose read replica answers reads of both kinds by itself and is not in the in-sync set.
/// The planner may move replicas meanwhile, so all of it is to be seen of one node.
fn is_served_by_a_read_replica(cluster: &Cluster) -> Result<(), String> {
    let before = shown(cluster);
    let node = reader(&before).filter(|_| is_alone(cluster, &before)).ok_or_else(|| before.to_string())?;
    let (address, id) = (&cluster.nodes[node].address, Cluster::id(node));
    let reads = || ["any", "bounded"].map(|kind| own_reads(address, kind));
    let then = reads();
    std::thread::sleep(Duration::from_secs(1));
    let now = reads();
    let explained = cluster.run(&["explain", "stock", "hot"]).out;
    let after = shown(cluster);
    if reader(&after) != Some(node) || after["shard"] != before["shard"] {
        return Err(after.to_string());
    }
    let in_sync = explained.lines().find_map(|line| line.trim().strip_prefix("in sync: "));
    let in_sync: Vec<&str> = in_sync.unwrap_or_default().split(", ").collect();
    let is_member = in_sync.contains(&id.as_str()) || set(&after).0.contains(&id.as_str());
    let is_named = explained.contains(&format!("read_replica on {id}: live"));
    match then.iter().zip(&now).all(|(then, now)| then < now) && in_sync.len() == 2 && is_named && !is_member
    {
        true => Ok(()),
        false => Err(format!("reads {then:?}, then {now:?}\n{explained}\n{after}")),
    }
}

#[test]
fn k12_a_hot_key_gets_a_shard_of_its_own_and_a_read_replica_until_it_cools() {
    let cluster = Cluster::start(3);
    let hot = ["--split-requests-per-s", RATE, "--window-ms", "2000", "--max-replicas", "3"];
    let table = ["stock", "--sharding", "key-range", "--replicas", "2", "--min-shards", "3"];
    cluster.create(&[&table[..], &hot].concat());
    for key in [&b"apple"[..], KEY, b"pear"] {
        cluster.put("stock", key, "", b"first");
    }
    while_read(&cluster, &["consistency=any", "consistency=bounded&bound_ms=10000"], || {
        eventually("a read replica of the key's own shard answers", || is_served_by_a_read_replica(&cluster));
    });
    eventually("the read replica goes when the key is asked for no more", || {
        let shards = cluster.shards("stock");
        let is_calm = |shard: &Value| {
            let is_member = |replica: &Value| replica["role"] != "read_replica" && replica["in_sync"] == true;
            replicas(shard).len() == 2 && replicas(shard).iter().all(is_member)
        };
        if shards.iter().all(is_calm) { Ok(()) } else { Err(format!("{shards:?}")) }
    });
    assert_eq!(cluster.get("stock", KEY).body, b"first");
}
