//! From a policy's solution to the changes of plans, sorted by how urgent they are.
//!
//! | decision                                     | change | plan      |
//! |----------------------------------------------|--------|-----------|
//! | nowhere → node, or off a node that is gone   | add    | repair    |
//! | off a node that is drained or leaves         | move   | drain     |
//! | off a node that the rules forbid             | move   | repair    |
//! | any other move                               | move   | rebalance |
//! | node → nowhere                               | remove | repair    |
//! | add or remove because a shard is (was) hot   |        | rebalance |
//!
//! A shard with something under way gets nothing but missing replicas; what it should have got is asked
//! again when it has settled.

use super::super::{Cluster, KeyspaceState};
use super::problem::PlanningInput;
use super::survey::known;
use super::waiting::Waiting;
use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::keyspace::map::{Replica, Shard};
use crate::placement::{Decision, NodeIndex, Reason, Solution, Standing};
use crate::plan::{Change, Planned};
use std::collections::BTreeSet;

/// What should change, by urgency.
#[derive(Debug, Clone, Default)]
pub(super) struct DesiredChanges {
    pub(super) repair: Vec<Planned>,
    pub(super) drain: Vec<Planned>,
    pub(super) rebalance: Vec<Planned>,
    /// Shards for which something waits until they have settled.
    pub(super) blocked: BTreeSet<ShardId>,
    /// Something has changed since the policy was asked, so that not all of its answer holds.
    pub(super) is_stale: bool,
    /// It was not looked at who should lead, or not for all shards, as something has to end first.
    pub(super) leads_wait: bool,
}

enum Urgency {
    Repair,
    Drain,
    Rebalance,
}

/// A solution that becomes changes, decision by decision.
#[derive(Debug, Clone)]
pub(super) struct ChangeBuilder {
    pub(super) input: PlanningInput,
    pub(super) solution: Solution,
    /// The decisions in the order in which they become changes, and how many have.
    order: Vec<u32>,
    done: usize,
    /// Moves for the sake of load, and the decisions of which nothing comes now.
    for_load: Vec<Planned>,
    left_out: BTreeSet<u32>,
    pub(super) desired: DesiredChanges,
}

impl ChangeBuilder {
    pub(super) fn of(input: PlanningInput, solution: Solution) -> ChangeBuilder {
        // A shard that no replica serves comes before one that lost a copy.
        let is_nowhere = |at: &u32| {
            let shard = solution.decisions[*at as usize].shard;
            input.problem.current.of(shard).is_empty()
        };
        let worthwhile = if solution.is_worthwhile(&input.problem) { solution.decisions.len() } else { 0 };
        let (mut order, others): (Vec<u32>, Vec<u32>) = (0..worthwhile as u32).partition(is_nowhere);
        order.extend(others);
        ChangeBuilder {
            input,
            solution,
            order,
            done: 0,
            for_load: vec![],
            left_out: BTreeSet::new(),
            desired: DesiredChanges::default(),
        }
    }

    /// Whether it is measured what comes of it: see [`Solution::remains_worthwhile`]. That looks at every replica.
    pub(super) fn is_measured(&self) -> bool {
        !self.left_out.is_empty() && !self.for_load.is_empty()
    }

    /// What comes of it, once all is written, and the policy's answer.
    pub(super) fn into_desired(self) -> (DesiredChanges, PlanningInput, Solution) {
        let is_measured = self.is_measured();
        let ChangeBuilder { input, solution, for_load, left_out, mut desired, .. } = self;
        if !is_measured || solution.remains_worthwhile(&input.problem, &left_out) {
            desired.rebalance.extend(for_load);
        }
        (desired, input, solution)
    }

    /// Whether every decision has become a change, or none.
    pub(super) fn is_over(&self) -> bool {
        self.done >= self.order.len()
    }
}

impl DesiredChanges {
    /// Whether everything is as the policy wants it.
    pub(super) fn is_empty(&self) -> bool {
        let DesiredChanges { repair, drain, rebalance, blocked, is_stale, .. } = self;
        repair.is_empty() && drain.is_empty() && rebalance.is_empty() && blocked.is_empty() && !is_stale
    }
}

impl Cluster {
    /// Writes at most `most` changes more; returns how many decisions it looked at.
    pub(super) fn write(&self, keyspace: &KeyspaceState, builder: &mut ChangeBuilder, most: usize) -> usize {
        let begin = builder.done;
        let end = builder.order.len().min(begin.saturating_add(most));
        // Plans that were approved since the shards were looked at.
        let later = self.plans.waiting(keyspace, (builder.input.waiting.until, self.record.next_plan));
        for at in begin..end {
            let number = builder.order[at];
            let decision = builder.solution.decisions[number as usize];
            let id = builder.input.problem.shards[decision.shard as usize];
            let planned = keyspace
                .map
                .shard(id)
                .filter(|shard| shard.is_serving())
                .and_then(|shard| self.still_holds(keyspace, &builder.input, shard, (&decision, &later)));
            if !matches!(planned, Some(Some(_))) {
                builder.left_out.insert(number);
            }
            let Some(planned) = planned else {
                builder.desired.is_stale = true;
                continue;
            };
            let desired = &mut builder.desired;
            match (planned, urgency(&builder.input, id, &decision)) {
                (None, _) => drop(desired.blocked.insert(id)),
                (Some(planned), Urgency::Repair) => desired.repair.push(planned),
                (Some(planned), Urgency::Drain) => desired.drain.push(planned),
                (Some(planned), Urgency::Rebalance) if decision.is_for_load() => {
                    builder.for_load.push(planned);
                }
                (Some(planned), Urgency::Rebalance) => desired.rebalance.push(planned),
            }
        }
        builder.done = end;
        end - begin
    }

    /// The change that carries a decision out, if what was decided upon is still so. None inside when something under
    /// way is in its way.
    #[expect(clippy::option_option, reason = "that it is too late is another thing than that it must wait")]
    fn still_holds(
        &self,
        keyspace: &KeyspaceState,
        input: &PlanningInput,
        shard: &Shard,
        (decision, later): (&Decision, &Waiting),
    ) -> Option<Option<Planned>> {
        let mut waiting = self.plans.waiting_for(&input.waiting, shard.id);
        waiting.extend(self.plans.waiting_for(later, shard.id));
        let is_as_it_was = known(&input.nodes, shard, &waiting) == input.problem.current.of(decision.shard);
        let to = decision.to.and_then(|to| self.members.get(input.nodes.name(to)?));
        let may_go_there = decision.to.is_none() || to.is_some_and(|to| keyspace.allows(shard.id, to));
        if !is_as_it_was || !may_go_there {
            return None;
        }
        let is_busy = self.is_busy(keyspace, shard, &waiting)
            || keyspace.is_withheld(shard.id)
            || keyspace.waits_for_copy(&self.members.nodes, shard);
        let change = change(input, shard, decision, is_busy);
        Some(change.map(|change| Planned::new(change, decision.sentence(&input.problem))))
    }
}

fn standing(input: &PlanningInput, node: NodeIndex) -> Standing {
    input.problem.nodes[node as usize].standing
}

fn urgency(input: &PlanningInput, shard: ShardId, decision: &Decision) -> Urgency {
    match (decision.from, decision.to) {
        (Some(from), Some(_)) if standing(input, from) == Standing::Drains => Urgency::Drain,
        (Some(from), Some(_)) if standing(input, from) == Standing::Gone => Urgency::Repair,
        (Some(_), Some(_)) if decision.reason == Reason::Forbidden => Urgency::Repair,
        (Some(_), Some(_)) => Urgency::Rebalance,
        (Some(_), None) | (None, _) if input.hot.contains(&shard) => Urgency::Rebalance,
        (Some(_), None) | (None, _) => Urgency::Repair,
    }
}

/// The change that carries a decision out, unless something under way is in its way.
fn change(input: &PlanningInput, shard: &Shard, decision: &Decision, busy: bool) -> Option<Change> {
    let name = |node: NodeIndex| &input.problem.nodes[node as usize].name;
    let is_free = |to: &NodeId, from: Option<&Replica>| !shard.bars(to, from.map(|r| r.placement));
    let staying = |from: NodeIndex| shard.staying().find(|r: &&Replica| r.node == *name(from));
    let to = decision.to.map(name);
    match (decision.from.and_then(staying), to) {
        (None, Some(to)) if is_free(to, None) => Some(Change::Add { shard: shard.id, node: to.clone() }),
        (Some(from), Some(to)) if !busy && is_free(to, Some(from)) => {
            Some(Change::Move { shard: shard.id, from: from.placement, to: to.clone() })
        }
        // The policy knows nodes only: of a shard with read replicas one of those goes.
        (Some(from), None) if !busy => {
            let goes =
                if from.is_read_replica() { None } else { shard.staying().find(|r| r.is_read_replica()) };
            Some(Change::Remove { shard: shard.id, placement: goes.unwrap_or(from).placement })
        }
        _ => None,
    }
}
