//! What a parent's replica gives to the replicas of its children.
//!
//! A child that asks for the first time gets a snapshot. From then on the source keeps the changes for it, until it asks for what
//! comes behind them. If they become too many, or it asks for others, it gets a snapshot again.

use super::{Ask, Given, GivenExtent};
use crate::table::replication::{LogPosition, Replica};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, VecDeque};

/// How much a source keeps, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Bytes of changes for one child: as much as is written until it asks for them, also while it copies a snapshot.
    pub bytes: usize,
    /// Changes in one answer.
    pub at_once: usize,
    /// Bytes of changes in one answer; one change always fits.
    pub bytes_at_once: usize,
    /// The largest change that a message has room for. After a larger one the child gets a snapshot.
    pub largest: usize,
    /// How long the source keeps changes for a child of which it hears nothing.
    pub patience_ms: u64,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention {
            bytes: 32 << 20,
            at_once: 1_024,
            bytes_at_once: 256 << 10,
            largest: 3 << 20,
            patience_ms: 60_000,
        }
    }
}

/// The changes kept for one child.
#[derive(Debug, Clone)]
struct Buffer<C> {
    /// The child has all up to here, or gets it as a snapshot.
    after: LogPosition,
    changes: VecDeque<(LogPosition, C, usize)>,
    bytes: usize,
    asked: Millis,
}

/// The changes that one replica keeps for children, `C` each.
#[derive(Debug, Clone)]
pub struct Source<C> {
    retention: Retention,
    askers: BTreeMap<PlacementId, Buffer<C>>,
}

impl<C: Clone> Source<C> {
    /// A source that no child has asked yet.
    pub fn new(retention: Retention) -> Source<C> {
        Source { retention, askers: BTreeMap::new() }
    }

    /// Whether to call [`Source::applied`] at all.
    pub fn has_askers(&self) -> bool {
        !self.askers.is_empty()
    }

    /// Whether changes are kept for that child.
    pub fn keeps_for(&self, asker: PlacementId) -> bool {
        self.askers.contains_key(&asker)
    }

    /// Whether more than half of the limit waits for that child: its copy must not give way, as beyond the limit it would need
    /// another snapshot.
    pub fn is_pressed_by(&self, asker: PlacementId) -> bool {
        self.askers.get(&asker).is_some_and(|buffer| buffer.bytes > self.retention.bytes / 2)
    }

    /// The replica has applied the entry at that position: called for each one, in their order.
    pub fn applied(&mut self, now: Millis, position: LogPosition, change: &C, bytes: usize) {
        let Retention { bytes: most, patience_ms, largest, .. } = self.retention;
        self.askers.retain(|_, buffer| {
            buffer.changes.push_back((position, change.clone(), bytes));
            buffer.bytes += bytes;
            bytes <= largest && buffer.bytes <= most && now.since(buffer.asked) < patience_ms
        });
    }

    /// The child has stored a part of its snapshot: its changes are kept on, however long the rest takes.
    pub fn asker_progressed(&mut self, now: Millis, asker: PlacementId) {
        if let Some(buffer) = self.askers.get_mut(&asker) {
            buffer.asked = now;
        }
    }

    /// Forgets all changes: a snapshot has replaced the applied state.
    pub fn reset(&mut self) {
        self.askers.clear();
    }

    /// The answer to `asker` of a replica that has applied all up to `applied`, with changes if it is not a snapshot.
    pub fn ask(
        &mut self,
        now: Millis,
        asker: PlacementId,
        ask: Ask,
        (replica, applied): (&Replica, LogPosition),
    ) -> (Given, Vec<C>) {
        let (what, changes) = self.give(now, asker, ask.after, applied);
        let kept = self.askers.get(&asker).map_or(0, |buffer| buffer.changes.len());
        let has_more = changes.len() < kept;
        let closed = replica.closed().filter(|closed| closed.index <= what.to().index);
        let end = replica.status().end.index;
        (Given { parent: ask.parent, by: ask.of, what, end, closed, has_more }, changes)
    }

    fn give(
        &mut self,
        now: Millis,
        asker: PlacementId,
        after: Option<LogPosition>,
        applied: LogPosition,
    ) -> (GivenExtent, Vec<C>) {
        if let Some(after) = after
            && let Some(buffer) = self.askers.get_mut(&asker)
            && buffer.has_all_behind(after)
        {
            buffer.forget_until(after);
            buffer.asked = now;
            let given = buffer.changes.iter().take(buffer.fits(self.retention));
            let to = given.clone().last().map_or(after, |(position, ..)| *position);
            return (
                GivenExtent::Changes { after, to },
                given.map(|(_, change, _)| change.clone()).collect(),
            );
        }
        let buffer = Buffer { after: applied, changes: VecDeque::new(), bytes: 0, asked: now };
        self.askers.insert(asker, buffer);
        (GivenExtent::Snapshot(applied), Vec::new())
    }
}

impl<C> Buffer<C> {
    fn has_all_behind(&self, after: LogPosition) -> bool {
        after == self.after || self.changes.iter().any(|(position, ..)| *position == after)
    }

    /// How many changes go into one answer.
    fn fits(&self, retention: Retention) -> usize {
        let mut bytes = 0;
        let within = self.changes.iter().take(retention.at_once).take_while(|(_, _, more)| {
            let is_first = bytes == 0;
            bytes += more;
            is_first || bytes <= retention.bytes_at_once
        });
        within.count()
    }

    fn forget_until(&mut self, after: LogPosition) {
        while let Some((position, _, bytes)) = self.changes.pop_front_if(|(at, ..)| at.index <= after.index) {
            self.after = position;
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::replication::{Settings, Stored};
    use partage_core::base::id::{Epoch, Incarnation, ShardId};

    const CHILD: PlacementId = PlacementId(7);

    fn at(index: u64) -> LogPosition {
        LogPosition { epoch: Epoch(1), index }
    }

    struct Parent {
        replica: Replica,
        source: Source<u64>,
        applied: u64,
    }

    impl Parent {
        fn new(retention: Retention) -> Parent {
            let settings = Settings::default();
            let name = (PlacementId(1), Incarnation(1));
            let replica = Replica::recover(name, settings, Stored::default(), Millis(0), true);
            Parent { replica, source: Source::new(retention), applied: 0 }
        }

        fn apply(&mut self, to: u64) {
            for index in self.applied + 1..=to {
                self.source.applied(Millis(0), at(index), &index, 10);
            }
            self.applied = to;
        }

        fn ask(&mut self, after: Option<u64>) -> (GivenExtent, Vec<u64>) {
            let ask = Ask { parent: ShardId(1), of: PlacementId(1), after: after.map(at) };
            let (given, changes) = self.source.ask(Millis(0), CHILD, ask, (&self.replica, at(self.applied)));
            (given.what, changes)
        }
    }

    fn changes(after: u64, to: u64) -> GivenExtent {
        GivenExtent::Changes { after: at(after), to: at(to) }
    }

    #[test]
    fn a_snapshot_comes_first_and_then_all_changes_in_their_order() {
        let mut parent = Parent::new(Retention { at_once: 2, ..Retention::default() });
        assert!(!parent.source.has_askers());
        parent.apply(3);
        assert_eq!(parent.ask(None), (GivenExtent::Snapshot(at(3)), vec![]));
        parent.apply(6);
        assert_eq!(parent.ask(Some(3)), (changes(3, 5), vec![4, 5]));
        assert_eq!(parent.ask(Some(3)), (changes(3, 5), vec![4, 5]), "the first was lost");
        assert_eq!(parent.ask(Some(5)), (changes(5, 6), vec![6]));
        assert_eq!(parent.ask(Some(6)), (changes(6, 6), vec![]));
        assert_eq!(parent.ask(Some(5)), (GivenExtent::Snapshot(at(6)), vec![]), "they are not kept any more");
    }

    #[test]
    fn r1_changes_are_kept_for_one_that_is_heard_of_and_for_no_other() {
        let mut parent = Parent::new(Retention { patience_ms: 10, ..Retention::default() });
        parent.ask(None);
        for now in [5, 12, 19] {
            parent.source.asker_progressed(Millis(now), CHILD);
            parent.applied += 1;
            let index = parent.applied;
            parent.source.applied(Millis(now + 2), at(index), &index, 10);
        }
        assert!(parent.source.keeps_for(CHILD));
        parent.source.applied(Millis(40), at(4), &4, 10);
        assert!(!parent.source.has_askers(), "nothing was heard of it since 19");
    }

    #[test]
    fn one_for_which_much_is_kept_is_pressed_until_it_has_asked_for_it() {
        let mut parent = Parent::new(Retention { bytes: 60, ..Retention::default() });
        parent.ask(None);
        parent.apply(3);
        assert!(!parent.source.is_pressed_by(CHILD));
        parent.apply(4);
        assert!(parent.source.is_pressed_by(CHILD), "40 bytes of 60");
        parent.ask(Some(2));
        assert!(!parent.source.is_pressed_by(CHILD));
        assert!(!parent.source.is_pressed_by(PlacementId(99)));
    }

    #[test]
    fn r1_what_is_given_fits_into_a_message() {
        let mut parent = Parent::new(Retention { bytes_at_once: 25, ..Retention::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)), (changes(0, 2), vec![1, 2]));
        let mut parent = Parent::new(Retention { bytes_at_once: 5, ..Retention::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)), (changes(0, 1), vec![1]), "one always");
        let mut parent = Parent::new(Retention { largest: 9, ..Retention::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(
            parent.ask(Some(0)),
            (GivenExtent::Snapshot(at(5)), vec![]),
            "no message has room for them"
        );
    }

    #[test]
    fn r1_one_that_does_not_keep_up_is_given_a_snapshot_again() {
        let mut parent = Parent::new(Retention { bytes: 50, ..Retention::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)).0, changes(0, 5));
        parent.apply(11);
        assert!(!parent.source.has_askers());
        assert_eq!(parent.ask(Some(5)), (GivenExtent::Snapshot(at(11)), vec![]));
    }
}
