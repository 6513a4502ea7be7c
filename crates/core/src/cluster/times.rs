//! When the coordinator itself was awake.

use crate::base::time::Millis;

/// When this coordinator began, and when it looked: by that it knows how long it was asleep.
#[derive(Debug, Clone)]
pub(super) struct DecisionTimes {
    pub(super) started: Millis,
    /// When this coordinator said that it would look again.
    pub(super) promised: Millis,
    /// When it last decided, or listened during a commit.
    pub(super) listened: Millis,
}

impl DecisionTimes {
    /// Of a coordinator that begins now.
    pub(super) fn new(now: Millis) -> DecisionTimes {
        DecisionTimes { started: now, promised: now, listened: now }
    }
}
