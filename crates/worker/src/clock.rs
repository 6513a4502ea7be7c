//! The one place of this crate that reads a clock.

use partage_core::time::Millis;
use std::time::Instant;

/// Counts from its own start; a copy counts from the same. Monotonic: it goes on while the process is
/// stopped, so a lease runs out during a pause. It does stand still while the whole machine sleeps; a
/// machine that sleeps is no place for exclusive shards.
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

    /// Milliseconds since the start.
    #[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
    pub fn now(&self) -> Millis {
        Millis(self.start.elapsed().as_millis() as u64)
    }
}
