//! Which of the live replicas the router asks.
//!
//! A write goes to the leader, the only replica that takes it. A read goes to a replica, in this order of weight, not
//! yet asked in this request, healthy by the coordinator, without a recent failure (if all had one, the oldest), in
//! the router's zone; then at random. At random and not in turn, because many routers that take turns in step hit
//! the same replica together.
//!
//! Not here: least outstanding requests. Between few replicas in a zone the hedge ([`super::retry`]) already
//! cuts off a slow one, and it needs no count that all threads would write to.

use super::routes::{Route, RouteReplica};
use crate::base::name::{NodeId, Zone};
use crate::base::time::Millis;
use crate::keyspace::hash::mix;
use crate::keyspace::map::Access;
use crate::node::Health;
use crate::node::NodeAddress;
use std::sync::Arc;

/// How long a failure counts against a node, in milliseconds: about as long as a coordinator needs to notice it and
/// to publish the node's health, which then counts for more.
pub const FAILED_MS: u64 = 5_000;

/// What a router chooses a replica by.
#[derive(Debug, Clone, Copy)]
pub struct Preference<'a, F> {
    /// The zone of the router, which it prefers; none = it prefers no zone.
    pub zone: Option<&'a Zone>,
    /// The time by the router's clock, against which failures count.
    pub now: Millis,
    /// Decides between replicas that are as good: another number in each request spreads them.
    pub seed: u64,
    /// When a node, by number, was last not reached or broke off.
    pub failed: F,
    /// Nodes not to choose again in this request, by number: those that failed, and the first target of a hedge.
    pub avoided: &'a [u32],
}

/// The replica to ask; none while there is none.
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

/// The weight of a replica: the router asks the one with the least. The module gives the order of its parts.
fn weight<F: Fn(u32) -> Option<Millis>>(
    replica: &RouteReplica<'_>,
    by: &Preference<'_, F>,
) -> (bool, bool, Option<Millis>, bool, u64) {
    let failed = (by.failed)(replica.number).filter(|at| by.now.since(*at) < FAILED_MS);
    (
        by.avoided.contains(&replica.number),
        !matches!(replica.node.health, Health::Up | Health::Unknown),
        failed,
        by.zone.is_some() && replica.node.zone.as_ref() != by.zone,
        mix(by.seed ^ mix(u64::from(replica.number))),
    )
}

/// The answer of a node that does not own the key (421).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint {
    /// The owner, as far as that node knows.
    pub node: Option<NodeId>,
    /// Where to reach the owner, as `host:port`.
    pub address: Option<String>,
    /// The sequence of that node's map.
    pub sequence: Option<u64>,
}

/// What the router does after a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// Where to ask next, once.
    pub to: Option<HintedNode>,
    /// Whether that node's map is later: then the router refreshes its own.
    pub refresh: bool,
}

/// The node of a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HintedNode {
    /// A node of the maps, at the address there.
    Known(Arc<NodeAddress>),
    /// One that only the hint names.
    Told {
        /// Where to reach the node, as `host:port`.
        address: String,
    },
}

/// Weighs `hint` against the route that the router took. `by` is the node that gave the hint; a hint that names
/// this node itself is of no use.
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
        // The hint has the latest address; the router's may be of an earlier incarnation.
        (Some(address), Some(at)) if at.address == *address => Some(HintedNode::Known(at)),
        (Some(address), _) => Some(HintedNode::Told { address: address.clone() }),
        (None, at) => at.map(HintedNode::Known),
    };
    Followed { to, refresh }
}

/// Whether a read could go to several nodes: only then it is hedged. None of them need be the leader, as followers answer
/// reads also while a shard has none.
pub fn has_choice(route: &Route<'_>) -> bool {
    route.replicas().nth(1).is_some()
}
