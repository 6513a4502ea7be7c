//! The policies that keyspaces may name: those that are shipped, and those that a user brings (A3).
//!
//! A user's policy gives each shard's order of preference; [`by_preference`] does the rest: rules,
//! spreads, room, the budget of moves, and a reason for each. A policy that is more than an order implements
//! [`Policy::place`] in full.
//!
//! ```
//! use partage_core::placement::{self, NodeIndex, Policies, Policy, Preference, Problem, ProblemError, ShardIndex, Solution};
//!
//! /// Shard `s7` begins at the seventh node and goes on round the table.
//! struct RoundTable;
//!
//! struct Members(Vec<NodeIndex>);
//!
//! impl Preference for Members {
//!     fn first(&self, shard: ShardIndex, count: usize) -> Vec<NodeIndex> {
//!         let from_there = self.0.iter().cycle().skip(shard as usize % self.0.len().max(1));
//!         from_there.take(count.min(self.0.len())).copied().collect()
//!     }
//!     fn nodes(&self) -> usize {
//!         self.0.len()
//!     }
//! }
//!
//! impl Policy for RoundTable {
//!     fn name(&self) -> &'static str {
//!         "round_table"
//!     }
//!     fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
//!         placement::by_preference(self.name(), problem, &Members(placement::members(problem)))
//!     }
//! }
//!
//! let policies = Policies::default().with(RoundTable);
//! assert!(policies.names().any(|name| name == "round_table"));
//! ```
//!
//! The coordinator checks the solutions of a user's policy ([`Solution::check`]), and moves nothing by a wrong one. The
//! policy runs inside the coordinator: one that hangs or panics stops the coordinator with it.

use super::balanced::{Balanced, Pieces, Placing};
use super::solution::SolutionError;
use super::{POLICIES, Policy, Problem, ProblemError, Solution, UnknownPolicy, by_name};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Policies by name. Cheap to clone.
#[derive(Clone, Default)]
pub struct Policies {
    brought: BTreeMap<&'static str, Arc<dyn Policy>>,
}

/// Why nothing was placed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// There is no such policy here.
    #[error(transparent)]
    Unknown(#[from] UnknownPolicy),
    /// The policy refuses the problem.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// A user's policy gives an invalid solution.
    #[error("policy {policy} answers nonsense, and nothing is moved by it: {why}")]
    Nonsense {
        /// The name of the user's policy.
        policy: &'static str,
        /// What is wrong with its answer.
        why: SolutionError,
    },
}

impl Policies {
    /// These and one more. It replaces a policy of the same name, also a shipped one.
    #[must_use]
    pub fn with(mut self, policy: impl Policy + 'static) -> Policies {
        self.brought.insert(policy.name(), Arc::new(policy));
        self
    }

    /// All names, users' last.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let brought = self.brought.keys().copied().filter(|name| !POLICIES.contains(name));
        POLICIES.into_iter().chain(brought)
    }

    /// Refuses an unknown name.
    ///
    /// # Errors
    /// [`UnknownPolicy`], with the nearest name and all that are known.
    pub fn check(&self, name: &str) -> Result<(), UnknownPolicy> {
        if self.names().any(|known| known == name) {
            Ok(())
        } else {
            Err(UnknownPolicy::new(name, self.names()))
        }
    }

    /// Places by the policy of that name.
    ///
    /// # Errors
    /// When there is no such policy, when it refuses the problem, or when a user's solution is invalid.
    pub fn place(&self, name: &str, problem: &Problem) -> Result<Solution, PlacementError> {
        let Some(policy) = self.brought.get(name) else {
            self.check(name)?;
            return Ok(by_name(name)?.place(problem)?);
        };
        let solution = policy.place(problem)?;
        let nonsense = |why| PlacementError::Nonsense { policy: policy.name(), why };
        solution.check(problem).map_err(nonsense)?;
        Ok(solution)
    }

    /// Begins to place the shards of `problem`: `balanced` does its first piece, any other policy all.
    ///
    /// # Errors
    /// As those of [`Policies::place`].
    pub fn begin(&self, name: &str, problem: &Problem) -> Result<Placing, PlacementError> {
        if name == Balanced.name() && !self.brought.contains_key(name) {
            return Ok(Placing::UnderWay(Box::new(Pieces::begin(problem)?)));
        }
        self.place(name, problem).map(|solution| Placing::Done(Box::new(solution)))
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::loaded;
    use super::super::{NodeIndex, Preference, ShardIndex, by_preference};
    use super::*;

    /// Answers with the given solution, whatever it is asked.
    struct FixedPolicy(Solution);

    impl Policy for FixedPolicy {
        fn name(&self) -> &'static str {
            "told"
        }
        fn place(&self, _: &Problem) -> Result<Solution, ProblemError> {
            Ok(self.0.clone())
        }
    }

    /// Every shard likes the nodes in the order in which they are, and names some that do not exist.
    struct InOrder;

    impl Preference for InOrder {
        fn first(&self, _: ShardIndex, count: usize) -> Vec<NodeIndex> {
            [99, 0, 0, 1, 2, 3].into_iter().take(count).collect()
        }
        fn nodes(&self) -> usize {
            6
        }
    }

    impl Policy for InOrder {
        fn name(&self) -> &'static str {
            "in_order"
        }
        fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
            by_preference(self.name(), problem, &InOrder)
        }
    }

    #[test]
    fn a3_an_order_is_enough_and_names_of_one_s_own_are_known() {
        let problem = loaded(4, 2, &[1.0; 10]);
        let policies = Policies::default().with(InOrder);
        let solution = policies.place("in_order", &problem).unwrap();
        assert!(solution.placement.iter().all(|nodes| nodes == [0, 1]), "{:?}", solution.placement);
        let mistaken = policies.place("in_ordr", &problem).unwrap_err().to_string();
        assert!(
            mistaken.contains("did you mean \"in_order\"") && mistaken.contains("rendezvous"),
            "{mistaken}"
        );
        assert!(Policies::default().check("in_order").is_err());
    }

    #[test]
    fn a3_nonsense_is_named_and_places_nothing() {
        let problem = loaded(4, 2, &[1.0; 3]);
        let good = by_name("balanced").unwrap().place(&problem).unwrap();
        let answers = |solution: Solution| {
            let policies = Policies::default().with(FixedPolicy(solution));
            policies.place("told", &problem).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(answers(good.clone()), Ok(()));
        let with = |nodes: [&[NodeIndex]; 3]| {
            let placement = nodes.into_iter().map(<[NodeIndex]>::to_vec).collect();
            answers(Solution { placement, ..good.clone() }).unwrap_err()
        };
        let (a, b) = (good.placement.of(0), good.placement.of(1));
        assert!(with([a, b, &[0, 9]]).contains("node number 9"));
        assert!(with([a, b, &[1, 1]]).contains("twice"));
        assert!(with([a, b, &[0, 1, 2]]).contains("3 replicas"));
        assert!(with([a, b, &[]]).contains("decisions"));
        let short = Solution { placement: [a.to_vec(), b.to_vec()].into_iter().collect(), ..good.clone() };
        assert!(answers(short).unwrap_err().contains("2 shards"));
        let mut twice = good.clone();
        twice.decisions.push(twice.decisions[0]);
        assert!(answers(twice).unwrap_err().contains("decisions"));
    }
}
