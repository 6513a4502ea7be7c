//! Indexes of the rows of one stored replica: entries beside the rows, changed in the same group of the store.
//!
//! | question | file |
//! |---|---|
//! | what an index has of a value | `extract.rs` |
//! | what entries of the log do to indexes: begin, build, drop | `changes.rs` |
//! | reading an index | `page.rs` |
//!
//! A replica without indexes pays for them with one look at an empty list for each entry.

mod changes;
mod extract;
mod page;
#[cfg(test)]
mod tests;

pub(crate) use page::{IndexRange, IndexRead, IndexedRow, Partition};

use super::{RowsError, StoredRows};
use crate::stored::{index as stored_index, keys};
use crate::transport::StoredChange;
use bytes::Bytes;
use extract::extract;
use partage_engine::replica::{Direction, Snapshot, Store};
use partage_service::table::index::{Definition, IndexChange};
use partage_service::table::rows::{Record, Row};

/// The indexes that a store has.
///
/// # Errors
/// The store cannot be read, or has an index in a form that this program does not know.
pub(crate) fn read_definitions<S: Snapshot>(snapshot: &S) -> Result<Vec<Definition>, RowsError> {
    let (from, to) = keys::ALL_INDEXES;
    let stored = snapshot.range(Some(from), Some(to), Direction::Forward);
    stored.map(|row| Ok(stored_index::decode(&row?.value)?)).collect()
}

/// The key of the entry that an index has of a row; none: it has none.
pub(crate) fn entry_of(definition: &Definition, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let value = extract(&definition.path, value)?;
    Some(keys::index_entry(definition.id, &value.encode(), key))
}

impl<S: Store> StoredRows<S> {
    /// The indexes of the shard.
    pub(crate) fn indexes(&self) -> &[Definition] {
        &self.indexes
    }

    /// What the leader is to log next for an index that is not finished.
    pub(crate) fn next_index_change(&self) -> Option<IndexChange> {
        self.indexes.iter().find_map(Definition::next_change)
    }

    /// Adds what the indexes change when rows do. `former` has what these were, in the order of the records.
    pub(super) fn index_records(
        &self,
        records: &[Record],
        former: &[Option<Row>],
        changes: &mut Vec<StoredChange>,
    ) {
        let rows = records.iter().filter_map(|record| match record {
            Record::Row(key, now) => Some((key, now)),
            _ => None,
        });
        for ((key, now), before) in rows.zip(former) {
            let value = |row: &Option<Row>| row.as_ref().map(|row| row.value.clone());
            let (old, new) = (value(before), value(now));
            if old == new {
                continue;
            }
            for definition in self.indexes.iter().filter(|definition| definition.is_kept_up()) {
                let entry = |value: Option<&_>| {
                    value.and_then(|value: &std::sync::Arc<[u8]>| entry_of(definition, key.as_bytes(), value))
                };
                let (old, new) = (entry(old.as_ref()), entry(new.as_ref()));
                if old != new {
                    changes.extend(old.map(|entry| (entry.into(), None)));
                    changes.extend(new.map(|entry| (entry.into(), Some(Bytes::new()))));
                }
            }
        }
    }
}
