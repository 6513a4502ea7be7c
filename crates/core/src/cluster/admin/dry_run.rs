//! Dry runs: what would follow from a command.
//!
//! The command is carried out on the copy of the cluster that [`Cluster::dry_run`] takes, and the planner runs there once
//! for each keyspace that the command touches. The copy is then thrown away, so nothing of it can leave.
//!
//! The planner is asked as if it had waited for whatever it would wait for first: reports of loads, an earlier
//! plan. What stops it for longer, the brake or nodes that do not answer, is said as a warning. The driver makes the
//! copy, and asks beside the decision loop: planning a large cluster takes a second, and no beat may wait for that.

use super::{AdminError, Answer, Command, DrainProgress, Effect};
use crate::base::id::{PlanId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::cluster::{Cluster, Moment};
use crate::plan::{Change, ShownPlan, Status};
use std::collections::{BTreeMap, BTreeSet};

/// What one node holds, and would hold when all that a dry run shows has been done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeShare {
    /// The node whose replicas are counted.
    pub node: NodeId,
    /// Replicas of all keyspaces now.
    pub before: u32,
    /// Replicas of all keyspaces then.
    pub after: u32,
}

impl Cluster {
    /// What a command would do, and what the planner would make of that.
    pub fn dry_run(
        mut self,
        at: Moment,
        transaction: TransactionId,
        by: &str,
        command: Command,
    ) -> Result<Answer, AdminError> {
        let intent = self.prepare(at, transaction, by, command)?;
        let touched = self.touched(&intent.effects);
        let (first, before) = (self.record.next_plan, self.needed_by_node());
        let mut answer = self.carry_out(at, by, intent);
        answer.dry_run = true;
        // On a copy of the cluster no later decision does so.
        for id in std::mem::take(&mut self.guard.written_off) {
            self.members.declare_dead(at, &id, &mut self.keyspaces, &mut self.outbox);
        }
        if !touched.is_empty() {
            let seen = self.members.view(at.now, &self.settings);
            let waits_for_nodes = self.guard.waits_for_nodes(seen, self.times.started, &mut self.outbox);
            answer.warnings.extend(self.obstacles(waits_for_nodes));
            let next = self.record.next_plan;
            touched.iter().for_each(|name| self.keyspaces.count_footprint((&self.plans, next), name));
            // The answer says once why nothing of a blocked drain moves: in how the drain stands.
            let is_told =
                answer.drains.iter().any(|drain| matches!(drain.progress, DrainProgress::Blocked { .. }));
            for name in &touched {
                let complaints = self.plan_at_once(at, name);
                answer.warnings.extend(complaints.into_iter().filter(|_| !is_told));
                self.keyspaces.count_footprint((&self.plans, self.record.next_plan), name);
            }
        }
        let own = answer.plan.as_ref().map(|plan| plan.id);
        answer.follows = self.plans_since(first).into_iter().filter(|plan| Some(plan.id) != own).collect();
        answer.shares = self.shares(before, &answer);
        Ok(answer)
    }

    /// The keyspaces for which the effects make the planner look.
    fn touched(&self, effects: &[Effect]) -> BTreeSet<KeyspaceName> {
        let mut touched = BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Create(record, _) | Effect::Keyspace(record) => {
                    touched.insert(record.keyspace.name.clone());
                }
                Effect::Map(diff) | Effect::GoOnWith(.., diff) | Effect::GiveUpShard(_, diff) => {
                    touched.insert(diff.keyspace.clone());
                }
                Effect::Node(_) | Effect::DropNode(_) | Effect::ReleaseBrake => {
                    touched.extend(self.keyspaces.by_name.keys().cloned());
                }
                Effect::GiveUp(_) => {}
                Effect::Drop(_) | Effect::Submit(..) | Effect::Decide(_) | Effect::Replace { .. } => {}
            }
        }
        touched
    }

    /// What keeps the planner from planning anything at all.
    fn obstacles(&self, waits_for_nodes: bool) -> Vec<String> {
        let mut told = Vec::new();
        let brakes = self.brakes();
        if !brakes.is_empty() {
            let why = brakes.join("; ");
            told.push(format!("the brake is on ({why}): nothing moves by itself until it is released"));
        }
        told.extend(self.unrest().map(|why| format!("{why}: nothing but repairs begins until they stay")));
        if waits_for_nodes {
            told.push("too few nodes answer: nothing is planned until more than half of them do".into());
        }
        told
    }

    fn plans_since(&self, first: PlanId) -> Vec<ShownPlan> {
        self.plans.by_id.range(first..).filter_map(|(id, _)| self.shown_plan(*id)).collect()
    }

    fn needed_by_node(&self) -> BTreeMap<NodeId, i64> {
        self.members.nodes.iter().map(|(id, node)| (id.clone(), self.needed(node).len() as i64)).collect()
    }

    /// The nodes whose number of replicas would change, which is that of `before` until the command.
    fn shares(&self, before: BTreeMap<NodeId, i64>, answer: &Answer) -> Vec<NodeShare> {
        let mut comes: BTreeMap<&NodeId, i64> = BTreeMap::new();
        let plans = answer.plan.iter().chain(&answer.follows);
        for plan in plans.filter(|plan| matches!(plan.status, Status::Approved | Status::Suggested)) {
            for planned in &plan.changes {
                self.count_moves(plan, &planned.change, &mut comes);
            }
        }
        let held = self.needed_by_node();
        let share = |(node, before): (NodeId, i64)| {
            let after = held.get(&node).unwrap_or(&0) + comes.get(&node).unwrap_or(&0);
            let (is_other, before, after) = (before != after, before.max(0) as u32, after.max(0) as u32);
            is_other.then_some(NodeShare { node, before, after })
        };
        before.into_iter().filter_map(share).collect()
    }

    /// What comes to nodes, and what goes, by one change.
    fn count_moves<'a>(
        &'a self,
        plan: &'a ShownPlan,
        change: &'a Change,
        comes: &mut BTreeMap<&'a NodeId, i64>,
    ) {
        let mut count = |node: &'a NodeId, by: i64| *comes.entry(node).or_default() += by;
        let leaving = |placement| plan.nodes.get(placement);
        match change {
            Change::Add { node, .. } => count(node, 1),
            Change::Move { from, to, .. } => {
                count(to, 1);
                leaving(from).into_iter().for_each(|node| count(node, -1));
            }
            Change::Remove { placement, .. } => {
                leaving(placement).into_iter().for_each(|node| count(node, -1));
            }
            Change::Lead { .. } => {}
            Change::Split { children, .. } => {
                children.iter().flat_map(|(_, nodes)| nodes).for_each(|node| count(node, 1));
            }
            Change::Merge { child: (_, nodes), .. } => nodes.iter().for_each(|node| count(node, 1)),
        }
        if let Change::Split { .. } | Change::Merge { .. } = change {
            let Some(keyspace) = self.keyspaces.get(&plan.keyspace) else { return };
            let parents = change.shards().iter().filter_map(|id| keyspace.map.shard(*id));
            parents.flat_map(|parent| &parent.replicas).for_each(|replica| count(&replica.node, -1));
        }
    }
}
