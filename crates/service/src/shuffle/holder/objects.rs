//! What of sealed shuffles goes to an object store when a disk fills (rule 14).
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
//! | asking | the word of the home that the shuffle is sealed: the plan says what is needed, for good | the next list of what the disk has begins anew |
//! | putting | the driver's word that all is durable | copies stay; after a rest, which doubles, it is put again |
//! | receipt | that it is stored, as any batch | it is stored again, and nothing is put again |
//! | dropping | nothing | |
//! | deleting | that the shuffle has ended, by the word of a leader | after a rest, which doubles, it is deleted again; the leader of the home finds what is left |
//!
//! A *receipt* is a batch without records, in a stream of its own ([`Writer::Objects`]): replicas fetch it, hand it over, and find
//! it again at a start as any batch, and no leader's decision is needed. Objects have the name of the process that has put them.
//! So two leaders of a slot that do not know of each other put the same twice, and neither changes what the other one has put;
//! each receipt is good for itself.
//!
//! Only the leader of a slot puts. Another replica whose disk fills tells it so. A node without an object store keeps receipts,
//! and its copies.
//!
//! Objects of a shuffle that has ended are deleted by the leader of their slot. What it leaves, as it dies or a put arrives late,
//! the leader of the home finds, which looks at its shuffles in turn; of one that it does not know a decision says first that it
//! is over ([`crate::shuffle::leader`]). A leader that was replaced can decide nothing, so it deletes nothing.

use super::{Effect, Holder, Inventory, Storing};
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
type Part = (ShuffleId, PoolSlot);

/// Parts that wait to be put, the first ones of a list: the disk is looked at again before they are done.
const WANTED: usize = 1_024;

/// Deletions that are ordered in one round.
const DELETED_AT_ONCE: usize = 16;

/// A home that has not answered after so many times the time to send again is not waited for.
const ASKED_RESENDS: u64 = 8;

/// What a holder knows of the object store.
#[derive(Debug, Clone)]
pub(super) struct Offloads {
    /// This process.
    own: BufferId,
    /// Parts that are read from there: their receipts are on this disk.
    here: BTreeSet<Part>,
    /// What is to be put, the first one next.
    wanted: VecDeque<Part>,
    /// The part whose home was asked for the plan, and when.
    asked: Option<(Part, Millis)>,
    /// The plan that came last: a shuffle has many parts.
    plan: Option<Arc<Plan>>,
    under_way: BTreeSet<Part>,
    /// Parts that this process has put, and whose receipts are not stored yet.
    put: BTreeSet<Part>,
    /// Puts that have failed since one was done.
    failures: u32,
    rest_until: Millis,
    /// Parts of shuffles that have ended, when they are deleted next, and how often that has failed.
    deleting: BTreeMap<Part, (Millis, u32)>,
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
            wanted: VecDeque::new(),
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

    /// A part is deleted at the next occasion. Of too many the leader of the home finds some again.
    fn delete(&mut self, part: Part, most: usize) {
        self.deleting.entry(part).or_insert((Millis(0), 0));
        if self.deleting.len() > most {
            self.deleting.pop_first();
        }
    }
}

/// The parts of a shuffle.
fn parts_of(parts: &BTreeSet<Part>, shuffle: ShuffleId) -> Vec<Part> {
    parts.range((shuffle, PoolSlot(0))..=(shuffle, PoolSlot(u32::MAX))).copied().collect()
}

/// The shuffles of which a node has receipts, by what it says that it has of a slot.
pub(super) fn receipts_of(has: &Inventory) -> BTreeSet<ShuffleId> {
    let receipts = has.iter().filter(|(stream, numbers)| stream.writer.is_objects() && numbers.has(1));
    receipts.map(|(stream, _)| stream.shuffle).collect()
}

impl Holder {
    /// Whether that is read from the object store.
    pub(super) fn is_offloaded(&self, shuffle: ShuffleId, slot: PoolSlot) -> bool {
        self.offloads.here.contains(&(shuffle, slot))
    }

    /// A receipt is on this disk: the copies go. A node without an object store keeps them.
    pub(super) fn take_receipt(&mut self, shuffle: ShuffleId, slot: PoolSlot) {
        self.offloads.put.remove(&(shuffle, slot));
        if self.settings.has_objects {
            self.offloads.here.insert((shuffle, slot));
            self.drop_copies((shuffle, slot));
        }
    }

    /// What the process before had no time to drop.
    pub(super) fn drop_offloaded(&mut self) {
        let here: Vec<Part> = self.offloads.here.iter().copied().collect();
        here.into_iter().for_each(|part| self.drop_copies(part));
    }

    fn drop_copies(&mut self, (shuffle, slot): Part) {
        let Some(streams) = self.streams.get_mut(&slot) else { return };
        let before = streams.len();
        streams.retain(|stream, _| stream.shuffle != shuffle || stream.writer.is_objects());
        if streams.len() < before {
            self.effects.push(Effect::DropCopies(shuffle, slot));
        }
    }

    /// A batch is damaged here. Without its receipts a part is not known to be in the object store.
    pub(super) fn forget_receipt(&mut self, key: &BatchKey) {
        let (shuffle, slot) = (key.stream.shuffle, key.stream.slot);
        if key.stream.writer.is_objects() && self.receipts(shuffle, slot).is_empty() {
            self.offloads.here.remove(&(shuffle, slot));
        }
    }

    pub(super) fn drop_receipts(&mut self, slot: PoolSlot) {
        self.offloads.here.retain(|(_, of)| *of != slot);
    }

    /// The receipts of a part.
    fn receipts(&self, shuffle: ShuffleId, slot: PoolSlot) -> Vec<BatchKey> {
        let streams = self.streams.get(&slot).into_iter().flatten();
        let receipts = streams.filter(|(stream, numbers)| {
            stream.shuffle == shuffle && stream.writer.is_objects() && numbers.has(1)
        });
        receipts.map(|(stream, _)| BatchKey { stream: stream.clone(), number: 1 }).collect()
    }

    /// What is sent to a node that asks for batches: for what is in the object store, the receipts.
    pub(super) fn fetched(&self, keys: Vec<BatchKey>) -> Vec<BatchKey> {
        let mut here = Vec::new();
        for key in keys {
            if self.has(&key) {
                here.push(key);
            } else if self.is_offloaded(key.stream.shuffle, key.stream.slot) {
                let receipts = self.receipts(key.stream.shuffle, key.stream.slot);
                let new: Vec<BatchKey> = receipts.into_iter().filter(|one| !here.contains(one)).collect();
                here.extend(new);
            }
        }
        here
    }

    /// The disk fills, or has room again. The largest shuffle goes first, as a whole: then its files are deleted.
    pub(super) fn make_room(&mut self, now: Millis, mut stored: Vec<(ShuffleId, PoolSlot, u64)>) {
        if stored.is_empty() || !self.settings.has_objects {
            self.offloads.wanted.clear();
            (self.offloads.asked, self.offloads.plan) = (None, None);
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
            self.offloads.wanted = parts.take(WANTED).collect();
        }
        self.offload_next(now);
    }

    /// The disk of another replica fills.
    pub(super) fn asked_to_make_room(&mut self, now: Millis, part: Part) {
        let wanted = &mut self.offloads.wanted;
        if self.settings.has_objects && wanted.len() < WANTED && !wanted.contains(&part) {
            wanted.push_back(part);
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
            self.offload(now, part);
        }
    }

    fn offload(&mut self, now: Millis, (shuffle, slot): Part) {
        let part = (shuffle, slot);
        let mut streams = self.streams.get(&slot).into_iter().flat_map(Inventory::keys);
        let is_here = streams.any(|stream| stream.shuffle == shuffle && !stream.writer.is_objects());
        let is_known = self.offloads.here.contains(&part) || self.offloads.under_way.contains(&part);
        if !is_here || is_known || self.how_ended(shuffle).is_some() {
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
            self.store_receipt(now, part);
        }
    }

    /// The state of a shuffle has come.
    pub(super) fn hear_for_objects(&mut self, now: Millis, shuffle: ShuffleId, word: &Word) {
        if matches!(word, Word::Ended(_)) {
            self.delete_objects(now);
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
    pub(super) fn offloaded(&mut self, now: Millis, part: Part, is_done: bool) {
        self.offloads.under_way.remove(&part);
        if self.how_ended(part.0).is_some() {
            self.offloads.delete(part, self.settings.ended_kept);
            self.delete_objects(now);
        } else if is_done {
            self.offloads.failures = 0;
            self.offloads.put.insert(part);
            self.store_receipt(now, part);
        } else {
            self.offloads.rest_until = now + self.objects_rest(self.offloads.failures);
            self.offloads.failures = self.offloads.failures.saturating_add(1);
            self.offloads.wanted.push_front(part);
        }
        self.offload_next(now);
    }

    /// How long the object store is left alone after so many failures.
    fn objects_rest(&self, failures: u32) -> u64 {
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
        let here = parts_of(&self.offloads.here, shuffle);
        let led = here.iter().copied().filter(|(_, slot)| self.map.live(*slot).first() == Some(&self.me));
        let deleted: Vec<Part> = led.chain(found).chain(parts_of(&self.offloads.put, shuffle)).collect();
        deleted.into_iter().for_each(|part| self.offloads.delete(part, self.settings.ended_kept));
        let is_other = |(of, _): &Part| *of != shuffle;
        self.offloads.here.retain(is_other);
        self.offloads.put.retain(is_other);
        self.offloads.found.retain(is_other);
        self.offloads.wanted.retain(is_other);
        self.offloads.plan.take_if(|plan| plan.shuffle == shuffle);
    }

    fn delete_objects(&mut self, now: Millis) {
        // Until it has an answer it is not ordered again, unless none comes.
        let again = now + self.settings.longest_objects_rest_ms;
        let due = self.offloads.deleting.iter_mut().filter(|(_, (at, _))| *at <= now);
        for (part, (at, _)) in due.take(DELETED_AT_ONCE) {
            *at = again;
            self.effects.push(Effect::DeleteObjects(part.0, part.1));
        }
    }

    pub(super) fn objects_deleted(&mut self, now: Millis, part: Part, is_done: bool) {
        if is_done {
            self.offloads.deleting.remove(&part);
        } else if let Some((_, failures)) = self.offloads.deleting.get(&part).copied() {
            let next = (now + self.objects_rest(failures), failures.saturating_add(1));
            self.offloads.deleting.insert(part, next);
        }
        self.delete_objects(now);
    }

    /// Objects of shuffles whose home this node leads. Those of a shuffle that is known to be over go; of others it asks.
    pub(super) fn objects_found(&mut self, now: Millis, found: Vec<Part>) {
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
        self.delete_objects(now);
    }

    /// What is done by time: once in each round.
    pub(super) fn attend_objects(&mut self, now: Millis) {
        if !self.settings.has_objects {
            return;
        }
        let patience = self.settings.resend_ms.saturating_mul(ASKED_RESENDS);
        self.offloads.asked.take_if(|(_, at)| now.since(*at) >= patience);
        self.offload_next(now);
        self.delete_objects(now);
        let slots = u32::try_from(self.map.places.len()).unwrap_or(u32::MAX).max(1);
        if now >= self.offloads.sweep_at {
            self.offloads.sweep_at = now + (self.settings.sweep_ms / u64::from(slots)).max(1);
            let slot = PoolSlot(self.offloads.sweep_next % slots);
            self.offloads.sweep_next = (slot.0 + 1) % slots;
            if self.map.live(slot).first() == Some(&self.me) {
                self.effects.push(Effect::ListObjects(slot));
            }
        }
    }
}
