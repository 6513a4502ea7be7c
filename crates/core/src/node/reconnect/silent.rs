//! Which coordinators are passed over for a while, because they said nothing when they were asked.
//!
//! A process that is paused takes connections, and answers none: each try costs until it is given up. The others name it
//! as the leader for as long as its session lives. A worker that goes there each time spends its lease on waiting, and
//! comes too late to the next leader.
//!
//! ```text
//!  lease  ├───────────────────────────────────────────────────────────────┤
//!  paused ├─ noticed ─┤ asks the others, who name it: it is passed over … ┤
//!                            the next one leads ▲ and is found at once
//! ```
//!
//! An address that refuses, or whose machine says that no process listens, costs nothing and is not passed over. One that is
//! passed over is tried again after half a lease: it may have been a short pause, and it leads still. When all are passed over,
//! none is.

use crate::base::time::Millis;
use crate::limits::SILENT_COORDINATORS;
use std::collections::BTreeMap;

/// How long one is passed over when nothing is known of the lease, in milliseconds.
const UNKNOWN_MS: u64 = 2_000;

/// Those that said nothing lately.
#[derive(Debug, Clone)]
pub struct Silent {
    until: BTreeMap<String, Millis>,
    pass_over_ms: u64,
}

impl Default for Silent {
    fn default() -> Silent {
        Silent { until: BTreeMap::new(), pass_over_ms: UNKNOWN_MS }
    }
}

impl Silent {
    /// A coordinator says how long leases are.
    pub fn told_lease(&mut self, lease_ms: u64) {
        self.pass_over_ms = lease_ms / 2;
    }

    /// That one was asked, and has said nothing.
    pub fn said_nothing(&mut self, address: &str, now: Millis) {
        self.until.retain(|_, until| *until > now);
        if self.until.len() < SILENT_COORDINATORS {
            self.until.insert(address.to_owned(), now + self.pass_over_ms);
        }
    }

    /// That one has answered.
    pub fn answered(&mut self, address: &str) {
        self.until.remove(address);
    }

    /// Whether that one is passed over.
    pub fn is_passed_over(&self, address: &str, now: Millis) -> bool {
        self.until.get(address).is_some_and(|until| now < *until)
    }

    /// Which of these comes after `at`.
    pub fn next(&self, addresses: &[String], at: usize, now: Millis) -> usize {
        let count = addresses.len().max(1);
        let mut others = (1..=count).map(|step| (at + step) % count);
        let answers = |at: &usize| addresses.get(*at).is_some_and(|one| !self.is_passed_over(one, now));
        others.find(answers).unwrap_or((at + 1) % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Vec<String> {
        ["a:1", "b:1", "c:1"].map(str::to_owned).to_vec()
    }

    #[test]
    fn one_that_says_nothing_is_passed_over_for_half_a_lease() {
        let (all, mut silent) = (three(), Silent::default());
        silent.told_lease(8_000);
        silent.said_nothing("b:1", Millis(100));
        assert_eq!(silent.next(&all, 0, Millis(100)), 2);
        assert!(silent.is_passed_over("b:1", Millis(4_099)) && !silent.is_passed_over("b:1", Millis(4_100)));
        assert_eq!(silent.next(&all, 0, Millis(4_100)), 1);
        silent.said_nothing("b:1", Millis(5_000));
        silent.answered("b:1");
        assert_eq!(silent.next(&all, 0, Millis(5_000)), 1);
    }

    #[test]
    fn when_all_say_nothing_they_are_tried_in_turn() {
        let (all, mut silent) = (three(), Silent::default());
        all.iter().for_each(|one| silent.said_nothing(one, Millis(0)));
        assert_eq!(silent.next(&all, 2, Millis(1)), 0);
        let alone = vec!["a:1".to_owned()];
        assert_eq!(silent.next(&alone, 0, Millis(1)), 0);
    }

    #[test]
    fn addresses_that_others_name_are_not_remembered_without_end() {
        let mut silent = Silent::default();
        (0..10 * SILENT_COORDINATORS).for_each(|one| silent.said_nothing(&one.to_string(), Millis(0)));
        assert_eq!(silent.until.len(), SILENT_COORDINATORS);
    }
}
