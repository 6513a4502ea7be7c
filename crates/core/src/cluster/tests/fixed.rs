//! Shards that stay as they are, whatever the policy says.

use super::test_cluster::{TestCluster, keyspace, name, node, slots};
use crate::base::id::ShardId;
use crate::node::load::Load;

/// Requests a second on a node.
fn requests(test: &TestCluster, on: &str) -> f64 {
    let held = test.map().shards().filter(|shard| shard.live().any(|r| r.node == node(on)));
    held.map(|shard| test.loads[&shard.id].requests_per_s).sum()
}

/// Seen in the simulator: two keyspaces made room for a shard that was set aside and stayed on a draining node, each in
/// answer to the other, for ever.
#[test]
fn l1_no_room_is_made_for_a_shard_that_is_set_aside() {
    let mut test = TestCluster::new(keyspace(12), slots(12));
    let load = |requests_per_s| Load { requests_per_s, ..Load::default() };
    test.loads = (1..=12).map(|id| (ShardId(id), load(100.0))).collect();
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(20_000);
    let heavy = test.map().shards().find(|s| s.live().any(|r| r.node == node("a"))).unwrap().id;
    let record = &mut test.cluster.keyspaces.get_mut(&name()).unwrap().record;
    record.rules.entry(heavy).or_default().set_aside = Some("kills nodes".into());
    test.disk = test.cluster.records();
    test.loads.insert(heavy, load(700.0));
    test.run(20_000);
    let stays = test.map().shard(heavy).unwrap().clone();
    test.drain("a");
    test.run(60_000);
    assert_eq!((test.map().shard(heavy), requests(&test, "a")), (Some(&stays), 700.0));
    let [b, c] = ["b", "c"].map(|on| requests(&test, on));
    assert!(b + c == 1_100.0 && (b - c).abs() <= 100.0, "b has {b}, c has {c}");
    let generation = test.map().generation();
    test.run(30_000);
    assert_eq!(test.map().generation(), generation, "L2");
}
