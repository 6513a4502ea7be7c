//! The thread that writes batches: while the disk is busy with one group, the next one gathers.
//!
//! A batch waits until the group before it is on disk. A shuffle that writes alone has groups as large as the disk likes. Where
//! others write too groups are small (`Groups`), and in each of them what there is of shuffles with little goes before the rest
//! (`Store::store_each`): a shuffle that floods the disk holds up little of the others.

use super::inbox::{Done, EndsAtPanic, Inbox};
use super::orders::Orders;
use super::reading::Ranges;
use crate::limits;
use crate::store::{Damage, Place, Store, StoreError};
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{PoolSlot, ShuffleId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What the node orders. Shuffles take turns ([`Orders`]).
#[derive(Debug)]
pub(crate) enum Order {
    Store(Arc<Batch>),
    DropShuffle(ShuffleId),
    DropSlot(PoolSlot),
    /// It is in the object store.
    DropCopies(ShuffleId, PoolSlot),
    /// It is damaged there.
    Forget(BatchKey, Place),
}

/// The thread, and the way to it.
#[derive(Debug)]
pub(crate) struct Storing {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

impl Storing {
    /// What readers keep of a shuffle goes with its batches.
    pub(crate) fn start(
        store: Store,
        ranges: Arc<Ranges>,
        inbox: Arc<Inbox>,
        (most_orders, groups): (usize, Groups),
    ) -> std::io::Result<Storing> {
        let orders = Arc::new(Orders::new(most_orders));
        let ends = EndsOrders(Arc::clone(&orders));
        let guard = EndsAtPanic::new(&inbox, "writes batches");
        let work = Work { store, ranges, inbox, groups, group: Vec::new() };
        let thread = std::thread::Builder::new().name("shuffle-writer".to_owned()).spawn(move || {
            let _guard = guard;
            work.run(&ends.0);
        })?;
        Ok(Storing { orders, thread: Some(thread) })
    }

    /// Hands an order over, and waits while too many wait. A thread that has ended has said why.
    pub(crate) fn order(&self, order: Order) {
        self.orders.push(order);
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        self.orders.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread has this while it runs: without it nobody takes orders.
struct EndsOrders(Arc<Orders>);

impl Drop for EndsOrders {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// How large groups are.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    /// Bytes of a group of a shuffle that writes alone.
    alone: u64,
    /// The same where several write.
    shared: u64,
    /// Those of the present group.
    bytes: u64,
    /// Those of all groups.
    written: u64,
    /// How much was written when the last batch of each shuffle came, of those that write now.
    last: BTreeMap<ShuffleId, u64>,
}

impl Groups {
    /// A group has so many bytes, or one batch more; fewer where several shuffles write.
    pub(crate) fn new(alone: u64, shared: u64) -> Groups {
        Groups { alone, shared: shared.min(alone), bytes: 0, written: 0, last: BTreeMap::new() }
    }

    /// Adds a batch. Whether the group is to be written now.
    fn add(&mut self, shuffle: ShuffleId, bytes: u64) -> bool {
        self.bytes += bytes;
        self.written += bytes;
        self.last.insert(shuffle, self.written);
        self.bytes >= if self.last.len() > 1 { self.shared } else { self.alone }
    }

    /// The group is written.
    fn end(&mut self) {
        self.bytes = 0;
        let written = self.written;
        self.last.retain(|_, last| written - *last < limits::SHARED_FOR_BYTES);
    }

    /// The shuffle has ended.
    fn forget(&mut self, shuffle: ShuffleId) {
        self.last.remove(&shuffle);
    }
}

struct Work {
    store: Store,
    ranges: Arc<Ranges>,
    inbox: Arc<Inbox>,
    groups: Groups,
    group: Vec<Arc<Batch>>,
}

impl Work {
    fn run(mut self, orders: &Orders) {
        while let Some(first) = orders.next() {
            // The node has ended: nobody hears of what would be stored.
            if self.inbox.is_closed() {
                return;
            }
            let mut next = Some(first);
            let mut result = Ok(());
            while let (Some(order), Ok(())) = (next.take(), &result) {
                result = self.take(order);
                next = orders.next_now();
            }
            if let Err(error) = result.and_then(|()| self.flush()) {
                return self.inbox.done(Done::Ended(error.to_string()));
            }
        }
    }

    fn take(&mut self, order: Order) -> Result<(), StoreError> {
        match order {
            Order::Store(batch) => {
                let is_full = self.groups.add(batch.key.stream.shuffle, batch.room());
                self.group.push(batch);
                if is_full { self.flush() } else { Ok(()) }
            }
            Order::DropShuffle(shuffle) => {
                self.flush_of(shuffle)?;
                self.groups.forget(shuffle);
                self.store.drop_shuffle(shuffle)?;
                // Who reads a range of it from here on finds no batches, and keeps nothing.
                self.ranges.remove_shuffle(shuffle);
                Ok(())
            }
            Order::DropSlot(slot) => {
                self.flush()?;
                let damaged = self.store.drop_slot(slot)?;
                self.damaged(damaged);
                Ok(())
            }
            Order::DropCopies(shuffle, slot) => {
                self.flush_of(shuffle)?;
                let damaged = self.store.drop_copies(shuffle, slot)?;
                self.damaged(damaged);
                Ok(())
            }
            Order::Forget(key, place) => {
                self.flush_of(key.stream.shuffle)?;
                self.store.forget(&key, place)
            }
        }
    }

    fn damaged(&self, damaged: Vec<(BatchKey, Place, Damage)>) {
        for (key, place, damage) in damaged {
            self.inbox.done(Done::Damaged(key, place, damage));
        }
    }

    /// Writes the group if it has something of the shuffle: what is dropped of one cuts no group of others.
    fn flush_of(&mut self, shuffle: ShuffleId) -> Result<(), StoreError> {
        if self.group.iter().any(|batch| batch.key.stream.shuffle == shuffle) { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if self.group.is_empty() {
            return Ok(());
        }
        self.groups.end();
        let group = std::mem::take(&mut self.group);
        let Work { store, inbox, .. } = self;
        store.store_each(&group, |written| inbox.done(Done::Written(written)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of each group of a shuffle, until so many are written.
    fn groups(groups: &mut Groups, shuffle: u128, bytes: u64) -> Vec<u64> {
        let (mut written, mut own) = (Vec::new(), 0);
        for _ in 0..bytes / (1 << 20) {
            own += 1 << 20;
            if groups.add(ShuffleId(shuffle), 1 << 20) {
                groups.end();
                written.push(std::mem::take(&mut own));
            }
        }
        written
    }

    #[test]
    fn r1_groups_are_small_as_long_as_another_shuffle_writes_and_large_without() {
        let mut all = Groups::new(16 << 20, 2 << 20);
        let trickles = |all: &mut Groups| {
            assert!(!all.add(ShuffleId(2), 300));
            all.end();
        };
        assert_eq!(groups(&mut all, 1, 64 << 20), [16 << 20; 4]);
        trickles(&mut all);
        let beside = groups(&mut all, 1, limits::SHARED_FOR_BYTES);
        assert_eq!(beside[..10], [2 << 20; 10], "the other one may write again");
        assert_eq!(groups(&mut all, 1, 64 << 20), [16 << 20; 4], "it has not");
        trickles(&mut all);
        all.forget(ShuffleId(2));
        assert_eq!(groups(&mut all, 1, 64 << 20), [16 << 20; 4], "it has ended");
    }
}
