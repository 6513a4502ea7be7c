//! How many new processes may register from one address.
//!
//! Each of them costs a stored record, and anybody who reaches the coordinator can send as many as it likes. So each
//! address has an allowance: [`limits::NEWCOMERS`] at once, and one more each [`limits::NEWCOMER_MS`]. A whole fleet behind
//! one translated address starts within it. A process that comes back with its incarnation and token is not counted.
//!
//! The allowance is one number for each address (the generic cell rate algorithm): until when what came is paid for. An
//! address that owes nothing is forgotten; beyond [`limits::NEWCOMER_ADDRESSES`] of them the others share one allowance.

use super::{Cluster, Moment, RegisterError};
use crate::base::count::counted_with;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;
use std::collections::BTreeMap;

/// See the module. Not stored: another coordinator begins with an allowance for all.
#[derive(Debug, Clone, Default)]
pub(super) struct RegistrationLimiter {
    /// Until when what came from each address is paid for.
    paid_at: BTreeMap<String, Millis>,
    refused: u64,
    /// As many of them as the coordinator has told of, and when it did last.
    told: (u64, Option<Millis>),
}

impl RegistrationLimiter {
    /// Takes one more from that address; else says in how many milliseconds there is room for it.
    fn take(&mut self, now: Millis, from: &str) -> Result<(), u64> {
        if self.paid_at.len() >= limits::NEWCOMER_ADDRESSES && !self.paid_at.contains_key(from) {
            self.paid_at.retain(|_, paid_at| *paid_at > now);
        }
        let is_room = self.paid_at.len() < limits::NEWCOMER_ADDRESSES || self.paid_at.contains_key(from);
        // No address is empty.
        let from = if is_room { from } else { "" };
        let paid_at = self.paid_at.get(from).copied().unwrap_or(now).max(now) + limits::NEWCOMER_MS;
        let over_ms = paid_at.since(now).saturating_sub(limits::NEWCOMERS * limits::NEWCOMER_MS);
        if over_ms > 0 {
            return Err(over_ms);
        }
        self.paid_at.insert(from.to_owned(), paid_at);
        Ok(())
    }

    /// Counts a refusal; how many there were since the coordinator told of them, when it is time to tell again.
    fn refuse(&mut self, now: Millis) -> Option<u64> {
        self.refused += 1;
        let (told, at) = self.told;
        if at.is_some_and(|at| now.since(at) < limits::NEWCOMERS_TOLD_MS) {
            return None;
        }
        self.told = (self.refused, Some(now));
        Some(self.refused - told)
    }
}

impl Cluster {
    /// Refuses a new process from an address that has sent too many.
    pub(super) fn check_registration_rate(
        &mut self,
        at: Moment,
        from: Option<&str>,
    ) -> Result<(), RegisterError> {
        let Some(from) = from else { return Ok(()) };
        let Err(wait_ms) = self.registrations.registration_limiter.take(at.now, from) else { return Ok(()) };
        if let Some(count) = self.registrations.registration_limiter.refuse(at.now) {
            let text = format!(
                "{from} registers more nodes than one address may: {} refused. Find who sends them; a \
                 fleet of your own behind that address gets in, ten in a second",
                counted_with(count, "registration", ("is", "are"))
            );
            self.tell(EventKind::Alarm, About::all(), true, text);
        }
        Err(RegisterError::TooMany { from: from.to_owned(), wait_ms })
    }

    /// How many registrations were refused because their address had sent too many, since this coordinator leads.
    pub fn newcomers_refused(&self) -> u64 {
        self.registrations.registration_limiter.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_an_allowance_that_comes_back_with_time() {
        let (mut limiter, now) = (RegistrationLimiter::default(), Millis(5_000));
        for _ in 0..limits::NEWCOMERS {
            limiter.take(now, "a").unwrap();
        }
        assert_eq!(limiter.take(now, "a"), Err(limits::NEWCOMER_MS));
        limiter.take(now, "b").unwrap();
        let later = now + limits::NEWCOMER_MS;
        limiter.take(later, "a").unwrap();
        assert!(limiter.take(later, "a").is_err(), "one more, not more");
        let much_later = later + limits::NEWCOMERS * limits::NEWCOMER_MS;
        for _ in 0..limits::NEWCOMERS {
            limiter.take(much_later, "a").unwrap();
        }
    }

    #[test]
    fn beyond_so_many_addresses_the_others_share_an_allowance_and_who_owes_nothing_is_forgotten() {
        let (mut limiter, now) = (RegistrationLimiter::default(), Millis(5_000));
        for number in 0..2 * limits::NEWCOMER_ADDRESSES as u64 {
            let taken = limiter.take(now, &number.to_string());
            let shared = number.saturating_sub(limits::NEWCOMER_ADDRESSES as u64);
            assert_eq!(taken.is_ok(), shared < limits::NEWCOMERS, "{number}");
        }
        assert!(limiter.paid_at.len() <= limits::NEWCOMER_ADDRESSES + 1);
        limiter.take(now + limits::NEWCOMER_MS, "0").unwrap();
        limiter.take(now + 2 * limits::NEWCOMER_MS, "another").unwrap();
        assert!(limiter.paid_at.len() <= 3, "{}", limiter.paid_at.len());
    }
}
