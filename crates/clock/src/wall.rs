//! The time of day as a process goes on with it: no step of the system's clock is a step of it.
//!
//! Rows of tables end by the time of day, and a person, NTP or a hypervisor may set that by hours. A shard whose clock has
//! been moved an hour on cannot take that back: rows have ended. So a process asks the system once, when it starts, and
//! counts on by [`crate::Instant`]. It follows the system's clock slowly, as the new time may be the right one:
//!
//! ```text
//!   system  ────────╮ set back      ╭──── set right again
//!                   ╰───────────────╯
//!   wall    ───────────╌╌╌╌╌╌╌╌╌╌╌╌╌╌──── at 0.9 of the speed meanwhile, at 1.1 afterwards, until they agree
//! ```
//!
//! | property | |
//! |---|---|
//! | monotone | it never goes back |
//! | bounded | in any time it goes on by 0.9 to 1.1 of what the monotonic clock does |
//! | converges | read once a second, it agrees with a system's clock that no person sets after ten times their difference |
//!
//! What one reading takes back of the difference is bounded, too: after a long time without a reading, the difference may
//! be of a moment ago. So a process that is to follow reads the clock once a second, as nodes of tables do.

use crate::{since_boot, since_epoch};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// At most this part of the time that passes is added or taken away.
const PART: u32 = 10;
/// Of the time since the last reading at most this much counts for that.
const COUNTED: Duration = Duration::from_secs(1);

/// The clock of this process; it begins with the first reading.
static WALL: OnceLock<Mutex<WallClock>> = OnceLock::new();

/// A time of day that follows another one slowly. Pure: times are arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WallClock {
    /// The monotonic clock at the last reading.
    at: Duration,
    /// What was read then, since the Unix epoch.
    shows: Duration,
}

impl WallClock {
    /// Begins with the system's time of day `system`, when the monotonic clock shows `at`.
    pub fn new(at: Duration, system: Duration) -> WallClock {
        WallClock { at, shows: system }
    }

    /// The time since the Unix epoch when the monotonic clock shows `at`, and the system's time of day is `system`. An `at`
    /// before that of another reading changes nothing.
    pub fn read(&mut self, at: Duration, system: Duration) -> Duration {
        let passed = at.saturating_sub(self.at);
        let counted_on = self.shows.saturating_add(passed);
        let most = passed.min(COUNTED) / PART;
        self.shows = match system.checked_sub(counted_on) {
            Some(behind) => counted_on.saturating_add(behind.min(most)),
            None => counted_on.saturating_sub(counted_on.saturating_sub(system).min(most)),
        };
        self.at = self.at.max(at);
        self.shows
    }
}

/// The time of day of this process in milliseconds of Unix time, as [`WallClock`] goes on: for ends of rows and times of writes.
///
/// The first call in a process asks the system; a process whose clock is wrong by then is wrong until it has followed.
pub fn wall_ms() -> u64 {
    u64::try_from(read().0.as_millis()).unwrap_or(u64::MAX)
}

/// By how many seconds [`wall_ms`] is behind the system's time of day; below zero: ahead of it.
pub fn wall_behind_seconds() -> f64 {
    let (shows, system) = read();
    system.as_secs_f64() - shows.as_secs_f64()
}

/// What the clock of this process shows, and what the system's does.
fn read() -> (Duration, Duration) {
    let (at, system) = (since_boot(), since_epoch());
    let clock = WALL.get_or_init(|| Mutex::new(WallClock::new(at, system)));
    let shows = clock.lock().unwrap_or_else(PoisonError::into_inner).read(at, system);
    (shows, system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EPOCH: Duration = Duration::from_secs(1_700_000_000);
    const HOUR: Duration = Duration::from_secs(3_600);

    /// Reads once a second while the system's clock goes on from `system`; says after how many seconds they agree.
    fn seconds_until_equal(clock: &mut WallClock, at: Duration, system: Duration) -> u32 {
        let second = Duration::from_secs(1);
        let agrees = |n: &u32| clock.read(at + *n * second, system + *n * second) == system + *n * second;
        (1..100_000).find(agrees).unwrap()
    }

    #[test]
    fn a_step_is_followed_ten_times_slower_than_it_is_long() {
        let mut clock = WallClock::new(HOUR, EPOCH);
        assert_eq!(clock.read(HOUR, EPOCH + HOUR), EPOCH, "a step is no step");
        let at = HOUR + Duration::from_secs(1);
        assert_eq!(clock.read(at, EPOCH + HOUR), EPOCH + Duration::from_millis(1_100));
        assert!((35_900..=36_100).contains(&seconds_until_equal(&mut clock, at, EPOCH + HOUR)));
        let mut clock = WallClock::new(HOUR, EPOCH);
        let system = EPOCH - Duration::from_secs(60);
        assert!((590..=610).contains(&seconds_until_equal(&mut clock, HOUR, system)), "back, too");
    }

    #[test]
    fn a_step_after_a_long_time_without_a_reading_is_no_step_either() {
        let mut clock = WallClock::new(HOUR, EPOCH);
        let shows = clock.read(HOUR + HOUR, EPOCH + HOUR + HOUR / 10);
        assert_eq!(shows, EPOCH + HOUR + Duration::from_millis(100));
    }

    #[test]
    fn a_reading_that_was_overtaken_changes_nothing() {
        let mut clock = WallClock::new(HOUR, EPOCH);
        let shows = clock.read(HOUR + Duration::from_secs(9), EPOCH);
        assert_eq!(clock.read(HOUR + Duration::from_secs(4), EPOCH + HOUR), shows);
        assert_eq!(clock.read(HOUR + Duration::from_secs(9), EPOCH + HOUR), shows);
    }

    proptest! {
        /// Times between readings in milliseconds, and where the system's clock is at each.
        #[test]
        fn it_goes_on_by_nine_to_eleven_tenths_whatever_the_system_shows(
            readings in prop::collection::vec((0_u64..5_000, 0_u64..4_000_000_000_000), 1..60),
        ) {
            let (mut at, mut shown) = (HOUR, EPOCH);
            let mut clock = WallClock::new(at, shown);
            for (passed, system) in readings {
                let passed = Duration::from_millis(passed);
                at += passed;
                let shows = clock.read(at, Duration::from_millis(system));
                prop_assert!(shows >= shown + passed - passed / PART, "{shown:?} {passed:?} {shows:?}");
                prop_assert!(shows <= shown + passed + passed / PART, "{shown:?} {passed:?} {shows:?}");
                shown = shows;
            }
        }
    }
}
