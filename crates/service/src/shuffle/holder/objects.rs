//! What of sealed shuffles goes to an object store when a disk fills (rule 15).
//!
//! ```text
//!  disk fills ─► largest shuffle first ─► leader of the slot asks the home for the plan ─► puts what it needs of the slot
//!                                                                                              │ durable
//!  other nodes of the slot ◄── by rounds (`upkeep.rs`) ── receipt, on the disk of the leader ◄─┘
//!  each drops its copies when it has the receipt on its disk, and reads from the object store
//! ```
//!
//! | step | what it waits for | when it fails |
//! |---|---|---|
//! | asking | the word of the home that the shuffle is sealed: the plan says what is needed, for good | nothing of that shuffle is put until the next list of what the disk has |
//! | putting | the driver's word that all is durable | copies stay; after a rest, which doubles, it is put again. What cannot be read here waits for the next list |
//! | receipt | that it is stored, as any batch | it is stored again, and nothing is put again |
//! | dropping | at another node than the one that put them: that it has seen the objects (`receipts.rs`) | copies stay |
//! | deleting | that the shuffle has ended, by the word of a leader, or that the pool is gone | after a rest, which doubles, it is deleted again; the leader of the home finds what is left |
//!
//! Only the leader of a slot puts. Another replica whose disk fills tells it so.
//!
//! Objects of a shuffle that has ended are deleted by the leader of their slot. What it leaves, as it dies or a put arrives late,
//! the leader of the home finds, which looks at its shuffles in turn; of one that it does not know a decision says first that it
//! is over ([`crate::shuffle::leader`]). A leader that was replaced can decide nothing, so it deletes nothing.

use super::{Effect, Holder, OffloadOutcome, Storing};
use crate::shuffle::message::{Message, Word};
use crate::shuffle::plan::Plan;
use crate::shuffle::record::{Batch, BatchKey, Body, Stream, Tagged};
use crate::shuffle::{BufferId, Durability, PoolSlot, ShuffleId, Writer};
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// What one slot has of one shuffle.
pub(super) type Part = (ShuffleId, PoolSlot);

/// Parts that wait to be put because disks of other nodes fill: these ask again. Those of the own disk are no more than it has.
const REQUESTED: usize = 1_024;

/// Deletions that are under way.
const DELETED_AT_ONCE: usize = 32;

/// Slots whose objects are listed in one round.
const LISTED_AT_ONCE: usize = 16;

/// A home that has not answered after so many times the time to send again is not waited for.
const ASKED_RESENDS: u64 = 8;

/// What is ordered again and again until it is done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    /// When it is ordered next. Of one that is under way: unless an answer comes before.
    at: Millis,
    pub(super) failures: u32,
    is_under_way: bool,
}

impl Order {
    pub(super) const NEW: Order = Order { at: Millis(0), failures: 0, is_under_way: false };

    pub(super) fn failed(&mut self, now: Millis, rest: u64) {
        *self = Order { at: now + rest, failures: self.failures.saturating_add(1), is_under_way: false };
    }
}

/// The orders that are due, so that no more than `most` are under way. They are due again at `again`.
pub(super) fn due(
    orders: &mut BTreeMap<Part, Order>,
    (now, again): (Millis, Millis),
    most: usize,
) -> Vec<Part> {
    let under_way = orders.values().filter(|order| order.is_under_way && order.at > now).count();
    let due = orders.iter_mut().filter(|(_, order)| order.at <= now);
    let due = due.take(most.saturating_sub(under_way)).map(|(part, order)| {
        (order.at, order.is_under_way) = (again, true);
        *part
    });
    due.collect()
}

/// What a holder knows of the object store.
#[derive(Debug, Clone)]
pub(super) struct Offloads {
    /// This process: it puts objects under its name.
    pub(super) own: BufferId,
    /// Parts that are read from there: their receipts are on this disk, and this node has put the objects, or has seen them.
    pub(super) here: BTreeSet<Part>,
    /// Parts with receipts whose objects are to be seen. Their copies stay.
    pub(super) unseen: BTreeMap<Part, Order>,
    /// Parts that wait to be put, the first one next.
    wanted: VecDeque<Part>,
    /// Those of them that other nodes have asked for.
    requested: BTreeSet<Part>,
    /// The part whose home was asked for the plan, and when.
    asked: Option<(Part, Millis)>,
    /// The plan that came last: a shuffle has many parts.
    plan: Option<Arc<Plan>>,
    under_way: BTreeSet<Part>,
    /// Parts that this process has put, and whose receipts are not stored yet.
    pub(super) put: BTreeSet<Part>,
    /// Puts that have failed since one was done.
    failures: u32,
    rest_until: Millis,
    /// Parts of shuffles that have ended.
    deleting: BTreeMap<Part, Order>,
    /// Parts that were found, and whose homes were asked whether they are wanted.
    found: BTreeSet<Part>,
    sweep_at: Millis,
    sweep_next: u32,
}

impl Offloads {
    pub(super) fn new(now: Millis, me: &NodeId, incarnation: Incarnation) -> Offloads {
        Offloads {
            own: BufferId { node: me.clone(), incarnation },
            here: BTreeSet::new(),
            unseen: BTreeMap::new(),
            wanted: VecDeque::new(),
            requested: BTreeSet::new(),
            asked: None,
            plan: None,
            under_way: BTreeSet::new(),
            put: BTreeSet::new(),
            failures: 0,
            rest_until: Millis(0),
            deleting: BTreeMap::new(),
            found: BTreeSet::new(),
            sweep_at: now,
            sweep_next: 0,
        }
    }

    /// Has a part deleted at the next occasion. Of too many the leader of the home finds some again.
    fn delete(&mut self, part: Part, most: usize) {
        self.deleting.entry(part).or_insert(Order::NEW);
        if self.deleting.len() > most {
            self.deleting.pop_first();
        }
    }

    /// No part of a shuffle waits to be put any more.
    fn unwant(&mut self, shuffle: ShuffleId) {
        self.wanted.retain(|(of, _)| *of != shuffle);
        self.requested.retain(|(of, _)| *of != shuffle);
    }
}

/// The parts of a shuffle.
fn parts_of(parts: &BTreeSet<Part>, shuffle: ShuffleId) -> Vec<Part> {
    parts.range((shuffle, PoolSlot(0))..=(shuffle, PoolSlot(u32::MAX))).copied().collect()
}

impl Holder {
    /// The disk fills, or has room again. The largest shuffle goes first, as a whole: then its files are deleted.
    pub(super) fn make_room(&mut self, now: Millis, mut stored: Vec<(ShuffleId, PoolSlot, u64)>) {
        if stored.is_empty() || !self.settings.has_objects {
            // What disks of other nodes need goes on.
            let Offloads { wanted, requested, .. } = &mut self.offloads;
            wanted.retain(|part| requested.contains(part));
            if self.offloads.wanted.is_empty() {
                (self.offloads.asked, self.offloads.plan) = (None, None);
            }
            return;
        }
        // What is left of the last list comes first, or what comes late in each would never be put.
        if self.offloads.wanted.is_empty() {
            let mut shuffles: BTreeMap<ShuffleId, u64> = BTreeMap::new();
            for (shuffle, _, bytes) in &stored {
                let all = shuffles.entry(*shuffle).or_default();
                *all = all.saturating_add(*bytes);
            }
            let all = |shuffle: &ShuffleId| shuffles.get(shuffle).copied().unwrap_or(0);
            stored.sort_by_key(|(shuffle, slot, bytes)| {
                (Reverse(all(shuffle)), *shuffle, Reverse(*bytes), *slot)
            });
            let parts = stored.into_iter().map(|(shuffle, slot, _)| (shuffle, slot));
            self.offloads.wanted = parts.collect();
            self.offloads.requested.clear();
        }
        self.offload_next(now);
    }

    /// The disk of another replica fills.
    pub(super) fn asked_to_make_room(&mut self, now: Millis, part: Part) {
        let Offloads { wanted, requested, .. } = &mut self.offloads;
        if self.settings.has_objects && requested.len() < REQUESTED && !wanted.contains(&part) {
            wanted.push_back(part);
            requested.insert(part);
            self.offload_next(now);
        }
    }

    fn offload_next(&mut self, now: Millis) {
        if now < self.offloads.rest_until {
            return;
        }
        while self.offloads.asked.is_none()
            && self.offloads.under_way.len() < self.settings.offloads_at_once.max(1)
            && let Some(part) = self.offloads.wanted.pop_front()
        {
            self.offloads.requested.remove(&part);
            self.offload(now, part);
        }
    }

    fn offload(&mut self, now: Millis, (shuffle, slot): Part) {
        let part = (shuffle, slot);
        let is_known = self.is_offloaded(shuffle, slot) || self.offloads.under_way.contains(&part);
        // Another process has put it, unless that is not so.
        let is_looked_at = self.offloads.unseen.get(&part).is_some_and(|order| order.failures == 0);
        if !self.has_copies(part) || is_known || is_looked_at || self.how_ended(shuffle).is_some() {
            return;
        }
        let Some(leader) = self.map.live(slot).first().cloned() else { return };
        if leader != self.me {
            return self.send(leader, Message::MakeRoom(shuffle, slot));
        }
        if self.offloads.put.contains(&part) {
            return self.store_receipt(now, part);
        }
        match self.offloads.plan.clone().filter(|plan| plan.shuffle == shuffle) {
            Some(plan) => self.put(now, &plan, slot),
            None => {
                self.offloads.asked = Some((part, now));
                self.ask_home(shuffle);
            }
        }
    }

    fn ask_home(&mut self, shuffle: ShuffleId) {
        if let Some(leader) = self.map.live(self.map.home(shuffle)).first().cloned() {
            self.send(leader, Message::Ask(shuffle));
        }
    }

    /// Puts what a plan needs of a slot, if it is all here. What lacks is asked for, and it is put later.
    fn put(&mut self, now: Millis, plan: &Arc<Plan>, slot: PoolSlot) {
        let needed = plan.needed.get(&slot).cloned().unwrap_or_default();
        let part = (plan.shuffle, slot);
        let leads = self.map.live(slot).first() == Some(&self.me);
        if !leads || self.is_offloaded(plan.shuffle, slot) || !self.is_whole(plan.shuffle, slot, &needed) {
            return;
        }
        if self.offloads.under_way.insert(part) {
            self.effects.push(Effect::Offload(plan.clone(), slot));
        }
        if planted::is(Planted::DroppedBeforeObject) {
            self.offloads.put.insert(part);
            self.store_receipt(now, part);
        }
    }

    /// The state of a shuffle has come.
    pub(super) fn hear_for_objects(&mut self, now: Millis, shuffle: ShuffleId, word: &Word) {
        if !matches!(word, Word::Sealed(_)) {
            // Other parts of it need not ask.
            self.offloads.unwant(shuffle);
        }
        self.offloads.found.retain(|(of, _)| *of != shuffle);
        let asked = self.offloads.asked.filter(|((of, _), _)| *of == shuffle);
        let Some(((_, slot), _)) = asked else { return };
        self.offloads.asked = None;
        if let Word::Sealed(plan) = word {
            self.offloads.plan = Some(plan.clone());
            self.put(now, plan, slot);
        }
        self.offload_next(now);
    }

    /// The object store has it, or may not have it.
    pub(super) fn offloaded(&mut self, now: Millis, part: Part, outcome: OffloadOutcome) {
        let is_gone = !self.offloads.under_way.remove(&part) || self.how_ended(part.0).is_some();
        match outcome {
            _ if is_gone => self.offloads.delete(part, self.settings.ended_kept),
            OffloadOutcome::Durable => {
                (self.offloads.failures, self.offloads.rest_until) = (0, Millis(0));
                self.offloads.put.insert(part);
                self.store_receipt(now, part);
            }
            // Others come first: it may be this one that the store does not take.
            OffloadOutcome::Refused => {
                self.offloads.rest_until = now + self.objects_rest(self.offloads.failures);
                self.offloads.failures = self.offloads.failures.saturating_add(1);
                self.offloads.wanted.push_back(part);
            }
            OffloadOutcome::Unreadable => {}
        }
        self.offload_next(now);
    }

    /// How long the object store is left alone after so many failures.
    pub(super) fn objects_rest(&self, failures: u32) -> u64 {
        let rest = self.settings.objects_rest_ms.saturating_mul(1 << failures.min(20));
        rest.min(self.settings.longest_objects_rest_ms)
    }

    fn store_receipt(&mut self, now: Millis, (shuffle, slot): Part) {
        let stream = Stream { shuffle, slot, writer: Writer::Objects(self.offloads.own.clone()) };
        let key = BatchKey { stream, number: 1 };
        if self.has(&key) || self.storing.contains_key(&key) {
            return;
        }
        self.heard.entry(shuffle).or_insert(now);
        self.storing.insert(key.clone(), Storing { mark: None, waits: BTreeSet::new() });
        self.effects.push(Effect::Store(Arc::new(Batch {
            key,
            durability: Durability::Disk,
            body: Body::Records(Tagged::new()),
        })));
    }

    /// A shuffle has ended: of the slots that this node leads it deletes the objects, and those that it has found.
    pub(super) fn end_objects(&mut self, shuffle: ShuffleId) {
        let found = parts_of(&self.offloads.found, shuffle);
        let mut here = parts_of(&self.offloads.here, shuffle);
        here.extend(self.offloads.unseen.keys().filter(|(of, _)| *of == shuffle));
        let led = here.iter().copied().filter(|(_, slot)| self.map.live(*slot).first() == Some(&self.me));
        let deleted: Vec<Part> = led.chain(found).chain(parts_of(&self.offloads.put, shuffle)).collect();
        deleted.into_iter().for_each(|part| self.offloads.delete(part, self.settings.ended_kept));
        let is_other = |(of, _): &Part| *of != shuffle;
        self.offloads.here.retain(is_other);
        self.offloads.unseen.retain(|(of, _), _| *of != shuffle);
        self.offloads.put.retain(is_other);
        self.offloads.found.retain(is_other);
        self.offloads.unwant(shuffle);
        self.offloads.plan.take_if(|plan| plan.shuffle == shuffle);
    }

    /// The pool is gone, and all its shuffles: so are the objects of a slot.
    pub(super) fn delete_slot(&mut self, now: Millis, slot: PoolSlot) {
        let Offloads { here, put, unseen, under_way, .. } = &mut self.offloads;
        // What is under way is deleted when it is done.
        under_way.retain(|(_, of)| *of != slot);
        let parts = here.iter().chain(put.iter()).chain(unseen.keys());
        let parts: Vec<Part> = parts.filter(|(_, of)| *of == slot).copied().collect();
        put.retain(|(_, of)| *of != slot);
        parts.into_iter().for_each(|part| self.offloads.delete(part, self.settings.ended_kept));
        self.drop_slot(slot);
        self.delete_objects(now);
    }

    fn delete_objects(&mut self, now: Millis) {
        let again = now + self.settings.longest_objects_rest_ms;
        for (shuffle, slot) in due(&mut self.offloads.deleting, (now, again), DELETED_AT_ONCE) {
            self.effects.push(Effect::DeleteObjects(shuffle, slot));
        }
    }

    pub(super) fn objects_deleted(&mut self, now: Millis, part: Part, is_done: bool) {
        if is_done {
            self.offloads.deleting.remove(&part);
            return self.delete_objects(now);
        }
        let failures = self.offloads.deleting.get(&part).map_or(0, |order| order.failures);
        let rest = self.objects_rest(failures);
        self.offloads.deleting.get_mut(&part).into_iter().for_each(|order| order.failed(now, rest));
    }

    /// Objects of shuffles whose home this node leads. Those of a shuffle that is known to be over go; of others it asks.
    pub(super) fn objects_found(&mut self, found: Vec<Part>) {
        let most = self.settings.ended_kept;
        let mut asked = BTreeSet::new();
        for part in found {
            if self.offloads.under_way.contains(&part) {
                continue;
            }
            if self.how_ended(part.0).is_some() {
                self.offloads.delete(part, most);
            } else if self.offloads.found.len() < most {
                self.offloads.found.insert(part);
                asked.insert(part.0);
            }
        }
        asked.into_iter().for_each(|shuffle| self.ask_home(shuffle));
    }

    /// What is done by time: once in each round.
    pub(super) fn attend_objects(&mut self, now: Millis) {
        if !self.settings.has_objects {
            return;
        }
        let patience = self.settings.resend_ms.saturating_mul(ASKED_RESENDS);
        let silent = self.offloads.asked.take_if(|(_, at)| now.since(*at) >= patience);
        silent.into_iter().for_each(|((shuffle, _), _)| self.offloads.unwant(shuffle));
        self.offload_next(now);
        self.see_objects(now);
        self.delete_objects(now);
        self.sweep(now);
    }

    /// Lists the objects of the slots whose turn it is.
    fn sweep(&mut self, now: Millis) {
        let slots = u32::try_from(self.map.places.len()).unwrap_or(u32::MAX).max(1);
        let step = (self.settings.sweep_ms / u64::from(slots)).max(1);
        for _ in 0..LISTED_AT_ONCE {
            if now < self.offloads.sweep_at {
                return;
            }
            self.offloads.sweep_at = self.offloads.sweep_at + step;
            let slot = PoolSlot(self.offloads.sweep_next % slots);
            self.offloads.sweep_next = (slot.0 + 1) % slots;
            if self.map.live(slot).first() == Some(&self.me) {
                self.effects.push(Effect::ListObjects(slot));
            }
        }
        // It has slept: what was missed meanwhile is not made up for.
        self.offloads.sweep_at = self.offloads.sweep_at.max(now);
    }
}
