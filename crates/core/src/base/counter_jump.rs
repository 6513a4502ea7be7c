//! Where numbers go on when some that were given out may have been forgotten.
//!
//! The last number that was given out is not guessed. A number goes on from the time of day, counted at a
//! pace that no cluster keeps up with. That a copy is begun from twice, or that a copy of a cluster which was itself
//! begun from a copy is, gives no number twice either: a later coordinator begins above all that was given out before.
//!
//! Not done: a jump of a fixed length alone. The same backup, restored a second time, would give out again what the
//! cluster of the first time has given out. It stays as the margin: for clocks that are some minutes off, and for
//! clocks that are off by years it is what is left.

use crate::limits::{COUNTER_JUMP, NUMBERS_PER_MS};

/// A jump of all numbers, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterJump {
    floor: u64,
}

impl CounterJump {
    /// At that moment, in milliseconds of Unix time.
    pub fn at(wall_ms: u64) -> CounterJump {
        CounterJump { floor: wall_ms.saturating_mul(NUMBERS_PER_MS) }
    }

    /// A number above `known`, and above all that a cluster can have given out until now which began at 1, or from
    /// an earlier jump.
    pub fn beyond(self, known: u64) -> u64 {
        known.max(self.floor).saturating_add(COUNTER_JUMP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Milliseconds of Unix time, from 2020 to 2255.
    const TIMES: std::ops::Range<u64> = 1_577_000_000_000..9_006_000_000_000;

    proptest! {
        /// M5: begun twice from one copy, the second time is above everything of the first.
        #[test]
        fn m5_a_later_leap_is_above_what_was_given_out_since_an_earlier_one(
            known in 0u64..1 << 50, first in TIMES, between_ms in 1u64..1 << 40, pace in 0u64..NUMBERS_PER_MS,
        ) {
            let begun = CounterJump::at(first).beyond(known);
            let last = begun + between_ms * pace;
            prop_assert!(begun > known);
            let later = CounterJump::at(first + between_ms);
            prop_assert!(later.beyond(known) > last, "the same backup again");
            prop_assert!(later.beyond(last) > last, "one of the restored cluster");
        }

        /// However wrong the clock is.
        #[test]
        fn m5_a_leap_is_always_above_what_is_known(known in 0u64..u64::MAX - COUNTER_JUMP, at in any::<u64>()) {
            prop_assert!(CounterJump::at(at).beyond(known) > known);
        }
    }

    #[test]
    fn javascript_holds_the_numbers_for_a_long_time() {
        assert!(CounterJump::at(TIMES.end).beyond(0) < 1 << 53);
    }
}
