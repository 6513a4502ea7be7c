//! A holder: what a node has of the batches of slots, and what it does for others with it (rules 2, 3, 8 and 9).
//!
//! The machine knows numbers, not records: what it orders to be read the driver reads. It stores each batch once. It serves,
//! counts and divides only from streams that it has without a gap up to where they are needed; a gap is asked for from all
//! nodes. `upkeep.rs` finds what the replicas of a slot lack of each other, and of stand-ins. `objects.rs` says what goes to
//! an object store, and `receipts.rs` what is then left of it here.

use super::log::Replicas;
use super::message::{AskOrder, Message, WhyNotStored, Word};
use super::plan::{Division, Plan};
use super::pool::PoolMap;
use super::record::{Batch, BatchKey, Body, EndMark, Numbers, Stream};
use super::seek::{Seek, SeekFor};
use super::settings::Settings;
use super::{AttemptKey, BufferId, Bytes, Ended, PoolSlot, ShuffleId, Writer};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

mod objects;
mod receipts;
mod upkeep;

use objects::Offloads;
use upkeep::KnownElsewhere;

/// What a reader wants of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The plan of the sealed shuffle, by which it reads.
    pub plan: Arc<Plan>,
    /// The place of the range in the plan.
    pub range: usize,
    /// Only keys from the first, included, to the second; none: all keys.
    pub keys: Option<(Bytes, Option<Bytes>)>,
    /// The first record of what is left.
    pub from: u64,
    /// The record after the last one of these.
    pub to: u64,
}

/// Why a holder does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRead {
    /// Some of it is not here.
    #[error("this node has not all of the range: ask another replica")]
    Lacks,
    /// The node is busy.
    #[error("this node is busy: ask another replica, or later")]
    Busy,
    /// The range is being sorted on disk, as it is larger than the memory for ranges, or is being read from the object store.
    #[error(
        "this node is sorting the range, which is larger than its memory for ranges, or lies in the object store: ask it again"
    )]
    Sorts,
    /// The object store has the range, and does not give it.
    #[error(
        "the object store does not give the range to this node: ask another replica, or later; the log of the node says why"
    )]
    ObjectStore,
    /// The object store has lost some of the range.
    #[error(
        "the object store has not all of the range any more, or it is damaged there: no replica has another copy; start another shuffle, and tell an operator"
    )]
    ObjectLost,
    /// What is here differs from what was counted.
    #[error(
        "this node has other records of the range than were counted: ask another replica, and tell an operator"
    )]
    Differs,
    /// There is no such shuffle any more.
    #[error("{0}")]
    Over(Ended),
}

/// What came of an order to put what a slot has of a shuffle into the object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffloadOutcome {
    /// It is durable there, as a whole.
    Durable,
    /// It may not be there: the store refuses, or does not answer.
    Refused,
    /// Some of it cannot be read here, or its index would be longer than readers read. The store was not the reason.
    Unreadable,
}

/// What the driver tells a holder ([`Holder::handle`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Another node, or this one, has sent this.
    Message(NodeId, Message),
    /// A batch is stored, as its [`Durability`](super::Durability) says.
    Stored(BatchKey),
    /// A batch was not put on disk, as there is no room. Its sender hears so.
    NotStored(BatchKey),
    /// A batch cannot be read, or its checksum is wrong.
    Damaged(BatchKey),
    /// The decisions of this slot are on disk, taken under that epoch.
    Logged(PoolSlot, Epoch),
    /// A replica in `Load` begins anew: of the decisions of that slot it knows nothing any more. What an earlier stay had taken
    /// under the same epoch does not make it ready, as the leader may have gone on without it.
    LoadBegins(PoolSlot),
    /// The pool is gone, and with it the slot: all that is here of it goes.
    SlotDeleted(PoolSlot),
    /// A reader wants this; the number is the driver's.
    Read(u64, Slice),
    /// A reader wants to know this; the number is the driver's.
    Seek(u64, Seek),
    /// The disk fills: what it has of slots of shuffles, in bytes, besides receipts. An empty list: it has room.
    MakeRoom(Vec<(ShuffleId, PoolSlot, u64)>),
    /// What came of [`Effect::Offload`].
    Offloaded(ShuffleId, PoolSlot, OffloadOutcome),
    /// What was asked by [`Effect::SeeObjects`]: the objects are there, as a whole; or they are not, or not now.
    ObjectsSeen(ShuffleId, PoolSlot, BufferId, bool),
    /// What was ordered by [`Effect::DeleteObjects`] is done, or may not be.
    ObjectsDeleted(ShuffleId, PoolSlot, bool),
    /// What was ordered by [`Effect::ListObjects`]: of these slots of shuffles there are objects.
    ObjectsFound(Vec<(ShuffleId, PoolSlot)>),
    /// The pool has a later map.
    Map(Arc<PoolMap>),
    /// Time has passed: a round is due at [`Holder::wake_at`].
    Tick,
}

/// What a holder asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Store it as its [`Durability`](super::Durability) says, and say so.
    Store(Arc<Batch>),
    /// Send this message to that node.
    Send(NodeId, Message),
    /// Read this batch, and send it to that node.
    Pass(NodeId, BatchKey),
    /// Read what is to be divided, and hand it to the buffer, for that leader.
    Divide(NodeId, Arc<Division>),
    /// Read and count the ranges of that slot, and tell that leader, which asks under that epoch.
    Count(NodeId, Epoch, Arc<Plan>, PoolSlot),
    /// Read this slice, and answer the reader of that number.
    Read(u64, Slice),
    /// Look this up in the order of the range, for that number.
    Seek(u64, Seek),
    /// Refuse the read or the seek of that number, for this reason.
    NotRead(u64, NotRead),
    /// Remove all that is here of a slot, its decisions too.
    DropSlot(PoolSlot),
    /// Remove all that is here of a shuffle, also what is being stored.
    DropShuffle(ShuffleId),
    /// Tell the coordinator that the loading replica of that slot has everything, under that epoch.
    Ready(PoolSlot, Epoch),
    /// Put what the plan needs of the slot into the object store, under the name of this process, and say whether it is durable.
    Offload(Arc<Plan>, PoolSlot),
    /// Say whether what that process has put of the shuffle in the slot is seen from here.
    SeeObjects(ShuffleId, PoolSlot, BufferId),
    /// Remove all batches of the shuffle in the slot from the disk, but for receipts.
    DropCopies(ShuffleId, PoolSlot),
    /// Delete all objects of the shuffle in the slot, of each process that has put some, also of one that was interrupted.
    DeleteObjects(ShuffleId, PoolSlot),
    /// Say of which shuffles whose home is that slot there are objects.
    ListObjects(PoolSlot),
}

/// What is on disk when a process starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// The batches, and the marks that they carry.
    pub batches: Vec<(BatchKey, Option<EndMark>)>,
    /// This node's copies of the decisions of slots.
    pub replicas: Replicas,
}

/// A batch that is being stored, and the nodes that wait for it.
#[derive(Debug, Clone)]
struct Storing {
    mark: Option<EndMark>,
    waits: BTreeSet<NodeId>,
}

/// What a node has, by stream.
type Inventory = BTreeMap<Stream, Numbers>;

/// The machine that keeps a node's batches of slots, and serves from them.
#[derive(Debug, Clone)]
pub struct Holder {
    me: NodeId,
    settings: Settings,
    map: Arc<PoolMap>,
    /// The streams by slot, none of them empty: rounds and orders go by slots.
    streams: BTreeMap<PoolSlot, Inventory>,
    storing: BTreeMap<BatchKey, Storing>,
    /// When its disk had no room for a batch last.
    full_at: Option<Millis>,
    marks: BTreeMap<ShuffleId, BTreeMap<AttemptKey, EndMark>>,
    ended: VecDeque<(ShuffleId, Ended)>,
    /// When the state of a shuffle was heard last, or asked for.
    heard: BTreeMap<ShuffleId, Millis>,
    round: u64,
    round_at: Millis,
    /// Slots of which this round has not said yet what is here.
    untold: BTreeSet<PoolSlot>,
    /// What others of a slot have said in this round.
    replies: BTreeMap<PoolSlot, BTreeMap<NodeId, Inventory>>,
    /// What others have of streams, and had a while ago.
    known: BTreeMap<Stream, KnownElsewhere>,
    /// Under which epoch the decisions of a slot were taken.
    logged: BTreeMap<PoolSlot, Epoch>,
    offloads: Offloads,
    effects: Vec<Effect>,
}

impl Holder {
    /// A holder that starts with what is on disk.
    pub fn recover(
        now: Millis,
        (me, incarnation): (NodeId, Incarnation),
        settings: Settings,
        map: Arc<PoolMap>,
        stored: Stored,
    ) -> Holder {
        let mut holder = Holder {
            offloads: Offloads::new(now, &me, incarnation),
            me,
            settings,
            map,
            streams: BTreeMap::new(),
            storing: BTreeMap::new(),
            full_at: None,
            marks: BTreeMap::new(),
            ended: VecDeque::new(),
            heard: BTreeMap::new(),
            // An answer to an earlier process is no answer to this one.
            round: incarnation.0 << 32,
            round_at: now,
            untold: BTreeSet::new(),
            replies: BTreeMap::new(),
            known: BTreeMap::new(),
            logged: stored.replicas.copies.iter().map(|(slot, copy)| (*slot, copy.epoch)).collect(),
            effects: Vec::new(),
        };
        for (key, mark) in stored.batches {
            holder.heard.insert(key.stream.shuffle, now);
            holder.take_up(&key, mark);
        }
        holder.count_lone_receipts();
        holder
    }

    /// Takes in an event; the driver carries out the effects in their order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        match event {
            Event::Message(from, message) => self.message(now, from, message),
            Event::Stored(key) => {
                self.stored(&key);
                if key.stream.writer.is_objects() {
                    self.see_objects(now);
                }
            }
            Event::NotStored(key) => self.not_stored(now, key),
            Event::Damaged(key) => self.damaged(&key),
            Event::Logged(slot, epoch) => drop(self.logged.insert(slot, epoch)),
            Event::LoadBegins(slot) => drop(self.logged.remove(&slot)),
            Event::SlotDeleted(slot) => self.delete_slot(now, slot),
            Event::Read(number, slice) => self.read(number, slice),
            Event::Seek(number, seek) => self.seek(number, seek),
            Event::MakeRoom(stored) => self.make_room(now, stored),
            Event::Offloaded(shuffle, slot, outcome) => self.offloaded(now, (shuffle, slot), outcome),
            Event::ObjectsSeen(shuffle, slot, by, are_there) => {
                self.objects_seen(now, (shuffle, slot), by, are_there);
            }
            Event::ObjectsDeleted(shuffle, slot, is_done) => {
                self.objects_deleted(now, (shuffle, slot), is_done);
            }
            Event::ObjectsFound(found) => self.objects_found(found),
            Event::Map(map) => self.map = map,
            Event::Tick => self.upkeep(now),
        }
        std::mem::take(&mut self.effects)
    }

    /// When it wants to be called again: at once, while it says what is here.
    pub fn wake_at(&self) -> Millis {
        if self.untold.is_empty() { self.round_at } else { Millis(0) }
    }

    /// Whether nothing of a shuffle is here.
    pub fn has_nothing_of(&self, shuffle: ShuffleId) -> bool {
        let is_of = |stream: &Stream| stream.shuffle == shuffle;
        !self.streams.values().flat_map(Inventory::keys).any(is_of)
            && !self.storing.keys().any(|key| is_of(&key.stream))
    }

    /// Whether a batch is here.
    pub fn has(&self, key: &BatchKey) -> bool {
        self.numbers(&key.stream).is_some_and(|numbers| numbers.has(key.number))
    }

    /// Which batches of a stream are here.
    fn numbers(&self, stream: &Stream) -> Option<&Numbers> {
        self.streams.get(&stream.slot)?.get(stream)
    }

    /// The slots of which something is here.
    pub fn slots(&self) -> BTreeSet<PoolSlot> {
        self.streams.keys().copied().collect()
    }

    /// Whether something of a slot is here: batches, some that are being stored, or that it has decisions of it.
    pub fn has_slot(&self, slot: PoolSlot) -> bool {
        self.logged.contains_key(&slot)
            || self.streams.contains_key(&slot)
            || self.storing.keys().any(|key| key.stream.slot == slot)
    }

    /// Whether something of any slot is here.
    pub fn has_slots(&self) -> bool {
        !(self.logged.is_empty() && self.streams.is_empty() && self.storing.is_empty())
    }

    fn send(&mut self, to: NodeId, message: Message) {
        self.effects.push(Effect::Send(to, message));
    }

    fn message(&mut self, now: Millis, from: NodeId, message: Message) {
        match message {
            Message::Batch(batch) => self.batch(now, from, batch),
            Message::AskStored(key, order) => self.tell_stored(from, key, order),
            Message::Fetch(keys) => {
                let here = self.fetched(keys);
                self.effects.extend(here.into_iter().map(|key| Effect::Pass(from.clone(), key)));
            }
            Message::Inventory { slot, round, asks, has } => {
                self.learn(now, slot, &has);
                self.inventory(from, slot, (round, asks), has);
            }
            Message::AskMarks(shuffle, after) => self.tell_marks(from, shuffle, after),
            Message::Word(shuffle, word) => {
                self.heard.entry(shuffle).and_modify(|at| *at = now);
                if let Word::Ended(how) = word {
                    self.end(shuffle, how);
                    self.send(from, Message::Dropped(shuffle));
                }
                self.hear_for_objects(now, shuffle, &word);
            }
            Message::MakeRoom(shuffle, slot) => self.asked_to_make_room(now, (shuffle, slot)),
            Message::Divide(division) => {
                match self.is_whole(division.shuffle, division.slot, &division.upto) {
                    true => self.effects.push(Effect::Divide(from, division)),
                    false => self.say_lacks(now, from, division.shuffle, division.slot),
                }
            }
            Message::Count(epoch, plan, slot) => {
                let needed = plan.needed.get(&slot).cloned().unwrap_or_default();
                match self.is_whole(plan.shuffle, slot, &needed) {
                    true => self.effects.push(Effect::Count(from, epoch, plan, slot)),
                    false => self.say_lacks(now, from, plan.shuffle, slot),
                }
            }
            _ => {}
        }
    }

    /// The marks behind that of an attempt, in the order of attempts.
    fn tell_marks(&mut self, to: NodeId, shuffle: ShuffleId, after: Option<AttemptKey>) {
        let none = BTreeMap::new();
        let begin = after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.marks.get(&shuffle).unwrap_or(&none).range((begin, Bound::Unbounded));
        let (mut marks, mut room, mut has_more) = (Vec::new(), 0, false);
        for (_, mark) in behind {
            room += mark.room();
            if room > self.settings.marks_bytes && !marks.is_empty() {
                has_more = true;
                break;
            }
            marks.push(mark.clone());
        }
        self.send(to, Message::Marks { shuffle, after, marks, has_more });
    }

    fn how_ended(&self, shuffle: ShuffleId) -> Option<Ended> {
        self.ended.iter().find(|(known, _)| *known == shuffle).map(|(_, how)| *how)
    }

    fn batch(&mut self, now: Millis, from: NodeId, batch: Arc<Batch>) {
        let key = batch.key.clone();
        if let Some(how) = self.how_ended(key.stream.shuffle) {
            return self.send(from, Message::Refused(key, how));
        }
        if !planted::is(Planted::StoredTwice) {
            if self.has(&key) {
                return self.send(from, Message::Stored(key));
            }
            if let Some(storing) = self.storing.get_mut(&key) {
                storing.waits.insert(from);
                return;
            }
        }
        self.heard.entry(key.stream.shuffle).or_insert(now);
        let mark = match &batch.body {
            Body::Mark(mark) => Some(mark.clone()),
            Body::Records(_) => None,
        };
        self.storing.insert(key, Storing { mark, waits: [from].into() });
        self.effects.push(Effect::Store(batch));
    }

    /// A sender has heard nothing of a batch. One that the question has overtaken comes soon.
    fn tell_stored(&mut self, from: NodeId, key: BatchKey, order: AskOrder) {
        let answer = match self.how_ended(key.stream.shuffle) {
            Some(how) => Message::Refused(key, how),
            None if self.has(&key) => Message::Stored(key),
            None => {
                let storing = self.storing.get_mut(&key);
                let is_soon = storing.is_some() || order == AskOrder::Ahead;
                if let Some(storing) = storing {
                    storing.waits.insert(from.clone());
                }
                Message::NotStored(key, if is_soon { WhyNotStored::Soon } else { WhyNotStored::Unknown })
            }
        };
        self.send(from, answer);
    }

    fn not_stored(&mut self, now: Millis, key: BatchKey) {
        self.full_at = Some(now);
        let Some(Storing { waits, .. }) = self.storing.remove(&key) else { return };
        let says = |node| Effect::Send(node, Message::NotStored(key.clone(), WhyNotStored::Full));
        self.effects.extend(waits.into_iter().map(says));
    }

    fn stored(&mut self, key: &BatchKey) {
        // The shuffle has ended meanwhile, and what was stored of it is gone.
        let Some(Storing { mark, waits }) = self.storing.remove(key) else { return };
        if let Some(mark) = &mark
            && let Some(leader) = self.map.live(key.stream.slot).first().cloned()
        {
            let (shuffle, marks) = (key.stream.shuffle, vec![mark.clone()]);
            self.send(leader, Message::Marks { shuffle, after: None, marks, has_more: false });
        }
        self.take_up(key, mark);
        waits.into_iter().for_each(|node| self.send(node, Message::Stored(key.clone())));
    }

    fn take_up(&mut self, key: &BatchKey, mark: Option<EndMark>) {
        let of_slot = self.streams.entry(key.stream.slot).or_default();
        let numbers = of_slot.entry(key.stream.clone()).or_default();
        numbers.insert(key.number);
        if let Some(mark) = mark {
            self.marks.entry(key.stream.shuffle).or_default().insert(mark.attempt.clone(), mark);
        }
        let (shuffle, slot) = (key.stream.shuffle, key.stream.slot);
        match &key.stream.writer {
            Writer::Objects(by) => self.take_receipt((shuffle, slot), by),
            // It came late: the object store has what is read of the part.
            _ if self.is_offloaded(shuffle, slot) => self.drop_copies((shuffle, slot)),
            _ => {}
        }
    }

    fn damaged(&mut self, key: &BatchKey) {
        let of_slot = self.streams.get_mut(&key.stream.slot);
        if let Some(numbers) = of_slot.and_then(|streams| streams.get_mut(&key.stream)) {
            numbers.remove(key.number);
        }
        self.forget_receipt(key);
        self.fetch_from_all(vec![key.clone()]);
    }

    /// Whether all that is needed of a slot is here. A node of the slot asks others for what it lacks. Another node does not:
    /// readers ask it for what it may have of the slot, and by fetching it would store batches of a slot that it is no replica
    /// of.
    fn is_whole(&mut self, shuffle: ShuffleId, slot: PoolSlot, needed: &BTreeMap<Writer, u64>) -> bool {
        if self.is_offloaded(shuffle, slot) {
            return true;
        }
        let mut lacking = Vec::new();
        for (writer, upto) in needed {
            let stream = Stream { shuffle, slot, writer: writer.clone() };
            let none = Numbers::default();
            let numbers = self.numbers(&stream).unwrap_or(&none);
            if !numbers.has_upto(*upto) {
                // No more is asked for at a time, whatever number is said to be needed.
                let gaps = numbers.gaps(*upto).take(self.settings.fetched_at_once);
                lacking.extend(gaps.map(|number| BatchKey { stream: stream.clone(), number }));
            }
        }
        if lacking.is_empty() || planted::is(Planted::GapUnnoticed) {
            return true;
        }
        if self.map.has(slot, &self.me) {
            self.fetch_from_all(lacking);
        }
        false
    }

    /// Tells a leader that something lacks here. If the disk is full, other nodes may give it and there is no room for it.
    fn say_lacks(&mut self, now: Millis, leader: NodeId, shuffle: ShuffleId, slot: PoolSlot) {
        let is_full = self.full_at.is_some_and(|at| now.since(at) < self.settings.task_ms);
        if self.map.has(slot, &self.me) && !is_full {
            self.send(leader, Message::Lacks(shuffle, slot));
        }
    }

    fn fetch_from_all(&mut self, mut keys: Vec<BatchKey>) {
        keys.retain(|key| !self.storing.contains_key(key));
        keys.truncate(self.settings.fetched_at_once);
        if keys.is_empty() {
            return;
        }
        let others: Vec<NodeId> = self.map.nodes.iter().filter(|node| **node != self.me).cloned().collect();
        others.into_iter().for_each(|node| self.send(node, Message::Fetch(keys.clone())));
    }

    fn read(&mut self, number: u64, slice: Slice) {
        let effect = match self.lacks(&slice.plan, slice.range) {
            Some(why) => Effect::NotRead(number, why),
            None => Effect::Read(number, slice),
        };
        self.effects.push(effect);
    }

    fn seek(&mut self, number: u64, mut seek: Seek) {
        if planted::is(Planted::OwnCut)
            && let SeekFor::Cuts(_, offsets) = &mut seek.what
            && let Some(slot) = seek.plan.ranges.get(seek.range).map(|range| range.slot)
            && self.map.live(slot).first() != Some(&self.me)
        {
            *offsets = offsets.iter().map(|offset| offset + 17).collect();
        }
        let effect = match self.lacks(&seek.plan, seek.range) {
            Some(why) => Effect::NotRead(number, why),
            None => Effect::Seek(number, seek),
        };
        self.effects.push(effect);
    }

    /// Why a range is not read here; none: all of it is here. Of one that is not in the plan nothing lacks.
    fn lacks(&mut self, plan: &Plan, range: usize) -> Option<NotRead> {
        if let Some(how) = self.how_ended(plan.shuffle) {
            return Some(NotRead::Over(how));
        }
        let slot = plan.ranges.get(range)?.slot;
        let needed = plan.needed.get(&slot).cloned().unwrap_or_default();
        (!self.is_whole(plan.shuffle, slot, &needed)).then_some(NotRead::Lacks)
    }

    /// Removes all that is here of a shuffle.
    fn end(&mut self, shuffle: ShuffleId, how: Ended) {
        self.streams.retain(|_, streams| {
            streams.retain(|stream, _| stream.shuffle != shuffle);
            !streams.is_empty()
        });
        self.storing.retain(|key, _| key.stream.shuffle != shuffle);
        self.known.retain(|stream, _| stream.shuffle != shuffle);
        self.marks.remove(&shuffle);
        self.heard.remove(&shuffle);
        self.end_objects(shuffle);
        if self.how_ended(shuffle).is_none() {
            self.ended.push_back((shuffle, how));
        }
        if self.ended.len() > self.settings.ended_kept {
            self.ended.pop_front();
        }
        self.effects.push(Effect::DropShuffle(shuffle));
    }
}

#[cfg(test)]
mod tests;
