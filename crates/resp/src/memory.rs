//! A table in memory, by the rules that all tables have.
//!
//! Transactions that no single batch can express are carried out on one first (`transaction/`); tests of the listener, and of
//! clients, take one for a table.

use crate::table::{Found, Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table};
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_service::table::replication::{Consistency, LogPosition};
use partage_service::table::rows::{
    KeptOutcome, Outcome, Record, Records, RequestId, Row, ShardState, Write, apply, read,
};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is stored. Outcomes of requests are not: nothing is sent twice here.
#[derive(Debug, Clone, Default)]
struct Stored {
    rows: BTreeMap<Key, Row>,
    ends: BTreeSet<(u64, Key)>,
    shard_state: ShardState,
}

impl Records for Stored {
    type Error = Infallible;

    fn row(&self, key: &Key) -> Result<Option<Row>, Infallible> {
        Ok(self.rows.get(key).cloned())
    }

    fn ended(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, Key)>, Infallible> {
        Ok(self.ends.iter().take_while(|(at, _)| *at <= until_ms).take(most).cloned().collect())
    }

    fn answer(&self, _: &RequestId) -> Result<Option<KeptOutcome>, Infallible> {
        Ok(None)
    }

    fn answers(&self, _: u64, _: usize) -> Result<Vec<(u64, RequestId)>, Infallible> {
        Ok(Vec::new())
    }

    fn shard_state(&self) -> Result<ShardState, Infallible> {
        Ok(self.shard_state)
    }
}

impl Stored {
    fn store(&mut self, record: Record) {
        match record {
            Record::Row(key, Some(row)) => drop(self.rows.insert(key, row)),
            Record::Row(key, None) => drop(self.rows.remove(&key)),
            Record::Ends(at, key, true) => drop(self.ends.insert((at, key))),
            Record::Ends(at, key, false) => drop(self.ends.remove(&(at, key))),
            Record::ShardState(shard_state) => self.shard_state = shard_state,
            Record::Outcome(..) | Record::OutcomeTime(..) | Record::Change(..) | Record::Removed(_) => {}
        }
    }
}

#[derive(Debug, Default)]
struct State {
    stored: Stored,
    index: u64,
    /// What calls are answered with instead, the next one first.
    errors: Vec<RequestError>,
}

/// A table with one shard, in memory.
pub struct MemoryTable {
    partition_key: PartitionKey,
    state: Mutex<State>,
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl MemoryTable {
    /// An empty table with that clock.
    pub fn new(partition_key: PartitionKey, now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> MemoryTable {
        MemoryTable { partition_key, state: Mutex::default(), now_ms: Box::new(now_ms) }
    }

    /// A table with these rows, for which time stands still.
    pub(crate) fn of(
        partition_key: PartitionKey,
        now_ms: u64,
        rows: impl Iterator<Item = (Key, Row)>,
    ) -> MemoryTable {
        let table = MemoryTable::new(partition_key, move || now_ms);
        {
            let mut state = table.state();
            for (key, row) in rows {
                if let Some(end) = row.expires_ms {
                    state.stored.ends.insert((end, key.clone()));
                }
                state.stored.rows.insert(key, row);
            }
            // No row that comes has the version of one that was written here.
            state.index = u64::MAX / 2;
            state.stored.shard_state.clock_ms = now_ms;
        }
        table
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The row of a key, if its time has not come by the table's clock.
    pub fn row(&self, key: &Key) -> Option<Row> {
        let Ok(row) = read(&self.state().stored, key);
        row
    }

    /// The next call ends so, and the ones after that by the errors that were given before.
    pub fn fail_next(&self, error: RequestError) {
        self.state().errors.push(error);
    }

    fn failure(&self) -> Result<MutexGuard<'_, State>, RequestError> {
        let mut state = self.state();
        match state.errors.pop() {
            Some(error) => Err(error),
            None => Ok(state),
        }
    }
}

#[async_trait::async_trait]
impl Table for MemoryTable {
    fn name(&self) -> &str {
        "memory"
    }

    fn partition_key(&self) -> PartitionKey {
        self.partition_key
    }

    fn now_ms(&self) -> u64 {
        (self.now_ms)()
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        write.check(self.partition_key).map_err(|invalid| RequestError::Invalid(invalid.to_string()))?;
        let write = Write { at_ms: self.now_ms(), ..write };
        let mut state = self.failure()?;
        state.index += 1;
        let version = LogPosition { epoch: Epoch(1), index: state.index };
        let Ok(applied) = apply(&state.stored, version, &write);
        applied.records.into_iter().for_each(|record| state.stored.store(record));
        Ok(applied.outcome)
    }

    async fn read(&self, key: &Key, _: Consistency) -> Result<Option<Row>, RequestError> {
        let Ok(row) = read(&self.failure()?.stored, key);
        Ok(row)
    }

    async fn read_all(&self, keys: Vec<Key>, _: Consistency) -> Result<Vec<Option<Row>>, RequestError> {
        let state = self.failure()?;
        let row = |key: &Key| read(&state.stored, key).unwrap_or_else(|never| match never {});
        Ok(keys.iter().map(row).collect())
    }

    async fn scan(&self, from: ScanFrom, _: Consistency) -> Result<Page, RequestError> {
        let state = self.failure()?;
        let begin = match &from.token {
            None => Key::new(&from.prefix).map(Bound::Included),
            Some(token) => Key::new(token).map(Bound::Excluded),
        };
        let begin = begin.map_err(|long| RequestError::Invalid(long.to_string()))?;
        let mut rows = state.stored.rows.range((begin, Bound::Unbounded));
        let keys: Vec<Found> = rows
            .by_ref()
            .take(from.most)
            .map(|(key, row)| Found { key: key.clone(), expires_ms: row.expires_ms })
            .collect();
        let next = rows.next().and_then(|_| keys.last()).map(|last| last.key.as_bytes().to_vec());
        Ok(Page { keys, next })
    }

    async fn in_sync(&self, _: Option<&Key>) -> Result<usize, RequestError> {
        Ok(1)
    }

    fn has_slots(&self) -> bool {
        false
    }

    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError> {
        Ok(Vec::new())
    }

    fn own_node(&self) -> SlotNode {
        SlotNode { name: "memory".to_owned(), host: "127.0.0.1".to_owned(), port: 0 }
    }
}
