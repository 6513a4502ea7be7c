//! The plans of sealed shuffles that a node keeps, so that it reads them for others and says how they are without their leader.

use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::plan::Plan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of memory of a winner, of a writer that is needed of a slot, and of a range, besides names and keys.
const OF_WINNER: usize = 96;
const OF_WRITER: usize = 96;
const OF_RANGE: usize = 72;

/// Plans, the ones that were used last. One is always kept, however large.
#[derive(Debug)]
pub(in crate::node) struct Plans {
    /// With their bytes, and when each was used last.
    kept: BTreeMap<ShuffleId, (Arc<Plan>, usize, u64)>,
    bytes: usize,
    uses: u64,
    most: usize,
    most_bytes: usize,
}

impl Plans {
    pub(super) fn new(most: usize, most_bytes: usize) -> Plans {
        Plans { kept: BTreeMap::new(), bytes: 0, uses: 0, most, most_bytes }
    }

    pub(super) fn get(&mut self, shuffle: ShuffleId) -> Option<&Arc<Plan>> {
        self.uses += 1;
        let (plan, _, used) = self.kept.get_mut(&shuffle)?;
        *used = self.uses;
        Some(plan)
    }

    /// Keeps a plan; others go for it, the one first that was not used for longest.
    pub(super) fn keep(&mut self, plan: &Arc<Plan>) {
        if self.get(plan.shuffle).is_some() {
            return;
        }
        let bytes = memory(plan);
        while !self.kept.is_empty() && (self.kept.len() >= self.most || self.bytes + bytes > self.most_bytes)
        {
            let oldest = self.kept.iter().min_by_key(|(_, (_, _, used))| *used).map(|(shuffle, _)| *shuffle);
            oldest.into_iter().for_each(|oldest| self.remove(oldest));
        }
        self.bytes += bytes;
        self.kept.insert(plan.shuffle, (Arc::clone(plan), bytes, self.uses));
    }

    pub(super) fn remove(&mut self, shuffle: ShuffleId) {
        if let Some((_, bytes, _)) = self.kept.remove(&shuffle) {
            self.bytes -= bytes;
        }
    }
}

/// What a plan takes in memory, about.
fn memory(plan: &Plan) -> usize {
    let writers: usize = plan.needed.values().map(BTreeMap::len).sum();
    let keys: usize = plan.ranges.iter().map(|range| range.begins.len()).sum();
    let (winners, ranges) = (plan.winners.len(), plan.ranges.len());
    OF_WINNER * winners + OF_WRITER * writers + OF_RANGE * ranges + keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::plan::PlanRange;
    use partage_service::shuffle::{PoolSlot, RangeId};

    fn plan(shuffle: u128, ranges: u64) -> Arc<Plan> {
        let (since, slot) = (0, PoolSlot(0));
        let range =
            |id| PlanRange { id: RangeId(id), since, begins: vec![0; 28].into(), slot, records: 0, bytes: 0 };
        let (winners, needed) = Default::default();
        Arc::new(Plan {
            shuffle: ShuffleId(shuffle),
            winners,
            needed,
            ranges: (0..ranges).map(range).collect(),
        })
    }

    fn kept(plans: &Plans) -> Vec<u128> {
        plans.kept.keys().map(|shuffle| shuffle.0).collect()
    }

    #[test]
    fn r1_plans_are_kept_by_their_weight_and_by_their_last_use() {
        // A range of these plans weighs 100 bytes.
        let mut plans = Plans::new(3, 1_000);
        for shuffle in [7, 8, 9] {
            plans.keep(&plan(shuffle, 3));
        }
        assert!(plans.get(ShuffleId(7)).is_some());
        plans.keep(&plan(1, 1));
        assert_eq!(kept(&plans), [1, 7, 9], "the one that comes is kept, whatever its number");
        plans.keep(&plan(2, 6));
        assert_eq!((kept(&plans), plans.bytes), (vec![1, 2, 7], 1_000));
        plans.keep(&plan(3, 50));
        assert_eq!((kept(&plans), plans.bytes), (vec![3], 5_000), "one is always kept");
        plans.keep(&plan(3, 50));
        plans.remove(ShuffleId(3));
        plans.remove(ShuffleId(3));
        assert_eq!((kept(&plans), plans.bytes), (vec![], 0));
    }
}
