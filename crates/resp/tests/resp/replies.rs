//! What commands answer beyond what Redis can be asked for comparison.

use crate::support::{Server, memory, shown};
use partage_core::keyspace::sharding::PartitionKey;
use partage_resp::memory::MemoryTable;
use partage_resp::{OneTable, RequestError, Table, Tables};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn errors_of_the_table_have_words_that_clients_know() {
    let table = memory(PartitionKey::Whole);
    let server = Server::of(table.clone());
    let mut client = server.client();
    let cases = [
        (
            RequestError::TooFewInSync("1 of 2".into()),
            "-NOREPLICAS Not enough good replicas to write: 1 of 2; nothing was done",
        ),
        (RequestError::Busy("full".into()), "-TRYAGAIN full; nothing was done"),
        (RequestError::DiskIsFull("no room".into()), "-MISCONF no room; nothing was done"),
        (
            RequestError::NotServed("no leader".into()),
            "-CLUSTERDOWN Hash slot not served: no leader; nothing was done",
        ),
        (RequestError::Invalid("too long".into()), "-ERR too long"),
        (RequestError::Moved { slot: 7, address: "a:1".into() }, "-MOVED 7 a:1"),
        (
            RequestError::Unknown("cut off".into()),
            "-UNKNOWN the write may or may not be done: cut off; read before you send it again",
        ),
    ];
    for (error, expected) in cases {
        table.fail_next(error.clone());
        assert_eq!(client.say("SET a 1"), expected);
        client.say("MULTI");
        client.say("INCR a");
        table.fail_next(error);
        assert_eq!(client.say("EXEC"), expected);
    }
    assert_eq!(client.say("EXISTS a"), ":0");
    // One of two keys of two partitions: neither done nor not.
    table.fail_next(RequestError::Busy("full".into()));
    assert!(
        client.say("DEL a b").starts_with("-UNKNOWN the write may or may not be done: 1 of 2 keys are done")
    );
}

#[test]
fn keys_of_several_partitions_are_read_and_deleted_but_not_written_as_one() {
    let server = Server::in_memory(PartitionKey::Whole);
    let mut client = server.client();
    let crossed = "-CROSSSLOT Keys in request don't hash to the same slot";
    assert_eq!(client.say("MSET a 1 b 2"), crossed);
    assert_eq!(client.say("MSETNX a 1 b 2"), crossed);
    assert_eq!(client.say("MSET a 1 a 2"), "+OK");
    client.say("SET b 3");
    assert_eq!(client.say("MGET a b c a"), "[2 3 nil 2]");
    assert_eq!(client.say("EXISTS a b c a"), ":3");
    client.say("MULTI");
    client.say("SET a 1");
    client.say("SET b 1");
    assert_eq!(client.say("EXEC"), crossed);
    assert_eq!(client.say("DEL a b c a"), ":2");
}

#[test]
fn a_scan_finds_every_key_once_over_any_connection() {
    let server = Server::in_memory(PartitionKey::Whole);
    let mut client = server.client();
    let keys: BTreeSet<String> = (0..500).map(|n| format!("key:{n:03}")).collect();
    for key in &keys {
        client.say(&format!("SET {key} x"));
    }
    client.say("SET other x");
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let page = server.client().say(&format!("SCAN {cursor} MATCH key:* COUNT 7"));
        let (next, rest) = page[1..].split_once(" [").unwrap();
        found.extend(rest.trim_end_matches(']').split(' ').filter(|key| !key.is_empty()).map(str::to_owned));
        cursor = next.to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), keys.len());
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), keys);
    assert_eq!(client.say("DBSIZE"), ":501");
    assert!(client.say("RANDOMKEY").starts_with(['k', 'o']));
}

#[test]
fn rows_end_although_nothing_is_written() {
    let clock = Arc::new(AtomicU64::new(1_000_000));
    let now = clock.clone();
    let server =
        Server::of(Arc::new(MemoryTable::new(PartitionKey::Whole, move || now.load(Ordering::Relaxed))));
    let mut client = server.client();
    client.say("SET a 1 PX 500");
    client.say("SET b 1 EX 100");
    assert_eq!(
        (client.say("PTTL a"), client.say("TTL b"), client.say("TTL c")),
        (":500".into(), ":100".into(), ":-2".into())
    );
    clock.fetch_add(499, Ordering::Relaxed);
    assert_eq!((client.say("PTTL a"), client.say("DBSIZE")), (":1".into(), ":2".into()));
    clock.fetch_add(1, Ordering::Relaxed);
    client.say("READONLY");
    assert_eq!((client.say("GET a"), client.say("EXISTS a b")), ("nil".into(), ":1".into()));
    assert_eq!(
        (client.say("DBSIZE"), client.say("SCAN 0"), client.say("RANDOMKEY")),
        (":1".into(), "[0 [b]]".into(), "b".into())
    );
    client.say("READWRITE");
    assert_eq!((client.say("GET a"), client.say("MGET a b")), ("nil".into(), "[nil 1]".into()));
    // A row that is watched and ends is another one.
    client.say("WATCH b");
    clock.fetch_add(100_000, Ordering::Relaxed);
    client.say("MULTI");
    client.say("SET b 2");
    assert_eq!(client.say("EXEC"), "nil array");
}

struct Several([Arc<MemoryTable>; 2]);

impl Tables for Several {
    fn default_table(&self) -> Option<Arc<dyn Table>> {
        None
    }

    fn named(&self, name: &str) -> Option<Arc<dyn Table>> {
        let at = ["orders", "stock"].iter().position(|one| *one == name)?;
        Some(self.0[at].clone())
    }

    fn names(&self) -> Vec<String> {
        vec!["orders".to_owned(), "stock".to_owned()]
    }
}

#[test]
fn the_user_name_says_which_table_is_meant() {
    let tables = [memory(PartitionKey::Whole), memory(PartitionKey::Whole)];
    let server = Server::start(Arc::new(Several(tables)));
    let mut client = server.client();
    for command in ["GET a", "SET a 1", "SCAN 0", "DBSIZE", "MULTI", "WATCH a", "INFO"] {
        assert!(client.say(command).starts_with("-NOAUTH Authentication required"), "{command}");
    }
    assert!(client.say("AUTH nothing x").starts_with("-WRONGPASS"));
    assert_eq!(client.say("AUTH orders x"), "+OK");
    assert_eq!(client.say("SET a 1"), "+OK");
    assert!(client.say("HELLO 3 AUTH stock x SETNAME me").contains("proto=:3"));
    assert_eq!((client.say("GET a"), client.say("CLIENT GETNAME")), ("null".into(), "me".into()));
    assert!(client.say("HELLO 2 AUTH orders").starts_with("-ERR Syntax error in HELLO option"));
    client.say("HELLO 2 AUTH orders x");
    assert_eq!(client.say("GET a"), "1");
    assert_eq!(client.say("RESET"), "+RESET");
    assert!(client.say("GET a").starts_with("-NOAUTH"));
}

/// A listener that learns of its table only when it is told.
struct Later(Arc<MemoryTable>, Arc<AtomicBool>);

impl Tables for Later {
    fn default_table(&self) -> Option<Arc<dyn Table>> {
        self.1.load(Ordering::Relaxed).then(|| self.0.clone() as Arc<dyn Table>)
    }

    fn named(&self, _: &str) -> Option<Arc<dyn Table>> {
        self.default_table()
    }

    fn names(&self) -> Vec<String> {
        self.default_table().iter().map(|table| table.name().to_owned()).collect()
    }
}

#[test]
fn a_connection_that_was_there_before_the_table_has_it_when_it_is_known() {
    let is_known = Arc::new(AtomicBool::new(false));
    let server = Server::start(Arc::new(Later(memory(PartitionKey::Whole), is_known.clone())));
    let mut client = server.client();
    for command in ["GET a", "SET a 1", "DBSIZE", "MULTI"] {
        let said = client.say(command);
        assert!(said.starts_with("-CLUSTERDOWN") && said.contains("no table is known here yet"), "{said}");
    }
    is_known.store(true, Ordering::Relaxed);
    assert_eq!((client.say("SET a 1"), client.say("GET a")), ("+OK".into(), "1".into()));
}

#[test]
fn the_connection_tells_of_itself() {
    let server = Server::of(memory(PartitionKey::Whole));
    let mut client = server.client();
    assert_eq!(client.say("CLIENT SETINFO LIB-NAME x"), "+OK");
    assert_eq!(client.say("CLIENT SETNAME worker-1"), "+OK");
    let id = client.say("CLIENT ID");
    let list = client.say("CLIENT LIST");
    assert!(list.starts_with(&format!("id={} addr=127.0.0.1:", &id[1..])), "{list}");
    assert!(list.contains(" name=worker-1 ") && list.contains(" lib-name=x "), "{list}");
    assert!(client.say("CLIENT KILL").starts_with("-ERR unknown subcommand 'KILL'"));
    assert_eq!(client.say("CLUSTER SLOTS"), "-ERR This instance has cluster support disabled");
    assert!(client.say("INFO server").contains("redis_version:7.0.15"));
    assert!(client.say("COMMAND INFO get nothing").starts_with("[[get :2 "));
    assert_eq!(client.say("WAIT 0 0"), ":0");
    assert_eq!(
        (client.say("SELECT 1"), client.say("SELECT 0")),
        ("-ERR DB index is out of range".into(), "+OK".into())
    );
    client.send(b"PING\r\n  SET \"a b\" '1'\n\r\nGET \"a b\"\r\nQUIT\r\n");
    let heard: Vec<String> = (0..4).map(|_| shown(&client.next().unwrap())).collect();
    assert_eq!(heard, ["+PONG", "+OK", "1", "+OK"]);
    assert_eq!(client.next(), None);
    let one = OneTable(memory(PartitionKey::Whole));
    assert!(one.named("memory").is_some() && one.named("other").is_none());
}
