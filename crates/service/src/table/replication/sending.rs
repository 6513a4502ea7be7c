//! What a leader sends to its followers, and what it takes from their replies: entries to those that are behind, a
//! snapshot where the log does not reach back (rule 8).

use super::lead::Phase;
use super::message::{Append, Echo, Message, Reply};
use super::{Effect, Replica, Settings};
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

/// Appends of the largest size that may be under way to a peer before the next one waits for a reply: enough to keep a disk busy,
/// and little against the queue of a node, in which heartbeats of other shards wait, too.
const APPENDS_UNDER_WAY: usize = 4;

/// What a leader knows of one follower.
#[derive(Debug, Clone)]
pub(super) struct FollowerProgress {
    pub(super) incarnation: Incarnation,
    pub(super) may_join: bool,
    /// The last index up to which its disk has the leader's log.
    pub(super) matched: u64,
    /// The index of the entry that the leader sends next.
    next: u64,
    /// The leader does not know yet where the logs part, and sends appends without entries, one at a time.
    is_probed: bool,
    /// Replies to appends sent before this time do not say where the logs part.
    stepped: Millis,
    /// When the leader last sent entries to it.
    sent: Millis,
    /// When the leader sent the latest append that it has replied to: its promise counts from then.
    pub(super) acked_sent: Option<Millis>,
    /// When its last reply came, or the leader began to wait for one.
    pub(super) heard: Millis,
    /// The same as `acked_sent`, or when the leader began to wait for a reply.
    pub(super) acked_sent_or_begun: Millis,
    /// When it last had all, or had more than before.
    pub(super) progress: Millis,
    /// The latest time of its clock that came with a reply.
    clock: Option<Millis>,
    /// When the leader last asked for a snapshot for it.
    snapshot: Option<Millis>,
}

impl FollowerProgress {
    /// A follower of which the leader knows nothing.
    pub(super) fn begin(incarnation: Incarnation, next: u64, now: Millis) -> FollowerProgress {
        FollowerProgress {
            incarnation,
            may_join: false,
            matched: 0,
            next,
            is_probed: true,
            stepped: Millis(0),
            sent: Millis(0),
            acked_sent: None,
            heard: now,
            acked_sent_or_begun: now,
            progress: now,
            clock: None,
            snapshot: None,
        }
    }

    /// The leader has appended its first entry, and waits for replies from now on.
    pub(super) fn restart(&mut self, begin: u64, now: Millis) {
        let FollowerProgress { incarnation, may_join, .. } = *self;
        *self = FollowerProgress { may_join, ..FollowerProgress::begin(incarnation, begin, now) };
    }

    /// The leader was called late by so long: replies of the follower may wait to be handed in.
    pub(super) fn allow_for_delay(&mut self, ms: u64, now: Millis) {
        self.heard = (self.heard + ms).min(now);
        self.acked_sent_or_begun = (self.acked_sent_or_begun + ms).min(now);
        self.progress = (self.progress + ms).min(now);
    }

    /// Whether the next entry is no more in the leader's log, which begins behind `base`.
    fn is_before(&self, base: u64) -> bool {
        self.next <= base
    }

    /// The append sent at `sent` did not fit; the logs may be alike up to `ends`. Returns whether the follower needs a snapshot,
    /// as the leader's log begins behind `base`; none if the reply says nothing new.
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

    /// Whether sent entries must be sent again.
    fn is_overdue(&self, now: Millis, settings: &Settings) -> bool {
        !self.is_probed && self.next > self.matched + 1 && now >= self.sent + settings.resend_ms
    }
}

impl Replica {
    /// Sends each peer the next entries, or an empty append as a heartbeat.
    pub(super) fn send_to_all(&mut self, now: Millis) {
        let Some(lead) = &mut self.lead else { return };
        lead.append_at = now + self.settings.append_ms;
        let peers: Vec<_> = lead.followers.keys().copied().collect();
        for peer in peers {
            self.send_to(now, peer, true);
        }
    }

    /// Sends new entries to each peer, and no heartbeats.
    pub(super) fn send_new(&mut self, now: Millis) {
        let Some(lead) = &self.lead else { return };
        let peers: Vec<_> = lead.followers.keys().copied().collect();
        for peer in peers {
            self.send_rest(now, peer);
        }
    }

    /// Sends appends with what one peer lacks, while few are under way. A peer replies after a sync, so one append at a time
    /// would wait for one sync each.
    fn send_rest(&mut self, now: Millis, to: PlacementId) {
        while self.send_to(now, to, false) && !self.has_much_under_way(to) {}
    }

    fn has_much_under_way(&self, to: PlacementId) -> bool {
        let bytes = APPENDS_UNDER_WAY * self.settings.append_bytes;
        let follower = self.lead.as_ref().and_then(|lead| lead.followers.get(&to));
        follower.is_none_or(|follower| self.log.is_much(follower.matched + 1, follower.next, bytes))
    }

    /// Sends the next entries to one peer; without any, sends a heartbeat if one is `due`. Returns whether there were entries.
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
            // Another replica leads, mostly the one that refuses, whether this one has heard the order or not.
            self.step_down();
            if let Some(epoch) = self.let_go {
                self.effects.push(Effect::Send(from, Message::LetGo(epoch)));
            }
            return;
        }
        let Some(follower) = lead.followers.get_mut(&from) else { return };
        let is_of_another = follower.incarnation != reply.incarnation;
        // A reply to an append of an earlier epoch may be for a former process of this replica, whose clock was another.
        if reply.epoch != lead.epoch || is_of_another || lead.phase == Phase::Waiting {
            return;
        }
        follower.heard = now;
        follower.acked_sent = follower.acked_sent.max(Some(reply.sent));
        follower.acked_sent_or_begun = follower.acked_sent_or_begun.max(reply.sent);
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
                // A closed log is not restarted: a follower that has all of it needs no snapshot, and no leader counts on
                // the others.
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
