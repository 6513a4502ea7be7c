//! A listener whose clock is not that of the leader: times to live count by the leader's, times of day are what they say.

use crate::support::Server;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_resp::memory::MemoryTable;
use partage_resp::{Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table};
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Outcome, Row, Write};
use std::sync::Arc;

/// What the clock of the listener shows.
const LISTENER_MS: u64 = 1_000_000_000_000;

/// What the clock of the leader shows: an hour more.
const LEADER_MS: u64 = LISTENER_MS + 3_600_000;

/// A table that another node leads.
struct Led(MemoryTable);

#[async_trait::async_trait]
impl Table for Led {
    fn name(&self) -> &str {
        "led"
    }

    fn partition_key(&self) -> PartitionKey {
        self.0.partition_key()
    }

    fn now_ms(&self) -> u64 {
        LISTENER_MS
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        self.0.write(write).await
    }

    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError> {
        self.0.read(key, consistency).await
    }

    async fn scan(&self, from: ScanFrom, consistency: Consistency) -> Result<Page, RequestError> {
        self.0.scan(from, consistency).await
    }

    async fn in_sync(&self, key: Option<&Key>) -> Result<usize, RequestError> {
        self.0.in_sync(key).await
    }

    fn has_slots(&self) -> bool {
        false
    }

    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError> {
        Ok(Vec::new())
    }

    fn own_node(&self) -> SlotNode {
        self.0.own_node()
    }
}

#[test]
fn times_to_live_count_by_the_clock_of_the_leader() {
    let server = Server::of(Arc::new(Led(MemoryTable::new(PartitionKey::Whole, || LEADER_MS))));
    let mut client = server.client();
    let at_ms = LEADER_MS + 99_000;
    let plain = [
        ("SET k 1 EX 10".to_owned(), LEADER_MS + 10_000),
        ("SET k 1 PX 7".to_owned(), LEADER_MS + 7),
        ("SETEX k 10 1".to_owned(), LEADER_MS + 10_000),
        ("PSETEX k 10 1".to_owned(), LEADER_MS + 10),
        ("GETEX k EX 20".to_owned(), LEADER_MS + 20_000),
        ("EXPIRE k 5".to_owned(), LEADER_MS + 5_000),
        ("PEXPIRE k 6 XX".to_owned(), LEADER_MS + 6),
        (format!("SET k 1 PXAT {at_ms}"), at_ms),
        (format!("PEXPIREAT k {}", at_ms + 1), at_ms + 1),
        (format!("EXPIREAT k {}", at_ms / 1_000), at_ms),
    ];
    for (command, ends) in plain {
        client.say(&command);
        assert_eq!(client.say("PEXPIRETIME k"), format!(":{ends}"), "{command}");
    }
    // One that is a single batch, and those that are carried out on a copy of the rows first.
    for (key, command, ends) in [
        ("a", "SET a 1 EX 10".to_owned(), LEADER_MS + 10_000),
        ("b", "SET b 1 EX 10 NX".to_owned(), LEADER_MS + 10_000),
        ("c", format!("SET c 1 PXAT {at_ms} NX"), at_ms),
        ("k", "PEXPIRE k 70 XX".to_owned(), LEADER_MS + 70),
        ("k", "SET k 2 KEEPTTL XX".to_owned(), LEADER_MS + 70),
    ] {
        client.say("MULTI");
        client.say(&command);
        client.say("EXEC");
        assert_eq!(client.say(&format!("PEXPIRETIME {key}")), format!(":{ends}"), "MULTI {command}");
    }
}
