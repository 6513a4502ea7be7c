//! How a follower handles the appends of its leader: rule 3, the promise of rule 6, and the report of rule 7.

use super::log::Matching;
use super::message::{Append, Echo, Message, Reply};
use super::{Damage, Effect, Entry, LogWrite, Replica};
use partage_core::base::id::{Epoch, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

/// The state of a follower under one epoch.
#[derive(Debug, Clone)]
pub(super) struct FollowerState {
    epoch: Epoch,
    leader: Option<PlacementId>,
    /// When the leader was last heard, or an order named it.
    pub(super) heard: Millis,
    /// When this replica last reported that the leader is silent.
    reported: Option<Millis>,
    /// The latest time of the leader's clock that came with an append.
    sent: Millis,
    /// The last index up to which the log is the leader's, on disk or not.
    matched: u64,
    /// How much of that the last reply acknowledged, and when.
    replied: u64,
    replied_at: Millis,
    /// Committed entries up to this index are on `min_in_sync` replicas: their writes may be acknowledged.
    pub(super) acknowledgeable: u64,
    /// A reply that waits until the fence is on disk, with its `ends`.
    delayed_reply: Option<Option<u64>>,
    /// All writes acknowledged before this time of the own clock are applied.
    pub(super) fresh: Option<Millis>,
    /// The same, when that index is applied.
    becomes_fresh: Option<(u64, Millis)>,
}

impl FollowerState {
    /// A follower that has heard nothing from the leader of that epoch.
    pub(super) fn begin(epoch: Epoch, now: Millis) -> FollowerState {
        FollowerState {
            epoch,
            leader: None,
            heard: now,
            reported: None,
            sent: Millis(0),
            matched: 0,
            replied: 0,
            replied_at: Millis(0),
            acknowledgeable: 0,
            delayed_reply: None,
            fresh: None,
            becomes_fresh: None,
        }
    }
}

impl Replica {
    pub(super) fn on_append(&mut self, now: Millis, from: PlacementId, append: Append) {
        let fence = self.durable.fence();
        if append.epoch < fence && !planted::is(Planted::OldEpoch) {
            let refusal = self.reply(now, append.epoch, append.sent);
            self.effects.push(Effect::Send(from, Message::Reply(refusal)));
            return;
        }
        if self.lead.as_ref().is_some_and(|lead| append.epoch <= lead.epoch) {
            return;
        }
        self.step_down();
        if append.epoch > fence {
            self.raise_fence(append.epoch);
        }
        if self.following.epoch != append.epoch {
            let (fresh, heard) = (self.following.fresh, now);
            self.following = FollowerState { fresh, ..FollowerState::begin(append.epoch, heard) };
        }
        self.following.heard = now;
        self.following.leader = Some(from);
        self.following.sent = self.following.sent.max(append.sent);
        self.promise.extend(append.epoch, now, self.settings.promise_ms);
        let is_blind = planted::is(Planted::UncheckedEntry);
        let mut waits_for_sync = false;
        let ends = match self.log.matching(append.before, &append.entries, is_blind) {
            Matching::Ends(ends) => Some(ends.max(self.committed)),
            Matching::Fits { known, cut } => {
                let cut = if planted::is(Planted::CutCommitted) {
                    append.entries.first().map(|_| append.before.index + known as u64)
                } else {
                    cut
                };
                if !self.cut(cut, &append) {
                    return;
                }
                waits_for_sync = self.take_in(append.before.index, append.entries, known);
                self.take_commit(append.committed, append.is_enough, append.echo);
                None
            }
        };
        // The follower replies to new entries when they are on disk: two replies to each write cost a leader more than the write.
        // But a slow disk must not make it silent, so it replies at once after half of `append_ms` without a reply.
        let has_replied = now < self.following.replied_at + self.settings.append_ms / 2;
        if !self.durable.has_fence() {
            self.following.delayed_reply = Some(ends);
        } else if !(waits_for_sync && has_replied) {
            self.send_reply(from, Reply { ends, ..self.reply(now, append.epoch, append.sent) });
        }
    }

    fn send_reply(&mut self, leader: PlacementId, reply: Reply) {
        (self.following.replied, self.following.replied_at) = (reply.matched, reply.clock);
        self.effects.push(Effect::Send(leader, Message::Reply(reply)));
    }

    /// Cuts what differs from the leader's log. A leader has all that is committed: if that differs, this replica is damaged.
    fn cut(&mut self, cut: Option<u64>, append: &Append) -> bool {
        let Some(after) = cut else { return true };
        if after < self.committed && !planted::is(Planted::CutCommitted) {
            let damage = Damage::CommittedDiffers { leader: append.before, committed: self.committed };
            self.damaged(damage);
            return false;
        }
        if after < self.log.end().index {
            self.log.truncate(after);
            self.durable.cut(after);
            let number = self.durable.begin(after);
            self.effects.push(Effect::Write(number, LogWrite::Truncate(after)));
            self.following.matched = self.following.matched.min(after);
        }
        true
    }

    /// Appends the entries that are not here, and notes up to where the log is the leader's. Returns whether there were any.
    fn take_in(&mut self, before: u64, entries: Vec<Entry>, known: usize) -> bool {
        let matched = entries.last().map_or(before, |last| last.position.index);
        let new: Vec<_> = entries.into_iter().skip(known).collect();
        let is_new = !new.is_empty();
        if is_new {
            new.iter().for_each(|entry| self.log.push(entry.clone()));
            let number = self.durable.begin(self.log.end().index);
            self.effects.push(Effect::Write(number, LogWrite::Append(new)));
        }
        self.following.matched = self.following.matched.max(matched.min(self.log.end().index));
        is_new
    }

    /// Commits what the leader has committed, as far as the logs are known to be alike.
    fn take_commit(&mut self, committed: u64, is_enough: bool, echo: Option<Echo>) {
        let known = committed.min(self.following.matched);
        self.commit_to(known);
        if is_enough {
            self.following.acknowledgeable = self.following.acknowledgeable.max(known);
        }
        let echo = echo.filter(|echo| echo.incarnation == self.incarnation);
        if let Some(echo) = echo
            && self.following.becomes_fresh.is_none()
        {
            self.following.becomes_fresh = Some((committed, echo.clock));
        }
        self.freshen();
    }

    fn freshen(&mut self) {
        if let Some((committed, clock)) = self.following.becomes_fresh
            && self.applied >= committed
        {
            self.following.fresh = self.following.fresh.max(Some(clock));
            self.following.becomes_fresh = None;
        }
    }

    fn reply(&self, now: Millis, epoch: Epoch, sent: Millis) -> Reply {
        let on_disk = if planted::is(Planted::UnsyncedReply) { u64::MAX } else { self.durable.synced() };
        let is_of_leader = epoch == self.following.epoch;
        let matched = if is_of_leader { self.following.matched.min(on_disk) } else { 0 };
        let fence = self.durable.fence();
        Reply { epoch, fence, incarnation: self.incarnation, sent, clock: now, matched, ends: None }
    }

    /// Something has reached the disk, and the leader waits for the reply.
    pub(super) fn reply_to_sync(&mut self, now: Millis) {
        self.freshen();
        let Some(leader) = self.following.leader else { return };
        let epoch = self.following.epoch;
        if !self.durable.has_fence() || (epoch < self.durable.fence() && !planted::is(Planted::OldEpoch)) {
            return;
        }
        let reply = self.reply(now, epoch, self.following.sent);
        if self.following.delayed_reply.is_some() || reply.matched > self.following.replied {
            let ends = self.following.delayed_reply.take().flatten();
            self.send_reply(leader, Reply { ends, ..reply });
        }
    }

    fn is_in_sync_follower(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.leader != self.me && order.in_sync.contains(&self.me))
    }

    /// When to report that the leader is silent.
    pub(super) fn silence_at(&self) -> Millis {
        if !self.is_in_sync_follower() {
            return Millis::NEVER;
        }
        let silent = self.following.heard + self.settings.promise_ms;
        let again = self.following.reported.map_or(silent, |at| at + self.settings.wish_repeat_ms);
        silent.max(again)
    }

    /// Reports that the leader is silent (rule 7).
    pub(super) fn report_silence(&mut self, now: Millis) {
        if self.lead.is_none()
            && now >= self.silence_at()
            && let Some(epoch) = self.order.as_ref().map(|order| order.epoch)
        {
            self.following.reported = Some(now);
            self.effects.push(Effect::LeaderSilent(epoch));
        }
    }
}
