//! Where this binary measures something, and says how long ago something was.

use std::time::{Duration, Instant};

/// How long `work` takes.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// How long ago a moment of Unix time was, by the clock of this machine; nothing for one in its future.
pub fn ago(unix_ms: u64) -> Duration {
    Duration::from_millis(partage_clock::unix_ms().saturating_sub(unix_ms))
}
