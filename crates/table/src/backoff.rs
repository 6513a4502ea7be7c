//! How long a request waits between tries while a shard changes hands.

use crate::limits::{FIRST_RETRY, LAST_RETRY};
use std::time::Duration;
use tokio::time::Instant;

/// The backoff of one request: each delay is a quarter of the time since its first try. So it waits at most a quarter longer than
/// it must, and asks some twenty times in the first second.
pub(crate) struct Backoff {
    began: Instant,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { began: Instant::now() }
    }

    /// How long to wait before the next try.
    pub(crate) fn delay(&self) -> Duration {
        delay_after(self.began.elapsed())
    }
}

fn delay_after(waited: Duration) -> Duration {
    (waited / 4).clamp(FIRST_RETRY, LAST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_a_quarter_longer_than_it_must_at_most() {
        let (mut waited, mut asked) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(1) {
            let delay = delay_after(waited);
            assert!(delay <= (waited / 4).max(FIRST_RETRY), "{waited:?}");
            (waited, asked) = (waited + delay, asked + 1);
        }
        assert!((20..50).contains(&asked), "{asked}");
    }
}
