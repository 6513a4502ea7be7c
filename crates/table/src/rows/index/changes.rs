//! What entries of the log do to the indexes of a shard. The table of states is in [`partage_service::table::index`].

use super::entry_of;
use crate::rows::{AskedCheck, RowsError, StoredRows, malformed};
use crate::stored::values::decode_row;
use crate::stored::{index as stored_index, keys};
use crate::transport::StoredChange;
use bytes::Bytes;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::Key;
use partage_core::limits::{INDEX_STEP_BYTES, INDEX_STEP_ROWS};
use partage_engine::replica::{Direction, Snapshot, Store};
use partage_service::table::index::{Definition, IndexChange, IndexId, IndexState};
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::Outcome;

/// What a change makes of the indexes, and what it changes in the store.
struct Next {
    indexes: Vec<Definition>,
    changes: Vec<StoredChange>,
}

impl Next {
    fn set(&mut self, definition: Definition) {
        let stored = Some(stored_index::encode(&definition).into());
        self.changes.push((keys::index(definition.id).into(), stored));
        match self.indexes.iter_mut().find(|other| other.id == definition.id) {
            Some(known) => *known = definition,
            None => self.indexes.push(definition),
        }
        self.indexes.sort_by_key(|definition| definition.id);
    }

    fn remove(&mut self, index: IndexId) {
        self.changes.push((keys::index(index).into(), None));
        self.indexes.retain(|definition| definition.id != index);
    }
}

impl<S: Store> StoredRows<S> {
    /// Applies an entry that is about indexes.
    pub(in crate::rows) fn apply_index_change(
        &mut self,
        before: LogPosition,
        position: LogPosition,
        payload: &[u8],
    ) -> Result<(Option<Outcome>, Vec<StoredChange>), RowsError> {
        let (at_ms, change) = stored_index::decode_change(payload)?;
        let mut next = Next { indexes: self.indexes.clone(), changes: Vec::new() };
        let mut check = None;
        match change {
            IndexChange::Create(name, path) => {
                let new = Definition::new(name, path);
                if new.may_join(&self.indexes) {
                    next.set(new);
                }
            }
            IndexChange::Drop(name) => self.begin_drop(&name, &mut next),
            IndexChange::Build(index, from) => {
                if let Some(definition) = self.index_at(index, &IndexState::Building(from.clone())) {
                    self.build(definition, &from, &mut next)?;
                }
            }
            IndexChange::Remove(index, from) => {
                if let Some(definition) = self.index_at(index, &IndexState::Dropping(from.clone())) {
                    self.remove(definition, &from, &mut next)?;
                }
            }
            IndexChange::Check { number, range_rows } => {
                check = Some(AskedCheck { number, range_rows, at_ms });
            }
        }
        self.store_changes(before, position, &next.changes)?;
        (self.indexes, self.check) = (next.indexes, check);
        Ok((Some(Outcome::Done { version: position, results: Vec::new() }), next.changes))
    }

    /// An index that is in that state.
    fn index_at(&self, index: IndexId, state: &IndexState) -> Option<&Definition> {
        self.indexes.iter().find(|definition| definition.id == index && definition.state == *state)
    }

    fn begin_drop(&self, name: &IndexName, next: &mut Next) {
        for definition in self.indexes.iter().filter(|one| one.name == *name && one.is_kept_up()) {
            next.set(Definition { state: IndexState::Dropping(Vec::new()), ..definition.clone() });
        }
    }

    /// Adds the entries of the next rows.
    fn build(&self, definition: &Definition, from: &Key, next: &mut Next) -> Result<(), RowsError> {
        let snapshot = self.store.snapshot()?;
        let (mut rows, mut bytes, mut state) = (0, 0, IndexState::Ready);
        for stored in snapshot.range(Some(&keys::row(from)), Some(keys::BEHIND_ROWS), Direction::Forward) {
            let stored = stored?;
            let key = keys::parse_row(&stored.key)
                .ok_or_else(|| malformed("a stored row", "its key", "has another form"))?;
            bytes += stored.key.len() + stored.value.len();
            if rows == INDEX_STEP_ROWS || (bytes > INDEX_STEP_BYTES && rows > 0) {
                state = IndexState::Building(key);
                break;
            }
            rows += 1;
            let row = decode_row(&stored.value)?;
            let entry = entry_of(definition, key.as_bytes(), &row.value);
            next.changes.extend(entry.map(|entry| (entry.into(), Some(Bytes::new()))));
        }
        next.set(Definition { state, ..definition.clone() });
        Ok(())
    }

    /// Removes the next entries.
    fn remove(&self, definition: &Definition, from: &[u8], next: &mut Next) -> Result<(), RowsError> {
        let snapshot = self.store.snapshot()?;
        let (from, to) = (keys::index_place(definition.id, from), keys::behind_index(definition.id));
        let mut entries = snapshot.range(Some(&from), Some(&to), Direction::Forward);
        for stored in entries.by_ref().take(INDEX_STEP_ROWS) {
            next.changes.push((stored?.key.to_vec().into(), None));
        }
        match entries.next().transpose()? {
            // The next step begins there, and does not look at what was removed.
            Some(first) => {
                let state = IndexState::Dropping(keys::place_in_index(&first.key).to_vec());
                next.set(Definition { state, ..definition.clone() });
            }
            None => next.remove(definition.id),
        }
        Ok(())
    }
}
