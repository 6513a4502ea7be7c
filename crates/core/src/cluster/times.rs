//! When the coordinator itself was awake.

use crate::base::time::Millis;

/// When this coordinator began and when it was last awake, from which follows for how long it was asleep.
#[derive(Debug, Clone)]
pub(super) struct DecisionTimes {
    pub(super) started: Millis,
    /// When the last decision said that the next one is due.
    pub(super) decision_due: Millis,
    /// When it last decided, or listened during a commit.
    pub(super) listened: Millis,
}

impl DecisionTimes {
    /// Of a coordinator that begins now.
    pub(super) fn new(now: Millis) -> DecisionTimes {
        DecisionTimes { started: now, decision_due: now, listened: now }
    }
}
