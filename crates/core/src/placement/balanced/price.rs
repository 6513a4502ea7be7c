//! What a step must win where nodes carry other keyspaces too.
//!
//! Each keyspace is planned alone. It sees the loads that the others put on nodes, but it has marks of its own: other nodes
//! stay for it, so its shares are others. A step that brings a node just below one keyspace's mark brings another node just
//! above another's, which answers with a step, and so on for ever. So a step has a price, in a measure that all keyspaces
//! count alike: how even it makes the two nodes.
//!
//! The *fall* of a step is by how much, in shares, the replica's old node is fuller than its new node, each taken halfway
//! between before and after. The load that a step shifts, times its fall, summed over the metrics, is half of what the squares of
//! all levels lose by it: what [`Solution::is_worthwhile`] asks of a whole plan. The price is a fall of
//! [`limits::LOAD_MOVE_PRICE`] times the tolerance for all the load that is shifted. It grows with the load, and not with the
//! number of replicas: a node of many small replicas that is far above the others gives as many as it takes.
//!
//! What was tried and is not done: to leave nodes out of the shares that accept nothing and hold next to nothing, so that the
//! others can come below their marks. Whether a node holds next to nothing depends on the plan, so the shares were others when a
//! plan had been carried out, and the next plan changed something (pd).
//!
//! [`Solution::is_worthwhile`]: crate::placement::Solution::is_worthwhile

use super::search::NOISE;
use crate::limits;
use crate::placement::draft::Draft;
use crate::placement::problem::NodeIndex;

/// What makes metrics comparable, by metric; empty where steps have no price.
#[derive(Debug, Clone)]
pub(super) struct Price {
    /// One over the tolerance, and one over the largest share, or 0 if there is no load.
    units: Vec<(f64, f64)>,
}

impl Price {
    pub(super) fn of(draft: &Draft<'_>) -> Price {
        let metrics = if draft.problem.is_shared() { draft.metrics() } else { 0 };
        let unit = |metric| {
            let (tolerance, share) = (draft.tolerance(metric), draft.share_of_any(metric));
            let tolerated = tolerance.max(limits::PLAIN_TOLERANCE);
            (1.0 / tolerated, if share > 0.0 { 1.0 / share } else { 0.0 })
        };
        Price { units: (0..metrics).map(unit).collect() }
    }

    /// Whether steps have a price.
    pub(super) fn is_any(&self) -> bool {
        !self.units.is_empty()
    }

    /// Whether it is worth its price to shift so much load, by metric, from one node to another.
    pub(super) fn is_won(
        &self,
        draft: &Draft<'_>,
        (from, to): (NodeIndex, NodeIndex),
        shifted: impl Fn(usize) -> f64,
    ) -> bool {
        let (mut won, mut price) = (0.0, 0.0);
        for (metric, (per_tolerance, per_share)) in self.units.iter().enumerate() {
            let shifted = shifted(metric);
            let halfway = |node: NodeIndex, change: f64| {
                let share = draft.share(node, metric);
                if share > 0.0 { (draft.load(node, metric) + change / 2.0) / share } else { 0.0 }
            };
            let fall = halfway(from, -shifted) - halfway(to, shifted);
            let weight = shifted * per_share * per_tolerance;
            won += weight * fall * per_tolerance;
            price += weight.abs() * limits::LOAD_MOVE_PRICE;
        }
        won > price + NOISE
    }
}
