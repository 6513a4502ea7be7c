//! The orders that wait for the thread that writes. Shuffles take turns, and the orders of one keep their order: what the machine
//! takes for gone does not come back.
//!
//! An order to drop something of a shuffle waits for its turn like a batch. So a shuffle that ends makes no other one wait until
//! all is written that was ordered before. An order to drop a slot, which may have batches of each shuffle, is done where it was
//! ordered.

use super::storing::Order;
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::turns::Turns;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What waits between two orders to drop a slot, or such an order.
#[derive(Debug)]
enum Piece {
    OfShuffles(Turns<ShuffleId, Order>),
    OfSlot(Order),
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    len: usize,
    /// No more orders come.
    is_closed: bool,
    /// None is taken any more.
    is_ended: bool,
}

impl State {
    fn push(&mut self, order: Order) {
        self.len += 1;
        let (shuffle, cost) = match &order {
            Order::Store(batch) => (batch.key.stream.shuffle, batch.room()),
            Order::DropShuffle(shuffle) | Order::DropCopies(shuffle, _) => (*shuffle, 0),
            Order::Forget(key, _) => (key.stream.shuffle, 0),
            Order::DropSlot(_) => return self.pieces.push_back(Piece::OfSlot(order)),
        };
        if let Some(Piece::OfShuffles(turns)) = self.pieces.back_mut() {
            turns.push(shuffle, order, cost);
            return;
        }
        let mut turns = Turns::default();
        turns.push(shuffle, order, cost);
        self.pieces.push_back(Piece::OfShuffles(turns));
    }

    fn pop(&mut self) -> Option<Order> {
        loop {
            match self.pieces.front_mut()? {
                Piece::OfShuffles(turns) => {
                    if let Some(order) = turns.pop() {
                        self.len -= 1;
                        return Some(order);
                    }
                    self.pieces.pop_front();
                }
                Piece::OfSlot(_) => {
                    let Some(Piece::OfSlot(order)) = self.pieces.pop_front() else { continue };
                    self.len -= 1;
                    return Some(order);
                }
            }
        }
    }
}

/// The way to the thread that writes.
#[derive(Debug)]
pub(crate) struct Orders {
    state: Mutex<State>,
    filled: Condvar,
    emptied: Condvar,
    most: usize,
}

impl Orders {
    /// For so many at most.
    pub(crate) fn new(most: usize) -> Orders {
        let (state, filled, emptied) = Default::default();
        Orders { state, filled, emptied, most: most.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it had the lock has changed nothing by halves that matters: the node ends then.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an order, and waits while too many wait. Where none is taken any more, it is dropped.
    pub(crate) fn push(&self, order: Order) {
        let is_full = |state: &mut State| !state.is_ended && state.len >= self.most;
        let mut state = self.emptied.wait_while(self.lock(), is_full).unwrap_or_else(PoisonError::into_inner);
        if !state.is_ended {
            state.push(order);
            drop(state);
            self.filled.notify_one();
        }
    }

    /// The next order, which it waits for. None: no more come.
    pub(crate) fn next(&self) -> Option<Order> {
        let is_idle = |state: &mut State| !state.is_closed && state.len == 0;
        let waited = self.filled.wait_while(self.lock(), is_idle);
        self.taken(waited.unwrap_or_else(PoisonError::into_inner))
    }

    /// The next order, if there is one now.
    pub(crate) fn next_now(&self) -> Option<Order> {
        self.taken(self.lock())
    }

    fn taken(&self, mut state: MutexGuard<'_, State>) -> Option<Order> {
        let order = state.pop();
        drop(state);
        self.emptied.notify_one();
        order
    }

    /// No more orders come: the thread takes those that wait, and ends.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_all();
    }

    /// The thread has ended: who waits for room waits no longer.
    pub(crate) fn end(&self) {
        self.lock().is_ended = true;
        self.emptied.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::batch;
    use partage_service::shuffle::PoolSlot;

    /// The shuffles and numbers of batches; none of another order.
    fn taken(orders: &Orders) -> Vec<Option<(u128, u64)>> {
        let orders = std::iter::from_fn(|| orders.next_now());
        let named = orders.map(|order| match order {
            Order::Store(batch) => Some((batch.key.stream.shuffle.0, batch.key.number)),
            _ => None,
        });
        named.collect()
    }

    #[test]
    fn r1_a_batch_waits_for_one_of_each_other_shuffle_and_for_what_was_dropped_of_its_own() {
        let orders = Orders::new(100);
        let store = |shuffle, number| orders.push(Order::Store(batch(shuffle, 1, number, 10)));
        (1..=3).for_each(|number| store(1, number));
        store(2, 1);
        orders.push(Order::DropShuffle(ShuffleId(1)));
        (4..=5).for_each(|number| store(1, number));
        store(2, 2);
        let (one, two) = (|number| Some((1, number)), |number| Some((2, number)));
        assert_eq!(taken(&orders), [one(1), two(1), one(2), two(2), one(3), None, one(4), one(5)]);
    }

    #[test]
    fn no_batch_goes_before_a_slot_that_was_dropped_nor_that_before_a_batch() {
        let orders = Orders::new(100);
        let store = |shuffle, number| orders.push(Order::Store(batch(shuffle, 1, number, 10)));
        (1..=2).for_each(|number| store(1, number));
        orders.push(Order::DropSlot(PoolSlot(1)));
        store(2, 1);
        store(1, 3);
        let (one, two) = (|number| Some((1, number)), |number| Some((2, number)));
        assert_eq!(taken(&orders), [one(1), one(2), None, two(1), one(3)]);
    }

    #[test]
    fn r1_before_a_shuffle_that_trickles_goes_one_batch_of_a_flood_however_many_wait() {
        let orders = Orders::new(1_000);
        let store = |shuffle, number, bytes| orders.push(Order::Store(batch(shuffle, 1, number, bytes)));
        (1..=50).for_each(|number| store(1, number, 100_000));
        assert!(matches!(orders.next_now(), Some(Order::Store(first)) if first.key.stream.shuffle.0 == 1));
        (1..=20).for_each(|number| store(2, number, 100));
        let next: Vec<u128> = (0..21).filter_map(|_| orders.next_now()).map(|order| of(&order)).collect();
        assert_eq!(next.iter().position(|shuffle| *shuffle == 1), Some(20), "{next:?}");
    }

    fn of(order: &Order) -> u128 {
        match order {
            Order::Store(batch) => batch.key.stream.shuffle.0,
            _ => 0,
        }
    }

    #[test]
    fn who_waits_for_room_is_let_go_when_the_thread_ends_and_all_that_waits_is_taken_before_the_end() {
        let orders = Orders::new(1);
        orders.push(Order::DropShuffle(ShuffleId(1)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| orders.push(Order::DropShuffle(ShuffleId(2))));
            orders.close();
            assert!(orders.next().is_some());
            waits.join().unwrap();
            assert!(orders.next().is_some() && orders.next().is_none());
            orders.push(Order::DropShuffle(ShuffleId(3)));
            let waits = scope.spawn(|| orders.push(Order::DropShuffle(ShuffleId(4))));
            orders.end();
            waits.join().unwrap();
        });
    }
}
