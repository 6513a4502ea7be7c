use super::*;
use crate::key::{HashRange, KeyRange};
use crate::keyspace::Ownership;
use crate::load::Profile;
use crate::map::Stage;
use crate::name::Label;
use crate::sharding::{Bounds, PartitionKey};

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
fn town(nodes: &[&str], homes: &[&str]) -> Town {
    let mut town = Town::new(nodes);
    town.keyspace("users", HASHES, Presplit::None);
    town.put("users", 1, homes);
    town
}

fn bounds(town: &Town) -> Vec<(u64, String)> {
    let serving = town.cluster.keyspaces[&name("users")].map.shards().filter(|shard| shard.is_serving());
    serving.map(|shard| (shard.id.0, shard.bounds.to_string())).collect()
}

#[test]
fn a_person_moves_a_shard_make_before_break() {
    let mut town = town(&["a", "b", "c"], &["a"]);
    let answer = town.done(shift(S1, "a", "b"));
    let plan = answer.plan.unwrap();
    assert_eq!((&plan.status, plan.decided_by.as_deref()), (&Status::Approved, Some("ada")));
    assert_eq!(plan.changes[0].reason, "ada asked for it");
    town.rounds(1);
    assert_eq!(town.homes("users", 1), ["a", "b"]);
    town.refused(shift(S1, "a", "c"), Kind::Conflict, "moving from a to b already");
    town.rounds(6);
    assert_eq!(town.homes("users", 1), ["b"]);
    assert!(town.shard("users", 1).is_settled());
    assert_eq!(town.cluster.plans[&plan.id].status, Status::Finished);
}

#[test]
fn a_move_that_cannot_be_is_refused() {
    let mut town = town(&["a", "b", "c"], &["a", "b"]);
    town.refused(shift(ShardId(9), "a", "c"), Kind::NotFound, "no shard s9");
    town.refused(shift(S1, "c", "a"), Kind::NotFound, "it is on a, b");
    town.refused(shift(S1, "a", "x"), Kind::NotFound, "no node x");
    town.refused(shift(S1, "a", "b"), Kind::AlreadyExists, "choose another node");
    town.kill("c");
    town.rounds(3);
    town.refused(shift(S1, "a", "c"), Kind::Refused, "it is suspect");
    town.done(pin(&["a", "b"]));
    town.start("c", 2);
    town.rounds(1);
    town.refused(shift(S1, "a", "c"), Kind::Refused, "pins, labels or exclusions");
    let record = &mut town.cluster.keyspaces.get_mut(&name("users")).unwrap().record;
    record.rules.entry(S1).or_default().set_aside = Some("kills nodes".into());
    town.refused(shift(S1, "a", "c"), Kind::Refused, "set aside: kills nodes");
    let elsewhere = Command::MoveShard { keyspace: name("usres"), shard: S1, from: node("a"), to: node("c") };
    town.refused(elsewhere, Kind::NotFound, "did you mean users");
}

#[test]
fn a_move_into_the_zone_of_another_replica_is_warned_of() {
    let mut town = town(&["a", "b", "c"], &["a", "b"]);
    let answer = town.done(shift(S1, "b", "c"));
    assert!(answer.warnings[0].contains("in z0, as is a"), "{answer:?}");
}

#[test]
fn a_move_that_a_rebalance_may_undo_is_warned_of_and_a_pin_keeps_it() {
    let mut town = town(&["a", "b", "c"], &["a"]);
    assert!(town.done(shift(S1, "a", "b")).warnings.is_empty(), "mode manual moves nothing by itself");
    town.rounds(6);
    let mode = KeyspaceChanges { mode: Some(Mode::Automatic), ..KeyspaceChanges::default() };
    town.done(Command::UpdateKeyspace { keyspace: name("users"), changes: Box::new(mode), ahead: false });
    let warnings = town.done(shift(S1, "b", "c")).warnings;
    assert!(warnings[0].contains("`partage shard pin users s1 --pin c`"), "{warnings:?}");
    town.rounds(6);
    town.done(pin(&["c", "a"]));
    assert_eq!(town.done(shift(S1, "c", "a")).warnings.len(), 1, "it may go back to c");
    town.rounds(6);
    town.done(pin(&["b"]));
    town.rounds(200);
    assert_eq!(town.homes("users", 1), ["b"], "a pin moves it, and keeps it");
    town.done(pin(&["b", "c"]));
    let set =
        |replicas| Command::SetShardReplicas { keyspace: name("users"), shard: S1, replicas, ahead: false };
    town.done(set(Some(2)));
    town.rounds(6);
    town.done(pin(&[]));
    let warnings = town.done(shift(S1, "c", "a")).warnings;
    assert!(warnings.iter().any(|warning| warning.contains("--pin b,a`")), "{warnings:?}");
}

#[test]
fn a_strict_spread_refuses_that_move_and_a_spread_over_nodes_does_not_mind() {
    for (spread, refused) in [(Spread::ZoneStrict, true), (Spread::Node, false)] {
        let mut town = town(&["a", "b", "c"], &["a", "b"]);
        let changes = Box::new(KeyspaceChanges { spread: Some(spread), ..KeyspaceChanges::default() });
        town.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
        if refused {
            town.refused(shift(S1, "b", "c"), Kind::Refused, "less strict than zone-strict");
            town.refused(add(S1, "c"), Kind::Refused, "choose a node elsewhere");
            let mut warnings = town
                .done(Command::DrainNode { node: node("b"), reason: "x".into(), max_down: None })
                .warnings;
            assert!(warnings.pop().unwrap().contains("no node could take shard s1"));
        } else {
            assert!(town.done(shift(S1, "b", "c")).warnings.is_empty());
        }
    }
}

#[test]
fn leadership_goes_to_a_live_replica_under_a_new_epoch() {
    let mut town = town(&["a", "b", "c"], &["a", "b"]);
    let epoch = town.shard("users", 1).epoch;
    town.done(lead(S1, "b"));
    town.rounds(2);
    assert_eq!(town.homes("users", 1), ["b", "a"]);
    assert!(town.shard("users", 1).epoch > epoch);
    let again = town.done(lead(S1, "b"));
    assert!(again.plan.is_none() && again.summary.contains("already"));
    town.refused(lead(S1, "c"), Kind::NotFound, "it is on a, b");
    town.broken.insert(node("c"));
    town.run(add(S1, "c"), false).unwrap();
    town.rounds(1);
    town.refused(lead(S1, "c"), Kind::Conflict, "is in Load");
}

#[test]
fn replicas_come_and_go_but_never_the_last() {
    let mut town = town(&["a", "b"], &["a"]);
    town.refused(take(S1, "a"), Kind::Refused, "the last one of shard s1");
    town.refused(add(S1, "a"), Kind::AlreadyExists, "choose another node");
    let answer = town.done(add(S1, "b"));
    assert!(answer.warnings[0].contains("wants 1 replica and has 1"), "{answer:?}");
    town.refused(take(S1, "a"), Kind::Refused, "the last one of shard s1 that serves");
    town.rounds(3);
    let answer = town.done(take(S1, "a"));
    assert!(answer.warnings.is_empty(), "{answer:?}");
    town.rounds(4);
    assert_eq!(town.homes("users", 1), ["b"]);
    town.refused(take(S1, "a"), Kind::NotFound, "it is on b");
}

#[test]
fn hash_ranges_split_at_the_middle_or_at_points() {
    let mut town = town(&["a", "b"], &["a"]);
    town.done(split(S1, SplitAt::Middle));
    town.rounds(1);
    assert!(
        town.cluster.keyspaces[&name("users")].map.shards().any(|s| matches!(s.stage(), Stage::Forming(_)))
    );
    town.refused(split(S1, SplitAt::Middle), Kind::Conflict, "being split or merged already");
    town.rounds(6);
    let halves = [(2, "[0000000000000000, 7fffffffffffffff]"), (3, "[8000000000000000, ffffffffffffffff]")];
    assert_eq!(bounds(&town), halves.map(|(id, text)| (id, text.to_owned())));
    assert_eq!(town.homes("users", 2), ["a"]);
    let s2 = ShardId(2);
    town.refused(split(s2, SplitAt::Points(vec![])), Kind::Invalid, "no point");
    town.refused(split(s2, SplitAt::Points(vec![0])), Kind::Invalid, "not above");
    town.refused(split(s2, SplitAt::Points(vec![9, 9])), Kind::Invalid, "not above");
    town.refused(split(s2, SplitAt::Points(vec![1 << 63])), Kind::Invalid, "inside");
    town.refused(split(s2, SplitAt::Keys(vec![key("k")])), Kind::Invalid, "hash ranges at points");
    town.refused(split(S1, SplitAt::Middle), Kind::NotFound, "no shard s1");
    town.done(split(s2, SplitAt::Points(vec![1, 2])));
    town.rounds(6);
    town.refused(split(ShardId(4), SplitAt::Middle), Kind::Refused, "single point");
    assert_eq!(crate::check::map(&town.cluster.keyspaces[&name("users")].map), vec![]);
}

#[test]
fn children_begin_where_their_parent_is_and_are_led_where_it_was_led() {
    let mut town = town(&["a", "b"], &["a", "b"]);
    town.done(lead(S1, "b"));
    town.rounds(2);
    town.done(split(S1, SplitAt::Middle));
    town.rounds(6);
    assert_eq!([town.homes("users", 2), town.homes("users", 3)], [["b", "a"], ["b", "a"]]);
}

#[test]
fn key_ranges_split_at_the_reported_median_or_at_keys() {
    let mut town = Town::new(&["a"]);
    town.keyspace("users", Sharding::KeyRange, Presplit::None);
    town.refused(split(S1, SplitAt::Keys(vec![key("m")])), Kind::Conflict, "on no node");
    town.put("users", 1, &["a"]);
    town.refused(split(S1, SplitAt::Middle), Kind::Refused, "no median key");
    town.refused(split(S1, SplitAt::Points(vec![1])), Kind::Invalid, "key ranges at keys");
    town.refused(split(S1, SplitAt::Keys(vec![])), Kind::Invalid, "no key");
    town.refused(split(S1, SplitAt::Keys(vec![key("")])), Kind::Invalid, "not above");
    town.loads.insert(S1, Load { profile: Profile::new(vec![], Some(key("m"))), ..Load::default() });
    town.rounds(1);
    town.done(split(S1, SplitAt::Middle));
    town.rounds(6);
    town.done(split(ShardId(2), SplitAt::Keys(vec![key("c"), key("f")])));
    town.rounds(6);
    let texts: Vec<_> = bounds(&town).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, [r#"["m", "")"#, r#"["", "c")"#, r#"["c", "f")"#, r#"["f", "m")"#]);
    town.refused(split(ShardId(4), SplitAt::Keys(vec![key("x")])), Kind::Invalid, "inside");
}

#[test]
fn neighbours_merge_where_the_heavier_one_is() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("users", HASHES, Presplit::HashRanges(3));
    for (shard, home) in [(1, "a"), (2, "b"), (3, "b")] {
        town.put("users", shard, &[home]);
    }
    town.loads.insert(ShardId(2), Load { size_bytes: 9, ..Load::default() });
    town.rounds(1);
    town.refused(merge(1, 3), Kind::Invalid, "does not begin where shard s1 ends");
    town.refused(merge(2, 1), Kind::Invalid, "the lower one first");
    town.refused(merge(1, 1), Kind::Invalid, "does not begin where");
    town.done(merge(1, 2));
    town.rounds(1);
    town.refused(merge(2, 3), Kind::Conflict, "being split or merged already");
    town.rounds(6);
    assert_eq!(bounds(&town).iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(town.homes("users", 4), ["b"]);
    let resharding = Resharding { min_shards: 2, ..Resharding::default() };
    let changes = Box::new(KeyspaceChanges { resharding: Some(resharding), ..KeyspaceChanges::default() });
    town.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
    town.refused(merge(4, 3), Kind::Refused, "its min_shards is 2");
}

#[test]
fn the_most_shards_and_closed_nodes_stop_a_split() {
    let mut town = town(&["a", "b"], &["a"]);
    let resharding = Resharding { max_shards: 1, ..Resharding::default() };
    let changes = Box::new(KeyspaceChanges { resharding: Some(resharding), ..KeyspaceChanges::default() });
    town.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
    town.refused(split(S1, SplitAt::Middle), Kind::Refused, "its max_shards is 1");
    let changes = KeyspaceChanges { resharding: Some(Resharding::default()), ..KeyspaceChanges::default() };
    town.done(Command::UpdateKeyspace { keyspace: name("users"), changes: Box::new(changes), ahead: false });
    town.cluster.record.brake = Some("so that nothing moves by itself".into());
    let drain = Command::DrainNode { node: node("a"), reason: "test".into(), max_down: None };
    town.run(drain, false).unwrap();
    town.refused(split(S1, SplitAt::Middle), Kind::Refused, "would begin on node a, but it is to be emptied");
}

#[test]
fn fixed_bounds_are_neither_split_nor_merged_nor_isolated() {
    let mut town = Town::new(&["a"]);
    town.keyspace("users", Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 2 }, Presplit::None);
    town.refused(split(S1, SplitAt::Middle), Kind::Refused, "partage keyspace update users --shards N");
    town.refused(merge(1, 2), Kind::Refused, "fixed bounds");
    town.refused(isolate("k"), Kind::Refused, "fixed bounds");
    let mut town = Town::new(&["a"]);
    town.keyspace("users", Sharding::Named, Presplit::Names(partitions(&["k"])));
    town.refused(split(S1, SplitAt::Middle), Kind::Refused, "a named partition is whole");
    town.refused(isolate("k"), Kind::Refused, "a named partition is whole");
    town.refused(isolate("other"), Kind::Refused, "its partition is not registered");
}

#[test]
fn k12_a_hot_key_gets_a_shard_of_its_own() {
    let mut town = town(&["a"], &["a"]);
    town.done(isolate("hot"));
    town.rounds(6);
    let point = HashFunction::Xxh3_64.point(b"hot");
    let own = town.cluster.keyspaces[&name("users")].map.find(b"hot").unwrap();
    assert_eq!(own.bounds, Bounds::Hashes(HashRange { first: point, last: point }));
    assert_eq!(bounds(&town).len(), 3);
    let again = town.done(isolate("hot"));
    assert!(again.plan.is_none() && again.summary.contains("for itself already"));

    let mut town = Town::new(&["a"]);
    let by = PartitionKey::UpTo { delimiter: b'/' };
    let keyspace =
        Keyspace { mode: Mode::Manual, partition_key: by, ..settings("users", Sharding::KeyRange) };
    town.done(Command::CreateKeyspace {
        keyspace: Box::new(keyspace),
        presplit: Presplit::None,
        ahead: false,
    });
    town.put("users", 1, &["a"]);
    town.done(isolate("tenant/row-7"));
    town.rounds(6);
    let map = &town.cluster.keyspaces[&name("users")].map;
    let own = map.find(b"tenant/any").unwrap();
    let range = KeyRange::new(key("tenant"), key("tenant\0")).unwrap();
    assert_eq!(own.bounds, Bounds::Keys(range), "the whole partition is isolated");
    assert_ne!(map.find(b"tenant2/any").unwrap().id, own.id);
}

#[test]
fn a_shard_has_a_number_of_replicas_and_a_place_of_its_own() {
    let mut town = town(&["a", "b"], &["a"]);
    let set =
        |replicas| Command::SetShardReplicas { keyspace: name("users"), shard: S1, replicas, ahead: true };
    let answer = town.done(set(Some(3)));
    assert!(answer.warnings[0].contains("3 replicas and there is room for 2 now"), "{answer:?}");
    assert_eq!(town.cluster.keyspaces[&name("users")].wanted_replicas(S1), 3);
    town.refused(set(Some(0)), Kind::Invalid, "give 1 to 64");
    town.refused(set(Some(65)), Kind::Invalid, "give 1 to 64");
    town.done(set(None));
    assert!(town.cluster.keyspaces[&name("users")].record.rules.is_empty());

    town.done(pin(&["b"]));
    town.refused(pin(&["c"]), Kind::Invalid, "no node c");
    let both =
        Constraint { pinned: [node("a")].into(), excluded: [node("a")].into(), ..Constraint::default() };
    let both = Command::PinShard { keyspace: name("users"), shard: S1, constraint: both, ahead: false };
    town.refused(both, Kind::Invalid, "both pinned and excluded");
    let gpu = Constraint { labels: [Label::new("gpu").unwrap()].into(), ..Constraint::default() };
    let gpu = Command::PinShard { keyspace: name("users"), shard: S1, constraint: gpu, ahead: true };
    assert!(town.done(gpu).warnings[0].contains("there is room for 0 now"));
    let unpinned = town.done(pin(&[]));
    assert!(unpinned.summary.contains("wherever its keyspace may"));
    assert!(town.cluster.keyspaces[&name("users")].record.rules.is_empty());
}

#[test]
fn children_inherit_the_rules_of_their_parent() {
    let mut town = town(&["a", "b"], &["a"]);
    town.done(pin(&["a"]));
    town.done(split(S1, SplitAt::Middle));
    town.rounds(6);
    let rules = &town.cluster.keyspaces[&name("users")].record.rules;
    assert_eq!(rules.keys().copied().collect::<Vec<_>>(), [ShardId(2), ShardId(3)]);
    assert!(rules.values().all(|rule| rule.constraint.pinned == [node("a")].into()));
    town.check_disk();
}

#[test]
fn a20_what_was_set_aside_and_the_brake_are_released_by_a_person() {
    let mut town = town(&["a"], &["a"]);
    let release = Command::ReleaseShard { keyspace: name("users"), shard: S1 };
    town.refused(release.clone(), Kind::Refused, "is neither set aside nor held back");
    town.refused(Command::ReleaseBrake, Kind::Refused, "the brake is not on");
    let keyspace = town.cluster.keyspaces.get_mut(&name("users")).unwrap();
    let rule = ShardRule { set_aside: Some("kills nodes".into()), deaths: 3, ..ShardRule::default() };
    keyspace.record.rules.insert(S1, rule);
    town.done(release);
    assert!(town.cluster.keyspaces[&name("users")].record.rules.is_empty(), "deaths are forgotten too");
    town.cluster.record.brake = Some("many deaths".into());
    town.done(Command::ReleaseBrake);
    assert_eq!(town.cluster.record.brake, None);
}

#[test]
fn an_eventual_keyspace_is_created_again_at_once() {
    let mut town = Town::new(&["a"]);
    let eventual = Keyspace { ownership: Ownership::Eventual, ..settings("users", HASHES) };
    let create =
        Command::CreateKeyspace { keyspace: Box::new(eventual), presplit: Presplit::None, ahead: false };
    town.done(create.clone());
    town.done(Command::DeleteKeyspace { keyspace: name("users") });
    town.done(create);
}
