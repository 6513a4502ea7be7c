//! `rendezvous`: each shard goes to the nodes with the highest hash of both (highest random weight).
//!
//! - (va) a node that leaves gives its shards to all others; no other shard moves;
//! - (vb) a node that joins takes 1/(n+1) of the replicas, as exactly as chance allows;
//! - (vc) capacities weight the hashes.
//!
//! The most even of the policies that compute, and the slowest: it hashes each shard with each node, so a million
//! shards on ten thousand nodes take minutes. It ignores load.

use super::Policy;
use super::computed::{self, ByScheme};
use super::problem::{Problem, ProblemError};
use super::solution::Solution;
use crate::keyspace::sharding::rendezvous::Rendezvous as Scheme;

/// The policy of this module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rendezvous;

impl Policy for Rendezvous {
    fn name(&self) -> &'static str {
        "rendezvous"
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        problem.check()?;
        let preference = ByScheme::build(problem, computed::members(problem), Scheme::build)?;
        Ok(computed::place(self.name(), problem, &preference))
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Standing;
    use super::super::tests::{after, loaded, place, shares};

    #[test]
    fn va_only_the_shards_of_a_node_that_leaves_move() {
        let mut problem = loaded(10, 3, &[1.0; 300]);
        problem = after(&problem, &place("rendezvous", &problem));
        problem.nodes[3].standing = Standing::Gone;
        let solution = place("rendezvous", &problem);
        assert!(solution.decisions.iter().all(|one| one.from == Some(3)));
        let mut to: Vec<_> = solution.decisions.iter().map(|one| one.to).collect();
        to.sort_unstable();
        to.dedup();
        assert_eq!(to.len(), 9, "all others take some");
    }

    #[test]
    fn vb_a_node_that_joins_takes_its_part() {
        let mut problem = loaded(10, 2, &[1.0; 2000]);
        problem.nodes[9].standing = Standing::Gone;
        problem = after(&problem, &place("rendezvous", &problem));
        problem.nodes[9].standing = Standing::Accepts;
        let solution = place("rendezvous", &problem);
        assert!((340..=460).contains(&solution.decisions.len()), "{}", solution.decisions.len());
        assert!(solution.decisions.iter().all(|one| one.to == Some(9)));
    }

    #[test]
    fn vc_capacities_weight() {
        let mut problem = loaded(4, 1, &[1.0; 4000]);
        problem.capacities = vec![3.0, 1.0, 1.0, 1.0];
        let share = shares(&problem, &place("rendezvous", &problem))[0];
        assert!((0.46..0.54).contains(&share), "{share}");
    }
}
