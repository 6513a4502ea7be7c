//! Phase *balance*: no node above its share by more than the tolerance, with the fewest moves.
//!
//! The hottest node takes the step that shrinks the excess most, at the lowest price, and so on until no
//! node is hot. Then the plan is made smaller (`thin`), for as long as a fixed number of evaluations lasts:
//! a number and not a time, so that the same problem gives the same plan on any machine.

use super::search::Search;
use crate::limits;
use crate::placement::draft::Draft;

/// Runs the phase. True when nothing more can be done: no node is above its tolerance, or the evaluations
/// are used up and the rest waits for the next plan.
pub(super) fn balance(draft: &mut Draft<'_>) -> bool {
    let replicas = draft.problem.current.replicas() as u64;
    let Some(mut search) = Search::new(draft) else { return true };
    let most = limits::SETTLE_EVALUATIONS + limits::SETTLE_EVALUATIONS_PER_REPLICA * replicas;
    let stuck = search.settle(most);
    let exhausted = search.evaluations >= most;
    if !exhausted {
        search.thin(limits::THIN_EVALUATIONS);
    }
    search.close(stuck as u32);
    stuck == 0 || exhausted
}

impl Search<'_, '_> {
    /// Takes the best step for the hottest node until no node is hot, none can be helped, or that many
    /// steps have been weighed. Returns how many nodes are left.
    fn settle(&mut self, most: u64) -> usize {
        loop {
            let (mut stuck, before) = (Vec::new(), self.mark());
            while self.evaluations < most
                && let Some(hot) = self.hottest()
            {
                match self.best_step(hot, self.affordable(2)) {
                    Some(step) => self.apply(step),
                    None => {
                        self.set_aside(hot);
                        stuck.push(hot);
                    }
                }
            }
            let left = stuck.len() + self.hot_count();
            if left == 0 || self.mark() == before || self.evaluations >= most {
                return left;
            }
            self.look_again(&stuck);
        }
    }
}
