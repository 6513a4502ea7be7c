//! The one place of this crate that reads a clock.

use partage_core::time::Millis;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Counts from its own start; a copy counts from the same. Monotonic, and on Linux it goes on while the process
/// is stopped or the whole machine sleeps (`CLOCK_BOOTTIME`), so a lease runs out during either. Elsewhere it
/// stands still while the machine sleeps; such a machine is no place for exclusive shards.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Duration,
}

impl Clock {
    /// Begins to count.
    pub fn start() -> Clock {
        Clock { start: since_boot() }
    }

    /// Milliseconds since the start.
    pub fn now(&self) -> Millis {
        Millis(since_boot().saturating_sub(self.start).as_millis() as u64)
    }
}

fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    read(clock)
}

/// The processor time that this thread has used, by the kernel's count.
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
