//! The one place in which Partage's processes draw at random. What decides gets what was drawn as an argument, so that a test
//! or the simulator can give its own.

use rand::Rng;
use std::time::Duration;

/// Bytes that nobody can guess: of the generator of the thread, which is seeded by the system and fit for secrets.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness")]
pub fn bytes<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// A seed, for `core`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness")]
pub fn seed() -> u64 {
    rand::random()
}

/// A number from 0 to 1: processes that lost the same coordinator do not come back in step (R7).
#[expect(clippy::disallowed_methods, reason = "the one source of randomness")]
pub fn jitter() -> f64 {
    rand::random_range(0.0..=1.0)
}

/// One of `count`, which is not 0.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness")]
pub fn one_of(count: usize) -> usize {
    rand::random_range(0..count)
}

/// From half of `whole` to one and a half of it, so that not all come at once.
pub fn around(whole: Duration) -> Duration {
    whole / 2 + whole * (seed() % 1_000) as u32 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_where_it_should_be_and_not_the_same_twice() {
        assert_ne!(bytes::<20>(), bytes::<20>());
        assert_ne!(seed(), seed());
        let whole = Duration::from_secs(2);
        for _ in 0..1_000 {
            assert!((0.0..=1.0).contains(&jitter()));
            assert!(one_of(3) < 3);
            assert!((whole / 2..whole * 3 / 2).contains(&around(whole)));
        }
    }
}
