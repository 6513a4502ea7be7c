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

use super::super::KeyspaceState;
use super::problem::Outlook;
use crate::id::ShardId;
use crate::map::{Replica, Shard};
use crate::name::NodeId;
use crate::placement::{Decision, NodeIndex, Reason, Solution, Standing};
use crate::plan::{Change, Planned};
use std::collections::BTreeSet;

/// What should change, by urgency.
#[derive(Default)]
pub(super) struct Wishes {
    pub(super) repair: Vec<Planned>,
    pub(super) drain: Vec<Planned>,
    pub(super) rebalance: Vec<Planned>,
    /// Shards for which something waits until they have settled.
    pub(super) blocked: BTreeSet<ShardId>,
}

enum Urgency {
    Repair,
    Drain,
    Rebalance,
}

impl Wishes {
    /// Whether everything is as the policy wants it.
    pub(super) fn is_empty(&self) -> bool {
        let Wishes { repair, drain, rebalance, blocked } = self;
        repair.is_empty() && drain.is_empty() && rebalance.is_empty() && blocked.is_empty()
    }

    pub(super) fn from(keyspace: &KeyspaceState, outlook: &Outlook, solution: &Solution) -> Wishes {
        let mut wishes = Wishes::default();
        if !solution.is_worthwhile(&outlook.problem) {
            return wishes;
        }
        // A shard that nobody serves comes before one that lost a copy.
        let mut decisions: Vec<&Decision> = solution.decisions.iter().collect();
        decisions.sort_by_key(|decision| !outlook.problem.current.of(decision.shard).is_empty());
        for decision in decisions {
            let id = outlook.problem.shards[decision.shard as usize];
            let Some(shard) = keyspace.map.shard(id) else { continue };
            match change(outlook, shard, decision) {
                Some(change) => {
                    let planned = Planned::new(change, decision.sentence(&outlook.problem));
                    match urgency(outlook, id, decision) {
                        Urgency::Repair => wishes.repair.push(planned),
                        Urgency::Drain => wishes.drain.push(planned),
                        Urgency::Rebalance => wishes.rebalance.push(planned),
                    }
                }
                None => drop(wishes.blocked.insert(id)),
            }
        }
        wishes
    }
}

fn standing(outlook: &Outlook, node: NodeIndex) -> Standing {
    outlook.problem.nodes[node as usize].standing
}

fn urgency(outlook: &Outlook, shard: ShardId, decision: &Decision) -> Urgency {
    match (decision.from, decision.to) {
        (Some(from), Some(_)) if standing(outlook, from) == Standing::Drains => Urgency::Drain,
        (Some(from), Some(_)) if standing(outlook, from) == Standing::Gone => Urgency::Repair,
        (Some(_), Some(_)) if decision.reason == Reason::Forbidden => Urgency::Repair,
        (Some(_), Some(_)) => Urgency::Rebalance,
        (Some(_), None) | (None, _) if outlook.hot.contains(&shard) => Urgency::Rebalance,
        (Some(_), None) | (None, _) => Urgency::Repair,
    }
}

/// The change that carries a decision out, unless something under way is in its way.
fn change(outlook: &Outlook, shard: &Shard, decision: &Decision) -> Option<Change> {
    let name = |node: NodeIndex| &outlook.problem.nodes[node as usize].name;
    let is_free = |to: &NodeId| !shard.bars(to);
    let staying = |from: NodeIndex| shard.staying().find(|r: &&Replica| r.node == *name(from));
    let busy = outlook.busy.contains(&shard.id);
    let to = decision.to.map(name);
    match (decision.from.and_then(staying), to) {
        (None, Some(to)) if is_free(to) => Some(Change::Add { shard: shard.id, node: to.clone() }),
        (Some(from), Some(to)) if !busy && is_free(to) => {
            Some(Change::Move { shard: shard.id, from: from.placement, to: to.clone() })
        }
        (Some(from), None) if !busy => Some(Change::Remove { shard: shard.id, placement: from.placement }),
        _ => None,
    }
}
