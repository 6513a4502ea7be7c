//! A stored state that is older than what workers were told: the coordinator commands nobody by it, says so, and goes on
//! with numbers that were never given out.

use super::super::ClusterRecord;
use super::super::admin::{Command, Presplit};
use super::super::serving::Serving;
use super::super::{
    Cluster, LaterMap, LaterMaps, Moment, Records, RegisterError, StoredFaults, Write, note_later,
};
use super::disks::Disks;
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{ClusterId, Epoch, Generation, PlacementId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::time::Millis;
use crate::keyspace::Keyspace;
use crate::keyspace::map::Shard;
use crate::keyspace::sharding::{Bounds, Slot};
use crate::limits;
use crate::node::NodeSpec;
use crate::node::exchange::Registration;
use crate::node::exchange::{Beat, Known, ReplicaKey, Stored};
use crate::node::lease::GrantedLease;

const WALL_MS: u64 = 1_700_000_000_000;

/// A test cluster that has gone on, and what its disk had before.
fn set_back() -> (TestCluster, Records) {
    let mut test = TestCluster::new(keyspace(8), slots(8));
    test.join("n0");
    test.join("n1");
    test.run(3_000);
    let older = test.disk.clone();
    test.join("n2");
    test.run(20_000);
    assert!(test.map().generation().sequence > older.keyspaces[0].1.generation().sequence);
    (test, older)
}

fn known(test: &TestCluster) -> Known {
    Known { keyspace: name(), first_shard: ShardId(1), generation: test.map().generation() }
}

/// Of a keyspace that was created after the older state was kept.
fn late() -> Known {
    let generation = Generation { sequence: 3, transaction: TransactionId([7; 20]) };
    Known { keyspace: KeyspaceName::new("late").unwrap(), first_shard: ShardId(1), generation }
}

fn registration(id: &str, known: Vec<Known>) -> Registration {
    let spec = NodeSpec::new(node(id), format!("{id}:1"));
    Registration { cluster: Some(ClusterId::default()), known, ..Registration::new(spec) }
}

fn at(test: &TestCluster) -> Moment {
    Moment { wall_ms: WALL_MS, ..test.at() }
}

/// What a coordinator starts with that reads the older state, by the word of those who know more.
fn started(test: &TestCluster, mut records: Records, mut ahead: LaterMaps) -> (Cluster, LaterMaps) {
    let mut faults = StoredFaults::default();
    records.refuse_older(&mut faults, &mut ahead);
    let mended = records.mend(&mut faults, WALL_MS);
    let mut cluster = Cluster::recover(at(test), settings(), records).unwrap();
    cluster.take_faults(faults, mended);
    (cluster, ahead)
}

fn heard(all: &[Known]) -> LaterMaps {
    let mut ahead = LaterMaps::new();
    for known in all {
        note_later(&mut ahead, LaterMap { who: "node n1".to_owned(), known: known.clone() });
    }
    ahead
}

#[test]
fn d11_a_coordinator_with_older_maps_takes_nobody_in_who_was_told_of_later_ones() {
    let (test, older) = set_back();
    let mut cluster = Cluster::recover(test.at(), settings(), older).unwrap();
    let before = cluster.records();

    let fresh = registration("n5", vec![known(&test)]);
    let stranger = Registration { cluster: None, ..fresh.clone() };
    let of_before = Registration { cluster: Some(ClusterId(7)), ..fresh.clone() };
    assert!(cluster.register(test.at(), stranger).is_ok(), "who was never here can have been told nothing");
    assert!(matches!(cluster.register(test.at(), of_before), Err(RegisterError::OtherCluster { .. })));
    assert!(cluster.later_maps().is_empty());

    let refused = cluster.register(test.at(), registration("n1", vec![known(&test)]));
    let ours = Some(before.keyspaces[0].1.generation());
    let theirs = test.map().generation();
    assert_eq!(refused, Err(RegisterError::Ahead { node: node("n1"), keyspace: name(), ours, theirs }));
    assert_eq!(cluster.later_maps()[&name()].known, known(&test));
    let refused = cluster.register(test.at(), registration("n1", vec![late()]));
    assert!(matches!(refused, Err(RegisterError::Ahead { ours: None, .. })), "{refused:?}");
    assert_eq!(cluster.later_maps().len(), 2);
    assert_eq!(cluster.records().keyspaces, before.keyspaces);
}

/// A coordinator with an empty folder in the place of another one.
#[test]
fn the_status_says_that_workers_of_another_cluster_ask() {
    let mut test = TestCluster::new(keyspace(4), slots(4));
    let told = |test: &TestCluster| {
        let problems = test.cluster.status(test.at()).problems;
        problems.into_iter().find(|one| one.what.contains("of another cluster"))
    };
    assert_eq!(told(&test), None);
    for _ in 0..2 {
        let theirs = Registration { cluster: Some(ClusterId(7)), ..registration("n5", vec![]) };
        let refused = test.cluster.register(test.at(), theirs);
        assert!(matches!(refused, Err(RegisterError::OtherCluster { .. })));
    }
    let problem = told(&test).unwrap();
    assert!(problem.what.contains(&format!("such as n5 of cluster {}", ClusterId(7))), "{problem}");
    assert!(problem.what.contains("2 registrations were refused"), "{problem}");
    assert!(problem.way_out.contains("restore"), "{problem}");
    test.now += limits::FOREIGN_SHOWN_MS;
    assert_eq!(told(&test), None, "they have gone to their own");
}

/// Seen in the simulator (seed 797, touched and durable): every process was started anew between the finding and the mending, a
/// person released the brake, and shards that had data began empty.
#[test]
fn d10_a_coordinator_of_whom_nobody_tells_anything_keeps_what_an_earlier_one_has_found() {
    let (test, older) = set_back();
    let (earlier, _) = started(&test, older.clone(), heard(&[known(&test)]));
    // What it stores when it begins, beside the older state.
    let stored = Records { cluster: earlier.records().cluster, ..older };
    assert_eq!(stored.cluster.later_maps, [known(&test)]);
    let released = Records { cluster: ClusterRecord { brake: None, ..stored.cluster.clone() }, ..stored };
    let (cluster, ahead) = started(&test, released.clone(), LaterMaps::new());
    assert!(cluster.keyspaces().is_empty() && cluster.faults().quarantine.contains_key(&name()));
    assert_eq!(cluster.brake(), None, "a person has seen to that");
    assert_eq!(cluster.records().cluster.later_maps, [known(&test)]);
    assert_eq!(ahead.len(), 1);

    // It is stored, too, where the keyspace is in quarantine for another reason already.
    let mut unread = Records { keyspaces: vec![], ..test.disk.clone() };
    let quarantine = [(name(), "its key cannot be read".to_owned())].into();
    let mut faults = StoredFaults { quarantine, ..StoredFaults::default() };
    unread.refuse_older(&mut faults, &mut heard(&[known(&test)]));
    let writes = unread.mend(&mut faults, WALL_MS);
    assert!(
        matches!(&writes[..], [Write::Cluster(record)] if record.later_maps == [known(&test)]),
        "{writes:?}"
    );

    // The newest map of the keyspace is written again, or all of it restored from a backup.
    let mended = Records { keyspaces: test.disk.keyspaces.clone(), ..released.clone() };
    let (cluster, _) = started(&test, mended, LaterMaps::new());
    assert!(cluster.faults().is_empty() && cluster.records().cluster.later_maps.is_empty());
    let (cluster, _) = started(&test, released.after_loss(WALL_MS), LaterMaps::new());
    assert!(cluster.faults().is_empty() && cluster.keyspaces().len() == 1);
}

/// Seen in the simulator (seed 40388, touched and durable): a backend was restored from an older snapshot, and every process was
/// started anew before anybody told of it. A merge was made again, and what had been acknowledged since the first was lost.
#[test]
fn d10_what_a_new_process_has_stored_tells_of_a_later_map() {
    let mut test = TestCluster::new(Keyspace { durable: true, ..keyspace(4) }, slots(4));
    test.disks = Some(Disks::default());
    test.run(BEAT_MS);
    let unplaced = test.cluster.records();
    test.join("n0");
    test.run(3_000);
    let older = [unplaced, test.cluster.records()];
    let shard = test.map().shards().next().unwrap().clone();
    let shard_bounds = &shard.bounds;
    let stored = |shard: ShardId, placement: PlacementId, epoch: Epoch| Stored {
        replica: ReplicaKey { keyspace: name(), shard, placement },
        bounds: shard_bounds.clone(),
        epoch,
        store: 1,
        damaged: false,
    };
    let (own, epoch) = (shard.replicas[0].placement, shard.epoch);
    let register_of = |records: &Records, stored: Stored, cluster: u128, stored_of: Option<ClusterId>| {
        let mut ours = Cluster::recover(test.at(), settings(), records.clone()).unwrap();
        let anew = Registration {
            stored_of,
            cluster: Some(ClusterId(cluster)),
            stored: vec![stored],
            ..registration("n0", vec![])
        };
        let answer = ours.register(test.at(), anew);
        (answer, ours.later_maps().clone())
    };
    let register = |records: &Records, stored: Stored, cluster: u128| {
        register_of(records, stored, cluster, Some(ClusterId(cluster)))
    };
    let (next_shard, next_placement) = (test.map().next_shard(), test.map().next_placement());
    let same = stored(shard.id, own, epoch);
    let later = [
        // Before anything was placed.
        (&older[0], same.clone()),
        (&older[1], stored(shard.id, own, epoch.next())),
        (&older[1], stored(shard.id, next_placement, epoch)),
        (&older[1], stored(next_shard, own, epoch)),
    ];
    for (records, stored) in later {
        let (answer, ahead) = register(records, stored.clone(), 0);
        assert!(matches!(answer, Err(RegisterError::Ahead { .. })), "{stored:?}: {answer:?}");
        let (mut cluster, kept) = started(&test, records.clone(), ahead.clone());
        assert!(cluster.faults().quarantine[&name()].contains("node n0, which has stored p"), "{stored:?}");
        assert!(cluster.register(test.at(), registration("n0", vec![])).is_ok());
        // The newest state is later than both, or the backup of a restore is.
        let newest = Records { keyspaces: test.disk.keyspaces.clone(), ..records.clone() };
        let goes_on = records.keyspaces[0].1.generation() == test.map().generation();
        let (cluster, _) = started(&test, newest, kept);
        assert_eq!(cluster.faults().is_empty(), !goes_on, "{stored:?}");
        // What cannot be read says nothing, nor does a disk of which nobody knows the cluster, whichever has taken the
        // process in since; nor one of another cluster.
        let damaged = Stored { damaged: true, ..stored.clone() };
        assert_eq!(register(records, damaged, 0).1, LaterMaps::new());
        let (answer, ahead) = register_of(records, stored.clone(), 0, None);
        assert!(answer.is_ok() && ahead.is_empty(), "{answer:?}");
        let (answer, ahead) = register(records, stored, 7);
        assert!(ahead.is_empty() && matches!(answer, Err(RegisterError::OtherCluster { .. })), "{answer:?}");
    }
    assert!(register(&older[1], same, 0).0.is_ok());
}

/// The keyspace was created after the older state was kept. Whichever of its shards is stored, the newest state has it.
#[test]
fn d10_stored_data_of_a_keyspace_without_a_record_is_no_later_than_the_newest_state() {
    let mut test = TestCluster::new(Keyspace { durable: true, ..keyspace(4) }, slots(4));
    test.join("n0");
    test.run(3_000);
    let newest = test.cluster.records();
    let older = Records { keyspaces: vec![], plans: vec![], ..newest.clone() };
    let shard = test.map().shards().last().unwrap();
    assert!(shard.id > newest.keyspaces[0].0.first_shard && older.cluster.next_shard <= shard.id);
    let stored = |shard_id: ShardId| Stored {
        replica: ReplicaKey { keyspace: name(), shard: shard_id, placement: PlacementId(1) },
        bounds: shard.bounds.clone(),
        epoch: shard.epoch,
        store: 1,
        damaged: false,
    };
    let register = |stored: Stored| {
        let mut ours = Cluster::recover(at(&test), settings(), older.clone()).unwrap();
        let anew = Registration {
            stored_of: Some(ClusterId::default()),
            stored: vec![stored],
            ..registration("n0", vec![])
        };
        (ours.register(at(&test), anew), ours.later_maps().clone())
    };
    let (answer, ahead) = register(stored(shard.id));
    assert!(matches!(answer, Err(RegisterError::Ahead { ours: None, .. })), "{answer:?}");
    let (cluster, ahead) = started(&test, older.clone(), ahead);
    assert!(
        cluster.brake().is_some_and(|why| why.contains("there is no record of it")),
        "{:?}",
        cluster.brake()
    );
    let (cluster, ahead) = started(&test, newest, ahead);
    assert!(cluster.faults().is_empty() && ahead.is_empty() && cluster.keyspaces().len() == 1);
    // A number that was never given out says nothing.
    assert_eq!(register(stored(ShardId(u64::MAX))).1, LaterMaps::new());
}

/// Two leaders of the same sequence: each has gone on from the same map (M3).
#[test]
fn m3_another_map_of_the_same_sequence_is_not_the_same() {
    let (test, _) = set_back();
    let mut cluster = test.cluster.clone();
    let same = known(&test);
    assert!(cluster.register(test.at(), registration("n5", vec![same.clone()])).is_ok());
    let earlier_life = Known { first_shard: ShardId(0), ..late() };
    assert!(cluster.register(test.at(), registration("n6", vec![earlier_life])).is_ok(), "it was deleted");
    let transaction = TransactionId([99; 20]);
    let other = Known { generation: Generation { transaction, ..same.generation }, ..same };
    assert!(cluster.register(test.at(), registration("n7", vec![other])).is_err());
}

#[test]
fn d10_d11_what_was_set_back_is_in_quarantine_until_the_newest_state_is_back() {
    let (test, older) = set_back();
    let (mut cluster, ahead) = started(&test, older.clone(), heard(&[known(&test)]));
    assert_eq!(ahead.len(), 1, "it is still so when the next leader reads");
    let status = cluster.status(at(&test));
    let (refused, why) = &status.quarantine[0];
    assert!(*refused == name() && why.contains("node n1 knows of g"), "{status:#?}");
    assert!(status.stored_faults[0].contains("keyspace users is at g"), "{status:#?}");
    assert!(cluster.keyspaces().is_empty());
    // Those who know more are taken in, and are ordered nothing of it.
    assert!(cluster.register(at(&test), registration("n1", vec![known(&test)])).is_ok());
    assert!(cluster.later_maps().is_empty());

    let newest = Records { keyspaces: test.disk.keyspaces.clone(), ..test.disk.clone() };
    let (cluster, ahead) = started(&test, newest, ahead);
    assert!(ahead.is_empty() && cluster.faults().is_empty() && cluster.keyspaces().len() == 1);
}

/// Incarnations, plans, shards and replicas of the lost time are out there with workers and in logs.
#[test]
fn m5_a_state_that_was_set_back_gives_no_number_twice() {
    let (mut test, older) = set_back();
    let mut newest = test.disk.cluster.clone();
    for ahead in [heard(&[known(&test)]), heard(&[late()])] {
        let (cluster, _) = started(&test, older.clone(), ahead);
        let record = cluster.records().cluster;
        assert!(record.next_incarnation > newest.next_incarnation);
        assert!(record.next_plan > newest.next_plan);
        assert!(record.next_shard > test.map().next_shard());
        assert!(record.next_placement > test.map().next_placement());
        assert!(cluster.brake().unwrap().contains("restored from an older state"));
    }

    // A person deletes a keyspace: that is no loss, as ids went on.
    newest.next_shard = ShardId(2);
    let deleted = Records { cluster: newest, ..older };
    let (cluster, ahead) = started(&test, deleted, heard(&[late()]));
    assert!(ahead.is_empty() && cluster.faults().is_empty(), "{:?}", cluster.faults());
    test.decide();
}

/// A worker has data of a keyspace that the older state knows nothing of, and a person creates it again.
#[test]
fn d7_d10_data_of_a_keyspace_that_was_lost_is_kept_also_when_it_is_created_again() {
    let (test, older) = set_back();
    let (mut cluster, _) = started(&test, older, heard(&[late()]));
    let mut again = keyspace(8);
    again.name = late().keyspace;
    again.durable = true;
    let create =
        Command::CreateKeyspace { keyspace: Box::new(again), presplit: Presplit::default(), ahead: true };
    cluster.command(at(&test), TransactionId([8; 20]), "mia", create).unwrap();
    let bounds: Bounds = Slot::all(8)[0].clone();
    let replica = ReplicaKey { keyspace: late().keyspace, shard: ShardId(1), placement: PlacementId(1) };
    let stored = Stored { replica, bounds, epoch: Epoch(1), store: 0, damaged: false };
    let registration = Registration { stored: vec![stored], ..registration("n8", vec![]) };
    let welcome = cluster.register(at(&test), registration).unwrap();
    let beat = Beat {
        session: crate::base::id::SessionDigest::default(),
        node: node("n8"),
        incarnation: welcome.incarnation,
        sequence: 1,
        sent_at: test.at().now,
        applied: 0,
        sent: 0,
        whole: false,
        reports: vec![],
        leaving: None,
        busy: 0.0,
        lease_expired: false,
        disk: Default::default(),
    };
    let orders = cluster.beat(at(&test), beat).unwrap();
    assert_eq!(orders.permissions, [], "nobody has deleted that data");
}

/// Some of the state is known to be older, so all of it may be: the map may name an owner that others have replaced, and of
/// those nobody has been heard (seed 405125).
#[test]
fn o1_where_the_state_was_set_back_nobody_gets_a_lease_while_one_of_before_may_run() {
    let (mut test, older) = set_back();
    let (leases_over, lease_ms) = (
        test.now + GrantedLease::assumed(Millis(0), older.cluster.longest_lease_ms).end().0,
        settings().lease_ms,
    );
    let lease = |cluster: &mut Cluster, test: &mut TestCluster| {
        let beat = test.next_beat(&node("n0"));
        let known = Registration {
            incarnation: Some(beat.incarnation),
            session: beat.session,
            ..registration("n0", vec![])
        };
        cluster.register(at(test), known).unwrap();
        cluster.beat(at(test), beat).unwrap().lease.unwrap().lease_ms
    };
    let (mut cluster, _) = started(&test, older.clone(), heard(&[late()]));
    assert!(!cluster.faults().quarantine.contains_key(&name()), "of this one nobody knows more");
    assert_eq!(lease(&mut cluster, &mut test), 0);
    // A keyspace stays in quarantine until a person acts: later coordinators go on as ever with the others.
    let of_before = ClusterRecord { later_maps: vec![known(&test)], ..older.cluster.clone() };
    let (mut next, _) = started(&test, Records { cluster: of_before, ..older.clone() }, LaterMaps::new());
    assert_eq!(lease(&mut next, &mut test), lease_ms);
    let (mut sound, _) = started(&test, older, LaterMaps::new());
    assert_eq!(lease(&mut sound, &mut test), lease_ms, "where nothing is known of that");
    test.now = leases_over - 1;
    assert_eq!(lease(&mut cluster, &mut test), 0);
    test.now = leases_over;
    assert_eq!(lease(&mut cluster, &mut test), lease_ms);
}

/// No process has said that the state was set back. Another node may own by now what the map gives to one whose lease is over:
/// the coordinator grants that one no lease before it has heard every node, or no lease of before can run (seed 600252).
#[test]
fn o1_a_node_without_a_lease_gets_none_from_a_new_coordinator_before_the_others_are_heard() {
    let (mut test, _) = set_back();
    let leases_over = |test: &TestCluster| {
        test.now + GrantedLease::assumed(Millis(0), test.disk.cluster.longest_lease_ms).end().0
    };
    let lease = |test: &mut TestCluster, id: &str, lease_expired: bool| {
        let beat = Beat { lease_expired, ..test.next_beat(&node(id)) };
        let known = Registration {
            incarnation: Some(beat.incarnation),
            session: beat.session,
            ..registration(id, vec![])
        };
        let at = test.at();
        test.cluster.register(at, known).unwrap();
        test.cluster.beat(at, beat).unwrap().lease.unwrap().lease_ms
    };
    let lease_ms = settings().lease_ms;
    test = test.restart_coordinator();
    let over = leases_over(&test);
    assert_eq!(lease(&mut test, "n0", false), lease_ms, "it renews one that runs");
    assert_eq!(lease(&mut test, "n0", true), 0);
    let keyspace = &test.cluster.keyspaces()[&name()];
    let leads = |shard: &&Shard| shard.leader().is_some_and(|leader| leader.node == node("n0"));
    let led = keyspace.map.shards().find(leads).unwrap();
    assert_ne!(test.cluster.serving(test.at(), keyspace, led), Serving::Led, "the status says so");
    test.now = over - 1;
    assert_eq!(lease(&mut test, "n0", true), 0);
    test.now = over;
    assert_eq!(lease(&mut test, "n0", true), lease_ms, "none of before can run");

    test = test.restart_coordinator();
    assert_eq!(lease(&mut test, "n0", true), 0);
    let others: Vec<NodeId> = test.workers.keys().filter(|id| **id != node("n0")).cloned().collect();
    assert!(!others.is_empty());
    for other in others {
        assert_eq!(lease(&mut test, "n0", true), 0, "{other} is not heard");
        lease(&mut test, other.as_str(), true);
        test.decide();
    }
    assert_eq!(lease(&mut test, "n0", true), lease_ms, "all are heard");
}

/// The counters were deleted, and with them the longest lease: only the first leader after that waits for ten minutes.
#[test]
fn o5_how_long_the_longest_lease_was_is_asked_no_more_once_it_is_over() {
    let (mut test, _) = set_back();
    test.disk.cluster = ClusterRecord::default();
    let mut faults = StoredFaults { cluster: vec!["it is missing".to_owned()], ..StoredFaults::default() };
    test.disk.mend(&mut faults, WALL_MS);
    assert_eq!(test.disk.cluster.longest_lease_ms, limits::LOST_LEASE_MS);

    let late_ms = 3_000;
    let mut test = test.restart_coordinator();
    test.cluster.allow_for_predecessor(test.at().now, late_ms);
    let drift = |ms: u64| GrantedLease::assumed(Millis(0), ms).end().0;
    let over = test.now + drift(late_ms) + drift(limits::LOST_LEASE_MS);
    while test.now + BEAT_MS < over {
        test.run(BEAT_MS);
        assert_eq!(test.disk.cluster.longest_lease_ms, limits::LOST_LEASE_MS);
    }
    test.run(2 * BEAT_MS);
    assert_eq!(test.disk.cluster.longest_lease_ms, settings().lease_ms, "nothing longer can run");
    assert_eq!(test.restart_coordinator().disk.cluster.longest_lease_ms, settings().lease_ms);
}
