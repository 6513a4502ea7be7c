//! The one place where this binary reads the clocks: to measure something, to say how long ago
//! something was, and what time it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long `work` takes.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// What time it is, in milliseconds of Unix time.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// How long ago a moment of Unix time was, by the clock of this machine; nothing for one in its future.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn ago(unix_ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(unix_ms))
}
