use super::*;
use crate::keyspace::KeyspaceKind;
use crate::map::Stage;

fn create(keyspace: Keyspace, presplit: Presplit) -> Command {
    Command::CreateKeyspace { keyspace: Box::new(keyspace), presplit, ahead: false }
}

#[test]
fn k4_each_way_to_presplit_gives_its_shards() {
    let mut town = Town::new(&["a"]);
    let fixed = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 7 };
    let sample =
        Presplit::SampleKeys { keys: ["a", "b", "c", "d"].map(key).to_vec(), weights: vec![], shards: 2 };
    let ways = [
        ("one", Sharding::KeyRange, Presplit::None, 1),
        ("points", Sharding::KeyRange, Presplit::Points(vec![key("g"), key("p")]), 3),
        ("sample", Sharding::KeyRange, sample, 2),
        ("hash", HASHES, Presplit::None, 1),
        ("hashes", HASHES, Presplit::HashRanges(16), 16),
        ("fixed", fixed, Presplit::None, 7),
        ("nobody", Sharding::Named, Presplit::None, 0),
        ("named", Sharding::Named, Presplit::Names(partitions(&["x", "y"])), 2),
    ];
    for (of, sharding, presplit, shards) in ways {
        let answer = town.done(create(settings(of, sharding), presplit));
        assert!(answer.warnings.is_empty(), "{answer:?}");
        let map = &town.cluster.keyspaces[&name(of)].map;
        assert_eq!((map.len(), map.generation().sequence), (shards, 1), "{of}");
        assert_eq!(crate::check::map(map), vec![], "{of}");
    }
}

#[test]
fn a_bad_keyspace_is_refused_with_the_way_out() {
    let mut town = Town::new(&["alpha"]);
    town.done(create(settings("users", HASHES), Presplit::None));
    town.refused(create(settings("users", HASHES), Presplit::None), Kind::AlreadyExists, "delete it first");
    let with = |change: fn(&mut Keyspace)| {
        let mut keyspace = settings("new", HASHES);
        change(&mut keyspace);
        create(keyspace, Presplit::None)
    };
    town.refused(
        with(|k| k.policy = "work-stealing".into()),
        Kind::Invalid,
        "did you mean \"work_stealing\"",
    );
    town.refused(with(|k| k.replicas = 0), Kind::Invalid, "give 1 to");
    let pin = with(|k| k.constraint.pinned = [node("alfa")].into());
    town.refused(pin, Kind::Invalid, "did you mean alpha");
    let fixed = |k: &mut Keyspace| k.sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 0 };
    town.refused(with(fixed), Kind::Invalid, "at least one shard");
    let few = |k: &mut Keyspace| k.resharding.max_shards = 0;
    town.refused(with(few), Kind::Invalid, "max_shards is 0");
    let crossed = |k: &mut Keyspace| (k.resharding.min_shards, k.resharding.max_shards) = (10, 2);
    town.refused(with(crossed), Kind::Invalid, "give at most max_shards");
}

#[test]
fn a_bad_presplit_is_refused_with_the_way_out() {
    let mut town = Town::new(&["a"]);
    let mut bad = |sharding, presplit, needle: &str| {
        town.refused(create(settings("new", sharding), presplit), Kind::Invalid, needle);
    };
    bad(Sharding::KeyRange, Presplit::Points(vec![key("b"), key("a")]), "sort them");
    bad(Sharding::KeyRange, Presplit::Points(vec![key("b"), key("b")]), "given twice");
    bad(Sharding::KeyRange, Presplit::HashRanges(4), "points and samples go with key ranges");
    bad(HASHES, Presplit::Points(vec![key("b")]), "a number of ranges with hash ranges");
    bad(HASHES, Presplit::HashRanges(0), "ask for 1 or more");
    bad(Sharding::Named, Presplit::Names(partitions(&["x", "y", "x"])), "partition x is named twice");
    let sample = |weights, shards| Presplit::SampleKeys { keys: vec![key("a"), key("b")], weights, shards };
    bad(Sharding::KeyRange, sample(vec![1], 2), "one for each key");
    bad(Sharding::KeyRange, sample(vec![], 3), "ask for at most 2");
}

#[test]
fn a_deleted_keyspace_is_gone_everywhere_and_its_ids_are_never_used_again() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("users", HASHES, Presplit::HashRanges(2));
    town.put("users", 1, &["a", "b"]);
    town.put("users", 2, &["b"]);
    let (next_shard, next_placement) = {
        let map = &town.cluster.keyspaces[&name("users")].map;
        (map.next_shard(), map.next_placement())
    };
    let transaction = town.transaction();
    let delete = Command::DeleteKeyspace { keyspace: name("users") };
    town.cluster.command(town.at, transaction, "ada", delete, false).unwrap();
    let outbox = town.flush();
    let last = outbox.maps.last().unwrap();
    assert_eq!((last.removed.len(), last.changed.len(), last.to.transaction), (2, 0, transaction));
    assert_eq!(outbox.orders, BTreeSet::from([node("a"), node("b")]));
    for id in ["a", "b"] {
        let orders = town.cluster.orders_since(&node(id), 0, None).unwrap();
        assert!(orders.changed.is_empty(), "{id} still holds something");
    }
    assert!(town.cluster.plans.values().all(|plan| plan.keyspace != name("users")));
    town.check_disk();

    let again = create(Keyspace { mode: Mode::Manual, ..settings("users", HASHES) }, Presplit::None);
    town.refused(again.clone(), Kind::Conflict, "its last owners may not know yet");
    // The next leader does not know when that was.
    let (settings, records) = (town.cluster.settings().clone(), town.cluster.records());
    let mut next = Cluster::recover(town.at, settings, records).unwrap();
    let refused = next.command(town.at, town.transaction(), "ada", again.clone(), false).unwrap_err();
    assert!(refused.to_string().contains("its last owners may not know yet"), "{refused}");
    // A lease of 3 s is over by every clock only when its drift is over too.
    town.rounds(6);
    town.refused(again.clone(), Kind::Conflict, "its last owners may not know yet");
    town.rounds(1);
    town.done(again);
    let map = &town.cluster.keyspaces[&name("users")].map;
    assert_eq!(map.shards().map(|shard| shard.id).collect::<Vec<_>>(), [next_shard]);
    assert_eq!(map.next_placement(), next_placement);
    town.rounds(2);
    town.check_disk();
}

#[test]
fn an_unknown_keyspace_is_told_the_nearest() {
    let mut town = Town::new(&["a"]);
    town.keyspace("users", HASHES, Presplit::None);
    let delete = |of| Command::DeleteKeyspace { keyspace: name(of) };
    town.refused(delete("usres"), Kind::NotFound, "did you mean users");
    town.refused(delete("something-else"), Kind::NotFound, "list the keyspaces");
}

#[test]
fn what_may_change_changes_and_nothing_else() {
    let mut town = Town::new(&["a"]);
    town.keyspace("users", HASHES, Presplit::None);
    let update = |changes| Command::UpdateKeyspace {
        keyspace: name("users"),
        changes: Box::new(changes),
        ahead: true,
    };
    let none = KeyspaceChanges::default;
    let before = town.cluster.keyspaces[&name("users")].record.keyspace.clone();
    let answer =
        town.done(update(KeyspaceChanges { replicas: Some(2), mode: Some(Mode::Suggested), ..none() }));
    assert!(answer.summary.contains("replicas from 1 to 2, mode from manual to suggested"), "{answer:?}");
    assert_eq!(answer.warnings.len(), 1);
    let after = &town.cluster.keyspaces[&name("users")].record.keyspace;
    assert_eq!(*after, Keyspace { replicas: 2, mode: Mode::Suggested, ..before });
    town.refused(update(none()), Kind::Invalid, "nothing to change");
    let policy = KeyspaceChanges { policy: Some("wrok_stealing".into()), ..none() };
    town.refused(update(policy), Kind::Invalid, "did you mean");
    town.refused(update(KeyspaceChanges { replicas: Some(65), ..none() }), Kind::Invalid, "1 to 64");
}

#[test]
fn s18_a_dataset_s_replicas_follow_its_settings_until_somebody_sets_them() {
    let mut town = Town::new(&["a", "b", "c"]);
    let made = Keyspace {
        kind: KeyspaceKind::Dataset,
        replicas: 2,
        dataset_replication: Some(2),
        ..settings("names", HASHES)
    };
    // Whose nodes are still to join.
    town.done(Command::CreateKeyspace { keyspace: Box::new(made), presplit: Presplit::None, ahead: true });
    town.keyspace("users", HASHES, Presplit::None);
    let update = |of: &str, changes| Command::UpdateKeyspace {
        keyspace: name(of),
        changes: Box::new(changes),
        ahead: true,
    };
    let says = |said| KeyspaceChanges { dataset_replication: Some(said), ..KeyspaceChanges::default() };
    let by_hand = |replicas| KeyspaceChanges { replicas: Some(replicas), ..KeyspaceChanges::default() };
    let now = |town: &Town| {
        let keyspace = &town.cluster.keyspaces[&name("names")].record.keyspace;
        (keyspace.replicas, keyspace.dataset_replication)
    };
    assert!(town.done(update("names", says(3))).summary.contains("replicas from 2 to 3"));
    assert_eq!(now(&town), (3, Some(3)));
    assert!(town.done(update("names", says(3))).summary.contains("nothing differs"), "told once more");
    town.done(update("names", by_hand(1)));
    // A node that comes late with what all have heard, and then other settings: what was set by hand stays.
    town.done(update("names", says(3)));
    assert_eq!(now(&town), (1, Some(3)));
    assert!(town.done(update("names", says(2))).summary.contains("were set by hand and stay"));
    assert_eq!(now(&town), (1, Some(2)));
    // Set to what the settings say, it follows them again.
    town.done(update("names", by_hand(2)));
    town.done(update("names", says(3)));
    assert_eq!(now(&town), (3, Some(3)));
    town.refused(update("names", says(65)), Kind::Invalid, "1 to 64");
    town.refused(update("users", says(2)), Kind::Invalid, "belongs to no dataset");
}

fn register(names: &[&str], replicas: Option<u32>) -> Command {
    Command::RegisterPartitions {
        keyspace: name("parts"),
        partitions: partitions(names),
        replicas,
        ahead: false,
    }
}

fn unregister(names: &[&str]) -> Command {
    Command::UnregisterPartitions { keyspace: name("parts"), partitions: partitions(names) }
}

#[test]
fn a1_partitions_come_with_replicas_of_their_own() {
    let mut town = Town::new(&["a", "b", "c"]);
    town.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x"])));
    town.done(register(&["y", "z"], Some(3)));
    let keyspace = &town.cluster.keyspaces[&name("parts")];
    assert_eq!([1, 2, 3].map(|id| keyspace.wanted_replicas(ShardId(id))), [1, 3, 3]);
    assert_eq!(keyspace.map.find(b"z").map(|shard| shard.id), Some(ShardId(3)));
    town.refused(register(&["w", "y", "z"], None), Kind::AlreadyExists, "y, z");
    town.refused(register(&["w", "w"], None), Kind::Invalid, "w is named twice");
    town.refused(register(&[], None), Kind::Invalid, "name at least one");
    town.refused(register(&["w"], Some(0)), Kind::Invalid, "give 1 to 64");
    town.keyspace("ranges", HASHES, Presplit::None);
    let other = Command::RegisterPartitions {
        keyspace: name("ranges"),
        partitions: partitions(&["w"]),
        replicas: None,
        ahead: false,
    };
    town.refused(other, Kind::Refused, "create one with named partitions");
}

#[test]
fn a1_an_unregistered_partition_unloads_everywhere_before_its_shard_goes() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x", "y"])));
    town.done(register(&["z"], Some(2)));
    town.put("parts", 1, &["a"]);
    town.put("parts", 3, &["a", "b"]);
    town.refused(unregister(&["x", "q"]), Kind::NotFound, "has no partition q");
    town.refused(unregister(&["x", "x"]), Kind::Invalid, "named twice");

    town.broken.insert(node("b"));
    let epoch = town.shard("parts", 3).epoch;
    town.done(unregister(&["z", "y"]));
    let shard = town.shard("parts", 3);
    assert_eq!((shard.stage(), shard.epoch > epoch), (&Stage::Removing, true));
    assert!(town.cluster.keyspaces[&name("parts")].map.find(b"z").is_none(), "it answers no more");
    town.rounds(4);
    assert_eq!(town.homes("parts", 3), ["b"], "the one that cannot unload holds it up, and no other");
    assert!(town.cluster.keyspaces[&name("parts")].map.shard(ShardId(2)).is_none(), "y was nowhere");
    town.refused(register(&["z"], None), Kind::Conflict, "still being removed");
    town.refused(unregister(&["z"]), Kind::NotFound, "has no partition z");

    town.broken.clear();
    town.rounds(4);
    let keyspace = &town.cluster.keyspaces[&name("parts")];
    assert_eq!(keyspace.map.shards().map(|shard| shard.id).collect::<Vec<_>>(), [ShardId(1)]);
    assert!(keyspace.record.rules.is_empty(), "its rule goes with it");
    town.done(register(&["z"], None));
    town.check_disk();
}

#[test]
fn a_partition_on_a_dead_node_is_removed_when_the_node_is_buried() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x"])));
    town.put("parts", 1, &["b"]);
    town.kill("b");
    town.done(unregister(&["x"]));
    town.rounds(3);
    assert_eq!(town.cluster.keyspaces[&name("parts")].map.len(), 1, "its lease may still hold");
    town.rounds(10);
    assert!(town.cluster.keyspaces[&name("parts")].map.is_empty());
}
