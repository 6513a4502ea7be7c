//! Workers of another cluster that ask to register. Each is refused, and hears why; but the person who looks at the status may be
//! the one who gave the workers a wrong address, or whose coordinator has begun anew with an empty folder.

use super::event::{About, EventKind};
use super::members::Members;
use super::problems::Problem;
use super::{Cluster, Moment, Outbox};
use crate::base::count::counted_with;
use crate::base::id::ClusterId;
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::limits;

/// Those that were refused since this coordinator leads.
#[derive(Debug, Clone, Default)]
pub(super) struct ForeignWorkers {
    refused: u64,
    /// When the last one asked, and who it was.
    last: Option<(Millis, NodeId, ClusterId)>,
    /// When an event last told of it.
    told: Option<Millis>,
}

impl ForeignWorkers {
    /// Says so as long as they go on asking.
    fn problem(&self, at: Moment, ours: ClusterId) -> Option<Problem> {
        let ForeignWorkers { refused, last, .. } = self;
        let (_, node, theirs) =
            last.as_ref().filter(|(then, ..)| at.now.since(*then) < limits::FOREIGN_SHOWN_MS)?;
        let refused =
            counted_with(usize::try_from(*refused).unwrap_or(usize::MAX), "registration", ("was", "were"));
        let what = format!(
            "workers of another cluster ask to register, such as {node} of cluster {theirs}, and this is cluster {ours}: {refused} \
             refused"
        );
        let way_out = "give them the address of a coordinator of their own cluster; or, if the state of this one was lost, restore \
                       it from a backup (`partage restore`)";
        Some(Problem { what, way_out: way_out.into() })
    }
}

impl Members {
    /// Counts a refusal, and tells of it once in [`limits::FOREIGN_SHOWN_MS`].
    pub(super) fn note_foreign(
        &mut self,
        at: Moment,
        (node, theirs): (&NodeId, ClusterId),
        ours: ClusterId,
        outbox: &mut Outbox,
    ) {
        let workers = &mut self.registrations.foreign_workers;
        workers.refused += 1;
        workers.last = Some((at.now, node.clone(), theirs));
        if workers.told.is_none_or(|told| at.now.since(told) >= limits::FOREIGN_SHOWN_MS) {
            workers.told = Some(at.now);
            if let Some(problem) = workers.problem(at, ours) {
                outbox.tell(EventKind::Alarm, About::all(), true, problem.to_string());
            }
        }
    }
}

impl Cluster {
    /// Says so as long as they go on asking.
    pub(super) fn foreign_problem(&self, at: Moment) -> Option<Problem> {
        self.members.registrations.foreign_workers.problem(at, self.record.id)
    }
}
