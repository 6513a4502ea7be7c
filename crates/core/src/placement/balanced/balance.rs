//! Phase *balance*: no node above its share by more than the tolerance, with the fewest moves.
//!
//! The hottest node takes the step that shrinks the excess most, at the lowest price, and so on until no
//! node is hot. Then the plan is made smaller (`thin`), for as long as a fixed number of evaluations lasts:
//! a number and not a time, so that the same problem gives the same plan on any machine.
//!
//! It can stop between any two steps, and go on in another decision.

use super::search::{Search, State};
use crate::limits;
use crate::placement::draft::Draft;
use crate::placement::problem::NodeIndex;

/// The phase, between two pieces of it.
#[derive(Debug, Clone)]
pub(super) struct Balancing {
    search: State,
    round: Round,
    /// How many hot nodes no step helps; none until `settle` has ended.
    stuck: Option<usize>,
}

/// One pass over all hot nodes.
#[derive(Debug, Clone, Default)]
struct Round {
    /// Nodes that no step helped in it.
    stuck: Vec<NodeIndex>,
    /// The journal length at its beginning.
    before: usize,
}

/// How far the phase has come.
pub(super) enum Progress {
    /// There is more to do.
    UnderWay(Box<Balancing>),
    Done {
        /// The evaluations are used up, and the rest waits for the next plan.
        is_exhausted: bool,
    },
}

/// Begins the phase: lists every replica. None when no node is above its tolerance.
pub(super) fn begin(draft: &mut Draft<'_>) -> Option<Box<Balancing>> {
    let search = Search::new(draft)?.into_state();
    Some(Box::new(Balancing { search, round: Round::default(), stuck: None }))
}

impl Balancing {
    /// Goes on until it has weighed about `most` steps; it weighs a node's steps to the end. Returns how many
    /// it weighed and listed.
    pub(super) fn go_on(mut self: Box<Self>, draft: &mut Draft<'_>, most: u64) -> (Progress, u64) {
        let replicas = draft.problem.current.replicas() as u64;
        let end = limits::SETTLE_EVALUATIONS + limits::SETTLE_EVALUATIONS_PER_REPLICA * replicas;
        let mut search = Search::resume(draft, self.search);
        let before = search.effort();
        let Some(stuck) = self.stuck else {
            self.stuck = search.settle(&mut self.round, end, before.saturating_add(most));
            let done = search.effort() - before;
            self.search = search.into_state();
            return (Progress::UnderWay(self), done);
        };
        let is_exhausted = search.state.evaluations >= end;
        if !is_exhausted {
            search.thin(limits::THIN_EVALUATIONS);
        }
        let done = search.effort() - before;
        search.close(stuck as u32);
        (Progress::Done { is_exhausted }, done)
    }
}

impl Search<'_, '_> {
    /// Steps weighed, and nodes and replicas listed to find them.
    fn effort(&self) -> u64 {
        self.state.evaluations + self.state.listed
    }

    /// Takes the best step for the hottest node until no node is hot, no step helps, or `end` steps have been
    /// weighed. Returns how many hot nodes are left; none when it stopped because its effort came to `until`.
    fn settle(&mut self, round: &mut Round, end: u64, until: u64) -> Option<usize> {
        loop {
            while self.state.evaluations < end
                && let Some(hot) = self.hottest()
            {
                if self.effort() >= until {
                    return None;
                }
                match self.best_step(hot, self.affordable(2)) {
                    Some(step) => self.apply(step),
                    None => {
                        self.set_aside(hot);
                        round.stuck.push(hot);
                    }
                }
            }
            let left = round.stuck.len() + self.hot_count();
            if left == 0 || self.mark() == round.before || self.state.evaluations >= end {
                return Some(left);
            }
            self.look_again(&round.stuck);
            *round = Round { stuck: Vec::new(), before: self.mark() };
        }
    }
}
