//! The state of a leader, and how it begins: rules 1 and 4.
//!
//! | phase | what it waits for | what it does |
//! |---|---|---|
//! | waiting | its fence to be on disk, and its own promise to end | nothing, then appends `Begin` |
//! | beginning | `Begin` to be committed | asks silent followers out |
//! | leading | | admits, answers, asks for newcomers |
//! | closed | | admits nothing any more: the shard was split or merged |
//! | handing over | the heir to have all, and then for the coordinator | admits nothing; goes back to leading in the end |

use super::commit;
use super::copies::LogRetention;
use super::sending::FollowerProgress;
use super::wishes::PendingWish;
use super::writes::Uncommitted;
use super::{Effect, EntryKind, Order, Replica};
use partage_core::base::id::{Configuration, Epoch, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a leader may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The leader waits for its own promise to end.
    Waiting,
    /// The leader waits for its first entry to be committed.
    Beginning,
    /// The leader serves: it admits, answers, and asks for newcomers.
    Leading,
    /// The closing entry is committed: the leader admits nothing any more.
    Closed,
    /// The leader admits nothing, until the heir leads or this time is over.
    HandingOver { heir: PlacementId, until: Millis, is_ready: bool },
}

/// The state of a leader under one epoch.
#[derive(Debug, Clone)]
pub(super) struct LeaderState {
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
    /// The index of its first entry; 0 when it has appended none.
    pub(super) begin: u64,
    pub(super) followers: BTreeMap<PlacementId, FollowerProgress>,
    /// The configuration of its last order.
    configuration: Configuration,
    /// The replicas of all sets that the leader asked for under this configuration. The coordinator may take any of these wishes
    /// until the configuration changes, refused or not: a copy may be under way.
    pub(super) asked: BTreeSet<PlacementId>,
    pub(super) wish: Option<PendingWish>,
    pub(super) uncommitted: VecDeque<Uncommitted>,
    pub(super) uncommitted_bytes: usize,
    /// When the leader sends something to all followers next.
    pub(super) append_at: Millis,
    /// The followers to which rows are copied, and what the log keeps for each.
    pub(super) copies: BTreeMap<PlacementId, LogRetention>,
    /// The heir of the hand-over that the order asked for and that has begun, also when it has timed out, so that it begins once.
    /// None when orders ask for another one, and when the heir has left the set.
    pub(super) handed_over_to: Option<PlacementId>,
}

impl LeaderState {
    /// The replica has just heard that it leads. If it led before, as `former`, the coordinator has only raised the epoch: the
    /// set is smaller, or the shard has other bounds. No other replica has led in between: that one would have appended here, or
    /// had this replica taken out of the set, and in either case this one would have stepped down. So the clients of its writes
    /// go on waiting. It asks the followers anew how far their logs are.
    pub(super) fn begin(epoch: Epoch, former: Option<LeaderState>, now: Millis) -> LeaderState {
        let (mut followers, copies, uncommitted, uncommitted_bytes) = former
            .map_or_else(Default::default, |former| {
                (former.followers, former.copies, former.uncommitted, former.uncommitted_bytes)
            });
        followers.values_mut().for_each(|follower| follower.restart(1, now));
        LeaderState {
            epoch,
            phase: Phase::Waiting,
            begin: 0,
            followers,
            configuration: Configuration(0),
            asked: BTreeSet::new(),
            wish: None,
            uncommitted,
            uncommitted_bytes,
            append_at: Millis(0),
            copies,
            handed_over_to: None,
        }
    }

    /// Whether it has begun to serve.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Leading | Phase::HandingOver { .. })
    }

    /// The heir that has all entries, while the leader admits none.
    pub(super) fn heir_ready(&self) -> Option<PlacementId> {
        match self.phase {
            Phase::HandingOver { heir, is_ready: true, .. } => Some(heir),
            _ => None,
        }
    }

    /// The last index that every peer and the own disk have.
    pub(super) fn all_have(&self, synced: u64) -> u64 {
        self.followers.values().map(|follower| follower.matched).fold(synced, u64::min)
    }

    pub(super) fn wake_at(&self, replica: &Replica) -> Millis {
        let write_wait = replica.settings.write_wait_ms;
        let waits = self.uncommitted.iter().find(|write| write.request.is_some());
        let write = waits.map_or(Millis::NEVER, |write| write.since + write_wait);
        let phase = match self.phase {
            // That the fence is on disk comes as an event.
            Phase::Waiting if replica.durable.has_fence() => return replica.promise.until().min(write),
            Phase::Waiting => return write,
            Phase::Beginning | Phase::Leading | Phase::Closed => Millis::NEVER,
            Phase::HandingOver { until, .. } => until,
        };
        let wish = self.wish.as_ref().map_or(Millis::NEVER, |asked| asked.again_at);
        self.append_at.min(phase).min(wish).min(write)
    }
}

impl Replica {
    /// The other replicas that must have an entry before it is committed: the in-sync set of the last order, and all that the
    /// leader has asked for since (rule 1).
    pub(super) fn required(&self) -> impl Iterator<Item = PlacementId> {
        static NONE: BTreeSet<PlacementId> = BTreeSet::new();
        let (ordered, asked) = match (&self.order, &self.lead) {
            (Some(order), Some(lead)) => match &lead.wish {
                Some(asked) if planted::is(Planted::EarlyLeaver) => (&asked.in_sync, &NONE),
                _ => (&order.in_sync, &lead.asked),
            },
            _ => (&NONE, &NONE),
        };
        ordered.union(asked).copied().filter(|placement| *placement != self.me)
    }

    /// Takes over set and peers of the order.
    pub(super) fn take_up_configuration(&mut self, now: Millis) {
        let (Some(order), Some(lead)) = (&self.order, &mut self.lead) else { return };
        if lead.configuration < order.configuration {
            lead.configuration = order.configuration;
            let asked = lead.wish.take().map(|asked| asked.in_sync).unwrap_or_default();
            for placement in asked.difference(&order.in_sync) {
                if let Some(follower) = lead.followers.get(placement) {
                    self.rejoin_delays.on_declined(*placement, follower.incarnation, &self.settings, now);
                }
            }
            lead.asked.clear();
        }
        let next = self.log.end().index + 1;
        let mut former = std::mem::take(&mut lead.followers);
        for peer in order.peers.iter().filter(|peer| peer.placement != self.me) {
            let known = former.remove(&peer.placement).filter(|known| known.incarnation == peer.incarnation);
            let mut follower = known.unwrap_or_else(|| FollowerProgress::begin(peer.incarnation, next, now));
            follower.may_join = peer.may_join;
            lead.followers.insert(peer.placement, follower);
        }
        let (followers, in_sync) = (&lead.followers, &order.in_sync);
        lead.copies.retain(|of, _| followers.contains_key(of) && !in_sync.contains(of));
        self.end_transfer_to_former_member();
        self.advance(now);
    }

    /// Whether this replica leads under the epoch of the order.
    pub(super) fn leads_by(&self, order: &Order) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.epoch == order.epoch)
    }

    /// Appends the first entry of the epoch, when no leader can rely on this replica's promise any more (rules 4 and 6).
    pub(super) fn try_begin(&mut self, now: Millis) {
        let waits = self.phase() == Some(&Phase::Waiting);
        let is_free = now >= self.promise.until() || planted::is(Planted::PromiseNotWaitedOut);
        if !waits || !self.durable.has_fence() || !is_free {
            return;
        }
        let first = if self.closes() { EntryKind::Close } else { EntryKind::Begin };
        let begin = self.append(now, None, first);
        if let Some(lead) = &mut self.lead {
            lead.begin = begin;
            lead.phase = Phase::Beginning;
            for follower in lead.followers.values_mut() {
                follower.restart(begin, now);
            }
        }
        self.send_to_all(now);
    }

    /// Commits and answers what has become possible.
    pub(super) fn advance(&mut self, now: Millis) {
        let Some(lead) = &self.lead else { return };
        let matched = |placement: PlacementId| lead.followers.get(&placement).map_or(0, |one| one.matched);
        let mut have: Vec<u64> = self.required().map(matched).collect();
        if planted::is(Planted::CountedReader) {
            let readers = lead.followers.values().filter(|follower| !follower.may_join);
            if let (Some(reads), Some(least)) = (readers.map(|one| one.matched).max(), have.iter_mut().min())
            {
                *least = (*least).max(reads);
            }
        }
        have.push(self.durable.synced());
        let (begin, epoch) = (lead.begin, lead.epoch);
        if let Some(index) = commit::committed(&have, begin, self.is_enough()) {
            self.commit_to(index);
            self.settle_former_writes(now);
        }
        // Replies may be late: without promises another replica may lead, so this one acknowledges nothing.
        if self.committed >= begin && begin > 0 && self.promised_until().is_some_and(|until| now < until) {
            self.answer_committed();
            let closes = self.closes();
            if let Some(lead) = self.lead.as_mut().filter(|lead| lead.phase == Phase::Beginning) {
                let (phase, effect) = match closes {
                    true => (Phase::Closed, Effect::Closed(epoch)),
                    false => (Phase::Leading, Effect::Began(epoch)),
                };
                lead.phase = phase;
                self.effects.push(effect);
            }
        }
        self.answer_waiting_reads(now);
    }

    /// What a leader does as time passes.
    pub(super) fn lead_on(&mut self, now: Millis) {
        // Also while the leader waits for its own disk, or for a promise: their clients wait no longer than they were told.
        self.answer_overdue(now);
        if matches!(self.phase(), None | Some(Phase::Waiting)) {
            return;
        }
        if self.lead.as_ref().is_some_and(|lead| now >= lead.append_at) {
            self.send_to_all(now);
        }
        self.consider_wish(now);
        self.take_up_transfer(now);
        self.hand_over(now);
    }
}
