use super::*;
use crate::base::name::Label;
use crate::keyspace::Ownership;
use crate::keyspace::key::{HashRange, KeyRange};
use crate::keyspace::map::Stage;
use crate::keyspace::sharding::{Bounds, PartitionKey};
use crate::node::load::Profile;

const S1: ShardId = ShardId(1);

fn shift(shard: ShardId, from: &str, to: &str) -> Command {
    Command::MoveShard { keyspace: name("users"), shard, from: node(from), to: node(to) }
}

fn add(shard: ShardId, at: &str) -> Command {
    Command::AddReplica { keyspace: name("users"), shard, node: node(at) }
}

fn take(shard: ShardId, at: &str) -> Command {
    Command::RemoveReplica { keyspace: name("users"), shard, node: node(at) }
}

fn lead(shard: ShardId, to: &str) -> Command {
    Command::TransferLeader { keyspace: name("users"), shard, to: node(to) }
}

fn split(shard: ShardId, at: SplitAt) -> Command {
    Command::SplitShard { keyspace: name("users"), shard, at }
}

fn merge(left: u64, right: u64) -> Command {
    Command::MergeShards { keyspace: name("users"), left: ShardId(left), right: ShardId(right) }
}

fn isolate(of: &str) -> Command {
    Command::IsolateKey { keyspace: name("users"), key: key(of) }
}

fn pin(nodes: &[&str]) -> Command {
    let pinned = nodes.iter().map(|id| node(id)).collect();
    let constraint = Constraint { pinned, ..Constraint::default() };
    Command::PinShard { keyspace: name("users"), shard: S1, constraint, ahead: false }
}

/// Shard 1 of "users", all hashes, on these nodes.
fn test_cluster(nodes: &[&str], homes: &[&str]) -> AdminTestCluster {
    let mut test = AdminTestCluster::new(nodes);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, homes);
    test
}

fn bounds(test: &AdminTestCluster) -> Vec<(u64, String)> {
    let serving =
        test.cluster.keyspaces.by_name[&name("users")].map.shards().filter(|shard| shard.is_serving());
    serving.map(|shard| (shard.id.0, shard.bounds.to_string())).collect()
}

#[test]
fn who_splits_a_shard_is_told_that_the_planner_may_merge_it_again() {
    let mut test = test_cluster(&["a", "b"], &["a"]);
    let mode = KeyspaceChanges { mode: Some(Mode::Automatic), ..KeyspaceChanges::default() };
    let changes = Box::new(mode);
    test.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
    let answer = test.done(split(S1, SplitAt::Middle));
    assert!(answer.warnings[0].contains("`partage keyspace update users --min-shards 2`"), "{answer:?}");
}

#[test]
fn a_person_moves_a_shard_make_before_break() {
    let mut test = test_cluster(&["a", "b", "c"], &["a"]);
    let answer = test.done(shift(S1, "a", "b"));
    let plan = answer.plan.unwrap();
    assert_eq!((&plan.status, plan.decided_by.as_deref()), (&Status::Approved, Some("ada")));
    assert_eq!(plan.changes[0].reason, "ada asked for it");
    test.rounds(1);
    assert_eq!(test.homes("users", 1), ["a", "b"]);
    test.refused(shift(S1, "a", "c"), Kind::Conflict, "moving from a to b already");
    test.rounds(6);
    assert_eq!(test.homes("users", 1), ["b"]);
    assert!(test.shard("users", 1).is_settled());
    assert_eq!(test.cluster.plans.by_id[&plan.id].status, Status::Finished);
}

#[test]
fn a_move_that_cannot_be_is_refused() {
    let mut test = test_cluster(&["a", "b", "c"], &["a", "b"]);
    test.refused(shift(ShardId(9), "a", "c"), Kind::NotFound, "no shard s9");
    test.refused(shift(S1, "c", "a"), Kind::NotFound, "it is on a, b");
    test.refused(shift(S1, "a", "x"), Kind::NotFound, "no node x");
    test.refused(shift(S1, "a", "b"), Kind::AlreadyExists, "choose another node");
    test.kill("c");
    test.rounds(3);
    test.refused(shift(S1, "a", "c"), Kind::Refused, "it is suspect");
    test.done(pin(&["a", "b"]));
    test.start("c", 2);
    test.rounds(1);
    test.refused(shift(S1, "a", "c"), Kind::Refused, "pins, labels or exclusions");
    let record = &mut test.cluster.keyspaces.get_mut(&name("users")).unwrap().record;
    record.rules.entry(S1).or_default().set_aside = Some("kills nodes".into());
    test.refused(shift(S1, "a", "c"), Kind::Refused, "set aside: kills nodes");
    let elsewhere = Command::MoveShard { keyspace: name("usres"), shard: S1, from: node("a"), to: node("c") };
    test.refused(elsewhere, Kind::NotFound, "did you mean users");
}

#[test]
fn a_move_into_the_zone_of_another_replica_is_warned_of() {
    let mut test = test_cluster(&["a", "b", "c"], &["a", "b"]);
    let answer = test.done(shift(S1, "b", "c"));
    assert!(answer.warnings[0].contains("in z0, as is a"), "{answer:?}");
}

#[test]
fn a_move_that_a_rebalance_may_undo_is_warned_of_and_a_pin_keeps_it() {
    let mut test = test_cluster(&["a", "b", "c"], &["a"]);
    assert!(test.done(shift(S1, "a", "b")).warnings.is_empty(), "mode manual moves nothing by itself");
    test.rounds(6);
    let mode = KeyspaceChanges { mode: Some(Mode::Automatic), ..KeyspaceChanges::default() };
    test.done(Command::UpdateKeyspace { keyspace: name("users"), changes: Box::new(mode), ahead: false });
    let warnings = test.done(shift(S1, "b", "c")).warnings;
    assert!(warnings[0].contains("`partage shard pin users s1 --pin c`"), "{warnings:?}");
    test.rounds(6);
    test.done(pin(&["c", "a"]));
    assert_eq!(test.done(shift(S1, "c", "a")).warnings.len(), 1, "it may go back to c");
    test.rounds(6);
    test.done(pin(&["b"]));
    test.rounds(200);
    assert_eq!(test.homes("users", 1), ["b"], "a pin moves it, and keeps it");
    test.done(pin(&["b", "c"]));
    let set =
        |replicas| Command::SetShardReplicas { keyspace: name("users"), shard: S1, replicas, ahead: false };
    test.done(set(Some(2)));
    test.rounds(6);
    test.done(pin(&[]));
    let warnings = test.done(shift(S1, "c", "a")).warnings;
    assert!(warnings.iter().any(|warning| warning.contains("--pin b,a`")), "{warnings:?}");
}

#[test]
fn a_strict_spread_refuses_that_move_and_a_spread_over_nodes_does_not_mind() {
    for (spread, refused) in [(Spread::ZoneStrict, true), (Spread::Node, false)] {
        let mut test = test_cluster(&["a", "b", "c"], &["a", "b"]);
        let changes = Box::new(KeyspaceChanges { spread: Some(spread), ..KeyspaceChanges::default() });
        test.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
        if refused {
            test.refused(shift(S1, "b", "c"), Kind::Refused, "less strict than zone-strict");
            test.refused(add(S1, "c"), Kind::Refused, "choose a node elsewhere");
            let mut warnings = test
                .done(Command::DrainNode { node: node("b"), reason: "x".into(), max_down: None })
                .warnings;
            assert!(warnings.pop().unwrap().contains("no node could take shard s1"));
        } else {
            assert!(test.done(shift(S1, "b", "c")).warnings.is_empty());
        }
    }
}

#[test]
fn leadership_goes_to_a_live_replica_under_a_new_epoch() {
    let mut test = test_cluster(&["a", "b", "c"], &["a", "b"]);
    let epoch = test.shard("users", 1).epoch;
    test.done(lead(S1, "b"));
    test.rounds(2);
    assert_eq!(test.homes("users", 1), ["b", "a"]);
    assert!(test.shard("users", 1).epoch > epoch);
    let again = test.done(lead(S1, "b"));
    assert!(again.plan.is_none() && again.summary.contains("already"));
    test.refused(lead(S1, "c"), Kind::NotFound, "it is on a, b");
    test.broken.insert(node("c"));
    test.run(add(S1, "c"), false).unwrap();
    test.rounds(1);
    test.refused(lead(S1, "c"), Kind::Conflict, "is in Load");
}

#[test]
fn replicas_come_and_go_but_never_the_last() {
    let mut test = test_cluster(&["a", "b"], &["a"]);
    test.refused(take(S1, "a"), Kind::Refused, "the last one of shard s1");
    test.refused(add(S1, "a"), Kind::AlreadyExists, "choose another node");
    let answer = test.done(add(S1, "b"));
    assert!(answer.warnings[0].contains("wants 1 replica and has 1"), "{answer:?}");
    test.refused(take(S1, "a"), Kind::Refused, "the last one of shard s1 that serves");
    test.rounds(3);
    let answer = test.done(take(S1, "a"));
    assert!(answer.warnings.is_empty(), "{answer:?}");
    test.rounds(4);
    assert_eq!(test.homes("users", 1), ["b"]);
    test.refused(take(S1, "a"), Kind::NotFound, "it is on b");
}

#[test]
fn hash_ranges_split_at_the_middle_or_at_points() {
    let mut test = test_cluster(&["a", "b"], &["a"]);
    test.done(split(S1, SplitAt::Middle));
    test.rounds(1);
    assert!(
        test.cluster.keyspaces.by_name[&name("users")]
            .map
            .shards()
            .any(|s| matches!(s.stage(), Stage::Forming(_)))
    );
    test.refused(split(S1, SplitAt::Middle), Kind::Conflict, "being split or merged already");
    test.rounds(6);
    let halves = [(2, "[0000000000000000, 7fffffffffffffff]"), (3, "[8000000000000000, ffffffffffffffff]")];
    assert_eq!(bounds(&test), halves.map(|(id, text)| (id, text.to_owned())));
    assert_eq!(test.homes("users", 2), ["a"]);
    let s2 = ShardId(2);
    test.refused(split(s2, SplitAt::Points(vec![])), Kind::Invalid, "no point");
    test.refused(split(s2, SplitAt::Points(vec![0])), Kind::Invalid, "not above");
    test.refused(split(s2, SplitAt::Points(vec![9, 9])), Kind::Invalid, "not above");
    test.refused(split(s2, SplitAt::Points(vec![1 << 63])), Kind::Invalid, "inside");
    test.refused(split(s2, SplitAt::Keys(vec![key("k")])), Kind::Invalid, "hash ranges at points");
    test.refused(split(S1, SplitAt::Middle), Kind::NotFound, "no shard s1");
    test.done(split(s2, SplitAt::Points(vec![1, 2])));
    test.rounds(6);
    test.refused(split(ShardId(4), SplitAt::Middle), Kind::Refused, "single point");
    assert_eq!(crate::plan::check::map(&test.cluster.keyspaces.by_name[&name("users")].map), vec![]);
}

#[test]
fn children_begin_where_their_parent_is_and_are_led_where_it_was_led() {
    let mut test = test_cluster(&["a", "b"], &["a", "b"]);
    test.done(lead(S1, "b"));
    test.rounds(2);
    test.done(split(S1, SplitAt::Middle));
    test.rounds(6);
    assert_eq!([test.homes("users", 2), test.homes("users", 3)], [["b", "a"], ["b", "a"]]);
}

#[test]
fn key_ranges_split_at_the_reported_median_or_at_keys() {
    let mut test = AdminTestCluster::new(&["a"]);
    test.keyspace("users", Sharding::KeyRange, Presplit::None);
    test.refused(split(S1, SplitAt::Keys(vec![key("m")])), Kind::Conflict, "on no node");
    test.put("users", 1, &["a"]);
    test.refused(split(S1, SplitAt::Middle), Kind::Refused, "no median key");
    test.refused(split(S1, SplitAt::Points(vec![1])), Kind::Invalid, "key ranges at keys");
    test.refused(split(S1, SplitAt::Keys(vec![])), Kind::Invalid, "no key");
    test.refused(split(S1, SplitAt::Keys(vec![key("")])), Kind::Invalid, "not above");
    test.loads.insert(S1, Load { profile: Profile::new(vec![], Some(key("m"))), ..Load::default() });
    test.rounds(1);
    test.done(split(S1, SplitAt::Middle));
    test.rounds(6);
    test.done(split(ShardId(2), SplitAt::Keys(vec![key("c"), key("f")])));
    test.rounds(6);
    let texts: Vec<_> = bounds(&test).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, [r#"["m", "")"#, r#"["", "c")"#, r#"["c", "f")"#, r#"["f", "m")"#]);
    test.refused(split(ShardId(4), SplitAt::Keys(vec![key("x")])), Kind::Invalid, "inside");
}

#[test]
fn neighbours_merge_where_the_heavier_one_is() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::HashRanges(3));
    for (shard, home) in [(1, "a"), (2, "b"), (3, "b")] {
        test.put("users", shard, &[home]);
    }
    test.loads.insert(ShardId(2), Load { size_bytes: 9, ..Load::default() });
    test.rounds(1);
    test.refused(merge(1, 3), Kind::Invalid, "does not begin where shard s1 ends");
    test.refused(merge(2, 1), Kind::Invalid, "the lower one first");
    test.refused(merge(1, 1), Kind::Invalid, "does not begin where");
    test.done(merge(1, 2));
    test.rounds(1);
    test.refused(merge(2, 3), Kind::Conflict, "being split or merged already");
    test.rounds(6);
    assert_eq!(bounds(&test).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(test.homes("users", 4), ["b"]);
    let resharding = Resharding { min_shards: 2, ..Resharding::default() };
    let changes = Box::new(KeyspaceChanges { resharding: Some(resharding), ..KeyspaceChanges::default() });
    test.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
    test.refused(merge(4, 3), Kind::Refused, "its min_shards is 2");
}

#[test]
fn the_most_shards_and_closed_nodes_stop_a_split() {
    let mut test = test_cluster(&["a", "b"], &["a"]);
    let resharding = Resharding { max_shards: 1, ..Resharding::default() };
    let changes = Box::new(KeyspaceChanges { resharding: Some(resharding), ..KeyspaceChanges::default() });
    test.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
    test.refused(split(S1, SplitAt::Middle), Kind::Refused, "its max_shards is 1");
    let changes = KeyspaceChanges { resharding: Some(Resharding::default()), ..KeyspaceChanges::default() };
    test.done(Command::UpdateKeyspace { keyspace: name("users"), changes: Box::new(changes), ahead: false });
    test.cluster.record.brake = Some("so that nothing moves by itself".into());
    let drain = Command::DrainNode { node: node("a"), reason: "test".into(), max_down: None };
    test.run(drain, false).unwrap();
    test.refused(split(S1, SplitAt::Middle), Kind::Refused, "would begin on node a, but it is being drained");
}

#[test]
fn fixed_bounds_are_neither_split_nor_merged_nor_isolated() {
    let mut test = AdminTestCluster::new(&["a"]);
    test.keyspace("users", Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 2 }, Presplit::None);
    test.refused(split(S1, SplitAt::Middle), Kind::Refused, "partage keyspace update users --shards N");
    test.refused(merge(1, 2), Kind::Refused, "fixed bounds");
    test.refused(isolate("k"), Kind::Refused, "fixed bounds");
    let mut test = AdminTestCluster::new(&["a"]);
    test.keyspace("users", Sharding::Named, Presplit::Names(partitions(&["k"])));
    test.refused(split(S1, SplitAt::Middle), Kind::Refused, "a named partition is whole");
    test.refused(isolate("k"), Kind::Refused, "a named partition is whole");
    test.refused(isolate("other"), Kind::Refused, "its partition is not registered");
}

#[test]
fn k12_a_hot_key_gets_a_shard_of_its_own() {
    let mut test = test_cluster(&["a"], &["a"]);
    test.done(isolate("hot"));
    test.rounds(6);
    let point = HashFunction::Xxh3_64.point(b"hot");
    let own = test.cluster.keyspaces.by_name[&name("users")].map.find(b"hot").unwrap();
    assert_eq!(own.bounds, Bounds::Hashes(HashRange { first: point, last: point }));
    assert_eq!(bounds(&test).len(), 3);
    let again = test.done(isolate("hot"));
    assert!(again.plan.is_none() && again.summary.contains("for itself already"));

    let mut test = AdminTestCluster::new(&["a"]);
    let by = PartitionKey::UpTo { delimiter: b'/' };
    let keyspace =
        Keyspace { mode: Mode::Manual, partition_key: by, ..settings("users", Sharding::KeyRange) };
    test.done(Command::CreateKeyspace {
        keyspace: Box::new(keyspace),
        presplit: Presplit::None,
        ahead: false,
    });
    test.put("users", 1, &["a"]);
    test.done(isolate("tenant/row-7"));
    test.rounds(6);
    let map = &test.cluster.keyspaces.by_name[&name("users")].map;
    let own = map.find(b"tenant/any").unwrap();
    let range = KeyRange::new(key("tenant"), key("tenant\0")).unwrap();
    assert_eq!(own.bounds, Bounds::Keys(range), "the whole partition is isolated");
    assert_ne!(map.find(b"tenant2/any").unwrap().id, own.id);
}

#[test]
fn a_shard_has_a_number_of_replicas_and_a_place_of_its_own() {
    let mut test = test_cluster(&["a", "b"], &["a"]);
    let set =
        |replicas| Command::SetShardReplicas { keyspace: name("users"), shard: S1, replicas, ahead: true };
    let answer = test.done(set(Some(3)));
    assert!(answer.warnings[0].contains("3 replicas and there is room for 2 now"), "{answer:?}");
    assert_eq!(test.cluster.keyspaces.by_name[&name("users")].wanted_replicas(S1), 3);
    test.refused(set(Some(0)), Kind::Invalid, "give 1 to 64");
    test.refused(set(Some(65)), Kind::Invalid, "give 1 to 64");
    test.done(set(None));
    assert!(test.cluster.keyspaces.by_name[&name("users")].record.rules.is_empty());

    test.done(pin(&["b"]));
    test.refused(pin(&["c"]), Kind::Invalid, "no node c");
    let both =
        Constraint { pinned: [node("a")].into(), excluded: [node("a")].into(), ..Constraint::default() };
    let both = Command::PinShard { keyspace: name("users"), shard: S1, constraint: both, ahead: false };
    test.refused(both, Kind::Invalid, "both pinned and excluded");
    let gpu = Constraint { labels: [Label::new("gpu").unwrap()].into(), ..Constraint::default() };
    let gpu = Command::PinShard { keyspace: name("users"), shard: S1, constraint: gpu, ahead: true };
    assert!(test.done(gpu).warnings[0].contains("there is room for 0 now"));
    let unpinned = test.done(pin(&[]));
    assert!(unpinned.summary.contains("wherever its keyspace may"));
    assert!(test.cluster.keyspaces.by_name[&name("users")].record.rules.is_empty());
}

#[test]
fn children_inherit_the_rules_of_their_parent() {
    let mut test = test_cluster(&["a", "b"], &["a"]);
    test.done(pin(&["a"]));
    test.done(split(S1, SplitAt::Middle));
    test.rounds(6);
    let rules = &test.cluster.keyspaces.by_name[&name("users")].record.rules;
    assert_eq!(rules.keys().copied().collect::<Vec<_>>(), [ShardId(2), ShardId(3)]);
    assert!(rules.values().all(|rule| rule.constraint.pinned == [node("a")].into()));
    test.check_disk();
}

#[test]
fn a20_what_was_set_aside_and_the_brake_are_released_by_a_person() {
    let mut test = test_cluster(&["a"], &["a"]);
    let release = Command::ReleaseShard { keyspace: name("users"), shard: S1 };
    test.refused(release.clone(), Kind::Refused, "is neither set aside nor held back");
    test.refused(Command::ReleaseBrake, Kind::Refused, "the brake is not on");
    let keyspace = test.cluster.keyspaces.get_mut(&name("users")).unwrap();
    let rule = ShardRule { set_aside: Some("kills nodes".into()), deaths: 3, ..ShardRule::default() };
    keyspace.record.rules.insert(S1, rule);
    test.done(release);
    assert!(
        test.cluster.keyspaces.by_name[&name("users")].record.rules.is_empty(),
        "deaths are forgotten too"
    );
    test.cluster.record.brake = Some("many deaths".into());
    test.done(Command::ReleaseBrake);
    assert_eq!(test.cluster.record.brake, None);
}

#[test]
fn an_eventual_keyspace_is_created_again_at_once() {
    let mut test = AdminTestCluster::new(&["a"]);
    let eventual = Keyspace { ownership: Ownership::Eventual, ..settings("users", HASHES) };
    let create =
        Command::CreateKeyspace { keyspace: Box::new(eventual), presplit: Presplit::None, ahead: false };
    test.done(create.clone());
    test.done(Command::DeleteKeyspace { keyspace: name("users") });
    test.done(create);
}
