//! The plans that the planner makes by itself: each found from the cluster as it is, then taken in.

use super::super::{Cluster, Moment, Write};
use super::rejected;
use crate::base::name::KeyspaceName;
use crate::cluster::event::{About, EventKind, event};
use crate::plan::{Origin, Plan, Planned, Status};

/// A plan that the planner makes by itself.
pub(super) struct OwnPlan {
    plan: Plan,
    /// What there is against it.
    objection: Option<String>,
}

impl OwnPlan {
    /// None where the last one was refused for the same reason: that is stored and told of once.
    pub(super) fn find(
        cluster: &Cluster,
        at: Moment,
        name: &KeyspaceName,
        origin: Origin,
        changes: Vec<Planned>,
    ) -> Option<OwnPlan> {
        let objection = cluster.objection(at, name, &origin, &changes);
        let last = cluster.keyspaces.get(name).and_then(|state| state.planning.failing.as_ref());
        if objection.is_some() && objection.as_ref() == last {
            return None;
        }
        let plan = cluster.draft_plan(at, name, (origin, changes), objection.clone());
        Some(OwnPlan { plan, objection })
    }

    /// Returns whether the plan was approved.
    pub(super) fn apply(self, cluster: &mut Cluster) -> bool {
        let OwnPlan { plan, objection } = self;
        let Cluster { settings, record, keyspaces, plans, outbox, .. } = cluster;
        if let Some(keyspace) = keyspaces.get_mut(&plan.keyspace) {
            keyspace.planning.failing = objection;
        }
        let is_approved = plan.status == Status::Approved;
        plans.add(plan, record, (&*keyspaces, &*settings), outbox);
        is_approved
    }
}

/// In mode `suggested`: at most one rebalance waits for a person, always the latest, and none that was rejected already.
pub(super) struct Suggestion {
    /// Earlier ones, whose place it takes.
    superseded: Vec<Plan>,
    /// None where nothing is to be improved any more.
    plan: Option<OwnPlan>,
}

impl Suggestion {
    /// None where the same waits already, or where nothing was found and `is_complete` does not say that there is nothing.
    pub(super) fn find(
        cluster: &Cluster,
        at: Moment,
        name: &KeyspaceName,
        changes: Vec<Planned>,
        is_complete: bool,
    ) -> Option<Suggestion> {
        let waits = |plan: &&Plan| {
            plan.keyspace == *name && plan.origin == Origin::Rebalance && plan.status == Status::Suggested
        };
        let earlier: Vec<&Plan> = cluster.plans.by_id.values().filter(waits).collect();
        // No person is asked twice; what still waits is out of date all the same.
        let changes = if cluster.is_rejected(name, &changes) { vec![] } else { changes };
        let is_same = |plan: &&Plan| rejected::are_alike(&plan.changes, &changes);
        if earlier.iter().any(is_same) || (changes.is_empty() && !is_complete) {
            return None;
        }
        let superseded = earlier.into_iter().map(|plan| Plan { status: Status::Superseded, ..plan.clone() });
        let superseded = superseded.collect();
        let plan = match changes.is_empty() {
            true => None,
            false => OwnPlan::find(cluster, at, name, Origin::Rebalance, changes),
        };
        Some(Suggestion { superseded, plan })
    }

    /// Returns whether a plan was approved.
    pub(super) fn apply(self, cluster: &mut Cluster) -> bool {
        let Cluster { keyspaces, plans, outbox, .. } = &mut *cluster;
        for plan in self.superseded {
            let Plan { id, keyspace: name, .. } = &plan;
            let text = format!("{id} of keyspace {name} is superseded: a later plan takes its place");
            outbox.events.push(event(EventKind::PlanDecided, About::plan(name, *id), text));
            plans.store(plan, keyspaces, outbox);
        }
        self.plan.is_some_and(|plan| plan.apply(cluster))
    }
}

/// A keyspace that cannot be planned: told once, stored as a refused plan without changes.
pub(super) struct PlanningFailure {
    why: String,
    plan: Plan,
}

impl PlanningFailure {
    /// None where it has failed for the same reason before.
    pub(super) fn find(
        cluster: &Cluster,
        at: Moment,
        name: &KeyspaceName,
        why: String,
    ) -> Option<PlanningFailure> {
        let keyspace = cluster.keyspaces.get(name)?;
        if keyspace.planning.failing.as_ref() == Some(&why) {
            return None;
        }
        let draft = cluster.draft_plan(at, name, (Origin::Repair, vec![]), None);
        let plan = Plan { status: Status::Refused(why.clone()), ..draft };
        Some(PlanningFailure { why, plan })
    }

    pub(super) fn apply(self, cluster: &mut Cluster) {
        let PlanningFailure { why, plan } = self;
        let Cluster { settings, record, keyspaces, plans, outbox, .. } = cluster;
        let name = &plan.keyspace;
        if let Some(keyspace) = keyspaces.get_mut(name) {
            keyspace.planning.failing = Some(why.clone());
            keyspace.planning.unplaced = vec![format!("nothing can be planned: {why}")];
        }
        let text = format!("keyspace {name} cannot be planned, its map stays as it is: {why}");
        outbox.tell(EventKind::Alarm, About::keyspace(name), true, text);
        record.next_plan = plan.id.next();
        outbox.writes.push(Write::Cluster(record.clone()));
        plans.store(plan, keyspaces, outbox);
        plans.drop_old(settings, outbox);
    }
}
