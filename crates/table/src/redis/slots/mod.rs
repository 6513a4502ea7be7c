//! The slots of Redis Cluster, by the routes of a table: which listener answers for which slots, and where a client is sent.
//!
//! | the leader of a shard, by the map | who answers for its slots |
//! |---|---|
//! | is this node | this listener |
//! | is another node, which is up and has announced where Redis clients reach it | that one: clients are sent there |
//! | is another node, which has announced no such listener, or which the coordinator does not hear | this listener, which asks on and waits for a new leader |
//! | is not known | no listener; a request waits here for a leader |
//!
//! So a client that is redirected is sent to a node that answers, as far as the coordinator knows.

use crate::scans::Place;
use partage_core::base::name::NodeId;
use partage_core::keyspace::hash::{HashFunction, crc16};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{PartitionKey, Position, Sharding};
use partage_core::node::exchange::KeyspaceBrief;
use partage_core::node::{Health, NodeAddress};
use partage_core::routing::routes::{Route, Routes};
use partage_resp::table::{RequestError, SlotNode, SlotOwner};
use std::collections::BTreeMap;

/// Whether the shards of a table are made of slots, so that clients can compute which node has a key.
pub(super) fn has_slots(brief: &KeyspaceBrief) -> bool {
    let hash = match brief.sharding {
        Sharding::HashRange { hash } | Sharding::Fixed { hash, .. } => hash,
        Sharding::KeyRange | Sharding::Named => return false,
    };
    hash == HashFunction::Crc16 && brief.partition_key == PartitionKey::HashTag
}

/// Where the keys of a slot lie: all at one place.
fn position(sharding: Sharding, slot: u16) -> Position<'static> {
    match sharding {
        Sharding::HashRange { .. } => Position::Point(point(slot)),
        Sharding::Fixed { .. } | Sharding::KeyRange | Sharding::Named => Position::Value(slot.into()),
    }
}

fn point(slot: u16) -> u64 {
    u64::from(slot) << (u64::BITS - HashFunction::Crc16.bits())
}

/// Which listener answers for a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answers {
    Own,
    Other(SlotNode),
    NotKnown,
}

fn answers(route: &Route<'_>, own: &NodeId) -> Answers {
    let Some(leader) = route.leader() else { return Answers::NotKnown };
    if leader.node.id == *own {
        return Answers::Own;
    }
    match leader.node.health {
        Health::Up | Health::Unknown => listener(leader.node).map_or(Answers::Own, Answers::Other),
        Health::Suspect | Health::Unreachable | Health::Down | Health::Left => Answers::Own,
    }
}

/// The listener that a node has announced.
pub(super) fn listener(node: &NodeAddress) -> Option<SlotNode> {
    slot_node(&node.id, node.resp_address.as_deref()?)
}

/// A listener by its address, `host:port`. Clients get an IPv6 host without brackets: they take the last colon for the one
/// before the port.
pub(super) fn slot_node(node: &NodeId, address: &str) -> Option<SlotNode> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some(SlotNode { name: node.to_string(), host: host.to_owned(), port: port.parse().ok()? })
}

/// Where a client is sent for a key; none: this listener answers, or asks on.
pub(super) fn moved(routes: &Routes, table: &str, key: &Key, own: &NodeId) -> Option<RequestError> {
    let route = routes.route(table, key.as_bytes()).ok()?;
    let Answers::Other(SlotNode { host, port, .. }) = answers(&route, own) else { return None };
    let slot = crc16::slot(crc16::hash_tag(key.as_bytes()));
    Some(RequestError::Moved { slot, address: format!("{host}:{port}") })
}

/// The listeners that answer for slots, neighbours of the same listeners together. `own` is the listener of this node.
pub(super) fn owners(
    routes: &Routes,
    brief: &KeyspaceBrief,
    node: &NodeId,
    own: &SlotNode,
) -> Vec<SlotOwner> {
    let mut of_shards = BTreeMap::new();
    let mut owners: Vec<SlotOwner> = Vec::new();
    for slot in 0..crc16::SLOTS {
        let route = routes.route_at(brief.name.as_str(), position(brief.sharding, slot)).ok();
        let (leader, followers) = match &route {
            Some(route) => {
                of_shards.entry(route.shard()).or_insert_with(|| listeners(route, node, own)).clone()
            }
            None => (None, Vec::new()),
        };
        match owners.last_mut() {
            Some(last) if last.leader == leader && last.followers == followers => last.last = slot,
            _ => owners.push(SlotOwner { first: slot, last: slot, leader, followers }),
        }
    }
    owners
}

/// The listeners of a shard: that of its leader, or the one that stands in for it, and those of its followers.
fn listeners(route: &Route<'_>, node: &NodeId, own: &SlotNode) -> (Option<SlotNode>, Vec<SlotNode>) {
    let leader = match answers(route, node) {
        Answers::Own => Some(own.clone()),
        Answers::Other(other) => Some(other),
        Answers::NotKnown => None,
    };
    let listener = |at: &NodeAddress| if at.id == *node { Some(own.clone()) } else { listener(at) };
    let all = route.replicas().filter_map(|replica| listener(replica.node));
    let followers = all.filter(|follower| leader.as_ref() != Some(follower)).collect();
    (leader, followers)
}

/// The first place from there on whose rows a scan of this listener has: of all shards but those that another listener answers
/// for, which clients of a cluster scan too. None: there is none.
pub(super) fn next_own(routes: &Routes, table: &str, node: &NodeId, from: Place) -> Option<Place> {
    let Some(keyspace) = routes.keyspace(table) else { return Some(from) };
    let is_own = |position| {
        let route = routes.route_at(table, position);
        !route.is_ok_and(|route| matches!(answers(&route, node), Answers::Other(_)))
    };
    match (from, keyspace.brief().sharding) {
        (Place::Point(from), _) if !is_own(Position::Point(from)) => {
            let first = (from >> (u64::BITS - HashFunction::Crc16.bits())) + 1;
            let slots = u16::try_from(first).unwrap_or(crc16::SLOTS)..crc16::SLOTS;
            let slot = slots.into_iter().find(|slot| is_own(Position::Point(point(*slot))))?;
            Some(Place::Point(point(slot)))
        }
        (Place::Slot(from), Sharding::Fixed { shards, .. }) => {
            (from..shards).find(|slot| is_own(Position::Value((*slot).into()))).map(Place::Slot)
        }
        (from, _) => Some(from),
    }
}

#[cfg(test)]
mod tests;
