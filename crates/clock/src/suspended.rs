//! A machine that sleeps, as the processes on it see that: [`crate::Instant`] has gone on, and all timers of this process
//! stood still. It holds for the whole process, so a test that uses it is alone in its file.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// For how long a test has let the machine sleep, in nanoseconds.
static SLEPT: AtomicU64 = AtomicU64::new(0);

/// The machine wakes, and has slept for that long.
pub fn wake_after(slept: Duration) {
    SLEPT.fetch_add(slept.as_nanos() as u64, Ordering::SeqCst);
}

pub(crate) fn slept() -> Duration {
    Duration::from_nanos(SLEPT.load(Ordering::SeqCst))
}
