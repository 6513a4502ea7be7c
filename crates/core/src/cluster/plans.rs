//! The plans that are kept: those under way, and the latest of those that are over.

use super::keyspaces::Keyspaces;
use super::{ClusterRecord, Outbox, Write};
use crate::base::count::counted;
use crate::base::id::PlanId;
use crate::base::name::KeyspaceName;
use crate::base::settings::Settings;
use crate::cluster::event::{About, Event, EventKind, event, of_origin};
use crate::limits;
use crate::plan::{Plan, Status};
use std::collections::BTreeMap;

/// All plans that are kept, by their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Plans {
    pub(super) by_id: BTreeMap<PlanId, Plan>,
}

impl Plans {
    pub(super) fn new(plans: Vec<Plan>) -> Plans {
        Plans { by_id: plans.into_iter().map(|plan| (plan.id, plan)).collect() }
    }

    pub(super) fn get(&self, id: &PlanId) -> Option<&Plan> {
        self.by_id.get(id)
    }

    /// Takes in a plan with the next number, and says so.
    pub(super) fn add(
        &mut self,
        plan: Plan,
        record: &mut ClusterRecord,
        (keyspaces, settings): (&Keyspaces, &Settings),
        outbox: &mut Outbox,
    ) {
        let Plan { id, keyspace, origin, .. } = &plan;
        let refused = matches!(plan.status, Status::Refused(_));
        let changes = counted(plan.changes.len(), "change");
        let text = format!("{id} of keyspace {keyspace}, {origin}: {changes}, {}", plan.status);
        let made = Event {
            alarm: refused && origin.is_automatic(),
            by: of_origin(origin),
            ..event(EventKind::PlanMade, About::plan(keyspace, *id), text)
        };
        record.next_plan = id.next();
        outbox.writes.push(Write::Cluster(record.clone()));
        outbox.tell_event(made);
        self.store(plan, keyspaces, outbox);
        self.drop_old(settings, outbox);
    }

    /// Replaces or adds a plan, in memory and for the disk.
    pub(super) fn store(&mut self, mut plan: Plan, keyspaces: &Keyspaces, outbox: &mut Outbox) {
        if let Some(keyspace) = keyspaces.get(&plan.keyspace) {
            plan.name_nodes(&keyspace.map);
        }
        outbox.writes.push(Write::Plan(plan.clone()));
        self.by_id.insert(plan.id, plan);
    }

    /// Forgets the oldest plans that are over, down to [`Settings::plans_kept`] plans and [`limits::CHANGES_KEPT`]
    /// changes.
    pub(super) fn drop_old(&mut self, settings: &Settings, outbox: &mut Outbox) {
        let mut plans = self.by_id.len();
        let mut changes: usize = self.by_id.values().map(|plan| plan.changes.len()).sum();
        let too_much = |plan: &&Plan| {
            let surplus = plans > settings.plans_kept || changes > limits::CHANGES_KEPT;
            if surplus {
                plans -= 1;
                changes -= plan.changes.len();
            }
            surplus
        };
        let over = self.by_id.values().filter(|plan| plan.is_over());
        let oldest: Vec<_> = over.take_while(too_much).map(|plan| plan.id).collect();
        for id in oldest {
            self.by_id.remove(&id);
            outbox.writes.push(Write::DropPlan(id));
        }
    }

    /// Forgets all plans of a keyspace that is gone.
    pub(super) fn forget_all_of(&mut self, name: &KeyspaceName, outbox: &mut Outbox) {
        let ids: Vec<_> = self.by_id.values().filter(|plan| plan.keyspace == *name).map(|p| p.id).collect();
        for id in ids {
            self.by_id.remove(&id);
            outbox.writes.push(Write::DropPlan(id));
        }
    }
}
