//! Receipts of an object store, and when they count (D6).
//!
//! A *receipt* is a batch without records, in a stream of its own ([`Writer::Objects`]): replicas fetch it, hand it over, and
//! find it again at a start as any batch, and no leader's decision is needed. Objects have the name of the process that has put
//! them. So two leaders of a slot that do not know of each other put the same twice, and neither changes what the other one has
//! put; each receipt is good for itself.
//!
//! | a receipt that came to a node | then |
//! |---|---|
//! | of this process, which has put the objects | the copies go |
//! | of another process | this node looks for the objects, and the copies go when it has seen them |
//! | of another process, and they are not there, or not now | the copies stay, and what lacks of them is fetched. It looks again after a rest, which doubles |
//! | at a start, without copies of a slot that the node does not load | it counts: the process before has seen them |
//! | at a node without an object store | the copies stay |
//!
//! So nodes that do not mean the same store, by a prefix that is wrong or a folder that is not mounted, keep what they have. One
//! that loads a slot is not ready by a receipt before it has seen the objects.

use super::objects::{Order, Part, due};
use super::{Effect, Holder, Inventory};
use crate::shuffle::record::{BatchKey, Stream};
use crate::shuffle::{BufferId, PoolSlot, ShuffleId, Writer};
use partage_core::base::time::Millis;
use std::collections::BTreeSet;

/// Looks for objects that are under way.
const SEEN_AT_ONCE: usize = 16;

/// The shuffles of which a node has receipts, by what it says that it has of a slot.
pub(super) fn receipts_of(has: &Inventory) -> BTreeSet<ShuffleId> {
    let receipts = has.iter().filter(|(stream, numbers)| stream.writer.is_objects() && numbers.has(1));
    receipts.map(|(stream, _)| stream.shuffle).collect()
}

/// The shuffles of which it has other batches.
pub(super) fn copies_of(has: &Inventory) -> BTreeSet<ShuffleId> {
    let copies = has.keys().filter(|stream| !stream.writer.is_objects());
    copies.map(|stream| stream.shuffle).collect()
}

impl Holder {
    /// Whether that is read from the object store.
    pub(super) fn is_offloaded(&self, shuffle: ShuffleId, slot: PoolSlot) -> bool {
        self.offloads.here.contains(&(shuffle, slot))
    }

    /// Whether this node has looked for the objects, and has not seen them.
    pub(super) fn is_unseen(&self, shuffle: ShuffleId, slot: PoolSlot) -> bool {
        self.offloads.unseen.get(&(shuffle, slot)).is_some_and(|order| order.failures > 0)
    }

    /// Whether batches of a part are here, besides receipts.
    pub(super) fn has_copies(&self, (shuffle, slot): Part) -> bool {
        let mut streams = self.streams.get(&slot).into_iter().flat_map(Inventory::keys);
        streams.any(|stream| stream.shuffle == shuffle && !stream.writer.is_objects())
    }

    /// A receipt is on this disk.
    pub(super) fn take_receipt(&mut self, (shuffle, slot): Part, by: &BufferId) {
        let is_own = self.offloads.own == *by && self.offloads.put.remove(&(shuffle, slot));
        if !self.settings.has_objects {
            return;
        }
        if is_own {
            self.count_receipt((shuffle, slot));
        } else if !self.is_offloaded(shuffle, slot) {
            self.offloads.unseen.entry((shuffle, slot)).or_insert(Order::NEW);
        }
    }

    /// Counts a receipt: from here on its part is read from the object store.
    fn count_receipt(&mut self, part: Part) {
        self.offloads.unseen.remove(&part);
        self.offloads.here.insert(part);
        self.drop_copies(part);
    }

    /// Counts receipts of parts without copies, at a start, when all batches are known.
    pub(super) fn count_lone_receipts(&mut self) {
        let parts = self.offloads.unseen.keys().copied();
        let loads = |slot| self.map.place(slot).is_some_and(|place| place.loading.contains(&self.me));
        let lone = parts.filter(|(shuffle, slot)| !self.has_copies((*shuffle, *slot)) && !loads(*slot));
        let lone: Vec<Part> = lone.collect();
        lone.into_iter().for_each(|part| self.count_receipt(part));
    }

    /// Looks for objects, by one receipt of a part after the other.
    pub(super) fn see_objects(&mut self, now: Millis) {
        let again = now + self.settings.longest_objects_rest_ms;
        for (shuffle, slot) in due(&mut self.offloads.unseen, (now, again), SEEN_AT_ONCE) {
            let failures = self.offloads.unseen.get(&(shuffle, slot)).map_or(0, |order| order.failures);
            let receipts = self.receipts(shuffle, slot);
            let turn = failures as usize % receipts.len().max(1);
            if let Some(Writer::Objects(by)) = receipts.get(turn).map(|key| &key.stream.writer) {
                self.effects.push(Effect::SeeObjects(shuffle, slot, by.clone()));
            }
        }
    }

    /// Objects that a process has put are there, as a whole; or they are not, or not now.
    pub(super) fn objects_seen(&mut self, now: Millis, (shuffle, slot): Part, by: BufferId, are_there: bool) {
        let order = self.offloads.unseen.get(&(shuffle, slot));
        // If there is none the shuffle has ended, or another receipt was good.
        let Some(failures) = order.map(|order| order.failures) else { return };
        let stream = Stream { shuffle, slot, writer: Writer::Objects(by) };
        if are_there && self.has(&BatchKey { stream, number: 1 }) {
            self.count_receipt((shuffle, slot));
            return self.see_objects(now);
        }
        let rest = self.objects_rest(failures);
        let order = self.offloads.unseen.get_mut(&(shuffle, slot));
        order.into_iter().for_each(|order| order.failed(now, rest));
    }

    pub(super) fn drop_copies(&mut self, (shuffle, slot): Part) {
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
            self.offloads.unseen.remove(&(shuffle, slot));
        }
    }

    pub(super) fn drop_receipts(&mut self, slot: PoolSlot) {
        self.offloads.here.retain(|(_, of)| *of != slot);
        self.offloads.unseen.retain(|(_, of), _| *of != slot);
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
}
