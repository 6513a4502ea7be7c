//! `balanced` in pieces: what the coordinator does of it between two beats.
//!
//! One phase is one piece. A draft waits between two pieces without its problem ([`Sheet`]); the caller keeps the
//! problem and gives the same one to each piece. [`Balanced`] does one piece after another, so a solution is the same
//! in however many decisions it was worked out.
//!
//! ```text
//!  begin ──► fill ──► draw ──► balance ──► finish
//!             ▲                   │
//!             └── another pass ───┘
//! ```
//!
//! Not done: a phase that stops in the middle. Each looks at every shard once; `balance` weighs steps beside that, up
//! to [`limits::SETTLE_EVALUATIONS`] and more.
//!
//! [`Balanced`]: super::Balanced

use super::{balance, constrain, draw, evict, fill};
use crate::limits;
use crate::placement::draft::{Draft, Sheet};
use crate::placement::problem::{Problem, ProblemError};
use crate::placement::solution::Solution;

/// A placement that is being worked out.
#[derive(Debug, Clone)]
pub enum Placing {
    /// There is more to do.
    UnderWay(Box<Pieces>),
    /// This is it.
    Done(Box<Solution>),
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Pieces {
    sheet: Sheet,
    next: Phase,
    /// Passes that were begun.
    passes: usize,
    /// Strokes of the draft when the pass began.
    before: usize,
}

/// The next piece.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Fill,
    Draw,
    Balance,
    Finish,
}

impl Pieces {
    /// The first piece: checks the problem and drafts the current placement.
    ///
    /// # Errors
    /// When the problem does not pass its check.
    pub fn begin(problem: &Problem) -> Result<Pieces, ProblemError> {
        problem.check()?;
        let sheet = Draft::new(problem).into_sheet();
        Ok(Pieces { sheet, next: Phase::Fill, passes: 0, before: 0 })
    }

    /// The next piece, with the problem that it was begun with.
    #[must_use]
    pub fn go_on(mut self, problem: &Problem) -> Placing {
        let mut draft = Draft::resume(problem, self.sheet);
        self.next = match self.next {
            Phase::Fill => {
                self.passes += 1;
                self.before = draft.begin_pass();
                let mut pending = evict::evict(&mut draft);
                constrain::constrain(&mut draft, &mut pending);
                fill::fill(&mut draft, pending);
                Phase::Draw
            }
            Phase::Draw => {
                draw::draw(&mut draft);
                Phase::Balance
            }
            Phase::Balance => {
                let settled = balance::balance(&mut draft);
                let is_still = draft.strokes() == self.before || (settled && draft.is_complete());
                // What one pass frees may be what another needed. Most problems need one.
                if is_still || self.passes >= limits::PASSES { Phase::Finish } else { Phase::Fill }
            }
            Phase::Finish => return Placing::Done(Box::new(draft.finish())),
        };
        self.sheet = draft.into_sheet();
        Placing::UnderWay(Box::new(self))
    }
}
