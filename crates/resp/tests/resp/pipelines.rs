//! Many commands at a time: order, atomicity, and what happens when the client does not read.

use crate::support::{Client, PATIENCE, Server, encoded, memory, shown};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_resp::memory::MemoryTable;
use partage_resp::{Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table, limits};
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Outcome, Row, Write};
use proptest::prelude::*;
use resp_rs::resp3::Frame;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A table whose calls take their turns at random: each gives way some times before it is done.
struct Slow {
    table: Arc<MemoryTable>,
    draws: AtomicU64,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(partition_key: PartitionKey) -> Arc<Slow> {
        let (draws, under_way, most) = (AtomicU64::new(1), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Slow { table: memory(partition_key), draws, under_way, most })
    }

    async fn turns(&self) {
        let draw = self.draws.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        self.most.fetch_max(self.under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        for _ in 0..draw.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 60 {
            tokio::task::yield_now().await;
        }
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Table for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn partition_key(&self) -> PartitionKey {
        self.table.partition_key()
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        self.turns().await;
        self.table.write(write).await
    }

    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError> {
        self.turns().await;
        self.table.read(key, consistency).await
    }

    async fn scan(&self, from: ScanFrom, consistency: Consistency) -> Result<Page, RequestError> {
        self.table.scan(from, consistency).await
    }

    async fn in_sync(&self, key: Option<&Key>) -> Result<usize, RequestError> {
        self.table.in_sync(key).await
    }

    fn has_slots(&self) -> bool {
        false
    }

    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError> {
        Ok(Vec::new())
    }

    fn own_node(&self) -> SlotNode {
        self.table.own_node()
    }
}

fn commands() -> impl Strategy<Value = Vec<Vec<String>>> {
    let key = || prop::sample::select(vec!["{t}a", "{t}b", "{t}c", "{t}d", "{t}e"]);
    let one = prop_oneof![
        4 => (key(), "[0-9]{1,3}").prop_map(|(k, v)| vec!["SET".to_owned(), k.to_owned(), v]),
        4 => key().prop_map(|k| vec!["INCR".to_owned(), k.to_owned()]),
        4 => key().prop_map(|k| vec!["GET".to_owned(), k.to_owned()]),
        2 => (key(), "[a-z]{1,3}").prop_map(|(k, v)| vec!["APPEND".to_owned(), k.to_owned(), v]),
        2 => (key(), key()).prop_map(|(a, b)| vec!["MGET".to_owned(), a.to_owned(), b.to_owned()]),
        1 => (key(), key()).prop_map(|(a, b)| vec!["DEL".to_owned(), a.to_owned(), b.to_owned()]),
        1 => Just(vec!["PING".to_owned()]),
        1 => Just(vec!["NONE".to_owned()]),
        1 => Just(vec!["MULTI".to_owned()]),
        1 => Just(vec!["EXEC".to_owned()]),
    ];
    prop::collection::vec(one, 1..200)
}

#[test]
fn a_pipeline_is_answered_as_the_same_commands_one_by_one() {
    let slow = Slow::new(PartitionKey::HashTag);
    let server = Server::of(slow.clone());
    let plain = Server::in_memory(PartitionKey::HashTag);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let result = runner.run(&(commands(), prop::collection::vec(1_usize..400, 1..20)), |(commands, cuts)| {
        let (mut one_by_one, mut pipelined) = (plain.client(), server.client());
        for client in [&mut one_by_one, &mut pipelined] {
            client.say("DEL {t}a {t}b {t}c {t}d {t}e");
        }
        let expected: Vec<String> = commands.iter().map(|command| shown(&one_by_one.ask(command))).collect();
        let bytes: Vec<u8> = commands.iter().flat_map(|command| encoded(command)).collect();
        let (mut rest, mut cuts) = (bytes.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let cut = rest.len().min(*cuts.next().unwrap());
            pipelined.send(&rest[..cut]);
            rest = &rest[cut..];
        }
        let heard: Vec<String> = commands.iter().map(|_| shown(&pipelined.next().unwrap())).collect();
        prop_assert_eq!(heard, expected);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(slow.most.load(Ordering::Relaxed) > 4, "the commands of a pipeline were carried out one by one");
}

#[test]
fn no_more_is_under_way_than_the_limit() {
    let slow = Slow::new(PartitionKey::Whole);
    let server = Server::of(slow.clone());
    let mut client = server.client();
    let count = 4 * limits::PIPELINE_DEPTH;
    let bytes: Vec<u8> = (0..count).flat_map(|n| encoded(&["SET", &n.to_string(), "x"])).collect();
    client.send(&bytes);
    (0..count).for_each(|_| assert_eq!(shown(&client.next().unwrap()), "+OK"));
    assert!(slow.most.load(Ordering::Relaxed) <= limits::PIPELINE_DEPTH);
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let server = Server::in_memory(PartitionKey::Whole);
    let mut client = server.client();
    let value = vec![b'x'; 1 << 20];
    assert_eq!(shown(&client.ask(&[b"SET", &b"k"[..], &value])), "+OK");
    // Far more answers than may wait for it: at some point the requests do not get away any more either.
    let stream = client.stream.try_clone().unwrap();
    stream.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let many: Vec<u8> = encoded(&["GET", "k"]).repeat(10_000);
    let (mut sent, mut rest) = (0, many.as_slice());
    let is_stuck = loop {
        match (&stream).write(rest) {
            Ok(written) => (sent, rest) = (sent + written, &rest[written..]),
            Err(error) => {
                break matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
            }
        }
        if rest.is_empty() {
            rest = &many;
        }
    };
    assert!(is_stuck, "{sent} bytes of requests were read, and nothing of the answers");
    // All that was sent in whole is answered when it reads.
    let commands = sent / encoded(&["GET", "k"]).len();
    for _ in 0..commands.min(50) {
        let Some(Frame::BulkString(Some(answer))) = client.next() else { panic!("no value") };
        assert_eq!(answer.len(), value.len());
    }
}

#[test]
fn two_clients_watch_the_same_row_and_one_of_them_wins() {
    let server = Server::of(Slow::new(PartitionKey::Whole));
    let count = |mut client: Client<TcpStream>| {
        let mut retries = 0;
        for _ in 0..50 {
            loop {
                client.say("WATCH n");
                let number: u64 = client.say("GET n").parse().unwrap_or(0);
                client.say("MULTI");
                client.say(&format!("SET n {}", number + 1));
                match client.say("EXEC").as_str() {
                    "[+OK]" => break,
                    "nil array" => retries += 1,
                    other => panic!("{other}"),
                }
            }
        }
        retries
    };
    let threads: Vec<_> =
        (0..3).map(|_| server.client()).map(|c| std::thread::spawn(move || count(c))).collect();
    let retries: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(server.client().say("GET n"), "150");
    assert!(retries > 0, "they were never in each other's way");
}

#[test]
fn transactions_that_no_batch_can_express_are_atomic_too() {
    let server = Server::of(Slow::new(PartitionKey::HashTag));
    let mut client = server.client();
    client.say("SET {t}word x");
    for command in ["MULTI", "INCR {t}n", "INCR {t}word", "SET {t}n 9 NX", "STRLEN {t}word", "GET {t}n"] {
        client.say(command);
    }
    assert_eq!(client.say("EXEC"), "[:1 -ERR value is not an integer or out of range nil :1 1]");
    let moving = |mut client: Client<TcpStream>, (from, to): (&'static str, &'static str)| {
        for _ in 0..30 {
            client.say("MULTI");
            client.say(&format!("DECR {from}"));
            client.say("SET {t}first 1 NX");
            client.say(&format!("INCR {to}"));
            assert!(client.say("EXEC").starts_with("[:"));
        }
    };
    let pairs = [("{t}a", "{t}b"), ("{t}b", "{t}a"), ("{t}a", "{t}b")];
    let threads: Vec<_> = pairs
        .map(|pair| (server.client(), pair))
        .into_iter()
        .map(|(client, pair)| std::thread::spawn(move || moving(client, pair)))
        .collect();
    for _ in 0..50 {
        let sum = shown(&client.ask(&["MGET", "{t}a", "{t}b"]));
        let numbers: Vec<i64> =
            sum.trim_matches(['[', ']']).split(' ').map(|one| one.parse().unwrap_or(0)).collect();
        assert_eq!(numbers.iter().sum::<i64>(), 0, "a part of a transaction was seen: {sum}");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(client.say("MGET {t}a {t}b"), "[-30 30]");
}

#[test]
fn what_a_client_has_asked_is_answered_when_it_closes_its_side() {
    let server = Server::of(Slow::new(PartitionKey::Whole));
    let mut client = server.client();
    client.send(&[encoded(&["SET", "a", "1"]), encoded(&["GET", "a"])].concat());
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(
        (client.next().map(|f| shown(&f)), client.next().map(|f| shown(&f))),
        (Some("+OK".into()), Some("1".into()))
    );
    assert_eq!(client.next(), None);
}
