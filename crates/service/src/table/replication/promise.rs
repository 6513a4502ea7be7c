//! Promises: why a leader knows that no other replica leads (rule 6).
//!
//! The two sides never compare clocks. The follower counts from the receipt of the append, the leader from before it was sent,
//! and leaves out what clocks may differ by ([`DRIFT_PERMILLE`]), as leases do. Only members of the in-sync set are made leader,
//! and all of them have promised.

use partage_core::base::id::Epoch;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::node::lease::DRIFT_PERMILLE;

/// What a replica has promised: to lead under no epoch above `epoch` before `until`, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promise {
    epoch: Epoch,
    until: Millis,
}

impl Promise {
    /// What a process that has just started may have promised in its former life: it has replied to no leader above its fence.
    pub(super) fn of_start(fence: Epoch, now: Millis, promise_ms: u64) -> Promise {
        Promise { epoch: fence, until: end(now, promise_ms) }
    }

    /// Nothing, as of a process that was never there before.
    pub(super) fn none() -> Promise {
        Promise { epoch: Epoch(0), until: Millis(0) }
    }

    /// An append of that epoch is received.
    pub(super) fn extend(&mut self, epoch: Epoch, now: Millis, promise_ms: u64) {
        self.epoch = self.epoch.max(epoch);
        self.until = self.until.max(end(now, promise_ms));
    }

    /// The leader of that epoch, which had begun, has let go. So had all leaders before it, or their time was over: it
    /// had waited for that.
    pub(super) fn release(&mut self, epoch: Epoch) {
        if epoch >= self.epoch || planted::is(Planted::AnyLetGo) {
            self.until = Millis(0);
        }
    }

    /// When it is over.
    pub(super) fn until(&self) -> Millis {
        self.until
    }
}

/// One more, as clocks are read in whole milliseconds.
fn end(now: Millis, promise_ms: u64) -> Millis {
    now + promise_ms + 1
}

/// Until when a leader may rely on the reply to an append that it sent at `sent`, by its own clock.
pub(super) fn relied_on(sent: Millis, promise_ms: u64) -> Millis {
    sent + promise_ms * (1_000 - DRIFT_PERMILLE) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_never_relies_on_a_promise_for_longer_than_it_holds() {
        for promise_ms in [50, 200, 1_000, 10_000] {
            // The leader's clock is slow and the follower's fast, by half of what is allowed each; whole milliseconds hide
            // up to one more.
            let half = DRIFT_PERMILLE as f64 / 2_000.0;
            let leader = (relied_on(Millis(0), promise_ms).0 as f64) / (1.0 - half);
            let follower = (end(Millis(0), promise_ms).0 as f64 - 1.0) / (1.0 + half);
            assert!(leader <= follower, "{promise_ms}: {leader} and {follower}");
        }
    }

    #[test]
    fn only_who_was_promised_to_or_a_later_leader_releases() {
        let mut promise = Promise::none();
        promise.extend(Epoch(4), Millis(100), 1_000);
        promise.release(Epoch(3));
        assert_eq!(promise.until(), Millis(1_101));
        promise.release(Epoch(4));
        assert_eq!(promise.until(), Millis(0));
    }
}
