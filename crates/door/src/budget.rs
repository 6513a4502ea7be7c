//! The bytes of request bodies that a process has in memory, of all its doors together.

use crate::limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes there may be, and how many there are.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(limits::BYTES_IN_FLIGHT)
    }
}

impl Budget {
    /// Of so many bytes.
    pub fn new(most: u64) -> Budget {
        Budget { most, used: AtomicU64::new(0) }
    }

    /// Bytes in memory now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most there may be.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// What bodies may use that are not small.
    pub(crate) fn for_large(&self) -> u64 {
        self.most - self.most / limits::SMALL_SHARE
    }
}

/// What one request has of the budget, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl ReservedBytes {
    pub(crate) fn new(budget: Arc<Budget>) -> ReservedBytes {
        ReservedBytes { budget, bytes: AtomicU64::new(0) }
    }

    /// Takes so many bytes more, if there are so many.
    pub(crate) fn take(&self, bytes: u64, is_small: bool) -> bool {
        let most = if is_small { self.budget.most } else { self.budget.for_large() };
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= most);
        if self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Has so many bytes, if there are so many; else as many as before.
    pub(crate) fn set(&self, bytes: u64) -> bool {
        let has = self.bytes.load(Ordering::Relaxed);
        if bytes > has {
            return self.take(bytes - has, false);
        }
        self.budget.used.fetch_sub(has - bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(has - bytes, Ordering::Relaxed);
        true
    }

    /// Gives so many bytes back, which it has.
    pub(crate) fn give_back_some(&self, bytes: u64) {
        if bytes > 0 {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Gives all back.
    pub(crate) fn give_back(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_all_requests_stay_within_the_budget_and_small_ones_have_a_share_of_it() {
        let budget = Arc::new(Budget::new(800));
        let (one, two) = (ReservedBytes::new(budget.clone()), ReservedBytes::new(budget.clone()));
        assert!(one.take(600, false));
        assert!(!two.take(101, false), "the last eighth is for small ones");
        assert!(two.take(100, false));
        assert!(two.take(100, true));
        assert!(!one.take(1, true), "there is no more");
        assert_eq!(budget.used(), 800);
        drop(one);
        assert_eq!(budget.used(), 200);
        two.give_back();
        drop(two);
        assert_eq!(budget.used(), 0);
    }
}
