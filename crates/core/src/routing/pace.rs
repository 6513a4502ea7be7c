//! A running estimate of the 95th percentile of answer times, after which a read is hedged.
//!
//! A slower answer raises the number, a faster one lowers it by a 19th of that step, so it comes to rest where one
//! answer in twenty is slower. No history is kept. It follows a change within some hundred answers and is right to
//! about a tenth, which is enough: a hedge that comes a little early costs a token of the budget and nothing else.

/// The first estimate, in microseconds: late enough that a new router does not hedge everything.
const BEGIN_US: u64 = 100_000;

/// Its step: a 64th part for a slower answer, a 19th of that for a faster one.
const STEP: u64 = 64;

/// When a second node is asked for the same read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hedging {
    /// The router asks no second node.
    Off,
    /// When the answer takes longer than 19 of 20 do, by [`Pace`].
    #[default]
    Slowest,
    /// When the answer takes longer than this, in milliseconds.
    AfterMs(u64),
}

/// The estimate of the 95th percentile, which each answer moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// In nanoseconds, so that small steps are not lost.
    p95_ns: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { p95_ns: BEGIN_US * 1_000 }
    }
}

impl Pace {
    /// An answer took so long.
    pub fn saw(&mut self, took_us: u64) {
        let took_ns = took_us.saturating_mul(1_000);
        let step = (self.p95_ns / STEP).max(1);
        self.p95_ns = if took_ns > self.p95_ns {
            self.p95_ns.saturating_add(step).min(took_ns)
        } else {
            (self.p95_ns - step / 19).max(1_000)
        };
    }

    /// The estimate, in microseconds.
    pub fn p95_us(&self) -> u64 {
        self.p95_ns / 1_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::hash::mix;

    #[test]
    fn it_settles_where_one_in_twenty_is_slower_and_follows_a_change() {
        let mut pace = Pace::default();
        for scale in [10u64, 1_000] {
            // Evenly spread from 0 to 1000 × scale: the 95th percentile is at 950 × scale.
            (0..20_000).for_each(|i| pace.saw(mix(i) % 1_000 * scale));
            let p95 = pace.p95_us();
            assert!(p95 > 850 * scale && p95 < 1_000 * scale, "{p95} at {scale}");
        }
    }
}
