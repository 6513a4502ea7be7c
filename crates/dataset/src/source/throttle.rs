//! How fast a node reads from its sources, all together: foreground reads keep their latency meanwhile (S19).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partage_core::keyspace;
use partage_core::plan::throttle::Meter;

use partage_clock::Clock;

/// A limit on bytes in a second, for all readers together. A copy shares it.
#[derive(Debug, Clone)]
pub struct Throttle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rate: keyspace::Throttle,
    meter: Mutex<Meter>,
    clock: Clock,
}

impl Throttle {
    /// 0 is no limit.
    pub fn new(bytes_per_s: u64) -> Throttle {
        let rate = keyspace::Throttle { bytes_per_s, ..keyspace::Throttle::default() };
        Throttle(Arc::new(Shared { rate, meter: Mutex::default(), clock: Clock::start() }))
    }

    /// Waits until so many may be read.
    pub async fn take(&self, bytes: usize) {
        while let Some(wait) = self.try_take(bytes) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes them, or says how long to wait before asking again.
    pub(crate) fn try_take(&self, bytes: usize) -> Option<Duration> {
        let Shared { rate, meter, clock } = &*self.0;
        let now = clock.now();
        // Numbers are whole whenever the lock is free.
        let mut meter = meter.lock().unwrap_or_else(PoisonError::into_inner);
        match meter.is_open(rate, now) {
            Ok(()) => {
                meter.take(bytes as u64);
                None
            }
            Err(until) => Some(Duration::from_millis(until.since(now).max(1))),
        }
    }
}
