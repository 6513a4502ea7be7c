//! The first entries of an index by time, in memory.
//!
//! Each write asks which rows have ended and which outcomes are old. A store answers that by a snapshot, and each snapshot costs
//! a layer of its map. So the first entries of an index are kept here as the store has them, and the store is read again when
//! more are wanted than are here.

use crate::limits::TIMES_KEPT;
use std::collections::BTreeSet;

/// All entries of an index up to one of them.
#[derive(Debug)]
pub(super) struct Times<T> {
    first: BTreeSet<(u64, T)>,
    /// All entries up to this one are in `first`; none: all entries are.
    through: Option<(u64, T)>,
}

impl<T: Ord + Clone> Times<T> {
    /// Of all entries in their order, of which the first ones are kept.
    pub(super) fn read<E>(entries: impl Iterator<Item = Result<(u64, T), E>>) -> Result<Times<T>, E> {
        let mut times = Times { first: BTreeSet::new(), through: None };
        for entry in entries {
            let entry = entry?;
            if times.first.len() == TIMES_KEPT {
                times.through = times.first.last().cloned();
                break;
            }
            times.first.insert(entry);
        }
        Ok(times)
    }

    /// Whether the index has no entry at all.
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.through.is_none()
    }

    /// The time of the first entry; none if there is no entry, or it is not known without the store.
    pub(super) fn first(&self) -> Option<u64> {
        let through = self.through.as_ref().map(|(at_ms, _)| *at_ms);
        self.first.first().map(|(at_ms, _)| *at_ms).or(through)
    }

    pub(super) fn insert(&mut self, entry: (u64, T)) {
        if self.through.as_ref().is_some_and(|through| entry > *through) {
            return;
        }
        self.first.insert(entry);
        if self.first.len() > 2 * TIMES_KEPT {
            while self.first.len() > TIMES_KEPT {
                self.first.pop_last();
            }
            self.through = self.first.last().cloned();
        }
    }

    pub(super) fn remove(&mut self, entry: &(u64, T)) {
        self.first.remove(entry);
    }

    /// The first `most` entries up to that time; none if the store must be read for them.
    pub(super) fn until(&self, until_ms: u64, most: usize) -> Option<Vec<(u64, T)>> {
        let found: Vec<_> =
            self.first.iter().take_while(|(at_ms, _)| *at_ms <= until_ms).take(most).cloned().collect();
        let is_whole = self.through.as_ref().is_none_or(|(at_ms, _)| *at_ms > until_ms);
        (found.len() == most || is_whole).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    fn read(all: &BTreeSet<(u64, u16)>) -> Times<u16> {
        let Ok(times) = Times::read(all.iter().map(|entry| Ok::<_, Infallible>(*entry)));
        times
    }

    proptest! {
        #[test]
        fn what_is_kept_answers_as_the_whole_index(
            before in proptest::collection::btree_set((0u64..60, any::<u16>()), 0..3_000),
            steps in proptest::collection::vec((0u64..60, any::<u16>(), any::<bool>()), 0..3_000),
        ) {
            let mut all = before;
            let mut times = read(&all);
            for (at, what, removes) in steps {
                let entry = if removes { all.first().copied().unwrap_or((at, what)) } else { (at, what) };
                if removes {
                    all.remove(&entry);
                    times.remove(&entry);
                } else {
                    all.insert(entry);
                    times.insert(entry);
                }
                let wanted: Vec<_> = all.iter().take_while(|(time, _)| *time <= at).take(16).copied().collect();
                match times.until(at, 16) {
                    Some(found) => prop_assert_eq!(found, wanted),
                    None => times = read(&all),
                }
                prop_assert!(times.first.len() <= 2 * TIMES_KEPT);
                let wanted: Vec<_> = all.iter().take_while(|(time, _)| *time <= at).take(16).copied().collect();
                prop_assert_eq!(times.until(at, 16), Some(wanted), "after reading");
            }
        }
    }
}
