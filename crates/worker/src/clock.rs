//! The one place of this crate that reads a clock.

use partage_core::time::Millis;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

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

/// The processor time that this thread has used, by the kernel's count.
pub fn thread_cpu() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}
