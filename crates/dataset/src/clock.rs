//! The one place of this crate that reads clocks.

pub use partage_clock::Clock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, for what people read: dates in headers and on pages.
pub fn unix_seconds() -> u64 {
    unix_ms() / 1_000
}

/// Milliseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_millis() as u64)
}
