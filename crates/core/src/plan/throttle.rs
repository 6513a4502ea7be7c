//! How fast a keyspace may move (K17): the bytes that moves may begin to copy in a second, and how many moves
//! a node takes part in beside its foreground work.
//!
//! Bytes are drawn from a bucket that fills at `bytes_per_s`. A move may begin when there is anything in it and
//! takes out its whole size at once, so the level may go far below nothing and the next move waits until that
//! has been filled up again. A shard larger than the bucket can therefore move, and still
//!
//! ```text
//!  bytes begun in any time t  ≤  bytes_per_s × (t + [`BURST_MS`]) + the largest move
//! ```
//!
//! The bucket is not stored: a coordinator that has just started begins with an empty one. What a move will
//! copy is known as well as the shard's replicas report it; a shard of unknown size counts as
//! [`limits::UNKNOWN_BYTES`].
//!
//! Not limited, and not counted: repairs. A shard that lacks a replica waits for nothing but
//! `loads_per_node`; each second without it is one in which the next loss hurts more.

use crate::base::time::Millis;
use crate::keyspace::Throttle;
use crate::limits;

/// How long an idle bucket fills: so many milliseconds' worth of bytes may begin at one moment. Enough that
/// the coordinator's own rhythm does not slow small shards down, little enough that no disk feels it.
pub const BURST_MS: u64 = 100;

/// How often at most the coordinator looks again for nothing but bytes: a few times in [`BURST_MS`].
pub const PAUSE_MS: u64 = 20;

/// Share of a node's capacity up to which foreground work leaves room for as many moves as the throttle has.
const CALM: f64 = 0.5;

/// From this share on a node takes part in one move at a time. Never in none: moves off it are its cure.
const BUSY: f64 = 0.9;

/// The bucket of one keyspace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Meter {
    /// What it holds, in thousandths of a byte; below 0 while an earlier move is paid off.
    level: i128,
    filled_at: Option<Millis>,
}

impl Meter {
    /// Whether a move may begin now; if not, when.
    pub fn is_open(&mut self, throttle: &Throttle, now: Millis) -> Result<(), Millis> {
        let rate = i128::from(throttle.bytes_per_s);
        if rate == 0 {
            *self = Meter::default();
            return Ok(());
        }
        // A byte a second is a thousandth of a byte a millisecond.
        let passed = now.since(*self.filled_at.get_or_insert(now));
        self.filled_at = self.filled_at.max(Some(now));
        self.level = (self.level + i128::from(passed) * rate).min(i128::from(BURST_MS) * rate);
        if self.level <= 0 {
            let missing = (1 - self.level + rate - 1) / rate;
            return Err(now + u64::try_from(missing).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// A move of so many bytes has begun.
    pub fn take(&mut self, bytes: u64) {
        self.level -= i128::from(bytes) * 1_000;
    }
}

/// What a move of a shard copies, as far as it is known.
pub fn move_bytes(reported: Option<u64>) -> u64 {
    reported.unwrap_or(limits::UNKNOWN_BYTES)
}

/// How many moves a node takes part in, of `most`, when foreground work takes the share `busy` of it.
pub fn beside(busy: f64, most: u32) -> u32 {
    let room = ((BUSY - busy) / (BUSY - CALM)).clamp(0.0, 1.0);
    ((f64::from(most) * room).floor() as u32).clamp(most.min(1), most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn throttle(bytes_per_s: u64) -> Throttle {
        Throttle { bytes_per_s, ..Throttle::default() }
    }

    /// Takes `bytes` if a move may begin.
    fn draw(meter: &mut Meter, bytes: u64, throttle: &Throttle, now: Millis) -> Result<(), Millis> {
        meter.is_open(throttle, now)?;
        meter.take(bytes);
        Ok(())
    }

    proptest! {
        #[test]
        fn k17_moves_begin_no_faster_than_the_limit_in_any_stretch_of_time(
            rate in 1u64..5_000_000,
            wanted in proptest::collection::vec((0u64..10_000_000, 0u64..3_000), 1..100),
        ) {
            let (mut meter, mut now) = (Meter::default(), Millis(7));
            let mut begun: Vec<(Millis, u64)> = Vec::new();
            for (bytes, pause) in wanted {
                now = now + pause;
                if draw(&mut meter, bytes, &throttle(rate), now).is_ok() {
                    begun.push((now, bytes));
                }
            }
            for first in 0..begun.len() {
                let mut sum = 0u128;
                for (at, bytes) in &begun[first..] {
                    sum += u128::from(*bytes);
                    let largest = begun[first..].iter().map(|(_, bytes)| *bytes).max().unwrap();
                    let allowed = u128::from(rate) * u128::from(at.since(begun[first].0) + BURST_MS) / 1_000;
                    prop_assert!(sum <= allowed + u128::from(largest) + 1, "{sum} > {allowed} + {largest}");
                }
            }
        }

        #[test]
        fn k17_the_time_that_is_named_is_the_first_at_which_it_may_begin(
            rate in 1u64..5_000_000, bytes in 1u64..100_000_000,
        ) {
            let mut meter = Meter::default();
            let first = draw(&mut meter, bytes, &throttle(rate), Millis(1_000)).unwrap_err();
            prop_assert_eq!(first, Millis(1_001), "an empty bucket: nothing begins at once");
            prop_assert_eq!(draw(&mut meter, bytes, &throttle(rate), first), Ok(()));
            let next = draw(&mut meter, 1, &throttle(rate), first).err().unwrap_or(first);
            if next > first {
                prop_assert!(draw(&mut meter.clone(), 1, &throttle(rate), next - 1).is_err());
            }
            prop_assert_eq!(draw(&mut meter, 1, &throttle(rate), next), Ok(()));
        }

        #[test]
        fn k17_the_busier_a_node_the_fewer_moves_but_always_one(busy in 0.0..=1.0f64, more in 0.0..=1.0f64, most in 1u32..1_000) {
            let moves = beside(busy, most);
            prop_assert!((1..=most).contains(&moves));
            prop_assert!(beside((busy + more).min(1.0), most) <= moves);
        }
    }

    #[test]
    fn without_a_limit_everything_begins_and_calm_nodes_take_all() {
        let mut meter = Meter::default();
        assert_eq!(draw(&mut meter, u64::MAX, &throttle(0), Millis(0)), Ok(()));
        assert_eq!((beside(0.5, 16), beside(0.7, 16), beside(0.9, 16), beside(1.0, 16)), (16, 8, 1, 1));
    }

    #[test]
    fn the_largest_sizes_and_rates_neither_overflow_nor_stop_for_ever() {
        let mut meter = Meter::default();
        let fast = throttle(u64::MAX);
        assert!(draw(&mut meter, u64::MAX, &fast, Millis(0)).is_err());
        assert_eq!(draw(&mut meter, u64::MAX, &fast, Millis(1)), Ok(()));
        assert_eq!(draw(&mut meter, u64::MAX, &fast, Millis(1)), Err(Millis(1_001)));
        assert_eq!(
            draw(&mut meter, 1, &throttle(1), Millis(u64::MAX)).map_err(|at| at == Millis::NEVER),
            Err(true)
        );
    }
}
