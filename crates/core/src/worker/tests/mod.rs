mod reports;
mod restored;

use super::gates::Verdict;
use super::*;
use crate::base::id::{Configuration, Generation, PlacementId, ShardId};
use crate::keyspace::Ownership;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::HashRange;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Access;
use crate::keyspace::map::Role;
use crate::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use crate::node::exchange::{DropReason, LeaseRenewal, Order, Peer, Permission};

const KS: &str = "ks";

fn keyspace() -> KeyspaceName {
    KeyspaceName::new(KS).unwrap()
}

fn order(state: ReplicaState, role: Role, epoch: u64, granted: bool) -> Order {
    let peer = Peer {
        shard: ShardId(1),
        placement: PlacementId(2),
        bounds: Bounds::Hashes(HashRange::ALL),
        node: NodeId::new("other").unwrap(),
        incarnation: Incarnation(1),
        address: Some("other:1".into()),
        role: Role::Leader,
        state: ReplicaState::Live,
        in_sync: false,
    };
    Order {
        replica: ReplicaKey { keyspace: keyspace(), shard: ShardId(1), placement: PlacementId(1) },
        bounds: Bounds::Hashes(HashRange::ALL),
        role,
        state,
        epoch: Epoch(epoch),
        configuration: Configuration(0),
        in_sync: false,
        granted,
        peers: if state == ReplicaState::Unload { vec![peer] } else { vec![] },
        had_data: true,
        drop: (state == ReplicaState::UnloadFinal).then_some(DropReason::Moved),
        hand_over_to: None,
    }
}

fn welcome(cluster: u128, incarnation: u64) -> Welcome {
    Welcome {
        cluster: ClusterId(cluster),
        continues: vec![],
        incarnation: Incarnation(incarnation),
        heartbeat_ms: 100,
        lease_ms: 1_000,
    }
}

struct Fixture {
    worker: Worker,
    version: u64,
    incarnation: u64,
    generation: u64,
    durable: bool,
    ownership: Ownership,
    cluster: u128,
}

impl Fixture {
    fn new() -> Fixture {
        let mut worker = Worker::new(NodeId::new("a").unwrap(), CallbackTimeouts::default());
        worker.welcomed(&welcome(1, 1)).unwrap();
        Fixture {
            worker,
            version: 0,
            incarnation: 1,
            generation: 1,
            durable: false,
            ownership: Ownership::Exclusive,
            cluster: 1,
        }
    }

    fn order(&mut self, now: u64, order: Order) -> Vec<Task> {
        self.version += 1;
        let brief = KeyspaceBrief {
            name: keyspace(),
            sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 },
            partition_key: PartitionKey::default(),
            ownership: self.ownership,
            generation: Generation { sequence: self.generation, ..Generation::default() },
            first_shard: ShardId(1),
            durable: self.durable,
            min_in_sync: 0,
            values: crate::keyspace::RowValues::Bytes,
            feed_ms: 0,
            kind: crate::keyspace::KeyspaceKind::App,
        };
        let orders = Orders {
            cluster: ClusterId(self.cluster),
            permissions: vec![],
            incarnation: Incarnation(self.incarnation),
            version: self.version,
            base: self.version - 1,
            keyspaces: vec![brief],
            changed: vec![order],
            removed: vec![],
            lease: Some(LeaseRenewal { sent_at: Millis(now), lease_ms: 1_000, spread_ms: 0 }),
            may_go: false,
        };
        tasks(self.worker.apply_orders(Millis(now), orders))
    }

    fn whole(&self, version: u64, changed: Vec<Order>, permissions: Vec<Permission>) -> Orders {
        Orders {
            cluster: ClusterId(self.cluster),
            permissions,
            incarnation: Incarnation(self.incarnation),
            version,
            base: 0,
            keyspaces: vec![],
            changed,
            removed: vec![],
            lease: None,
            may_go: false,
        }
    }

    fn permit(&mut self, now: u64, version: u64, epoch: u64) -> Vec<Task> {
        let permission =
            Permission { replica: replica(), reason: DropReason::Superseded, epoch: Epoch(epoch) };
        tasks(self.worker.apply_orders(Millis(now), self.whole(version, vec![], vec![permission])))
    }

    fn done(&mut self, now: u64, callback: Callback) -> Vec<Task> {
        tasks(self.worker.returned(Millis(now), &replica(), callback, Ok(())))
    }

    fn judge(&self, now: u64, access: Access) -> Verdict {
        self.worker.gates().judge(Millis(now), &keyspace(), b"key", access)
    }

    fn leading(epoch: u64) -> Fixture {
        Fixture::leading_in(Ownership::Exclusive, epoch)
    }

    fn leading_in(ownership: Ownership, epoch: u64) -> Fixture {
        let mut fixture = Fixture { ownership, ..Fixture::new() };
        fixture.order(0, order(ReplicaState::Load, Role::Follower, 0, true));
        fixture.done(0, Callback::Load);
        let serve = Callback::Serve(Role::Leader, Epoch(epoch));
        assert_eq!(
            fixture.order(0, order(ReplicaState::Live, Role::Leader, epoch, true)),
            [Task::Call(serve)]
        );
        fixture.done(0, serve);
        fixture
    }

    fn reported(&mut self) -> (Phase, Epoch) {
        self.worker.unanswered();
        let report = self.worker.beat(Millis(0)).unwrap().reports.remove(0);
        (report.phase, report.epoch)
    }
}

fn replica() -> ReplicaKey {
    order(ReplicaState::Load, Role::Follower, 0, true).replica
}

fn tasks(actions: Vec<Action>) -> Vec<Task> {
    actions.into_iter().map(|action| action.task).collect()
}

#[test]
fn a_leader_serves_only_after_its_grant_and_its_callback() {
    let mut fixture = Fixture::new();
    assert_eq!(
        fixture.order(0, order(ReplicaState::Load, Role::Follower, 0, true)),
        [Task::Call(Callback::Load)]
    );
    fixture.done(0, Callback::Load);
    assert_eq!(fixture.reported().0, Phase::Ready);
    assert_eq!(fixture.order(1, order(ReplicaState::Live, Role::Leader, 2, false)), []);
    assert_eq!(fixture.judge(1, Access::Write), Verdict::Soon);
    let serve = Callback::Serve(Role::Leader, Epoch(2));
    assert_eq!(fixture.order(2, order(ReplicaState::Live, Role::Leader, 2, true)), [Task::Call(serve)]);
    assert_eq!(fixture.judge(2, Access::Write), Verdict::Soon);
    fixture.done(3, serve);
    assert!(matches!(fixture.judge(3, Access::Write), Verdict::Serve(permit) if permit.epoch == Epoch(2)));
    assert_eq!(fixture.reported(), (Phase::Serving, Epoch(2)));
}

#[test]
fn o1_an_epoch_is_carried_out_only_when_the_last_request_and_unload_are_done() {
    let mut fixture = Fixture::leading(1);
    assert_eq!(fixture.order(5, order(ReplicaState::Unload, Role::Follower, 2, true)), [Task::AwaitRequests]);
    assert!(
        matches!(fixture.judge(5, Access::Write), Verdict::Elsewhere { address, .. } if address == "other:1")
    );
    assert_eq!(fixture.reported(), (Phase::Unloading, Epoch(1)));
    let actions = fixture.worker.requests_ended(Millis(6), &replica());
    assert_eq!(tasks(actions), [Task::Call(Callback::Unload)]);
    assert_eq!(fixture.reported(), (Phase::Unloading, Epoch(1)));
    fixture.done(7, Callback::Unload);
    assert_eq!(fixture.reported(), (Phase::Unloaded, Epoch(2)));
}

#[test]
fn a_leader_that_is_to_follow_stops_first_and_says_so_when_drained() {
    let mut fixture = Fixture::leading(1);
    assert_eq!(fixture.order(5, order(ReplicaState::Live, Role::Follower, 2, true)), [Task::AwaitRequests]);
    assert_eq!(fixture.reported().1, Epoch(1));
    let serve = Callback::Serve(Role::Follower, Epoch(2));
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(6), &replica())), [Task::Call(serve)]);
    assert_eq!(fixture.reported().1, Epoch(2));
    fixture.done(7, serve);
    assert!(
        matches!(fixture.judge(7, Access::Read), Verdict::Serve(permit) if permit.role == Role::Follower)
    );
    assert!(!matches!(fixture.judge(7, Access::Write), Verdict::Serve(_)));
}

#[test]
fn a_lapsed_lease_shuts_every_request_out_at_once() {
    let fixture = Fixture::leading(1);
    let Verdict::Serve(permit) = fixture.judge(999, Access::Write) else { panic!("serves within its lease") };
    assert!(fixture.worker.gates().still_holds(Millis(999), &permit));
    assert_eq!(fixture.judge(1_000, Access::Write), Verdict::Lapsed);
    assert!(!fixture.worker.gates().still_holds(Millis(1_000), &permit));
}

/// T17: the replicas settle among themselves who may write, also while no coordinator is there.
#[test]
fn t17_no_lease_shuts_a_request_of_a_replicated_keyspace_out() {
    let fixture = Fixture::leading_in(Ownership::Replicated, 1);
    let Verdict::Serve(permit) = fixture.judge(1_000_000, Access::Write) else { panic!("it goes on") };
    assert!(fixture.worker.gates().still_holds(Millis(1_000_000), &permit));
}

/// What the coordinator waits for goes out at once, what it only shows with the next beat, and silence with each.
#[test]
fn t14_what_a_replica_says_of_its_replication_is_in_the_beats() {
    let mut fixture = Fixture::leading_in(Ownership::Replicated, 1);
    let said = |fixture: &mut Fixture| {
        let reports = fixture.worker.beat(Millis(1)).unwrap().reports;
        reports.into_iter().find_map(|report| report.replication)
    };
    fixture.worker.beat(Millis(0));
    assert_eq!((said(&mut fixture), fixture.worker.has_news()), (None, false));
    let grown = ReplicationReport { log_end: 7, ..ReplicationReport::default() };
    fixture.worker.replicates(&replica(), grown.clone());
    assert!(!fixture.worker.has_news(), "the next beat says it");
    assert_eq!((said(&mut fixture), said(&mut fixture)), (Some(grown.clone()), None));
    let wish = ReplicationReport { wish: Some(vec![PlacementId(1)]), ..grown.clone() };
    fixture.worker.replicates(&replica(), wish.clone());
    assert!(fixture.worker.has_news());
    assert_eq!(said(&mut fixture), Some(wish.clone()));
    fixture.worker.replicates(&replica(), wish.clone());
    assert!(!fixture.worker.has_news(), "it was said");
    fixture.worker.unanswered();
    assert_eq!(said(&mut fixture), Some(wish), "a whole beat says it again");
    let silent = ReplicationReport { leader_silent: true, ..grown };
    fixture.worker.replicates(&replica(), silent.clone());
    assert_eq!((said(&mut fixture), said(&mut fixture)), (Some(silent.clone()), Some(silent)));
}

#[test]
fn o6_an_ended_incarnation_serves_nothing_and_keeps_its_data() {
    let mut fixture = Fixture::leading(1);
    assert_eq!(tasks(fixture.worker.ended(Millis(1))), [Task::AwaitRequests]);
    assert!(!matches!(fixture.judge(1, Access::Read), Verdict::Serve(_)));
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(1), &replica())), [Task::Call(Callback::Unload)]);
    assert_eq!(fixture.done(1, Callback::Unload), []);
    assert_eq!(fixture.worker.beat(Millis(1)), None);
}

#[test]
fn a_callback_that_fails_is_reported_and_called_again_later_and_later() {
    let mut fixture = Fixture::new();
    fixture.order(0, order(ReplicaState::Load, Role::Follower, 0, true));
    let mut now = 0;
    for attempt in 1..6 {
        let failed = Err("no disk".to_owned());
        assert_eq!(fixture.worker.returned(Millis(now), &replica(), Callback::Load, failed), []);
        assert_eq!(fixture.reported().0, Phase::failed(attempt, "no disk".into()));
        let wake = fixture.worker.wake_at();
        assert_eq!(wake.since(Millis(now)), 200 << (attempt - 1));
        assert_eq!(fixture.worker.run(wake - 1), []);
        assert_eq!(tasks(fixture.worker.run(wake)), [Task::Call(Callback::Load)]);
        now = wake.0;
    }
    fixture.done(now, Callback::Load);
    assert_eq!(fixture.reported().0, Phase::Ready);
}

#[test]
fn a_callback_that_hangs_is_abandoned_and_its_late_return_is_ignored() {
    let mut fixture = Fixture::leading(1);
    fixture.order(0, order(ReplicaState::Unload, Role::Follower, 2, true));
    fixture.worker.requests_ended(Millis(0), &replica());
    let wake = fixture.worker.wake_at();
    assert_eq!(tasks(fixture.worker.run(wake)), [Task::Abandon(Callback::Unload)]);
    assert_eq!(fixture.reported(), (Phase::Unloaded, Epoch(2)));
    assert_eq!(fixture.done(wake.0, Callback::Unload), []);
    assert_eq!(fixture.reported(), (Phase::Unloaded, Epoch(2)));
}

#[test]
fn d7_a_replica_that_no_order_names_is_unloaded_and_kept_until_there_is_a_permission() {
    let mut fixture = Fixture::leading(1);
    let orders = fixture.whole(9, vec![], vec![]);
    assert_eq!(tasks(fixture.worker.apply_orders(Millis(1), orders)), [Task::AwaitRequests]);
    fixture.worker.requests_ended(Millis(1), &replica());
    assert_eq!(fixture.done(1, Callback::Unload), []);
    assert_eq!(fixture.reported(), (Phase::Kept, Epoch(1)));
    assert_eq!(fixture.permit(2, 9, 0), [], "it knows of a later epoch than the coordinator");
    let is_being_dropped = |fixture: &Fixture| fixture.worker.local_replicas()[&replica()].is_being_dropped();
    assert!(!is_being_dropped(&fixture));
    assert_eq!(fixture.permit(2, 9, 1), [Task::Call(Callback::Drop(DropReason::Superseded))]);
    assert!(is_being_dropped(&fixture));
    fixture.done(2, Callback::Drop(DropReason::Superseded));
    assert_eq!(fixture.reported().0, Phase::Dropped);
    assert!(fixture.worker.local_replicas().is_empty());
}

/// A part of a split that was given up while it was loaded: its epoch is later than that of any shard that serves.
#[test]
fn d7_what_has_never_served_is_kept_under_no_epoch_and_goes_when_any_serves_its_keys() {
    let mut fixture = Fixture::new();
    let load = order(ReplicaState::Load, Role::Follower, 5, true);
    assert_eq!(fixture.order(0, load), [Task::Call(Callback::Load)]);
    fixture.done(0, Callback::Load);
    let orders = fixture.whole(9, vec![], vec![]);
    assert_eq!(tasks(fixture.worker.apply_orders(Millis(1), orders)), [Task::Call(Callback::Unload)]);
    fixture.done(1, Callback::Unload);
    assert_eq!(fixture.reported(), (Phase::Kept, Epoch(0)));
    assert_eq!(fixture.permit(2, 9, 2), [Task::Call(Callback::Drop(DropReason::Superseded))]);
}

#[test]
fn d7_an_ended_worker_keeps_its_data_names_it_and_takes_it_back_when_ordered() {
    let mut fixture = Fixture::leading(3);
    assert_eq!(tasks(fixture.worker.ended(Millis(1))), [Task::AwaitRequests]);
    fixture.worker.requests_ended(Millis(1), &replica());
    assert_eq!(fixture.done(1, Callback::Unload), []);
    let spec = NodeSpec::new(NodeId::new("a").unwrap(), "h:1");
    let registration = fixture.worker.registration(spec);
    assert_eq!((registration.incarnation, registration.cluster), (None, Some(ClusterId(1))));
    let stored: Vec<_> = registration.stored.iter().map(|s| (s.replica.clone(), s.epoch)).collect();
    assert_eq!(stored, [(replica(), Epoch(3))]);
    fixture.worker.welcomed(&welcome(1, 2)).unwrap();
    assert_eq!(fixture.reported().0, Phase::Kept);
    fixture.incarnation = 2;
    fixture.version = 0;
    let again = order(ReplicaState::Live, Role::Leader, 4, true);
    assert_eq!(fixture.order(2, again), [Task::Call(Callback::Load)]);
    let serve = Callback::Serve(Role::Leader, Epoch(4));
    assert_eq!(fixture.done(2, Callback::Load), [Task::Call(serve)]);
    fixture.done(2, serve);
    assert_eq!(fixture.reported(), (Phase::Serving, Epoch(4)));
}

#[test]
fn d11_a_coordinator_of_another_cluster_is_refused_and_nothing_is_touched() {
    let mut fixture = Fixture::leading(1);
    let refused = fixture.worker.welcomed(&welcome(2, 9)).unwrap_err();
    assert_eq!(refused, CoordinatorRefusal::OtherCluster { ours: ClusterId(1), theirs: ClusterId(2) });
    assert_eq!(
        (fixture.worker.refusal(), fixture.worker.incarnation()),
        (Some(&refused), Some(Incarnation(1)))
    );
    let mut orders = fixture.whole(9, vec![], vec![]);
    orders.cluster = ClusterId(2);
    assert_eq!(tasks(fixture.worker.apply_orders(Millis(1), orders)), []);
    assert!(
        matches!(fixture.judge(1, Access::Write), Verdict::Serve(_)),
        "it serves until its lease is over"
    );
    let restored = Welcome { continues: vec![ClusterId(7), ClusterId(1)], ..welcome(2, 1) };
    fixture.worker.welcomed(&restored).unwrap();
    assert_eq!((fixture.worker.cluster(), fixture.worker.refusal()), (Some(ClusterId(2)), None));
}

#[test]
fn d11_orders_of_a_coordinator_that_knows_less_are_refused_and_nothing_is_touched() {
    let mut fixture = Fixture::new();
    fixture.generation = 7;
    fixture.order(0, order(ReplicaState::Load, Role::Follower, 0, true));
    fixture.done(0, Callback::Load);
    fixture.order(0, order(ReplicaState::Live, Role::Leader, 1, true));
    fixture.done(0, Callback::Serve(Role::Leader, Epoch(1)));
    let lease = fixture.worker.lease().end();
    fixture.generation = 6;
    assert_eq!(fixture.order(500, order(ReplicaState::Unload, Role::Follower, 2, true)), []);
    let Some(CoordinatorRefusal::Outdated { ours, theirs, .. }) = fixture.worker.refusal() else { panic!() };
    assert_eq!((ours.sequence, theirs.sequence), (7, 6));
    assert_eq!(fixture.worker.lease().end(), lease, "its lease is worth nothing");
    assert!(matches!(fixture.judge(500, Access::Write), Verdict::Serve(_)));
    fixture.generation = 8;
    fixture.version -= 1;
    assert_eq!(
        fixture.order(600, order(ReplicaState::Unload, Role::Follower, 2, true)),
        [Task::AwaitRequests]
    );
    assert_eq!(fixture.worker.refusal(), None);
}

#[test]
fn d7_what_an_earlier_process_has_stored_is_kept_and_named() {
    let stored = Stored {
        replica: replica(),
        bounds: Bounds::Hashes(HashRange::ALL),
        epoch: Epoch(5),
        store: 77,
        damaged: true,
    };
    let worker = Worker::new(NodeId::new("a").unwrap(), CallbackTimeouts::default());
    let mut worker = worker.with_stored(Some(ClusterId(1)), vec![stored.clone()]);
    assert_eq!(tasks(worker.run(Millis(0))), []);
    let spec = NodeSpec::new(NodeId::new("a").unwrap(), "h:1");
    assert_eq!(worker.registration(spec).stored, [stored]);
    assert!(worker.welcomed(&welcome(2, 1)).is_err(), "its data is of cluster 1");
    worker.welcomed(&welcome(1, 1)).unwrap();
    assert_eq!(worker.beat(Millis(0)).unwrap().reports[0].phase, Phase::Kept);
}

#[test]
fn orders_that_build_on_what_it_does_not_have_are_ignored() {
    let mut fixture = Fixture::new();
    fixture.version = 7;
    assert_eq!(fixture.order(0, order(ReplicaState::Load, Role::Follower, 0, true)), []);
    assert_eq!(fixture.worker.beat(Millis(0)).unwrap().applied, 0);
}

#[test]
fn orders_of_another_coordinator_are_counted_anew() {
    let mut fixture = Fixture::leading(1);
    fixture.version = 22;
    fixture.worker.welcomed(&welcome(1, 1)).unwrap();
    assert_eq!(fixture.worker.beat(Millis(0)).unwrap().applied, 0);
    fixture.version = 0;
    fixture.order(900, order(ReplicaState::Live, Role::Leader, 1, true));
    assert_eq!(fixture.worker.beat(Millis(900)).unwrap().applied, 1);
    assert!(matches!(fixture.judge(1_000, Access::Write), Verdict::Serve(_)), "the lease goes on");
}

#[test]
fn o1_a_leader_that_missed_its_successors_stops_before_it_leads_again() {
    let mut fixture = Fixture::leading(17);
    let Verdict::Serve(before) = fixture.judge(0, Access::Write) else { panic!("it leads") };
    // Cut off beyond its lease, while others led under 18 and 20; now it is to lead again, not granted yet.
    assert_eq!(
        fixture.order(5_000, order(ReplicaState::Live, Role::Leader, 21, false)),
        [Task::AwaitRequests]
    );
    assert_eq!(fixture.judge(5_000, Access::Write), Verdict::Soon);
    assert!(!fixture.worker.gates().still_holds(Millis(5_000), &before), "O7: not all along");
    assert_eq!(tasks(fixture.worker.requests_ended(Millis(5_001), &replica())), []);
    assert_eq!(fixture.reported(), (Phase::Ready, Epoch(21)));
    let serve = Callback::Serve(Role::Leader, Epoch(21));
    assert_eq!(fixture.order(5_002, order(ReplicaState::Live, Role::Leader, 21, true)), [Task::Call(serve)]);
}

#[test]
fn o1_a_lease_is_not_renewed_by_orders_that_are_not_taken_in() {
    let mut fixture = Fixture::leading(1);
    fixture.version = 70;
    fixture.order(900, order(ReplicaState::Live, Role::Leader, 1, true));
    assert_eq!(fixture.judge(1_000, Access::Write), Verdict::Lapsed);
}

#[test]
fn b9_what_it_knows_of_keyspaces_that_it_has_left_is_bounded() {
    let mut fixture = Fixture::leading(1);
    let version = fixture.version + 1;
    fixture.worker.apply_orders(Millis(0), fixture.whole(version, vec![], vec![]));
    fixture.worker.requests_ended(Millis(0), &replica());
    assert_eq!(fixture.done(0, Callback::Unload), []);
    let drop = Callback::Drop(DropReason::Superseded);
    assert_eq!(fixture.permit(0, version + 1, 1), [Task::Call(drop)]);
    fixture.done(0, drop);
    fixture.worker.beat(Millis(0));
    assert!(fixture.worker.local_replicas().is_empty());
    assert!(fixture.worker.keyspace(&keyspace()).is_some(), "its generation still tells an older map");

    let brief = fixture.worker.keyspace(&keyspace()).unwrap().clone();
    for later in 1..=limits::KEYSPACES as u64 + 2 {
        let name = KeyspaceName::new(&format!("later-{later}")).unwrap();
        let first_shard = ShardId(brief.first_shard.0 + later);
        let mut orders = fixture.whole(version + 1 + later, vec![], vec![]);
        orders.keyspaces = vec![KeyspaceBrief { name, first_shard, ..brief.clone() }];
        fixture.worker.apply_orders(Millis(0), orders);
    }
    fixture.worker.beat(Millis(0));
    let known = |name: &str| fixture.worker.keyspace(&KeyspaceName::new(name).unwrap()).is_some();
    assert_eq!(fixture.worker.keyspace(&keyspace()), None, "the oldest went");
    assert!(!known("later-2") && known("later-3"), "as many as a cluster may have stay");
}

#[test]
fn d10_a_durable_shard_that_had_data_is_not_loaded_from_nothing() {
    let mut fixture = Fixture { durable: true, ..Fixture::new() };
    let load =
        |had_data, peers| Order { had_data, peers, ..order(ReplicaState::Load, Role::Follower, 3, true) };
    assert_eq!(fixture.order(0, load(true, vec![])), []);
    let (Phase::Failed(failure), _) = fixture.reported() else { panic!("it is loaded") };
    assert!(failure.reason.contains("partage shard force-join ks 1"), "{}", failure.reason);
    // With a source it is loaded, with the next try.
    let peers = order(ReplicaState::Unload, Role::Follower, 3, true).peers;
    fixture.order(1, load(true, peers));
    assert_eq!(tasks(fixture.worker.run(Millis(5_000))), [Task::Call(Callback::Load)]);

    let mut new = Fixture { durable: true, ..Fixture::new() };
    assert_eq!(new.order(0, load(false, vec![])), [Task::Call(Callback::Load)]);
    let mut in_memory = Fixture::new();
    assert_eq!(in_memory.order(0, load(true, vec![])), [Task::Call(Callback::Load)]);
}

/// The leader of a shard that was split off begins when no follower can own it under an earlier epoch, and a follower after
/// its leader: so the follower says that it has nothing to end.
#[test]
fn o5_l1_a_follower_that_waits_for_its_leader_has_carried_its_order_out() {
    let mut fixture = Fixture { durable: true, ..Fixture::new() };
    let load = Order { had_data: false, ..order(ReplicaState::Load, Role::Follower, 1, true) };
    assert_eq!(fixture.order(0, load), [Task::Call(Callback::Load)]);
    fixture.done(1, Callback::Load);
    assert_eq!(fixture.order(2, order(ReplicaState::Live, Role::Follower, 3, false)), []);
    assert_eq!(fixture.reported(), (Phase::Ready, Epoch(3)));
    // One that is to lead has not, as nobody waits for that.
    let mut leader = Fixture { durable: true, ..Fixture::new() };
    let load = Order { had_data: false, ..order(ReplicaState::Load, Role::Follower, 1, true) };
    leader.order(0, load);
    leader.done(1, Callback::Load);
    assert_eq!(leader.order(2, order(ReplicaState::Live, Role::Leader, 3, false)), []);
    assert_eq!(leader.reported(), (Phase::Ready, Epoch(1)));
}

/// Its leader must know of it first, under the epoch of the order; what has begun goes on.
#[test]
fn d1_a_durable_replica_waits_for_its_leader_before_it_loads() {
    let mut fixture = Fixture { durable: true, ..Fixture::new() };
    let load = |epoch, granted| {
        let peers = order(ReplicaState::Unload, Role::Follower, 3, true).peers;
        Order { peers, ..order(ReplicaState::Load, Role::Follower, epoch, granted) }
    };
    assert_eq!(fixture.order(0, load(3, false)), []);
    assert_eq!(fixture.reported().0, Phase::Loading);
    assert_eq!(fixture.order(1, load(3, true)), [Task::Call(Callback::Load)]);
    // Another leads, which may not know of it: it goes on, and is not begun again before that is so.
    assert_eq!(fixture.order(2, load(4, false)), []);
    fixture.worker.returned(Millis(3), &replica(), Callback::Load, Err("no source".into()));
    assert_eq!(tasks(fixture.worker.run(Millis(60_000))), []);
    assert_eq!(fixture.order(60_001, load(4, true)), [Task::Call(Callback::Load)]);
    // Ordered to be live, it counts as a copy and opens what it has.
    let mut live = with_stored(false);
    assert_eq!(
        live.order(0, order(ReplicaState::Live, Role::Follower, 4, false)),
        [Task::Call(Callback::Load)]
    );
}

/// After a restore the epochs that the copies have stored say which is the latest, so the service of a durable follower is told
/// of each, once it is granted; requests come in meanwhile.
#[test]
fn d10_a_durable_follower_stores_each_epoch_before_it_reports_it() {
    for durable in [true, false] {
        let mut fixture = Fixture { durable, ..Fixture::new() };
        let serve = |epoch| Callback::Serve(Role::Follower, Epoch(epoch));
        let peers = order(ReplicaState::Unload, Role::Follower, 3, true).peers;
        fixture.order(0, Order { peers, ..order(ReplicaState::Load, Role::Follower, 3, true) });
        fixture.worker.returned(Millis(1), &replica(), Callback::Load, Ok(()));
        assert_eq!(
            fixture.order(1, order(ReplicaState::Live, Role::Follower, 3, true)),
            [Task::Call(serve(3))]
        );
        fixture.worker.returned(Millis(2), &replica(), serve(3), Ok(()));
        assert_eq!(fixture.reported(), (Phase::Serving, Epoch(3)));
        let told = |epoch| if durable { vec![Task::Call(serve(epoch))] } else { vec![] };
        assert_eq!(fixture.order(3, order(ReplicaState::Live, Role::Follower, 4, true)), told(4));
        let before = if durable { 3 } else { 4 };
        assert_eq!(fixture.reported(), (Phase::Serving, Epoch(before)), "the gate stays open");
        fixture.worker.returned(Millis(4), &replica(), serve(4), Ok(()));
        assert_eq!(fixture.reported(), (Phase::Serving, Epoch(4)));
        // Its leader waits for what it has ended, and it for its leader.
        assert_eq!(fixture.order(5, order(ReplicaState::Live, Role::Follower, 5, false)), []);
        assert_eq!(fixture.reported(), (Phase::Serving, Epoch(5)));
        assert_eq!(fixture.order(6, order(ReplicaState::Live, Role::Follower, 5, true)), told(5));
    }
}

fn with_stored(damaged: bool) -> Fixture {
    let stored = Stored {
        replica: replica(),
        bounds: Bounds::Hashes(HashRange::ALL),
        epoch: Epoch(3),
        store: 9,
        damaged,
    };
    let mut worker = Worker::new(NodeId::new("a").unwrap(), CallbackTimeouts::default())
        .with_stored(Some(ClusterId(1)), vec![stored.clone()]);
    assert_eq!(worker.registration(NodeSpec::new(NodeId::new("a").unwrap(), "a:1")).stored, [stored]);
    worker.welcomed(&welcome(1, 1)).unwrap();
    Fixture {
        worker,
        version: 0,
        incarnation: 1,
        generation: 1,
        durable: true,
        ownership: Ownership::Exclusive,
        cluster: 1,
    }
}

#[test]
fn d10_what_an_earlier_process_stored_is_kept_and_opened_when_it_is_ordered() {
    let mut fixture = with_stored(false);
    assert_eq!(tasks(fixture.worker.run(Millis(0))), []);
    assert_eq!(fixture.reported(), (Phase::Kept, Epoch(3)));
    let live = order(ReplicaState::Live, Role::Leader, 4, true);
    assert_eq!(fixture.order(1, live), [Task::Call(Callback::Load)]);
    assert!(fixture.worker.local_replicas()[&replica()].has_data());
    assert_eq!(fixture.done(2, Callback::Load), [Task::Call(Callback::Serve(Role::Leader, Epoch(4)))]);

    // Others went on without it, and are away: it waits for one of them.
    let mut behind = with_stored(false);
    let load = Order { peers: vec![], ..order(ReplicaState::Load, Role::Follower, 4, true) };
    assert_eq!(behind.order(1, load), []);
    assert!(matches!(behind.reported().0, Phase::Failed(_)));

    let mut damaged = with_stored(true);
    assert_eq!(damaged.order(1, order(ReplicaState::Live, Role::Leader, 4, true)), []);
    assert!(matches!(damaged.reported().0, Phase::Failed(_)));
}

/// Also of a keyspace that no order was ever about.
#[test]
fn d7_what_an_earlier_process_stored_is_deleted_on_a_permission_only() {
    let mut fixture = with_stored(false);
    let orders = fixture.whole(1, vec![], vec![]);
    assert_eq!(tasks(fixture.worker.apply_orders(Millis(1), orders)), []);
    assert_eq!(fixture.permit(2, 2, 2), [], "of an earlier epoch");
    assert_eq!(fixture.permit(3, 3, 3), [Task::Call(Callback::Drop(DropReason::Superseded))]);
}

#[test]
fn a_worker_that_ends_is_at_rest_when_its_requests_and_unload_have_ended() {
    let mut fixture = Fixture::leading(1);
    assert_eq!(tasks(fixture.worker.ended(Millis(5))), [Task::AwaitRequests]);
    assert!(!fixture.worker.is_at_rest());
    fixture.worker.requests_ended(Millis(6), &replica());
    assert!(!fixture.worker.is_at_rest());
    fixture.done(7, Callback::Unload);
    assert!(fixture.worker.is_at_rest());
}
