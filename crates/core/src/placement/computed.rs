//! What the policies that compute have in common: each shard has its own order of preference among the
//! nodes, and goes to the first that may have it.
//!
//! A user's own policy may have any order ([`by_preference`]). Such a policy has no state and ignores load. Any process
//! with the list of nodes computes the same result. Nodes that accept or keep are in the list, so that a node
//! which takes nothing new for a while moves nothing; nodes that drain or are gone are not.

use super::domains::AcceptingDomains;
use super::draft::Draft;
use super::evict;
use super::problem::{Level, NodeIndex, Problem, ProblemError, ShardIndex, Spread, Standing};
use super::solution::{Reason, Solution};
use crate::keyspace::sharding::nodes::{NodeScheme, SchemeError, WeightedNode};

/// An order of preference for each shard.
pub trait Preference {
    /// The first `count` nodes for the shard, or all when there are fewer. A longer list begins with the shorter
    /// one.
    fn first(&self, shard: ShardIndex, count: usize) -> Vec<NodeIndex>;

    /// How many nodes there are to choose from.
    fn nodes(&self) -> usize;
}

/// The nodes for a policy by preference: those that accept or keep.
pub fn members(problem: &Problem) -> Vec<NodeIndex> {
    let stays = |node: &NodeIndex| {
        matches!(problem.nodes[*node as usize].standing, Standing::Accepts | Standing::Keeps)
    };
    (0..problem.nodes.len() as NodeIndex).filter(stays).collect()
}

/// A scheme from hashes to nodes, applied to the hashes of shards.
pub(super) struct ByScheme<'p, S> {
    pub(super) problem: &'p Problem,
    pub(super) members: Vec<NodeIndex>,
    /// None when there are no members.
    pub(super) scheme: Option<S>,
}

impl<'p, S: NodeScheme> ByScheme<'p, S> {
    /// Builds the scheme over the members, in that order, with weights from the first metric's capacities.
    pub(super) fn build(
        problem: &'p Problem,
        members: Vec<NodeIndex>,
        scheme: impl FnOnce(&[WeightedNode]) -> Result<S, SchemeError>,
    ) -> Result<Self, ProblemError> {
        let weighted = weighted(problem, &members);
        let scheme = if members.is_empty() { None } else { Some(scheme(&weighted)?) };
        Ok(ByScheme { problem, members, scheme })
    }
}

impl<S: NodeScheme> Preference for ByScheme<'_, S> {
    fn first(&self, shard: ShardIndex, count: usize) -> Vec<NodeIndex> {
        let hash = crate::keyspace::hash::mix(self.problem.hashes[shard as usize]);
        let found = self.scheme.as_ref().map(|scheme| scheme.first(hash, count)).unwrap_or_default();
        found.into_iter().map(|at| self.members[at]).collect()
    }

    fn nodes(&self) -> usize {
        self.members.len()
    }
}

/// Passes at least, if each changes something, where capacity is a hard limit: a shard that leaves makes room for one that
/// was placed before it, and without another pass the next plan would move that one (pd). A chain of such shards takes a
/// pass for each, so there are as many as shards, as long as they look at no more than this many shards in all.
const PASSES: usize = 8;
const LIMITED_LOOKS: usize = 4_000_000;

/// The least weight of the smallest capacity.
pub(super) const WEIGHT_STEPS: u32 = 8;

/// Whole weights in proportion to capacities. All are 1 when capacities are alike. Else the unit is an
/// eighth of the power of two at or below the smallest capacity, so that a node's weight seldom depends on
/// other nodes.
fn weighted(problem: &Problem, members: &[NodeIndex]) -> Vec<WeightedNode> {
    let metrics = problem.metrics.len();
    let capacity = |node: NodeIndex| match metrics {
        0 => 1.0,
        _ => problem.capacities[node as usize * metrics],
    };
    let least = members.iter().map(|node| capacity(*node)).fold(f64::INFINITY, f64::min);
    let alike = members.iter().all(|node| capacity(*node) == least);
    let unit = 2.0_f64.powi(least.log2().floor() as i32) / f64::from(WEIGHT_STEPS);
    let weight = |node: NodeIndex| match alike {
        true => 1,
        false => ((capacity(node) / unit).round() as u32).clamp(1, crate::limits::NODE_WEIGHT),
    };
    let one = |node: &NodeIndex| WeightedNode {
        name: problem.nodes[*node as usize].name.clone(),
        weight: weight(*node),
    };
    members.iter().map(one).collect()
}

/// Places every shard on the first nodes of its preference that may have it, for a policy of the user's own. It skips
/// nodes outside the problem.
///
/// # Errors
/// When the problem is nonsense, see [`Problem::check`].
pub fn by_preference(
    policy: &'static str,
    problem: &Problem,
    preference: &dyn Preference,
) -> Result<Solution, ProblemError> {
    problem.check()?;
    Ok(place(policy, problem, &OfThese { nodes: problem.nodes.len(), preference }))
}

/// A preference without nodes that are not in the problem.
struct OfThese<'p> {
    nodes: usize,
    preference: &'p dyn Preference,
}

impl Preference for OfThese<'_> {
    fn first(&self, shard: ShardIndex, count: usize) -> Vec<NodeIndex> {
        let mut first = self.preference.first(shard, count);
        first.retain(|node| (*node as usize) < self.nodes);
        first
    }

    fn nodes(&self) -> usize {
        self.preference.nodes()
    }
}

/// Places every shard by its preference.
pub(super) fn place(policy: &'static str, problem: &Problem, preference: &dyn Preference) -> Solution {
    let mut draft = Draft::new(problem);
    let limited = problem.metrics.iter().any(|metric| metric.limit.is_some());
    let shards = problem.shard_count().max(1);
    let passes = if limited { shards.min(LIMITED_LOOKS / shards).max(PASSES) } else { 1 };
    for _ in 0..passes {
        let logged = draft.begin_pass();
        let mut targets = Targets::new(&draft);
        for shard in 0..problem.shard_count() as ShardIndex {
            let chosen = targets.choose(&draft, shard, preference);
            carry_out(policy, &mut draft, shard, &chosen);
        }
        if draft.logged() == logged {
            break;
        }
    }
    draft.finish()
}

/// The loads so far, and the domains that can take replicas.
struct Targets {
    load: Vec<f64>,
    zones: AcceptingDomains,
    racks: AcceptingDomains,
}

impl Targets {
    fn new(draft: &Draft<'_>) -> Targets {
        let load = vec![0.0; draft.problem.nodes.len() * draft.metrics()];
        let [zones, racks] = [Level::Zone, Level::Rack].map(|level| AcceptingDomains::of(draft, level));
        Targets { load, zones, racks }
    }

    /// The nodes of a shard: down its preference with every soft spread kept, and then, if these are too
    /// few, without.
    fn choose(
        &mut self,
        draft: &Draft<'_>,
        shard: ShardIndex,
        preference: &dyn Preference,
    ) -> Vec<NodeIndex> {
        let want = draft.problem.replicas[shard as usize] as usize;
        let mut look = (want + 2).min(preference.nodes());
        loop {
            let order = preference.first(shard, look);
            let chosen = self.walk(draft, shard, &order, want);
            if let Some(chosen) = chosen.filter(|chosen| chosen.len() >= want || look >= preference.nodes()) {
                for metric in 0..draft.metrics() {
                    let at = |node: &NodeIndex| *node as usize * draft.metrics() + metric;
                    chosen.iter().for_each(|node| self.load[at(node)] += draft.size(shard, metric));
                }
                return chosen;
            }
            look = (look * 4).min(preference.nodes());
        }
    }

    /// None when it needs a longer order.
    fn walk(
        &self,
        draft: &Draft<'_>,
        shard: ShardIndex,
        order: &[NodeIndex],
        want: usize,
    ) -> Option<Vec<NodeIndex>> {
        let mut chosen: Vec<NodeIndex> = Vec::with_capacity(want);
        for crowding in 0..=2 {
            for node in order {
                let fits = chosen.len() < want && !chosen.contains(node) && self.fits(draft, shard, *node);
                if fits && self.crowding(draft, shard, *node, &chosen).is_some_and(|found| found <= crowding)
                {
                    chosen.push(*node);
                }
            }
            let all = order.len() == draft.problem.nodes.len();
            let is_short = chosen.len() < want && crowding == 0 && !all && order.len() < self.reach(draft);
            if is_short && self.spread_is_possible(draft, shard, &chosen) {
                return None;
            }
        }
        Some(chosen)
    }

    /// Whether looking for a node apart from those chosen makes sense.
    fn spread_is_possible(&self, draft: &Draft<'_>, shard: ShardIndex, chosen: &[NodeIndex]) -> bool {
        let (rule, chosen) = (draft.rule(shard), chosen.iter().copied());
        self.zones.allow(draft, rule.zone, chosen.clone()) && self.racks.allow(draft, rule.rack, chosen)
    }

    /// How far down an order it makes sense to look for a node apart from the others.
    fn reach(&self, draft: &Draft<'_>) -> usize {
        let stays = |node: &NodeIndex| matches!(draft.standing(*node), Standing::Accepts | Standing::Keeps);
        (0..draft.problem.nodes.len() as NodeIndex).filter(stays).count()
    }

    fn fits(&self, draft: &Draft<'_>, shard: ShardIndex, node: NodeIndex) -> bool {
        let holds = draft.nodes_of(shard).contains(&node);
        let room = |metric: usize| {
            let Some(limit) = draft.problem.metrics.get(metric).and_then(|metric| metric.limit) else {
                return true;
            };
            let at = node as usize * draft.metrics() + metric;
            holds
                || self.load[at].max(draft.load(node, metric)) + draft.size(shard, metric)
                    <= limit * draft.problem.capacities[at]
        };
        let opens = draft.standing(node) == Standing::Accepts || holds;
        opens && draft.allows(shard, node) && (0..draft.metrics()).all(room)
    }

    /// How many soft spreads the node breaks beside those chosen; none if it breaks a hard one.
    fn crowding(
        &self,
        draft: &Draft<'_>,
        shard: ShardIndex,
        node: NodeIndex,
        chosen: &[NodeIndex],
    ) -> Option<u32> {
        let rule = draft.rule(shard);
        [(rule.zone, Level::Zone), (rule.rack, Level::Rack)].into_iter().try_fold(
            0,
            |sum, (spread, level)| {
                let shares = chosen.iter().any(|other| draft.same_domain(node, *other, level));
                match spread {
                    Spread::Hard if shares => None,
                    Spread::Soft if shares => Some(sum + 1),
                    _ => Some(sum),
                }
            },
        )
    }
}

/// Moves the shard to the chosen nodes, as far as the budget goes: all of its moves or none.
fn carry_out(policy: &'static str, draft: &mut Draft<'_>, shard: ShardIndex, chosen: &[NodeIndex]) {
    let want = draft.problem.replicas[shard as usize];
    let mut coming: Vec<NodeIndex> =
        chosen.iter().copied().filter(|node| !draft.nodes_of(shard).contains(node)).rev().collect();
    let held = draft.slot_range(shard).filter(|slot| draft.at(*slot).is_some());
    let mut going: Vec<usize> =
        held.filter(|slot| draft.at(*slot).is_some_and(|node| !chosen.contains(&node))).collect();
    // What has no node, or a lost one, is placed first and costs no budget.
    let have = draft.have(shard);
    let moves = going.len().min(coming.len().saturating_sub((want as usize).saturating_sub(have)));
    if !draft.afford(moves as u32) {
        keep(draft, shard, chosen, &mut coming);
        return;
    }
    for slot in draft.to_fill(shard).collect::<Vec<_>>() {
        let Some(node) = coming.pop() else { break };
        let reason = match draft.origin(shard, slot) {
            Some(_) => Reason::Lost,
            None => Reason::Missing { have: draft.have(shard) as u8, want },
        };
        draft.place(shard, slot, node, reason);
    }
    going.reverse();
    while let Some(slot) = going.pop() {
        let Some(from) = draft.at(slot) else { continue };
        let reason = evict::unfit(draft, shard, from).unwrap_or(Reason::Computed { policy });
        match coming.pop() {
            Some(to) => {
                draft.vacate(shard, slot);
                draft.place(shard, slot, to, reason);
            }
            None if draft.have(shard) > want as usize => {
                let have = draft.have(shard) as u8;
                draft.remove(shard, slot, Reason::Surplus { have, want });
            }
            None => draft.give_up(shard, slot),
        }
    }
    for slot in draft.to_fill(shard).collect::<Vec<_>>() {
        draft.give_up(shard, slot);
    }
}

/// Without budget: places replicas without a node, removes surplus ones, and keeps the rest.
fn keep(draft: &mut Draft<'_>, shard: ShardIndex, chosen: &[NodeIndex], coming: &mut Vec<NodeIndex>) {
    let want = draft.problem.replicas[shard as usize];
    for slot in draft.to_fill(shard).collect::<Vec<_>>() {
        let reason = match draft.origin(shard, slot) {
            Some(_) => Reason::Lost,
            None => Reason::Missing { have: draft.have(shard) as u8, want },
        };
        match coming.iter().rposition(|node| draft.admits(shard, *node)) {
            Some(at) => draft.place(shard, slot, coming.remove(at), reason),
            None => draft.give_up(shard, slot),
        }
    }
    for slot in draft.slot_range(shard).rev() {
        let have = draft.have(shard);
        let dispensable = draft.at(slot).is_some_and(|node| !chosen.contains(&node));
        if have > want as usize && dispensable {
            draft.remove(shard, slot, Reason::Surplus { have: have as u8, want });
        }
    }
}
