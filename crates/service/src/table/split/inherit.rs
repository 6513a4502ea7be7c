//! Which of a parent's records go to a child.
//!
//! | record | goes to |
//! |---|---|
//! | a row, when it ends, and its changes | the child that holds its key |
//! | up to where changes are removed | each child; of several parents for the keys of each ([`Removed::joined`](super::super::feed::Removed::joined)) |
//! | the outcome of a request, and its time | each child: it does not name the key of the request |
//! | the state of the shard | each child; of several parents the latest clock, and all outcomes |

use crate::table::rows::{Record, ShardState};
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::Key;

/// Whether a child takes that record, or a change of it; `holds` says which keys the child holds.
pub fn takes(record: &Record, holds: impl Fn(&Key) -> bool) -> bool {
    match record {
        Record::Row(key, _) | Record::Ends(_, key, _) | Record::Change(_, key, _) => holds(key),
        Record::Outcome(..) | Record::OutcomeTime(..) => takes_outcomes(),
        Record::ShardState(_) | Record::Removed(_) => true,
    }
}

/// Whether each child takes the outcomes of all requests: a request that is sent again is done once, whichever it comes to.
pub fn takes_outcomes() -> bool {
    !planted::is(Planted::LostOutcomes)
}

/// The state of a child that has all that its parents had.
pub fn shard_state(parents: impl IntoIterator<Item = ShardState>) -> ShardState {
    parents.into_iter().fold(ShardState::default(), |child, parent| ShardState {
        clock_ms: child.clock_ms.max(parent.clock_ms),
        outcomes: child.outcomes + parent.outcomes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::replication::LogPosition;
    use crate::table::rows::{KeptOutcome, Outcome, RequestId, Row};
    use partage_core::base::id::Epoch;

    fn key(name: &str) -> Key {
        Key::new(name.as_bytes()).unwrap()
    }

    #[test]
    fn d1_rows_go_to_the_child_that_holds_them_and_outcomes_to_each() {
        let version = LogPosition { epoch: Epoch(3), index: 9 };
        let row = Row { value: b"v".as_slice().into(), version, expires_ms: Some(7) };
        let id = RequestId([4; 16]);
        let outcome = Outcome::Done { version, results: vec![] };
        let answered = KeptOutcome { at_ms: 5, fingerprint: 6, outcome };
        let records = [
            Record::Row(key("a"), Some(row)),
            Record::Ends(7, key("a"), true),
            Record::Row(key("z"), None),
            Record::Outcome(id, Some(answered)),
            Record::OutcomeTime(5, id, true),
            Record::ShardState(ShardState { clock_ms: 5, outcomes: 1 }),
        ];
        let taken = |low: bool| records.iter().map(move |r| takes(r, |key| (*key < self::key("m")) == low));
        assert_eq!(taken(true).collect::<Vec<_>>(), [true, true, false, true, true, true]);
        assert_eq!(taken(false).collect::<Vec<_>>(), [false, false, true, true, true, true]);
    }

    #[test]
    fn a_child_of_two_has_the_later_clock_and_the_outcomes_of_both() {
        let of = |clock_ms, outcomes| ShardState { clock_ms, outcomes };
        assert_eq!(shard_state([of(5, 1), of(9, 2)]), of(9, 3));
        assert_eq!(shard_state([of(5, 1)]), of(5, 1));
    }
}
