//! `balanced`: as even as asked for, in several metrics at once, with as few moves as can be found.
//!
//! First it takes up replicas that cannot stay, then it places those without a node, the largest first, each on the
//! coldest node; only then it moves others to even out the load.
//!
//! The phases, in this order, each in its own file:
//!
//! 1. `evict`: surplus replicas go; those on draining nodes are taken up.
//! 2. `constrain`: so are those where a rule does not allow them, or crowded with another of their shard.
//! 3. `fill`: everything taken up, lost or missing is placed, the largest first, on the coldest node.
//! 4. `draw`: nodes that have just joined get their share.
//! 5. `balance`: nodes above their tolerance give up or swap replicas; then the plan is made smaller.
//!
//! What it promises, besides what every policy does:
//!
//! - (ba) hard rules before spread, spread before balance, balance before moves: the order of [`Score`]'s
//!   fields;
//! - (bb) a node above its tolerance in any metric is relieved while a move or a swap between two nodes
//!   helps;
//! - (bc) nothing moves when no node is above its tolerance, none is below [`Settings::draw_below`], and
//!   all is where it may be;
//! - (bd) after a loss, the lost replicas move and, while the rest stays within tolerance, no other;
//! - (be) a node that joins gets its share, about 1/(n+1) of the load, and nothing moves elsewhere;
//! - (bf) capacities weight the shares; limits are never exceeded by anything new;
//! - (bg) replicas that are crowded though there is room apart are spread;
//! - (bh) what a person must know of a move is in its reason;
//! - (bi) nothing moves either when replicas that are much alike are spread as evenly as whole replicas
//!   can be: 15 or 14 on each node when there are 128 for nine;
//! - (bj) load that is not the keyspace's own counts on the node where it is, and stays there;
//! - (bk) where it does, a step for load has a price, and each that wins it is made: so keyspaces on the same nodes come to
//!   rest (`price`).
//!
//! Not done: steps of three and more nodes at once, and proofs of optimality. On small instances a solver
//! of integer programs finds plans that are a little smaller, in minutes instead of milliseconds.
//!
//! [`Score`]: super::Score
//! [`Settings::draw_below`]: super::Settings::draw_below

mod balance;
mod constrain;
mod draw;
mod evict;
mod fill;
mod pieces;
mod price;
mod search;
mod steps;
mod thin;

use super::Policy;
use super::problem::{NodeIndex, Problem, ProblemError, ShardIndex};
use super::solution::{Reason, Solution};
pub use pieces::{Pieces, Placing};

/// The policy of this module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Balanced;

impl Policy for Balanced {
    fn name(&self) -> &'static str {
        "balanced"
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        let mut placing = Placing::UnderWay(Box::new(Pieces::begin(problem)?));
        loop {
            match placing {
                Placing::UnderWay(pieces) => placing = pieces.go_on(problem, usize::MAX).0,
                Placing::Done(solution) => return Ok(*solution),
            }
        }
    }
}

/// A replica without a node, for `fill`.
#[derive(Debug, Clone, Copy)]
struct PendingReplica {
    shard: ShardIndex,
    slot: usize,
    /// Where it goes back to if there is no better place.
    was: Option<NodeIndex>,
    reason: Reason,
}

#[cfg(test)]
mod tests;
