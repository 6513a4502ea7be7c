//! The rows of one stored replica: what `core` says of rows, on a store of the engine.
//!
//! One thread applies entries. Each entry is one group of the store, with its position, so that a crash leaves whole entries.
//! Indexes (`index/`) are changed in the group that changes their rows. How the shard stands, which indexes it has, and the first
//! entries of the two lists by time (`times.rs`) are kept in memory beside the store.

mod changes;
mod fill;
mod index;
mod oldest;
mod pinned;
mod scan;
mod times;

use crate::direct::ClockBound;
use crate::limits::ANSWER_PART_BYTES;
use crate::stored::changes::{encode_change, encode_removed};
use crate::stored::values::{
    decode_answered, decode_row, decode_shard_state, encode_answered, encode_row, encode_shard_state,
};
use crate::stored::{Malformed, index as stored_index, keys, write};
use crate::transport::StoredChange;
use bytes::Bytes;
use changes::Feed;
pub use changes::{ChangesPage, FoundChange};
pub(crate) use fill::Filling;
pub(crate) use index::{IndexRange, IndexRead, IndexedRow, Partition, entry_of, read_definitions};
use partage_core::keyspace::key::Key;
use partage_engine::replica::{Change, Direction, Error, Snapshot, Store};
use partage_service::table::feed::{FeedSettings, Place, Removed};
use partage_service::table::index::Definition;
use partage_service::table::replication::{Entry, EntryKind, LogPosition};
use partage_service::table::rows::{
    self, Applied, KeptOutcome, Outcome, Record, Records, RequestId, Row, ShardState,
};
pub use pinned::PinnedRows;
pub(crate) use scan::ScannedRows;
pub use scan::{ScanPage, ScanRange, ScannedRow};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use times::Times;

/// Why rows cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The store refuses, or its disk failed.
    #[error("{0}")]
    Store(#[from] Error),
    /// What is stored, or an entry of the log, has no form that this program knows.
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

impl RowsError {
    /// Whether what is stored is damaged, so that the replica must be filled from another one.
    pub fn is_damage(&self) -> bool {
        match self {
            RowsError::Store(error) => error.is_damage(),
            RowsError::Malformed(_) => true,
        }
    }

    /// Whether there was no room on the disk, and nothing else is wrong.
    pub fn is_no_room(&self) -> bool {
        matches!(self, RowsError::Store(error) if error.is_no_room())
    }
}

/// The rows of one stored replica.
#[derive(Debug)]
pub struct StoredRows<S> {
    store: Arc<S>,
    shard_state: ShardState,
    clock: ClockBound,
    ends: RefCell<Times<Key>>,
    answers: RefCell<Times<RequestId>>,
    indexes: Vec<Definition>,
    /// A check that the last entry has asked for.
    check: Option<AskedCheck>,
    /// Outcomes that entries have forgotten before their time, since that was asked last.
    forgotten_early: u64,
    /// Beside the others, as most tables have none.
    feed: Box<Feed>,
}

/// A check that an entry of the log asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AskedCheck {
    /// What its result is asked for by.
    pub(crate) number: u64,
    /// About so many rows are in a range; a power of two.
    pub(crate) range_rows: u64,
    /// The time at the leader, in milliseconds of Unix time.
    pub(crate) at_ms: u64,
}

impl<S: Store> StoredRows<S> {
    /// Over a store, which is usable. Changes are kept for a feed as `feed` says, none: there is no feed; each replica of a shard
    /// is told the same before it applies anything, as what is stored follows from it.
    ///
    /// # Errors
    /// The store cannot be read, or has what this program does not know.
    pub fn open(store: Arc<S>, feed: Option<FeedSettings>) -> Result<StoredRows<S>, RowsError> {
        let shard_state = match store.get(keys::SHARD_STATE)? {
            Some(bytes) => decode_shard_state(&bytes)?,
            None => ShardState::default(),
        };
        let ends = RefCell::new(read_ends(&*store)?);
        let answers = RefCell::new(read_answers(&*store)?);
        let clock = Arc::new(AtomicU64::new(shard_state.clock_ms));
        let indexes = read_definitions(&store.snapshot()?)?;
        let feed = Box::new(Feed::new(feed, Self::read_removed(&store)?));
        Ok(StoredRows {
            store,
            shard_state,
            clock,
            ends,
            answers,
            indexes,
            check: None,
            forgotten_early: 0,
            feed,
        })
    }

    /// The engine's store that has the records: the replica flushes it, and asks it for its size.
    pub fn store(&self) -> &Arc<S> {
        &self.store
    }

    /// What readers on other threads need: the store, and what the shard's clock shows at most.
    pub(crate) fn for_readers(&self) -> (Arc<S>, ClockBound) {
        (Arc::clone(&self.store), Arc::clone(&self.clock))
    }

    /// Up to which entry of the log the rows are.
    pub fn applied(&self) -> LogPosition {
        self.store.applied()
    }

    /// When the next row ends, in milliseconds of Unix time; none: no row does. It may be one that has ended and is not removed
    /// yet.
    pub(crate) fn next_end(&self) -> Option<u64> {
        self.ends.borrow().first()
    }

    /// Reads a row as the shard's clock has it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn read(&self, key: &Key) -> Result<Option<Row>, RowsError> {
        rows::read(self, key)
    }

    /// Applies an entry: the next one, and committed. Says what a write has done.
    ///
    /// # Errors
    /// Nothing of the entry is applied, and no later one can be.
    pub fn apply(&mut self, entry: &Entry) -> Result<Option<Outcome>, RowsError> {
        Ok(self.apply_entry(entry)?.0)
    }

    /// The same; gives what has changed in the store, too.
    pub(crate) fn apply_entry(
        &mut self,
        entry: &Entry,
    ) -> Result<(Option<Outcome>, Vec<StoredChange>), RowsError> {
        let before = self.store.applied();
        let EntryKind::Write(payload) = &entry.kind else {
            self.store.apply(before, entry.position, &[])?;
            return Ok((None, Vec::new()));
        };
        if stored_index::is_change(payload) {
            return self.apply_index_change(before, entry.position, payload);
        }
        let write = write::decode(payload)?;
        let Applied { outcome, records, former, forgotten_early } =
            rows::apply(self, entry.position, &write)?;
        let mut changes: Vec<StoredChange> = Vec::with_capacity(records.len());
        for record in &records {
            self.change(record, &mut changes)?;
        }
        if !self.indexes.is_empty() {
            self.index_records(&records, &former, &mut changes);
        }
        // Readers see rows as soon as the store has them.
        let clock_ms = records.iter().find_map(|record| match record {
            Record::ShardState(shard_state) => Some(shard_state.clock_ms),
            _ => None,
        });
        clock_ms.into_iter().for_each(|clock_ms| self.clock.store(clock_ms, Ordering::Release));
        self.store_changes(before, entry.position, &changes)?;
        for record in records {
            self.take_up(record);
        }
        self.forgotten_early += forgotten_early;
        Ok((Some(outcome), changes))
    }

    /// Stores what an entry changes, as one group.
    fn store_changes(
        &self,
        before: LogPosition,
        position: LogPosition,
        changes: &[StoredChange],
    ) -> Result<(), RowsError> {
        let borrowed: Vec<Change<'_>> =
            changes.iter().map(|(key, value)| Change { key, value: value.as_deref() }).collect();
        Ok(self.store.apply(before, position, &borrowed)?)
    }

    /// The check that the last entry has asked for, once.
    pub(crate) fn take_check(&mut self) -> Option<AskedCheck> {
        self.check.take()
    }

    /// How many outcomes were forgotten before their time since this was called last.
    pub(crate) fn take_forgotten_early(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten_early)
    }

    /// What a record changes in the store.
    fn change(&self, record: &Record, changes: &mut Vec<StoredChange>) -> Result<(), RowsError> {
        let present = |is_there: &bool| is_there.then(Bytes::new);
        match record {
            Record::Row(key, row) => {
                changes.push((keys::row(key).into(), row.as_ref().map(|row| encode_row(row).into())))
            }
            Record::Ends(at_ms, key, is_there) => {
                changes.push((keys::ends(*at_ms, key).into(), present(is_there)))
            }
            Record::OutcomeTime(at_ms, id, is_there) => {
                changes.push((keys::answer_of(*at_ms, id).into(), present(is_there)));
            }
            Record::Outcome(id, Some(answered)) => {
                let whole = encode_answered(answered);
                let count = parts(whole.chunks(ANSWER_PART_BYTES).count());
                for (number, part) in (0..count).zip(whole.chunks(ANSWER_PART_BYTES)) {
                    let head = if number == 0 { &count.to_be_bytes()[..] } else { &[] };
                    changes.push((keys::answer(id, number).into(), Some([head, part].concat().into())));
                }
            }
            Record::Outcome(id, None) => {
                let count = self.first_part(id)?.map_or(0, |(count, _)| count);
                changes.extend((0..count).map(|number| (keys::answer(id, number).into(), None)));
            }
            Record::ShardState(shard_state) => {
                changes.push((
                    Bytes::from_static(keys::SHARD_STATE),
                    Some(encode_shard_state(shard_state).into()),
                ));
            }
            Record::Change(entry, key, change) => {
                let value = change.as_ref().map(|change| encode_change(change).into());
                changes.push((keys::change(*entry, key.as_bytes()).into(), value));
            }
            Record::Removed(removed) => {
                changes.push((Bytes::from_static(keys::REMOVED), Some(encode_removed(removed).into())));
            }
        }
        Ok(())
    }

    /// Takes up in memory what is in the store now.
    fn take_up(&mut self, record: Record) {
        match record {
            Record::Ends(at_ms, key, true) => self.ends.get_mut().insert((at_ms, key)),
            Record::Ends(at_ms, key, false) => self.ends.get_mut().remove(&(at_ms, key)),
            Record::OutcomeTime(at_ms, id, true) => self.answers.get_mut().insert((at_ms, id)),
            Record::OutcomeTime(at_ms, id, false) => self.answers.get_mut().remove(&(at_ms, id)),
            Record::ShardState(shard_state) => self.shard_state = shard_state,
            Record::Change(entry, key, change) => self.take_up_change(entry, key, change.as_ref()),
            Record::Removed(removed) => self.feed.removed = removed,
            Record::Row(..) | Record::Outcome(..) => {}
        }
    }

    /// The first part of an outcome, and how many there are.
    fn first_part(&self, id: &RequestId) -> Result<Option<(u16, Vec<u8>)>, RowsError> {
        let Some(first) = self.store.get(&keys::answer(id, 0))? else { return Ok(None) };
        let (count, part) = first
            .split_first_chunk()
            .ok_or_else(|| malformed("a stored outcome", "the count of its parts", "is cut"))?;
        Ok(Some((u16::from_be_bytes(*count), part.to_vec())))
    }
}

fn parts(count: usize) -> u16 {
    u16::try_from(count).expect("a batch has 1,000 operations at most, and a former row of 1 MiB for each")
}

fn malformed(form: &'static str, part: &'static str, why: &str) -> RowsError {
    RowsError::Malformed(Malformed { form, part, at: 0, why: why.to_owned() })
}

fn read_ends<S: Store>(store: &S) -> Result<Times<Key>, RowsError> {
    read_times(store, keys::ALL_ENDS, keys::parse_ends, "the time when a row ends")
}

fn read_answers<S: Store>(store: &S) -> Result<Times<RequestId>, RowsError> {
    read_times(store, keys::ALL_ANSWERS_OF, keys::parse_answer_of, "the time of an outcome")
}

fn read_times<S: Store, T: Ord + Clone>(
    store: &S,
    (from, to): (&[u8], &[u8]),
    parse: fn(&[u8]) -> Option<(u64, T)>,
    form: &'static str,
) -> Result<Times<T>, RowsError> {
    let snapshot = store.snapshot()?;
    let rows = snapshot.range(Some(from), Some(to), Direction::Forward);
    Times::read(
        rows.map(|row| parse(&row?.key).ok_or_else(|| malformed(form, "its key", "has another form"))),
    )
}

impl<S: Store> Records for StoredRows<S> {
    type Error = RowsError;

    fn has_ends(&self) -> bool {
        !self.ends.borrow().is_empty()
    }

    fn wants_former(&self) -> bool {
        !self.indexes.is_empty()
    }

    fn row(&self, key: &Key) -> Result<Option<Row>, RowsError> {
        let stored = self.store.get(&keys::row(key))?;
        Ok(stored.map(|bytes| decode_row(&bytes)).transpose()?)
    }

    fn ended(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, Key)>, RowsError> {
        let known = self.ends.borrow().until(until_ms, most);
        if let Some(known) = known {
            return Ok(known);
        }
        let read = read_ends(&*self.store)?;
        let found = read.until(until_ms, most).unwrap_or_default();
        *self.ends.borrow_mut() = read;
        Ok(found)
    }

    fn answer(&self, request: &RequestId) -> Result<Option<KeptOutcome>, RowsError> {
        let Some((count, mut whole)) = self.first_part(request)? else { return Ok(None) };
        for number in 1..count {
            let part = self.store.get(&keys::answer(request, number))?;
            let part = part.ok_or_else(|| malformed("a stored outcome", "a part of it", "is missing"))?;
            whole.extend_from_slice(&part);
        }
        Ok(Some(decode_answered(&whole)?))
    }

    fn answers(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, RequestId)>, RowsError> {
        let known = self.answers.borrow().until(until_ms, most);
        if let Some(known) = known {
            return Ok(known);
        }
        let read = read_answers(&*self.store)?;
        let found = read.until(until_ms, most).unwrap_or_default();
        *self.answers.borrow_mut() = read;
        Ok(found)
    }

    fn shard_state(&self) -> Result<ShardState, RowsError> {
        Ok(self.shard_state)
    }

    fn feed(&self) -> Option<FeedSettings> {
        self.feed.settings
    }

    fn changes(&self, until_ms: u64, most: usize, bytes: usize) -> Result<Vec<Place>, RowsError> {
        self.old_changes(until_ms, most, bytes)
    }

    fn removed(&self) -> Result<Removed, RowsError> {
        Ok(self.feed.removed.clone())
    }
}

#[cfg(test)]
mod feed_tests;
#[cfg(test)]
mod tests;
