//! How much the coordinator's state machine does in one call, and when it stops and is called again.
//!
//! While it decides it answers no beat. So a decision looks at a bounded number of shards, and says that it wants to be
//! called again at once; the next one goes on where this one stopped, round and round, so that no shard waits
//! behind others that always have news. Which shards those are follows from the state alone (M9).
//!
//! The work on shards that have news and the planning have a limit each. So that the two do not add up, a decision that has
//! done much of the first leaves the planning to the next one, which then does little of the first.

use super::planning::Round;
use super::{Cluster, Moment};
use crate::base::name::KeyspaceName;
use crate::limits;

/// What was done so far, in shards: what a decision costs follows from it, on every machine alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Shards whose next step was looked for.
    pub reconciled: u64,
    /// Shards that were noted as having news.
    pub enqueued: u64,
    /// What was planned, in the units of [`Slice::planned`].
    pub planned: u64,
}

/// How much one decision does at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Of planning: shards and replicas that were looked at, changes that were written or made a plan.
    pub planned: usize,
}

impl Default for Slice {
    fn default() -> Slice {
        Slice { planned: limits::WORK_PLANNED }
    }
}

impl Slice {
    /// The most changes of one plan that the planner makes by itself.
    pub(super) fn plan_lines(self) -> usize {
        (self.planned / 4).max(1)
    }
}

/// How much one decision does, and where the next one goes on. Not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct DecisionBudget {
    /// The keyspace that the last decision had no room for.
    pub(super) next_in_turn: Option<KeyspaceName>,
    /// What is being planned.
    pub(super) round: Round,
    pub(super) slice: Slice,
    /// How many shards were reconciled, since this coordinator started.
    pub(super) reconciled: u64,
    /// How much was planned, in the units of [`Slice::planned`].
    pub(super) planned: u64,
    /// The last decision did so much else that it left planning to this one.
    planning_is_next: bool,
}

impl DecisionBudget {
    /// Takes planning from what is `left` of the slice. What could not be cut, and was more than that, counts all the same.
    pub(super) fn charge(&mut self, left: &mut usize, planned: usize) {
        self.planned += planned.saturating_sub(*left) as u64;
        *left = left.saturating_sub(planned);
    }
}

/// Divides what else a decision that plans may do.
const BESIDE_PLANNING: usize = 8;

impl Cluster {
    /// Does at most so much in one decision. A simulator makes it so little that every plan is interrupted.
    #[must_use]
    pub fn with_slice(mut self, slice: Slice) -> Cluster {
        self.budget.slice = slice;
        self
    }

    /// What was done since this coordinator started. A simulator charges time for the difference.
    pub fn work_done(&self) -> Work {
        let DecisionBudget { reconciled, planned, .. } = self.budget;
        Work { reconciled, enqueued: self.keyspaces.enqueued, planned }
    }

    /// As much of `most` as this decision may do beside planning.
    pub(super) fn share_beside_planning(&self, most: usize) -> usize {
        if self.budget.planning_is_next { most / BESIDE_PLANNING } else { most }
    }

    /// Plans, unless there is something to plan and this decision has done much already since `before`: then the next one
    /// does little else. Returns whether there is something to do at once.
    pub(super) fn plan_in_turn(&mut self, at: Moment, before: Work) -> bool {
        let now = self.work_done();
        let enqueued =
            (now.enqueued - before.enqueued) as usize / (limits::SHARDS_ENQUEUED / limits::SHARDS_RECONCILED);
        let done = (now.reconciled - before.reconciled) as usize + enqueued;
        let is_much = done > 2 * limits::SHARDS_RECONCILED / BESIDE_PLANNING;
        self.budget.planning_is_next = is_much && !self.budget.planning_is_next && self.has_to_plan(at);
        self.budget.planning_is_next || self.plan(at)
    }

    /// The keyspaces in the order in which they have their turn in this decision.
    pub(super) fn keyspaces_in_turn(&self) -> Vec<KeyspaceName> {
        let first = self.budget.next_in_turn.as_ref();
        let is_before = |name: &&KeyspaceName| first.is_some_and(|first| *name < first);
        let (before, from): (Vec<_>, Vec<_>) = self.keyspaces.by_name.keys().partition(is_before);
        from.into_iter().chain(before).cloned().collect()
    }
}
