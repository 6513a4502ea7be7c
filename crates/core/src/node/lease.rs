//! Leases: until when a worker may believe its own assignment without hearing from the coordinator.
//!
//! The two sides never compare clocks. The worker counts from the moment it *sent* the beat that is
//! answered, the coordinator from the moment it *processes* the beat, which is later, and adds [`DRIFT_PERMILLE`] for
//! clocks that run at different speeds. So the coordinator's idea of the end is never before the
//! worker's (O4), and it may give the shard to another when its own has passed (O5).
//!
//! | who         | event                 | end of the lease becomes                                  |
//! |-------------|-----------------------|-----------------------------------------------------------|
//! | worker      | renewal               | max(end, sent_at + lease)                                 |
//! | worker      | sends `leave`         | now                                                       |
//! | coordinator | processes a beat      | max(end, now + lease + drift)                             |
//! | coordinator | starts                | now + lease + drift: what a predecessor may have granted  |
//! | coordinator | starts, among several | the same, from when a deposed leader certainly stops      |
//! | coordinator | receives `leave`      | now                                                       |

use crate::base::time::Millis;

/// How far apart two monotonic clocks may run, in thousandths: 3 %, some hundred times what quartz does,
/// so that a virtual machine's badly steered clock is covered too.
pub const DRIFT_PERMILLE: u64 = 30;

/// The lease as the worker counts it, from when it sent a beat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldLease {
    end: Millis,
}

impl HeldLease {
    /// A renewal that answers a beat sent at `sent_at`. Never shortens.
    pub fn renew(&mut self, sent_at: Millis, lease_ms: u64) {
        self.end = self.end.max(sent_at + lease_ms);
    }

    /// Gives the lease up.
    pub fn give_up(&mut self) {
        self.end = Millis(0);
    }

    /// Whether the worker may still act at `now`.
    pub fn holds(&self, now: Millis) -> bool {
        now < self.end
    }

    /// The first moment at which it may not.
    pub fn end(&self) -> Millis {
        self.end
    }
}

/// The lease as the coordinator counts it, from when it processed a beat; it never ends before the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GrantedLease {
    end: Millis,
}

impl GrantedLease {
    /// A lease of which nothing is known but that it cannot be longer than `lease_ms` from now.
    pub fn assumed(now: Millis, lease_ms: u64) -> GrantedLease {
        GrantedLease { end: now + with_drift(lease_ms) }
    }

    /// Answers a beat at `now`.
    pub fn renew(&mut self, now: Millis, lease_ms: u64) {
        self.end = self.end.max(now + with_drift(lease_ms));
    }

    /// A predecessor may have answered beats until `late_ms` from now, by its own clock.
    pub fn allow_for_predecessor(&mut self, now: Millis, late_ms: u64, lease_ms: u64) {
        self.renew(now + with_drift(late_ms), lease_ms);
    }

    /// The worker has said that it acts no more.
    pub fn give_up(&mut self) {
        self.end = Millis(0);
    }

    /// Whether the worker can certainly not act any more.
    pub fn is_over(&self, now: Millis) -> bool {
        now >= self.end
    }

    /// The first moment at which it certainly cannot.
    pub fn end(&self) -> Millis {
        self.end
    }
}

fn with_drift(lease_ms: u64) -> u64 {
    lease_ms + (lease_ms * DRIFT_PERMILLE).div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// O4, with every delay and any drift within the bound.
        #[test]
        fn the_coordinator_never_thinks_a_lease_over_before_the_worker(
            sent in 0u64..1_000_000, delay in 0u64..10_000, lease in 1u64..60_000,
            worker_ppm in 985_400u64..1_014_600, coordinator_ppm in 985_400u64..1_014_600,
        ) {
            // Each clock reads true time × its rate. The last true instant at which the worker acts:
            let mut held = HeldLease::default();
            held.renew(Millis(sent * worker_ppm / 1_000_000), lease);
            let worker_last = (held.end().0 * 1_000_000 / worker_ppm).saturating_sub(1);
            let mut granted = GrantedLease::default();
            let clock = |real: u64| Millis(real * coordinator_ppm / 1_000_000);
            granted.renew(clock(sent + delay), lease);
            prop_assert!(!granted.is_over(clock(worker_last.saturating_sub(2))));
        }

        #[test]
        fn an_end_never_goes_back(renewals in prop::collection::vec((0u64..10_000, 1u64..5_000), 1..20)) {
            let (mut held, mut granted) = (HeldLease::default(), GrantedLease::default());
            for (at, lease) in renewals {
                let before = (held.end(), granted.end());
                held.renew(Millis(at), lease);
                granted.renew(Millis(at), lease);
                prop_assert!(held.end() >= before.0 && granted.end() >= before.1);
            }
        }
    }

    /// O5: a leader that was deposed at 0 answers a beat as late as it can.
    #[test]
    fn o5_a_lease_that_a_deposed_leader_prolonged_is_waited_for() {
        let (late_ms, lease_ms) = (3_000, 8_000);
        let mut held = HeldLease::default();
        held.renew(Millis(late_ms - 1), lease_ms);
        let mut granted = GrantedLease::assumed(Millis(0), lease_ms);
        assert!(granted.is_over(Millis(held.end().0 - 1)), "so it has to be allowed for");
        granted.allow_for_predecessor(Millis(0), late_ms, lease_ms);
        assert!(!granted.is_over(held.end()));
    }

    #[test]
    fn a_lease_holds_until_its_end_and_not_at_it() {
        let mut held = HeldLease::default();
        assert!(!held.holds(Millis(0)));
        held.renew(Millis(100), 50);
        assert!(held.holds(Millis(149)) && !held.holds(Millis(150)));
        held.give_up();
        assert!(!held.holds(Millis(0)));
    }
}
