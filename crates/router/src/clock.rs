//! The one place of this crate that reads a clock.

use partage_core::time::Millis;
use std::time::{Duration, Instant};

/// Counts from its own start; a copy counts from the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Begins to count.
    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Milliseconds since the start, for `core`.
    pub fn now(&self) -> Millis {
        Millis(self.passed().as_millis() as u64)
    }

    /// Microseconds since the start.
    pub fn micros(&self) -> u64 {
        self.passed().as_micros() as u64
    }

    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    fn passed(&self) -> Duration {
        self.start.elapsed()
    }

    /// That time, as timers want it.
    pub fn at(&self, time: Millis) -> tokio::time::Instant {
        let far = Duration::from_secs(365 * 24 * 3600);
        tokio::time::Instant::from_std(self.start + Duration::from_millis(time.0).min(far))
    }
}
