//! The clock by which rows of this node's leads end: [`partage_clock::wall_ms`], which follows the system's time of day slowly.
//!
//! The node reads it once a second, so that it follows also where no client writes, and says in its log when it is more than
//! [`CLOCK_FAR_SECONDS`] from the system's: a person has set that, or it was wrong when the process started.

use super::Tables;
use crate::limits::{CLOCK_FAR_SECONDS, CLOCK_LOOK};
use tokio::time::{MissedTickBehavior, interval};

/// Whether the two clocks are far apart, by the last line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct IsFar(bool);

impl IsFar {
    /// Returns whether that has changed. They are near again at half the difference at which they are far.
    fn look(&mut self, behind_seconds: f64) -> bool {
        let limit = if self.0 { CLOCK_FAR_SECONDS / 2.0 } else { CLOCK_FAR_SECONDS };
        let is_far = behind_seconds.abs() > limit;
        std::mem::replace(&mut self.0, is_far) != is_far
    }
}

impl Tables {
    /// Reads the clock again and again, and says when it is far from the system's.
    pub(super) async fn watch_clock(&self) {
        let (mut looks, mut far) = (interval(CLOCK_LOOK), IsFar::default());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let behind = partage_clock::wall_behind_seconds();
            match (far.look(behind), far.0) {
                (true, true) => tracing::warn!(
                    "the time of day of this system was set: it is {behind:.1} seconds ahead of the clock by which rows end here (below zero: behind), which \
                     follows it by a tenth of the time that passes; if the system is wrong, set it right"
                ),
                (true, false) => tracing::info!(
                    "the clock by which rows end here shows the time of day of this system again"
                ),
                (false, _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_once_that_the_clock_is_far_and_once_that_it_is_near() {
        let mut far = IsFar::default();
        let looks = [0.2, 0.9, 3_600.0, 3_599.0, 0.8, 0.4, 0.9, -1.1, -0.9, -0.3];
        let said: Vec<f64> = looks.into_iter().filter(|behind| far.look(*behind)).collect();
        assert_eq!(said, [3_600.0, 0.4, -1.1, -0.3]);
    }
}
