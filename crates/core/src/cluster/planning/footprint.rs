//! What each keyspace puts on each node: so that the planner of one sees what the others leave room for.
//!
//! Measured loads are counted, and led shards of replicated keyspaces, as if everything under way had arrived; numbers of
//! replicas are not. Each keyspace's part is counted anew whenever its planner runs, which is after every change of its own
//! and every `rebalance_ms`; in between it is as old as that.
//!
//! Sums are of whole thousandths: adding and taking away again leaves nothing behind, in any order (M9).

use super::super::KeyspaceState;
use super::super::keyspaces::Keyspaces;
use super::super::plans::Plans;
use super::problem;
use super::waiting::Waiting;
use crate::base::id::{PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::Ownership;
use crate::node::load::METRICS;
use std::collections::BTreeMap;

/// The place of led shards behind the loads.
const LEADS: usize = METRICS.len();

/// Loads in thousandths, in the order of [`METRICS`]; then how many shards of replicated keyspaces are led.
type Loads = [u64; LEADS + 1];

/// What one keyspace, or all, carry on each node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::cluster) struct Footprint(BTreeMap<NodeId, Loads>);

impl Footprint {
    fn add(&mut self, node: &NodeId, loads: [f64; METRICS.len()]) {
        let sums = self.0.entry(node.clone()).or_default();
        // A cast of a float ends at the bounds of the integer.
        let whole = loads.map(|load| (load * 1_000.0).round() as u64);
        sums.iter_mut().zip(whole).for_each(|(sum, load)| *sum = sum.saturating_add(load));
    }

    fn add_lead(&mut self, node: &NodeId) {
        self.0.entry(node.clone()).or_default()[LEADS] += 1;
    }

    fn change(&mut self, by: &Footprint, how: fn(u64, u64) -> u64) {
        for (node, loads) in &by.0 {
            let sums = self.0.entry(node.clone()).or_default();
            sums.iter_mut().zip(loads).for_each(|(sum, load)| *sum = how(*sum, *load));
            if *sums == Loads::default() {
                self.0.remove(node);
            }
        }
    }

    /// What is left on `node` without `part`.
    pub(super) fn without(&self, part: &Footprint, node: &NodeId) -> [f64; METRICS.len()] {
        let left = self.left(part, node);
        std::array::from_fn(|metric| left[metric] as f64 / 1_000.0)
    }

    /// How many shards `node` leads without those of `part`.
    pub(super) fn leads_without(&self, part: &Footprint, node: &NodeId) -> u64 {
        self.left(part, node)[LEADS]
    }

    fn left(&self, part: &Footprint, node: &NodeId) -> Loads {
        let of = |footprint: &Footprint| footprint.0.get(node).copied().unwrap_or_default();
        let (all, own) = (of(self), of(part));
        std::array::from_fn(|at| all[at].saturating_sub(own[at]))
    }
}

/// A footprint that is being counted.
#[derive(Debug, Clone)]
pub(super) struct Count {
    waiting: Waiting,
    /// The first shard that has not been counted; none when all have.
    next: Option<ShardId>,
    sum: Footprint,
}

impl Keyspaces {
    /// Counts what a keyspace carries, or will when all that is approved is done. One alone need not know.
    pub(in crate::cluster) fn count_footprint(&mut self, known: (&Plans, PlanId), name: &KeyspaceName) {
        if let Some(mut count) = self.begin_count(known, name) {
            let mut left = usize::MAX;
            while !self.go_on_counting(known.0, name, &mut count, &mut left) {}
        }
    }

    /// Begins to count it, in as many pieces as it takes. The next plan has the number `next`.
    pub(super) fn begin_count(&self, (plans, next): (&Plans, PlanId), name: &KeyspaceName) -> Option<Count> {
        let keyspace = self.by_name.get(name).filter(|_| self.by_name.len() > 1)?;
        let waiting = plans.waiting(keyspace, (PlanId::default(), next));
        Some(Count { waiting, next: Some(ShardId(0)), sum: Footprint::default() })
    }

    /// Goes on with it, for at most so many units of work as are `left`. Returns whether it is done.
    pub(super) fn go_on_counting(
        &mut self,
        plans: &Plans,
        name: &KeyspaceName,
        count: &mut Count,
        left: &mut usize,
    ) -> bool {
        let Some(keyspace) = self.by_name.get(name) else { return true };
        let is_replicated = keyspace.record.keyspace.ownership == Ownership::Replicated;
        for shard in count.next.take().into_iter().flat_map(|from| keyspace.map.shards_from(from)) {
            if *left == 0 {
                count.next = Some(shard.id);
                return false;
            }
            *left = left.saturating_sub(1 + shard.replicas.len());
            if !shard.is_serving() {
                continue;
            }
            let loads = problem::measured(keyspace, shard);
            let is_led = is_replicated && shard.leader().is_some();
            if loads.is_none() && !is_led {
                continue;
            }
            let waiting = plans.waiting_for(&count.waiting, shard.id);
            let expected = problem::expected(shard, &waiting);
            for (_, node) in &expected {
                loads.into_iter().for_each(|loads| count.sum.add(node, loads));
            }
            if let Some((_, leader)) = expected.first().filter(|_| is_led) {
                count.sum.add_lead(leader);
            }
        }
        let footprint = std::mem::take(&mut count.sum);
        self.carried.change(&footprint, u64::saturating_add);
        if let Some(keyspace) = self.by_name.get_mut(name) {
            let before = std::mem::replace(&mut keyspace.planning.footprint, footprint);
            self.carried.change(&before, u64::saturating_sub);
        }
        true
    }

    /// A keyspace is gone, and what it carried.
    pub(in crate::cluster) fn forget_footprint(&mut self, keyspace: &KeyspaceState) {
        self.carried.change(&keyspace.planning.footprint, u64::saturating_sub);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts() -> impl Strategy<Value = Vec<(u8, [f64; METRICS.len()])>> {
        proptest::collection::vec((0u8..6, proptest::array::uniform3(0.0..1e12f64)), 0..20)
    }

    fn footprint(parts: &[(u8, [f64; METRICS.len()])]) -> Footprint {
        let mut footprint = Footprint::default();
        for (node, loads) in parts {
            footprint.add(&NodeId::new(&format!("n{node}")).unwrap(), *loads);
        }
        footprint
    }

    proptest! {
        #[test]
        fn what_is_added_and_taken_away_again_leaves_nothing_in_any_order(a in parts(), b in parts()) {
            let (a, b) = (footprint(&a), footprint(&b));
            let mut all = Footprint::default();
            all.change(&a, u64::saturating_add);
            all.change(&b, u64::saturating_add);
            for node in b.0.keys() {
                let expected: [f64; METRICS.len()] =
                    std::array::from_fn(|metric| b.0[node][metric] as f64 / 1_000.0);
                prop_assert_eq!(all.without(&a, node), expected);
            }
            all.change(&a, u64::saturating_sub);
            all.change(&b, u64::saturating_sub);
            prop_assert_eq!(all, Footprint::default());
        }
    }
}
