//! Orders of a coordinator whose state was restored from a backup, or that has not heard of what is here.

use super::*;

/// The coordinator's state was restored from when the replica was to load: another leads, and this one lacks what that
/// one has taken since.
#[test]
fn l1_d1_what_serves_and_is_to_load_is_unloaded_and_loads_anew() {
    let load = || order(ReplicaState::Load, Role::Follower, 100, true);
    let mut fixture = Fixture::leading(17);
    assert_eq!(fixture.order(5, load()), [Task::AwaitRequests]);
    assert!(!matches!(fixture.judge(5, Access::Read), Verdict::Serve(_)));
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), [Task::Call(Callback::Unload)]);
    assert_eq!(fixture.done(7, Callback::Unload), [Task::Call(Callback::Load)]);
    fixture.done(8, Callback::Load);
    assert_eq!(fixture.reported(), (Phase::Ready, Epoch(100)));

    // Also one that is deleted already.
    let mut fixture = Fixture::leading(17);
    assert_eq!(
        fixture.order(5, order(ReplicaState::UnloadFinal, Role::Follower, 18, true)),
        [Task::AwaitRequests]
    );
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), [Task::Call(Callback::Unload)]);
    let delete = Callback::Drop(DropReason::Moved);
    assert_eq!(fixture.done(7, Callback::Unload), [Task::Call(delete)]);
    fixture.done(8, delete);
    assert_eq!(fixture.order(9, load()), [Task::Call(Callback::Load)]);

    // Also one whose service fails to serve, and is to try again.
    let mut fixture = Fixture::leading(17);
    let serve = Callback::Serve(Role::Follower, Epoch(18));
    fixture.order(5, order(ReplicaState::Live, Role::Follower, 18, true));
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), [Task::Call(serve)]);
    let failed = fixture.worker.returned(Millis(7), &replica(), serve, Err("no".to_owned()));
    assert_eq!(tasks(failed), []);
    assert_eq!(fixture.order(8, load()), [Task::AwaitRequests]);
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(9), &replica())), [Task::Call(Callback::Unload)]);
}

/// A set without a follower that is silent has a later epoch. Writes may wait for that follower, and it for a leader of that
/// epoch.
#[test]
fn l1_a_replicated_leader_goes_on_under_a_later_epoch_and_drains_nothing() {
    let mut fixture = Fixture { durable: true, ..Fixture::leading_in(Ownership::Replicated, 17) };
    let serve = Callback::Serve(Role::Leader, Epoch(18));
    // Before it is granted, and after.
    assert_eq!(fixture.order(5, order(ReplicaState::Live, Role::Leader, 18, false)), []);
    assert!(matches!(fixture.judge(5, Access::Write), Verdict::Serve(_)));
    assert_eq!(fixture.order(6, order(ReplicaState::Live, Role::Leader, 18, true)), [Task::Call(serve)]);
    assert!(matches!(fixture.judge(6, Access::Write), Verdict::Serve(_)));
    assert_eq!(fixture.reported(), (Phase::Serving, Epoch(18)));
    assert_eq!(fixture.done(7, serve), []);
    assert!(matches!(fixture.judge(7, Access::Write), Verdict::Serve(_)));
    // An exclusive one has missed that another led.
    let mut fixture = Fixture::leading(17);
    assert_eq!(fixture.order(5, order(ReplicaState::Live, Role::Leader, 18, true)), [Task::AwaitRequests]);
}

#[test]
fn a_replicated_follower_that_lags_loads_anew_as_it_is_and_unloads_only_to_leave() {
    let following = || {
        let mut fixture = Fixture { ownership: Ownership::Replicated, ..Fixture::new() };
        fixture.order(1, order(ReplicaState::Load, Role::Follower, 17, true));
        fixture.done(2, Callback::Load);
        fixture.order(3, order(ReplicaState::Live, Role::Follower, 17, true));
        fixture.done(3, Callback::Serve(Role::Follower, Epoch(17)));
        fixture
    };
    let load = |epoch, granted| order(ReplicaState::Load, Role::Follower, epoch, granted);
    let mut fixture = following();
    assert_eq!(fixture.order(5, load(18, false)), [Task::AwaitRequests]);
    assert!(!matches!(fixture.judge(5, Access::Read), Verdict::Serve(_)));
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), []);
    assert_eq!(fixture.reported(), (Phase::Loading, Epoch(18)));
    // A later epoch of its leader ends nothing here.
    fixture.order(7, load(19, false));
    assert_eq!(fixture.reported(), (Phase::Loading, Epoch(19)));
    assert_eq!(fixture.order(8, load(19, true)), [Task::Call(Callback::Load)]);
    assert_eq!(fixture.done(9, Callback::Load), []);
    assert_eq!(fixture.reported(), (Phase::Ready, Epoch(19)));

    for leaves in [ReplicaState::Unload, ReplicaState::UnloadFinal] {
        let mut fixture = following();
        fixture.order(5, load(18, false));
        fixture.worker.requests_ended(Millis(6), &replica());
        let tasks = fixture.order(7, order(leaves, Role::Follower, 18, true));
        assert_eq!(tasks, [Task::Call(Callback::Unload)], "the service has it open");
    }
    // One that the service cannot serve is unloaded first.
    let mut fixture = following();
    fixture.worker.unhealthy(Millis(5), &replica(), "its disk died");
    assert_eq!(fixture.order(6, load(18, true)), []);
    let tasks = tasks(fixture.worker.requests_ended(Millis(7), &replica()));
    assert_eq!(tasks, [Task::Call(Callback::Unload)]);
}

/// As a copy it could come to lead before it has what others have.
#[test]
fn d1_a_copy_that_is_deleted_is_reported_and_loads_when_it_is_ordered_to() {
    let live = |epoch| order(ReplicaState::Live, Role::Follower, epoch, true);
    let load = || order(ReplicaState::Load, Role::Follower, 102, true);
    let deleted = |durable: bool| {
        let mut fixture = Fixture { durable, ..Fixture::leading(17) };
        fixture.order(5, order(ReplicaState::UnloadFinal, Role::Follower, 18, true));
        fixture.worker.requests_ended(Millis(6), &replica());
        let delete = Callback::Drop(DropReason::Moved);
        assert_eq!(fixture.done(7, Callback::Unload), [Task::Call(delete)]);
        fixture.done(8, delete);
        fixture
    };
    // One that is known to be deleted, and one of which nothing is known any more.
    for mut fixture in [deleted(true), Fixture { durable: true, ..Fixture::new() }] {
        assert_eq!(fixture.order(9, live(100)), []);
        assert_eq!(fixture.reported(), (Phase::Dropped, Epoch(100)));
        assert_eq!(fixture.order(10, live(101)), []);
        assert_eq!(fixture.reported(), (Phase::Dropped, Epoch(101)));
        let from_leader =
            Order { peers: order(ReplicaState::Unload, Role::Follower, 1, true).peers, ..load() };
        assert_eq!(fixture.order(11, from_leader), [Task::Call(Callback::Load)]);
        fixture.done(12, Callback::Load);
        assert_eq!(fixture.order(13, live(102)), [Task::Call(Callback::Serve(Role::Follower, Epoch(102)))]);
    }
    // What is not durable is fetched from wherever the service has it.
    assert_eq!(deleted(false).order(9, live(100)), [Task::Call(Callback::Load)]);
}

/// A person chose what a node had only begun to load, and never found a source for: status must say that it is none.
#[test]
fn d10_what_was_never_loaded_is_no_copy() {
    let ungranted = Order { granted: false, ..order(ReplicaState::Load, Role::Follower, 17, true) };
    let mut fixture = Fixture { durable: true, ..Fixture::new() };
    assert_eq!(fixture.order(5, ungranted), []);
    let asked = fixture.order(6, order(ReplicaState::Unload, Role::Follower, 17, true));
    asked.into_iter().for_each(|task| assert_eq!(task, Task::Call(Callback::Unload)));
    fixture.done(7, Callback::Unload);
    assert_eq!(fixture.order(8, order(ReplicaState::Live, Role::Leader, 100, true)), []);
    assert_eq!(fixture.reported(), (Phase::Dropped, Epoch(100)));
}

/// It was moved off since the backup, and others have gone on: its process knows, until it ends.
#[test]
fn d1_a_copy_that_had_to_leave_before_a_restore_is_none_after_it() {
    let live = |epoch| order(ReplicaState::Live, Role::Leader, epoch, true);
    let left = || {
        let mut fixture = Fixture { durable: true, ..Fixture::leading(1) };
        assert_eq!(
            fixture.order(5, order(ReplicaState::Unload, Role::Follower, 3, false)),
            [Task::AwaitRequests]
        );
        assert_eq!(
            tasks(fixture.worker.requests_ended(Millis(6), &replica())),
            [Task::Call(Callback::Unload)]
        );
        fixture.done(7, Callback::Unload);
        fixture
    };
    let restored = |fixture: &mut Fixture| {
        let welcome = Welcome { continues: vec![ClusterId(1)], ..welcome(2, 1) };
        fixture.worker.welcomed(&welcome).unwrap();
        (fixture.cluster, fixture.version) = (2, 0);
    };
    let mut fixture = left();
    restored(&mut fixture);
    assert_eq!(fixture.order(9, live(100)), []);
    assert_eq!(fixture.reported(), (Phase::Dropped, Epoch(100)));
    // It is kept for a person to choose where no order names it, and loads what it lacks when it is ordered to.
    let version = fixture.version + 1;
    fixture.worker.apply_orders(Millis(10), fixture.whole(version, vec![], vec![]));
    fixture.version = version;
    assert_eq!(fixture.reported().0, Phase::Kept);
    let from = order(ReplicaState::Unload, Role::Follower, 1, true).peers;
    let load = Order { peers: from, ..order(ReplicaState::Load, Role::Follower, 101, true) };
    assert_eq!(fixture.order(11, load), [Task::Call(Callback::Load)]);
    fixture.done(12, Callback::Load);
    assert_eq!(fixture.order(13, live(102)), [Task::Call(Callback::Serve(Role::Leader, Epoch(102)))]);

    // Where no state was lost, the coordinator knows what it orders.
    assert_eq!(left().order(9, live(4)), [Task::Call(Callback::Load)]);
    // And one that was to stay has everything.
    let mut fixture = Fixture { durable: true, ..Fixture::leading(1) };
    restored(&mut fixture);
    assert_eq!(fixture.order(9, live(1)), []);
    assert_eq!(fixture.reported().0, Phase::Serving);
}

/// Seen in the simulator (seed 40042, touched and durable): all copies of a shard that was being merged had loaded, were told
/// again to load, and said after a restore that they are none.
#[test]
fn l1_d1_a_copy_that_has_loaded_and_is_told_so_again_is_one_after_a_restore() {
    let from = order(ReplicaState::Unload, Role::Follower, 1, true).peers;
    let load =
        |epoch| Order { peers: from.clone(), ..order(ReplicaState::Load, Role::Follower, epoch, true) };
    let mut fixture = Fixture { durable: true, ..Fixture::new() };
    assert_eq!(fixture.order(5, load(1)), [Task::Call(Callback::Load)]);
    fixture.done(6, Callback::Load);
    assert_eq!(fixture.order(7, load(2)), []);
    let version = fixture.version + 1;
    fixture.worker.apply_orders(Millis(8), fixture.whole(version, vec![], vec![]));
    fixture.version = version;
    fixture.done(9, Callback::Unload);
    assert_eq!(fixture.reported().0, Phase::Kept);
    let welcome = Welcome { continues: vec![ClusterId(1)], ..welcome(2, 1) };
    fixture.worker.welcomed(&welcome).unwrap();
    (fixture.cluster, fixture.version) = (2, 0);
    let live = order(ReplicaState::Live, Role::Leader, 100, true);
    assert_eq!(fixture.order(10, live), [Task::Call(Callback::Load)]);
}

/// It reported that it unloads while no map named it, so the coordinator that names it again has not heard that.
#[test]
fn a12_what_is_taken_back_is_reported_again_though_nothing_has_changed() {
    let mut fixture = Fixture::leading(1);
    fixture.version += 1;
    fixture.worker.apply_orders(Millis(1), fixture.whole(fixture.version, vec![], vec![]));
    fixture.worker.requests_ended(Millis(2), &replica());
    let said = |fixture: &mut Fixture| {
        let beat = fixture.worker.beat(Millis(3)).unwrap();
        beat.reports.into_iter().map(|report| report.phase).collect::<Vec<_>>()
    };
    assert_eq!(said(&mut fixture), [Phase::Unloading]);
    assert_eq!(said(&mut fixture), []);
    fixture.order(4, order(ReplicaState::Live, Role::Leader, 1, true));
    assert_eq!(said(&mut fixture), [Phase::Unloading]);
}

/// It was to lead after a restart, and cannot be opened: who is to lead instead does not wait for it.
#[test]
fn l1_a_copy_that_cannot_be_opened_lets_go_of_the_lead_at_once() {
    let live = |role, epoch| order(ReplicaState::Live, role, epoch, true);
    let mut fixture = Fixture::new();
    assert_eq!(fixture.order(1, live(Role::Leader, 5)), [Task::Call(Callback::Load)]);
    let failed = Err("the disk is gone".to_owned());
    fixture.worker.returned(Millis(2), &replica(), Callback::Load, failed);
    assert_eq!(fixture.reported(), (Phase::failed(1, "the disk is gone".to_owned()), Epoch(0)));
    assert_eq!(fixture.order(3, live(Role::Follower, 6)), []);
    assert_eq!(fixture.reported().1, Epoch(6));
}

/// A backup may be of before a keyspace was deleted and created anew: the restored cluster numbers on, and is obeyed.
#[test]
fn l1_a_restored_cluster_is_obeyed_that_has_an_earlier_keyspace_of_a_name() {
    let mut fixture = Fixture::leading(1);
    let brief = fixture.worker.keyspace(&replica().keyspace).unwrap().clone();
    let later = KeyspaceBrief { first_shard: ShardId(50), ..brief.clone() };
    let version = fixture.version + 1;
    let orders = Orders { keyspaces: vec![later], ..fixture.whole(version, vec![], vec![]) };
    fixture.worker.apply_orders(Millis(5), orders);
    assert_eq!(fixture.worker.registration(NodeSpec::new(NodeId::new("a").unwrap(), "a:1")).known.len(), 1);

    let restored = Welcome { continues: vec![ClusterId(1)], ..welcome(2, 1) };
    fixture.worker.welcomed(&restored).unwrap();
    (fixture.cluster, fixture.version) = (2, 0);
    let orders = Orders { keyspaces: vec![brief], ..fixture.whole(1, vec![], vec![]) };
    fixture.worker.apply_orders(Millis(6), orders);
    assert_eq!(fixture.worker.refusal(), None);
}

/// The state was restored from the middle of a split: the coordinator takes what is to unload for what hands over.
#[test]
fn l1_d10_what_is_to_hand_over_and_was_deleted_is_reported() {
    let mut fixture = Fixture { durable: true, ..Fixture::new() };
    assert_eq!(fixture.order(5, order(ReplicaState::Unload, Role::Follower, 100, true)), []);
    assert_eq!(fixture.reported(), (Phase::Dropped, Epoch(100)));
    // What has it says that it is unloaded, as ever.
    let mut fixture = Fixture { durable: true, ..Fixture::leading(17) };
    assert_eq!(
        fixture.order(5, order(ReplicaState::Unload, Role::Follower, 100, true)),
        [Task::AwaitRequests]
    );
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), [Task::Call(Callback::Unload)]);
    fixture.done(7, Callback::Unload);
    assert_eq!(fixture.reported(), (Phase::Unloaded, Epoch(100)));
}
