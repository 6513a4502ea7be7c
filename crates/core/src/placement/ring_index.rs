//! `ring_index`: replicas go to the nodes in turn (S11).
//!
//! All replicas of all shards are numbered in order, and the nodes have n places by their ring index.
//! Replica number i goes to place i mod n. Only the two lists are needed, so nodes that cannot talk
//! to each other agree.
//!
//! - (ia) exactly that rule: 5 shards with 3 replicas on 5 nodes are {0,1,3} {0,2,3} {0,2,4} {1,2,4} {1,3,4};
//! - (ib) nodes with one ring index are replacements for each other: one of them stands at the place, and a
//!   shard's replicas are at different places as long as there are enough;
//! - (ic) all nodes have the same number of copies, give or take one;
//! - (id) a node that may not have the shard is skipped for that of the next place.
//!
//! Its weakness is known: one node more or less shifts nearly everything, and when n is a multiple of the
//! replicas, nodes come in groups that hold the same shards. It is for clusters whose nodes are fixed and
//! whose data is cheap to fetch again. It ignores load, capacity and weights.

use super::Policy;
use super::computed::{self, Preference};
use super::problem::{NodeIndex, Problem, ProblemError, ShardIndex};
use super::solution::Solution;
use std::collections::BTreeMap;

/// The policy of this module.
#[derive(Debug, Clone, Copy, Default)]
pub struct RingIndex;

impl Policy for RingIndex {
    fn name(&self) -> &'static str {
        "ring_index"
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        problem.check()?;
        Ok(computed::place(self.name(), problem, &RingLayout::new(problem)))
    }
}

/// The shards of one place when `shards` shards are dealt to `places` places, `replicas` copies of each: what
/// a node without a coordinator computes for itself. In order, each once.
pub fn dealt_to(place: u64, places: u64, shards: u64, replicas: u64) -> Vec<u64> {
    let mut dealt: Vec<u64> = match places {
        0 => Vec::new(),
        _ => (place..shards * replicas).step_by(places as usize).map(|copy| copy / replicas).collect(),
    };
    dealt.dedup();
    dealt
}

/// The places in the order of their index, with the nodes of each.
struct RingLayout {
    places: Vec<Vec<NodeIndex>>,
    /// The copies before each shard.
    before: Vec<u64>,
    nodes: usize,
}

impl RingLayout {
    fn new(problem: &Problem) -> RingLayout {
        let members = computed::members(problem);
        let mut places: BTreeMap<u32, Vec<NodeIndex>> = BTreeMap::new();
        for node in &members {
            places.entry(problem.nodes[*node as usize].ring_index).or_default().push(*node);
        }
        let copies = |sum: &mut u64, replicas: &u8| {
            *sum += u64::from(*replicas);
            Some(*sum - u64::from(*replicas))
        };
        let before = problem.replicas.iter().scan(0, copies).collect();
        RingLayout { places: places.into_values().collect(), before, nodes: members.len() }
    }
}

impl Preference for RingLayout {
    /// The first node of each place, from the shard's own place on; then the second of each, and so on.
    fn first(&self, shard: ShardIndex, count: usize) -> Vec<NodeIndex> {
        let many = self.places.len();
        let mut found = Vec::with_capacity(count);
        for deep in 0.. {
            if found.len() >= count.min(self.nodes) {
                break;
            }
            let start = self.before[shard as usize] as usize % many.max(1);
            let places = (0..many).map(|step| &self.places[(start + step) % many]);
            let left = count - found.len();
            found.extend(places.filter_map(|place| place.get(deep)).take(left));
        }
        found
    }

    fn nodes(&self) -> usize {
        self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Rule, Spread, Standing};
    use super::super::tests::{loaded, nodes, place};
    use super::*;

    fn held(problem: &Problem, node: u32) -> Vec<usize> {
        let solution = place("ring_index", problem);
        let holds = |(shard, nodes): (usize, &[u32])| nodes.contains(&node).then_some(shard);
        solution.placement.iter().enumerate().filter_map(holds).collect()
    }

    #[test]
    fn ia_five_shards_three_replicas_five_nodes() {
        let golden: [&[usize]; 5] = [&[0, 1, 3], &[0, 2, 3], &[0, 2, 4], &[1, 2, 4], &[1, 3, 4]];
        let problem = Problem::new(nodes(5), vec![3; 5]);
        for (node, expected) in golden.iter().enumerate() {
            assert_eq!(held(&problem, node as u32), *expected, "node {node}");
            let alone: Vec<u64> = expected.iter().map(|shard| *shard as u64).collect();
            assert_eq!(dealt_to(node as u64, 5, 5, 3), alone, "node {node} by itself");
        }
    }

    #[test]
    fn ia_the_ring_index_and_not_the_order_in_the_problem_counts() {
        let mut problem = Problem::new(nodes(5), vec![3; 5]);
        problem.nodes.reverse();
        assert_eq!(held(&problem, 4), [0, 1, 3]);
        assert_eq!(held(&problem, 0), [1, 3, 4]);
    }

    #[test]
    fn ib_nodes_with_one_index_replace_each_other() {
        let mut problem = Problem::new(nodes(6), vec![3; 5]);
        problem.nodes[5].ring_index = 0;
        assert_eq!((held(&problem, 0), held(&problem, 5)), (vec![0, 1, 3], vec![]));
        problem.nodes[0].standing = Standing::Gone;
        assert_eq!(held(&problem, 5), [0, 1, 3]);
        assert_eq!(held(&problem, 3), [1, 2, 4]);
    }

    #[test]
    fn ic_copies_are_even() {
        let problem = Problem::new(nodes(7), vec![2; 100]);
        let counts: Vec<usize> = (0..7).map(|node| held(&problem, node).len()).collect();
        assert!(counts.iter().all(|count| [28, 29].contains(count)), "{counts:?}");
        assert!(dealt_to(0, 0, 5, 3).is_empty());
        assert_eq!(dealt_to(0, 1, 3, 2), [0, 1, 2]);
    }

    #[test]
    fn id_who_may_not_have_it_is_passed_over() {
        let mut problem = loaded(4, 2, &[1.0; 4]);
        for (at, node) in problem.nodes.iter_mut().enumerate() {
            node.zone = at as u32 / 2;
        }
        problem.rules = vec![Rule { zone: Spread::Hard, ..Rule::default() }];
        let solution = place("ring_index", &problem);
        assert!(solution.placement.iter().all(|nodes| nodes[0] / 2 != nodes[1] / 2));
        problem.nodes[0].standing = Standing::Keeps;
        assert_eq!(held(&problem, 0), Vec::<usize>::new());
    }
}
