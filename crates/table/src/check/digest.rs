//! Summing up what a replica has, step by step.

use crate::limits::{CHECK_STEP_BYTES, CHECK_STEP_RECORDS};
use crate::rows::{RowsError, entry_of};
use crate::stored::keys;
use crate::stored::values::decode_row;
use partage_core::keyspace::key::Key;
use partage_core::limits::{CHECK_KEY_BYTES, CHECK_RANGES};
use partage_engine::replica::{Direction, Snapshot};
use partage_service::table::check::{Digest, Part, RangeDigest, Sum, begins_range};
use partage_service::table::index::{Definition, IndexState};
use partage_service::table::replication::LogPosition;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const ROWS: usize = 0;
const ENDS: usize = 1;
const OTHERS: usize = 2;
const STRAY: usize = 3;
/// The part of the first index: the others follow.
const INDEXES: usize = 4;

/// The sums of a range of keys, by part.
#[derive(Debug)]
struct Range {
    first: Key,
    stored: Vec<Sum>,
    expected: Vec<Sum>,
}

/// A replica that is being summed up.
pub(crate) struct Digesting<S> {
    snapshot: S,
    range_rows: u64,
    indexes: Vec<Definition>,
    /// In the order of their first keys, which is that of rows.
    ranges: Vec<Range>,
    key_bytes: usize,
    /// The record with which the next step begins; none: it is the first one.
    from: Option<Vec<u8>>,
}

fn hash(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

impl<S: Snapshot> Digesting<S> {
    /// Of a state with these indexes, in ranges of about so many rows.
    pub(crate) fn new(snapshot: S, indexes: Vec<Definition>, range_rows: u64) -> Digesting<S> {
        let mut digesting =
            Digesting { snapshot, range_rows, indexes, ranges: Vec::new(), key_bytes: 0, from: None };
        digesting.begin_range(Key::empty());
        digesting
    }

    /// Up to which entry of the log it is.
    pub(crate) fn position(&self) -> LogPosition {
        self.snapshot.position()
    }

    fn begin_range(&mut self, first: Key) {
        let none = vec![Sum::default(); INDEXES + self.indexes.len()];
        self.key_bytes += first.as_bytes().len();
        self.ranges.push(Range { first, stored: none.clone(), expected: none });
    }

    /// Reads some records. Says whether there are more.
    ///
    /// # Errors
    /// The store cannot be read, or a row has no form that this program knows.
    pub(crate) fn step(&mut self) -> Result<bool, RowsError> {
        let (mut records, mut bytes) = (0, 0);
        let from = self.from.take();
        let mut read = Vec::new();
        for stored in self.snapshot.range(from.as_deref(), None, Direction::Forward) {
            let stored = stored?;
            if records == CHECK_STEP_RECORDS || bytes >= CHECK_STEP_BYTES {
                self.from = Some(stored.key.to_vec());
                break;
            }
            records += 1;
            bytes += stored.key.len() + stored.value.len();
            read.push(stored);
        }
        for stored in &read {
            self.add(&stored.key, &stored.value)?;
        }
        Ok(self.from.is_some())
    }

    fn add(&mut self, stored: &[u8], value: &[u8]) -> Result<(), RowsError> {
        if let Some(key) = keys::parse_row(stored) {
            return self.add_row(&key, stored, value);
        }
        let (part, range) = match (keys::parse_index_entry(stored), keys::row_of(stored)) {
            (Some(entry), _) => {
                let known = self.indexes.iter().position(|index| index.id == entry.index);
                (known.map_or(STRAY, |at| INDEXES + at), self.range_of(entry.key))
            }
            // Of a feed: they are compared between replicas, and with nothing else.
            (None, Some(_)) if keys::is_change(stored) => (OTHERS, 0),
            (None, Some(key)) => (ENDS, self.range_of(key)),
            (None, None) => (OTHERS, 0),
        };
        self.ranges[range].stored[part].add(hash(stored, value));
        Ok(())
    }

    fn add_row(&mut self, key: &Key, stored: &[u8], value: &[u8]) -> Result<(), RowsError> {
        let has_room = self.ranges.len() < CHECK_RANGES && self.key_bytes < CHECK_KEY_BYTES;
        let is_first = begins_range(key.as_bytes(), self.range_rows) && *key != Key::empty();
        if has_room && is_first {
            self.begin_range(key.clone());
        }
        let row = decode_row(value)?;
        let Some(range) = self.ranges.last_mut() else { return Ok(()) };
        range.stored[ROWS].add(hash(stored, value));
        if let Some(ends) = row.expires_ms {
            range.expected[ENDS].add(hash(&keys::ends(ends, key), &[]));
        }
        for (at, index) in self.indexes.iter().enumerate() {
            let entry = entry_of(index, key.as_bytes(), &row.value);
            if let Some(entry) = entry.filter(|_| index.state == IndexState::Ready) {
                range.expected[INDEXES + at].add(hash(&entry, &[]));
            }
        }
        Ok(())
    }

    /// The range that has a key.
    fn range_of(&self, key: &[u8]) -> usize {
        self.ranges.partition_point(|range| range.first.as_bytes() <= key).saturating_sub(1)
    }

    /// The sums of all that was read, once [`Digesting::step`] has nothing more to read.
    pub(crate) fn end(self) -> Digest {
        let parts = [Part::Rows, Part::Ends, Part::Others, Part::Stray].into_iter();
        let parts: Vec<Part> =
            parts.chain(self.indexes.iter().map(|index| Part::Index(index.name.clone()))).collect();
        let is_ready = |index: &Definition| index.state == IndexState::Ready;
        let compares = |at: usize| match at {
            ROWS | OTHERS => false,
            ENDS | STRAY => true,
            of_index => self.indexes.get(of_index - INDEXES).is_some_and(is_ready),
        };
        let mut digest = Digest::default();
        for Range { first, stored, expected } in self.ranges {
            let mut range = RangeDigest::default();
            for (at, part) in parts.iter().enumerate() {
                if stored[at] != Sum::default() {
                    range.stored.insert(part.clone(), stored[at]);
                }
                if compares(at) && (stored[at], expected[at]) != (Sum::default(), Sum::default()) {
                    range.expected.insert(part.clone(), expected[at]);
                }
            }
            digest.ranges.insert(first, range);
        }
        let unfinished = self.indexes.iter().filter(|index| !is_ready(index));
        digest.unfinished = unfinished.map(|index| index.name.clone()).collect();
        digest
    }
}
