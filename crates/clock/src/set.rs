//! A system whose time of day a person sets, as this process sees that: monotonic clocks go on as before. It holds for the whole
//! process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// How far a test has set the time of day ahead, in milliseconds.
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// The time of day is that many milliseconds ahead of the true one from now on; below zero: behind.
pub fn ahead_by_ms(ahead_ms: i64) {
    AHEAD.store(ahead_ms, Ordering::SeqCst);
}

pub(crate) fn changed(true_time: Duration) -> Duration {
    let ahead_ms = AHEAD.load(Ordering::SeqCst);
    let ahead = Duration::from_millis(ahead_ms.unsigned_abs());
    if ahead_ms < 0 { true_time.saturating_sub(ahead) } else { true_time.saturating_add(ahead) }
}
