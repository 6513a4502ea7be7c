//! Failure detection: the health of a node, from its heartbeats (*beats*), checks of its address (*check-backs*) and its lease.
//!
//! | from \ event  | beat   | check-back failed | beat missed | silent and lease over | has left      |
//! |---------------|--------|-------------------|-------------|-----------------------|---------------|
//! | `Unknown`     | `Up`²  | `Unreachable`     | `Suspect`   | `Down`                | `Left`        |
//! | `Up`          | –      | `Unreachable`     | `Suspect`   | `Down`                | `Left`        |
//! | `Suspect`     | `Up`²  | –                 | –           | `Down`                | `Left`        |
//! | `Unreachable` | –¹     | –                 | `Suspect`   | `Down`                | `Left`        |
//! | `Down`        | `Up`²  | –                 | –           | –                     | `Left`        |
//! | `Left`        | for ever, for this incarnation (O6)                                          |
//! | declared dead | `Down` for ever, for this incarnation: the coordinator declares a `Down` node dead when the brake permits it |
//!
//! ¹ until a check-back succeeds again.
//! ² once its announced address has answered, too; until then `Unknown`. So a worker that the coordinator cannot call gets no
//! shard (A11). The order of the two does not matter. A registration is no beat.
//!
//! A node is silent after `dead_after_ms` without a beat, counted from the coordinator's own start if it has not
//! heard the node yet (R6). The health is computed, not stored, so no transition can be missed.

use crate::base::count::counted;
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::node::Health;
use crate::node::lease::GrantedLease;

/// What the coordinator has heard of one incarnation of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    /// When this coordinator began to listen for it: at its own start, or at the registration.
    pub since: Millis,
    /// When this coordinator heard it last, plus the time for which the coordinator itself was asleep.
    pub last_beat: Option<Millis>,
    /// When this coordinator heard it last.
    pub heard_at: Option<Millis>,
    /// Until when its worker may believe its orders.
    pub lease: GrantedLease,
    /// Whether it has sent a heartbeat since it registered with this coordinator.
    pub heard_beat: bool,
    /// Its announced address has answered this coordinator.
    pub answered: bool,
    /// How many check-backs in a row have failed.
    pub failed_checks: u32,
    /// Since when it is unreachable.
    pub unreachable_since: Option<Millis>,
    /// It sent `leave`: the coordinator has ended its lease, whatever it still held.
    pub left: bool,
    /// The coordinator has declared it dead.
    pub ended: bool,
}

impl Signs {
    /// Of an incarnation that has registered, or was recovered from the records, at `now`.
    pub fn new(now: Millis, lease: GrantedLease) -> Signs {
        Signs {
            since: now,
            last_beat: None,
            heard_at: None,
            lease,
            heard_beat: false,
            answered: false,
            failed_checks: 0,
            unreachable_since: None,
            left: false,
            ended: false,
        }
    }

    /// Extends the deadlines by `ms`, for which the coordinator could not hear until `now`.
    pub fn extend_by(&mut self, now: Millis, ms: u64) {
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
            Some(_) if self.answered && self.heard_beat => Health::Up,
            Some(_) => Health::Unknown,
        }
    }

    /// Why it is not [`Health::Up`], in words; `check` names the request that its address should answer.
    pub fn reason(&self, now: Millis, settings: &Settings, check: &str) -> Option<String> {
        let silent_ms = now.since(self.last_beat.unwrap_or(self.since));
        Some(match self.health(now, settings) {
            Health::Up => return None,
            Health::Unknown if self.last_beat.is_none() => {
                "it has sent no heartbeat since this coordinator leads".to_owned()
            }
            Health::Unknown if !self.heard_beat => "it has registered, and sent no heartbeat yet".to_owned(),
            Health::Unknown => format!("its address has not answered yet: the coordinator tries {check}"),
            Health::Suspect => format!("it has sent no heartbeat for {silent_ms} ms"),
            Health::Unreachable => format!(
                "it sends heartbeats, but its address does not answer: the last {} of {check} failed",
                counted(self.failed_checks as usize, "check")
            ),
            Health::Down if self.ended => "the coordinator declared this process dead".to_owned(),
            Health::Down => format!("it has sent no heartbeat for {silent_ms} ms, and its lease is over"),
            Health::Left => "it asked to leave, and has left".to_owned(),
        })
    }

    /// Notes that it has registered or sent a heartbeat.
    pub fn note_heard(&mut self, now: Millis) {
        self.last_beat = Some(now);
        self.heard_at = Some(now);
    }

    /// Notes a heartbeat. A registration alone does not make a node [`Health::Up`].
    pub fn note_beat(&mut self, now: Millis) {
        self.note_heard(now);
        self.heard_beat = true;
    }

    /// Notes a check-back. A service that has just started may not listen yet: before the first answer, checks do not count as
    /// failed for as long as [`Settings::failed_checks`] of them take.
    pub fn checked(&mut self, now: Millis, has_answered: bool, settings: &Settings) {
        if has_answered {
            (self.answered, self.failed_checks, self.unreachable_since) = (true, 0, None);
        } else if !self.is_starting(now, settings) {
            self.failed_checks = self.failed_checks.saturating_add(1);
            if self.failed_checks >= settings.failed_checks {
                self.unreachable_since.get_or_insert(now);
            }
        }
    }

    /// Whether its address has not answered yet, and need not.
    pub fn is_starting(&self, now: Millis, settings: &Settings) -> bool {
        let start_ms = settings.check_back_ms.saturating_mul(u64::from(settings.failed_checks));
        !self.answered && now.since(self.since) < start_ms
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
        let mut signs = Signs::new(Millis(0), GrantedLease::default());
        signs.checked(Millis(0), true, &settings());
        signs.note_beat(Millis(0));
        signs.lease.renew(Millis(0), 5_000);
        assert_eq!(signs.health(Millis(100), &settings()), Health::Up);
        assert_eq!(signs.health(Millis(1_500), &settings()), Health::Suspect);
        assert_eq!(signs.health(Millis(5_149), &settings()), Health::Suspect);
        assert_eq!(signs.health(Millis(5_150), &settings()), Health::Down);
    }

    #[test]
    fn r6_a_fresh_coordinator_declares_nobody_dead_early() {
        let signs = Signs::new(Millis(70_000), GrantedLease::default());
        assert_eq!(signs.health(Millis(71_499), &settings()), Health::Unknown);
        assert_eq!(signs.health(Millis(71_500), &settings()), Health::Down);
    }

    #[test]
    fn o6_an_ended_incarnation_stays_down_whatever_it_sends() {
        let mut signs = Signs::new(Millis(0), GrantedLease::default());
        signs.ended = true;
        signs.last_beat = Some(Millis(9));
        assert_eq!(signs.health(Millis(10), &settings()), Health::Down);
        assert_eq!(signs.next_change(Millis(10), &settings()), Millis::NEVER);
    }

    #[test]
    fn d10_a_silence_that_is_excused_is_no_sign_of_life() {
        let mut signs = Signs::new(Millis(0), GrantedLease::default());
        signs.note_beat(Millis(10));
        signs.extend_by(Millis(5_010), 5_000);
        assert_eq!((signs.last_beat, signs.heard_at), (Some(Millis(5_010)), Some(Millis(10))));
    }

    #[test]
    fn the_next_change_is_exact() {
        let mut signs = Signs::new(Millis(0), GrantedLease::default());
        signs.last_beat = Some(Millis(1_000));
        for now in (1_000..4_000).map(Millis) {
            let next = signs.next_change(now, &settings());
            let changes = (now.0..=4_000)
                .find(|t| signs.health(Millis(*t), &settings()) != signs.health(now, &settings()));
            assert_eq!(changes, (next != Millis::NEVER).then_some(next.0), "from {now}");
        }
    }

    #[test]
    fn a11_a_node_is_up_when_it_has_beaten_and_its_address_has_answered_in_either_order() {
        for check_first in [false, true] {
            let mut signs = Signs::new(Millis(0), GrantedLease::default());
            signs.last_beat = Some(Millis(0));
            assert_eq!(signs.health(Millis(1), &settings()), Health::Unknown, "registered is not up");
            if check_first {
                signs.checked(Millis(1), true, &settings())
            } else {
                signs.note_beat(Millis(1))
            };
            assert_eq!(signs.health(Millis(1), &settings()), Health::Unknown);
            if check_first {
                signs.note_beat(Millis(1))
            } else {
                signs.checked(Millis(1), true, &settings())
            };
            assert_eq!(signs.health(Millis(1), &settings()), Health::Up);
        }
    }

    #[test]
    fn a11_a_service_that_starts_has_time_to_listen_and_no_more() {
        let settings = Settings { check_back_ms: 100, ..settings() };
        let mut signs = Signs::new(Millis(0), GrantedLease::default());
        signs.note_beat(Millis(0));
        (0..100).for_each(|_| signs.checked(Millis(199), false, &settings));
        assert_eq!(signs.health(Millis(199), &settings), Health::Unknown);
        signs.checked(Millis(200), false, &settings);
        signs.checked(Millis(201), false, &settings);
        assert_eq!(signs.health(Millis(201), &settings), Health::Unreachable);
        assert_eq!(signs.unreachable_since, Some(Millis(201)));
        signs.checked(Millis(202), true, &settings);
        assert_eq!((signs.health(Millis(202), &settings), signs.unreachable_since), (Health::Up, None));
    }

    #[test]
    fn a_node_that_is_not_up_has_a_reason_that_names_what_is_missing() {
        let check = "GET http://10.0.0.7:7411/health";
        let reason = |signs: &Signs, at| signs.reason(Millis(at), &settings(), check);
        let mut signs = Signs::new(Millis(0), GrantedLease::assumed(Millis(0), 0));
        let is_of = |signs: &Signs, at, part: &str| {
            let told = reason(signs, at).unwrap_or_default();
            assert!(told.contains(part), "{part}: {told}");
        };
        is_of(&signs, 10, "no heartbeat since this coordinator leads");
        signs.note_heard(Millis(10));
        is_of(&signs, 10, "has registered, and sent no heartbeat yet");
        signs.note_beat(Millis(20));
        is_of(&signs, 20, check);
        signs.checked(Millis(20), true, &settings());
        assert_eq!(reason(&signs, 20), None, "it is up");
        is_of(&signs, 1_000, "no heartbeat for 980 ms");
        is_of(&signs, 2_000, "its lease is over");
        signs.note_beat(Millis(2_000));
        (0..2).for_each(|_| signs.checked(Millis(2_000), false, &settings()));
        is_of(&signs, 2_000, "the last 2 checks of GET http://10.0.0.7:7411/health failed");
        is_of(&Signs { ended: true, ..signs }, 2_000, "declared this process dead");
        is_of(&Signs { left: true, ..signs }, 2_000, "has left");
    }

    #[test]
    fn an_address_that_does_not_answer_makes_it_unreachable() {
        let mut signs = Signs::new(Millis(0), GrantedLease::default());
        signs.checked(Millis(0), true, &settings());
        signs.note_beat(Millis(0));
        signs.failed_checks = 1;
        assert_eq!(signs.health(Millis(1), &settings()), Health::Up);
        signs.failed_checks = 2;
        assert_eq!(signs.health(Millis(1), &settings()), Health::Unreachable);
    }
}
