//! The budget of a node for writes that it sends again, over gRPC and of several rows, after a try that may have carried them out
//! (R3). The worker's layer has one of the same size for single rows over HTTP.
//!
//! Each request that is sent for the first time adds a tenth of a token, each repetition takes a whole one; where there is none,
//! the write waits until there is, as long as it may be sent again at all. A request that was refused before it was begun costs
//! nothing: such refusals come from a node whose replica does no work for them, or that has held the request meanwhile.

use crate::limits::LAST_RETRY;
use partage_clock::Clock;
use partage_core::routing::budget::{Budget, BudgetPolicy};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::{Instant, sleep_until};

/// The budget of a node; a clone shares it.
#[derive(Debug, Clone)]
pub(crate) struct RetryBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    budget: Mutex<Budget>,
    /// Requests not added to the budget yet.
    unearned: AtomicU64,
}

impl RetryBudget {
    pub(crate) fn new(policy: BudgetPolicy) -> RetryBudget {
        let budget = Mutex::new(Budget::new(policy));
        RetryBudget(Arc::new(Shared { clock: Clock::start(), budget, unearned: AtomicU64::new(0) }))
    }

    /// So many requests are sent for the first time.
    pub(crate) fn earn(&self, requests: u64) {
        self.0.unearned.fetch_add(requests, Ordering::Relaxed);
    }

    /// Takes a token for one repetition; false if there is none.
    pub(crate) fn spend(&self) -> bool {
        let mut budget = self.0.budget.lock().unwrap_or_else(PoisonError::into_inner);
        budget.earn(self.0.unearned.swap(0, Ordering::Relaxed));
        budget.spend(self.0.clock.now())
    }

    /// The same, and waits for a token; false if none has come by `until`.
    pub(crate) async fn spend_before(&self, until: Instant) -> bool {
        while !self.spend() {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            sleep_until(until.min(now + LAST_RETRY)).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn budget() -> RetryBudget {
        RetryBudget::new(BudgetPolicy { capacity: 2, refill_per_s: 0, ..BudgetPolicy::default() })
    }

    #[test]
    fn r3_repetitions_are_a_tenth_of_the_requests_beside_the_bucket() {
        let budget = budget();
        assert!(budget.spend() && budget.spend() && !budget.spend());
        budget.earn(19);
        assert!(budget.spend() && !budget.spend());
        budget.clone().earn(1);
        assert!(budget.spend(), "a copy is the same budget");
    }

    #[tokio::test]
    async fn a_write_waits_for_a_token_until_its_time_is_up() {
        let budget = budget();
        assert!(budget.spend() && budget.spend());
        let begun = Instant::now();
        assert!(!budget.spend_before(Instant::now() + Duration::from_millis(120)).await);
        assert!(begun.elapsed() >= Duration::from_millis(100));
        let waiting = budget.clone();
        let waiting =
            tokio::spawn(async move { waiting.spend_before(Instant::now() + Duration::from_secs(60)).await });
        budget.earn(10);
        assert!(waiting.await.expect("no panic"));
    }
}
