//! Requesters, which change maps and lists of servers: each reads the head, asks a server for the map, makes a change, commits
//! it.

use crate::draw::Draw;
use partage_core::base::id::{Generation, Incarnation, TransactionId};
use partage_core::base::name::NodeId;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::keyspace::sharding::Bounds;
use partage_service::metadata::Seen;
use partage_service::metadata::change::Changing;

/// What a requester wants to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// To change the map.
    Change,
    /// To take a server out of the list.
    Leave,
    /// To put one into it.
    Join,
    /// To delete the keyspace.
    Delete,
    /// To know the map.
    Know,
}

/// How far it has come.
#[derive(Debug, Clone)]
pub enum Doing {
    /// It does nothing until its next wish.
    Idle,
    /// It waits for the head.
    Head(Wish),
    /// It waits for the map.
    Map(Wish, Seen),
    /// It waits for what the machine waits for. For a change of the list: the map that servers must have.
    Changing(Box<Changing>, Option<Generation>),
}

/// A requester. A new life begins with every wish: answers to former ones are not listened to.
#[derive(Debug)]
pub struct Requester {
    pub life: u64,
    pub doing: Doing,
}

impl Requester {
    pub fn new() -> Requester {
        Requester { life: 0, doing: Doing::Idle }
    }

    pub fn begin(&mut self, doing: Doing) {
        self.life += 1;
        self.doing = doing;
    }
}

/// 160 bits that are drawn only once.
pub fn transaction(draw: &mut Draw) -> TransactionId {
    let mut bytes = [0; 20];
    for part in bytes.chunks_mut(8) {
        part.copy_from_slice(&draw.bits().to_le_bytes()[..part.len()]);
    }
    TransactionId(bytes)
}

/// A small change that the map allows.
pub fn change(map: &ShardMap, draw: &mut Draw) -> MapDiff {
    let mut edit = map.edit();
    let shards: Vec<_> = map.shards().collect();
    match draw.pick(&shards) {
        None => drop(edit.create_shard(Bounds::Hashes(HashRange::ALL))),
        Some(shard) => {
            let node = NodeId::new(&format!("w{}", draw.between(0, 6))).expect("a name");
            // A refusal leaves the edit empty, and an empty change is a change too.
            let _ = match shard.replicas.first() {
                Some(first) if draw.chance(400) => edit.remove_replica(shard.id, first.placement),
                _ => edit.add_replica(shard.id, &node, Incarnation(1), None).map(drop),
            };
        }
    }
    edit.commit(transaction(draw))
}
