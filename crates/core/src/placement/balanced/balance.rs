//! Phase *balance*: no node above its share by more than the tolerance, with the fewest moves.
//!
//! The hottest node takes the step that shrinks the excess most, at the lowest price, and so on until no
//! node is hot. Then the plan is made smaller (`thin`), for as long as a fixed number of evaluations lasts:
//! a number and not a time, so that the same problem gives the same plan on any machine.

use super::search::Search;
use crate::limits;
use crate::placement::draft::Draft;

/// Runs the phase. False when a node stays above its tolerance.
pub(super) fn balance(draft: &mut Draft<'_>) -> bool {
    let Some(mut search) = Search::new(draft) else { return true };
    let stuck = search.settle();
    search.thin(limits::THIN_EVALUATIONS);
    search.close(stuck as u32);
    stuck == 0
}

impl Search<'_, '_> {
    /// Takes the best step for the hottest node until no node is hot, or none can be helped. Returns how
    /// many are left.
    fn settle(&mut self) -> usize {
        loop {
            let (mut stuck, before) = (Vec::new(), self.mark());
            while let Some(hot) = self.hottest() {
                match self.best_step(hot, self.affordable(2)) {
                    Some(step) => self.apply(step),
                    None => {
                        self.set_aside(hot);
                        stuck.push(hot);
                    }
                }
            }
            if stuck.is_empty() || self.mark() == before {
                return stuck.len();
            }
            self.look_again(&stuck);
        }
    }
}
