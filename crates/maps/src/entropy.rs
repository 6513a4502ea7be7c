//! The one place of this crate that draws at random: to spread connections in time and over coordinators (R7).

use std::time::Duration;

/// One of `count`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn one_of(count: usize) -> usize {
    rand::random_range(0..count)
}

/// Anything from nothing to `most`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn any_of(most: Duration) -> Duration {
    most.mul_f64(rand::random_range(0.0..=1.0))
}
