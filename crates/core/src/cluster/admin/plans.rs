//! Plans that wait for a person: approved, rejected or edited (K15).

use super::{AdminError, Effect, Intent};
use crate::base::count::{counted, counted_with};
use crate::base::id::PlanId;
use crate::cluster::{Cluster, Moment};
use crate::plan::{Origin, Plan, Planned, Status};
use std::collections::BTreeSet;

impl Cluster {
    /// The plan, if it still waits for a person.
    fn suggested(&self, id: PlanId) -> Result<&Plan, AdminError> {
        let plan = self.plans.get(&id).ok_or(AdminError::NoPlan(id))?;
        match &plan.status {
            Status::Suggested => Ok(plan),
            Status::Approved => Err(AdminError::Conflict {
                problem: format!("{id} is approved already"),
                way_out: "it is being carried out; show it to see how far it is".into(),
            }),
            over @ (Status::Finished | Status::Rejected(_) | Status::Superseded | Status::Refused(_)) => {
                Err(AdminError::Refused {
                    problem: format!("{id} is over: it is {over}"),
                    way_out: "list the plans for one that is suggested".into(),
                })
            }
        }
    }

    pub(super) fn approve_plan(&self, at: Moment, by: &str, id: PlanId) -> Result<Intent, AdminError> {
        let plan = self.suggested(id)?;
        if let Some((index, planned, why)) = self.obsolete(at, plan) {
            return Err(AdminError::Refused {
                problem: format!(
                    "{id} was made from map {} and does not fit any more: change {index} ({}): {why}",
                    plan.base, planned.change
                ),
                way_out: "edit the plan and leave that change out, or wait for the next plan".into(),
            });
        }
        if let Some(why) = self.objection(at, &plan.keyspace, &plan.origin, &plan.changes) {
            let way_out = "reject the plan, or see to that first".into();
            return Err(AdminError::Refused {
                problem: format!("{id} cannot be carried out: {why}"),
                way_out,
            });
        }
        let approved = Plan { status: Status::Approved, decided_by: Some(by.to_owned()), ..plan.clone() };
        let summary = format!(
            "approve {id} of keyspace {} with {}",
            plan.keyspace,
            counted(plan.changes.len(), "change")
        );
        Ok(Intent::new(summary, vec![Effect::Decide(approved)]))
    }

    /// The first change that the check refuses by itself, and why.
    fn obsolete<'a>(&self, at: Moment, plan: &'a Plan) -> Option<(usize, &'a Planned, String)> {
        let state = self.keyspaces.get(&plan.keyspace)?;
        let alone = |planned: &Planned| {
            let found = crate::plan::check::plan(&state.map, std::slice::from_ref(planned), &|node| {
                self.closed(at, node)
            });
            found.first().map(ToString::to_string)
        };
        plan.changes.iter().enumerate().find_map(|(i, planned)| Some((i, planned, alone(planned)?)))
    }

    pub(super) fn reject_plan(&self, by: &str, id: PlanId) -> Result<Intent, AdminError> {
        let plan = self.suggested(id)?;
        // A keyspace that is gone took its plans with it.
        let basis = self.keyspaces.get(&plan.keyspace).map(|keyspace| self.basis(keyspace, &plan.changes));
        let status = Status::Rejected(basis.unwrap_or_default());
        let rejected = Plan { status, decided_by: Some(by.to_owned()), ..plan.clone() };
        let summary = format!(
            "reject {id} of keyspace {}: the same is not suggested again until its shards, their load, the \
             settings or the nodes are others",
            plan.keyspace
        );
        Ok(Intent::new(summary, vec![Effect::Decide(rejected)]))
    }

    pub(super) fn edit_plan(
        &self,
        at: Moment,
        by: &str,
        id: PlanId,
        drop: &[usize],
    ) -> Result<Intent, AdminError> {
        let plan = self.suggested(id)?;
        let dropped: BTreeSet<usize> = drop.iter().copied().collect();
        let count = plan.changes.len();
        if let Some(beyond) = dropped.iter().find(|index| **index >= count) {
            return Err(AdminError::Invalid {
                problem: format!("{id} has no change {beyond}"),
                way_out: format!("its {} counted from 0", counted_with(count, "change", ("is", "are"))),
            });
        }
        if dropped.is_empty() || dropped.len() == count {
            return Err(AdminError::Invalid {
                problem: format!(
                    "{} of the {} of {id} would be left out",
                    dropped.len(),
                    counted(count, "change")
                ),
                way_out: "leave out some and keep some; approve or reject the plan as a whole otherwise"
                    .into(),
            });
        }
        let kept = plan.changes.iter().enumerate().filter(|(index, _)| !dropped.contains(index));
        let new = Plan {
            id: self.record.next_plan,
            changes: kept.map(|(_, planned)| planned.clone()).collect(),
            // Not the planner's any more, which would put its next idea in the place of it.
            origin: Origin::Person(by.to_owned()),
            made_ms: at.wall_ms,
            ..plan.clone()
        };
        let old = Plan { status: Status::Superseded, decided_by: Some(by.to_owned()), ..plan.clone() };
        let summary = format!(
            "{} takes the place of {id} with {} of {}",
            new.id,
            new.changes.len(),
            counted(count, "change")
        );
        Ok(Intent::new(summary, vec![Effect::Replace { old, new }]))
    }
}
