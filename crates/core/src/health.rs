//! Failure detection: from beats, call-backs and leases to one word about a node.
//!
//! | from \ event  | beat   | check-back failed | beat missed | silent and lease over | gone for good |
//! |---------------|--------|-------------------|-------------|-----------------------|---------------|
//! | `Unknown`     | `Up`   | –                 | –           | `Down`                | `Left`        |
//! | `Up`          | –      | `Unreachable`     | `Suspect`   | `Down`                | `Left`        |
//! | `Suspect`     | `Up`   | –                 | –           | `Down`                | `Left`        |
//! | `Unreachable` | –¹     | –                 | `Suspect`   | `Down`                | `Left`        |
//! | `Down`, `Left`| for ever, for this incarnation (O6)                                          |
//!
//! ¹ until a check-back succeeds again.
//!
//! "Silent" is `dead_after_ms` without a beat, counted from the coordinator's own start when it has not
//! heard the node yet (R6). The word is computed, not kept: there is no transition to forget.

use crate::lease::Granted;
use crate::node::Health;
use crate::planted::{self, Planted};
use crate::settings::Settings;
use crate::time::Millis;

/// What is known of one incarnation of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    /// When this coordinator began to listen for it: its own start, or the registration.
    pub since: Millis,
    /// The last beat heard by this coordinator.
    pub last_beat: Option<Millis>,
    /// Until when it may act.
    pub lease: Granted,
    /// Check-backs failed in a row.
    pub failed_checks: u32,
    /// It said goodbye and had nothing left.
    pub left: bool,
    /// It was declared dead; nothing changes that.
    pub ended: bool,
}

impl Signs {
    /// Of an incarnation first heard of, or recalled from the records, at `now`.
    pub fn new(now: Millis, lease: Granted) -> Signs {
        Signs { since: now, last_beat: None, lease, failed_checks: 0, left: false, ended: false }
    }

    /// Whoever listens was deaf for `ms` until `now`: what was not heard meanwhile does not count.
    pub fn excuse(&mut self, now: Millis, ms: u64) {
        self.since = (self.since + ms).min(now);
        self.last_beat = self.last_beat.map(|heard| (heard + ms).min(now));
    }

    /// The word of the table above.
    pub fn health(&self, now: Millis, settings: &Settings) -> Health {
        let silent_ms = now.since(self.last_beat.unwrap_or(self.since));
        let lease_is_over = self.lease.is_over(now) || planted::is(Planted::O6);
        match self.last_beat {
            _ if self.left => Health::Left,
            _ if self.ended => Health::Down,
            _ if silent_ms >= settings.dead_after_ms && lease_is_over => Health::Down,
            None => Health::Unknown,
            Some(_) if silent_ms >= settings.suspect_after_ms() => Health::Suspect,
            Some(_) if self.failed_checks >= settings.failed_checks => Health::Unreachable,
            Some(_) => Health::Up,
        }
    }

    /// When [`Signs::health`] may next change by itself.
    pub fn next_change(&self, now: Millis, settings: &Settings) -> Millis {
        let heard = self.last_beat.unwrap_or(self.since);
        let dead_at = (heard + settings.dead_after_ms).max(self.lease.end());
        let moments = [heard + settings.suspect_after_ms(), dead_at];
        let next = moments.into_iter().filter(|at| *at > now).min();
        if self.left || self.ended { Millis::NEVER } else { next.unwrap_or(Millis::NEVER) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            heartbeat_ms: 100,
            lease_ms: 1_000,
            dead_after_ms: 1_500,
            failed_checks: 2,
            ..Settings::default()
        }
    }

    #[test]
    fn silence_makes_suspect_then_down_and_never_before_the_lease_is_over() {
        let mut signs = Signs::new(Millis(0), Granted::default());
        signs.last_beat = Some(Millis(0));
        signs.lease.renew(Millis(0), 5_000);
        assert_eq!(signs.health(Millis(100), &settings()), Health::Up);
        assert_eq!(signs.health(Millis(1_500), &settings()), Health::Suspect);
        assert_eq!(signs.health(Millis(5_149), &settings()), Health::Suspect);
        assert_eq!(signs.health(Millis(5_150), &settings()), Health::Down);
    }

    #[test]
    fn r6_a_fresh_coordinator_declares_nobody_dead_early() {
        let signs = Signs::new(Millis(70_000), Granted::default());
        assert_eq!(signs.health(Millis(71_499), &settings()), Health::Unknown);
        assert_eq!(signs.health(Millis(71_500), &settings()), Health::Down);
    }

    #[test]
    fn o6_an_ended_incarnation_stays_down_whatever_it_sends() {
        let mut signs = Signs::new(Millis(0), Granted::default());
        signs.ended = true;
        signs.last_beat = Some(Millis(9));
        assert_eq!(signs.health(Millis(10), &settings()), Health::Down);
        assert_eq!(signs.next_change(Millis(10), &settings()), Millis::NEVER);
    }

    #[test]
    fn the_next_change_is_exact() {
        let mut signs = Signs::new(Millis(0), Granted::default());
        signs.last_beat = Some(Millis(1_000));
        for now in (1_000..4_000).map(Millis) {
            let next = signs.next_change(now, &settings());
            let changes = (now.0..=4_000)
                .find(|t| signs.health(Millis(*t), &settings()) != signs.health(now, &settings()));
            assert_eq!(changes, (next != Millis::NEVER).then_some(next.0), "from {now}");
        }
    }

    #[test]
    fn an_address_that_does_not_answer_makes_it_unreachable() {
        let mut signs = Signs::new(Millis(0), Granted::default());
        signs.last_beat = Some(Millis(0));
        signs.failed_checks = 1;
        assert_eq!(signs.health(Millis(1), &settings()), Health::Up);
        signs.failed_checks = 2;
        assert_eq!(signs.health(Millis(1), &settings()), Health::Unreachable);
    }
}
