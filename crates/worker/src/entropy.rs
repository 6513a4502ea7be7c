//! The one place of this crate that draws at random: to spread attempts in time and reads over replicas (R7).

/// A random number from 0 to 1: many workers that lost the same coordinator do not come back in step.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn jitter() -> f64 {
    rand::random_range(0.0..=1.0)
}

/// A seed, for the random choice among replicas.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn seed() -> u64 {
    rand::random()
}
