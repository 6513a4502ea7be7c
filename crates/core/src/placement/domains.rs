//! Domains in which a shard can have further replicas: what a soft spread can still gain.

use super::draft::Draft;
use super::problem::{Level, NodeIndex, Spread, Standing, UNKNOWN_DOMAIN};

/// The domains of one level in which a node accepts. A node without a known domain counts as a domain.
#[derive(Debug, Clone)]
pub(super) struct AcceptingDomains {
    level: Level,
    /// Those that are known, in order.
    known: Vec<u32>,
    /// Nodes without a known domain, in order.
    apart: Vec<NodeIndex>,
}

impl AcceptingDomains {
    pub(super) fn of(draft: &Draft<'_>, level: Level) -> AcceptingDomains {
        AcceptingDomains::among(draft, level, |_| true)
    }

    /// Only of the nodes that are `meant`.
    pub(super) fn among(
        draft: &Draft<'_>,
        level: Level,
        meant: impl Fn(NodeIndex) -> bool,
    ) -> AcceptingDomains {
        let nodes = 0..draft.problem.nodes.len() as NodeIndex;
        let accepting = nodes.filter(|node| draft.standing(*node) == Standing::Accepts && meant(*node));
        let is_apart = |node: &NodeIndex| draft.domain(*node, level) == UNKNOWN_DOMAIN;
        let (apart, in_domains): (Vec<_>, Vec<_>) = accepting.partition(is_apart);
        let mut known: Vec<u32> = in_domains.into_iter().map(|node| draft.domain(node, level)).collect();
        known.sort_unstable();
        known.dedup();
        AcceptingDomains { level, known, apart }
    }

    /// Whether one of them has none of `holders`. Domains of holders in which no node accepts do not count.
    pub(super) fn has_free(&self, draft: &Draft<'_>, holders: impl Iterator<Item = NodeIndex>) -> bool {
        let mut used: Vec<(bool, u32)> = holders
            .filter_map(|node| match draft.domain(node, self.level) {
                UNKNOWN_DOMAIN => self.apart.binary_search(&node).ok().map(|_| (false, node)),
                domain => self.known.binary_search(&domain).ok().map(|_| (true, domain)),
            })
            .collect();
        used.sort_unstable();
        used.dedup();
        used.len() < self.known.len() + self.apart.len()
    }

    /// Whether it makes sense to look for a node apart from `holders`, where the rule has that spread of this level.
    pub(super) fn allow(
        &self,
        draft: &Draft<'_>,
        spread: Spread,
        holders: impl Iterator<Item = NodeIndex>,
    ) -> bool {
        spread != Spread::Soft || self.has_free(draft, holders)
    }
}
