//! The one place of this crate that reads clocks.

use partage_core::base::time::Millis;
use partage_core::cluster::Moment;
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts from its own start, through a sleep of the machine; a copy counts from the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock(partage_clock::Clock);

impl Clock {
    /// Begins to count.
    pub fn start() -> Clock {
        Clock(partage_clock::Clock::start())
    }

    /// What time it is, for `core`.
    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    pub fn moment(&self) -> Moment {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { now: self.now(), wall_ms: since_epoch.as_millis() as u64 }
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> Millis {
        self.0.now()
    }
}
