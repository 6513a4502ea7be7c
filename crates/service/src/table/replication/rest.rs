//! Rests: for how long a leader leaves a follower out of what it asks for.
//!
//! Each change of the in-sync set is a commit of the map, an epoch and a first entry. On machines that have too much to do
//! followers are silent for a moment again and again: if each of them were asked in as soon as it answers, the changes would be
//! the work under which the machines are slow. So a follower that has left the set comes back at once the first time, and rests
//! twice as long each further time. It rests as well, for shorter, while the coordinator does not take it, as each answer is a
//! commit, too.
//!
//! | what happens | the rest |
//! |---|---|
//! | it leaves the set the first time | none |
//! | it leaves again | twice the last one, from `wish_repeat_ms` to `follower_rest_ms`, and up to half of that more, by its placement, so that the followers of many shards do not come back together |
//! | it was in the set for `follower_rest_ms` | half, and so on until none is left |
//! | it was asked in and not taken | twice the last one, to [`LONGEST_UNTAKEN`] |
//! | it was taken | that one is forgotten |
//! | another process has it, or the same one was registered anew | none now; how often it has left is not forgotten |
//!
//! Orders say who is in the set, and each replica hears them, whether it leads or not. So a leader that is replaced takes nothing
//! with it: the next one knows of the same rests, of the former leader's too.
//!
//! What was not done: a patience that grows with each time, so that the follower would stay in the set. Writes would wait for it
//! each time, and for one that has died they would wait longer than they may.

use super::{Order, Settings};
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::BTreeMap;

/// The longest time for which a follower that the coordinator did not take is not asked in again, as a multiple of
/// [`Settings::wish_repeat_ms`].
const LONGEST_UNTAKEN: u64 = 32;

/// The rests of the replicas that the last order names.
#[derive(Debug, Clone, Default)]
pub(super) struct Rests(BTreeMap<PlacementId, (Incarnation, Rest)>);

impl Rests {
    /// An order has come in.
    pub(super) fn on_order(&mut self, order: &Order, settings: &Settings, now: Millis) {
        let mut former = std::mem::take(&mut self.0);
        for peer in &order.peers {
            let (incarnation, mut rest) = former.remove(&peer.placement).unwrap_or_default();
            rest.on_order(peer.placement, order.in_sync.contains(&peer.placement), settings, now);
            if incarnation != peer.incarnation {
                rest.end();
            }
            self.0.insert(peer.placement, (peer.incarnation, rest));
        }
    }

    /// That one was asked in, in that process, and was not taken.
    pub(super) fn on_untaken(
        &mut self,
        of: PlacementId,
        incarnation: Incarnation,
        settings: &Settings,
        now: Millis,
    ) {
        if let Some((_, rest)) = self.0.get_mut(&of).filter(|(known, _)| *known == incarnation) {
            rest.on_untaken(settings, now);
        }
    }

    /// That of one replica.
    pub(super) fn of(&self, placement: PlacementId) -> Rest {
        self.0.get(&placement).map(|(_, rest)| *rest).unwrap_or_default()
    }
}

/// What is known of the times at which a replica left the set, or did not get into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rest {
    /// Since when it is in the set, if it is.
    member_since: Option<Millis>,
    /// How often it has left, what is forgotten not counted.
    left: u32,
    left_until: Millis,
    /// How often it was asked in and not taken, one after the other.
    untaken: u32,
    untaken_until: Millis,
}

impl Rest {
    /// An order has come in which it is a member, or is not.
    fn on_order(&mut self, of: PlacementId, is_member: bool, settings: &Settings, now: Millis) {
        match (self.member_since, is_member) {
            (None, true) => (self.member_since, self.untaken) = (Some(now), 0),
            (Some(since), false) => {
                self.member_since = None;
                self.has_left(of, now.since(since), settings, now);
            }
            _ => {}
        }
    }

    /// Another process has it. A node that is slow is taken for dead again and again, and comes back: that it has left counts on.
    fn end(&mut self) {
        (self.left_until, self.untaken, self.untaken_until) = (Millis(0), 0, Millis(0));
    }

    fn has_left(&mut self, of: PlacementId, stayed: u64, settings: &Settings, now: Millis) {
        let (shortest, longest) = (settings.wish_repeat_ms, settings.follower_rest_ms);
        let forgotten = u32::try_from(stayed / longest).unwrap_or(u32::MAX);
        self.left = self.left.saturating_sub(forgotten);
        let rest = match self.left {
            0 => 0,
            times => doubled(shortest, times - 1, longest),
        };
        self.left_until = now + rest + rest * spread(of) / 512;
        // Behind the longest one nothing is to be forgotten.
        self.left += u32::from(rest < longest);
    }

    /// It was asked in, and the coordinator did not take it: it has not told it yet that it is ready, or cannot be.
    fn on_untaken(&mut self, settings: &Settings, now: Millis) {
        let shortest = settings.wish_repeat_ms;
        let rest = doubled(shortest, self.untaken, LONGEST_UNTAKEN * shortest);
        self.untaken_until = now + rest;
        self.untaken += u32::from(rest < LONGEST_UNTAKEN * shortest);
    }

    /// How often it has left the set lately.
    pub(super) fn times_left(&self) -> u32 {
        self.left
    }

    /// Whether it is not asked in though it has all, as others are in the set.
    pub(super) fn is_left_out(&self, now: Millis) -> bool {
        now < self.left_until && !planted::is(Planted::NoRest)
    }

    /// Whether it is not asked in, be it needed, as the coordinator would not take it.
    pub(super) fn is_untaken(&self, now: Millis) -> bool {
        self.untaken > 0 && now < self.untaken_until
    }
}

/// `shortest`, doubled so often, and no more than `longest`.
fn doubled(shortest: u64, times: u32, longest: u64) -> u64 {
    shortest.saturating_mul(1u64.checked_shl(times).unwrap_or(u64::MAX)).min(longest)
}

/// From 0 to 255, another for most placements.
fn spread(of: PlacementId) -> u64 {
    of.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: PlacementId = PlacementId(0);

    fn settings() -> Settings {
        Settings { wish_repeat_ms: 500, follower_rest_ms: 60_000, ..Settings::default() }
    }

    /// It is a member for `stays`, and leaves. For how long it rests then.
    fn leaves(rest: &mut Rest, now: &mut Millis, stays: u64) -> u64 {
        rest.on_order(OF, true, &settings(), *now);
        *now = *now + stays;
        rest.on_order(OF, false, &settings(), *now);
        (0..).find(|ms| !rest.is_left_out(*now + *ms)).unwrap()
    }

    #[test]
    fn rests_double_to_the_longest_and_are_forgotten_by_halves() {
        let (mut rest, mut now) = (Rest::default(), Millis(1_000));
        let rests: Vec<_> = (0..10).map(|_| leaves(&mut rest, &mut now, 700)).collect();
        assert_eq!(rests, [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(leaves(&mut rest, &mut now, 120_000), 16_000);
        assert_eq!(leaves(&mut rest, &mut now, 3_600_000), 0);
        assert_eq!(leaves(&mut rest, &mut now, 59_000), 500);
    }

    #[test]
    fn what_is_not_taken_is_asked_for_later_and_later_until_it_is_taken() {
        let mut rest = Rest::default();
        let mut untaken = || {
            rest.on_untaken(&settings(), Millis(0));
            (0..).find(|ms| !rest.is_untaken(Millis(*ms))).unwrap()
        };
        assert_eq!([untaken(), untaken(), untaken()], [500, 1_000, 2_000]);
        assert_eq!((0..9).map(|_| untaken()).max(), Some(16_000));
        rest.on_order(OF, true, &settings(), Millis(1));
        assert!(!rest.is_untaken(Millis(1)));
    }

    #[test]
    fn followers_of_many_shards_do_not_come_back_together() {
        let at: std::collections::BTreeSet<_> = (1..=100).map(|of| spread(PlacementId(of))).collect();
        assert!(at.len() > 80 && at.iter().all(|spread| *spread < 256), "{at:?}");
    }
}
