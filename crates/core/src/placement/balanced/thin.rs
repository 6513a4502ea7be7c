//! Makes a working plan smaller: sends replicas home and repairs the excess that results, at a lower price.

use super::search::{NOISE, Search};

/// Most steps to repair one attempt.
const MENDING: usize = 8;

impl Search<'_, '_> {
    /// Tries to do with fewer moves until nothing helps or the evaluations are used up.
    pub(super) fn thin(&mut self, evaluations: u64) {
        let end = self.state.evaluations + evaluations;
        loop {
            let before = self.state.away;
            for slot in self.travellers() {
                if self.state.evaluations > end {
                    return;
                }
                self.attempt(&[slot]);
            }
            for slot in self.travellers() {
                for other in self.companions(slot) {
                    if self.state.evaluations > end {
                        return;
                    }
                    if self.attempt(&[slot, other]) {
                        break;
                    }
                }
            }
            if self.state.away == before {
                return;
            }
        }
    }

    /// Travellers from or to its home or its place, later in slot order.
    fn companions(&self, slot: u32) -> Vec<u32> {
        let Some(home) = self.home(slot) else { return Vec::new() };
        let from_home = self.state.departed[home as usize].iter();
        let here = self.state.arrived[self.place_of(slot) as usize].iter();
        let into_home = self.state.arrived[home as usize].iter();
        let out_of_here = self.state.departed[self.place_of(slot) as usize].iter();
        let mut slots: Vec<u32> = from_home
            .chain(here)
            .chain(into_home)
            .chain(out_of_here)
            .copied()
            .filter(|other| *other > slot && self.home(*other).is_some())
            .collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Sends these home and repairs the rest; undone unless fewer are away and the excess is no larger.
    fn attempt(&mut self, slots: &[u32]) -> bool {
        let (mark, away, excess) = (self.mark(), self.state.away, self.state.excess);
        let sent = slots.iter().all(|slot| {
            self.home(*slot).is_some_and(|home| home != self.place_of(*slot)) && self.send_home(*slot)
        });
        if sent && self.mend(away, excess) {
            return true;
        }
        self.undo(mark);
        false
    }

    fn mend(&mut self, away: i64, excess: f64) -> bool {
        for _ in 0..MENDING {
            if self.state.excess <= excess + NOISE {
                return self.state.away < away;
            }
            let dearest = away - 1 - self.state.away;
            let Some(step) = self.hottest().and_then(|hot| self.best_step(hot, dearest.clamp(0, 1))) else {
                return false;
            };
            self.apply(step);
        }
        self.state.excess <= excess + NOISE && self.state.away < away
    }
}
