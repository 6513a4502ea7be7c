//! What time it is for `core`: by the clock that leases end by, and for people.

use partage_core::base::time::Millis;
use partage_core::cluster::Moment;

/// Counts from its own start, through a sleep of the machine; a copy counts from the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock(partage_clock::Clock);

impl Clock {
    /// Begins to count.
    pub fn start() -> Clock {
        Clock(partage_clock::Clock::start())
    }

    /// What time it is, for `core`.
    pub fn moment(&self) -> Moment {
        Moment { now: self.now(), wall_ms: partage_clock::unix_ms() }
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> Millis {
        self.0.now()
    }
}
