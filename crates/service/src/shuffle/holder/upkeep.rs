//! How replicas of a slot come to have the same: in rounds each node says what it has, and fetches what it lacks.
//!
//! | node | in a round it |
//! |---|---|
//! | replica in `Live` | compares with the others, and fetches |
//! | replica in `Load` | does so too; it is ready when it has taken the decisions under the epoch of the map, and has all that each replica in `Live` has said to have |
//! | not in the map: a stand-in, or a former replica | says what it has; when each replica in `Live` has all of it, and there are R of them, it drops the slot (X12, D7) |
//!
//! A receipt of an object store (`receipts.rs`) stands for all that the slot has of its shuffle: a node that has seen the
//! objects, or is about to look for them, fetches nothing else of that, and one that hands over to nodes that have it, and have
//! dropped their copies for it, is done.
//!
//! What another node has may be on its way here, or wait at its sender: a replica in `Live` fetches only what others have had for
//! some rounds. Else nodes that are slow to store would get each batch twice.
//!
//! Only answers of the present round count, under the map of that round. A chain of nodes that hand over one to the next loses
//! nothing: each drops when its successors are whole, and those wait for theirs.

use super::receipts::{copies_of, receipts_of};
use super::{Effect, Holder, Inventory};
use crate::shuffle::log::Refused;
use crate::shuffle::message::Message;
use crate::shuffle::record::{BatchKey, Numbers, Stream};
use crate::shuffle::{PoolSlot, ShuffleId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::BTreeSet;

/// So many rounds after another node had a batch a replica in `Live` that lacks it fetches it.
const FETCH_ROUNDS: u64 = 3;

/// Streams of which a node says in one call what it has, and those of one slot more: they are copied for each other node.
const STREAMS_AT_ONCE: usize = 4_096;

/// How many batches of a stream others have.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownElsewhere {
    /// When the numbers below moved on.
    at: Millis,
    /// Some other replica has had this number for some rounds at least.
    before: u64,
    /// It becomes that when the same time has passed once more.
    upto: u64,
    /// The highest number that any of them has told.
    heard: u64,
}

impl Holder {
    /// Begins a round when it is time, and says what is here of some slots: all of them are thousands of streams where shuffles
    /// are many, and batches would wait until all is copied. The next round is due some time after the last slot, so that the
    /// node tells each slot in each round, and hears of it.
    pub(super) fn upkeep(&mut self, now: Millis) {
        if now >= self.round_at && self.untold.is_empty() {
            self.begin_round(now);
        }
        if !self.untold.is_empty() {
            self.round_at = now + self.settings.inventory_ms;
        }
        let mut streams = 0;
        while streams < STREAMS_AT_ONCE
            && let Some(slot) = self.untold.pop_first()
        {
            streams += self.streams.get(&slot).map_or(1, Inventory::len);
            self.compare(slot);
            self.ask_decisions(slot);
        }
    }

    fn begin_round(&mut self, now: Millis) {
        self.settle();
        self.attend_objects(now);
        self.round_at = now + self.settings.inventory_ms;
        self.round += 1;
        self.replies.clear();
        let named = (0..self.map.places.len()).map(|slot| PoolSlot(slot as u32));
        let named = named.filter(|slot| self.map.has(*slot, &self.me));
        let forgets = planted::is(Planted::StandInForgotten);
        let slots = named.chain(self.slots()).chain(self.logged.keys().copied());
        self.untold = slots.filter(|slot| !forgets || self.map.has(*slot, &self.me)).collect();
        self.ask_homes(now);
    }

    fn has_of(&self, slot: PoolSlot) -> Inventory {
        self.streams.get(&slot).cloned().unwrap_or_default()
    }

    fn compare(&mut self, slot: PoolSlot) {
        let Some(place) = self.map.place(slot) else { return };
        let others = place.live.iter().chain(&place.loading).filter(|node| **node != self.me);
        let others: Vec<NodeId> = others.cloned().collect();
        let (round, has) = (self.round, self.has_of(slot));
        for node in others {
            self.send(node, Message::Inventory { slot, round, asks: true, has: has.clone() });
        }
    }

    /// A loading replica that has not the decisions under the epoch of the map, be it that it has dropped them, tells the leader.
    fn ask_decisions(&mut self, slot: PoolSlot) {
        let Some(place) = self.map.place(slot).filter(|place| place.loading.contains(&self.me)) else {
            return;
        };
        if self.logged.get(&slot) != Some(&place.epoch)
            && let Some(leader) = place.live.first().cloned()
        {
            let lacks = Message::NotAppended(slot, place.epoch, Refused::Lacks);
            self.send(leader, lacks);
        }
    }

    /// Another node says what it has.
    pub(super) fn inventory(
        &mut self,
        from: NodeId,
        slot: PoolSlot,
        (round, asks): (u64, bool),
        has: Inventory,
    ) {
        if self.map.has(slot, &self.me) {
            self.fetch_lacking(&from, &has);
        }
        if asks {
            let own = self.has_of(slot);
            return self.send(from, Message::Inventory { slot, round, asks: false, has: own });
        }
        if round == self.round {
            self.replies.entry(slot).or_default().insert(from, has);
            self.settle_slot(slot);
        }
    }

    /// Remembers how much of each stream other replicas of a slot have, so that what they have had for some rounds, and what has
    /// not come here, is fetched. Of a slot that this node has no replica of, nothing is fetched.
    pub(super) fn learn(&mut self, now: Millis, slot: PoolSlot, has: &Inventory) {
        if !self.map.has(slot, &self.me) {
            return;
        }
        let rest = self.settings.inventory_ms.saturating_mul(FETCH_ROUNDS);
        for (stream, numbers) in has {
            if self.how_ended(stream.shuffle).is_some() {
                continue;
            }
            let (upto, beyond) = numbers.parts();
            let upto = beyond.last().copied().unwrap_or(upto);
            match self.known.get_mut(stream) {
                Some(known) if now.since(known.at) >= rest => {
                    let heard = known.heard.max(upto);
                    *known = KnownElsewhere { at: now, before: known.upto, upto: heard, heard };
                }
                // Replicas have different parts: what any of them has is missed here.
                Some(known) => known.heard = known.heard.max(upto),
                None => {
                    let known = KnownElsewhere { at: now, before: 0, upto, heard: upto };
                    self.known.insert(stream.clone(), known);
                }
            }
        }
    }

    /// Whether a batch that others have is not about to come by itself.
    fn is_overdue(&self, key: &BatchKey) -> bool {
        let is_loading = || {
            let place = self.map.place(key.stream.slot);
            place.is_some_and(|place| place.loading.contains(&self.me))
        };
        let known = self.known.get(&key.stream);
        key.stream.writer.is_objects()
            || known.is_some_and(|known| key.number <= known.before)
            || is_loading()
    }

    fn fetch_lacking(&mut self, from: &NodeId, has: &Inventory) {
        let none = Numbers::default();
        let mut lacking = Vec::new();
        let offloaded = if self.settings.has_objects { receipts_of(has) } else { BTreeSet::new() };
        let is_wanted = |stream: &Stream| {
            stream.writer.is_objects()
                || !(self.is_offloaded(stream.shuffle, stream.slot)
                    || offloaded.contains(&stream.shuffle) && !self.is_unseen(stream.shuffle, stream.slot))
        };
        let living = has.iter().filter(|(stream, _)| self.how_ended(stream.shuffle).is_none());
        for (stream, numbers) in living.filter(|(stream, _)| is_wanted(stream)) {
            let own = self.numbers(stream).unwrap_or(&none);
            let keys = own.lacks_of(numbers).map(|number| BatchKey { stream: stream.clone(), number });
            // Whatever another node says that it has, no more is asked for at a time.
            let left = self.settings.fetched_at_once.saturating_sub(lacking.len());
            let keys = keys.filter(|key| !self.storing.contains_key(key) && self.is_overdue(key));
            lacking.extend(keys.take(left));
        }
        if !lacking.is_empty() {
            self.send(from.clone(), Message::Fetch(lacking));
        }
    }

    fn settle(&mut self) {
        let slots: Vec<PoolSlot> = self.replies.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.settle_slot(slot));
    }

    fn settle_slot(&mut self, slot: PoolSlot) {
        let Some(place) = self.map.place(slot) else { return };
        let is_live = place.live.contains(&self.me);
        if place.loading.contains(&self.me) {
            let is_logged = self.logged.get(&slot) == Some(&place.epoch);
            if is_logged && self.has_all_of(slot) {
                self.effects.push(Effect::Ready(slot, place.epoch));
            }
        } else if !is_live && self.may_drop(slot) {
            self.drop_slot(slot);
        }
    }

    pub(super) fn drop_slot(&mut self, slot: PoolSlot) {
        self.streams.remove(&slot);
        self.known.retain(|stream, _| stream.slot != slot);
        self.drop_receipts(slot);
        self.logged.remove(&slot);
        for marks in self.marks.iter_mut().filter(|(shuffle, _)| self.map.home(**shuffle) == slot) {
            marks.1.clear();
        }
        self.effects.push(Effect::DropSlot(slot));
    }

    /// Whether all that each replica in `Live` has said in this round is here.
    fn has_all_of(&self, slot: PoolSlot) -> bool {
        let replies = self.replies.get(&slot);
        let none = Numbers::default();
        let is_here = |has: &Inventory| {
            let copied = copies_of(has);
            let mut living = has.iter().filter(|(stream, _)| self.how_ended(stream.shuffle).is_none());
            living.all(|(stream, numbers)| {
                let is_offloaded = self.is_offloaded(stream.shuffle, stream.slot);
                let own = self.numbers(stream).unwrap_or(&none);
                let has_all = || own.lacks_of(numbers).next().is_none();
                match stream.writer.is_objects() {
                    true => has_all() && (is_offloaded || copied.contains(&stream.shuffle)),
                    false => is_offloaded || has_all(),
                }
            })
        };
        let has_all = |node: &NodeId| replies.and_then(|replies| replies.get(node)).is_some_and(is_here);
        self.map.live(slot).iter().all(has_all)
    }

    /// Whether each replica in `Live` has said in this round that it has all that is here.
    fn may_drop(&self, slot: PoolSlot) -> bool {
        let is_empty = !self.streams.contains_key(&slot) && !self.logged.contains_key(&slot);
        if is_empty || self.storing.keys().any(|key| key.stream.slot == slot) {
            return false;
        }
        if planted::is(Planted::DroppedEarly) {
            return true;
        }
        let live = self.map.live(slot);
        let replies = self.replies.get(&slot);
        let none = Numbers::default();
        let has_all = |node: &NodeId| {
            replies.and_then(|replies| replies.get(node)).is_some_and(|has| {
                let (offloaded, copied) = (receipts_of(has), copies_of(has));
                let mut own = self.streams.get(&slot).into_iter().flatten();
                own.all(|(stream, numbers)| {
                    (offloaded.contains(&stream.shuffle) && !copied.contains(&stream.shuffle))
                        || has.get(stream).unwrap_or(&none).lacks_of(numbers).next().is_none()
                })
            })
        };
        live.len() >= self.map.replicas && live.iter().all(has_all)
    }

    /// Asks about shuffles of which nothing was heard for long.
    fn ask_homes(&mut self, now: Millis) {
        let silent = self.heard.iter().filter(|(_, at)| now.since(**at) >= self.settings.grace_ms);
        let silent: Vec<ShuffleId> = silent.map(|(shuffle, _)| *shuffle).collect();
        for shuffle in silent {
            if self.has_nothing_of(shuffle) {
                self.heard.remove(&shuffle);
                continue;
            }
            self.heard.insert(shuffle, now);
            if let Some(leader) = self.map.live(self.map.home(shuffle)).first().cloned() {
                self.send(leader, Message::Ask(shuffle));
            }
        }
    }
}
