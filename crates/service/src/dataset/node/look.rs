//! When a node looks at its source because of what peers have.
//!
//! A version of peers that the last look did not find may be in the own source by now; clients get nothing of it before
//! a look finds it (Z5), so the next refresh would be late. However much peers say costs the source one look in
//! [`Look::EVERY_MS`] at most.

use partage_core::base::time::Millis;

/// Whether a look at the source is wanted because of what peers have, and when the last one was. See the module.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    is_wanted: bool,
    last: Option<Millis>,
}

impl Look {
    pub(super) const EVERY_MS: u64 = 5_000;

    /// Notes whether peers have what a look may find.
    pub(super) fn want(&mut self, is_wanted: bool) {
        self.is_wanted |= is_wanted;
    }

    fn next(&self) -> Millis {
        self.last.map_or(Millis(0), |last| last + Look::EVERY_MS)
    }

    /// When it will be due, if it is wanted and is not due now.
    pub(super) fn at(&self, now: Millis) -> Option<Millis> {
        self.is_wanted.then(|| self.next()).filter(|at| *at > now)
    }

    /// Whether it is due now; it is then taken as done.
    pub(super) fn is_due(&mut self, now: Millis) -> bool {
        let is_due = self.is_wanted && self.next() <= now;
        if is_due {
            *self = Look { is_wanted: false, last: Some(now) };
        }
        is_due
    }
}
