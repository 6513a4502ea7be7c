//! The one place of this crate that draws at random: ids of transactions, and which servers keep a map.

use partage_core::base::id::TransactionId;
use std::time::Duration;

/// 160 bits that nobody else has (T6).
#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub fn transaction() -> TransactionId {
    TransactionId(rand::random())
}

#[expect(clippy::disallowed_methods, reason = "the one source of randomness of this crate")]
pub(crate) fn seed() -> u64 {
    rand::random()
}

/// From half of `whole` to one and a half of it, so that not all come at once.
pub(crate) fn around(whole: Duration) -> Duration {
    whole / 2 + whole * (seed() % 1_000) as u32 / 1_000
}
