//! What of a parent's records goes to a child.
//!
//! | record | goes to |
//! |---|---|
//! | a row, when it ends, and its changes | the child that holds its key |
//! | up to where changes are removed | each child; of several parents for the keys of each ([`Removed::joined`](super::super::feed::Removed::joined)) |
//! | the outcome of a request, and of when it is | each child: it does not name the key that was asked about |
//! | how the shard stands | each child; of several parents the latest clock, and all outcomes |

use crate::table::rows::{Record, Standing};
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::key::Key;

/// Whether the child that holds the keys for which `holds` says so takes that record, as it is or as it has changed.
pub fn takes(record: &Record, holds: impl Fn(&Key) -> bool) -> bool {
    match record {
        Record::Row(key, _) | Record::Ends(_, key, _) | Record::Change(_, key, _) => holds(key),
        Record::Answer(..) | Record::AnswerOf(..) => takes_outcomes(),
        Record::Standing(_) | Record::Removed(_) => true,
    }
}

/// Whether each child takes the outcomes of all requests: a request that is sent again is done once, whichever it comes to.
pub fn takes_outcomes() -> bool {
    !planted::is(Planted::LostOutcomes)
}

/// How a child stands that has all that its parents had.
pub fn standing(parents: impl IntoIterator<Item = Standing>) -> Standing {
    parents.into_iter().fold(Standing::default(), |child, parent| Standing {
        clock_ms: child.clock_ms.max(parent.clock_ms),
        answers: child.answers + parent.answers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::replication::LogPosition;
    use crate::table::rows::{Answered, Outcome, RequestId, Row};
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
        let answered = Answered { at_ms: 5, fingerprint: 6, outcome };
        let records = [
            Record::Row(key("a"), Some(row)),
            Record::Ends(7, key("a"), true),
            Record::Row(key("z"), None),
            Record::Answer(id, Some(answered)),
            Record::AnswerOf(5, id, true),
            Record::Standing(Standing { clock_ms: 5, answers: 1 }),
        ];
        let taken = |low: bool| records.iter().map(move |r| takes(r, |key| (*key < self::key("m")) == low));
        assert_eq!(taken(true).collect::<Vec<_>>(), [true, true, false, true, true, true]);
        assert_eq!(taken(false).collect::<Vec<_>>(), [false, false, true, true, true, true]);
    }

    #[test]
    fn a_child_of_two_has_the_later_clock_and_the_outcomes_of_both() {
        let of = |clock_ms, answers| Standing { clock_ms, answers };
        assert_eq!(standing([of(5, 1), of(9, 2)]), of(9, 3));
        assert_eq!(standing([of(5, 1)]), of(5, 1));
    }
}
