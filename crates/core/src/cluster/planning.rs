//! What next: from what is seen and what is wanted to plans, and from a plan to its approval.
//!
//! [`Cluster::submit`] is the one door through which plans come in, the planner's and a person's alike: it
//! numbers, checks, approves or lets wait, and stores.
//!
//! | made by            | in `automatic` | in `suggested`      | in `manual`    | with the brake on |
//! |--------------------|----------------|---------------------|----------------|-------------------|
//! | a person           | approved       | approved            | approved       | approved          |
//! | a drain they asked | approved       | approved            | approved       | refused           |
//! | repair             | approved       | approved            | refused        | refused           |
//! | rebalance          | approved       | waits for a person  | refused        | refused           |

use super::{Cluster, Moment, Write};
use crate::check;
use crate::id::PlanId;
use crate::keyspace::Mode;
use crate::map::ShardMap;
use crate::name::{KeyspaceName, NodeId};
use crate::node::Health;
use crate::plan::{Origin, Plan, Planned, Status};

impl Cluster {
    /// Numbers a plan, checks it, approves it or lets it wait, and stores it. A plan that breaks the check is
    /// stored as refused, with the finding as the reason.
    pub(super) fn submit(
        &mut self,
        at: Moment,
        keyspace: &KeyspaceName,
        origin: Origin,
        changes: Vec<Planned>,
    ) -> PlanId {
        let plan = self.draft_plan(at, keyspace, origin, changes);
        let id = plan.id;
        self.record.next_plan = id.next();
        self.outbox.writes.push(Write::Cluster(self.record.clone()));
        let refused = matches!(plan.status, Status::Refused(_));
        self.notice(
            refused && plan.origin.is_automatic(),
            format!(
                "{id} of keyspace {keyspace}, {}: {} changes, {}",
                plan.origin,
                plan.changes.len(),
                plan.status
            ),
        );
        self.store_plan(plan);
        self.drop_old_plans();
        id
    }

    /// The plan that [`Cluster::submit`] would store now: for `--dry-run`.
    pub(super) fn draft_plan(
        &self,
        at: Moment,
        keyspace: &KeyspaceName,
        origin: Origin,
        changes: Vec<Planned>,
    ) -> Plan {
        let base = self.keyspaces.get(keyspace).map(|state| state.map.generation()).unwrap_or_default();
        let status = match self.objection(at, keyspace, &origin, &changes) {
            Some(why) => Status::Refused(why),
            None => self.first_status(keyspace, &origin),
        };
        let decided_by = match (&origin, &status) {
            (Origin::Person(name), Status::Approved) => Some(name.clone()),
            _ => None,
        };
        let (id, keyspace) = (self.record.next_plan, keyspace.clone());
        Plan { id, keyspace, base, origin, changes, status, made_ms: at.wall_ms, decided_by }
    }

    /// Why a plan cannot be carried out as things stand: asked before each approval.
    pub(super) fn objection(
        &self,
        at: Moment,
        keyspace: &KeyspaceName,
        origin: &Origin,
        changes: &[Planned],
    ) -> Option<String> {
        let Some(state) = self.keyspaces.get(keyspace) else {
            return Some(format!("there is no keyspace {keyspace}"));
        };
        if let Some(why) = self.record.brake.as_ref().filter(|_| origin.is_automatic()) {
            return Some(format!("the brake is on: {why}"));
        }
        self.findings(at, &state.map, changes)
    }

    fn findings(&self, at: Moment, map: &ShardMap, changes: &[Planned]) -> Option<String> {
        let findings = check::plan(map, changes, &|node| self.closed(at, node));
        let first = findings.first()?;
        Some(match findings.len() {
            1 => first.to_string(),
            count => format!("{first} (and {} more findings)", count - 1),
        })
    }

    /// Why nothing new may be placed on a node (M7).
    pub(super) fn closed(&self, at: Moment, id: &NodeId) -> Option<String> {
        let Some(node) = self.nodes.get(id) else { return Some("it is not registered".to_owned()) };
        match node.signs.health(at.now, &self.settings) {
            Health::Up if node.leaving => Some("it is leaving".to_owned()),
            Health::Up => {
                node.record.drain.as_ref().map(|drain| format!("it is to be emptied: {}", drain.reason))
            }
            health => Some(format!("it is {health}")),
        }
    }

    /// The table of this module.
    fn first_status(&self, keyspace: &KeyspaceName, origin: &Origin) -> Status {
        let mode = self.keyspaces.get(keyspace).map(|state| state.record.keyspace.mode);
        match (origin, mode.unwrap_or(Mode::Manual)) {
            (Origin::Person(_) | Origin::Drain, Mode::Automatic | Mode::Suggested | Mode::Manual)
            | (Origin::Repair, Mode::Automatic | Mode::Suggested)
            | (Origin::Rebalance, Mode::Automatic) => Status::Approved,
            (Origin::Rebalance, Mode::Suggested) => Status::Suggested,
            (Origin::Repair | Origin::Rebalance, Mode::Manual) => {
                Status::Refused("the keyspace is in mode manual: only a person makes plans".to_owned())
            }
        }
    }

    /// Replaces or adds a plan, in memory and for the disk.
    pub(super) fn store_plan(&mut self, plan: Plan) {
        self.outbox.writes.push(Write::Plan(plan.clone()));
        self.plans.insert(plan.id, plan);
    }

    /// Forgets the oldest plans that are over, down to [`crate::settings::Settings::plans_kept`].
    fn drop_old_plans(&mut self) {
        let surplus = self.plans.len().saturating_sub(self.settings.plans_kept);
        let over = self.plans.values().filter(|plan| plan.is_over()).map(|plan| plan.id);
        let oldest: Vec<_> = over.take(surplus).collect();
        for id in oldest {
            self.plans.remove(&id);
            self.outbox.writes.push(Write::DropPlan(id));
        }
    }
}
