//! The machine of one stored replica.
//!
//! | event | while it follows, or has no order | while it leads |
//! |---|---|---|
//! | an order under which it leads | raises its fence, waits for its own promise to end, appends `Begin` | the same epoch: takes over set and peers, and hands over if the order says so; a later one: begins again, and writes in flight stay so |
//! | an order under which it closes | the same, with `Close` for `Begin` | begins again so |
//! | an order under which another leads | keeps it | steps down, tells the next leader ([`Message::LetGo`]), and follows |
//! | an append of its fence's epoch | compares, appends, replies | (cannot be: an epoch has one leader) |
//! | an append of a higher epoch | raises its fence, then as above | steps down, then as above |
//! | an append of a lower epoch | refuses | refuses |
//! | a reply | nothing | commits, answers, sends what is next; under a higher epoch it steps down |
//! | writes are on disk | applies, replies | commits, answers |
//! | a write | refuses | appends, once it has begun |
//! | a read | answers if its state is fresh enough | answers, or waits for promises |
//! | a snapshot is installed | goes on behind it | nothing |
//! | a damage | takes part in nothing any more | the same |

use super::durable::Durable;
use super::follower::FollowerState;
use super::lead::{LeaderState, Phase};
use super::log::Log;
use super::promise::Promise;
use super::reads::WaitingRead;
use super::rejoin_delay::RejoinDelays;
use super::writes::Uncommitted;
use super::{Damage, Effect, Event, Failed, LogPosition, LogWrite, Message, Order, Settings, Stored, Wish};
use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::VecDeque;

/// The machine of one stored replica, whether it leads or follows.
#[derive(Debug, Clone)]
pub struct Replica {
    pub(super) me: PlacementId,
    pub(super) incarnation: Incarnation,
    pub(super) settings: Settings,
    pub(super) log: Log,
    pub(super) durable: Durable,
    pub(super) committed: u64,
    /// The last index that the driver was told to apply.
    pub(super) applied: u64,
    /// Entries up to this index are applied and stored.
    pub(super) flushed: u64,
    pub(super) promise: Promise,
    pub(super) order: Option<Order>,
    pub(super) rejoin_delays: RejoinDelays,
    pub(super) lead: Option<LeaderState>,
    /// The last epoch under which this process led, until it tells the next leader that it has let go.
    pub(super) let_go: Option<Epoch>,
    /// Writes that this replica admitted as a leader, and that were not committed when it stepped down (`unsettled.rs`).
    pub(super) unsettled: VecDeque<Uncommitted>,
    pub(super) following: FollowerState,
    pub(super) reads: VecDeque<WaitingRead>,
    pub(super) damage: Option<Damage>,
    pub(super) effects: Vec<Effect>,
    last_called: Millis,
}

/// The state of a replica, for reports and for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The highest epoch that it has seen.
    pub fence: Epoch,
    /// The configuration of its order.
    pub configuration: Configuration,
    /// The epoch under which it leads, if it does.
    pub leads: Option<Epoch>,
    /// Whether it leads and serves.
    pub has_begun: bool,
    /// The end of its log.
    pub end: LogPosition,
    /// Up to which index the log is on disk.
    pub synced: u64,
    /// Up to which index entries are known to be committed.
    pub committed: u64,
    /// Up to which index entries were applied.
    pub applied: u64,
    /// Bytes of the entries that its log keeps, in memory.
    pub log_bytes: usize,
    /// The heir that has all entries, while this leader hands over and admits none.
    pub heir_ready: Option<PlacementId>,
}

impl Replica {
    /// Starts from what the disk has. `is_new`: no process had this placement before. The first event returns the first effects.
    pub fn recover(
        (me, incarnation): (PlacementId, Incarnation),
        settings: Settings,
        stored: Stored,
        now: Millis,
        is_new: bool,
    ) -> Replica {
        let damage = stored.damage();
        let Stored { base, entries, fence, committed, flushed } = stored;
        let mut log = Log::new(base, entries);
        let mut durable = Durable::recovered(fence, log.end().index);
        let mut effects = Vec::new();
        // The former process stored a snapshot, and ended before it restarted the log: this one restarts it first.
        if damage.is_none() && log.position(flushed.index) != Some(flushed) {
            log.restart(flushed);
            let number = durable.restart(flushed.index);
            effects.push(Effect::Write(number, LogWrite::Restart(flushed)));
        }
        let forgets = is_new || planted::is(Planted::PromiseForgotten);
        let promise = match forgets {
            true => Promise::none(),
            false => Promise::of_start(fence, now, settings.promise_ms),
        };
        let end = log.end();
        let mut replica = Replica {
            me,
            incarnation,
            settings,
            durable,
            committed: committed.min(end.index).max(flushed.index),
            applied: flushed.index,
            flushed: flushed.index,
            log,
            promise,
            order: None,
            rejoin_delays: RejoinDelays::default(),
            lead: None,
            let_go: None,
            unsettled: VecDeque::new(),
            following: FollowerState::begin(Epoch(0), now),
            reads: VecDeque::new(),
            damage: None,
            effects,
            last_called: now,
        };
        if let Some(damage) = damage {
            replica.damaged(damage);
        }
        replica
    }

    /// Handles an event at `now`, and returns what the driver must do.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        if self.damage.is_some() {
            self.refuse_all(event);
            return std::mem::take(&mut self.effects);
        }
        match event {
            Event::Order(order) => self.on_order(now, order),
            Event::WishRefused(epoch, configuration) => self.on_wish_refused(epoch, configuration),
            Event::Message(from, Message::Append(append)) => self.on_append(now, from, append),
            Event::Message(from, Message::Reply(reply)) => self.on_reply(now, from, reply),
            Event::Message(_, Message::LetGo(epoch)) => self.on_let_go(now, epoch),
            Event::Synced(number) => self.on_synced(now, number),
            Event::Write(writes) => self.on_write(now, writes),
            Event::Read(request, consistency, at_least) => self.on_read(now, request, consistency, at_least),
            Event::Flushed(position) => self.on_flushed(now, position),
            Event::Installed(position) => self.on_installed(position),
            Event::Trim => self.trim(now, 0),
            Event::Tick => {}
        }
        self.on_time(now);
        std::mem::take(&mut self.effects)
    }

    /// The coordinator took the process for dead and has registered it anew, as `incarnation`. The process has lost nothing,
    /// neither its log nor its promises, so the replica goes on; orders and replies name the new incarnation from now on.
    pub fn renamed(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
    }

    /// When to call with [`Event::Tick`] at the latest.
    pub fn wake_at(&self) -> Millis {
        if self.damage.is_some() {
            return Millis::NEVER;
        }
        let reads = self.reads.front().map_or(Millis::NEVER, |read| read.until);
        let other = match &self.lead {
            Some(lead) => lead.wake_at(self),
            None if self.silence_at() == Millis::NEVER => Millis::NEVER,
            // Often enough to notice when it was called late.
            None => self.silence_at().min(self.last_called + self.call_interval_ms()),
        };
        reads.min(other).min(self.unsettled_until())
    }

    /// Its state.
    pub fn status(&self) -> Status {
        Status {
            fence: self.durable.fence(),
            configuration: self.order.as_ref().map_or(Configuration(0), |order| order.configuration),
            leads: self.lead.as_ref().map(|lead| lead.epoch),
            has_begun: self.lead.as_ref().is_some_and(LeaderState::has_begun),
            end: self.log.end(),
            synced: self.durable.synced(),
            committed: self.committed,
            applied: self.applied,
            log_bytes: self.log.bytes(),
            heir_ready: self.lead.as_ref().and_then(LeaderState::heir_ready),
        }
    }

    /// What the disk has when all its writes are on it: a process closes the replica and recovers it from this. `flushed` is the
    /// position up to which its rows are stored.
    pub fn stored(&self, flushed: LogPosition) -> Stored {
        let (base, end) = (self.log.base(), self.log.end().index);
        Stored {
            base,
            entries: self.log.between(base.index, end),
            fence: self.durable.fence(),
            committed: self.committed.min(self.applied),
            flushed,
        }
    }

    /// Why it has stopped.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    fn on_time(&mut self, now: Millis) {
        self.allow_for_own_delay(now);
        self.try_begin(now);
        self.lead_on(now);
        self.report_silence(now);
        self.settle_former_writes(now);
        self.end_waiting_reads(now);
    }

    /// The longest time between two calls while it leads, or follows as a member.
    fn call_interval_ms(&self) -> u64 {
        // A follower is called with each append as well.
        if self.lead.is_some() { self.settings.append_ms } else { 2 * self.settings.append_ms }
    }

    /// Adds the time by which this replica was called late to the patience with the others, since their messages may wait for its
    /// own busy machine. Without this a leader would ask out followers that wait for it, and a follower would report a live
    /// leader.
    fn allow_for_own_delay(&mut self, now: Millis) {
        let late = now.since(self.last_called).saturating_sub(self.call_interval_ms());
        self.last_called = now;
        if late == 0 {
            return;
        }
        self.following.heard = (self.following.heard + late).min(now);
        let followers = self.lead.iter_mut().flat_map(|lead| lead.followers.values_mut());
        followers.for_each(|follower| follower.allow_for_delay(late, now));
    }

    fn on_order(&mut self, now: Millis, order: Order) {
        let known = self.order.as_ref().map(|order| (order.epoch, order.configuration));
        let names_me = |peer: &super::Peer| peer.placement == self.me && peer.incarnation == self.incarnation;
        let is_overtaken = known.is_some_and(|known| (order.epoch, order.configuration) < known);
        // An order that names another process of this replica is for that process.
        if is_overtaken || !order.peers.iter().any(names_me) {
            return;
        }
        let (epoch, leader) = (order.epoch, order.leader);
        if known.is_none_or(|(known, _)| known < epoch) {
            // The patience with the next leader begins now.
            self.following.heard = now;
        }
        self.rejoin_delays.on_order(&order, &self.settings, now);
        self.order = Some(order);
        let leads = self.lead.as_ref().map(|lead| lead.epoch);
        if leader == self.me && leads == Some(epoch) {
            self.take_up_configuration(now);
            return;
        }
        // It never leads under an epoch that it has seen, as an earlier process may have led under it: below it asks for a later
        // one.
        if leader == self.me && epoch > self.durable.fence() {
            self.raise_fence(epoch);
            self.lead = Some(LeaderState::begin(epoch, self.lead.take(), now));
            self.take_up_configuration(now);
            return;
        }
        if leads.is_some_and(|leads| leads <= epoch) {
            self.step_down();
        }
        self.tell_let_go(leader);
        if leader == self.me
            && let Some(Order { epoch, configuration, in_sync, .. }) = self.order.clone()
        {
            self.effects.push(Effect::Wish(Wish { placement: self.me, epoch, configuration, in_sync }));
        }
    }

    pub(super) fn raise_fence(&mut self, epoch: Epoch) {
        let number = self.durable.raise_fence(epoch);
        self.effects.push(Effect::Write(number, LogWrite::Fence(epoch)));
    }

    fn on_synced(&mut self, now: Millis, number: u64) {
        self.durable.complete(number);
        self.apply();
        if self.lead.is_some() {
            self.advance(now);
        } else {
            self.reply_to_sync(now);
        }
    }

    /// Applies what is committed and on the own disk.
    pub(super) fn apply(&mut self) {
        let to = self.committed.min(self.durable.synced());
        if to > self.applied {
            let entries = self.log.between(self.applied, to);
            self.applied = to;
            self.effects.push(Effect::Apply(entries));
        }
    }

    pub(super) fn commit_to(&mut self, index: u64) {
        self.committed = self.committed.max(index);
        self.apply();
    }

    fn on_flushed(&mut self, now: Millis, position: LogPosition) {
        self.flushed = self.flushed.max(position.index.min(self.applied));
        self.trim(now, self.settings.catch_up_log_bytes);
    }

    /// Drops entries that are applied and flushed, and that no peer needs, or as far as the log has more than `most` bytes. Keeps
    /// what copies need, up to `copy_log_bytes` (`copies.rs`).
    fn trim(&mut self, now: Millis, most: usize) {
        // The children of the shard learn of the closing entry from the log.
        if self.log.first_of_close().is_some() {
            return;
        }
        let all_have = self.lead.as_ref().map_or(0, |lead| lead.all_have(self.durable.synced()));
        let (to, certain) = (self.flushed, all_have.min(self.flushed));
        let is_trimmed = match self.kept_behind(now) {
            None => self.log.trim(to, certain, most),
            Some(behind) => {
                let is_trimmed = self.log.trim(to.min(behind), certain.min(behind), most);
                // Beyond that limit the log drops what copies need, too.
                self.log.trim(to, 0, self.settings.copy_log_bytes.max(most)) || is_trimmed
            }
        };
        if is_trimmed {
            self.forget_outrun_copies();
            let base = self.log.base();
            let number = self.durable.begin(self.durable.end());
            self.effects.push(Effect::Write(number, LogWrite::Trim(base)));
        }
    }

    /// Whether the log has all entries behind a snapshot at that position.
    pub fn reaches_back_to(&self, position: LogPosition) -> bool {
        position.index >= self.log.base().index
    }

    /// Whether a snapshot at that position may be installed: it is later than what is applied.
    pub fn takes_snapshot(&self, position: LogPosition) -> bool {
        self.lead.is_none() && self.damage.is_none() && position.index > self.applied
    }

    /// A snapshot is stored. A leader made it from what it had applied, so all up to its position is committed.
    fn on_installed(&mut self, position: LogPosition) {
        if !self.takes_snapshot(position) {
            return;
        }
        self.applied = position.index;
        self.flushed = position.index;
        self.committed = self.committed.max(position.index);
        if self.log.position(position.index) != Some(position) {
            self.log.restart(position);
            let number = self.durable.restart(position.index);
            self.effects.push(Effect::Write(number, LogWrite::Restart(position)));
        }
    }

    pub(super) fn damaged(&mut self, damage: Damage) {
        self.step_down();
        self.give_up_unsettled();
        self.damage = Some(damage.clone());
        self.effects.push(Effect::Damaged(damage));
    }

    fn refuse_all(&mut self, event: Event) {
        let requests = match event {
            Event::Write(writes) => writes.into_iter().map(|(request, _)| request).collect(),
            Event::Read(request, ..) => vec![request],
            _ => Vec::new(),
        };
        let refused = requests.into_iter().map(|request| Effect::Answer(request, Err(Failed::Damaged)));
        self.effects.extend(refused);
    }

    /// Stops leading: from now on it answers no read and acknowledges no write under its epoch. Writes in flight wait to learn
    /// whether they are committed. If it had begun, it has let go: only then the leaders before it had let go, too.
    pub(super) fn step_down(&mut self) {
        let Some(lead) = self.lead.take() else { return };
        if lead.has_begun() || lead.phase == Phase::Closed || planted::is(Planted::HastyLetGo) {
            self.let_go = Some(lead.epoch);
        }
        self.keep_unsettled(lead.uncommitted);
        let leader = self.leader_elsewhere();
        for read in self.reads.drain(..) {
            self.effects.push(Effect::Answer(read.request, Err(Failed::NotLeader(leader))));
        }
    }

    /// The replica that leads, as far as is known, if it is another one.
    pub(super) fn leader_elsewhere(&self) -> Option<PlacementId> {
        self.order.as_ref().map(|order| order.leader).filter(|leader| *leader != self.me)
    }

    pub(super) fn phase(&self) -> Option<&Phase> {
        self.lead.as_ref().map(|lead| &lead.phase)
    }
}
