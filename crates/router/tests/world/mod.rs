//! A small world for a router: a coordinator that pushes maps, and nodes that answer, refuse, hang or die.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod coordinator;
pub mod node;

use partage_core::base::id::{Generation, Incarnation, PlacementId, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::Ownership;
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Edit, MapDiff, ShardMap};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::node::Health;
use partage_core::node::NodeAddress;
use partage_core::node::exchange::KeyspaceBrief;
use partage_router::{CallOptions, Options, Router};
use std::time::Duration;

pub const LONG: Duration = Duration::from_secs(10);

pub fn node_id(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub fn address(name: &str, address: &str) -> NodeAddress {
    NodeAddress {
        id: node_id(name),
        incarnation: Incarnation(1),
        address: address.to_owned(),
        zone: None,
        health: Health::Up,
        resp_address: None,
        labels: Default::default(),
        drains: false,
    }
}

/// The map of a keyspace by key range, which remembers how it became what it is.
#[derive(Debug, Clone)]
pub struct Maps {
    pub map: ShardMap,
    pub diffs: Vec<MapDiff>,
    pub nodes: Vec<NodeAddress>,
    pub kind: KeyspaceKind,
}

impl Maps {
    /// One shard for each `(begin, nodes)`, its first node the leader.
    pub fn new(keyspace: &str, shards: &[(&str, &[&str])]) -> Maps {
        let name = KeyspaceName::new(keyspace).unwrap();
        let map = ShardMap::empty(name, Sharding::KeyRange, PartitionKey::Whole);
        let mut maps = Maps { map, diffs: vec![], nodes: vec![], kind: KeyspaceKind::App };
        maps.edit(|edit| {
            for (at, (begin, nodes)) in shards.iter().enumerate() {
                let end = shards.get(at + 1).map_or("", |next| next.0);
                let key = |text: &str| Key::new(text.as_bytes()).unwrap();
                let range = KeyRange::new(key(begin), key(end)).unwrap();
                let shard = edit.create_shard(Bounds::Keys(range)).unwrap();
                let placed: Vec<_> = nodes.iter().map(|node| place(edit, shard, node)).collect();
                if let Some(first) = placed.first() {
                    edit.lead(shard, *first).unwrap();
                }
            }
        });
        maps
    }

    pub fn edit(&mut self, change: impl FnOnce(&mut Edit<'_>)) {
        let mut edit = self.map.edit();
        change(&mut edit);
        let diff = edit.commit(TransactionId([self.diffs.len() as u8 + 1; 20]));
        self.map.apply(&diff).unwrap();
        self.diffs.push(diff);
    }

    /// Gives a shard to another node: its leader goes at once.
    pub fn hand_over(&mut self, shard: u64, to: &str) {
        let replicas = self.map.shard(ShardId(shard)).unwrap().replicas.clone();
        let (live, gone): (Vec<_>, Vec<_>) = replicas.iter().partition(|r| r.state == ReplicaState::Live);
        let before: Vec<PlacementId> = live.iter().map(|replica| replica.placement).collect();
        let gone: Vec<PlacementId> = gone.iter().map(|replica| replica.placement).collect();
        self.edit(|edit| {
            for old in gone {
                edit.step(ShardId(shard), old, ReplicaState::UnloadFinal).unwrap();
                edit.remove_replica(ShardId(shard), old).unwrap();
            }
            let placement = place(edit, ShardId(shard), to);
            for old in before {
                edit.step(ShardId(shard), old, ReplicaState::Unload).unwrap();
            }
            edit.lead(ShardId(shard), placement).unwrap();
        });
    }

    pub fn brief(&self, generation: Generation) -> KeyspaceBrief {
        KeyspaceBrief {
            name: self.map.keyspace().clone(),
            sharding: self.map.sharding(),
            partition_key: self.map.partition_key(),
            ownership: Ownership::Exclusive,
            generation,
            first_shard: ShardId(1),
            durable: false,
            min_in_sync: 0,
            kind: self.kind,
            values: partage_core::keyspace::RowValues::Bytes,
            feed_ms: 0,
        }
    }
}

fn place(edit: &mut Edit<'_>, shard: ShardId, node: &str) -> PlacementId {
    let placement = edit.add_replica(shard, &node_id(node), Incarnation(1), None).unwrap();
    edit.step(shard, placement, ReplicaState::Live).unwrap();
    placement
}

/// A router of that coordinator, with maps.
pub async fn router(coordinator: &coordinator::Coordinator, call: CallOptions) -> Router {
    let options = Options { call, ..Options::default() };
    let router = Router::connect(vec![coordinator.address.clone()], options).await;
    assert!(router.ready(LONG).await, "no maps came");
    router
}

/// Waits until `is` says so, for ten seconds at the most.
pub async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
