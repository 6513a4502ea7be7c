//! Who is inside a replica: the requests that were let in and have not ended.
//!
//! A gate is shut by publishing new [`Gates`](partage_core::worker::gates::Gates) and then waiting until
//! nobody is inside. Against the race with a request that has read the old gates and is about to come in:
//!
//! ```text
//!  request: one more inside ── read gates again ── still open? stay : one less inside, ask again
//!  driver:  publish gates ── one more waits ── nobody inside? empty : wait
//! ```
//!
//! Who is inside and who waits are one number, so one of the two comes first. If the request, the driver sees it and
//! waits; if the driver, the request sees the shut gate and goes. Nobody slips through, and a request pays two atomic
//! operations.

mod occupancy;

/// What [`occupancy`] is built of; its test has it built of others.
mod atomics {
    pub use std::sync::atomic::{AtomicU64, Ordering};
}

use crate::handler::Assignment;
use crate::heavy::HeavyKeys;
use arc_swap::ArcSwap;
use atomics::{AtomicU64, Ordering};
pub use occupancy::Came;
use occupancy::Occupancy;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Who is inside one replica, and what they ask for.
#[derive(Debug)]
pub struct Inside {
    /// The newest order, for whoever is inside.
    assignment: ArcSwap<Assignment>,
    occupancy: Occupancy,
    empty: Notify,
    /// Rung at each eviction.
    evicted: watch::Sender<()>,
    requests: AtomicU64,
    /// Nanoseconds.
    cpu: AtomicU64,
    heavy: Mutex<HeavyKeys>,
}

impl Inside {
    pub fn new(assignment: Assignment) -> Inside {
        Inside {
            assignment: ArcSwap::from_pointee(assignment),
            occupancy: Occupancy::new(),
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

    /// Comes in. Read the gates again afterwards, and leave if they are shut.
    pub fn come(&self) -> Came {
        self.occupancy.come()
    }

    /// Goes out.
    pub fn go(&self) {
        if self.occupancy.go() {
            self.empty.notify_waiters();
        }
    }

    /// Returns when nobody is inside. Publish shut gates first: else others come in.
    pub async fn emptied(&self) {
        let _waiting = Waiting::begin(&self.occupancy);
        loop {
            let mut told = std::pin::pin!(self.empty.notified());
            told.as_mut().enable();
            if self.occupancy.count() == 0 {
                return;
            }
            told.await;
        }
    }

    /// How many are inside.
    pub fn count(&self) -> usize {
        self.occupancy.count()
    }

    /// Tells everybody inside to go.
    pub fn evict(&self) {
        self.occupancy.evict();
        self.evicted.send_replace(());
    }

    /// Whether one that came in then has been told to go.
    pub fn is_evicted(&self, came: Came) -> bool {
        self.occupancy.is_evicted(came)
    }

    /// Returns when one that came in then is told to go.
    pub async fn evicted(&self, came: Came) {
        let mut evicted = self.evicted.subscribe();
        while !self.is_evicted(came) {
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

    /// So much processor time went into requests.
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

/// One wait for nobody to be inside: it counts until it is dropped.
struct Waiting<'a>(&'a Occupancy);

impl Waiting<'_> {
    fn begin(occupancy: &Occupancy) -> Waiting<'_> {
        occupancy.begin_to_wait();
        Waiting(occupancy)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.end_to_wait();
    }
}
