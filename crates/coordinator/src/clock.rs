//! The one place of this crate that reads clocks.

use partage_core::cluster::Moment;
use partage_core::time::Millis;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

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

    /// What time it is, for `core`.
    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    pub fn moment(&self) -> Moment {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { now: self.now(), wall_ms: since_epoch.as_millis() as u64 }
    }

    /// Milliseconds since the start.
    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    pub fn now(&self) -> Millis {
        Millis(self.start.elapsed().as_millis() as u64)
    }
}
