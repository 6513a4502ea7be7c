//! What is due when time has passed.

use super::open::{Open, State};
use super::{Attempt, Buffer, Failed};
use crate::shuffle::ShuffleId;
use partage_core::base::time::Millis;

/// Between two looks for attempts that are late, in milliseconds: small against the time that they may take.
const LATE_LOOK_MS: u64 = 50;

impl Buffer {
    pub(super) fn tick(&mut self, now: Millis) {
        self.sending.tick(now, &self.map, &self.settings, &mut self.out);
        // An attempt that is late has waited for very long: to look at all of them in each call would take most of it.
        let looks = self.looked.is_none_or(|at| now.since(at) >= LATE_LOOK_MS);
        if looks {
            self.looked = Some(now);
        }
        let is_due = |open: &Open| looks || now >= open.flush_at.min(open.sample_at);
        let due = self.shuffles.iter().filter(|(_, open)| is_due(open));
        let due: Vec<ShuffleId> = due.map(|(shuffle, _)| *shuffle).collect();
        for shuffle in due {
            let is_time = self.shuffles.get(&shuffle).is_some_and(|open| now >= open.flush_at);
            if is_time && !self.waits_for_bounds(now, shuffle) {
                self.flush(shuffle);
            }
            self.report_sample(now, shuffle);
            if looks {
                self.give_up(now, shuffle);
            }
        }
    }

    fn give_up(&mut self, now: Millis, shuffle: ShuffleId) {
        let (after, replicas) = (self.settings.give_up_ms, self.map.replicas);
        let Some(open) = self.shuffles.get(&shuffle) else { return };
        let silent_ms = self.settings.silent_ms;
        let late = open.attempts.iter().filter_map(|((partition, id), held)| {
            let attempt = Attempt { shuffle, partition: *partition, id: *id };
            match held.state {
                State::Ended { at, .. } | State::Marking { at, .. } if now.since(at) >= after => {
                    Some((attempt, Failed::TooFewNodes { replicas }))
                }
                State::Writing { at, .. } if now.since(at) >= silent_ms => {
                    Some((attempt, Failed::Silent { silent_ms }))
                }
                _ => None,
            }
        });
        let late: Vec<(Attempt, Failed)> = late.collect();
        late.into_iter().for_each(|(attempt, why)| self.fail(attempt, why));
    }
}
