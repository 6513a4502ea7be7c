//! Nodes of a pool with roles of their own, and a node that has just joined, as processes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../shuffle_pool/mod.rs"]
mod pool;

use partage_shuffle_client::{Again, RefusalWord, StartOptions};
use pool::records::{Records, client};
use pool::{Pool, metric};
use std::collections::BTreeSet;
use tokio::runtime::Runtime;

const RECORDS: Records = Records { of_input: 5_000, value: b"value" };

#[test]
fn a_node_that_buffers_stores_nothing_and_nodes_that_store_take_no_attempts() {
    let stores = ["--roles", "storage"];
    let mut pool = Pool::start_with(&[&stores, &stores, &["--roles", "buffer"]]);
    let nodes = pool.addresses().to_vec();
    let runtime = Runtime::new().unwrap();
    let storing = runtime.block_on(client(&nodes[..2]));
    let all = runtime.block_on(client(&nodes));
    // Anything but an attempt, any node takes.
    let shuffle = runtime.block_on(storing.start(&StartOptions::default())).unwrap();
    pool.eventually("a node that stores names the one that buffers", || {
        let refused = runtime.block_on(async {
            let mut attempt = storing.open(&shuffle, 0).await.unwrap();
            attempt.write(b"key", b"value").await.unwrap();
            attempt.end().await.unwrap_err()
        });
        assert_eq!((refused.word(), refused.again()), (Some(RefusalWord::StoresOnly), Again::Attempt));
        let told = refused.to_string();
        if told.contains(&format!("this node stores only: write to {}", nodes[2])) {
            Ok(())
        } else {
            Err(told)
        }
    });
    let refused =
        runtime.block_on(storing.write(&shuffle, 0, |attempt| RECORDS.produce(attempt))).unwrap_err();
    assert_eq!(refused.word(), Some(RefusalWord::StoresOnly), "{refused}");

    runtime.block_on(RECORDS.write(&all, &shuffle));
    runtime.block_on(RECORDS.seal(&all, &shuffle));
    assert_eq!(pool.having(|_| true), BTreeSet::from(["s1", "s2"].map(str::to_owned)));
    let stored = |node: &str| metric(node, "partage_shuffle_disk_bytes");
    assert_eq!(stored(&nodes[2]), 0);
    assert!(stored(&nodes[0]) > 0 && stored(&nodes[1]) > 0);
    let shown = pool.run(&["node", "show", "s3", "--coordinator", pool.coordinator()]);
    assert!(shown.out.contains("shuffle-buffer:default"), "{shown:?}");
    assert!(!shown.out.contains("shuffle-storage"), "{shown:?}");

    let stored = pool.run(&["shuffle", "show", &shuffle.id.to_string(), "--json"]).json()["stored"].clone();
    let of = |at: usize, name: &str| stored["nodes"][at][name].clone();
    let roles = [0, 1, 2].map(|at| of(at, "roles").to_string());
    assert_eq!(roles, [r#"["storage"]"#, r#"["storage"]"#, r#"["buffer"]"#]);
    let slots = [0, 1, 2].map(|at| of(at, "disk_slots").as_u64().unwrap());
    assert!(slots[0] > 0 && slots[1] > 0 && slots[2] == 0, "{stored}");

    pool.kill(0);
    runtime.block_on(RECORDS.read(&all, &shuffle));
    // The one that buffers asks those that hold.
    let buffering = runtime.block_on(client(&nodes[2..]));
    runtime.block_on(RECORDS.read(&buffering, &shuffle));
}

#[test]
fn a_node_that_has_just_joined_stands_in_before_a_slot_is_placed_on_it() {
    let mut pool = Pool::start(2);
    let runtime = Runtime::new().unwrap();
    let shuffle = {
        let first = runtime.block_on(client(pool.addresses()));
        runtime.block_on(first.start(&StartOptions::default())).unwrap()
    };
    let mode = |pool: &Pool, mode: &str| {
        let update = ["keyspace", "update", "default", "--mode", mode, "--coordinator", pool.coordinator()];
        let said = pool.run(&update);
        assert_eq!(said.code, Some(0), "{said:?}");
    };
    // So the coordinator places nothing by itself.
    mode(&pool, "manual");
    pool.add(&[]);
    pool.kill(0);
    let nodes = pool.addresses()[1..].to_vec();
    let client = runtime.block_on(client(&nodes));
    runtime.block_on(RECORDS.write(&client, &shuffle));
    assert!(!pool.having(|_| true).contains("s3"), "no slot is placed on it");
    assert!(
        metric(&nodes[1], "partage_shuffle_disk_bytes") > 0,
        "it has what the node that was killed would have"
    );

    mode(&pool, "automatic");
    runtime.block_on(RECORDS.seal(&client, &shuffle));
    runtime.block_on(RECORDS.read(&client, &shuffle));
}
