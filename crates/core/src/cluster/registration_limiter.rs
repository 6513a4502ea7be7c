//! How many new processes may register from one address.
//!
//! Each of them costs a stored record, and anybody who reaches the coordinator can send as many as it likes. So each
//! address has an allowance: [`limits::NEWCOMERS`] at once, and one more each [`limits::NEWCOMER_MS`]. A whole fleet behind
//! one translated address starts within it. A process that comes back with its incarnation and token is not counted.
//!
//! The allowance is one number for each address (the generic cell rate algorithm): until when what came is paid for. An
//! address that owes nothing is forgotten; beyond [`limits::NEWCOMER_ADDRESSES`] of them the others share one allowance.

use super::members::Members;
use super::{Cluster, Moment, Outbox, RegisterError};
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
    /// Whether there is room for one more from that address.
    pub(super) fn check(&self, now: Millis, from: Option<&str>) -> Result<(), RegisterError> {
        let Some(from) = from else { return Ok(()) };
        let too_many = |wait_ms| RegisterError::TooMany { from: from.to_owned(), wait_ms };
        self.room(now, from).map(drop).map_err(too_many)
    }

    /// Whose allowance one more from that address takes, and until when that is paid for then; else in how many
    /// milliseconds there is room for it.
    fn room<'a>(&self, now: Millis, from: &'a str) -> Result<(&'a str, Millis), u64> {
        let owing = || self.paid_at.values().filter(|paid_at| **paid_at > now).count();
        let is_known = self.paid_at.contains_key(from);
        let is_full = !is_known && self.paid_at.len() >= limits::NEWCOMER_ADDRESSES;
        // No address is empty.
        let from = if is_full && owing() >= limits::NEWCOMER_ADDRESSES { "" } else { from };
        let paid_at = self.paid_at.get(from).copied().unwrap_or(now).max(now) + limits::NEWCOMER_MS;
        let over_ms = paid_at.since(now).saturating_sub(limits::NEWCOMERS * limits::NEWCOMER_MS);
        if over_ms > 0 { Err(over_ms) } else { Ok((from, paid_at)) }
    }

    /// Takes one more, where there is room for it.
    pub(super) fn take(&mut self, now: Millis, from: Option<&str>) {
        let Some((from, paid_at)) = from.and_then(|from| self.room(now, from).ok()) else { return };
        if self.paid_at.len() >= limits::NEWCOMER_ADDRESSES {
            self.paid_at.retain(|_, paid_at| *paid_at > now);
        }
        self.paid_at.insert(from.to_owned(), paid_at);
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

impl Members {
    /// Counts a new process from an address that has sent too many.
    pub(super) fn note_too_many(&mut self, at: Moment, from: &str, outbox: &mut Outbox) {
        let Some(count) = self.registrations.registration_limiter.refuse(at.now) else { return };
        let text = format!(
            "{from} registers more nodes than one address may: {} refused. Find who sends them; a \
             fleet of your own behind that address gets in, ten in a second",
            counted_with(count, "registration", ("is", "are"))
        );
        outbox.tell(EventKind::Alarm, About::all(), true, text);
    }
}

impl Cluster {
    /// How many registrations were refused because their address had sent too many, since this coordinator leads.
    pub fn newcomers_refused(&self) -> u64 {
        self.members.registrations.registration_limiter.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(limiter: &mut RegistrationLimiter, now: Millis, from: &str) -> Result<(), u64> {
        limiter.room(now, from)?;
        limiter.take(now, Some(from));
        Ok(())
    }

    #[test]
    fn each_address_has_an_allowance_that_comes_back_with_time() {
        let (mut limiter, now) = (RegistrationLimiter::default(), Millis(5_000));
        for _ in 0..limits::NEWCOMERS {
            take(&mut limiter, now, "a").unwrap();
        }
        assert_eq!(take(&mut limiter, now, "a"), Err(limits::NEWCOMER_MS));
        take(&mut limiter, now, "b").unwrap();
        let later = now + limits::NEWCOMER_MS;
        take(&mut limiter, later, "a").unwrap();
        assert!(take(&mut limiter, later, "a").is_err(), "one more, not more");
        let much_later = later + limits::NEWCOMERS * limits::NEWCOMER_MS;
        for _ in 0..limits::NEWCOMERS {
            take(&mut limiter, much_later, "a").unwrap();
        }
    }

    #[test]
    fn beyond_so_many_addresses_the_others_share_an_allowance_and_who_owes_nothing_is_forgotten() {
        let (mut limiter, now) = (RegistrationLimiter::default(), Millis(5_000));
        for number in 0..2 * limits::NEWCOMER_ADDRESSES as u64 {
            let taken = take(&mut limiter, now, &number.to_string());
            let shared = number.saturating_sub(limits::NEWCOMER_ADDRESSES as u64);
            assert_eq!(taken.is_ok(), shared < limits::NEWCOMERS, "{number}");
        }
        assert!(limiter.paid_at.len() <= limits::NEWCOMER_ADDRESSES + 1);
        take(&mut limiter, now + limits::NEWCOMER_MS, "0").unwrap();
        take(&mut limiter, now + 2 * limits::NEWCOMER_MS, "another").unwrap();
        assert!(limiter.paid_at.len() <= 3, "{}", limiter.paid_at.len());
    }
}
