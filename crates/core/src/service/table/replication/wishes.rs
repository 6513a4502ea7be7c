//! Wishes: which set a leader asks the coordinator for (rules 1 and 5).
//!
//! A follower that is silent, or stores nothing, is asked out, so that writes go on without it; later, if they would not go on. One that
//! has all that is committed is asked in; one that was asked in and not taken rests, as each answer is a commit of the map. One wish at a time. It ends with an order of a later configuration; a refusal ends its repetition only: a copy
//! of it may be under way and be taken yet, so what was asked for stays required until the configuration changes. For that
//! the leader asks for the set as it is.

use super::lead::Phase;
use super::sending::Follower;
use super::{Effect, Replica, Wish};
use crate::base::id::{Configuration, Epoch, PlacementId};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use std::collections::BTreeSet;

/// How many times as long a leader waits for a follower without which too few are in sync for a write. It gains little by asking
/// that one out, as writes are refused then and only reads go on; and of a shard of which only the leader is in sync no other replica may lead.
/// On a machine that is busy for a moment all leaders would do that at once.
const NEEDED_PATIENCE: u64 = 4;

/// A wish that was sent.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) configuration: Configuration,
    pub(super) in_sync: BTreeSet<PlacementId>,
    /// When it is sent again, or after a refusal another one may be.
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

    /// Sends the wish again that waits for an answer, or a new one if there is one to make.
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
                // The same set once more, if more than the set is required: then the coordinator's answer ends that.
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
        lead.wish = Some(Asked { configuration, in_sync, again_at, is_refused: false });
        self.effects.push(Effect::Wish(wish));
    }

    /// The set that this leader would have.
    fn wanted_set(&self, now: Millis) -> BTreeSet<PlacementId> {
        let (Some(order), Some(lead)) = (&self.order, &self.lead) else { return BTreeSet::new() };
        let mut wanted = BTreeSet::from([self.me]);
        let is_member = |placement: &PlacementId| order.in_sync.contains(placement);
        for (placement, follower) in &lead.followers {
            let stays = is_member(placement) && !self.is_lost(follower, now, 1);
            if stays || (!is_member(placement) && self.has_caught_up(follower, now)) {
                wanted.insert(*placement);
            }
        }
        if wanted.len() < self.settings.min_in_sync {
            let members = lead.followers.iter().filter(|(placement, _)| is_member(placement));
            let needed = members.filter(|(_, follower)| !self.is_lost(follower, now, NEEDED_PATIENCE));
            wanted.extend(needed.map(|(placement, _)| *placement));
        }
        wanted
    }

    /// Whether a follower is silent, or stores nothing, for so many times as long as the leader is patient.
    fn is_lost(&self, follower: &Follower, now: Millis, times: u64) -> bool {
        now.since(follower.heard) >= times * self.settings.follower_patience_ms
            || now.since(follower.progress) >= times * self.settings.follower_stall_ms
    }

    /// Whether a follower may be asked in: it has all that is committed, of which the first entry of this epoch is the
    /// proof that nothing of earlier epochs is missing (rule 5).
    fn has_caught_up(&self, follower: &Follower, now: Millis) -> bool {
        let has_begun = self.lead.as_ref().is_some_and(|lead| lead.phase == Phase::Leading);
        (has_begun || planted::is(Planted::EarlyNewcomer))
            && (follower.may_join || planted::is(Planted::AskedReader))
            && follower.rest.is_none_or(|(_, until)| now >= until)
            && follower.matched >= self.committed
            && follower.replied_to.is_some()
            && now.since(follower.heard) < self.settings.follower_patience_ms / 2
    }
}
