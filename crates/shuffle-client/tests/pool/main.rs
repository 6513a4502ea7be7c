//! The client against nodes that keep a pool in memory: connections that break, nodes that refuse, and what comes back.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, in its helping functions too")]

mod node;

use node::{Faults, Node, away, timing};
use partage_shuffle_client::{
    Address, Again, Attempt, Client, Combine, CutBy, Error, PackedRecords, Reading, RefusalWord, Sealed,
    Settings, Shuffle, ShuffleId, Stage, StartOptions, Written,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::timeout;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn settings() -> Settings {
    Settings {
        frame_bytes: 200,
        first_rest: Duration::from_millis(1),
        longest_rest: Duration::from_millis(5),
        timing: timing(),
        ..Settings::default()
    }
}

async fn client(nodes: &[&Node]) -> Client {
    let addresses: Vec<Address> = nodes.iter().map(|node| node.at.clone()).collect();
    Client::connect(addresses, settings()).await.unwrap()
}

/// Some records of an input partition, in no order, many with the same key.
fn records_of(partition: u32, count: u64) -> Vec<([u8; 2], Vec<u8>)> {
    let record = |place: u64| {
        let key = (place.wrapping_mul(0x9e37) ^ u64::from(partition)) as u16 % 300;
        (key.to_be_bytes(), [partition.to_be_bytes().as_slice(), &place.to_be_bytes()].concat())
    };
    (0..count).map(record).collect()
}

async fn write(client: &Client, shuffle: &Shuffle, partition: u32, count: u64) -> Result<Written, Error> {
    let produce = |mut attempt: Attempt| async move {
        for (key, value) in records_of(attempt.partition(), count) {
            attempt.write(&key, &value).await?;
        }
        attempt.end().await
    };
    client.write(shuffle, partition, produce).await
}

async fn all_of(mut reading: Reading) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
    let mut all = Vec::new();
    while let Some(records) = reading.next().await? {
        all.extend(records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    }
    Ok(all)
}

/// What is to be read: by key, then partition, then place.
fn expected(partitions: u32, count: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = (0..partitions).flat_map(|partition| records_of(partition, count));
    let mut all: Vec<_> = all.map(|(key, value)| (key.to_vec(), value)).collect();
    all.sort();
    all
}

#[tokio::test]
async fn what_is_written_comes_back_once_and_in_order_whatever_breaks() {
    let faults = Arc::new(Faults::default());
    let first = Node::start(&faults).await;
    let second = first.another(&faults).await;
    let client = client(&[&first, &second]).await;
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    let shuffle: Shuffle = shuffle.to_string().parse().unwrap();

    // Each third end is refused, and a connection breaks in the midst of an attempt now and then.
    faults.ends.store(3, Ordering::Relaxed);
    faults.frames.store(60, Ordering::Relaxed);
    for partition in 0..4 {
        let written = timeout(PATIENCE, write(&client, &shuffle, partition, 500)).await.unwrap().unwrap();
        assert_eq!((written.records, written.bytes), (500, 500 * 14));
    }
    let lacks = client.seal(shuffle.id, 0..5).await.unwrap();
    assert_eq!(lacks, Sealed::Lacks(vec![4]));
    let sealed = client.seal(shuffle.id, 0..4).await.unwrap();
    assert_eq!(sealed, Sealed::Whole { records: 2_000, bytes: 2_000 * 14 });
    assert_eq!(client.status(shuffle.id).await.unwrap().stage, Stage::Sealed);

    // Reading breaks too, and goes on at the other node behind what was given out.
    faults.pieces.store(20, Ordering::Relaxed);
    let expected = expected(4, 500);
    let mut all = Vec::new();
    for i in 0..7 {
        let part = all_of(client.read(shuffle.id, i, 7, CutBy::Records)).await.unwrap();
        assert!((285..=286).contains(&part.len()), "{i}: {}", part.len());
        all.extend(part);
    }
    assert_eq!(all, expected);
    assert!(faults.broken.load(Ordering::Relaxed) > 4, "faults are met");

    let parts = Arc::new(Mutex::new(vec![Vec::new(); 7]));
    let take = |i: u64, reading: Reading| {
        let parts = Arc::clone(&parts);
        async move {
            let part = all_of(reading).await?;
            parts.lock().unwrap()[i as usize] = part;
            Ok::<(), Error>(())
        }
    };
    client.read_partitions(shuffle.id, (7, CutBy::Records), 3, take).await.unwrap();
    assert_eq!(parts.lock().unwrap().concat(), expected);

    let keys = client.read_keys(shuffle.id, &[0, 100], Some(&[0, 101]));
    let found = all_of(keys).await.unwrap();
    assert!(!found.is_empty() && found.iter().all(|(key, _)| key == &[0, 100]));
    let bounds = client.bounds(shuffle.id, 2, CutBy::Records).await.unwrap();
    assert_eq!(bounds.len(), 3);
    assert_eq!(bounds[1][..], expected[1_000].0);
    let heavy = client.heavy_keys(shuffle.id, 1_000).await.unwrap();
    let key = heavy.keys.iter().max_by_key(|one| one.records).unwrap();
    assert!(heavy.records == 2_000 && key.records > 2, "{heavy:?}");
    assert!((heavy.share(key) - key.records as f64 / 2_000.0).abs() < 1e-9);
    let mut parts = Vec::new();
    for i in 0..3 {
        let part = all_of(client.read_key_part(shuffle.id, key, i, 3)).await.unwrap();
        assert!(part.len() as u64 <= key.records.div_ceil(3), "{i}: {}", part.len());
        parts.extend(part);
    }
    assert_eq!(parts, expected[key.first as usize..(key.first + key.records) as usize]);
    client.keep_alive(shuffle.id).await.unwrap();
    client.delete(shuffle.id).await.unwrap();
    let gone = client.status(shuffle.id).await.unwrap_err();
    assert_eq!((gone.word(), gone.again()), (Some(RefusalWord::ShuffleDeleted), Again::No));
}

#[tokio::test]
async fn each_key_is_read_once_from_a_shuffle_that_combines() {
    let faults = Arc::new(Faults::default());
    let node = Node::start(&faults).await;
    let client = client(&[&node]).await;
    let options = StartOptions { combine: Some(Combine::SumI64), ..StartOptions::default() };
    let shuffle = client.start(&options).await.unwrap();
    let shuffle: Shuffle = shuffle.to_string().parse().unwrap();
    for partition in 0..3 {
        let produce = |mut attempt: Attempt| async move {
            for number in 0..200_i64 {
                attempt.write(&[(number % 7) as u8], &number.to_le_bytes()).await?;
            }
            attempt.end().await
        };
        client.write(&shuffle, partition, produce).await.unwrap();
    }
    client.seal(shuffle.id, 0..3).await.unwrap();
    let sum = |key: i64| 3 * (0..200).filter(|number| number % 7 == key).sum::<i64>();
    let expected: Vec<_> = (0..7).map(|key| (vec![key as u8], sum(key).to_le_bytes().to_vec())).collect();
    // Of 600 records in 15 pieces the second read breaks at its fifth piece. It goes on, and adds nothing twice.
    faults.pieces.store(20, Ordering::Relaxed);
    for broken in 0..2 {
        let mut reading = client.read_combined(&shuffle, 0, 1).unwrap();
        let mut found = Vec::new();
        while let Some(records) = timeout(PATIENCE, reading.next()).await.unwrap().unwrap() {
            found.extend(records.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
        }
        assert_eq!((&found, faults.broken.load(Ordering::Relaxed)), (&expected, broken));
    }
    let plain = client.start(&StartOptions::default()).await.unwrap();
    assert!(matches!(client.read_combined(&plain, 0, 1), Err(Error::CombinesNothing)));
}

#[tokio::test]
async fn a_start_that_one_leader_has_no_room_for_is_tried_under_another_number() {
    let faults = Arc::new(Faults::default());
    let node = Node::start(&faults).await;
    let client = client(&[&node]).await;
    faults.is_used_up.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        let shuffle = client.start(&StartOptions::default()).await.unwrap();
        assert!(!shuffle.id.0.is_multiple_of(4));
    }
    let bad = StartOptions { owner: "a b".to_owned(), ..StartOptions::default() };
    assert!(matches!(client.start(&bad).await, Err(Error::BadOptions(_))));
}

#[tokio::test]
async fn one_call_after_the_other_takes_one_connection() {
    let node = Node::start(&Arc::default()).await;
    let client = client(&[&node]).await;
    let mut named = 0;
    for _ in 0..10 {
        let shuffle = client.start(&StartOptions::default()).await.unwrap();
        named += u32::from(node.has_named(shuffle.id));
        write(&client, &shuffle, 0, 100).await.unwrap();
        client.seal(shuffle.id, 0..1).await.unwrap();
        assert_eq!(all_of(client.read(shuffle.id, 0, 1, CutBy::Records)).await.unwrap().len(), 100);
        client.delete(shuffle.id).await.unwrap();
        // A refusal is an answer, too.
        client.seal(shuffle.id, 0..1).await.unwrap_err();
    }
    assert_eq!(node.connections(), (1, 1));
    assert_eq!(named, 0, "the one node that the client knows would lead all of them");
}

#[tokio::test]
async fn starts_take_numbers_that_the_nodes_have_named_in_turn() {
    let faults = Arc::new(Faults::default());
    let first = Node::start(&faults).await;
    let second = first.another(&faults).await;
    let client = client(&[&first, &second]).await;
    let mut named = [0, 0];
    for _ in 0..10 {
        let shuffle = client.start(&StartOptions::default()).await.unwrap();
        named[0] += u32::from(first.has_named(shuffle.id));
        named[1] += u32::from(second.has_named(shuffle.id));
        // Two calls for each start, and two nodes.
        client.status(shuffle.id).await.unwrap();
    }
    assert_eq!(named, [4, 4], "all but the first start at each");
}

#[tokio::test]
async fn a_partition_is_read_at_the_node_that_has_it_if_the_client_knows_that_node() {
    let faults = Arc::new(Faults::default());
    let first = Node::start(&faults).await;
    let second = first.another(&faults).await;
    let both = client(&[&first, &second]).await;
    let shuffle = both.start(&StartOptions::default()).await.unwrap();
    for partition in 0..2 {
        write(&both, &shuffle, partition, 100).await.unwrap();
    }
    both.seal(shuffle.id, 0..2).await.unwrap();
    // It has spoken with both by then.
    for _ in 0..2 {
        both.status(shuffle.id).await.unwrap();
    }
    faults.has_all.store(2, Ordering::Relaxed);
    let all = |client: &Client| all_of(client.read(shuffle.id, 0, 1, CutBy::Records));
    let (mut at_first, mut at_second) = (first.reads(), second.reads());
    for _ in 0..6 {
        assert_eq!(all(&both).await.unwrap(), expected(2, 100));
    }
    assert_eq!((first.reads() - at_first, second.reads() - at_second), (0, 6));
    // A node that the client does not know: the one that names it is read at.
    (at_first, at_second) = (first.reads(), second.reads());
    let one = client(&[&first]).await;
    let stranger = Client::connect([first.at.clone(), away().await], settings()).await.unwrap();
    for client in [&one, &stranger] {
        assert_eq!(all(client).await.unwrap(), expected(2, 100));
    }
    assert_eq!((first.reads() - at_first, second.reads() - at_second), (2, 0));
    // A node that has failed is not gone to, however often it is named.
    drop(second);
    for _ in 0..4 {
        assert_eq!(all(&both).await.unwrap(), expected(2, 100));
    }
}

#[tokio::test]
async fn a_kept_connection_that_ends_at_the_next_call_costs_no_try_and_says_nothing_against_its_node() {
    let faults = Arc::new(Faults::default());
    let first = Node::start(&faults).await;
    let second = first.another(&faults).await;
    let addresses = [first.at.clone(), second.at.clone()];
    let client = Client::connect(addresses, Settings { retry_budget: 0, ..settings() }).await.unwrap();
    faults.kept.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        let shuffle = client.start(&StartOptions::default()).await.unwrap();
        for partition in 0..2 {
            let mut attempt = client.open(&shuffle, partition).await.unwrap();
            for (key, value) in records_of(partition, 100) {
                attempt.write(&key, &value).await.unwrap();
            }
            attempt.end().await.unwrap();
        }
        // One without records, too.
        client.open(&shuffle, 2).await.unwrap().end().await.unwrap();
        client.seal(shuffle.id, 0..3).await.unwrap();
        let all = all_of(client.read(shuffle.id, 0, 1, CutBy::Records)).await.unwrap();
        assert_eq!(all, expected(2, 100));
    }
    assert!(faults.broken.load(Ordering::Relaxed) > 10, "kept connections are used");
    let opened = [first.connections().0, second.connections().0];
    assert!(opened.iter().all(|opened| *opened >= 8), "both are asked in turn: {opened:?}");
}

#[tokio::test]
async fn a_connection_that_is_not_used_is_closed_and_one_that_has_ended_is_not_used() {
    let faults = Arc::new(Faults::default());
    let first = Node::start(&faults).await;
    let second = first.another(&faults).await;
    let addresses = [first.at.clone(), second.at.clone()];
    let brief = Settings { idle: Duration::from_millis(100), ..settings() };
    let client = Client::connect(addresses.clone(), brief).await.unwrap();
    client.start(&StartOptions::default()).await.unwrap();
    let closed = async {
        while (first.connections().1, second.connections().1) != (0, 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, closed).await.unwrap();

    let client = Client::connect(addresses, Settings { idle: PATIENCE, ..settings() }).await.unwrap();
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    for partition in 0..2 {
        write(&client, &shuffle, partition, 10).await.unwrap();
    }
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    // None of these is run again.
    for _ in 0..4 {
        let mut attempt = client.open(&shuffle, 2).await.unwrap();
        attempt.write(b"key", b"value").await.unwrap();
        attempt.taken().await.unwrap();
        attempt.end().await.unwrap();
    }
}

#[tokio::test]
async fn nodes_that_are_away_are_passed_over_and_none_at_all_is_said() {
    let node = Node::start(&Arc::default()).await;
    let client = Client::connect([away().await, node.at.clone(), away().await], settings()).await.unwrap();
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    for partition in 0..6 {
        write(&client, &shuffle, partition, 10).await.unwrap();
    }
    let nowhere = away().await;
    let none = Client::connect([nowhere.clone()], settings()).await.unwrap_err();
    assert!(matches!(&none, Error::NoNode(tried) if tried.contains(&nowhere.to_string())), "{none}");
    assert!(matches!(Client::connect([], settings()).await, Err(Error::NoAddress)));
}

#[tokio::test]
async fn what_would_fail_again_is_not_run_again() {
    let node = Node::start(&Arc::default()).await;
    let client = client(&[&node]).await;
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    let runs = AtomicU64::new(0);
    let produce = |attempt: Attempt| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            drop(attempt);
            Err::<Written, Error>(Error::own(std::io::Error::other("the file is gone")))
        }
    };
    let failed = client.write(&shuffle, 0, produce).await.unwrap_err();
    assert!(failed.to_string().contains("the file is gone") && runs.load(Ordering::Relaxed) == 1);

    let mut attempt = client.open(&shuffle, 0).await.unwrap();
    let large = attempt.write(&[0; 70_000], b"").await.unwrap_err();
    assert!(matches!(large, Error::TooLarge { key: 70_000, value: 0 }) && !large.runs_again());
    attempt.abort().await;

    let unknown = client.seal(ShuffleId(7), 0..1).await.unwrap_err();
    assert_eq!(unknown.word(), Some(RefusalWord::ShuffleUnknown));
}

#[tokio::test]
async fn a_budget_ends() {
    let faults = Arc::new(Faults::default());
    let node = Node::start(&faults).await;
    let settings = Settings { retry_budget: 3, ..settings() };
    let client = Client::connect([node.at.clone()], settings).await.unwrap();
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    // Each end is refused.
    faults.ends.store(1, Ordering::Relaxed);
    let failed = timeout(PATIENCE, write(&client, &shuffle, 0, 3)).await.unwrap().unwrap_err();
    assert_eq!((failed.word(), failed.again()), (Some(RefusalWord::TooFewNodes), Again::Attempt));
    assert_eq!(faults.broken.load(Ordering::Relaxed), 4, "once, and three times again");
}

#[tokio::test]
async fn a_node_without_room_holds_the_writer_back() {
    let faults = Arc::new(Faults::default());
    let node = Node::start(&faults).await;
    let client = client(&[&node]).await;
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    faults.is_full.store(true, Ordering::Relaxed);
    let value = vec![7; 1 << 20];
    let piece = PackedRecords::pack([(&b"key"[..], &value[..])]);
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let mut attempt = client.open(&shuffle, 0).await.unwrap();
    let writing = tokio::spawn(async move {
        for _ in 0..64 {
            attempt.put(piece.clone()).await?;
            count.fetch_add(1, Ordering::Relaxed);
        }
        attempt.end().await
    });
    // What sockets hold is some megabytes; the writer waits with the rest.
    let mut before = u64::MAX;
    while before != written.load(Ordering::Relaxed) {
        before = written.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before < 64, "all was taken");
    faults.is_full.store(false, Ordering::Relaxed);
    let written = timeout(PATIENCE, writing).await.unwrap().unwrap().unwrap();
    assert_eq!(written.records, 64);
}

#[tokio::test]
async fn an_attempt_says_when_its_node_has_taken_what_was_sent() {
    let faults = Arc::new(Faults::default());
    let node = Node::start(&faults).await;
    let client = client(&[&node]).await;
    let shuffle = client.start(&StartOptions::default()).await.unwrap();
    // The node opens the attempt, and then reads nothing.
    faults.is_full.store(true, Ordering::Relaxed);
    let mut attempt = client.open(&shuffle, 0).await.unwrap();
    timeout(PATIENCE, attempt.taken()).await.unwrap().unwrap();
    attempt.write(b"key", b"value").await.unwrap();
    assert!(timeout(Duration::from_millis(200), attempt.taken()).await.is_err(), "the node has not read it");
    faults.is_full.store(false, Ordering::Relaxed);
    timeout(PATIENCE, attempt.taken()).await.unwrap().unwrap();
    assert_eq!(attempt.end().await.unwrap().records, 1);

    faults.frames.store(1, Ordering::Relaxed);
    let mut attempt = client.open(&shuffle, 1).await.unwrap();
    attempt.write(b"key", b"value").await.unwrap();
    let lost = timeout(PATIENCE, attempt.taken()).await.unwrap().unwrap_err();
    assert!(lost.runs_again(), "{lost}");
}
