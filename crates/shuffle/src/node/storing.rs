//! The thread that writes batches: while the disk is busy with one group, the next one gathers.

use super::inbox::{Done, EndsAtPanic, Inbox};
use super::orders::Orders;
use super::reading::Ranges;
use crate::store::{Damage, Place, Store, StoreError};
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{PoolSlot, ShuffleId};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What the node orders. Batches of shuffles take turns, and all else is done where it was ordered ([`Orders`]).
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
        (most_orders, group_bytes): (usize, u64),
    ) -> std::io::Result<Storing> {
        let orders = Arc::new(Orders::new(most_orders));
        let ends = EndsOrders(Arc::clone(&orders));
        let guard = EndsAtPanic::new(&inbox, "writes batches");
        let work = Work { store, ranges, inbox, group_bytes, group: Vec::new(), bytes: 0 };
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

struct Work {
    store: Store,
    ranges: Arc<Ranges>,
    inbox: Arc<Inbox>,
    group_bytes: u64,
    group: Vec<Arc<Batch>>,
    bytes: u64,
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
                self.bytes += batch.room();
                self.group.push(batch);
                if self.bytes >= self.group_bytes { self.flush() } else { Ok(()) }
            }
            Order::DropShuffle(shuffle) => {
                self.flush()?;
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
                self.flush()?;
                let damaged = self.store.drop_copies(shuffle, slot)?;
                self.damaged(damaged);
                Ok(())
            }
            Order::Forget(key, place) => {
                self.flush()?;
                self.store.forget(&key, place)
            }
        }
    }

    fn damaged(&self, damaged: Vec<(BatchKey, Place, Damage)>) {
        for (key, place, damage) in damaged {
            self.inbox.done(Done::Damaged(key, place, damage));
        }
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if self.group.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let written = self.store.store(&std::mem::take(&mut self.group))?;
        self.inbox.done(Done::Written(written));
        Ok(())
    }
}
