//! The one place of this crate that draws at random: to spread connections in time and over coordinators (R7).

/// One of `count`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn one_of(count: usize) -> usize {
    rand::random_range(0..count)
}

/// A random number from 0 to 1.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn jitter() -> f64 {
    rand::random_range(0.0..=1.0)
}
