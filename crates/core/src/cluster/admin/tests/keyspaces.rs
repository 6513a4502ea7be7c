use super::*;
use crate::keyspace::map::Stage;
use crate::keyspace::{KeyspaceKind, Ownership};

fn create(keyspace: Keyspace, presplit: Presplit) -> Command {
    Command::CreateKeyspace { keyspace: Box::new(keyspace), presplit, ahead: false }
}

#[test]
fn k4_each_way_to_presplit_gives_its_shards() {
    let mut test = AdminTestCluster::new(&["a"]);
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
        let answer = test.done(create(settings(of, sharding), presplit));
        assert!(answer.warnings.is_empty(), "{answer:?}");
        let map = &test.cluster.keyspaces.by_name[&name(of)].map;
        assert_eq!((map.len(), map.generation().sequence), (shards, 1), "{of}");
        assert_eq!(crate::plan::check::map(map), vec![], "{of}");
    }
}

#[test]
fn a_bad_keyspace_is_refused_with_the_way_out() {
    let mut test = AdminTestCluster::new(&["alpha"]);
    test.done(create(settings("users", HASHES), Presplit::None));
    test.refused(create(settings("users", HASHES), Presplit::None), Kind::AlreadyExists, "delete it first");
    let with = |change: fn(&mut Keyspace)| {
        let mut keyspace = settings("new", HASHES);
        change(&mut keyspace);
        create(keyspace, Presplit::None)
    };
    test.refused(
        with(|k| k.policy = "work-stealing".into()),
        Kind::Invalid,
        "did you mean \"work_stealing\"",
    );
    test.refused(with(|k| k.replicas = 0), Kind::Invalid, "give 1 to");
    let pin = with(|k| k.constraint.pinned = [node("alfa")].into());
    test.refused(pin, Kind::Invalid, "did you mean alpha");
    let fixed = |k: &mut Keyspace| k.sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 0 };
    test.refused(with(fixed), Kind::Invalid, "at least one shard");
    let few = |k: &mut Keyspace| k.resharding.max_shards = 0;
    test.refused(with(few), Kind::Invalid, "max_shards is 0");
    let crossed = |k: &mut Keyspace| (k.resharding.min_shards, k.resharding.max_shards) = (10, 2);
    test.refused(with(crossed), Kind::Invalid, "give at most max_shards");
    let json = |k: &mut Keyspace| k.values = crate::keyspace::RowValues::Json;
    test.refused(with(json), Kind::Invalid, "leave values out");
    let replicated = |k: &mut Keyspace| {
        (k.ownership, k.durable, k.min_in_sync) = (Ownership::Replicated, true, 1);
    };
    test.refused(with(replicated), Kind::Refused, "only tables replicate their shards");
    let leased = |k: &mut Keyspace| k.kind = KeyspaceKind::Table;
    test.refused(with(leased), Kind::Refused, "choose ownership replicated");
}

#[test]
fn a_bad_presplit_is_refused_with_the_way_out() {
    let mut test = AdminTestCluster::new(&["a"]);
    let mut bad = |sharding, presplit, needle: &str| {
        test.refused(create(settings("new", sharding), presplit), Kind::Invalid, needle);
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
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::HashRanges(2));
    test.put("users", 1, &["a", "b"]);
    test.put("users", 2, &["b"]);
    let (next_shard, next_placement) = {
        let map = &test.cluster.keyspaces.by_name[&name("users")].map;
        (map.next_shard(), map.next_placement())
    };
    let transaction = test.transaction();
    let delete = Command::DeleteKeyspace { keyspace: name("users") };
    test.cluster.command(test.at, transaction, "ada", delete).unwrap();
    let outbox = test.flush();
    let last = outbox.maps.last().unwrap();
    assert_eq!((last.removed.len(), last.changed.len(), last.to.transaction), (2, 0, transaction));
    assert_eq!(outbox.changed_orders, BTreeSet::from([node("a"), node("b")]));
    for id in ["a", "b"] {
        let orders = test.cluster.orders_since(&node(id), 0, None).unwrap();
        assert!(orders.changed.is_empty(), "{id} still holds something");
    }
    assert!(test.cluster.plans.by_id.values().all(|plan| plan.keyspace != name("users")));
    test.check_disk();

    let again = create(Keyspace { mode: Mode::Manual, ..settings("users", HASHES) }, Presplit::None);
    test.refused(again.clone(), Kind::Conflict, "its last owners may not know yet");
    // The next leader does not know when that was.
    let (settings, records) = (test.cluster.settings().clone(), test.cluster.records());
    let mut next = Cluster::recover(test.at, settings, records).unwrap();
    let refused = next.command(test.at, test.transaction(), "ada", again.clone()).unwrap_err();
    assert!(refused.to_string().contains("its last owners may not know yet"), "{refused}");
    // A lease of 3 s is over by every clock only when its drift is over too.
    test.rounds(6);
    test.refused(again.clone(), Kind::Conflict, "its last owners may not know yet");
    test.rounds(1);
    test.done(again);
    let map = &test.cluster.keyspaces.by_name[&name("users")].map;
    assert_eq!(map.shards().map(|shard| shard.id).collect::<Vec<_>>(), [next_shard]);
    assert_eq!(map.next_placement(), next_placement);
    test.rounds(2);
    test.check_disk();
}

#[test]
fn an_unknown_keyspace_is_told_the_nearest() {
    let mut test = AdminTestCluster::new(&["a"]);
    test.keyspace("users", HASHES, Presplit::None);
    let delete = |of| Command::DeleteKeyspace { keyspace: name(of) };
    test.refused(delete("usres"), Kind::NotFound, "did you mean users");
    test.refused(delete("something-else"), Kind::NotFound, "list the keyspaces");
}

#[test]
fn what_may_change_changes_and_nothing_else() {
    let mut test = AdminTestCluster::new(&["a"]);
    test.keyspace("users", HASHES, Presplit::None);
    let update = |changes| Command::UpdateKeyspace {
        keyspace: name("users"),
        changes: Box::new(changes),
        ahead: true,
    };
    let none = KeyspaceChanges::default;
    let before = test.cluster.keyspaces.by_name[&name("users")].record.keyspace.clone();
    let answer =
        test.done(update(KeyspaceChanges { replicas: Some(2), mode: Some(Mode::Suggested), ..none() }));
    assert!(answer.summary.contains("replicas from 1 to 2, mode from manual to suggested"), "{answer:?}");
    assert_eq!(answer.warnings.len(), 1);
    let after = &test.cluster.keyspaces.by_name[&name("users")].record.keyspace;
    assert_eq!(*after, Keyspace { replicas: 2, mode: Mode::Suggested, ..before });
    test.refused(update(none()), Kind::Invalid, "nothing to change");
    let policy = KeyspaceChanges { policy: Some("wrok_stealing".into()), ..none() };
    test.refused(update(policy), Kind::Invalid, "did you mean");
    test.refused(update(KeyspaceChanges { replicas: Some(65), ..none() }), Kind::Invalid, "1 to 64");
}

#[test]
fn s18_a_dataset_s_replicas_follow_its_settings_until_somebody_sets_them() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    let made = Keyspace {
        kind: KeyspaceKind::Dataset,
        replicas: 2,
        dataset_replication: Some(2),
        ..settings("names", HASHES)
    };
    // Whose nodes are still to join.
    test.done(Command::CreateKeyspace { keyspace: Box::new(made), presplit: Presplit::None, ahead: true });
    test.keyspace("users", HASHES, Presplit::None);
    let update = |of: &str, changes| Command::UpdateKeyspace {
        keyspace: name(of),
        changes: Box::new(changes),
        ahead: true,
    };
    let says = |said| KeyspaceChanges { dataset_replication: Some(said), ..KeyspaceChanges::default() };
    let by_hand = |replicas| KeyspaceChanges { replicas: Some(replicas), ..KeyspaceChanges::default() };
    let now = |test: &AdminTestCluster| {
        let keyspace = &test.cluster.keyspaces.by_name[&name("names")].record.keyspace;
        (keyspace.replicas, keyspace.dataset_replication)
    };
    assert!(test.done(update("names", says(3))).summary.contains("replicas from 2 to 3"));
    assert_eq!(now(&test), (3, Some(3)));
    assert!(test.done(update("names", says(3))).summary.contains("nothing differs"), "told once more");
    test.done(update("names", by_hand(1)));
    // A node that comes late with what all have heard, and then other settings: what was set by hand stays.
    test.done(update("names", says(3)));
    assert_eq!(now(&test), (1, Some(3)));
    assert!(test.done(update("names", says(2))).summary.contains("were set by hand and stay"));
    assert_eq!(now(&test), (1, Some(2)));
    // Set to what the settings say, it follows them again.
    test.done(update("names", by_hand(2)));
    test.done(update("names", says(3)));
    assert_eq!(now(&test), (3, Some(3)));
    test.refused(update("names", says(65)), Kind::Invalid, "1 to 64");
    test.refused(update("users", says(2)), Kind::Invalid, "belongs to no dataset");
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
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x"])));
    test.done(register(&["y", "z"], Some(3)));
    let keyspace = &test.cluster.keyspaces.by_name[&name("parts")];
    assert_eq!([1, 2, 3].map(|id| keyspace.wanted_replicas(ShardId(id))), [1, 3, 3]);
    assert_eq!(keyspace.map.find(b"z").map(|shard| shard.id), Some(ShardId(3)));
    test.refused(register(&["w", "y", "z"], None), Kind::AlreadyExists, "y, z");
    test.refused(register(&["w", "w"], None), Kind::Invalid, "w is named twice");
    test.refused(register(&[], None), Kind::Invalid, "name at least one");
    test.refused(register(&["w"], Some(0)), Kind::Invalid, "give 1 to 64");
    test.keyspace("ranges", HASHES, Presplit::None);
    let other = Command::RegisterPartitions {
        keyspace: name("ranges"),
        partitions: partitions(&["w"]),
        replicas: None,
        ahead: false,
    };
    test.refused(other, Kind::Refused, "create one with named partitions");
}

#[test]
fn a1_an_unregistered_partition_unloads_everywhere_before_its_shard_goes() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x", "y"])));
    test.done(register(&["z"], Some(2)));
    test.put("parts", 1, &["a"]);
    test.put("parts", 3, &["a", "b"]);
    test.refused(unregister(&["x", "q"]), Kind::NotFound, "has no partition q");
    test.refused(unregister(&["x", "x"]), Kind::Invalid, "named twice");

    test.broken.insert(node("b"));
    let epoch = test.shard("parts", 3).epoch;
    test.done(unregister(&["z", "y"]));
    let shard = test.shard("parts", 3);
    assert_eq!((shard.stage(), shard.epoch > epoch), (&Stage::Removing, true));
    assert!(test.cluster.keyspaces.by_name[&name("parts")].map.find(b"z").is_none(), "it answers no more");
    test.rounds(4);
    assert_eq!(test.homes("parts", 3), ["b"], "the one that cannot unload holds it up, and no other");
    assert!(test.cluster.keyspaces.by_name[&name("parts")].map.shard(ShardId(2)).is_none(), "y was nowhere");
    test.refused(register(&["z"], None), Kind::Conflict, "still being removed");
    test.refused(unregister(&["z"]), Kind::NotFound, "has no partition z");

    test.broken.clear();
    test.rounds(4);
    let keyspace = &test.cluster.keyspaces.by_name[&name("parts")];
    assert_eq!(keyspace.map.shards().map(|shard| shard.id).collect::<Vec<_>>(), [ShardId(1)]);
    assert!(keyspace.record.rules.is_empty(), "its rule goes with it");
    test.done(register(&["z"], None));
    test.check_disk();
}

#[test]
fn a_partition_on_a_dead_node_is_removed_when_the_node_is_buried() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("parts", Sharding::Named, Presplit::Names(partitions(&["x"])));
    test.put("parts", 1, &["b"]);
    test.kill("b");
    test.done(unregister(&["x"]));
    test.rounds(3);
    assert_eq!(test.cluster.keyspaces.by_name[&name("parts")].map.len(), 1, "its lease may still hold");
    test.rounds(10);
    assert!(test.cluster.keyspaces.by_name[&name("parts")].map.is_empty());
}

#[test]
fn the_number_of_slots_of_a_pool_of_shuffles_does_not_change() {
    let mut test = AdminTestCluster::new(&["a"]);
    let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 4 };
    let pool = Keyspace {
        kind: KeyspaceKind::Shuffle,
        ownership: Ownership::Eventual,
        ..settings("pool", sharding)
    };
    test.done(Command::CreateKeyspace { keyspace: Box::new(pool), presplit: Presplit::None, ahead: true });
    let changes = Box::new(KeyspaceChanges { shards: Some(8), ..KeyspaceChanges::default() });
    let more = Command::UpdateKeyspace { keyspace: name("pool"), changes, ahead: true };
    test.refused(more, Kind::Refused, "create another pool");
}
