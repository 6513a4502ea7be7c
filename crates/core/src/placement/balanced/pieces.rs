//! `balanced` in pieces, of which the coordinator does some between two heartbeats.
//!
//! A draft waits between two pieces without its problem ([`DraftState`]); the caller keeps the problem and gives the
//! same one to each piece. [`Balanced`] does one piece after another, so the solution does not depend on how many
//! decisions it took.
//!
//! ```text
//!  begin ──► take up ──► fill ──► draw ──► list ──► settle ──► thin ──► finish
//!               ▲       └─◄──┘                    └─◄──┘      │
//!               └──────────────── another pass ───────────────┘
//! ```
//!
//! `fill` can stop between two replicas, because to place one costs more than to look at it, and `settle` between two
//! steps, because its effort depends on how uneven the cluster is, and not on its size alone. Every other piece runs
//! to its end: it looks at every shard and replica a few times, or, as `thin` does, weighs at most
//! [`limits::THIN_EVALUATIONS`] steps.
//!
//! [`Balanced`]: super::Balanced

use super::balance::{self, Balancing, Progress};
use super::fill::Filling;
use super::{constrain, draw, evict, fill};
use crate::limits;
use crate::placement::draft::{Draft, DraftState};
use crate::placement::problem::{Problem, ProblemError};
use crate::placement::solution::Solution;

/// A placement in progress.
#[derive(Debug, Clone)]
pub enum Placing {
    /// There is more to do.
    UnderWay(Box<Pieces>),
    /// The placement is complete; nothing is left to do.
    Done(Box<Solution>),
}

/// A placement by `balanced`, one piece after another. See the module.
#[derive(Debug, Clone)]
pub struct Pieces {
    state: DraftState,
    next: Phase,
    /// Passes that were begun.
    passes: usize,
}

/// The passes that the next piece of work does.
#[derive(Debug, Clone)]
enum Phase {
    /// `evict`, `constrain`, and a list of what is to be filled.
    TakeUp,
    Fill(Box<Filling>),
    Draw,
    List,
    /// `settle`, which may stop between two steps, then `thin`.
    Balance(Box<Balancing>),
    Finish,
}

/// One look at every shard and replica.
fn whole(problem: &Problem) -> usize {
    (problem.shard_count() + problem.current.replicas()).max(1)
}

impl Pieces {
    /// The first piece: checks the problem and drafts the current placement.
    ///
    /// # Errors
    /// When the problem does not pass its check.
    pub fn begin(problem: &Problem) -> Result<Pieces, ProblemError> {
        problem.check()?;
        let state = Draft::new(problem).into_state();
        Ok(Pieces { state, next: Phase::TakeUp, passes: 0 })
    }

    /// The least work of the next piece, in shards and replicas that it looks at.
    #[must_use]
    pub fn least(&self, problem: &Problem) -> usize {
        match self.next {
            Phase::Fill(_) | Phase::Balance(_) => 1,
            Phase::TakeUp | Phase::Draw | Phase::List | Phase::Finish => whole(problem),
        }
    }

    /// Does the next piece, on the problem of [`Pieces::begin`], and returns its work: about `most` if it can stop.
    #[must_use]
    pub fn go_on(mut self, problem: &Problem, most: usize) -> (Placing, usize) {
        let mut draft = Draft::resume(problem, self.state);
        let mut work = whole(problem);
        self.next = match self.next {
            Phase::TakeUp => {
                self.passes += 1;
                draft.begin_pass();
                let mut pending = evict::evict(&mut draft);
                constrain::constrain(&mut draft, &mut pending);
                fill::begin(&draft, pending).map_or(Phase::Draw, Phase::Fill)
            }
            Phase::Fill(filling) => {
                let (left, looks) = filling.go_on(&mut draft, most);
                work = looks;
                left.map_or(Phase::Draw, Phase::Fill)
            }
            Phase::Draw => {
                if !draw::draw(&mut draft) {
                    work = problem.nodes.len().max(1);
                }
                Phase::List
            }
            Phase::List => match balance::begin(&mut draft) {
                Some(balancing) => Phase::Balance(balancing),
                None => {
                    work = problem.nodes.len().max(1);
                    after_pass(self.passes, &mut draft, false)
                }
            },
            Phase::Balance(balancing) => {
                let most = (most as u64).saturating_mul(limits::EVALUATIONS_A_LOOK);
                let (progress, effort) = balancing.go_on(&mut draft, most);
                work = effort.div_ceil(limits::EVALUATIONS_A_LOOK).max(1) as usize;
                match progress {
                    Progress::UnderWay(balancing) => Phase::Balance(balancing),
                    Progress::Done { is_exhausted } => after_pass(self.passes, &mut draft, is_exhausted),
                }
            }
            Phase::Finish => return (Placing::Done(Box::new(draft.finish())), work),
        };
        self.state = draft.into_state();
        (Placing::UnderWay(Box::new(self)), work)
    }
}

/// Whether another pass is due: when this one has changed something, unless its evaluations are used up. The next pass does what
/// the next plan would do, as its replicas are at home where this one left them, and so the last pass shows that the next plan
/// changes nothing (M10). It needs the draft untangled: which of two crowded replicas is taken up depends on their order, and the
/// next plan has them in the order of the solution.
pub(super) fn is_another_due(draft: &mut Draft<'_>, is_exhausted: bool) -> bool {
    let is_due = !is_exhausted && draft.has_changed();
    if is_due {
        draft.untangle();
    }
    is_due
}

/// What follows a pass.
fn after_pass(passes: usize, draft: &mut Draft<'_>, is_exhausted: bool) -> Phase {
    if passes < limits::PASSES && is_another_due(draft, is_exhausted) { Phase::TakeUp } else { Phase::Finish }
}
