//! What a person has said no to stays so until something has changed.
//!
//! The planner finds the same changes again at its next look, seconds after somebody rejected them. So a rejected
//! plan keeps what it was based on, and while that holds no person is asked again:
//!
//! | what                                                 | has changed when                            |
//! |------------------------------------------------------|---------------------------------------------|
//! | the keyspace's settings that placement reads         | any of them is another                      |
//! | the nodes: who they are, their capacity and place    | one comes, goes for good, or is drained     |
//! | the plan's shards: their replicas, roles and rules   | any of them is another                      |
//! | the load of the plan's shards, together              | it has doubled or halved, and is not little |
//!
//! Other changes than the rejected ones are proposed at once. A node that is silent for a moment is no change, nor
//! is a load that swings. A rejection is forgotten with its plan, see `Plans::drop_old`.

use super::reshape::is_alike;
use crate::base::id::ShardId;
use crate::base::name::KeyspaceName;
use crate::cluster::{Cluster, KeyspaceState};
use crate::keyspace::hash::HashFunction;
use crate::limits;
use crate::node::load::METRICS;
use crate::plan::{Basis, Planned, Status};
use std::collections::BTreeSet;

impl Cluster {
    /// What these changes are based on now.
    pub(in crate::cluster) fn basis(&self, keyspace: &KeyspaceState, changes: &[Planned]) -> Basis {
        let shards: BTreeSet<ShardId> =
            changes.iter().flat_map(|planned| planned.change.shards()).copied().collect();
        let settings = &keyspace.record.keyspace;
        let placing = (settings.replicas, &settings.policy, settings.spread, &settings.constraint);
        let nodes = self.members.nodes.values().filter(|node| !node.record.ended).map(|node| {
            let spec = &node.record.spec;
            let drains = node.record.drain.is_some() || node.leaving;
            (&spec.id, spec.capacity.to_bits(), &spec.zone, &spec.rack, &spec.labels, &spec.kinds, drains)
        });
        let places = shards.iter().filter_map(|id| keyspace.map.shard(*id)).map(|shard| {
            let replicas = shard.staying().map(|r| (r.placement, &r.node, r.role));
            (shard.id, replicas.collect::<Vec<_>>(), keyspace.record.rules.get(&shard.id))
        });
        let text = format!(
            "{placing:?} {:?} {:?} {:?}",
            settings.resharding,
            nodes.collect::<Vec<_>>(),
            places.collect::<Vec<_>>()
        );
        Basis { print: HashFunction::Xxh3_64.scatter(text.as_bytes()), load: load(keyspace, &shards) }
    }

    /// Whether a person has said no to these changes, and nothing that they are based on has changed since.
    pub(super) fn is_rejected(&self, name: &KeyspaceName, changes: &[Planned]) -> bool {
        let Some(keyspace) = self.keyspaces.get(name) else { return false };
        let rejected = self.plans.by_id.values().filter(|plan| plan.keyspace == *name).filter_map(|plan| {
            let Status::Rejected(basis) = &plan.status else { return None };
            are_alike(&plan.changes, changes).then_some(basis)
        });
        let mut rejected = rejected.peekable();
        if rejected.peek().is_none() {
            return false;
        }
        let now = self.basis(keyspace, changes);
        rejected.any(|then| then.print == now.print && is_near(then.load, now.load))
    }
}

/// Whether a person would call two lists of changes the same.
pub(super) fn are_alike(one: &[Planned], other: &[Planned]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_alike(&a.change, &b.change))
}

/// What the leaders of these shards report together.
fn load(keyspace: &KeyspaceState, shards: &BTreeSet<ShardId>) -> [u64; METRICS.len()] {
    let leaders = shards.iter().filter_map(|id| keyspace.map.shard(*id)?.leader());
    let loads = leaders.filter_map(|leader| keyspace.observed.get(&leader.placement)?.load());
    let mut sums = [0.0; METRICS.len()];
    for load in loads {
        sums.iter_mut().zip(load.metrics()).for_each(|(sum, value)| *sum += value);
    }
    sums.map(|sum| sum as u64)
}

/// Whether no load is more than twice the other, where there is enough of it to matter.
fn is_near(one: [u64; METRICS.len()], other: [u64; METRICS.len()]) -> bool {
    let near = |((one, other), floor): ((u64, u64), f64)| {
        let (low, high) = (one.min(other), one.max(other));
        high as f64 <= floor || high / 2 <= low
    };
    one.into_iter().zip(other).zip(limits::LOAD_FLOORS).all(near)
}
