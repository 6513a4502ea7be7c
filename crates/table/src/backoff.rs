//! How long a request rests while a shard changes hands.

use crate::limits::{FIRST_RETRY, LAST_RETRY};
use std::time::Duration;
use tokio::time::Instant;

/// Of one request. It rests for a quarter of the time for which it has waited: so it waits for no more than a quarter longer than
/// it must, and asks some twenty times in the first second.
pub(crate) struct Backoff {
    began: Instant,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff { began: Instant::now() }
    }

    /// How long to rest now, before the request is sent again.
    pub(crate) fn rest(&self) -> Duration {
        rest_after(self.began.elapsed())
    }
}

fn rest_after(waited: Duration) -> Duration {
    (waited / 4).clamp(FIRST_RETRY, LAST_RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_a_quarter_longer_than_it_must_at_most() {
        let (mut waited, mut asked) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(1) {
            let rest = rest_after(waited);
            assert!(rest <= (waited / 4).max(FIRST_RETRY), "{waited:?}");
            (waited, asked) = (waited + rest, asked + 1);
        }
        assert!((20..50).contains(&asked), "{asked}");
    }
}
