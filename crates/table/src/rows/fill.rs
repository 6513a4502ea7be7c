//! A store that is filled with rows in the order of their keys, which come in pieces.
//!
//! A run of its own for each piece would be costly: the library looks at all runs of a store whenever one is added. So rows are
//! gathered in memory, up to [`RUN_BYTES`].

use super::RowsError;
use crate::limits::RUN_BYTES;
use partage_engine::replica::{Engine, Row, Store, TreeEngine, TreeStore};
use partage_service::table::replication::LogPosition;
use std::path::Path;
use std::sync::Arc;

/// The store, and what is not in it yet.
pub(crate) struct Filling {
    store: Arc<TreeStore>,
    rows: Vec<Row>,
    bytes: usize,
}

impl Filling {
    /// Begins in an empty folder.
    ///
    /// # Errors
    /// Why the store cannot be opened.
    pub(crate) fn begin(engine: &TreeEngine, folder: &Path) -> Result<Filling, RowsError> {
        Ok(Filling { store: Arc::new(engine.open(folder)?), rows: Vec::new(), bytes: 0 })
    }

    /// Adds a row, whose key is above all before.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn add(&mut self, position: LogPosition, row: Row) -> Result<(), RowsError> {
        self.bytes += size_of::<Row>() + row.key.len() + row.value.len();
        self.rows.push(row);
        if self.bytes >= RUN_BYTES {
            self.bytes = 0;
            self.store.fill(position, &std::mem::take(&mut self.rows), false)?;
        }
        Ok(())
    }

    /// What was added is all of the rows as of that position: they are on disk afterwards.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn end(&mut self, position: LogPosition) -> Result<(), RowsError> {
        self.bytes = 0;
        Ok(self.store.fill(position, &std::mem::take(&mut self.rows), true)?)
    }

    pub(crate) fn store(&self) -> &Arc<TreeStore> {
        &self.store
    }
}
