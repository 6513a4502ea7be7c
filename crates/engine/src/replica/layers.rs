//! The unflushed rows: layers of sorted maps, of which only the newest one changes.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use lsm_tree::Slice;

use super::limits::{LAYERS, ROW_OVERHEAD_BYTES};
use super::stored_form::stored_key;
use super::{Change, Direction};

/// A stored key, and its value, or that it is deleted.
pub(super) type Entry = (Slice, Option<Slice>);

/// One map of unflushed rows, and the memory that it takes.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    rows: BTreeMap<Slice, Option<Slice>>,
    bytes: usize,
}

impl Layer {
    fn put(&mut self, key: Slice, value: Option<Slice>) {
        let key_bytes = key.len() + ROW_OVERHEAD_BYTES;
        let value_bytes = |value: &Option<Slice>| value.as_ref().map_or(0, |value| value.len());
        self.bytes += value_bytes(&value);
        match self.rows.insert(key, value) {
            Some(before) => self.bytes -= value_bytes(&before),
            None => self.bytes += key_bytes,
        }
    }

    /// The rows in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Slice, &Option<Slice>)> {
        self.rows.iter()
    }

    /// What the layer says of a stored key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Option<Slice>> {
        self.rows.get(key)
    }

    /// The rows from a stored key on and before another one, which must not be less.
    pub(super) fn range<'a>(
        &'a self,
        from: &[u8],
        to: &[u8],
        direction: Direction,
    ) -> Box<dyn Iterator<Item = Entry> + Send + 'a> {
        let range = self.rows.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        let owned = |(key, value): (&Slice, &Option<Slice>)| (key.clone(), value.clone());
        match direction {
            Direction::Forward => Box::new(range.map(owned)),
            Direction::Backward => Box::new(range.rev().map(owned)),
        }
    }
}

/// All maps of a store.
#[derive(Debug, Default)]
pub(super) struct Layers {
    /// The maps that do not change any more, from the oldest to the newest.
    frozen: Vec<Arc<Layer>>,
    /// How many of the oldest are being written to the disk.
    flushing: usize,
    active: Layer,
}

impl Layers {
    /// Adds the changes of a group to the newest map.
    pub(super) fn apply(&mut self, changes: &[Change<'_>]) {
        for change in changes {
            self.active.put(stored_key(change.key), change.value.map(Slice::from));
        }
    }

    /// What the newest layer that knows of a stored key says: a value, or that it is deleted.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Option<Slice>> {
        self.active.get(key).or_else(|| self.frozen.iter().rev().find_map(|layer| layer.get(key)))
    }

    pub(super) fn bytes(&self) -> usize {
        self.active.bytes + self.frozen.iter().map(|layer| layer.bytes).sum::<usize>()
    }

    /// All rows as layers that do not change any more, from the newest to the oldest.
    pub(super) fn freeze(&mut self) -> Vec<Arc<Layer>> {
        if !self.active.rows.is_empty() {
            self.frozen.push(Arc::new(std::mem::take(&mut self.active)));
            if self.frozen.len() > LAYERS {
                let newer = self.frozen.split_off(self.flushing);
                self.frozen.extend(merged(&newer));
            }
        }
        self.frozen.iter().rev().cloned().collect()
    }

    /// The rows to write to the disk now, as one layer. [`Layers::flushed`] or [`Layers::not_flushed`] follows.
    pub(super) fn begin_flush(&mut self) -> Vec<Arc<Layer>> {
        self.freeze();
        self.flushing = self.frozen.len();
        self.frozen.clone()
    }

    /// The flush that was begun is on the disk.
    pub(super) fn flushed(&mut self) {
        self.frozen.drain(..self.flushing);
        self.flushing = 0;
    }

    /// The flush that was begun has failed.
    pub(super) fn not_flushed(&mut self) {
        self.flushing = 0;
    }
}

/// Layers from the oldest to the newest as one; none if there are none.
pub(super) fn merged(layers: &[Arc<Layer>]) -> Option<Arc<Layer>> {
    let (first, newer) = layers.split_first()?;
    if newer.is_empty() {
        return Some(first.clone());
    }
    let mut whole = Layer::clone(first);
    for layer in newer {
        for (key, value) in layer.iter() {
            whole.put(key.clone(), value.clone());
        }
    }
    Some(Arc::new(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(layers: &mut Layers, key: &str, value: Option<&str>) {
        layers.apply(&[Change { key: key.as_bytes(), value: value.map(str::as_bytes) }]);
    }

    fn says(layers: &Layers, key: &str) -> Option<Option<Vec<u8>>> {
        Some(layers.get(&stored_key(key.as_bytes()))?.as_deref().map(<[u8]>::to_vec))
    }

    #[test]
    fn memory_is_counted_once_for_each_row_of_a_layer() {
        let mut layers = Layers::default();
        set(&mut layers, "ab", Some("123"));
        let one = ROW_OVERHEAD_BYTES + 3 + 3;
        assert_eq!(layers.bytes(), one);
        set(&mut layers, "ab", Some("1234567"));
        assert_eq!(layers.bytes(), one + 4);
        set(&mut layers, "ab", None);
        assert_eq!(layers.bytes(), one - 3);
        layers.begin_flush();
        set(&mut layers, "ab", Some("123"));
        assert_eq!(layers.bytes(), 2 * one - 3);
        layers.flushed();
        assert_eq!(layers.bytes(), one);
    }

    #[test]
    fn snapshots_do_not_add_layers_without_end() {
        let mut layers = Layers::default();
        set(&mut layers, "flushing", Some("1"));
        let flushing = layers.begin_flush();
        for number in 0..5 * LAYERS {
            set(&mut layers, &format!("{number}"), Some("1"));
            set(&mut layers, "all", Some(&format!("{number}")));
            set(&mut layers, "flushing", None);
            assert!(layers.freeze().len() <= LAYERS);
            assert_eq!(says(&layers, "all"), Some(Some(format!("{number}").into_bytes())));
            assert_eq!(says(&layers, "flushing"), Some(None));
            assert_eq!(says(&layers, "0"), Some(Some(b"1".to_vec())));
        }
        assert_eq!(flushing.len(), 1);
        layers.flushed();
        assert_eq!(says(&layers, "flushing"), Some(None), "the deletion is newer than what was flushed");
        layers.begin_flush();
        layers.not_flushed();
        assert_eq!(says(&layers, "flushing"), Some(None));
        layers.begin_flush();
        layers.flushed();
        assert_eq!(layers.bytes(), 0);
        assert!(layers.freeze().is_empty());
    }
}
