//! Which listener answers for which slots, and where clients are sent.

use super::*;
use partage_core::base::id::{Generation, Incarnation, ShardId, TransactionId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::ShardMap;
use partage_core::keyspace::sharding::{Bounds, Slot};
use partage_core::keyspace::{KeyspaceKind, Ownership, RowValues};
use partage_core::routing::table::RouteTable;

const RANGES: Sharding = Sharding::HashRange { hash: HashFunction::Crc16 };

fn id(number: usize) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

fn brief(sharding: Sharding, partition_key: PartitionKey) -> KeyspaceBrief {
    KeyspaceBrief {
        name: KeyspaceName::new("carts").unwrap(),
        sharding,
        partition_key,
        ownership: Ownership::Replicated,
        generation: Generation { transaction: TransactionId([1; 20]), sequence: 1 },
        first_shard: ShardId(1),
        durable: true,
        min_in_sync: 2,
        kind: KeyspaceKind::Table,
        values: RowValues::Bytes,
        feed_ms: 0,
    }
}

fn node(number: usize, health: Health, resp_address: Option<&str>) -> NodeAddress {
    let resp_address = resp_address.map(str::to_owned);
    let address = format!("10.0.0.{number}:7600");
    NodeAddress {
        id: id(number),
        incarnation: Incarnation(1),
        address,
        zone: None,
        health,
        resp_address,
        labels: Default::default(),
        drains: false,
    }
}

fn nodes() -> Vec<NodeAddress> {
    let listens = |number| node(number, Health::Up, Some(&format!("10.0.0.{number}:6379")));
    (0..4).map(listens).collect()
}

/// A table with these shards. The shard at place i has a leader on node i, where there is one, and a follower on the node after
/// that.
fn routes(
    sharding: Sharding,
    bounds: Vec<Bounds>,
    nodes: Vec<NodeAddress>,
    leaders: usize,
) -> (Routes, KeyspaceBrief) {
    let brief = brief(sharding, PartitionKey::HashTag);
    let mut map = ShardMap::empty(brief.name.clone(), sharding, brief.partition_key);
    let mut edit = map.edit();
    for (at, bounds) in bounds.into_iter().enumerate() {
        let shard = edit.create_shard(bounds).unwrap();
        for (of, number) in [at, at + 1].into_iter().enumerate() {
            let placement = edit.add_replica(shard, &id(number % 4), Incarnation(1), None).unwrap();
            edit.step(shard, placement, ReplicaState::Live).unwrap();
            if of == 0 && at < leaders {
                edit.lead(shard, placement).unwrap();
            }
        }
    }
    let diff = edit.commit(TransactionId([1; 20]));
    map.apply(&diff).unwrap();
    let mut table = RouteTable::default();
    table.change(Some(brief.clone()), true, &diff).unwrap();
    table.hear_of_nodes(nodes, &[]);
    (table.routes(), brief)
}

/// The bounds of four shards that share the hash space evenly.
fn quarters() -> Vec<Bounds> {
    let quarter = |at: u64| Bounds::Hashes(HashRange { first: at << 62, last: (at << 62) | (u64::MAX >> 2) });
    (0..4).map(quarter).collect()
}

fn own() -> SlotNode {
    slot_node(&id(0), "10.0.0.0:6379").unwrap()
}

fn leaders(owners: &[SlotOwner]) -> Vec<(u16, u16, Option<&str>)> {
    owners
        .iter()
        .map(|one| (one.first, one.last, one.leader.as_ref().map(|node| node.name.as_str())))
        .collect()
}

#[test]
fn slots_are_those_of_tables_by_crc16_and_hash_tags() {
    assert!(has_slots(&brief(RANGES, PartitionKey::HashTag)));
    assert!(has_slots(&brief(
        Sharding::Fixed { hash: HashFunction::Crc16, shards: 7 },
        PartitionKey::HashTag
    )));
    let other = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    for (sharding, partition_key) in [
        (RANGES, PartitionKey::Whole),
        (other, PartitionKey::HashTag),
        (Sharding::KeyRange, PartitionKey::HashTag),
        (Sharding::Named, PartitionKey::HashTag),
    ] {
        assert!(!has_slots(&brief(sharding, partition_key)), "{sharding} by {partition_key:?}");
    }
}

#[test]
fn each_slot_has_its_leader_and_a_key_of_it_is_sent_there() {
    let (routes, brief) = routes(RANGES, quarters(), nodes(), 4);
    let owners = owners(&routes, &brief, &id(0), &own());
    let expected = [
        (0, 4_095, Some("n0")),
        (4_096, 8_191, Some("n1")),
        (8_192, 12_287, Some("n2")),
        (12_288, 16_383, Some("n3")),
    ];
    assert_eq!(leaders(&owners), expected);
    assert_eq!((owners[0].leader.clone(), owners[3].followers.clone()), (Some(own()), vec![own()]));
    for number in 0..1_000 {
        let key = Key::new(format!("a{number}{{tag{number}}}").as_bytes()).unwrap();
        let slot = crc16::slot(format!("tag{number}").as_bytes());
        let expected = match slot / 4_096 {
            0 => None,
            node => Some(RequestError::Moved { slot, address: format!("10.0.0.{node}:6379") }),
        };
        assert_eq!(moved(&routes, "carts", &key, &id(0)), expected);
    }
    assert_eq!(moved(&routes, "none", &Key::empty(), &id(0)), None);
}

#[test]
fn this_listener_stands_in_for_nodes_that_clients_cannot_be_sent_to() {
    for (health, at, answers) in [
        (Health::Up, Some("10.0.0.2:6379"), "n2"),
        (Health::Unknown, Some("10.0.0.2:6379"), "n2"),
        (Health::Up, None, "n0"),
        (Health::Suspect, Some("10.0.0.2:6379"), "n0"),
        (Health::Down, Some("10.0.0.2:6379"), "n0"),
    ] {
        let mut nodes = nodes();
        nodes[2] = node(2, health, at);
        let (routes, brief) = routes(RANGES, quarters(), nodes, 4);
        let owners = owners(&routes, &brief, &id(0), &own());
        let third = owners.iter().find(|owner| (owner.first..=owner.last).contains(&8_200)).unwrap();
        assert_eq!(third.leader.as_ref().unwrap().name, answers, "{health} {at:?}");
        let key =
            (0..).map(|n| format!("k{n}")).find(|key| crc16::slot(key.as_bytes()) / 4_096 == 2).unwrap();
        let key = Key::new(key.as_bytes()).unwrap();
        assert_eq!(moved(&routes, "carts", &key, &id(0)).is_some(), answers == "n2", "{health} {at:?}");
    }
}

#[test]
fn slots_without_a_leader_have_none_and_a_request_for_them_waits_here() {
    let (routes, brief) = routes(RANGES, quarters(), nodes(), 3);
    let owners = owners(&routes, &brief, &id(0), &own());
    assert_eq!(leaders(&owners)[3], (12_288, 16_383, None));
    // `foo` is in slot 12,182.
    assert!(moved(&routes, "carts", &Key::new(b"foo").unwrap(), &id(0)).is_some());
    let key = (0..).map(|n| format!("k{n}")).find(|key| crc16::slot(key.as_bytes()) >= 12_288).unwrap();
    assert_eq!(moved(&routes, "carts", &Key::new(key.as_bytes()).unwrap(), &id(0)), None);
}

#[test]
fn a_scan_passes_over_shards_for_which_another_listener_answers() {
    let (by_range, _) = routes(RANGES, quarters(), nodes(), 3);
    let next = |node, from| next_own(&by_range, "carts", &id(node), Place::Point(from));
    let quarter = 1 << 62;
    assert_eq!(next(0, 0), Some(Place::Point(0)));
    assert_eq!(next(0, quarter), Some(Place::Point(3 * quarter)), "a shard without a leader is everyone's");
    assert_eq!(next(1, 0), Some(Place::Point(quarter)));
    assert_eq!(next(1, quarter + 7), Some(Place::Point(quarter + 7)));
    let (all, _) = routes(RANGES, quarters(), nodes(), 4);
    assert_eq!(next_own(&all, "carts", &id(1), Place::Point(2 * quarter)), None);
    let sharding = Sharding::Fixed { hash: HashFunction::Crc16, shards: 4 };
    let (fixed, brief) = routes(sharding, Slot::all(4), nodes(), 4);
    assert_eq!(next_own(&fixed, "carts", &id(2), Place::Slot(0)), Some(Place::Slot(2)));
    assert_eq!(next_own(&fixed, "carts", &id(2), Place::Slot(3)), None);
    let owners = owners(&fixed, &brief, &id(0), &own());
    assert_eq!((owners.len(), owners[5].leader.as_ref().unwrap().name.as_str()), (16_384, "n1"));
}

#[test]
fn an_address_of_ip_6_has_no_brackets_for_clients() {
    let node = slot_node(&id(1), "[::1]:6379").unwrap();
    assert_eq!((node.host.as_str(), node.port), ("::1", 6_379));
    let node = slot_node(&id(1), "host-1.example:1").unwrap();
    assert_eq!((node.host.as_str(), node.port), ("host-1.example", 1));
    assert_eq!(slot_node(&id(1), "host"), None);
}
