//! Shards that stay as they are, whatever the policy says.

use super::town::{Town, keyspace, name, node, slots};
use crate::id::ShardId;
use crate::load::Load;

/// Requests a second on a node.
fn requests(town: &Town, on: &str) -> f64 {
    let held = town.map().shards().filter(|shard| shard.live().any(|r| r.node == node(on)));
    held.map(|shard| town.loads[&shard.id].requests_per_s).sum()
}

/// Seen in the simulator: two keyspaces made room for a shard that was set aside and stayed on a draining node, each in
/// answer to the other, for ever.
#[test]
fn l1_no_room_is_made_for_a_shard_that_is_set_aside() {
    let mut town = Town::new(keyspace(12), slots(12));
    let load = |requests_per_s| Load { requests_per_s, ..Load::default() };
    town.loads = (1..=12).map(|id| (ShardId(id), load(100.0))).collect();
    ["a", "b", "c"].into_iter().for_each(|name| town.join(name));
    town.run(20_000);
    let heavy = town.map().shards().find(|s| s.live().any(|r| r.node == node("a"))).unwrap().id;
    let record = &mut town.cluster.keyspaces.get_mut(&name()).unwrap().record;
    record.rules.entry(heavy).or_default().set_aside = Some("kills nodes".into());
    town.disk = town.cluster.records();
    town.loads.insert(heavy, load(700.0));
    town.run(20_000);
    let stays = town.map().shard(heavy).unwrap().clone();
    town.drain("a");
    town.run(60_000);
    assert_eq!((town.map().shard(heavy), requests(&town, "a")), (Some(&stays), 700.0));
    let [b, c] = ["b", "c"].map(|on| requests(&town, on));
    assert!(b + c == 1_100.0 && (b - c).abs() <= 100.0, "b has {b}, c has {c}");
    let generation = town.map().generation();
    town.run(30_000);
    assert_eq!(town.map().generation(), generation, "L2");
}
