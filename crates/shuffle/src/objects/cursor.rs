//! Reading batches of an object store, some at a time: who reads a range reads the batches in the order in which they lie.

use super::layout::{Layout, batch_of};
use super::{ObjectError, Objects, lock};
use crate::limits::{INDEX_BYTES, LAYOUT_BYTES, WINDOW_BYTES};
use bytes::Bytes;
use partage_service::shuffle::BufferId;
use partage_service::shuffle::record::{Batch, BatchKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of an object that were read.
#[derive(Debug)]
struct Window {
    object: u32,
    from: u64,
    bytes: Bytes,
}

/// Where a thread reads.
#[derive(Debug)]
pub(crate) struct ObjectCursor {
    /// Read at least so many bytes, as the next batches are wanted too.
    ahead: u64,
    /// The folder, and what is known of it.
    folder: String,
    layout: Option<Arc<Layout>>,
    window: Option<Window>,
}

impl ObjectCursor {
    /// For one batch.
    pub(crate) fn one() -> ObjectCursor {
        ObjectCursor { ahead: 0, folder: String::new(), layout: None, window: None }
    }

    /// For batches in their order.
    pub(crate) fn ahead() -> ObjectCursor {
        ObjectCursor { ahead: WINDOW_BYTES, ..ObjectCursor::one() }
    }

    /// A batch, as that process has put it.
    pub(crate) fn read(
        &mut self,
        objects: &Objects,
        key: &BatchKey,
        by: &BufferId,
    ) -> Result<Batch, ObjectError> {
        let folder = objects.folder(key.stream.shuffle, key.stream.slot, by)?;
        if self.folder != folder {
            (self.folder, self.layout, self.window) = (folder, None, None);
        }
        let layout = match &self.layout {
            Some(layout) => Arc::clone(layout),
            None => Arc::clone(self.layout.insert(objects.layout(&self.folder)?)),
        };
        let path = |what: &str| format!("{}/{}: {what}", objects.place().url(), self.folder);
        let lost = |what: &str| ObjectError { is_lost: true, why: path(what) };
        let found = layout.find(&key.stream.writer, key.number);
        let (spot, end) = found.ok_or_else(|| lost("the index has not all batches that are needed"))?;
        let bytes = u64::from(spot.bytes);
        let is_there = self.window.as_ref().is_some_and(|window| {
            let end = window.from.saturating_add(window.bytes.len() as u64);
            window.object == spot.object && window.from <= spot.from && spot.from.saturating_add(bytes) <= end
        });
        if !is_there {
            let wanted = bytes.max(self.ahead).min(end.saturating_sub(spot.from));
            let got = objects.get(&Objects::object(&self.folder, spot.object), spot.from, wanted)?;
            self.window = Some(Window { object: spot.object, from: spot.from, bytes: got });
        }
        let read = self.window.as_ref().and_then(|window| {
            let at = usize::try_from(spot.from.checked_sub(window.from)?).ok()?;
            let one = window.bytes.get(at..at.checked_add(spot.bytes as usize)?)?;
            batch_of(one).filter(|batch| batch.key == *key)
        });
        read.ok_or_else(|| lost("an object differs from what was put"))
    }
}

impl Objects {
    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError> {
        let got = self.place().get(path, from, bytes).map_err(|error| self.confirmed(error));
        let got = self.noted("get", got)?;
        self.counts.read_bytes.fetch_add(got.len() as u64, Ordering::Relaxed);
        Ok(got)
    }

    /// Where batches lie in a folder. Those that were read last are kept.
    pub(super) fn layout(&self, folder: &str) -> Result<Arc<Layout>, ObjectError> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        if let Some((layout, at)) = lock(&self.layouts).get_mut(folder) {
            *at = used;
            return Ok(Arc::clone(layout));
        }
        let path = Objects::index(folder);
        let form = self.place().get_all(&path, INDEX_BYTES).map_err(|error| self.confirmed(error));
        let form = self.noted("get", form)?;
        let damaged = || ObjectError {
            is_lost: true,
            why: format!("{}/{path}: the index differs from what was put", self.place().url()),
        };
        let layout = Arc::new(Layout::decode(&form).ok_or_else(damaged)?);
        let mut layouts = lock(&self.layouts);
        layouts.insert(folder.to_owned(), (Arc::clone(&layout), used));
        let bytes = |layouts: &BTreeMap<String, (Arc<Layout>, u64)>| {
            layouts.values().map(|(layout, _)| layout.memory()).sum::<u64>()
        };
        while layouts.len() > 1 && bytes(&layouts) > LAYOUT_BYTES {
            let oldest = layouts.iter().min_by_key(|(_, (_, used))| *used).map(|(folder, _)| folder.clone());
            oldest.into_iter().for_each(|folder| drop(layouts.remove(&folder)));
        }
        Ok(layout)
    }
}
