//! The one place of this crate that reads a clock.

use partage_core::time::Millis;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

    /// Nanoseconds since the start.
    pub fn nanos(&self) -> u64 {
        self.passed().as_nanos() as u64
    }

    /// That time, as timers want it.
    pub fn at(&self, time: Millis) -> tokio::time::Instant {
        let far = Duration::from_secs(365 * 24 * 3600);
        tokio::time::Instant::from_std(self.start + Duration::from_millis(time.0).min(far))
    }

    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    fn passed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Seconds since 1970, for what people read: dates in headers and on pages.
pub fn unix_seconds() -> u64 {
    unix_ms() / 1_000
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_millis() as u64)
}
