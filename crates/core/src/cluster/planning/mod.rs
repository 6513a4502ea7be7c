//! What next: from what is seen and what is wanted to plans, and from a plan to its approval.
//!
//! [`Cluster::plan_of`] makes every plan, the planner's and a person's alike: it numbers, checks, and approves or lets wait.
//! [`super::plans`] keeps them.
//!
//! | made by            | in `automatic` | in `suggested`      | in `manual`    | with the brake on |
//! |--------------------|----------------|---------------------|----------------|-------------------|
//! | a person           | approved       | approved            | approved       | approved          |
//! | a drain they asked | approved       | approved            | approved       | refused           |
//! | repair             | approved       | approved            | refused        | refused           |
//! | rebalance          | approved       | waits for a person  | refused        | refused           |
//!
//! [`Cluster::plan`] is the planner. It looks at a keyspace when something has happened there, and every
//! `rebalance_ms`:
//!
//! ```text
//!  map, nodes, loads, rules ─► survey.rs ─► policy ─► changes.rs ─► plans: repair, drain, rebalance ─► submit
//! ```
//!
//! [`Round`] does that in slices.
//!
//! While a plan of a keyspace is being carried out no rebalance is planned there; repairs and drains are, for
//! the shards that it does not touch. If nothing should change there is no plan (M10). Nothing here depends
//! on the time of day or on chance: the same input gives the same plans (M9). A keyspace that cannot be
//! planned says why and holds up no other.

mod changes;
mod even;
mod footprint;
mod leaders;
mod own_plans;
mod problem;
mod rejected;
mod reshape;
mod round;
mod survey;
mod waiting;

use super::{Cluster, KeyspaceState, Moment, Outbox};
use crate::base::count::counted;
use crate::base::id::ShardId;
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::keyspace::Mode;
use crate::keyspace::map::ShardMap;
use crate::limits;
use crate::node::Health;
use crate::plan::check;
use crate::plan::reshard::Tracker;
use crate::plan::{Origin, Plan, Planned, Progress, Status};
pub(super) use footprint::Footprint;
use own_plans::OwnPlan;
pub(super) use round::Round;
use std::collections::BTreeSet;
use survey::KnownLoads;

/// What the planner of a keyspace remembers from one run to the next.
#[derive(Debug, Clone, Default)]
pub(super) struct PlanningState {
    /// When to look for a better placement.
    pub(super) plan_due: Millis,
    /// What could not be placed, in sentences.
    unplaced: Vec<String>,
    /// Why the last plan was refused or could not be made, so that the planner says it only once.
    pub(super) failing: Option<String>,
    /// Shards that the planner will look at again when they have settled.
    pub(super) blocked: BTreeSet<ShardId>,
    /// Since when shards are too large, too hot or too small; not stored.
    tracker: Tracker,
    /// What no plan can help, in sentences.
    advice: Vec<String>,
    /// Since when improving it waits for the loads of some of its replicas; not stored.
    unmeasured_since: Option<Millis>,
    /// What it carried on each node when its planner last ran; not stored.
    footprint: Footprint,
    /// When its map was changed last; not stored.
    changed_at: Millis,
    /// Leads are to be spread, or may be, and something has to end first; not stored.
    leads_wait: bool,
}

impl PlanningState {
    /// Of a keyspace that is planned at once.
    pub(super) fn due(now: Millis) -> PlanningState {
        PlanningState { plan_due: now, ..PlanningState::default() }
    }
}

impl Cluster {
    /// The plan of these changes: numbered, checked, and approved or to wait. One that breaks the check is refused, with the
    /// finding as the reason.
    pub(super) fn plan_of(
        &self,
        at: Moment,
        keyspace: &KeyspaceName,
        origin: Origin,
        changes: Vec<Planned>,
    ) -> Plan {
        let objection = self.objection(at, keyspace, &origin, &changes);
        self.draft_plan(at, keyspace, (origin, changes), objection)
    }

    /// The same, with what there is against it.
    fn draft_plan(
        &self,
        at: Moment,
        keyspace: &KeyspaceName,
        (origin, changes): (Origin, Vec<Planned>),
        objection: Option<String>,
    ) -> Plan {
        let base = self.keyspaces.get(keyspace).map(|state| state.map.generation()).unwrap_or_default();
        let status = match objection {
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
        if let Some(why) = self.brake_on(state).filter(|_| origin.is_automatic()) {
            return Some(format!("the brake is on: {why}"));
        }
        self.findings(at, &state.map, changes)
    }

    fn findings(&self, at: Moment, map: &ShardMap, changes: &[Planned]) -> Option<String> {
        let findings = check::plan(map, changes, &|node| self.closed(at, node));
        let first = findings.first()?;
        Some(match findings.len() {
            1 => first.to_string(),
            count => format!("{first} (and {})", counted(count - 1, "more finding")),
        })
    }

    /// Why nothing new may be placed on a node (M7).
    pub(super) fn closed(&self, at: Moment, id: &NodeId) -> Option<String> {
        let is_nearly_full = self.members.get(id).is_some_and(|node| node.disk.nearly_full);
        let nearly_full = || is_nearly_full.then(|| "its disk is nearly full".to_owned());
        self.closed_to_leads(at, id).or_else(nearly_full)
    }

    /// Why a node should lead no more than it does: a lead moves no data.
    fn closed_to_leads(&self, at: Moment, id: &NodeId) -> Option<String> {
        let Some(node) = self.members.get(id) else { return Some("it is not registered".to_owned()) };
        match node.signs.health(at.now, &self.settings) {
            Health::Up if node.leaving => Some("it is leaving".to_owned()),
            Health::Up if node.disk.full => Some("its disk is full".to_owned()),
            Health::Up if node.disk.stalled => Some("its disk is stalled".to_owned()),
            Health::Up if node.revoked => {
                Some("it does not let go of shards that others wait for".to_owned())
            }
            Health::Up => {
                node.record.drain.as_ref().map(|drain| format!("it is being drained: {}", drain.reason))
            }
            Health::Unknown => Some(
                "it is unknown: the coordinator has not reached its address yet, or has not had a heartbeat"
                    .into(),
            ),
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
}

/// How long loads are waited for, as far as that is the same for all keyspaces.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Some node that may still be there has not been heard of since the start.
    has_unheard_nodes: bool,
    ms: u64,
    /// When the coordinator started, where there were replicas before it.
    start: Option<Millis>,
}

impl KeyspaceState {
    /// Nothing is improved by loads that are not known, or not for all: a replica that has just come would be
    /// taken for average, and be moved again as soon as it is known that it is not. So after a restart (R6) and
    /// after every change it is waited until all have reported, or have had `rebalance_ms` to do so. A keyspace
    /// whose workers report no loads at all waits after a restart only.
    fn may_rebalance(&mut self, at: Moment, heard: KnownLoads, patience: &Patience) -> bool {
        if heard.all && !patience.has_unheard_nodes {
            self.planning.unmeasured_since = None;
        } else if heard.any {
            self.planning.unmeasured_since.get_or_insert(at.now);
        }
        let Some(until) = self.loads_awaited_until(at, heard, patience) else { return true };
        self.planning.plan_due = self.planning.plan_due.min((at.now + limits::LOADS_LOOK_MS).min(until));
        false
    }

    /// Whether what could only be better is planned now, or waits; where it is `only_leads`, for no loads.
    fn begins_to_rebalance(
        &mut self,
        at: Moment,
        (is_carrying_out, patience): (bool, &Patience),
        heard: KnownLoads,
        only_leads: bool,
    ) -> bool {
        if !only_leads {
            return !is_carrying_out && self.may_rebalance(at, heard, patience);
        }
        let waits = is_carrying_out || patience.has_unheard_nodes;
        if waits {
            self.planning.plan_due = self.planning.plan_due.min(at.now + limits::LOADS_LOOK_MS);
        }
        !waits
    }

    fn loads_awaited_until(&self, at: Moment, heard: KnownLoads, patience: &Patience) -> Option<Millis> {
        if heard.all && !patience.has_unheard_nodes {
            return None;
        }
        let since = self.planning.unmeasured_since.filter(|_| heard.any);
        patience.start.max(since).map(|since| since + patience.ms).filter(|until| at.now < *until)
    }

    /// Keeps the list of what is not placed; tells when it begins and when it ends.
    fn report_unplaced(&mut self, at: Moment, unplaced: Vec<String>, outbox: &mut Outbox) {
        let expiry = self.overdue.avoid.values().map(|avoided| avoided.until).min();
        if let Some(expiry) = expiry.filter(|_| !unplaced.is_empty()) {
            self.planning.plan_due = self.planning.plan_due.min(expiry.max(at.now + 1));
        }
        let before = std::mem::replace(&mut self.planning.unplaced, unplaced);
        let name = self.map.keyspace();
        match (before.is_empty(), self.planning.unplaced.first().cloned()) {
            (true, Some(first)) => {
                outbox.tell(
                    EventKind::Alarm,
                    About::keyspace(name),
                    true,
                    format!("keyspace {name} is not placed as it should be: {first}"),
                );
            }
            (false, None) => outbox.tell(
                EventKind::Notice,
                About::keyspace(name),
                false,
                format!("keyspace {name} is placed as it should be again"),
            ),
            (true, None) | (false, Some(_)) => {}
        }
    }

    /// Sentences about what could not be placed and why, at most [`limits::COMPLAINTS`] and one (A2).
    pub fn unplaced(&self) -> &[String] {
        &self.planning.unplaced
    }

    /// Something that the planner waited for has happened.
    pub(super) fn plan_again(&mut self, at: Moment) {
        let pause_ms = limits::PLAN_PAUSE_MS + (self.map.len() / limits::PLAN_PAUSE_SHARDS) as u64;
        self.planning.plan_due = self.planning.plan_due.min(at.now + pause_ms);
    }
}

impl Cluster {
    /// When the planner has to run next if nothing happens.
    pub(super) fn next_plan_due(&self) -> Millis {
        self.keyspaces
            .by_name
            .values()
            .map(|keyspace| keyspace.planning.plan_due)
            .min()
            .unwrap_or(Millis::NEVER)
    }

    /// Plans a keyspace once, and waits for nothing that the planner else waits for: for a dry run, on a copy.
    /// The coordinator asks no person twice in earnest, but answers one that asks now again. Returns why there is no plan, or
    /// none for all of it.
    pub(super) fn plan_at_once(&mut self, at: Moment, name: &KeyspaceName) -> Vec<String> {
        let Some(keyspace) = self.keyspaces.get_mut(name) else { return vec![] };
        let known = std::mem::take(&mut keyspace.planning.unplaced);
        keyspace.planning.failing = None;
        let mode = keyspace.record.keyspace.mode;
        let (desired, mut told) = match self.desired_at_once(at, name) {
            Ok(found) => found,
            Err(why) => return vec![format!("keyspace {name} cannot be planned then: {why}")],
        };
        told.retain(|sentence| !known.contains(sentence));
        // What a person or a loss asks for; what could only be better is left.
        let repair = if mode == Mode::Manual { Vec::new() } else { desired.repair };
        let mut is_ready = false;
        for (origin, changes) in [(Origin::Repair, repair), (Origin::Drain, desired.drain)] {
            is_ready |= !changes.is_empty() && self.make_own_plan(at, name, origin, changes);
        }
        if !is_ready && !desired.rebalance.is_empty() {
            match mode {
                Mode::Automatic | Mode::Suggested => {
                    self.make_own_plan(at, name, Origin::Rebalance, desired.rebalance);
                }
                Mode::Manual => told.push(format!(
                    "{} would put keyspace {name} where its policy wants it: in mode manual a person makes the changes",
                    counted(desired.rebalance.len(), "change")
                )),
            }
        }
        told
    }

    /// Returns whether the plan was approved.
    fn make_own_plan(
        &mut self,
        at: Moment,
        name: &KeyspaceName,
        origin: Origin,
        changes: Vec<Planned>,
    ) -> bool {
        OwnPlan::find(self, at, name, origin, changes).is_some_and(|plan| plan.apply(self))
    }

    /// Whether some plan of the keyspace is approved and not finished. What waits for a worker that is late with a
    /// step does not count: others are not to wait for it too (L4).
    fn is_carrying_out(&self, at: Moment, name: &KeyspaceName) -> bool {
        let Some(keyspace) = self.keyspaces.get(name) else { return false };
        let held_up = keyspace.held_up(at);
        let goes_on = |planned: &Planned| {
            let is_over = matches!(planned.progress, Progress::Done | Progress::Dropped(_));
            !is_over && !held_up.is_held_up(keyspace, &planned.change)
        };
        let mut approved = self
            .plans
            .by_id
            .values()
            .filter(|plan| plan.keyspace == *name && plan.status == Status::Approved);
        approved.any(|plan| plan.changes.iter().any(goes_on))
    }

    /// How long loads are waited for, as far as that is the same for all keyspaces.
    fn patience(&self, at: Moment) -> Patience {
        Patience {
            has_unheard_nodes: self.has_unheard_nodes(at),
            ms: self.settings.rebalance_ms.max(self.settings.dead_after_ms),
            start: self.recovered.inherited.then_some(self.times.started),
        }
    }

    /// Until when loads are waited for before a keyspace is evened out; none if nothing is waited for.
    fn loads_awaited_until(&self, at: Moment, keyspace: &KeyspaceState, heard: KnownLoads) -> Option<Millis> {
        keyspace.loads_awaited_until(at, heard, &self.patience(at))
    }

    /// Whether a keyspace may be evened out, by what is known now.
    #[cfg(test)]
    pub(super) fn may_rebalance_now(&mut self, at: Moment, name: &KeyspaceName) -> bool {
        let Some(keyspace) = self.keyspaces.get(name) else { return true };
        let mut survey = self.survey(at, keyspace);
        self.go_on(at, keyspace, &mut survey, usize::MAX);
        let patience = self.patience(at);
        let keyspace = self.keyspaces.get_mut(name);
        keyspace.is_none_or(|keyspace| keyspace.may_rebalance(at, survey.heard, &patience))
    }

    /// Whether some node that may still be there has not been heard of since the start.
    fn has_unheard_nodes(&self, at: Moment) -> bool {
        self.members
            .nodes
            .values()
            .any(|node| node.signs.health(at.now, &self.settings) == Health::Unknown && !node.record.ended)
    }

    /// When loads are not waited for any more, by what is known now; none if they are not waited for.
    pub(super) fn evened_out_from(&self, at: Moment, keyspace: &KeyspaceState) -> Option<Millis> {
        if keyspace.record.keyspace.mode == Mode::Manual {
            return None;
        }
        // As a rule they are not, and the shards need not be gone through to know that.
        let if_any_lack = KnownLoads { any: true, all: false };
        self.loads_awaited_until(at, keyspace, if_any_lack)?;
        let mut survey = self.survey(at, keyspace);
        self.go_on(at, keyspace, &mut survey, usize::MAX);
        self.loads_awaited_until(at, keyspace, survey.heard)
    }
}
