//! The oldest changes of a shard's feed, in memory.
//!
//! Each entry asks which changes have been kept for long enough. The first ones are kept here as the store has them, without
//! their values, and the store is read on from the last of them when more are wanted: never from the beginning, where compaction
//! may not have been yet.

use crate::limits::{SCAN_BYTES, TIMES_KEPT};
use partage_service::table::feed::Place;
use std::collections::VecDeque;

/// A change: where it is, when it was made, and how many bytes its value has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OldChange {
    pub(super) place: Place,
    pub(super) at_ms: u64,
    pub(super) bytes: usize,
}

/// The first changes of a store.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    first: VecDeque<OldChange>,
    /// There are no others.
    is_whole: bool,
    /// All that are removed come before this, or are it.
    removed: Option<Place>,
}

impl Oldest {
    /// Nothing is known but that all up to there were removed.
    pub(super) fn behind(removed: Option<Place>) -> Oldest {
        Oldest { removed, ..Oldest::default() }
    }

    /// When the first one was made; none: there is none, or it is not known without the store.
    pub(super) fn first_ms(&self) -> Option<u64> {
        self.first.front().map(|change| change.at_ms)
    }

    /// Whether there may be changes in the store that are not here.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The last one that is here, or was: the store is read on behind it.
    pub(super) fn last(&self) -> Option<&Place> {
        self.first.back().map(|change| &change.place).or(self.removed.as_ref())
    }

    /// The first ones, as [`partage_service::table::rows::Records::changes`] says; none if the store must be read on.
    pub(super) fn until(&self, until_ms: u64, most: usize, bytes: usize) -> Option<Vec<Place>> {
        let (mut found, mut left) = (Vec::new(), bytes);
        for change in &self.first {
            let is_full = found.len() >= most || (change.bytes > left && !found.is_empty());
            if change.at_ms > until_ms || is_full {
                return Some(found);
            }
            left = left.saturating_sub(change.bytes);
            found.push(change.place.clone());
        }
        (self.is_whole || found.len() >= most).then_some(found)
    }

    /// Those that the store has behind the last one that is here.
    pub(super) fn read_on<E>(&mut self, stored: impl Iterator<Item = Result<OldChange, E>>) -> Result<(), E> {
        let (mut count, mut bytes) = (0, 0);
        for change in stored {
            let change = change?;
            if count == TIMES_KEPT || (count > 0 && bytes + change.bytes > SCAN_BYTES) {
                return Ok(());
            }
            count += 1;
            bytes += change.bytes;
            self.first.push_back(change);
        }
        self.is_whole = true;
        Ok(())
    }

    /// One was made; it comes behind all others.
    pub(super) fn add(&mut self, change: OldChange) {
        if !self.is_whole {
            return;
        }
        self.first.push_back(change);
        if self.first.len() > 2 * TIMES_KEPT {
            self.first.truncate(TIMES_KEPT);
            self.is_whole = false;
        }
    }

    /// The first one was removed.
    pub(super) fn remove(&mut self, place: Place) {
        if self.first.front().is_some_and(|first| first.place == place) {
            self.first.pop_front();
        }
        self.removed = Some(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use partage_core::keyspace::key::Key;
    use partage_service::table::replication::LogPosition;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn change(number: u64, bytes: usize) -> OldChange {
        let place = (LogPosition { epoch: Epoch(1), index: number }, Key::empty());
        OldChange { place, at_ms: number / 4, bytes }
    }

    fn wanted(all: &VecDeque<OldChange>, until_ms: u64, most: usize, bytes: usize) -> Vec<Place> {
        let (mut sum, mut found) = (0, Vec::new());
        for change in all.iter().take_while(|change| change.at_ms <= until_ms).take(most) {
            sum += change.bytes;
            if sum > bytes && !found.is_empty() {
                break;
            }
            found.push(change.place.clone());
        }
        found
    }

    proptest! {
        #[test]
        fn what_is_kept_answers_as_the_whole_store_whatever_it_was_asked_before(
            steps in proptest::collection::vec((0usize..1_500, 0usize..(2 << 20), 0u64..40, 1usize..300), 1..12),
        ) {
            let (mut all, mut oldest, mut number) = (VecDeque::new(), Oldest::default(), 0);
            for (made, bytes, until, most) in steps {
                for _ in 0..made {
                    number += 1;
                    let new = change(number, bytes);
                    all.push_back(new.clone());
                    oldest.add(new);
                }
                let until_ms = (number / 4).saturating_sub(until);
                let expected = wanted(&all, until_ms, most, 4 << 20);
                let found = loop {
                    if let Some(found) = oldest.until(until_ms, most, 4 << 20) {
                        break found;
                    }
                    let last = oldest.last().cloned();
                    let rest = all.iter().filter(|one: &&OldChange| last.as_ref().is_none_or(|last| one.place > *last));
                    let Ok(()) = oldest.read_on(rest.map(|one| Ok::<_, Infallible>(one.clone())));
                };
                prop_assert_eq!(&found, &expected);
                for place in found {
                    all.pop_front();
                    oldest.remove(place);
                }
                prop_assert!(oldest.first.len() <= 4 * TIMES_KEPT);
            }
        }
    }
}
