//! Wishes: which in-sync set a leader asks the coordinator for (rules 1 and 5).
//!
//! The leader asks a follower out that is silent, replies too late, or stores nothing, so that writes go on without it; later, if
//! too few would be left for writes. It asks a follower in that has all that is committed, with a delay if the coordinator
//! declined it or it has left again and again (`rejoin_delay.rs`). One wish at a time, which ends with an order of a later
//! configuration. A refusal only ends its repetition: the coordinator may still take a copy of it that is under way, so the
//! replicas in it stay required until the configuration changes. For that the leader asks for the set as it is.

use super::lead::Phase;
use super::promise::relied_on;
use super::sending::FollowerProgress;
use super::{Effect, Replica, Wish};
use partage_core::base::id::{Configuration, Epoch, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::BTreeSet;

/// How often the patience doubles at most with a needed follower that has left again and again: that one is slow and alive, and
/// each change makes it slower.
const NEEDED_DOUBLINGS: u32 = 2;

/// A wish that was sent.
#[derive(Debug, Clone)]
pub(super) struct PendingWish {
    pub(super) configuration: Configuration,
    pub(super) in_sync: BTreeSet<PlacementId>,
    /// When the leader sends it again, or after a refusal may send another one.
    pub(super) again_at: Millis,
    is_refused: bool,
}

impl Replica {
    pub(super) fn on_wish_refused(&mut self, epoch: Epoch, configuration: Configuration) {
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.epoch == epoch) else { return };
        if let Some(asked) = lead.wish.as_mut().filter(|asked| asked.configuration == configuration) {
            asked.is_refused = true;
            if planted::is(Planted::RefusedWish) {
                lead.asked.clear();
            }
        }
    }

    /// Repeats the wish that waits for an answer, or sends a new one if the leader wants another set.
    pub(super) fn consider_wish(&mut self, now: Millis) {
        let again_at = now + self.settings.wish_repeat_ms;
        let (Some(order), Some(lead)) = (&self.order, &self.lead) else { return };
        if !self.leads_by(order) || lead.wish.as_ref().is_some_and(|asked| now < asked.again_at) {
            return;
        }
        let configuration = order.configuration;
        let repeated =
            lead.wish.as_ref().filter(|asked| !asked.is_refused).map(|asked| asked.in_sync.clone());
        let in_sync = match repeated {
            Some(in_sync) => in_sync,
            None => {
                let wanted = self.wanted_set(now);
                let is_asked_for = |placement| order.in_sync.contains(&placement);
                // If more than the set is required, the leader asks for the same set again: the answer ends that.
                if wanted == order.in_sync && self.required().all(is_asked_for) {
                    if let Some(lead) = &mut self.lead {
                        lead.wish = None;
                    }
                    return;
                }
                wanted
            }
        };
        let Some(lead) = &mut self.lead else { return };
        let wish = Wish { placement: self.me, epoch: lead.epoch, configuration, in_sync: in_sync.clone() };
        lead.asked.extend(in_sync.iter().copied());
        lead.wish = Some(PendingWish { configuration, in_sync, again_at, is_refused: false });
        self.effects.push(Effect::Wish(wish));
    }

    /// The set that this leader wants.
    fn wanted_set(&self, now: Millis) -> BTreeSet<PlacementId> {
        let (Some(order), Some(lead)) = (&self.order, &self.lead) else { return BTreeSet::new() };
        let mut wanted = BTreeSet::from([self.me]);
        let (mut silent, mut delayed) = (Vec::new(), Vec::new());
        for (placement, follower) in &lead.followers {
            if order.in_sync.contains(placement) {
                match self.is_lost(follower, now, 1) {
                    true => silent.push((*placement, follower)),
                    false => drop(wanted.insert(*placement)),
                }
            } else if self.has_caught_up(*placement, follower, now) {
                match self.rejoin_delays.of(*placement).is_delayed(now) {
                    true => delayed.push(placement),
                    false => drop(wanted.insert(*placement)),
                }
            }
        }
        let enough = self.settings.min_in_sync;
        if wanted.len() < enough {
            let is_replaced = wanted.len() + delayed.len() >= enough;
            let waits = |(placement, follower): &(PlacementId, &FollowerProgress)| {
                !self.is_lost(follower, now, self.needed_patience(*placement, is_replaced))
            };
            let stay = silent.into_iter().filter(waits);
            wanted.extend(stay.map(|(placement, _)| placement));
        }
        if wanted.len() < enough {
            wanted.extend(delayed);
        }
        wanted
    }

    /// How many times as long as usual the leader waits for a member without which too few are in sync, before it asks that one
    /// out. `is_replaced`: delayed followers can take its place. Then the leader waits as usual for one that has not left lately,
    /// since it may be dead. Of followers that all come and go the leader keeps those it has.
    fn needed_patience(&self, placement: PlacementId, is_replaced: bool) -> u64 {
        let times = self.settings.needed_patience_times;
        let departures = self.rejoin_delays.of(placement).departures();
        match is_replaced {
            true => times.min(1 << departures.min(u32::BITS)),
            false => times << departures.min(NEEDED_DOUBLINGS),
        }
    }

    /// Whether a follower is silent, or stores nothing, for `times` as long as the leader is patient; or replies so late that its
    /// promise has ended by then, and the leader may acknowledge nothing.
    fn is_lost(&self, follower: &FollowerProgress, now: Millis, times: u64) -> bool {
        now.since(follower.heard) >= times * self.settings.follower_patience_ms
            || self.is_late(follower.acked_sent_or_begun, now, times)
            || now.since(follower.progress) >= times * self.settings.follower_stall_ms
    }

    /// Whether a follower replies too late to be in the set, if the latest append that it has replied to was sent at `sent`: its
    /// promise has ended, or would have if it lasted `times` as long. The same for members and newcomers, so that none comes that
    /// would leave at once.
    fn is_late(&self, sent: Millis, now: Millis, times: u64) -> bool {
        now >= relied_on(sent, times * self.settings.promise_ms)
    }

    /// Whether a follower may be asked in: it has all that is committed, of which the first entry of this epoch is the
    /// proof that nothing of earlier epochs is missing (rule 5).
    fn has_caught_up(&self, placement: PlacementId, follower: &FollowerProgress, now: Millis) -> bool {
        let has_begun = self.lead.as_ref().is_some_and(|lead| lead.phase == Phase::Leading);
        (has_begun || planted::is(Planted::EarlyNewcomer))
            && (follower.may_join || planted::is(Planted::AskedReader))
            && !self.rejoin_delays.of(placement).is_declined(now)
            && follower.matched >= self.committed
            && follower.acked_sent.is_some_and(|sent| !self.is_late(sent, now, 1))
            && now.since(follower.heard) < self.settings.follower_patience_ms / 2
    }
}
