//! `explain`, `status` and the tables.

use super::*;
use crate::cluster::status::Since;
use crate::node::Health;

const S1: ShardId = ShardId(1);

fn test_cluster() -> AdminTestCluster {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a", "b"]);
    test
}

fn said(sentences: &[String], needle: &str) -> bool {
    sentences.iter().any(|sentence| sentence.contains(needle))
}

#[test]
fn explain_says_who_serves_a_key_since_when_and_by_which_plan() {
    let mut test = test_cluster();
    let load = Load { requests_per_s: 120.0, size_bytes: 1_000, ..Load::default() };
    test.loads.insert(S1, load.clone());
    test.rounds(1);
    let found = test.cluster.explain(test.at, &name("users"), &key("k")).unwrap();
    assert_eq!((found.shard.shard, found.granted, found.shard.replicas.len()), (S1, true, 2));
    assert!(found.blocked.is_empty() && found.under_way.is_empty(), "{found:?}");
    assert!(matches!(found.shard.since, Since::At(ms) if ms < test.at.wall_ms && ms > 1_700_000_000_000));
    assert_eq!(found.shard.replicas[0].load, Some(load));
    for reason in &found.reasons {
        assert_eq!(reason.as_ref().map(|(_, why)| why.as_str()), Some("ada asked for it"));
    }
    // 120 requests on each of two nodes, of three that could take some: 1.5 times a share of 80.
    assert!(said(&found.would_move, "120 requests, 1.50 times its share of 80"), "{:?}", found.would_move);
    let text = found.to_string();
    for needle in
        ["is in shard s1 [0000", "p1 on a in zone z0 (up): leader in Live, serves it", "there by plan-1"]
    {
        assert!(text.contains(needle), "{needle:?} is not in\n{text}");
    }
}

#[test]
fn explain_says_what_is_under_way_and_what_is_in_the_way() {
    let mut test = test_cluster();
    test.broken.insert(node("c"));
    let (keyspace, from, to) = (name("users"), node("a"), node("c"));
    test.done(Command::MoveShard { keyspace, shard: S1, from, to });
    let waiting = test.cluster.explain(test.at, &name("users"), &key("k")).unwrap();
    assert!(said(&waiting.under_way, "is to move s1 (p1) to c: ada asked for it"), "{:?}", waiting.under_way);
    test.rounds(2);
    test.cluster.record.brake = Some("many deaths".into());
    test.run(Command::DrainNode { node: node("b"), reason: "old".into(), max_down: Some(1) }, false).unwrap();
    let found = test.cluster.explain(test.at, &name("users"), &key("k")).unwrap();
    assert!(said(&found.under_way, "it moves from a to c, which failed at it"), "{:?}", found.under_way);
    assert!(said(&found.blocked, "on c it failed 1 time: disk full"), "{:?}", found.blocked);
    assert!(said(&found.blocked, "the brake is on (many deaths)"));
    assert!(said(&found.would_move, "b is being drained (old)"), "{:?}", found.would_move);
}

#[test]
fn explain_finds_the_split_that_placed_a_child() {
    let mut test = test_cluster();
    test.done(Command::SplitShard { keyspace: name("users"), shard: S1, at: SplitAt::Middle });
    test.rounds(1);
    let before = test.cluster.explain(test.at, &name("users"), &key("k")).unwrap();
    assert!(said(&before.under_way, "split or merged into s2, s3, which prepare"), "{:?}", before.under_way);
    test.rounds(6);
    let after = test.cluster.explain(test.at, &name("users"), &key("k")).unwrap();
    assert!(after.shard.shard > S1);
    assert_eq!(
        after.reasons[0].as_ref().map(|(plan, _)| *plan),
        test.cluster.plans.by_id.keys().last().copied()
    );
}

#[test]
fn explain_outlives_the_coordinator() {
    let test = test_cluster();
    let mut records = test.records.clone();
    for (record, _) in &mut records.keyspaces {
        record.keyspace.mode = Mode::Automatic;
    }
    let back = Cluster::recover(test.at, Settings::default(), records).unwrap();
    let later = Moment { now: test.at.now + 700, wall_ms: test.at.wall_ms + 700 };
    let found = back.explain(later, &name("users"), &key("k")).unwrap();
    assert!(found.reasons.iter().all(Option::is_some));
    assert_eq!(found.shard.since, Since::AtLeast(test.at.wall_ms));
    assert!(!found.granted, "leases of before are assumed to hold");
    assert!(said(&found.blocked, "may not begin yet"), "{:?}", found.blocked);
    assert!(said(&found.would_move, "nothing is moved for balance before"), "{:?}", found.would_move);
    assert!(said(&found.would_move, "gives up what is above 1.3 times its share"));
    let measured = test.cluster.explain(test.at, &name("users"), &key("k")).unwrap();
    assert!(said(&measured.would_move, "mode manual moves nothing for it"), "{:?}", measured.would_move);
}

#[test]
fn explain_of_what_is_not_there_says_so() {
    let mut test = test_cluster();
    let error = test.cluster.explain(test.at, &name("usres"), &key("k")).unwrap_err();
    assert!((error.kind(), error.to_string().contains("did you mean users")) == (Kind::NotFound, true));
    test.keyspace("parts", Sharding::Named, Presplit::None);
    let error = test.cluster.explain(test.at, &name("parts"), &key("k")).unwrap_err();
    assert!(error.to_string().contains("register it first"), "{error}");
}

#[test]
fn status_counts_everything_once() {
    let mut test = test_cluster();
    test.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x", "y", "z"])));
    test.put("parts", 1, &["a"]);
    test.broken.insert(node("a"));
    let (keyspace, partitions) = (name("parts"), partitions(&["x"]));
    test.done(Command::UnregisterPartitions { keyspace, partitions });
    test.done(Command::SetShardReplicas {
        keyspace: name("users"),
        shard: S1,
        replicas: Some(4),
        ahead: true,
    });
    let parts = test.cluster.keyspaces.get_mut(&name("parts")).unwrap();
    let rule = ShardRule { set_aside: Some("kills nodes".into()), ..ShardRule::default() };
    parts.record.rules.insert(ShardId(2), rule);
    test.broken.insert(node("c"));
    test.run(Command::AddReplica { keyspace: name("users"), shard: S1, node: node("c") }, false).unwrap();
    test.rounds(2);
    let status = test.cluster.status(test.at);
    assert_eq!(status.keyspaces, 2);
    let counts = status.shards;
    assert_eq!((counts.led, counts.unserved(), counts.removing), (1, 2, 1));
    assert_eq!((counts.set_aside, counts.unplaced), (1, 1), "{counts:?}");
    assert_eq!((status.shards.forming, status.shards.closing), (0, 0));
    let states = [ReplicaState::Load, ReplicaState::Live, ReplicaState::Unload];
    assert_eq!(states.map(|state| status.replicas[&state]), [1, 2, 1]);
    assert_eq!((status.loads, status.moves, status.short), (1, 0, 3));
    assert_eq!(status.nodes, BTreeMap::from([(Health::Up, 3)]));
    assert_eq!(status.set_aside, [(name("parts"), ShardId(2), "kills nodes".to_owned())]);
    let why: Vec<_> = status.unplaced.iter().map(|u| (u.shard.0, u.have, u.want, u.why.as_str())).collect();
    assert!(why[0].3.contains("set aside (kills nodes)") && why[0].0 == 2, "{why:?}");
    assert!(why[1].3.contains("mode manual: place it with `partage shard add`") && why[1].0 == 3, "{why:?}");
    assert!(why[2].3.contains("no other node may take it") && why[2].1 == 3, "{why:?}");
}

#[test]
fn tables_give_every_shard_and_node_with_their_loads() {
    let mut test = test_cluster();
    test.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x", "y", "z"])));
    test.put("parts", 2, &["b"]);
    test.loads.insert(S1, Load { requests_per_s: 10.0, ..Load::default() });
    test.loads.insert(ShardId(2), Load { requests_per_s: 5.0, ..Load::default() });
    test.rounds(1);
    let rows = test.cluster.node_table(test.at);
    let told: Vec<_> = rows.iter().map(|row| (row.node.as_str(), row.leaders, row.load[0])).collect();
    assert_eq!(told, [("a", 1, 10.0), ("b", 1, 15.0), ("c", 0, 0.0)]);
    assert_eq!(rows[1].replicas, BTreeMap::from([(name("parts"), 1), (name("users"), 1)]));
    let page = |after, limit| test.cluster.shard_table(test.at, &name("parts"), after, limit).unwrap();
    let ids =
        |rows: Vec<crate::cluster::status::ShardRow>| rows.iter().map(|r| r.shard.0).collect::<Vec<_>>();
    assert_eq!(ids(page(None, 2)), [1, 2]);
    assert_eq!(ids(page(Some(ShardId(2)), 2)), [3]);
    assert_eq!(page(Some(S1), 1)[0].replicas[0].node, node("b"));
    assert!(test.cluster.shard_table(test.at, &name("none"), None, 9).is_err());
    // A node that has started anew holds nothing of what its former start held.
    test.start("b", 1);
    assert!(test.cluster.node_table(test.at)[1].replicas.is_empty());
}
