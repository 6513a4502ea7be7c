//! The trait by which the listener uses a table: any key, wherever its leader is.

use futures::FutureExt;
use futures::future::BoxFuture;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Action, Condition, Operation, Outcome, Row, Write};
use std::sync::Arc;

/// A table that can be written and read by key.
///
/// What the listener relies on:
///
/// 1. A write or read that was begun after another one was answered sees it.
/// 2. Calls that are under way at the same time may be carried out in any order. The listener begins no call for a key while
///    another one for that key, of the same connection, is under way, unless both only read.
/// 3. A call ends: with an answer, or with an error after a time that the implementer chooses. If the future is dropped before
///    that, the write may or may not be done.
/// 4. Each error is one of [`RequestError`], and only [`RequestError::Unknown`] leaves open whether something was done.
///
/// The implementer may send a write again when it does not know the outcome, if it gives the write a request id
/// ([`Write::request`]; the listener leaves it empty). The listener itself sends nothing again but conditional writes whose
/// condition did not hold.
#[async_trait::async_trait]
pub trait Table: Send + Sync + 'static {
    /// Its name, or another word that no other table of the listener has.
    fn name(&self) -> &str;

    /// Which part of a key decides its partition. Several keys are written as one only within one partition.
    fn partition_key(&self) -> PartitionKey;

    /// The time of day in milliseconds by which the listener answers `TTL`; steps of the system's clock do not move it. The
    /// leader sets the time in a [`Write`], from which times to live count.
    fn now_ms(&self) -> u64 {
        partage_clock::wall_ms()
    }

    /// Carries out a write whose keys are of one partition: all of it or nothing.
    async fn write(&self, write: Write) -> Result<Outcome, RequestError>;

    /// Reads one row.
    ///
    /// A row whose time to live has passed by the clock of the listener may be in the answer: the shard's own clock stands
    /// still while nothing is written. The listener then settles with a write whether the row is there.
    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError>;

    /// Begins to read one row, as [`Table::read`] does: a table that has the row at hand gives it at once.
    fn begin_read(self: Arc<Self>, key: Key, consistency: Consistency) -> BegunRead {
        BegunRead::Later(async move { self.read(&key, consistency).await }.boxed())
    }

    /// Reads several rows of one partition, which are at most [`partage_core::limits::BATCH_OPERATIONS`], as they were at one
    /// moment.
    ///
    /// Without an implementation of its own it is a write of nothing but reads, which goes through the log; with
    /// [`Consistency::Any`] it is one read after the other.
    async fn read_all(
        &self,
        keys: Vec<Key>,
        consistency: Consistency,
    ) -> Result<Vec<Option<Row>>, RequestError> {
        if consistency != Consistency::Linearizable {
            let mut rows = Vec::with_capacity(keys.len());
            for key in &keys {
                rows.push(self.read(key, consistency).await?);
            }
            return Ok(rows);
        }
        match self.write(reads(keys)).await? {
            Outcome::Done { results, .. } => Ok(results.into_iter().map(|done| done.former).collect()),
            other => Err(RequestError::Unknown(format!("reads were answered with {other:?}"))),
        }
    }

    /// Rows in an order that does not change, from where `from` says; see [`Page`]. Of a table with slots ([`Table::has_slots`])
    /// only rows that are led here: cluster clients ask every leader.
    async fn scan(&self, from: ScanFrom, consistency: Consistency) -> Result<Page, RequestError>;

    /// How many rows there are, of those that [`Table::scan`] goes through. Without an implementation of its own it goes through
    /// all.
    async fn count(&self, consistency: Consistency) -> Result<u64, RequestError> {
        let (mut count, mut token) = (0, None);
        loop {
            let from = ScanFrom { token, most: crate::limits::SCAN_ROWS, prefix: Vec::new() };
            let page = self.scan(from, consistency).await?;
            let now_ms = self.now_ms();
            count += page.keys.iter().filter(|found| found.is_there(now_ms)).count() as u64;
            match page.next {
                Some(next) => token = Some(next),
                None => return Ok(count),
            }
        }
    }

    /// A key that is there, chosen by `draw`, which is drawn at random; none if there is no row. Without an implementation of its
    /// own it is one of the first rows of the table.
    async fn any_key(&self, draw: u64, consistency: Consistency) -> Result<Option<Key>, RequestError> {
        let mut token = None;
        loop {
            let from = ScanFrom { token, most: crate::limits::SCAN_ROWS, prefix: Vec::new() };
            let page = self.scan(from, consistency).await?;
            let now_ms = self.now_ms();
            let mut there: Vec<Key> =
                page.keys.into_iter().filter(|found| found.is_there(now_ms)).map(|found| found.key).collect();
            if !there.is_empty() {
                let at = (draw % there.len() as u64) as usize;
                return Ok(Some(there.swap_remove(at)));
            }
            match page.next {
                Some(next) => token = Some(next),
                None => return Ok(None),
            }
        }
    }

    /// How many replicas of a key's shard are in sync, its leader among them; without a key the least of all shards.
    async fn in_sync(&self, key: Option<&Key>) -> Result<usize, RequestError>;

    /// Whether clients see the slots of a Redis Cluster: the table is sharded by `crc16` and hash tags, and the listener sends
    /// clients to the leader of a key. False: any listener answers for any key.
    ///
    /// Where there are slots, the implementer answers [`RequestError::Moved`] for keys that are led elsewhere, for reads only if
    /// they are not [`Consistency::Any`] or there is no replica here.
    fn has_slots(&self) -> bool;

    /// Which RESP listeners lead and follow the slots, each slot once; empty where [`Table::has_slots`] is false.
    ///
    /// # Errors
    /// The listeners are not known at this moment.
    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError>;

    /// The listener's own node, as others reach it.
    fn own_node(&self) -> SlotNode;
}

/// A read that has begun.
pub enum BegunRead {
    /// The row was at hand; none: it is not there.
    Now(Option<Row>),
    /// The row has to be waited for.
    Later(BoxFuture<'static, Result<Option<Row>, RequestError>>),
}

/// A write that only reads these rows.
pub(crate) fn reads(keys: Vec<Key>) -> Write {
    let read =
        |key| Operation { key, condition: Condition::Always, action: Action::Read, wants_former: true };
    Write { at_ms: 0, request: None, operations: keys.into_iter().map(read).collect() }
}

/// Why a request was not carried out, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Too few replicas are in sync; nothing was done.
    #[error("{0}")]
    TooFewInSync(String),
    /// A queue is full; nothing was done.
    #[error("{0}")]
    Busy(String),
    /// The disk of the leader is full; nothing was done.
    #[error("{0}")]
    DiskIsFull(String),
    /// The shard has no leader at this moment, or it cannot be reached; nothing was done.
    #[error("{0}")]
    NotServed(String),
    /// The request is beyond a limit, or is not for this table; nothing was done.
    #[error("{0}")]
    Invalid(String),
    /// Another listener leads the slot; nothing was done.
    #[error("slot {slot} is led by {address}")]
    Moved {
        /// The slot of the key.
        slot: u16,
        /// `host:port` of the RESP listener of its leader.
        address: String,
    },
    /// The write may or may not be done.
    #[error("{0}")]
    Unknown(String),
}

/// The place from which on a scan reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanFrom {
    /// The `next` of the page before; none: from the beginning.
    pub token: Option<Vec<u8>>,
    /// At most so many rows are looked at.
    pub most: usize,
    /// Only keys that begin so are of interest; others may be in the page too.
    pub prefix: Vec<u8>,
}

/// Some keys. A row that is there during the whole scan is in one of its pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// The keys, and when their rows end.
    pub keys: Vec<Found>,
    /// Where the scan goes on, at most [`partage_core::limits::KEY_BYTES`] and 64 bytes: of a table that changes its shards too.
    /// None: that was all.
    pub next: Option<Vec<u8>>,
}

/// A row that a scan has come by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The key of the row, whole.
    pub key: Key,
    /// When it ends, in milliseconds of Unix time.
    pub expires_ms: Option<u64>,
}

impl Found {
    /// Whether its time has not come.
    pub fn is_there(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|end| end > now_ms)
    }
}

/// Some slots that follow on each other, and the nodes that have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotOwner {
    /// The first of them.
    pub first: u16,
    /// The last of them.
    pub last: u16,
    /// The node whose replica leads; none at this moment.
    pub leader: Option<SlotNode>,
    /// The nodes whose replicas follow.
    pub followers: Vec<SlotNode>,
}

/// A node with a RESP listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotNode {
    /// The name of the node in the cluster.
    pub name: String,
    /// The host of its RESP listener, as clients reach it.
    pub host: String,
    /// The port of its RESP listener.
    pub port: u16,
}

/// The tables of a listener.
pub trait Tables: Send + Sync + 'static {
    /// The table that a connection has before it says which one; none if it must say.
    fn default_table(&self) -> Option<Arc<dyn Table>>;

    /// The table of that name.
    fn named(&self, name: &str) -> Option<Arc<dyn Table>>;

    /// The names, for errors.
    fn names(&self) -> Vec<String>;
}

/// A listener with one table.
pub struct OneTable(pub Arc<dyn Table>);

impl Tables for OneTable {
    fn default_table(&self) -> Option<Arc<dyn Table>> {
        Some(Arc::clone(&self.0))
    }

    fn named(&self, name: &str) -> Option<Arc<dyn Table>> {
        (name == self.0.name()).then(|| Arc::clone(&self.0))
    }

    fn names(&self) -> Vec<String> {
        vec![self.0.name().to_owned()]
    }
}
