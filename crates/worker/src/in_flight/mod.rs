//! The requests in flight in a replica: those that were let in and have not ended.
//!
//! A gate is shut by publishing new [`Gates`](partage_core::worker::gates::Gates) and then waiting until
//! no request is in flight. Against the race with a request that has read the old gates and is about to be counted:
//!
//! ```text
//!  request: one more in flight ── read gates again ── still open? stay : one less in flight, ask again
//!  driver:  publish gates ─────── one more waits ──── none in flight? empty : wait
//! ```
//!
//! The requests in flight and the waiting drivers are counted in one number, so one of the two comes first. If the request
//! does, the driver sees it and waits; if the driver does, the request sees the shut gate and leaves. No request is
//! missed, and a request costs two atomic operations.

mod counter;

/// What [`counter`] is built of; its test has it built of others.
mod atomics {
    pub use std::sync::atomic::{AtomicU64, Ordering};
}

use crate::handler::Assignment;
use crate::heavy::HeavyKeys;
use arc_swap::ArcSwap;
use atomics::{AtomicU64, Ordering};
pub use counter::EvictionEpoch;
use counter::InFlightCounter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// The requests in flight in one replica, and what they ask for.
#[derive(Debug)]
pub struct InFlight {
    /// The newest order, for the requests in flight.
    assignment: ArcSwap<Assignment>,
    counter: InFlightCounter,
    empty: Notify,
    /// Notified at each eviction.
    evicted: watch::Sender<()>,
    requests: AtomicU64,
    /// Processor time of its requests, in nanoseconds.
    cpu: AtomicU64,
    heavy: Mutex<HeavyKeys>,
}

impl InFlight {
    pub fn new(assignment: Assignment) -> InFlight {
        InFlight {
            assignment: ArcSwap::from_pointee(assignment),
            counter: InFlightCounter::new(),
            empty: Notify::new(),
            evicted: watch::Sender::new(()),
            requests: AtomicU64::new(0),
            cpu: AtomicU64::new(0),
            heavy: Mutex::default(),
        }
    }

    pub fn assignment(&self) -> Arc<Assignment> {
        self.assignment.load_full()
    }

    pub fn assign(&self, assignment: Assignment) {
        if **self.assignment.load() != assignment {
            self.assignment.store(Arc::new(assignment));
        }
    }

    /// Counts one more request in flight. Read the gates again afterwards, and leave if they are shut.
    pub fn enter(&self) -> EvictionEpoch {
        self.counter.enter()
    }

    /// Counts one request less, and wakes the drivers that wait if it was the last.
    pub fn leave(&self) {
        if self.counter.leave() {
            self.empty.notify_waiters();
        }
    }

    /// Returns when no request is in flight. Publish shut gates first: else others are let in.
    pub async fn emptied(&self) {
        let _waiting = Waiting::begin(&self.counter);
        loop {
            let mut told = std::pin::pin!(self.empty.notified());
            told.as_mut().enable();
            if self.counter.count() == 0 {
                return;
            }
            told.await;
        }
    }

    /// How many are in flight.
    pub fn count(&self) -> usize {
        self.counter.count()
    }

    /// Tells all requests in flight to end.
    pub fn evict(&self) {
        self.counter.evict();
        self.evicted.send_replace(());
    }

    /// Whether a request that entered at that epoch was evicted.
    pub fn is_evicted(&self, entered_at: EvictionEpoch) -> bool {
        self.counter.is_evicted(entered_at)
    }

    /// Returns when a request that entered at that epoch must end.
    pub async fn evicted(&self, entered_at: EvictionEpoch) {
        let mut evicted = self.evicted.subscribe();
        while !self.is_evicted(entered_at) {
            // The sender is part of `self`, so it cannot have gone.
            let _ = evicted.changed().await;
        }
    }

    /// One request for `key`. While another thread counts or reads, the key goes uncounted: shares, not
    /// numbers, are reported from the sketch.
    pub fn asked(&self, key: &[u8]) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut heavy) = self.heavy.try_lock() {
            heavy.count(key);
        }
    }

    /// Requests since the beginning.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts processor time that went into requests.
    pub fn spend(&self, cpu: Duration) {
        self.cpu.fetch_add(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Nanoseconds of processor time since the beginning.
    pub fn cpu(&self) -> u64 {
        self.cpu.load(Ordering::Relaxed)
    }

    pub fn heavy(&self) -> MutexGuard<'_, HeavyKeys> {
        self.heavy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One wait for no request to be in flight: it counts until it is dropped.
struct Waiting<'a>(&'a InFlightCounter);

impl Waiting<'_> {
    fn begin(counter: &InFlightCounter) -> Waiting<'_> {
        counter.begin_to_wait();
        Waiting(counter)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.end_to_wait();
    }
}
