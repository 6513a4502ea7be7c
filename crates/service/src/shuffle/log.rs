//! The decisions of the leader of a slot: one log on every replica of it, fenced by the slot's epoch (rule 5).
//!
//! A decision counts when all replicas that the leader counts on have it synced: those in `Live`, and those in `Load` that it has
//! taken in. So each of them can lead next without losing one. A new leader begins by sending its whole copy under its epoch; a
//! replica that has taken it refuses all that comes under an earlier epoch from then on. What the last leader had under way and
//! did not reach the new one never counted. Safety rests on no clock and no lease.
//!
//! A copy holds the decisions of living shuffles, and of those that have ended only that they have, the last ones of them.

use super::bounds::{Bounds, Tag};
use super::plan::Plan;
use super::{Ended, Failure, PoolSlot, ShuffleId, ShuffleOptions, Terms, Writer};
use partage_core::base::id::Epoch;
use partage_core::base::planted::{self, Planted};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// What lay under tags that are wanted no more is replaced, in one step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Superseded {
    /// The slot in which it lay.
    pub slot: PoolSlot,
    /// The tags under which it lay.
    pub tags: Vec<Tag>,
    /// Up to which batch of each writer it counts no more.
    pub upto: BTreeMap<Writer, u64>,
    /// The division that counts instead.
    pub writer: Writer,
    /// Its last batch in each slot.
    pub last: BTreeMap<PoolSlot, u64>,
}

/// A decision on a shuffle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The shuffle begins, with these terms and options.
    Start(Terms, Arc<ShuffleOptions>),
    /// The next version of its bounds.
    Bounds(Arc<Bounds>),
    /// A division replaces what it has read by what it has written.
    Superseded(Arc<Superseded>),
    /// Its winners and counts are final.
    Sealed(Arc<Plan>),
    /// It has failed: no node serves it.
    Failed(Failure),
    /// The shuffle has ended: its other decisions go.
    Ended(Ended),
}

/// The decisions of a slot, as a replica has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decisions {
    /// The epoch under which the copy was taken or begun.
    pub epoch: Epoch,
    /// How many decisions there were so far.
    pub sequence: u64,
    /// The decisions of living shuffles, in their order.
    pub living: BTreeMap<ShuffleId, Vec<Decision>>,
    /// Those that have ended, the last one last.
    pub ended: VecDeque<(ShuffleId, Ended)>,
}

impl Decisions {
    /// Adds a decision. Of the shuffles that have ended, the last `ended_kept` are kept.
    pub fn push(&mut self, shuffle: ShuffleId, decision: Decision, ended_kept: usize) {
        self.sequence += 1;
        match decision {
            Decision::Ended(how) => {
                self.living.remove(&shuffle);
                if !self.ended.iter().any(|(known, _)| *known == shuffle) {
                    self.ended.push_back((shuffle, how));
                }
                while self.ended.len() > ended_kept {
                    self.ended.pop_front();
                }
            }
            decision => self.living.entry(shuffle).or_default().push(decision),
        }
    }
}

/// What a leader sends to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The slot whose decisions these are.
    pub slot: PoolSlot,
    /// The epoch of the leader that sends it.
    pub epoch: Epoch,
    /// The whole copy, or what follows.
    pub what: What,
}

/// The whole copy, or decisions that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The whole copy of the leader, whose epoch is the leader's.
    Whole(Arc<Decisions>),
    /// Decisions after the one of that number.
    After(u64, Vec<(ShuffleId, Decision)>),
}

/// Why a replica has not taken decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It has heard of a later epoch.
    Stale(Epoch),
    /// It does not have what is before.
    Lacks,
}

/// What a node has on disk of the decisions of slots.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replicas {
    /// The copy of each slot, by the slot.
    pub copies: BTreeMap<PoolSlot, Decisions>,
}

impl Replicas {
    /// The node is to lead the slot under this epoch: its copy, to begin with. From now on this replica refuses the last leader:
    /// what that one reached it with later would count, and the next leader would not know it.
    pub fn lead(&mut self, slot: PoolSlot, epoch: Epoch) -> Decisions {
        let copy = self.copies.entry(slot).or_default();
        copy.epoch = copy.epoch.max(epoch);
        copy.clone()
    }

    /// Takes decisions in. `known` is the epoch of the slot in the map of the node: what is earlier is refused, as a node whose
    /// disk was lost has lost what it had heard of, and its map is from after that; the driver of a node without a map hands
    /// nothing in. The driver syncs them before the leader hears the answer: the epoch, and the number up to which the copy is
    /// the leader's.
    pub fn take(&mut self, append: Append, known: Epoch, ended_kept: usize) -> Result<(Epoch, u64), Refused> {
        let Append { slot, epoch, what } = append;
        let copy = self.copies.entry(slot).or_default();
        let heard = copy.epoch.max(known);
        if epoch < heard && !planted::is(Planted::StaleAppend) {
            return Err(Refused::Stale(heard));
        }
        match what {
            // A whole copy that comes late has less than what followed it under the same epoch.
            What::Whole(whole)
                if epoch > copy.epoch
                    || whole.sequence > copy.sequence
                    || planted::is(Planted::StaleAppend) =>
            {
                *copy = Decisions::clone(&whole);
            }
            What::Whole(_) => {}
            What::After(before, decisions) => {
                if (epoch != copy.epoch && !planted::is(Planted::StaleAppend)) || copy.sequence < before {
                    return Err(Refused::Lacks);
                }
                let known = (copy.sequence - before) as usize;
                for (shuffle, decision) in decisions.into_iter().skip(known) {
                    copy.push(shuffle, decision, ended_kept);
                }
            }
        }
        Ok((epoch, copy.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: PoolSlot = PoolSlot(1);

    fn whole(epoch: u64, sequence: u64) -> Append {
        let decisions = Decisions { epoch: Epoch(epoch), sequence, ..Decisions::default() };
        Append { slot: SLOT, epoch: Epoch(epoch), what: What::Whole(decisions.into()) }
    }

    fn after(epoch: u64, before: u64, shuffles: &[u128]) -> Append {
        let start = |shuffle: &u128| (ShuffleId(*shuffle), Decision::Start(Terms::default(), Arc::default()));
        let what = What::After(before, shuffles.iter().map(start).collect());
        Append { slot: SLOT, epoch: Epoch(epoch), what }
    }

    #[test]
    fn o2_a_replica_that_has_heard_of_a_later_epoch_refuses() {
        let mut replicas = Replicas::default();
        assert_eq!(replicas.take(after(3, 0, &[1]), Epoch(0), 9), Err(Refused::Lacks));
        assert_eq!(replicas.take(whole(3, 5), Epoch(0), 9), Ok((Epoch(3), 5)));
        assert_eq!(replicas.take(after(3, 5, &[1]), Epoch(0), 9), Ok((Epoch(3), 6)));
        assert_eq!(replicas.take(whole(4, 5), Epoch(0), 9), Ok((Epoch(4), 5)), "what never counted goes");
        assert_eq!(replicas.take(after(3, 6, &[2]), Epoch(0), 9), Err(Refused::Stale(Epoch(4))));
        assert_eq!(replicas.take(whole(3, 9), Epoch(0), 9), Err(Refused::Stale(Epoch(4))));
        assert_eq!(replicas.copies[&SLOT].living.len(), 0);
    }

    #[test]
    fn o2_a_replica_that_is_to_lead_takes_nothing_of_the_last_leader_any_more() {
        let mut replicas = Replicas::default();
        replicas.take(whole(3, 5), Epoch(0), 9).unwrap();
        let copy = replicas.lead(SLOT, Epoch(4));
        assert_eq!((copy.epoch, copy.sequence), (Epoch(4), 5));
        assert_eq!(replicas.take(after(3, 5, &[1]), Epoch(0), 9), Err(Refused::Stale(Epoch(4))));
        assert_eq!(replicas.take(whole(4, 5), Epoch(0), 9), Ok((Epoch(4), 5)));
    }

    #[test]
    fn o2_a_replica_that_has_lost_its_disk_takes_nothing_from_before_its_map() {
        let mut replicas = Replicas::default();
        assert_eq!(replicas.take(whole(3, 5), Epoch(4), 9), Err(Refused::Stale(Epoch(4))));
        assert_eq!(replicas.take(whole(4, 5), Epoch(4), 9), Ok((Epoch(4), 5)));
    }

    #[test]
    fn decisions_that_come_twice_are_taken_once_and_none_is_left_out() {
        let mut replicas = Replicas::default();
        replicas.take(whole(1, 0), Epoch(0), 9).unwrap();
        assert_eq!(replicas.take(after(1, 0, &[1, 2]), Epoch(0), 9), Ok((Epoch(1), 2)));
        assert_eq!(replicas.take(after(1, 1, &[2, 3]), Epoch(0), 9), Ok((Epoch(1), 3)));
        assert_eq!(replicas.take(after(1, 0, &[1]), Epoch(0), 9), Ok((Epoch(1), 3)));
        assert_eq!(replicas.take(after(1, 4, &[5]), Epoch(0), 9), Err(Refused::Lacks));
        assert_eq!(
            replicas.take(whole(1, 0), Epoch(0), 9),
            Ok((Epoch(1), 3)),
            "an old whole copy changes nothing"
        );
        assert!(replicas.copies[&SLOT].living.values().all(|decisions| decisions.len() == 1));
    }

    #[test]
    fn of_shuffles_that_have_ended_only_that_is_kept_and_only_of_the_last() {
        let mut decisions = Decisions::default();
        for shuffle in 0..5 {
            decisions.push(ShuffleId(shuffle), Decision::Start(Terms::default(), Arc::default()), 3);
            decisions.push(ShuffleId(shuffle), Decision::Ended(Ended::Deleted), 3);
        }
        assert!(decisions.living.is_empty());
        assert_eq!(decisions.ended.iter().map(|(shuffle, _)| shuffle.0).collect::<Vec<_>>(), [2, 3, 4]);
    }
}
