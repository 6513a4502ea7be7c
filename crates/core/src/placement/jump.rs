//! `jump`: jump consistent hashing of shards over nodes in a row (Lamping and Veach, 2014).
//!
//! - (ja) a node that joins at the end of the row takes 1/(n+1) of the first replicas, and others move only
//!   to it or to make way for it;
//! - (jb) the row is in the order of ring indexes, not of the problem;
//! - (jc) capacities weight.
//!
//! For rows that only grow and shrink at the end: a node that leaves from the middle shifts all after it.
//! Needs no tables. It ignores load.

use super::Policy;
use super::computed::{self, ByScheme};
use super::problem::{Problem, ProblemError};
use super::solution::Solution;
use crate::keyspace::sharding::jump::Jump as Scheme;

/// The policy of this module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Jump;

impl Policy for Jump {
    fn name(&self) -> &'static str {
        "jump"
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        problem.check()?;
        let mut members = computed::members(problem);
        members.sort_by_key(|node| (problem.nodes[*node as usize].ring_index, *node));
        let preference = ByScheme::build(problem, members, Scheme::build)?;
        Ok(computed::place(self.name(), problem, &preference))
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Standing;
    use super::super::tests::{after, loaded, place, shares};

    #[test]
    fn ja_growth_at_the_end_moves_only_to_the_end() {
        let mut problem = loaded(10, 1, &[1.0; 2000]);
        problem.nodes[9].standing = Standing::Gone;
        problem = after(&problem, &place("jump", &problem));
        problem.nodes[9].standing = Standing::Accepts;
        let solution = place("jump", &problem);
        assert!((150..=250).contains(&solution.decisions.len()), "{}", solution.decisions.len());
        assert!(solution.decisions.iter().all(|one| one.to == Some(9)));
    }

    #[test]
    fn jb_the_row_is_by_ring_index() {
        let problem = loaded(10, 2, &[1.0; 200]);
        let mut turned = problem.clone();
        turned.nodes.reverse();
        let there = place("jump", &problem).placement;
        let here = place("jump", &turned).placement;
        assert!(there.iter().zip(here.iter()).all(|(a, b)| a.iter().zip(b).all(|(a, b)| *a == 9 - *b)));
    }

    #[test]
    fn jc_capacities_weight() {
        let mut problem = loaded(4, 1, &[1.0; 4000]);
        problem.capacities = vec![3.0, 1.0, 1.0, 1.0];
        let share = shares(&problem, &place("jump", &problem))[0];
        assert!((0.46..0.54).contains(&share), "{share}");
    }
}
