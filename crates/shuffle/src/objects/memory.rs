//! The memory of what is read of the object store: one budget for all threads that read of it.
//!
//! A read takes its bytes before it asks the store, and has them until its caller has used what came. Reads have their turns in
//! the order in which they ask; one of more bytes than the budget has is let through when no other one has any. A thread that
//! waits for memory has none that other threads wait for: one that reads ahead takes it in the order in which its reads are
//! wanted (`ahead.rs`). A look at what another node has put is counted, and waits for none: its thread has more to do.

use super::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// What is taken, and whose turn it is.
#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    peak: u64,
    /// The turn of the read that asks next, and of the one that is let through next.
    asks: u64,
    next: u64,
}

/// The budget.
#[derive(Debug)]
pub(super) struct ReadMemory {
    most: u64,
    taken: Mutex<Taken>,
    changed: Condvar,
}

impl ReadMemory {
    pub(super) fn new(most: u64) -> ReadMemory {
        ReadMemory { most, taken: Mutex::default(), changed: Condvar::new() }
    }

    /// Takes so much, and waits while others have too much for that.
    pub(super) fn take(&self, bytes: u64) -> TakenBytes<'_> {
        let mut taken = lock(&self.taken);
        let turn = taken.asks;
        taken.asks += 1;
        let waits = |taken: &mut Taken| {
            let has_room = taken.bytes == 0 || taken.bytes.saturating_add(bytes) <= self.most;
            taken.next != turn || !has_room
        };
        let waited = self.changed.wait_while(taken, waits);
        let mut taken = waited.unwrap_or_else(PoisonError::into_inner);
        taken.next += 1;
        taken.add(bytes);
        drop(taken);
        // The next one may have room, too.
        self.changed.notify_all();
        TakenBytes { memory: self, bytes }
    }

    /// Counts so much, and waits for nothing: others wait for it.
    pub(super) fn count(&self, bytes: u64) -> TakenBytes<'_> {
        lock(&self.taken).add(bytes);
        TakenBytes { memory: self, bytes }
    }

    /// What is taken now, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        lock(&self.taken).bytes
    }

    /// The most that was taken so far.
    #[cfg(test)]
    pub(super) fn peak(&self) -> u64 {
        lock(&self.taken).peak
    }
}

impl Taken {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak = self.peak.max(self.bytes);
    }
}

/// So much is taken until this is dropped.
#[derive(Debug)]
pub(super) struct TakenBytes<'a> {
    memory: &'a ReadMemory,
    bytes: u64,
}

impl TakenBytes<'_> {
    /// What came takes so much. It is here already: other reads wait until it is given back.
    pub(super) fn grow_to(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(self.bytes);
        lock(&self.memory.taken).add(more);
        self.bytes = self.bytes.saturating_add(more);
    }
}

impl Drop for TakenBytes<'_> {
    fn drop(&mut self) {
        let mut taken = lock(&self.memory.taken);
        taken.bytes = taken.bytes.saturating_sub(self.bytes);
        drop(taken);
        self.memory.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    #[test]
    fn r1_reads_have_their_turns_and_no_more_than_the_budget_or_one() {
        let memory = ReadMemory::new(100);
        let first = memory.take(60);
        let (sender, order) = sync_channel(3);
        std::thread::scope(|scope| {
            // The second one has no room before the first one is done, and the third one, which would, comes behind it.
            for (asks, bytes) in [(2, 70), (3, 30), (4, 500)] {
                let (sender, memory) = (sender.clone(), &memory);
                scope.spawn(move || {
                    let taken = memory.take(bytes);
                    sender.send(bytes).unwrap();
                    drop(taken);
                });
                while lock(&memory.taken).asks < asks {
                    std::thread::park_timeout(Duration::from_millis(1));
                }
            }
            assert_eq!((memory.bytes(), order.try_recv().is_err()), (60, true));
            drop(first);
        });
        let mut all: Vec<u64> = order.try_iter().collect();
        assert_eq!(all.pop(), Some(500), "it waits until it is alone");
        all.sort_unstable();
        assert_eq!((all, memory.bytes(), memory.peak()), (vec![30, 70], 0, 500));
    }

    #[test]
    fn what_is_only_counted_waits_for_none_and_others_wait_for_it() {
        let memory = ReadMemory::new(100);
        let (taken, counted) = (memory.take(100), memory.count(50));
        assert_eq!((memory.bytes(), memory.peak()), (150, 150));
        drop(taken);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take(60).bytes);
            while lock(&memory.taken).asks < 2 {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            assert!(!waits.is_finished());
            drop(counted);
            assert_eq!(waits.join().unwrap(), 60);
        });
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn what_takes_more_than_was_known_is_counted() {
        let memory = ReadMemory::new(100);
        let mut taken = memory.take(10);
        taken.grow_to(300);
        taken.grow_to(20);
        assert_eq!(memory.bytes(), 300);
        drop(taken);
        assert_eq!((memory.bytes(), memory.peak()), (0, 300));
    }
}
