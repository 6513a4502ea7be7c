//! The steps that the replicas of a keyspace owe, and since when: see [`super::overdue`].

use crate::base::id::{PlacementId, ShardId};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Role;
use crate::limits;
use std::collections::BTreeMap;

/// A step that a replica owes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingStep {
    pub(super) shard: ShardId,
    /// The state and role in which it is.
    pub(super) state: ReplicaState,
    pub(super) role: Role,
    pub(super) since: Millis,
    /// Since when its time is counted: later than `since` once it has said that it gets on.
    pub(super) renewed: Millis,
    /// The number of the last [`crate::node::exchange::Report::progress`]; a new one renews the time.
    pub(super) progress: u32,
    pub(super) is_overdue: bool,
}

impl PendingStep {
    /// When it is overdue, if nothing is heard.
    pub(super) fn due(&self, timeout_ms: u64) -> Millis {
        let most = self.since + timeout_ms.saturating_mul(limits::LOAD_STRETCH);
        most.min(self.renewed + timeout_ms)
    }
}

/// The steps that the replicas of a keyspace owe; not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingSteps {
    pub(super) steps: BTreeMap<PlacementId, PendingStep>,
    /// None is overdue before; [`Millis::NEVER`] when there are none.
    pub(super) due: Option<Millis>,
    /// Where the next decision goes on, when there are more than one decision looks at.
    pub(super) next: Option<PlacementId>,
    /// The same as `due` for those that have been looked at since, and for those that came.
    pub(super) due_then: Option<Millis>,
}

impl PendingSteps {
    /// Whether the replica has owed the step out of `state` for too long.
    pub(super) fn is_overdue(&self, placement: PlacementId, state: ReplicaState) -> bool {
        self.steps.get(&placement).is_some_and(|step| step.is_overdue && step.state == state)
    }

    /// For how long it has owed the step that it owes now.
    pub(super) fn pending_ms(&self, placement: PlacementId, now: Millis) -> Option<u64> {
        self.steps.get(&placement).map(|step| now.since(step.since))
    }

    pub(super) fn forget(&mut self, placement: PlacementId) {
        self.steps.remove(&placement);
    }

    pub(super) fn due(&self) -> Millis {
        self.due.unwrap_or(Millis::NEVER)
    }

    pub(super) fn extend(&mut self, now: Millis, ms: u64) {
        for step in self.steps.values_mut() {
            step.since = (step.since + ms).min(now);
            step.renewed = (step.renewed + ms).min(now);
        }
    }

    /// A load says how often it has got on so far.
    pub(super) fn progressed(&mut self, placement: PlacementId, progress: u32, now: Millis) {
        let steps = self.steps.get_mut(&placement).filter(|step| step.state == ReplicaState::Load);
        if let Some(step) = steps.filter(|step| step.progress != progress) {
            (step.progress, step.renewed) = (progress, now);
        }
    }
}
