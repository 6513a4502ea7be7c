//! `ring`: consistent hashing; a shard goes to the nodes of the next tokens on a ring.
//!
//! - (ra) a node that leaves gives its shards to the next on the ring; no other shard moves;
//! - (rb) a node that joins takes about 1/(n+1) of the replicas, from all over the ring;
//! - (rc) the order of nodes in the problem does not matter, only their names;
//! - (rd) capacities weight the tokens, in eighths of the smallest.
//!
//! As even as [`Settings::ring_tokens`](super::Settings::ring_tokens) make it: at 100 the fullest node is
//! about a quarter above its share. It ignores load.

use super::Policy;
use super::computed::{self, ByScheme};
use super::problem::{Problem, ProblemError};
use super::solution::Solution;
use crate::keyspace::sharding::ring::Ring as Scheme;

/// The policy of this module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ring;

impl Policy for Ring {
    fn name(&self) -> &'static str {
        "ring"
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        problem.check()?;
        let members = computed::members(problem);
        let preference = ByScheme::build(problem, members, |nodes| {
            let alike = nodes.iter().all(|node| node.weight == 1);
            let steps = if alike { 1 } else { computed::WEIGHT_STEPS };
            Scheme::build(nodes, (problem.settings.ring_tokens / steps).max(1))
        })?;
        Ok(computed::place(self.name(), problem, &preference))
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Standing;
    use super::super::tests::{after, loaded, place, shares};
    use super::*;

    #[test]
    fn ra_only_the_shards_of_a_node_that_leaves_move() {
        let mut problem = loaded(10, 2, &[1.0; 500]);
        problem = after(&problem, &place("ring", &problem));
        problem.nodes[3].standing = Standing::Drains;
        let solution = place("ring", &problem);
        let held = problem.current.iter().filter(|nodes| nodes.contains(&3)).count();
        assert_eq!(solution.decisions.len(), held);
        assert!(solution.decisions.iter().all(|one| one.from == Some(3)));
    }

    #[test]
    fn rb_a_node_that_joins_takes_its_part() {
        let mut problem = loaded(10, 2, &[1.0; 2000]);
        problem.nodes[9].standing = Standing::Gone;
        problem = after(&problem, &place("ring", &problem));
        problem.nodes[9].standing = Standing::Accepts;
        let solution = place("ring", &problem);
        assert!((250..=550).contains(&solution.decisions.len()), "{}", solution.decisions.len());
        assert!(solution.decisions.iter().all(|one| one.to == Some(9)));
        let said = solution.decisions[0].sentence(&problem);
        assert!(said.ends_with("to n9: ring puts it there"), "{said}");
    }

    #[test]
    fn rc_only_names_matter() {
        let problem = loaded(10, 2, &[1.0; 200]);
        let mut turned = problem.clone();
        turned.nodes.reverse();
        let names = |problem: &Problem| -> Vec<Vec<String>> {
            let name = |node: &u32| problem.nodes[*node as usize].name.to_string();
            place("ring", problem).placement.iter().map(|nodes| nodes.iter().map(name).collect()).collect()
        };
        assert_eq!(names(&problem), names(&turned));
    }

    #[test]
    fn rd_capacities_weight() {
        let mut problem = loaded(4, 1, &[1.0; 4000]);
        problem.capacities = vec![3.0, 1.0, 1.0, 1.0];
        let share = shares(&problem, &place("ring", &problem))[0];
        assert!((0.4..0.6).contains(&share), "{share}");
    }
}
