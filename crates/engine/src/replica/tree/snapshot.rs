//! A snapshot: the layers that were unflushed, and the runs of the tree.

use std::sync::Arc;

use partage_service::table::replication::LogPosition;

use super::super::layers::Layer;
use super::super::limits::KEY_BYTES;
use super::super::merge::{Merge, Source};
use super::super::stored_form::{ROWS, stored_key, with_stored_key};
use super::super::{Direction, Error, Rows, SharedBytes, Snapshot};
use super::library::Reader;

/// A snapshot of a [`TreeStore`](super::TreeStore). While it lives, the runs that it reads stay on the disk.
pub struct TreeSnapshot {
    pub(super) reader: Reader,
    /// The layers, from the newest to the oldest.
    pub(super) layers: Vec<Arc<Layer>>,
    pub(super) position: LogPosition,
}

impl Snapshot for TreeSnapshot {
    fn position(&self) -> LogPosition {
        self.position
    }

    fn get(&self, key: &[u8]) -> Result<Option<SharedBytes>, Error> {
        if key.len() > KEY_BYTES {
            return Ok(None);
        }
        with_stored_key(key, |key| match self.layers.iter().find_map(|layer| layer.get(key)) {
            Some(value) => Ok(value.clone()),
            None => self.reader.get(key),
        })
        .map(|value| value.map(SharedBytes::value))
    }

    fn range<'a>(&'a self, from: Option<&[u8]>, to: Option<&[u8]>, direction: Direction) -> Rows<'a> {
        if let Some(long) = [from, to].into_iter().flatten().find(|key| key.len() > KEY_BYTES) {
            return Box::new(std::iter::once(Err(Error::KeyTooLong(long.len()))));
        }
        let from = stored_key(from.unwrap_or_default());
        let to = to.map_or_else(|| ROWS.1.into(), stored_key);
        if from >= to {
            return Box::new(std::iter::empty());
        }
        let layer =
            |layer: &'a Arc<Layer>| -> Source<'a> { Box::new(layer.range(&from, &to, direction).map(Ok)) };
        let mut sources: Vec<Source<'a>> = self.layers.iter().map(layer).collect();
        sources.push(self.reader.rows(&from, &to, direction));
        Box::new(Merge::new(sources, direction))
    }
}
