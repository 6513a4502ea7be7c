//! The one place of this crate that draws at random: to spread things in time and over replicas (R7).

use std::time::Duration;

/// A seed, for `core`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn seed() -> u64 {
    rand::random()
}

/// Anything from nothing to `most`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn any_of(most: Duration) -> Duration {
    most.mul_f64(rand::random_range(0.0..=1.0))
}
