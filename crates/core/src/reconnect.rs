//! How long whoever has lost its coordinator waits before it asks again (R7).
//!
//! Ten thousand lines that end in one moment must not come back in one moment. Nobody knows how many others there are,
//! but everybody knows how long it can do without: a worker its lease, a router a moment in which its maps may be
//! old. So that time, not the number of tries alone, sets the pace.
//!
//! | what happened                         | pause                                                            |
//! |---------------------------------------|------------------------------------------------------------------|
//! | a coordinator that had us is gone     | anything up to the spread                                        |
//! | one would not have us, others may     | from half of `first` to all of it                                |
//! | none would, so a round was in vain    | from half to all of: `first`, doubled with each round up to `longest`, and no less than the spread |
//! | none has ever had us                  | the same, with a spread of nothing                               |
//!
//! With spread `s`, of `n` clients at most `n / s` come back in a second when another leads at once, and about
//! `4n / 3s` when they have looked for one meanwhile. [`crate::limits::RECONNECTS_PER_S`] is what that may come to.
//!
//! The simulator tries it (`sim --fleet`). The drivers do not have it yet: their pauses are in
//! `crates/worker/src/line.rs` and `crates/maps/src/watch.rs`, are by lot too, and are shorter.
//!
//! Who is told by one coordinator which one leads goes there at once: it has waited already.

use crate::limits;

/// Pauses of one kind of client. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// In the first round.
    pub first_ms: u64,
    /// In the last.
    pub longest_ms: u64,
}

impl Pauses {
    /// Of workers. The longest is what a coordinator that comes back waits for its workers at most, well within the
    /// time after which it would declare them dead.
    pub const WORKERS: Pauses = Pauses { first_ms: 100, longest_ms: 2_000 };

    /// Of routers: the first lets a coordinator that restarts come up, the longest keeps ten thousand routers at some
    /// thousand tries a second.
    pub const ROUTERS: Pauses = Pauses { first_ms: 100, longest_ms: 5_000 };

    /// The pause after the `attempts`-th attempt in vain at one of so many coordinators. `lot` is anything from 0
    /// to 1, drawn anew each time.
    pub fn in_vain(&self, attempts: u32, coordinators: usize, spread_ms: u64, lot: f64) -> u64 {
        let coordinators = u32::try_from(coordinators).unwrap_or(u32::MAX).max(1);
        let (rounds, is_round) = (attempts / coordinators, attempts.is_multiple_of(coordinators));
        let doublings = rounds.saturating_sub(1).min(16);
        let grown = self.first_ms.saturating_mul(1 << doublings).min(self.longest_ms);
        let most = if is_round { grown.max(spread_ms) } else { self.first_ms };
        most / 2 + part(most - most / 2, lot)
    }
}

/// The pause after a coordinator that had us is gone.
pub fn lost(spread_ms: u64, lot: f64) -> u64 {
    part(spread_ms, lot)
}

/// Over how long workers with such a lease spread: a part of it that leaves time for the election before it and the
/// answer after it.
pub fn worker_spread_ms(lease_ms: u64) -> u64 {
    lease_ms / limits::SPREAD_OF_LEASE
}

fn part(of: u64, lot: f64) -> u64 {
    (of as f64 * lot.clamp(0.0, 1.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_pauses_grow_by_rounds_and_are_not_below_the_spread() {
        let pause = |attempts, spread, lot| Pauses::WORKERS.in_vain(attempts, 2, spread, lot);
        let growing = [1, 2, 3, 4, 6, 12, 1_000].map(|attempts| pause(attempts, 0, 1.0));
        assert_eq!(growing, [100, 100, 100, 200, 400, 2_000, 2_000]);
        assert_eq!([2, 4, 12].map(|attempts| pause(attempts, 0, 0.0)), [50, 100, 1_000]);
        assert_eq!([2, 12].map(|attempts| pause(attempts, 3_000, 1.0)), [3_000, 3_000]);
        assert_eq!(pause(2, 3_000, 0.0), 1_500);
        assert_eq!(pause(1, 3_000, 1.0), 100, "the next may have us");
    }

    #[test]
    fn r7_a_line_that_is_lost_is_made_anew_at_any_moment_of_the_spread() {
        assert_eq!([0.0, 0.25, 1.0, 7.0].map(|lot| lost(2_000, lot)), [0, 500, 2_000, 2_000]);
        assert_eq!(lost(worker_spread_ms(8_000), 1.0), 2_000);
    }
}
