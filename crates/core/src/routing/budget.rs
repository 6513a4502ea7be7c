//! The retry budget: a token bucket that all retries and hedges take from (R3).
//!
//! Each request adds a tenth of a token; a retry or a hedge takes a whole one. So retries add at most a tenth to the
//! load on the nodes, and do not make a fault worse. The bucket begins full, for the short burst of a handover,
//! and some tokens come with time, so that a router with one request a minute may repeat it.
//!
//! A try that never left the router, because the connection was refused, costs nothing.

use crate::base::time::Millis;

/// A token in thousandths, so that no fraction is lost.
const TOKEN: u64 = 1_000;

/// How large the bucket is, and how fast it fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetPolicy {
    /// Retries for each request, in percent: what R3 allows.
    pub percent: u64,
    /// Most tokens in the bucket; it begins full. 100 are the requests of 50 ms at 2,000 a second: one
    /// handover.
    pub capacity: u64,
    /// Tokens that each second adds, whatever the traffic.
    pub refill_per_s: u64,
}

impl Default for BudgetPolicy {
    fn default() -> BudgetPolicy {
        BudgetPolicy { percent: 10, capacity: 100, refill_per_s: 10 }
    }
}

/// The bucket of one router or node, which all its requests share.
#[derive(Debug, Clone)]
pub struct Budget {
    policy: BudgetPolicy,
    thousandths: u64,
    refilled_at: Option<Millis>,
}

impl Budget {
    /// A full bucket, for the burst of requests after a start.
    pub fn new(policy: BudgetPolicy) -> Budget {
        Budget { policy, thousandths: policy.capacity * TOKEN, refilled_at: None }
    }

    /// `requests` have been sent for the first time.
    pub fn earn(&mut self, requests: u64) {
        self.put(requests.saturating_mul(self.policy.percent).saturating_mul(TOKEN / 100));
    }

    /// Takes a token for one more try; false if there is none.
    pub fn spend(&mut self, now: Millis) -> bool {
        self.refill(now);
        let enough = self.thousandths >= TOKEN;
        self.thousandths -= if enough { TOKEN } else { 0 };
        enough
    }

    /// How many whole tokens are left, without those that the time since the last spending has added.
    pub fn left(&self) -> u64 {
        self.thousandths / TOKEN
    }

    fn refill(&mut self, now: Millis) {
        let passed = now.since(*self.refilled_at.get_or_insert(now));
        // One token a second is a thousandth of a token a millisecond.
        self.put(passed.saturating_mul(self.policy.refill_per_s));
        self.refilled_at = self.refilled_at.max(Some(now));
    }

    fn put(&mut self, thousandths: u64) {
        self.thousandths = self.thousandths.saturating_add(thousandths).min(self.policy.capacity * TOKEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn r3_never_more_than_a_tenth_beside_the_bucket_and_its_refill(
            steps in proptest::collection::vec((0u64..20, 0u64..20, 0u64..50), 0..200),
        ) {
            let policy = BudgetPolicy { capacity: 7, refill_per_s: 3, ..BudgetPolicy::default() };
            let mut budget = Budget::new(policy);
            let (mut now, mut sent, mut again) = (Millis(5), 0, 0);
            for (requests, wanted, pause) in steps {
                budget.earn(requests);
                sent += requests;
                now = now + pause;
                again += (0..wanted).filter(|_| budget.spend(now)).count() as u64;
                proptest::prop_assert!(again * TOKEN <= 7 * TOKEN + sent * TOKEN / 10 + now.0 * 3);
            }
        }
    }

    #[test]
    fn a_tenth_is_really_there() {
        let mut budget = Budget::new(BudgetPolicy { percent: 10, capacity: 100, refill_per_s: 0 });
        while budget.spend(Millis(0)) {}
        budget.earn(9);
        assert!(!budget.spend(Millis(0)));
        budget.earn(1);
        assert!(budget.spend(Millis(1_000_000)) && !budget.spend(Millis(2_000_000)));
    }

    #[test]
    fn a_quiet_router_may_retry_after_a_while() {
        let mut budget = Budget::new(BudgetPolicy { percent: 10, capacity: 1, refill_per_s: 1 });
        assert!(budget.spend(Millis(0)) && !budget.spend(Millis(999)));
        assert!(budget.spend(Millis(1_000)));
    }
}
