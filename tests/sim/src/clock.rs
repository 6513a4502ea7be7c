//! Clocks of processes, each at its own speed, over the one true time that only the simulator knows.
//!
//! True time is in microseconds. A monotonic clock reads `Millis`, began somewhere else and runs up to half
//! of [`DRIFT_PERMILLE`] fast or slow, so that two of them are never further apart than leases allow for.
//! The wall clock is besides off by any amount, and jumps.

use crate::draw::Draw;
use partage_core::base::time::Millis;
use partage_core::cluster::Moment;
use partage_core::node::lease::DRIFT_PERMILLE;

/// True time, in microseconds from the start of the run.
pub type True = u64;

/// One millisecond of true time.
pub const MS: True = 1_000;

/// One second of true time.
pub const SECOND: True = 1_000_000;

/// The clock of one process.
#[derive(Debug, Clone)]
pub struct Clock {
    since: True,
    reading_us: u64,
    /// Millionths of true speed.
    ppm: u64,
    wall_offset_ms: i64,
}

impl Clock {
    /// A clock that began at any reading.
    pub fn drawn(draw: &mut Draw, now: True) -> Clock {
        let mut clock = Clock { since: now, reading_us: 0, ppm: 1_000_000, wall_offset_ms: 0 };
        clock.reading_us = draw.between(1_000, 1_000_000) * 1_000 + draw.between(0, 1_000);
        clock.drift(draw, now);
        clock
    }

    /// Of another process on the same machine: the wall clock is that one's.
    #[must_use]
    pub fn beside(self, former: &Clock) -> Clock {
        Clock { wall_offset_ms: former.wall_offset_ms, ..self }
    }

    /// Runs at another speed from now on.
    pub fn drift(&mut self, draw: &mut Draw, now: True) {
        let half = DRIFT_PERMILLE * 1_000 / 2 - 600;
        self.reading_us = self.reading_us(now);
        self.since = now;
        self.ppm = draw.between(1_000_000 - half, 1_000_000 + half);
    }

    /// The wall clock is off by up to a second, as those of machines are.
    pub fn skew(&mut self, draw: &mut Draw) {
        self.wall_offset_ms = draw.between(0, 2_000) as i64 - 1_000;
    }

    /// The wall clock is set to somewhere else, also backwards.
    pub fn jump(&mut self, draw: &mut Draw) {
        self.wall_offset_ms = draw.between(0, 7_200_000) as i64 - 3_600_000;
    }

    fn reading_us(&self, now: True) -> u64 {
        self.reading_us + (now - self.since) * self.ppm / 1_000_000
    }

    /// What the monotonic clock shows at that true time.
    pub fn read(&self, now: True) -> Millis {
        Millis(self.reading_us(now) / 1_000)
    }

    /// Both clocks, for a coordinator.
    pub fn moment(&self, now: True) -> Moment {
        let wall = 1_700_000_000_000 + (now / MS) as i64 + self.wall_offset_ms;
        Moment { now: self.read(now), wall_ms: wall as u64 }
    }

    /// The first true instant from `now` on at which it reads `at` or more.
    pub fn when(&self, at: Millis, now: True) -> True {
        let target = at.0.saturating_mul(1_000);
        if at == Millis::NEVER || target <= self.reading_us(now) {
            return if at == Millis::NEVER { True::MAX } else { now };
        }
        let ahead = u128::from(target - self.reading_us) * 1_000_000;
        let mut when = self.since + ahead.div_ceil(u128::from(self.ppm)) as u64;
        while self.reading_us(when) < target {
            when += 1;
        }
        when.max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_starts_again_has_the_wall_clock_of_its_machine() {
        let mut draw = Draw::new(7);
        let mut first = Clock::drawn(&mut draw, 0);
        first.jump(&mut draw);
        let next = Clock::drawn(&mut draw, 5_000).beside(&first);
        assert_eq!(next.moment(9_000).wall_ms, first.moment(9_000).wall_ms);
    }

    #[test]
    fn when_is_the_first_instant_that_reads_so() {
        let mut draw = Draw::new(7);
        for _ in 0..200 {
            let mut clock = Clock::drawn(&mut draw, 5_000);
            clock.drift(&mut draw, 77_777);
            let at = clock.read(80_000) + draw.between(1, 5_000);
            let when = clock.when(at, 80_000);
            assert!(clock.read(when) >= at && clock.read(when - 1) < at);
        }
    }
}
