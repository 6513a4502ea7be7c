//! The one place of this crate that draws at random: to choose among peers.

/// A seed, for `core`.
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn seed() -> u64 {
    rand::random()
}
