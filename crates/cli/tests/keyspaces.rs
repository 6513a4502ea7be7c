//! What the command line can say about keyspaces, their partitions and their keys is what is stored.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

#[allow(dead_code, reason = "the doors are shared, and not all of them are used here")]
mod doors;

use doors::Doors;
use serde_json::{Value, json};
use std::io::Write;

#[track_caller]
fn done(doors: &Doors, arguments: &[&str]) {
    assert_eq!(doors.shell(arguments), (0, None), "{arguments:?}");
}

async fn keyspace(doors: &Doors, name: &str) -> Value {
    doors.get(&format!("/v1/keyspaces/{name}")).await.unwrap()
}

async fn bounds(doors: &Doors, name: &str) -> Vec<Value> {
    let page = doors.get(&format!("/v1/keyspaces/{name}/shards")).await.unwrap();
    page["shards"].as_array().unwrap().iter().map(|shard| shard["bounds"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_setting_has_a_flag_and_what_is_not_said_stays() {
    let doors = Doors::open().await;
    let words =
        ["--kind", "shuffle", "--partition-key", "up-to:/", "--ownership", "eventual", "--mode", "manual"];
    let rates =
        ["--moves", "3", "--split-requests-per-s", "900", "--max-replicas", "4", "--max-shards", "64"];
    // No node serves shuffles yet.
    done(&doors, &[&["keyspace", "create", "k", "--shards", "4", "--ahead"], &words[..], &rates].concat());
    let stored = keyspace(&doors, "k").await;
    assert_eq!((&stored["kind"], &stored["ownership"]), (&json!("shuffle"), &json!("eventual")));
    assert_eq!(stored["partition_key"], json!({ "type": "up_to", "delimiter": b'/' }));
    assert_eq!(stored["throttle"]["moves"], 3);
    let resharding = &stored["resharding"];
    assert_eq!(
        (&resharding["split_requests_per_s"], &resharding["split_bytes"]),
        (&json!(900.0), &json!(512 << 20))
    );
    assert_eq!((&resharding["max_replicas"], &resharding["max_shards"]), (&json!(4), &json!(64)));

    let rates =
        ["--split-bytes", "1000", "--window-ms", "5000", "--hot-key-share", "0.25", "--min-shards", "2"];
    done(&doors, &[&["keyspace", "update", "k"], &rates[..]].concat());
    let now = keyspace(&doors, "k").await;
    let expected = json!({
        "split_bytes": 1000, "split_requests_per_s": 900.0, "window_ms": 5000, "hot_key_share": 0.25,
        "max_replicas": 4, "min_shards": 2, "max_shards": 64,
    });
    assert_eq!(now["resharding"], expected);
    assert_eq!((&now["throttle"], &now["constraint"]), (&stored["throttle"], &stored["constraint"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_come_and_go_by_name() {
    let doors = Doors::open().await;
    done(&doors, &["keyspace", "create", "k", "--sharding", "named", "--mode", "manual"]);
    assert_eq!(bounds(&doors, "k").await, [] as [Value; 0]);
    done(&doors, &["shard", "register", "k", "east", "west"]);
    let name = |name: &str| json!({ "type": "name", "name": name });
    assert_eq!(bounds(&doors, "k").await, [name("east"), name("west")]);
    let (code, told) = doors.shell(&["shard", "register", "k", "east"]);
    assert!(code == 4 && told.unwrap().message.contains("has the partition east already"));
    done(&doors, &["shard", "unregister", "k", "east", "--dry-run"]);
    done(&doors, &["shard", "unregister", "k", "east", "--yes"]);
    assert_eq!(bounds(&doors, "k").await, [name("west")]);
    let (_, told) = doors.shell(&["shard", "register", "kv", "x"]);
    let told = told.unwrap();
    assert!(
        told.message.contains("keyspace kv is sharded by") && told.message.contains("create one with named")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_no_text_are_given_as_hex() {
    let doors = Doors::open().await;
    let create = ["keyspace", "create", "k", "--sharding", "key-range", "--mode", "manual"];
    done(&doors, &[&create[..], &["--split", "00ff,80", "--hex"]].concat());
    let begins = async || -> Vec<Value> {
        bounds(&doors, "k").await.into_iter().map(|bounds| bounds["begin"].clone()).collect()
    };
    assert_eq!(begins().await, [json!(""), json!({ "hex": "00ff" }), json!({ "hex": "80" })]);
    done(&doors, &["explain", "k", "00ff01", "--hex"]);
    let (code, told) = doors.shell(&["explain", "k", "0x", "--hex"]);
    assert!(code == 2 && told.unwrap().message.contains("hex"));
    for command in [&["shard", "split", "k", "s3", "--at", "xy"][..], &["shard", "isolate", "k", "xy"]] {
        let (code, told) = doors.shell(&[command, &["--hex"]].concat());
        assert!(code == 2 && told.unwrap().message.contains("hex"), "{command:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zipped_sample_with_columns_cuts_where_the_load_is() {
    let doors = Doors::open().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.csv.gz");
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zipped.write_all(b"key,load\na,1\nb,1\nc,1\nd,0.5\ne,3.5\n").unwrap();
    std::fs::write(&file, zipped.finish().unwrap()).unwrap();
    let create = ["keyspace", "create", "k", "--sharding", "key-range", "--shards", "2", "--mode", "manual"];
    let sample = ["--sample", file.to_str().unwrap(), "--column", "key", "--weight", "load"];
    done(&doors, &[&create[..], &sample].concat());
    let begins: Vec<Value> =
        bounds(&doors, "k").await.into_iter().map(|bounds| bounds["begin"].clone()).collect();
    assert_eq!(begins, [json!(""), json!("e")]);
}
