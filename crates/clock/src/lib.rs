//! The clock of Partage's processes.
//!
//! A right that ends by itself, a worker's lease or the session of a leader, has to end while the machine sleeps, too:
//! others count on by clocks of their own, and give to somebody else what was held here. `std::time::Instant` stands
//! still in a suspended machine (on Linux it reads `CLOCK_MONOTONIC`), so a process that wakes would go on as if nothing
//! had happened. [`Instant`] reads `CLOCK_BOOTTIME` there. On other systems it is the monotonic clock; a machine of those
//! that may be suspended is no place for exclusive shards.
//!
//! A process that *waits* for the right of another one to end may use either clock: one that stands still waits for longer.
//!
//! Timers of tokio stand still in a suspended machine. [`sleep_until`] looks at the clock once a second for that reason.
//!
//! The time of day can be set. What must not jump with it, as the ends of rows, goes by [`wall_ms`].

use partage_core::base::time::Millis;
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::ops::Add;
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;

#[cfg(feature = "testing")]
pub mod set;
#[cfg(feature = "testing")]
pub mod suspended;
mod wall;

pub use wall::{WallClock, wall_behind_seconds, wall_ms};

/// How late [`sleep_until`] may be after the machine has slept.
const LOOK: Duration = Duration::from_secs(1);
/// Timers beyond this are as good as none.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// Reads the clock. It goes on while the machine sleeps (on Linux).
    pub fn now() -> Instant {
        Instant(since_boot())
    }

    /// How long ago it was; zero for one that is to come.
    pub fn elapsed(&self) -> Duration {
        Instant::now().since(*self)
    }

    /// How long after `earlier` it was; zero if it was before.
    pub fn since(&self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// It, as timers want it, unless the machine sleeps before.
    fn timer(&self) -> tokio::time::Instant {
        tokio::time::Instant::now() + self.since(Instant::now()).min(FAR)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration))
    }
}

/// Counts from its own start; a copy counts from the same.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that begins to count from now on.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Milliseconds since the start, for `core`.
    pub fn now(&self) -> Millis {
        Millis(self.start.elapsed().as_millis() as u64)
    }

    /// Microseconds since the start.
    pub fn micros(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Nanoseconds since the start.
    pub fn nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// That time, as timers want it, unless the machine sleeps before.
    pub fn at(&self, time: Millis) -> tokio::time::Instant {
        (self.start + Duration::from_millis(time.0)).timer()
    }
}

/// Returns when the clock shows `until`; within a second of the wake-up, if the machine sleeps before.
pub async fn sleep_until(until: Instant) {
    loop {
        let left = until.since(Instant::now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(LOOK)).await;
    }
}

/// What `work` gives, or nothing when the clock shows `until` first.
pub async fn before<T>(until: Instant, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => Some(done),
        () = sleep_until(until) => None,
    }
}

/// The system's time of day, in milliseconds of Unix time: for what people read, and for what processes tell each other. No
/// process may decide by it who owns what, nor end rows by it: it can be set.
pub fn unix_ms() -> u64 {
    u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX)
}

/// The same in whole seconds, for dates in headers and on pages.
pub fn unix_seconds() -> u64 {
    unix_ms() / 1_000
}

/// The processor time that this thread has used, by the kernel's count.
pub fn thread_cpu() -> Duration {
    read(ClockId::ThreadCPUTime)
}

#[expect(clippy::disallowed_methods, reason = "the one reader of the time of day")]
fn since_epoch() -> Duration {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    #[cfg(feature = "testing")]
    let since_epoch = set::changed(since_epoch);
    since_epoch
}

fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let awake = read(clock);
    #[cfg(feature = "testing")]
    let awake = awake + suspended::slept();
    awake
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
