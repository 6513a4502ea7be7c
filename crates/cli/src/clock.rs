//! The one place where this binary reads the clocks: to measure something, and to say how long ago something was.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long `work` takes.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// How long ago a moment of Unix time was, by the clock of this machine; nothing for one in its future.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn ago(unix_ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_millis(unix_ms))
}
