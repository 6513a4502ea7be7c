//! For how long a leader does not ask a follower that has left the in-sync set back into it.
//!
//! Each change of the set is a commit of the map, an epoch and a first entry. On overloaded machines followers fall silent for a
//! moment again and again: if the leader asked each of them in as soon as it replies, these changes would keep the machines
//! overloaded. So the delay doubles with each departure. The leader also delays, for less, while the coordinator declines a
//! follower, since each of its answers is a commit, too.
//!
//! | what happens | the delay |
//! |---|---|
//! | the follower leaves the set the first time | none |
//! | it leaves again | twice the last one, from `wish_repeat_ms` to `longest_rejoin_delay_ms`, and up to half of that more, by its placement, so that the followers of many shards do not come back together |
//! | it was in the set for `longest_rejoin_delay_ms` | half, and so on until none is left |
//! | the coordinator declines it | twice the last one, to [`LONGEST_DECLINED`] |
//! | the coordinator takes it | that one is forgotten |
//! | another process has the replica, or the same one registers anew | none now; the count of departures stays |
//!
//! Each replica computes the delays from the orders that it hears, whether it leads or not. So the next leader knows the same
//! delays, that of the former leader included.
//!
//! What was not done: a patience that grows with each departure, so that the follower would stay in the set. Writes would wait
//! for it each time, and for a dead one they would wait longer than they may.

use super::{Order, Settings};
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::BTreeMap;

/// The longest delay after the coordinator declined a follower, as a multiple of [`Settings::wish_repeat_ms`].
const LONGEST_DECLINED: u64 = 32;

/// The delays of the replicas that the last order names.
#[derive(Debug, Clone, Default)]
pub(super) struct RejoinDelays(BTreeMap<PlacementId, (Incarnation, RejoinDelay)>);

impl RejoinDelays {
    /// An order has come in.
    pub(super) fn on_order(&mut self, order: &Order, settings: &Settings, now: Millis) {
        let mut former = std::mem::take(&mut self.0);
        for peer in &order.peers {
            let (incarnation, mut delay) = former.remove(&peer.placement).unwrap_or_default();
            delay.on_order(peer.placement, order.in_sync.contains(&peer.placement), settings, now);
            if incarnation != peer.incarnation {
                delay.end();
            }
            self.0.insert(peer.placement, (peer.incarnation, delay));
        }
    }

    /// The coordinator declined the replica `of`, in that process.
    pub(super) fn on_declined(
        &mut self,
        of: PlacementId,
        incarnation: Incarnation,
        settings: &Settings,
        now: Millis,
    ) {
        if let Some((_, delay)) = self.0.get_mut(&of).filter(|(known, _)| *known == incarnation) {
            delay.on_declined(settings, now);
        }
    }

    /// The delay of one replica.
    pub(super) fn of(&self, placement: PlacementId) -> RejoinDelay {
        self.0.get(&placement).map(|(_, delay)| *delay).unwrap_or_default()
    }
}

/// When a replica left the set, and when the coordinator declined it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RejoinDelay {
    /// Since when it is in the set, if it is.
    member_since: Option<Millis>,
    /// How often it has left, what is forgotten not counted.
    departures: u32,
    delayed_until: Millis,
    /// How often the coordinator declined it in a row.
    declined: u32,
    declined_until: Millis,
}

impl RejoinDelay {
    /// An order has come in which it is a member, or is not.
    fn on_order(&mut self, of: PlacementId, is_member: bool, settings: &Settings, now: Millis) {
        match (self.member_since, is_member) {
            (None, true) => (self.member_since, self.declined) = (Some(now), 0),
            (Some(since), false) => {
                self.member_since = None;
                self.has_left(of, now.since(since), settings, now);
            }
            _ => {}
        }
    }

    /// Another process has it. The count of departures stays: the coordinator takes a slow node for dead again and again.
    fn end(&mut self) {
        (self.delayed_until, self.declined, self.declined_until) = (Millis(0), 0, Millis(0));
    }

    fn has_left(&mut self, of: PlacementId, stayed: u64, settings: &Settings, now: Millis) {
        let (shortest, longest) = (settings.wish_repeat_ms, settings.longest_rejoin_delay_ms);
        let forgotten = u32::try_from(stayed / longest).unwrap_or(u32::MAX);
        self.departures = self.departures.saturating_sub(forgotten);
        let delay = match self.departures {
            0 => 0,
            times => doubled(shortest, times - 1, longest),
        };
        self.delayed_until = now + delay + delay * spread(of) / 512;
        // Departures beyond the longest delay would have to be forgotten one by one.
        self.departures += u32::from(delay < longest);
    }

    /// The coordinator declined it: the replica has not reported yet that it is loaded, or cannot join.
    fn on_declined(&mut self, settings: &Settings, now: Millis) {
        let shortest = settings.wish_repeat_ms;
        let delay = doubled(shortest, self.declined, LONGEST_DECLINED * shortest);
        self.declined_until = now + delay;
        self.declined += u32::from(delay < LONGEST_DECLINED * shortest);
    }

    /// How often it has left the set lately.
    pub(super) fn departures(&self) -> u32 {
        self.departures
    }

    /// Whether the leader leaves it out although it has caught up, while enough others are in the set.
    pub(super) fn is_delayed(&self, now: Millis) -> bool {
        now < self.delayed_until && !planted::is(Planted::NoRest)
    }

    /// Whether the leader leaves it out even where it is needed, as the coordinator declined it lately.
    pub(super) fn is_declined(&self, now: Millis) -> bool {
        self.declined > 0 && now < self.declined_until
    }
}

/// `shortest`, doubled so often, and no more than `longest`.
fn doubled(shortest: u64, times: u32, longest: u64) -> u64 {
    shortest.saturating_mul(1u64.checked_shl(times).unwrap_or(u64::MAX)).min(longest)
}

/// From 0 to 255, different for most placements.
fn spread(of: PlacementId) -> u64 {
    of.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: PlacementId = PlacementId(0);

    fn settings() -> Settings {
        Settings { wish_repeat_ms: 500, longest_rejoin_delay_ms: 60_000, ..Settings::default() }
    }

    /// It is a member for `stays`, and leaves. For how long it delays then.
    fn leaves(delay: &mut RejoinDelay, now: &mut Millis, stays: u64) -> u64 {
        delay.on_order(OF, true, &settings(), *now);
        *now = *now + stays;
        delay.on_order(OF, false, &settings(), *now);
        (0..).find(|ms| !delay.is_delayed(*now + *ms)).unwrap()
    }

    #[test]
    fn delays_double_to_the_longest_and_are_forgotten_by_halves() {
        let (mut delay, mut now) = (RejoinDelay::default(), Millis(1_000));
        let delays: Vec<_> = (0..10).map(|_| leaves(&mut delay, &mut now, 700)).collect();
        assert_eq!(delays, [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(leaves(&mut delay, &mut now, 120_000), 16_000);
        assert_eq!(leaves(&mut delay, &mut now, 3_600_000), 0);
        assert_eq!(leaves(&mut delay, &mut now, 59_000), 500);
    }

    #[test]
    fn what_is_not_taken_is_asked_for_later_and_later_until_it_is_taken() {
        let mut delay = RejoinDelay::default();
        let mut declined = || {
            delay.on_declined(&settings(), Millis(0));
            (0..).find(|ms| !delay.is_declined(Millis(*ms))).unwrap()
        };
        assert_eq!([declined(), declined(), declined()], [500, 1_000, 2_000]);
        assert_eq!((0..9).map(|_| declined()).max(), Some(16_000));
        delay.on_order(OF, true, &settings(), Millis(1));
        assert!(!delay.is_declined(Millis(1)));
    }

    #[test]
    fn followers_of_many_shards_do_not_come_back_together() {
        let at: std::collections::BTreeSet<_> = (1..=100).map(|of| spread(PlacementId(of))).collect();
        assert!(at.len() > 80 && at.iter().all(|spread| *spread < 256), "{at:?}");
    }
}
