//! Whom to ask, of those who could answer.
//!
//! A write goes to the leader, who is the only one that takes it. A read goes, in this order of weight:
//! to somebody not yet asked in this request, who looks well to the coordinator, has not failed us lately
//! (or, if all have, whose failure is longest ago), is in our zone, and then by lot. By lot and not in turn,
//! because many routers that take turns in step hit the same replica together.
//!
//! Not here: least outstanding requests. Between few replicas in a zone the hedge ([`super::retry`]) already
//! cuts off a slow one, and it needs no count that all threads would write to.

use super::routes::{Route, RouteReplica};
use crate::base::name::{NodeId, Zone};
use crate::base::time::Millis;
use crate::keyspace::hash::mix;
use crate::keyspace::map::Access;
use crate::keyspace::map::Role;
use crate::node::Health;
use crate::node::NodeAddress;
use std::sync::Arc;

/// How long a failure counts against a node, in milliseconds: about as long as a coordinator needs to find
/// out and say so in the map, which then counts for more.
pub const FAILED_MS: u64 = 5_000;

/// What a router prefers, and what it has seen.
#[derive(Debug, Clone, Copy)]
pub struct Preference<'a, F> {
    /// Where the router is.
    pub zone: Option<&'a Zone>,
    /// What time it is.
    pub now: Millis,
    /// For the lot.
    pub seed: u64,
    /// When a node, by its number, last could not be reached or broke off.
    pub failed: F,
    /// Who was asked already in this request, by number.
    pub asked: &'a [u32],
}

/// Whom to ask; none when nobody can be, for a moment.
pub fn choose<'r, F: Fn(u32) -> Option<Millis>>(
    route: &Route<'r>,
    access: Access,
    preference: &Preference<'_, F>,
) -> Option<RouteReplica<'r>> {
    match access {
        Access::Write => route.leader(),
        Access::Read => {
            let mut replicas = route.replicas();
            let first = replicas.next()?;
            match replicas.next() {
                None => Some(first),
                Some(second) => {
                    let all = [first, second].into_iter().chain(replicas);
                    all.min_by_key(|replica| weight(replica, preference))
                }
            }
        }
    }
}

/// Less is better.
fn weight<F: Fn(u32) -> Option<Millis>>(
    replica: &RouteReplica<'_>,
    by: &Preference<'_, F>,
) -> (bool, bool, Option<Millis>, bool, u64) {
    let failed = (by.failed)(replica.number).filter(|at| by.now.since(*at) < FAILED_MS);
    (
        by.asked.contains(&replica.number),
        !matches!(replica.node.health, Health::Up | Health::Unknown),
        failed,
        by.zone.is_some() && replica.node.zone.as_ref() != by.zone,
        mix(by.seed ^ mix(u64::from(replica.number))),
    )
}

/// What a node said that does not own what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint {
    /// Who owns it, as far as that node knows.
    pub node: Option<NodeId>,
    /// `host:port` of the owner.
    pub address: Option<String>,
    /// The sequence of the map that it goes by.
    pub sequence: Option<u64>,
}

/// What to make of a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// Whom to ask next, this once.
    pub to: Option<HintedNode>,
    /// Whether that node has a later map than we: then ours should be refreshed.
    pub refresh: bool,
}

/// The node of a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintedNode {
    /// One that we know, at the address that we know.
    Known(Arc<NodeAddress>),
    /// One that only the hint tells of.
    Told {
        /// Its `host:port`.
        address: String,
    },
}

/// Weighs `hint` against the route that was followed. A hint that leads back to the node that gave it, or to
/// a follower where a leader was asked for, is of no use.
pub fn follow(
    hint: &Hint,
    route: &Route<'_>,
    by: Option<&NodeId>,
    known: impl Fn(&NodeId) -> Option<Arc<NodeAddress>>,
) -> Followed {
    let refresh = hint.sequence.is_some_and(|sequence| sequence > route.generation().sequence);
    let circular = hint.node.is_some() && hint.node.as_ref() == by;
    let at = hint.node.as_ref().and_then(known);
    let to = match (&hint.address, at) {
        _ if circular => None,
        // The address in the hint is what that node was told last; ours may be of an earlier start.
        (Some(address), Some(at)) if at.address == *address => Some(HintedNode::Known(at)),
        (Some(address), _) => Some(HintedNode::Told { address: address.clone() }),
        (None, at) => at.map(HintedNode::Known),
    };
    Followed { to, refresh }
}

/// Whether a read of that route could go to more than one node, so that hedging makes sense.
pub fn has_choice(route: &Route<'_>) -> bool {
    route.replicas().nth(1).is_some() && route.replicas().any(|replica| replica.role == Role::Leader)
}
