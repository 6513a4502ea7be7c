//! Nodes of a pool with roles of their own, and a node that has just joined, as processes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../shuffle_pool/mod.rs"]
mod pool;

use partage_shuffle_client::{
    Address, Again, Attempt, Client, CutBy, Error, RefusalWord, Sealed, Settings, Shuffle, StartOptions,
    Written,
};
use pool::Pool;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use tokio::runtime::Runtime;

/// Input partitions, and records of each.
const INPUTS: u32 = 4;
const RECORDS: u64 = 5_000;
const ALL: u64 = INPUTS as u64 * RECORDS;

async fn client(nodes: &[String]) -> Client {
    let nodes: Vec<Address> = nodes.iter().map(|node| node.parse().unwrap()).collect();
    Client::connect(nodes, Settings::default()).await.unwrap()
}

/// Keys of all input partitions are those of the numbers below [`ALL`], each once, and in no order.
fn key(number: u64) -> [u8; 8] {
    number.reverse_bits().to_be_bytes()
}

async fn produce(mut attempt: Attempt) -> Result<Written, Error> {
    for number in 0..RECORDS {
        let number = number * u64::from(INPUTS) + u64::from(attempt.partition());
        attempt.write(&key(number), b"value").await?;
    }
    attempt.end().await
}

async fn write(client: &Client, shuffle: &Shuffle) {
    for partition in 0..INPUTS {
        client.write(shuffle, partition, produce).await.unwrap();
    }
}

async fn seal(client: &Client, shuffle: &Shuffle) {
    match client.seal(shuffle.id, 0..INPUTS).await.unwrap() {
        Sealed::Whole { records, .. } => assert_eq!(records, ALL),
        Sealed::Lacks(partitions) => panic!("{partitions:?} are lacking"),
    }
}

/// Reads all, and checks it.
async fn read(client: &Client, shuffle: &Shuffle) {
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for i in 0..3 {
        let mut reading = client.read(shuffle.id, i, 3, CutBy::Records);
        while let Some(records) = reading.next().await.unwrap() {
            for (key, _) in &records {
                found.push(key.to_vec());
            }
        }
    }
    expected.extend((0..ALL).map(|number| key(number).to_vec()));
    expected.sort();
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "each record once, in order");
}

/// A metric of a node.
fn metric(node: &str, name: &str) -> u64 {
    let mut stream = TcpStream::connect(node).unwrap();
    let request =
        format!("GET /partage/worker/metrics HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
}

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
    let refused = runtime.block_on(storing.write(&shuffle, 0, produce)).unwrap_err();
    assert_eq!(refused.word(), Some(RefusalWord::StoresOnly), "{refused}");

    runtime.block_on(write(&all, &shuffle));
    runtime.block_on(seal(&all, &shuffle));
    assert_eq!(pool.having(|_| true), BTreeSet::from(["s1", "s2"].map(str::to_owned)));
    let stored = |node: &str| metric(node, "partage_shuffle_disk_bytes");
    assert_eq!(stored(&nodes[2]), 0);
    assert!(stored(&nodes[0]) > 0 && stored(&nodes[1]) > 0);
    let shown = pool.run(&["node", "show", "s3", "--coordinator", pool.coordinator()]);
    assert!(shown.out.contains("shuffle-buffer:default"), "{shown:?}");
    assert!(!shown.out.contains("shuffle-storage"), "{shown:?}");

    pool.kill(0);
    runtime.block_on(read(&all, &shuffle));
    // The one that buffers asks those that hold.
    let buffering = runtime.block_on(client(&nodes[2..]));
    runtime.block_on(read(&buffering, &shuffle));
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
    runtime.block_on(write(&client, &shuffle));
    assert!(!pool.having(|_| true).contains("s3"), "no slot is placed on it");
    assert!(
        metric(&nodes[1], "partage_shuffle_disk_bytes") > 0,
        "it has what the node that was killed would have"
    );

    mode(&pool, "automatic");
    runtime.block_on(seal(&client, &shuffle));
    runtime.block_on(read(&client, &shuffle));
}
