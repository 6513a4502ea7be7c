//! The changes of approved plans that have not begun, by shard: so that no run of the planner asks for them again.

use super::super::KeyspaceState;
use super::super::plans::Plans;
use crate::base::id::{PlanId, ShardId};
use crate::plan::{Change, Planned, Progress, Status};

/// Where such changes are: in which line of which plan.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting {
    /// One entry for each shard of such a change: the shard, the plan, and the line in it, counted from 0; sorted.
    lines: Vec<(ShardId, PlanId, u32)>,
    /// Plans from this one on were not looked at.
    pub(super) until: PlanId,
}

impl Plans {
    /// Those of a keyspace, from the plan `from` on. `until` is the number of the next plan.
    pub(super) fn waiting(&self, keyspace: &KeyspaceState, (from, until): (PlanId, PlanId)) -> Waiting {
        let name = &keyspace.record.keyspace.name;
        let plans = self.by_id.range(from..).map(|(_, plan)| plan);
        let approved = plans.filter(|plan| plan.keyspace == *name && plan.status == Status::Approved);
        let waits = |(_, line): &(u32, &Planned)| line.progress == Progress::Waiting;
        let mut lines: Vec<_> = approved
            .flat_map(|plan| (0..).zip(&plan.changes).filter(waits).map(|(at, line)| (plan.id, at, line)))
            .flat_map(|(id, at, line)| line.change.shards().iter().map(move |shard| (*shard, id, at)))
            .collect();
        lines.sort();
        Waiting { lines, until }
    }

    /// Those of one shard that have not begun since, in the order of their plans.
    pub(super) fn waiting_for(&self, waiting: &Waiting, shard: ShardId) -> Vec<&Change> {
        let lines = &waiting.lines;
        let first = lines.partition_point(|(id, ..)| *id < shard);
        let of_it = lines[first..].iter().take_while(|(id, ..)| *id == shard);
        let still = of_it.filter_map(|(_, plan, line)| {
            let plan = self.by_id.get(plan).filter(|plan| plan.status == Status::Approved)?;
            let planned = plan.changes.get(*line as usize)?;
            (planned.progress == Progress::Waiting).then_some(&planned.change)
        });
        still.collect()
    }
}
