//! What a parent's replica gives to the replicas of its children.
//!
//! One that asks for the first time is given a snapshot; from then on the changes that were applied since are kept for it, until
//! it has asked for what comes behind them. If they become too many, or it asks for others, it is given a snapshot again.

use super::{Ask, Given, What};
use crate::table::replication::{LogPosition, Replica};
use partage_core::base::id::PlacementId;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, VecDeque};

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of changes for one that asks: as much as is written until it asks for them, also while it copies a snapshot.
    pub bytes: usize,
    /// Changes that are given at once.
    pub at_once: usize,
    /// Bytes of these; one change may always be given.
    pub bytes_at_once: usize,
    /// The largest change that is given: a message has room for it. One that has missed a larger one is given a snapshot.
    pub largest: usize,
    /// How long the replica waits for a child of which it hears nothing.
    pub ms: u64,
}

impl Default for Kept {
    fn default() -> Kept {
        Kept { bytes: 32 << 20, at_once: 1_024, bytes_at_once: 256 << 10, largest: 3 << 20, ms: 60_000 }
    }
}

/// What is kept for one that asks.
#[derive(Debug, Clone)]
struct Buffer<C> {
    /// What it has, or was given as a snapshot.
    after: LogPosition,
    changes: VecDeque<(LogPosition, C, usize)>,
    bytes: usize,
    asked: Millis,
}

/// What one replica keeps of its changes, `C` each.
#[derive(Debug, Clone)]
pub struct Source<C> {
    kept: Kept,
    askers: BTreeMap<PlacementId, Buffer<C>>,
}

impl<C: Clone> Source<C> {
    /// A source that no child has asked yet.
    pub fn new(kept: Kept) -> Source<C> {
        Source { kept, askers: BTreeMap::new() }
    }

    /// Whether changes are to be said at all.
    pub fn is_asked(&self) -> bool {
        !self.askers.is_empty()
    }

    /// Whether something is kept for that one.
    pub fn is_asked_by(&self, asker: PlacementId) -> bool {
        self.askers.contains_key(&asker)
    }

    /// Whether more than half of what may be kept for that one waits for it: it is to copy its snapshot without giving way, as it
    /// would be given another one when more is written.
    pub fn is_pressed_by(&self, asker: PlacementId) -> bool {
        self.askers.get(&asker).is_some_and(|buffer| buffer.bytes > self.kept.bytes / 2)
    }

    /// The replica has applied the entry at that position. Each one is said, in their order.
    pub fn applied(&mut self, now: Millis, position: LogPosition, change: &C, bytes: usize) {
        let Kept { bytes: most, ms, largest, .. } = self.kept;
        self.askers.retain(|_, buffer| {
            buffer.changes.push_back((position, change.clone(), bytes));
            buffer.bytes += bytes;
            bytes <= largest && buffer.bytes <= most && now.since(buffer.asked) < ms
        });
    }

    /// The one that asked has taken a part of its snapshot: its changes are kept on, however long the rest takes.
    pub fn heard(&mut self, now: Millis, asker: PlacementId) {
        if let Some(buffer) = self.askers.get_mut(&asker) {
            buffer.asked = now;
        }
    }

    /// What was applied is another state now: a snapshot has come.
    pub fn replaced(&mut self) {
        self.askers.clear();
    }

    /// What is given to `asker` by a replica that has applied all up to `applied`: with changes, if it is not a snapshot.
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
    ) -> (What, Vec<C>) {
        if let Some(after) = after
            && let Some(buffer) = self.askers.get_mut(&asker)
            && buffer.has_all_behind(after)
        {
            buffer.forget_until(after);
            buffer.asked = now;
            let given = buffer.changes.iter().take(buffer.fits(self.kept));
            let to = given.clone().last().map_or(after, |(position, ..)| *position);
            return (What::Changes { after, to }, given.map(|(_, change, _)| change.clone()).collect());
        }
        let buffer = Buffer { after: applied, changes: VecDeque::new(), bytes: 0, asked: now };
        self.askers.insert(asker, buffer);
        (What::Snapshot(applied), Vec::new())
    }
}

impl<C> Buffer<C> {
    fn has_all_behind(&self, after: LogPosition) -> bool {
        after == self.after || self.changes.iter().any(|(position, ..)| *position == after)
    }

    /// How many changes are given at once.
    fn fits(&self, kept: Kept) -> usize {
        let mut bytes = 0;
        let within = self.changes.iter().take(kept.at_once).take_while(|(_, _, more)| {
            let is_first = bytes == 0;
            bytes += more;
            is_first || bytes <= kept.bytes_at_once
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
        fn new(kept: Kept) -> Parent {
            let settings = Settings::default();
            let name = (PlacementId(1), Incarnation(1));
            let replica = Replica::recover(name, settings, Stored::default(), Millis(0), true);
            Parent { replica, source: Source::new(kept), applied: 0 }
        }

        fn apply(&mut self, to: u64) {
            for index in self.applied + 1..=to {
                self.source.applied(Millis(0), at(index), &index, 10);
            }
            self.applied = to;
        }

        fn ask(&mut self, after: Option<u64>) -> (What, Vec<u64>) {
            let ask = Ask { parent: ShardId(1), of: PlacementId(1), after: after.map(at) };
            let (given, changes) = self.source.ask(Millis(0), CHILD, ask, (&self.replica, at(self.applied)));
            (given.what, changes)
        }
    }

    fn changes(after: u64, to: u64) -> What {
        What::Changes { after: at(after), to: at(to) }
    }

    #[test]
    fn a_snapshot_comes_first_and_then_all_changes_in_their_order() {
        let mut parent = Parent::new(Kept { at_once: 2, ..Kept::default() });
        assert!(!parent.source.is_asked());
        parent.apply(3);
        assert_eq!(parent.ask(None), (What::Snapshot(at(3)), vec![]));
        parent.apply(6);
        assert_eq!(parent.ask(Some(3)), (changes(3, 5), vec![4, 5]));
        assert_eq!(parent.ask(Some(3)), (changes(3, 5), vec![4, 5]), "the first was lost");
        assert_eq!(parent.ask(Some(5)), (changes(5, 6), vec![6]));
        assert_eq!(parent.ask(Some(6)), (changes(6, 6), vec![]));
        assert_eq!(parent.ask(Some(5)), (What::Snapshot(at(6)), vec![]), "they are not kept any more");
    }

    #[test]
    fn r1_changes_are_kept_for_one_that_is_heard_of_and_for_no_other() {
        let mut parent = Parent::new(Kept { ms: 10, ..Kept::default() });
        parent.ask(None);
        for now in [5, 12, 19] {
            parent.source.heard(Millis(now), CHILD);
            parent.applied += 1;
            let index = parent.applied;
            parent.source.applied(Millis(now + 2), at(index), &index, 10);
        }
        assert!(parent.source.is_asked_by(CHILD));
        parent.source.applied(Millis(40), at(4), &4, 10);
        assert!(!parent.source.is_asked(), "nothing was heard of it since 19");
    }

    #[test]
    fn one_for_which_much_is_kept_is_pressed_until_it_has_asked_for_it() {
        let mut parent = Parent::new(Kept { bytes: 60, ..Kept::default() });
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
        let mut parent = Parent::new(Kept { bytes_at_once: 25, ..Kept::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)), (changes(0, 2), vec![1, 2]));
        let mut parent = Parent::new(Kept { bytes_at_once: 5, ..Kept::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)), (changes(0, 1), vec![1]), "one always");
        let mut parent = Parent::new(Kept { largest: 9, ..Kept::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)), (What::Snapshot(at(5)), vec![]), "no message has room for them");
    }

    #[test]
    fn r1_one_that_does_not_keep_up_is_given_a_snapshot_again() {
        let mut parent = Parent::new(Kept { bytes: 50, ..Kept::default() });
        parent.ask(None);
        parent.apply(5);
        assert_eq!(parent.ask(Some(0)).0, changes(0, 5));
        parent.apply(11);
        assert!(!parent.source.is_asked());
        assert_eq!(parent.ask(Some(5)), (What::Snapshot(at(11)), vec![]));
    }
}
