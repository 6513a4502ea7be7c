//! How even a placement is, and how good: the numbers that compare placements.

use super::draft::Draft;
use super::problem::{Metric, NodeIndex, Problem, ShardIndex, Spread, Standing, UNKNOWN_DOMAIN};
use crate::limits;

/// How even the load is, in each metric.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Balance {
    /// In the order of [`Problem::metrics`]; one entry, of replicas, when there are none.
    pub metrics: Vec<MetricBalance>,
}

/// How even one metric is over the nodes that stay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricBalance {
    /// Load of the fullest node, as a multiple of its share. 1 is perfect; 1 when there is no load.
    pub max_over_share: f64,
    /// Which node that is.
    pub fullest: Option<NodeIndex>,
    /// Coefficient of variation of load over share: standard deviation by mean.
    pub variation: f64,
}

/// How good a placement is: compared field by field from the top, lower is better. The order of the
/// fields is the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Score {
    /// Replicas where a hard rule forbids them.
    pub violations: u64,
    /// Replicas without a node.
    pub unplaced: u64,
    /// Replicas on nodes that are to be emptied.
    pub draining: u64,
    /// Replicas that share a zone or rack with another of their shard, against a soft spread.
    pub crowded: u64,
    /// How far the fullest node is above its tolerance, in millionths of its share, over all metrics.
    pub excess_ppm: u64,
    /// Replicas that change node, come or go.
    pub moves: u64,
    /// What these moves cost.
    pub bytes: u64,
}

impl Balance {
    /// Measures a draft as it stands.
    pub(super) fn of(draft: &Draft<'_>) -> Balance {
        let metrics = (0..draft.metrics()).map(|metric| MetricBalance::of(draft, metric)).collect();
        Balance { metrics }
    }

    /// How uneven the nodes are in all metrics together: the squares of the variations, each in units of what is
    /// tolerated, summed.
    pub(super) fn unevenness(&self, problem: &Problem) -> f64 {
        let tolerated = |metric: &Metric| metric.tolerance.max(limits::PLAIN_TOLERANCE);
        let of_plain = std::iter::repeat(limits::PLAIN_TOLERANCE);
        let units = problem.metrics.iter().map(tolerated).chain(of_plain);
        self.metrics.iter().zip(units).map(|(metric, unit)| (metric.variation / unit).powi(2)).sum()
    }

    /// The worst of the metrics.
    pub fn max_over_share(&self) -> f64 {
        self.metrics.iter().fold(1.0, |worst, metric| metric.max_over_share.max(worst))
    }
}

impl MetricBalance {
    fn of(draft: &Draft<'_>, metric: usize) -> MetricBalance {
        let (mut fullest, mut max, mut sum, mut squares, mut nodes) = (None, 0.0, 0.0, 0.0, 0_u32);
        for node in 0..draft.problem.nodes.len() as NodeIndex {
            if matches!(draft.problem.nodes[node as usize].standing, Standing::Accepts | Standing::Keeps) {
                let level = draft.level(node, metric);
                (sum, squares, nodes) = (sum + level, squares + level * level, nodes + 1);
                if level > max {
                    (fullest, max) = (Some(node), level);
                }
            }
        }
        let mean = sum / f64::from(nodes.max(1));
        let variance = (squares / f64::from(nodes.max(1)) - mean * mean).max(0.0);
        let loaded = sum > 0.0;
        MetricBalance {
            max_over_share: if loaded { max } else { 1.0 },
            fullest,
            variation: if loaded { variance.sqrt() / mean } else { 0.0 },
        }
    }
}

impl Score {
    pub(super) fn of(draft: &Draft<'_>, after: &Balance, unplaced: u64, moves: u64, bytes: u64) -> Score {
        let mut score = Score { unplaced, moves, bytes, ..Score::default() };
        for (metric, balance) in draft.problem.metrics.iter().zip(&after.metrics) {
            let excess = (balance.max_over_share - 1.0 - metric.tolerance).max(0.0) * 1e6;
            score.excess_ppm = score.excess_ppm.max(excess as u64);
        }
        for shard in 0..draft.problem.shard_count() as ShardIndex {
            score.add_shard(draft, shard);
        }
        score
    }

    fn add_shard(&mut self, draft: &Draft<'_>, shard: ShardIndex) {
        let rule = draft.rule(shard);
        let nodes = draft.nodes_of(shard);
        for (at, node) in nodes.iter().enumerate() {
            let Some(spec) = draft.problem.nodes.get(*node as usize) else { continue };
            self.draining += u64::from(spec.standing == Standing::Drains);
            let allowed = rule.nodes.as_ref().is_none_or(|allowed| allowed.contains(*node));
            let twice = !rule.share_node && nodes[..at].contains(node);
            self.violations += u64::from(!allowed || twice);
            let before = || nodes[..at].iter().filter_map(|n| draft.problem.nodes.get(*n as usize));
            for (spread, domain, shared) in [
                (rule.zone, spec.zone, before().any(|n| n.zone == spec.zone)),
                (rule.rack, spec.rack, before().any(|n| n.rack == spec.rack)),
            ] {
                let together = shared && domain != UNKNOWN_DOMAIN;
                self.violations += u64::from(together && spread == Spread::Hard);
                self.crowded += u64::from(together && spread == Spread::Soft);
            }
        }
    }
}

/// The share of one unit of capacity, by metric: what it would carry if all nodes that stay were even.
pub(super) fn ideals(problem: &Problem, totals: &[f64], capacity: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let stays = |node: &usize| matches!(problem.nodes[*node].standing, Standing::Accepts | Standing::Keeps);
    let per_capacity = |(metric, total): (usize, &f64)| {
        let room: f64 = (0..problem.nodes.len()).filter(stays).map(|node| capacity(node, metric)).sum();
        if room > 0.0 { total / room } else { 0.0 }
    };
    totals.iter().enumerate().map(per_capacity).collect()
}
