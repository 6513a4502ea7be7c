//! A pool of real processes, killed and without a coordinator, while clients write, seal and read.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use chaos::cluster::Cluster;
use chaos::http::Http;
use chaos::until;
use partage_service::shuffle::{AttemptId, ShuffleId, Terms};
use partage_shuffle_wire::client::{Again, Answer, Call, CutBy, Request, ShuffleOptions};
use partage_shuffle_wire::records::PackedRecords;
use partage_shuffle_wire::transport::{Address, ClientConnection, Timing};
use partage_wire::shuffle::{ShuffleForm, ShuffleList, ShuffleStage};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::sleep;

const NODES: [&str; 3] = ["s1", "s2", "s3"];
const TERMS: Terms = Terms::new(30, 48);
const PARTITIONS: u32 = 6;
/// Records of each input partition, and of each piece of an attempt.
const RECORDS: u64 = 20_000;
const PIECE: u64 = 1_000;
/// The pause between two pieces, so that a test does something meanwhile.
const PACE: Duration = Duration::from_millis(50);
/// The pause between two tries of a call or an attempt.
const REST: Duration = Duration::from_millis(200);

static ATTEMPTS: AtomicU64 = AtomicU64::new(1);

async fn cluster() -> Cluster {
    let mut cluster = Cluster::balanced().await;
    for node in NODES {
        cluster.add_shuffle_node(node).await;
    }
    // Only then the others know of a node, and store with it what one that is killed would have stored.
    until("each node has slots of the pool", || async {
        let shards = cluster.admin.shards("default").await;
        let has = |node: &str| {
            shards.iter().flat_map(|shard| &shard.replicas).any(|replica| replica.node.as_str() == node)
        };
        let without: Vec<&str> = NODES.into_iter().filter(|node| !has(node)).collect();
        if without.is_empty() { Ok(()) } else { Err(format!("{without:?} have none")) }
    })
    .await;
    cluster.admin.settled().await;
    cluster
}

fn addresses(cluster: &Cluster) -> Vec<Address> {
    NODES.iter().map(|node| cluster.node(node).address.parse().unwrap()).collect()
}

/// The key of a record: all of them are there once, and no partition has a run of them.
fn key(partition: u32, at: u64) -> [u8; 8] {
    (at * u64::from(PARTITIONS) + u64::from(partition)).to_be_bytes()
}

/// One call on a connection of its own: its answers.
async fn call(at: &Address, shuffle: ShuffleId, what: Request) -> Result<Vec<Answer>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{at}: {why}");
    let mut connection = ClientConnection::open(at, Timing::default()).await.map_err(|why| failed(&why))?;
    connection.calls.send(&Call { number: 1, shuffle, what }).await.map_err(|why| failed(&why))?;
    let mut answers = Vec::new();
    loop {
        let answer = connection.answers.next().await.map_err(|why| failed(&why))?.what;
        if let Answer::Refused(refusal) = &answer {
            assert_ne!(refusal.again, Again::No, "{refusal}");
            return Err(failed(refusal));
        }
        let goes_on = matches!(answer, Answer::Read(_));
        answers.push(answer);
        if !goes_on {
            return Ok(answers);
        }
    }
}

/// The same at one node after the other, until one does it.
async fn call_any(nodes: &[Address], shuffle: ShuffleId, what: &Request) -> Vec<Answer> {
    let mut why = String::new();
    for at in nodes.iter().cycle().take(300) {
        match call(at, shuffle, what.clone()).await {
            Ok(answers) => return answers,
            Err(error) => why = error,
        }
        sleep(REST).await;
    }
    panic!("no node does it: {why}");
}

/// One attempt of an input partition.
async fn attempt(at: &Address, shuffle: ShuffleId, partition: u32) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{at}: {why}");
    let mut connection = ClientConnection::open(at, Timing::default()).await.map_err(|why| failed(&why))?;
    let id = AttemptId(ATTEMPTS.fetch_add(1, Ordering::Relaxed).into());
    let mut calls = vec![Request::Open(partition, id, TERMS)];
    let (mut records, mut bytes) = (0, 0);
    for (frame, first) in (1..).zip((0..RECORDS).step_by(PIECE as usize)) {
        let pairs: Vec<_> = (first..first + PIECE).map(|at| (key(partition, at), [b'v'; 24])).collect();
        let piece = PackedRecords::pack(pairs.iter().map(|(key, value)| (&key[..], &value[..])));
        (records, bytes) = (records + piece.count(), bytes + piece.content_bytes());
        calls.push(Request::Records(frame, piece));
    }
    calls.push(Request::End(records, bytes));
    for what in calls {
        connection.calls.send(&Call { number: 1, shuffle, what }).await.map_err(|why| failed(&why))?;
        match connection.answers.next().await.map_err(|why| failed(&why))?.what {
            Answer::Opened | Answer::Whole => {}
            Answer::Taken(_) => sleep(PACE).await,
            Answer::Refused(refusal) => {
                assert_ne!(refusal.again, Again::No, "{refusal}");
                return Err(failed(&refusal));
            }
            other => panic!("{other:?}"),
        }
    }
    Ok(())
}

/// Runs attempts until one is stored.
async fn write(nodes: Vec<Address>, shuffle: ShuffleId, partition: u32) {
    for at in nodes.iter().cycle().skip(partition as usize).take(100) {
        if attempt(at, shuffle, partition).await.is_ok() {
            return;
        }
        sleep(REST).await;
    }
    panic!("partition {partition} was never stored");
}

async fn start(nodes: &[Address], shuffle: ShuffleId) {
    let started = call_any(nodes, shuffle, &Request::Start(TERMS, ShuffleOptions::default())).await;
    assert!(matches!(started.as_slice(), [Answer::Started(terms, _)] if *terms == TERMS), "{started:?}");
}

async fn seal(nodes: &[Address], shuffle: ShuffleId) {
    let request = Request::Seal((0..PARTITIONS).collect::<BTreeSet<u32>>());
    let records = RECORDS * u64::from(PARTITIONS);
    for _ in 0..20 {
        match &call_any(nodes, shuffle, &request).await[..] {
            [Answer::Sealed(sealed, bytes)] => return assert_eq!((*sealed, *bytes), (records, records * 32)),
            // The leader was replaced, and has not heard of all marks in time.
            [Answer::Lacks(_)] => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("it was never sealed");
}

/// Reads all partitions of `n`, and compares them with what was written.
async fn read(nodes: &[Address], shuffle: ShuffleId, n: u64) {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for i in 0..n {
        let answers = call_any(nodes, shuffle, &Request::ReadPartition(i, n, CutBy::Records)).await;
        let before = keys.len();
        for answer in &answers {
            if let Answer::Read(records) = answer {
                keys.extend(records.iter().map(|(key, _)| key.to_vec()));
            }
        }
        let count = (keys.len() - before) as u64;
        assert!(matches!(answers.last(), Some(Answer::ReadEnd(records, _)) if *records == count));
        let share = RECORDS * u64::from(PARTITIONS) / n;
        assert!((share..=share + 1).contains(&count), "partition {i} of {n} has {count} records");
    }
    let expected = (0..RECORDS * u64::from(PARTITIONS)).map(|key| key.to_be_bytes().to_vec());
    assert!(keys.into_iter().eq(expected), "the records are those that were written, in their order");
}

/// What a node says over HTTP.
async fn told<T: serde::de::DeserializeOwned>(
    cluster: &Cluster,
    node: &str,
    path: &str,
) -> Result<T, String> {
    let reply = Http::default().get(&cluster.node(node).address, path).await?;
    serde_json::from_slice(&reply.body).map_err(|error| format!("{error}: {}", reply.text()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d6_a_node_is_killed_while_clients_write_and_the_coordinator_while_they_read() {
    let mut cluster = cluster().await;
    let (nodes, shuffle) = (addresses(&cluster), ShuffleId(1_001));
    start(&nodes, shuffle).await;
    let writing: Vec<_> =
        (0..PARTITIONS).map(|partition| tokio::spawn(write(nodes.clone(), shuffle, partition))).collect();
    sleep(8 * PACE).await;
    cluster.node_mut("s2").process.kill();
    for one in writing {
        one.await.unwrap();
    }
    seal(&nodes, shuffle).await;
    cluster.restart_node("s2").await;
    read(&nodes, shuffle, 7).await;
    cluster.coordinator().kill();
    read(&nodes, shuffle, 4).await;
    let id = shuffle.to_string();
    for node in NODES {
        let form: ShuffleForm = told(&cluster, node, &format!("/v1/shuffles/{id}")).await.unwrap();
        assert!(form.stage.is(ShuffleStage::Sealed), "{node}: {}", form.stage);
        assert_eq!(form.winners, u64::from(PARTITIONS), "{node}");
        let list: ShuffleList = told(&cluster, node, "/v1/shuffles").await.unwrap();
        assert_eq!(list.shuffles.iter().map(|one| one.shuffle.as_str()).collect::<Vec<_>>(), [id.as_str()]);
    }
    assert_eq!(call_any(&nodes, shuffle, &Request::Delete).await, [Answer::Deleted]);
    until("nothing is listed", || async {
        let list: ShuffleList = told(&cluster, "s1", "/v1/shuffles").await?;
        if list.shuffles.is_empty() { Ok(()) } else { Err(format!("{list:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_what_was_sealed_is_read_after_all_processes_were_killed_at_once() {
    let mut cluster = cluster().await;
    let (nodes, shuffle) = (addresses(&cluster), ShuffleId(1_002));
    start(&nodes, shuffle).await;
    for partition in 0..PARTITIONS {
        write(nodes.clone(), shuffle, partition).await;
    }
    seal(&nodes, shuffle).await;
    for node in NODES {
        cluster.node_mut(node).process.kill();
    }
    cluster.restart_nodes(&NODES).await;
    read(&nodes, shuffle, 5).await;
    assert_eq!(call_any(&nodes, shuffle, &Request::Delete).await, [Answer::Deleted]);
}
