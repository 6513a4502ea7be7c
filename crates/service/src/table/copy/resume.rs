//! Whether a restarted follower resumes a snapshot of which it had stored a part.
//!
//! It had stored all rows of the snapshot up to a key, as of the position of the snapshot: the epoch and index of an entry, which
//! name one log up to there, and with that the rows, as every replica that has applied the same log has the same rows.
//!
//! | the leader offers | the follower takes |
//! |---|---|
//! | a snapshot at the same position, whichever replica leads | all behind the key |
//! | one at a later position | all of it: rows below the key may have been deleted or changed in between, and what the log says of that cannot be applied to a state of which one part is older than the other, as an entry may depend on what it finds |
//! | one at an earlier position | all of it, if it is of use at all |
//! | the same again and again, though the follower has asked for the rest | all of it: the leader cannot resume |
//!
//! A leader keeps a snapshot for a while after its follower falls silent, in case that one restarts.
//!
//! A sending that goes on so has other chunks than one from the first key on: it begins behind the key that the follower had. So
//! its chunks have numbers of their own ([`number_behind`]), and the follower tells by these what a chunk is ([`chunk_kind`]):
//! chunks may be late, and a leader may lose what it sends, and send the same snapshot again from the first key on.

use crate::table::replication::LogPosition;
use partage_core::base::planted::{self, Planted};

/// How often a follower asks for the rest of a snapshot before it takes all of it: a leader that has not resumed by then is of a
/// version that cannot.
pub const OFFERS: u32 = 8;

/// From where a follower takes an offered snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotStart {
    /// From behind the last key that it has stored.
    Resumed,
    /// From the first key: it removes what it has stored of another one.
    Anew,
}

/// The number of the first chunk of the rest, for a follower that asked for it when chunk `number` came. Chunks that the leader
/// sent before it heard that never have it.
pub fn number_behind(number: u64) -> u64 {
    ((number >> 32) + 1) << 32
}

/// What a chunk is to the follower that receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// The chunk that it wants.
    Next,
    /// A chunk that it has stored.
    Stored,
    /// A chunk that the leader sent before it heard that the follower wants the rest, of which nothing is stored yet.
    BeforeResume,
    /// A chunk that does not fit the stored ones: the leader has begun anew.
    Other,
}

/// What chunk `number` is to a follower that wants `next`, and asked for the rest, if it did, when chunk `resumed` came.
pub fn chunk_kind(resumed: Option<u64>, next: u64, number: u64) -> ChunkKind {
    let first = resumed.map_or(0, number_behind);
    if number == next {
        ChunkKind::Next
    } else if (first..next).contains(&number) {
        ChunkKind::Stored
    } else if resumed.is_some() && next == first {
        ChunkKind::BeforeResume
    } else {
        ChunkKind::Other
    }
}

/// How a snapshot at the position `offered` is taken, by a follower that has stored a part of one at `stored`.
pub fn begins(stored: Option<LogPosition>, offered: LogPosition) -> SnapshotStart {
    let is_it = stored == Some(offered) || (stored.is_some() && planted::is(Planted::AnyPartial));
    if is_it { SnapshotStart::Resumed } else { SnapshotStart::Anew }
}

/// Whether the follower asks for the rest once more, after it has asked so often.
pub fn offers_again(offers: u32) -> bool {
    offers < OFFERS
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Epoch;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// An entry: a key that is written or deleted, or a counter that grows by what it finds.
    type Entry = (u8, u8);

    fn at(index: usize) -> LogPosition {
        LogPosition { epoch: Epoch(1), index: index as u64 }
    }

    /// The rows of every replica that has applied so many entries of the log.
    fn rows(log: &[Entry], index: usize) -> BTreeMap<u8, u64> {
        let mut rows = BTreeMap::new();
        for (number, (key, kind)) in log[..index].iter().enumerate() {
            match kind % 3 {
                0 => drop(rows.insert(*key, number as u64)),
                1 => drop(rows.remove(key)),
                _ => *rows.entry(*key).or_default() += 1,
            }
        }
        rows
    }

    proptest! {
        /// Whatever is taken in two pieces is what the offered snapshot has.
        #[test]
        fn d1_what_is_taken_in_two_pieces_is_one_snapshot(
            log in proptest::collection::vec((0u8..16, any::<u8>()), 1..60),
            (first, second, through) in (any::<usize>(), any::<usize>(), 0u8..16),
            same in any::<bool>(),
        ) {
            let first = first % (log.len() + 1);
            let second = if same { first } else { second % (log.len() + 1) };
            let stored: BTreeMap<u8, u64> = rows(&log, first).range(..=through).map(|(k, v)| (*k, *v)).collect();
            let offered = rows(&log, second);
            let taken: BTreeMap<u8, u64> = match begins(Some(at(first)), at(second)) {
                SnapshotStart::Resumed => {
                    let rest = offered.iter().filter(|(key, _)| **key > through).map(|(k, v)| (*k, *v));
                    stored.into_iter().chain(rest).collect()
                }
                SnapshotStart::Anew => offered.clone(),
            };
            prop_assert_eq!(taken, offered);
            prop_assert_eq!(begins(Some(at(first)), at(second)) == SnapshotStart::Resumed, first == second);
        }
    }

    #[test]
    fn the_same_index_of_another_epoch_is_another_log() {
        let other = LogPosition { epoch: Epoch(2), index: 7 };
        assert_eq!(begins(Some(at(7)), other), SnapshotStart::Anew);
        assert_eq!(begins(None, other), SnapshotStart::Anew);
        assert_eq!(begins(Some(other), other), SnapshotStart::Resumed);
    }

    proptest! {
        /// Chunks of a sending from the first key on are never taken for the rest that was asked for.
        #[test]
        fn d1_no_chunk_of_another_sending_is_stored_or_acknowledged_behind_a_resume(
            resumed in 0u64..1_000, stored in 0u64..1_000, number in 0u64..2_000,
        ) {
            let next = number_behind(resumed) + stored;
            let what = chunk_kind(Some(resumed), next, number);
            prop_assert_eq!(what, if stored == 0 { ChunkKind::BeforeResume } else { ChunkKind::Other });
            prop_assert_eq!(chunk_kind(Some(resumed), next, next), ChunkKind::Next);
            prop_assert_eq!(chunk_kind(Some(resumed), next, next + 1 + number) == ChunkKind::BeforeResume, stored == 0);
            if stored > 0 {
                prop_assert_eq!(chunk_kind(Some(resumed), next, next - 1 - number % stored), ChunkKind::Stored);
            }
            prop_assert!(number_behind(next) > next, "it may start again");
        }
    }

    #[test]
    fn chunks_that_are_stored_come_again_and_none_is_left_out() {
        assert_eq!(chunk_kind(None, 3, 3), ChunkKind::Next);
        assert_eq!(chunk_kind(None, 3, 2), ChunkKind::Stored);
        assert_eq!(chunk_kind(None, 3, 0), ChunkKind::Stored);
        assert_eq!(chunk_kind(None, 3, 4), ChunkKind::Other);
        assert_eq!(chunk_kind(None, 0, 0), ChunkKind::Next);
        assert_eq!(chunk_kind(None, 0, 1), ChunkKind::Other);
    }

    #[test]
    fn a_leader_that_does_not_go_on_is_told_some_times() {
        assert!(offers_again(0) && offers_again(OFFERS - 1) && !offers_again(OFFERS));
    }
}
