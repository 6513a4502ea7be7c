//! Time as an argument. `core` has no clock: the caller says what time it is.

use std::fmt;
use std::ops::{Add, Sub};

/// Milliseconds on the caller's own monotonic clock. Values of two processes are never compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// A time that never comes.
    pub const NEVER: Millis = Millis(u64::MAX);

    /// Milliseconds from `earlier` to `self`, 0 when `earlier` is later.
    pub fn since(self, earlier: Millis) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Millis {
    type Output = Millis;
    fn add(self, ms: u64) -> Millis {
        Millis(self.0.saturating_add(ms))
    }
}

impl Sub<u64> for Millis {
    type Output = Millis;
    fn sub(self, ms: u64) -> Millis {
        Millis(self.0.saturating_sub(ms))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}
