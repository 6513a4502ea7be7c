//! Placement: which nodes hold the replicas of each shard.
//!
//! A [`Problem`] lists nodes with their capacities, shards with their loads and rules, and the current placement. A
//! [`Solution`] is the new placement, with one reason for each replica that moves. A [`Policy`] makes the one from the
//! other. All policies have one signature, so a keyspace changes its policy by name, and users can bring
//! their own.
//!
//! Everything is an index into flat arrays: a million shards on ten thousand nodes are planned in a second
//! on one core, and most of that second is memory traffic. Only the sentences for people have names
//! ([`Decision::sentence`]).
//!
//! What every policy here promises, and `tests.rs` checks on random problems:
//!
//! - (pa) two replicas of a shard are never on one node, unless its rule says they may (M6);
//! - (pb) only a node that accepts gets anything new (M7);
//! - (pc) the same problem gives the same bytes (M9);
//! - (pd) planning a solution again changes nothing (M10);
//! - (pe) every replica that is wanted is placed, or reported as unplaced with the reason (A2);
//! - (pf) a leader that stays on its node stays the leader;
//! - (pg) the decisions are the difference between the current placement and the new one, no more, no less.
//!
//! Not done: splitting and merging shards (that is `reshard`), the order and pace of the moves (that is
//! the plan's), and placing leaders apart from followers: a replica's load counts the same in
//! either role.

mod balance;
pub mod balanced;
mod computed;
mod domains;
mod draft;
mod evict;
pub mod jump;
mod policies;
mod problem;
pub mod rendezvous;
pub mod ring;
pub mod ring_index;
pub mod sharder;
mod solution;
pub mod work_stealing;

#[cfg(test)]
mod tests;

pub use balance::{Balance, MetricBalance, Score};
pub use balanced::Balanced;
pub use computed::{Preference, by_preference, members};
pub use jump::Jump;
pub use policies::{PlacementError, Policies};
pub use problem::{
    Level, Metric, NodeIndex, NodeSet, NodeSpec, Placement, Problem, ProblemError, Rule, Settings,
    ShardIndex, Spread, Standing, UNKNOWN_DOMAIN,
};
pub use rendezvous::Rendezvous;
pub use ring::Ring;
pub use ring_index::RingIndex;
pub use solution::{Decision, Reason, Solution, SolutionError, Unplaceable, Unplaced};
pub use work_stealing::WorkStealing;

/// A way to place shards on nodes.
///
/// An implementation must be pure: no clock, no randomness but [`Problem::seed`]. It should begin with
/// [`Problem::check`], so that every policy refuses the same nonsense with the same words. [`Policies`] shows how to
/// bring one.
pub trait Policy: Send + Sync {
    /// The name a keyspace's configuration uses.
    fn name(&self) -> &'static str;

    /// Where each replica should be, and why it should move there.
    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError>;
}

/// The names of the shipped policies.
pub const POLICIES: [&str; 6] = ["work_stealing", "balanced", "ring_index", "ring", "rendezvous", "jump"];

/// A policy name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no placement policy {name:?}: {}", self.way_out())]
pub struct UnknownPolicy {
    /// The name that was given, cut to 40 characters.
    pub name: String,
    /// The known name that takes the fewest edits.
    pub nearest: &'static str,
    /// The known names: the shipped policies, then users' own.
    pub known: Vec<&'static str>,
}

impl UnknownPolicy {
    fn new(name: &str, known: impl Iterator<Item = &'static str>) -> UnknownPolicy {
        let known: Vec<_> = known.collect();
        let nearest = crate::base::suggest::nearest(name, known.iter().copied()).unwrap_or(POLICIES[0]);
        UnknownPolicy { name: name.chars().take(40).collect(), nearest, known }
    }

    /// What to do instead: the end of the sentence.
    pub fn way_out(&self) -> String {
        format!("did you mean {:?}? Known are {}", self.nearest, self.known.join(", "))
    }
}

/// The shipped policy of that name, with default settings.
pub fn by_name(name: &str) -> Result<Box<dyn Policy>, UnknownPolicy> {
    match name {
        "work_stealing" => Ok(Box::new(WorkStealing)),
        "balanced" => Ok(Box::new(Balanced)),
        "ring_index" => Ok(Box::new(RingIndex)),
        "ring" => Ok(Box::new(Ring)),
        "rendezvous" => Ok(Box::new(Rendezvous)),
        "jump" => Ok(Box::new(Jump)),
        _ => Err(UnknownPolicy::new(name, POLICIES.into_iter())),
    }
}
