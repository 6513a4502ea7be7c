//! Nodes whose disks fill, and an object store that is a folder, as processes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../shuffle_pool/mod.rs"]
mod pool;

use partage_shuffle_client::{
    Address, Attempt, Client, CutBy, Error, Sealed, Settings, Shuffle, StartOptions, Written,
};
use pool::Pool;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use tokio::runtime::Runtime;

/// Input partitions, and records of each.
const INPUTS: u32 = 4;
const RECORDS: u64 = 20_000;
const ALL: u64 = INPUTS as u64 * RECORDS;

async fn client(nodes: &[String]) -> Client {
    let nodes: Vec<Address> = nodes.iter().map(|node| node.parse().unwrap()).collect();
    Client::connect(nodes, Settings::default()).await.unwrap()
}

/// Each key once, and in no order.
fn key(number: u64) -> [u8; 8] {
    number.reverse_bits().to_be_bytes()
}

async fn produce(mut attempt: Attempt) -> Result<Written, Error> {
    for number in 0..RECORDS {
        let number = number * u64::from(INPUTS) + u64::from(attempt.partition());
        attempt.write(&key(number), &[7; 50]).await?;
    }
    attempt.end().await
}

async fn write_and_seal(client: &Client, shuffle: &Shuffle) {
    for partition in 0..INPUTS {
        client.write(shuffle, partition, produce).await.unwrap();
    }
    match client.seal(shuffle.id, 0..INPUTS).await.unwrap() {
        Sealed::Whole { records, .. } => assert_eq!(records, ALL),
        Sealed::Lacks(partitions) => panic!("{partitions:?} are lacking"),
    }
}

/// Reads all, and checks it.
async fn read(client: &Client, shuffle: &Shuffle) {
    let mut found = Vec::new();
    for i in 0..3 {
        let mut reading = client.read(shuffle.id, i, 3, CutBy::Records);
        while let Some(records) = reading.next().await.unwrap() {
            for (key, _) in &records {
                found.push(key.to_vec());
            }
        }
    }
    let mut expected: Vec<Vec<u8>> = (0..ALL).map(|number| key(number).to_vec()).collect();
    expected.sort();
    assert!(found == expected, "each record once, in order: {} of {ALL}", found.len());
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

fn sum(pool: &Pool, name: &str) -> u64 {
    pool.addresses().iter().map(|node| metric(node, name)).sum()
}

/// The files below a folder.
fn files(folder: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let count = |path: std::path::PathBuf| if path.is_dir() { files(&path) } else { 1 };
    entries.map(|entry| count(entry.unwrap().path())).sum()
}

#[test]
fn d6_x13_a_shuffle_goes_to_the_object_store_is_read_from_there_and_is_deleted_when_the_store_is_back() {
    let mut pool = Pool::start(3);
    let runtime = Runtime::new().unwrap();
    let shuffle = runtime.block_on(async {
        let client = client(pool.addresses()).await;
        let shuffle = client.start(&StartOptions::default()).await.unwrap();
        write_and_seal(&client, &shuffle).await;
        shuffle
    });
    let before = sum(&pool, "partage_shuffle_disk_bytes");
    let (store, away) = (pool.path("objects"), pool.path("objects.away"));
    let url = store.to_str().unwrap().to_owned();
    // Any disk is fuller than this.
    let fills = ["--object-store", &url, "--disk-nearly-full", "0.00001"];
    (0..3).for_each(|node| pool.kill(node));
    (0..3).for_each(|node| pool.restart(node, &fills));
    pool.eventually("the disks have room", || {
        let (left, objects) = (sum(&pool, "partage_shuffle_disk_bytes"), files(&store));
        let put = sum(&pool, "partage_shuffle_objects_put_bytes_total");
        let has_room = left < before / 4 && objects > 0 && put > ALL * 58;
        if has_room { Ok(()) } else { Err(format!("{left} of {before}, {objects} objects, {put} bytes put")) }
    });
    let client = runtime.block_on(client(pool.addresses()));
    runtime.block_on(read(&client, &shuffle));
    pool.kill(0);
    runtime.block_on(read(&client, &shuffle));
    pool.restart(0, &fills);
    assert!(sum(&pool, "partage_shuffle_objects_read_bytes_total") > 0);

    // The store is away: what is deleted meanwhile stays there, and the nodes say so.
    std::fs::rename(&store, &away).unwrap();
    std::fs::write(&store, "in the way").unwrap();
    runtime.block_on(client.delete(shuffle.id)).unwrap();
    pool.eventually("a node says that the store refuses", || {
        let refusing = sum(&pool, "partage_shuffle_object_store_refuses");
        if refusing > 0 { Ok(()) } else { Err("none does".to_owned()) }
    });
    assert!(files(&away) > 0);
    std::fs::remove_file(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    pool.eventually("no object is left", || match files(&store) {
        0 => Ok(()),
        left => Err(format!("{left} objects")),
    });
    pool.eventually("nothing is left on disks", || match sum(&pool, "partage_shuffle_disk_bytes") {
        0 => Ok(()),
        left => Err(format!("{left} bytes")),
    });
}
