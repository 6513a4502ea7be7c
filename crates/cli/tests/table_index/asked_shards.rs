//! Queries that ask fewer shards than all: how many that are, and that no row is missed or given twice.

use crate::cluster::{Cluster, ask_json, eventually};
use crate::query;
use serde_json::{Value, json};

/// How many shards have answered linearizable reads, of all nodes together.
fn answers(cluster: &Cluster) -> u64 {
    let begin = "partage_table_reads_total{consistency=\"linearizable\"} ";
    let of = |node: usize| {
        let metrics = cluster.metrics(node);
        metrics.lines().find_map(|line| line.strip_prefix(begin)?.parse::<u64>().ok()).unwrap_or_default()
    };
    (0..cluster.nodes.len()).map(of).sum()
}

fn page(cluster: &Cluster, path: &str) -> Value {
    let path = format!("/v1/tables/parts/indexes/by-size?{path}&keys_only=true");
    eventually("a page", || match ask_json(&cluster.nodes[0].address, "GET", &path, "") {
        Some((200, page)) => Ok(page),
        other => Err(format!("{other:?}")),
    })
}

fn keys(page: &Value) -> Vec<String> {
    page["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
}

/// The page of that query, for which so many shards are asked.
#[track_caller]
fn page_of(cluster: &Cluster, path: &str, shards: u64) -> Value {
    // A shard whose leader has just changed is asked again.
    eventually("so many shards are asked", || {
        let before = answers(cluster);
        let found = page(cluster, path);
        match answers(cluster) - before {
            asked if asked == shards => Ok(found),
            asked => Err(format!("{asked} were asked for {path}, and not {shards}: {found}")),
        }
    })
}

fn index(cluster: &Cluster, keys: &[String]) {
    for (size, key) in keys.iter().enumerate() {
        cluster.put("parts", key.as_bytes(), "", json!({ "size": size }).to_string().as_bytes());
    }
    cluster.table(&["index", "create", "parts", "by-size", "--field", "size", "--wait"]).json();
}

fn sorted(mut keys: Vec<String>) -> Vec<String> {
    keys.sort();
    keys
}

#[test]
fn the_rows_of_a_partition_key_are_asked_of_one_shard() {
    let cluster = Cluster::start(3);
    cluster.create(&["parts", "--shards", "6", "--partition-key", "hash-tag"]);
    let all: Vec<String> = (0..60).map(|number| format!("{{room{}}}{number:02}", number % 6)).collect();
    index(&cluster, &all);
    assert_eq!(keys(&page_of(&cluster, "limit=1000", 6)), all);
    let of_room: Vec<String> = all.iter().filter(|key| key.starts_with("{room3}")).cloned().collect();
    // Any key that has the partition key will do.
    for given in ["room3", "%7Broom3%7D", "%7Broom3%7Dxyz"] {
        let found = page_of(&cluster, &format!("limit=1000&partition_key={given}"), 1);
        assert_eq!(keys(&found), of_room);
    }
    let first = page_of(&cluster, "limit=4&partition_key=room3", 1);
    let token = first["next"].as_str().unwrap();
    let rest = page_of(&cluster, &format!("limit=1000&token={token}"), 1);
    assert_eq!([keys(&first), keys(&rest)].concat(), of_room, "the token says of which partition key");
    let other = format!("/v1/tables/parts/indexes/by-size?partition_key=room4&token={token}");
    let (status, body) = ask_json(&cluster.nodes[0].address, "GET", &other, "").unwrap();
    assert_eq!((status, &body["error"]["kind"]), (400, &json!("malformed")), "{body}");

    for limit in [1, 7, 1000] {
        let found = query(&cluster.addresses(), 1, &format!("by-size?order=any&limit={limit}"));
        assert_eq!(sorted(found), sorted(all.clone()));
    }
    let said = cluster.run(&["table", "index", "query", "parts", "by-size", "--key", "room3", "--keys-only"]);
    assert_eq!(said.out.lines().collect::<Vec<_>>(), of_room, "{said:?}");
    let any = ["--order", "any", "--limit", "1000", "--keys-only"];
    let said = cluster.run(&[&["table", "index", "query", "parts", "by-size"], &any[..]].concat());
    assert_eq!(sorted(said.out.lines().map(str::to_owned).collect()), sorted(all), "{said:?}");
}

#[test]
fn shards_are_asked_one_after_the_other_until_there_are_enough_rows() {
    let cluster = Cluster::start(3);
    let said =
        cluster.run(&["table", "create", "parts", "--sharding", "key-range", "--split", "k20", "--wait"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    // The order of sizes is the other way round, and so has no part in where the rows are.
    let all: Vec<String> = (0..40).rev().map(|number| format!("k{number:02}")).collect();
    index(&cluster, &all);
    assert_eq!(keys(&page_of(&cluster, "limit=5", 2)), all[..5]);
    let first = page_of(&cluster, "order=any&limit=5", 1);
    assert_eq!(keys(&first), ["k19", "k18", "k17", "k16", "k15"]);
    let whole = page_of(&cluster, "order=any&limit=1000", 2);
    assert_eq!(keys(&whole), [&all[20..], &all[..20]].concat());
    assert!(whole["next"].is_null());

    // The shard is split between two pages, and merged again: a row that was given is not given again, and none is missed.
    let shard = cluster.shards("parts")[0]["shard"].as_u64().unwrap().to_string();
    eventually("a shard is split", || {
        let said = cluster.run(&["shard", "split", "parts", &shard, "--at", "k10", "--wait"]);
        if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
    });
    let token = |page: &Value| page["next"].as_str().unwrap().to_owned();
    let second = page(&cluster, &format!("limit=10&token={}", token(&first)));
    let mut children: Vec<u64> =
        cluster.shards("parts").iter().map(|shard| shard["shard"].as_u64().unwrap()).collect();
    children.sort_unstable();
    let [.., one, other] = children[..] else { panic!("{children:?}") };
    eventually("the shards are merged", || {
        let said = cluster.run(&["shard", "merge", "parts", &one.to_string(), &other.to_string(), "--wait"]);
        if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
    });
    let rest = query(&cluster.addresses(), 2, &format!("by-size?limit=7&token={}", token(&second)));
    assert_eq!(sorted([keys(&first), keys(&second), rest].concat()), sorted(all));
}

#[test]
fn named_partitions_are_asked_one_after_the_other_and_by_their_names() {
    let cluster = Cluster::start(3);
    let named = ["--sharding", "named", "--partition-key", "hash-tag", "--partitions", "red,blue"];
    cluster.create(&[&["parts"], &named[..]].concat());
    let all: Vec<String> =
        (0..8).map(|number| format!("{{{}}}{number}", ["red", "blue"][number % 2])).collect();
    index(&cluster, &all);
    let blue = page_of(&cluster, "partition_key=blue", 1);
    assert_eq!(keys(&blue), ["{blue}1", "{blue}3", "{blue}5", "{blue}7"]);
    let found = query(&cluster.addresses(), 1, "by-size?order=any&limit=3");
    assert_eq!(sorted(found), sorted(all));

    // A partition that has no index yet gets it when it is asked by its name.
    let said = cluster.run(&["shard", "register", "parts", "green", "--wait"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    cluster.put("parts", b"{green}9", "", json!({ "size": 9 }).to_string().as_bytes());
    assert_eq!(keys(&page(&cluster, "partition_key=green")), ["{green}9"]);
    let path = "/v1/tables/parts/indexes/by-size?partition_key=white";
    let (status, body) = ask_json(&cluster.nodes[0].address, "GET", path, "").unwrap();
    assert_eq!(status, 400, "{body}");
}
