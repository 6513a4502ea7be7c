//! Reading an index, page by page: rows in the order of their values, and of keys where these are the same.
//!
//! A page has the bounds of a page of a scan. It names the place at which the next one begins.

use super::extract;
use crate::rows::scan::Budget;
use crate::rows::{RowsError, ScannedRow, StoredRows, malformed};
use crate::stored::keys;
use crate::stored::values::decode_row;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_engine::replica::{Direction, Snapshot, Store};
use partage_service::table::index::{Definition, IndexId, IndexQuery, IndexState, is_cut};
use partage_service::table::rows::Row;

/// Which rows a page is to have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IndexRange {
    pub(crate) name: IndexName,
    /// Which values they have in the index.
    pub(crate) query: IndexQuery,
    /// From this place on: an encoded value and a key.
    pub(crate) from: Vec<u8>,
    /// How many rows the page may have.
    pub(crate) most: usize,
    /// Whether the page has the values.
    pub(crate) with_values: bool,
    /// Only rows of that partition; none: all.
    pub(crate) partition: Option<Partition>,
}

/// The rows that agree on a partition key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Which part of a key that is.
    pub(crate) by: PartitionKey,
    /// A key of the partition.
    pub(crate) key: Key,
}

impl Partition {
    fn has(&self, key: &[u8]) -> bool {
        self.by.of(key) == self.by.of(self.key.as_bytes())
    }
}

/// A row, and its place in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexedRow {
    pub(crate) place: Vec<u8>,
    pub(crate) row: ScannedRow,
}

/// What a shard says of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IndexRead {
    /// There is none of that name.
    Missing,
    /// The index is being built, or dropped.
    Unfinished(Definition),
    /// The index is ready, and has these rows.
    Page {
        /// Which index it is.
        index: IndexId,
        /// There may be none though more follow.
        rows: Vec<IndexedRow>,
        /// Where the next page begins; none: there is nothing more.
        next: Option<Vec<u8>>,
    },
}

impl<S: Store> StoredRows<S> {
    /// Reads a page of rows as the shard's clock has them.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn index_page(&self, range: &IndexRange) -> Result<IndexRead, RowsError> {
        let Some(definition) = self.indexes.iter().find(|definition| definition.name == range.name) else {
            return Ok(IndexRead::Missing);
        };
        if definition.state != IndexState::Ready {
            return Ok(IndexRead::Unfinished(definition.clone()));
        }
        let (from, to) = range.query.places();
        let from = keys::index_place(definition.id, &from.max(range.from.clone()));
        let to =
            to.map_or_else(|| keys::behind_index(definition.id), |to| keys::index_place(definition.id, &to));
        let (mut rows, mut next) = (Vec::new(), None);
        if from >= to {
            return Ok(IndexRead::Page { index: definition.id, rows, next });
        }
        let snapshot = self.store.snapshot()?;
        let mut budget = Budget::new(range.most);
        for stored in snapshot.range(Some(&from), Some(&to), Direction::Forward) {
            let stored = stored?;
            let entry = keys::parse_index_entry(&stored.key)
                .ok_or_else(|| malformed("an entry of an index", "its key", "has another form"))?;
            if range.partition.as_ref().is_some_and(|partition| !partition.has(entry.key)) {
                if !budget.takes(stored.key.len()) {
                    next = Some(keys::place_in_index(&stored.key).to_vec());
                    break;
                }
                continue;
            }
            let Some(value) = snapshot.get(&keys::row_bytes(entry.key))? else { continue };
            if !budget.takes(stored.key.len() + value.len()) {
                next = Some(keys::place_in_index(&stored.key).to_vec());
                break;
            }
            let row = decode_row(&value)?;
            let is_wanted = || {
                let whole = extract(&definition.path, &row.value);
                whole.is_some_and(|whole| range.query.wants(&whole))
            };
            if row.is_there(self.shard_state.clock_ms) && (!is_cut(entry.value) || is_wanted()) {
                budget.rows -= 1;
                let key = Key::new(entry.key)
                    .map_err(|_| malformed("an entry of an index", "the key of its row", "is too long"))?;
                let Row { value, version, expires_ms } = row;
                let value = range.with_values.then_some(value);
                let place = keys::place_in_index(&stored.key).to_vec();
                rows.push(IndexedRow { place, row: ScannedRow { key, value, version, expires_ms } });
            }
        }
        Ok(IndexRead::Page { index: definition.id, rows, next })
    }
}
