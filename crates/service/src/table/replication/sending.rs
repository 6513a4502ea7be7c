//! What a leader sends to its followers, and what it takes from their replies: entries to those that are behind, a
//! snapshot where the log does not reach back (rule 9).

use super::lead::Phase;
use super::message::{Append, Echo, Message, Reply};
use super::{Effect, Replica, Settings};
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

/// So many appends of the largest size may be under way to a peer before the next one waits for a reply: enough to keep a disk
/// busy, and little against what may wait for a node, on which the heartbeats of other shards wait, too.
const APPENDS_UNDER_WAY: usize = 4;

/// What a leader knows of one follower.
#[derive(Debug, Clone)]
pub(super) struct Follower {
    pub(super) incarnation: Incarnation,
    pub(super) may_join: bool,
    /// Up to this index it has the leader's log on disk.
    pub(super) matched: u64,
    /// The entry that it is sent next.
    next: u64,
    /// Whether it is not known yet where the logs part: it is sent one append at a time.
    is_probed: bool,
    /// Appends sent before this time say nothing of where the logs part.
    stepped: Millis,
    /// When entries were sent to it last.
    sent: Millis,
    /// When the latest append was sent that it has replied to.
    pub(super) replied_to: Option<Millis>,
    /// When a reply of it came last, or it began to be waited for.
    pub(super) heard: Millis,
    /// When the latest append was sent that it has replied to, or it began to be waited for.
    pub(super) answered: Millis,
    /// When it last had all, or had more than before.
    pub(super) progress: Millis,
    /// The latest of its clocks.
    clock: Option<Millis>,
    /// When a snapshot was sent for last.
    snapshot: Option<Millis>,
}

impl Follower {
    /// Nothing is known of it.
    pub(super) fn begin(incarnation: Incarnation, next: u64, now: Millis) -> Follower {
        Follower {
            incarnation,
            may_join: false,
            matched: 0,
            next,
            is_probed: true,
            stepped: Millis(0),
            sent: Millis(0),
            replied_to: None,
            heard: now,
            answered: now,
            progress: now,
            clock: None,
            snapshot: None,
        }
    }

    /// The leader appends its first entry: from now on it is waited for.
    pub(super) fn restart(&mut self, begin: u64, now: Millis) {
        let Follower { incarnation, may_join, .. } = *self;
        *self = Follower { may_join, ..Follower::begin(incarnation, begin, now) };
    }

    /// The leader was not called for so long: what the follower has said meanwhile may not have been handed in yet.
    pub(super) fn excuse(&mut self, ms: u64, now: Millis) {
        self.heard = (self.heard + ms).min(now);
        self.answered = (self.answered + ms).min(now);
        self.progress = (self.progress + ms).min(now);
    }

    /// The log begins behind `base`, of which it may have nothing.
    fn is_before(&self, base: u64) -> bool {
        self.next <= base
    }

    /// An append that was sent at `sent` did not fit; its log may be alike up to `ends`. Says whether it needs a snapshot, as the
    /// log begins behind `base` and does not reach back; none if nothing new was said.
    fn step_back(&mut self, ends: u64, base: u64, sent: Millis, now: Millis) -> Option<bool> {
        if sent < self.stepped || self.matched >= self.next.saturating_sub(1) {
            return None;
        }
        let needs_snapshot = ends < base || (self.next == base + 1 && self.is_probed);
        self.next = (ends + 1).min(self.next - 1).max(self.matched + 1).max(base + 1);
        self.is_probed = true;
        self.stepped = now;
        Some(needs_snapshot)
    }

    /// Whether it is still to be sent something that was sent before.
    fn is_overdue(&self, now: Millis, settings: &Settings) -> bool {
        !self.is_probed && self.next > self.matched + 1 && now >= self.sent + settings.resend_ms
    }
}

impl Replica {
    /// Sends something to each peer: what is next, or that it still leads.
    pub(super) fn send_to_all(&mut self, now: Millis) {
        let Some(lead) = &mut self.lead else { return };
        lead.append_at = now + self.settings.append_ms;
        let peers: Vec<_> = lead.followers.keys().copied().collect();
        for peer in peers {
            self.send_to(now, peer, true);
        }
    }

    /// Sends new entries to each peer that is up to date otherwise.
    pub(super) fn send_new(&mut self, now: Millis) {
        let Some(lead) = &self.lead else { return };
        let peers: Vec<_> = lead.followers.keys().copied().collect();
        for peer in peers {
            self.send_rest(now, peer);
        }
    }

    /// Sends what one peer lacks: an append, and more while few of them are under way. A peer replies when it has stored what
    /// came, so that one append alone would wait for one sync.
    fn send_rest(&mut self, now: Millis, to: PlacementId) {
        while self.send_to(now, to, false) && !self.has_much_under_way(to) {}
    }

    fn has_much_under_way(&self, to: PlacementId) -> bool {
        let bytes = APPENDS_UNDER_WAY * self.settings.append_bytes;
        let follower = self.lead.as_ref().and_then(|lead| lead.followers.get(&to));
        follower.is_none_or(|follower| self.log.is_much(follower.matched + 1, follower.next, bytes))
    }

    /// Sends what is next to one peer; if there is nothing, only when it is `due`. Says whether there was something.
    fn send_to(&mut self, now: Millis, to: PlacementId, due: bool) -> bool {
        let echoes = self.may_rely(now) || planted::is(Planted::UnpromisedEcho);
        let is_enough = self.is_enough();
        let (base, end) = (self.log.base(), self.log.end().index);
        let Some(lead) = self.lead.as_mut().filter(|lead| lead.phase != Phase::Waiting) else {
            return false;
        };
        let epoch = lead.epoch;
        let Some(follower) = lead.followers.get_mut(&to) else { return false };
        if due && follower.is_overdue(now, &self.settings) {
            follower.next = follower.matched + 1;
        }
        if follower.is_before(base.index) {
            follower.next = base.index + 1;
            follower.is_probed = true;
        }
        if follower.matched >= end {
            follower.progress = now;
        }
        let in_flight = (follower.next - follower.matched - 1) as usize;
        let room = self.settings.in_flight_entries.saturating_sub(in_flight);
        let most = if follower.is_probed { 0 } else { room.min(self.settings.append_entries) };
        let entries = self.log.slice(follower.next, most, self.settings.append_bytes);
        let has_entries = !entries.is_empty();
        if !has_entries && !due {
            return false;
        }
        let before = self.log.position(follower.next - 1).unwrap_or(base);
        if has_entries {
            follower.sent = now;
            follower.next += entries.len() as u64;
        }
        let echo =
            follower.clock.filter(|_| echoes).map(|clock| Echo { incarnation: follower.incarnation, clock });
        let committed = self.committed;
        let append = Append { epoch, before, entries, committed, is_enough, sent: now, echo };
        self.effects.push(Effect::Send(to, Message::Append(append)));
        has_entries
    }

    pub(super) fn on_reply(&mut self, now: Millis, from: PlacementId, reply: Reply) {
        let base = self.log.base().index;
        let Some(lead) = &mut self.lead else { return };
        if reply.fence > lead.epoch {
            // Another replica leads, whether the order has come or not: mostly the one that refuses.
            self.step_down();
            if let Some(epoch) = self.let_go {
                self.effects.push(Effect::Send(from, Message::LetGo(epoch)));
            }
            return;
        }
        let Some(follower) = lead.followers.get_mut(&from) else { return };
        let is_of_another = follower.incarnation != reply.incarnation;
        // A reply to an append of an earlier epoch may be one to a former life of this replica, whose clock was another.
        if reply.epoch != lead.epoch || is_of_another || lead.phase == Phase::Waiting {
            return;
        }
        follower.heard = now;
        follower.replied_to = follower.replied_to.max(Some(reply.sent));
        follower.answered = follower.answered.max(reply.sent);
        follower.clock = follower.clock.max(Some(reply.clock));
        if reply.matched > follower.matched {
            follower.matched = reply.matched;
            follower.next = follower.next.max(reply.matched + 1);
            follower.progress = now;
        }
        self.copy_follows(now, from);
        let Some(follower) = self.lead.as_mut().and_then(|lead| lead.followers.get_mut(&from)) else {
            return;
        };
        match reply.ends.map(|ends| follower.step_back(ends, base, reply.sent, now)) {
            Some(Some(true)) => {
                let again = self.settings.snapshot_repeat_ms;
                // A log that has been closed is not begun anew: a follower that has all of it needs none, and one that has
                // not is not counted on.
                let is_closed = self.log.first_of_close().is_some();
                if !is_closed && follower.snapshot.is_none_or(|at| now >= at + again) {
                    follower.snapshot = Some(now);
                    self.effects.push(Effect::Snapshot(from));
                }
            }
            // The next probe goes out at once.
            Some(Some(false)) => drop(self.send_to(now, from, true)),
            Some(None) => {}
            None => {
                follower.is_probed &= reply.sent < follower.stepped;
                self.send_rest(now, from);
            }
        }
        self.advance(now);
    }
}
