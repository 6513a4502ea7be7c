//! The one place where this binary reads the clock to measure something.

use std::time::{Duration, Instant};

/// How long `work` takes.
#[expect(clippy::disallowed_methods, reason = "this is the clock file of the crate")]
pub fn time(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}
