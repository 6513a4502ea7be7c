use super::*;
use partage_core::base::id::{ClusterId, Configuration, PlacementId};
use partage_core::base::time::Millis;
use partage_core::keyspace::Ownership;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{KeyspaceBrief, LeaseRenewal, Order, Orders};
use partage_core::worker::{Callback, CallbackTimeouts, LocalReplica, Worker as Machine};

/// A machine that leads one shard, and what its driver would publish.
struct Leader {
    machine: Machine,
    shared: Arc<Shared>,
    in_flight: Arc<InFlight>,
    version: u64,
}

fn keyspace() -> KeyspaceName {
    KeyspaceName::new("users").unwrap()
}

fn replica() -> ReplicaKey {
    ReplicaKey { keyspace: keyspace(), shard: ShardId(1), placement: PlacementId(1) }
}

impl Leader {
    fn new() -> Leader {
        Leader::of(Ownership::Exclusive)
    }

    fn of(ownership: Ownership) -> Leader {
        let node = NodeId::new("a").unwrap();
        let mut machine = Machine::new(node.clone(), CallbackTimeouts::default());
        let welcome = Welcome {
            cluster: ClusterId(1),
            continues: vec![],
            incarnation: Incarnation(1),
            heartbeat_ms: 100,
            lease_ms: 1_000,
        };
        machine.welcomed(&welcome).unwrap();
        let brief = KeyspaceBrief {
            name: keyspace(),
            sharding: Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1 },
            partition_key: PartitionKey::default(),
            ownership,
            generation: Generation::default(),
            first_shard: ShardId(1),
            durable: false,
            min_in_sync: 0,
            kind: partage_core::keyspace::KeyspaceKind::App,
            values: partage_core::keyspace::RowValues::Bytes,
            feed_ms: 0,
        };
        let order = Leader::order_to(ReplicaState::Live);
        let in_flight =
            Arc::new(InFlight::new(Assignment::new(&LocalReplica::new(order.clone()), Some(&brief), None)));
        let shared = Arc::new(Shared::new(node, vec![], Clock::start()));
        let mut leader = Leader { machine, shared, in_flight, version: 0 };
        leader.order(order, vec![brief]);
        for callback in [Callback::Load, Callback::Serve(Role::Leader, Epoch(1))] {
            leader.machine.returned(Millis(0), &replica(), callback, Ok(()));
        }
        leader.publish();
        leader
    }

    fn order_to(state: ReplicaState) -> Order {
        let (role, epoch) = match state {
            ReplicaState::Live => (Role::Leader, Epoch(1)),
            _ => (Role::Follower, Epoch(2)),
        };
        let bounds = Bounds::Slot(Slot::new(0, 1).unwrap());
        Order {
            replica: replica(),
            bounds,
            role,
            state,
            epoch,
            configuration: Configuration(0),
            in_sync: false,
            granted: true,
            peers: vec![],
            had_data: true,
            drop: None,
            hand_over_to: None,
        }
    }

    fn order(&mut self, order: Order, keyspaces: Vec<KeyspaceBrief>) {
        self.version += 1;
        let orders = Orders {
            cluster: ClusterId(1),
            permissions: vec![],
            incarnation: Incarnation(1),
            version: self.version,
            base: self.version - 1,
            keyspaces,
            changed: vec![order],
            removed: vec![],
            lease: Some(LeaseRenewal { sent_at: Millis(0), lease_ms: 600_000, spread_ms: 0 }),
            may_go: false,
        };
        self.machine.apply_orders(Millis(0), orders);
    }

    fn publish(&self) {
        self.publish_after(0);
    }

    /// After so many leases that were renewed too late.
    fn publish_after(&self, lapses: u64) {
        let held = Held { in_flight: self.in_flight.clone(), phase: Phase::Serving };
        let replicas = Arc::new(BTreeMap::from([(replica(), held)]));
        let gates = self.machine.gates();
        self.shared.publish(Published { gates, replicas, lapses, ..Published::default() }, true);
    }

    fn enter_by(&self, seen: arc_swap::Guard<Arc<Published>>) -> Admission {
        self.shared.enter_by(seen, &keyspace(), b"key", Access::Write)
    }
}

#[test]
fn o1_who_saw_the_gate_open_and_finds_it_shut_inside_goes_out_again() {
    let mut leader = Leader::new();
    assert!(matches!(leader.enter_by(leader.shared.published.load()), Admission::Serve(_)));
    let before = leader.shared.published.load();
    leader.order(Leader::order_to(ReplicaState::Unload), vec![]);
    leader.publish();
    let admission = leader.enter_by(before);
    assert!(matches!(admission, Admission::Unknown { .. }), "{admission:?}");
    assert_eq!(leader.in_flight.count(), 0);
}

#[test]
fn a_gate_that_is_published_anew_but_still_open_lets_in() {
    let leader = Leader::new();
    let before = leader.shared.published.load();
    leader.publish();
    let admission = leader.enter_by(before);
    assert!(matches!(admission, Admission::Serve(_)), "{admission:?}");
    assert_eq!(leader.in_flight.count(), 1);
    drop(admission);
    assert_eq!(leader.in_flight.count(), 0);
}

/// In the others something else than the lease says who may serve: followers, or nothing.
#[test]
fn a18_a_lease_that_lapsed_counts_in_exclusive_keyspaces_only() {
    for ownership in [Ownership::Exclusive, Ownership::Replicated, Ownership::Eventual] {
        let leader = Leader::of(ownership);
        let Admission::Serve(guard) = leader.enter_by(leader.shared.published.load()) else {
            panic!("{ownership:?}: the gate is open");
        };
        assert!(guard.mine_all_along(), "{ownership:?}");
        leader.publish_after(1);
        assert_eq!(guard.mine_all_along(), ownership != Ownership::Exclusive, "{ownership:?}");
    }
}

#[tokio::test]
async fn emptied_waits_for_everybody_who_came_before_and_not_longer() {
    let leader = Leader::new();
    let enter = || leader.enter_by(leader.shared.published.load());
    let (first, second) = (enter(), enter());
    let in_flight = leader.in_flight.clone();
    let emptied = tokio::spawn(async move { in_flight.emptied().await });
    tokio::task::yield_now().await;
    drop(first);
    tokio::task::yield_now().await;
    assert!(!emptied.is_finished());
    drop(second);
    emptied.await.unwrap();
    leader.in_flight.emptied().await;
}

#[tokio::test]
async fn at_most_so_many_wait_and_the_next_one_is_told_at_once() {
    let leader = Leader::new();
    let places = leader.shared.waiters.try_acquire_many(limits::WAITERS as u32).unwrap();
    let far = Instant::now() + std::time::Duration::from_secs(3_600);
    let early = leader.shared.await_change(far, || "soon", |_| true).await;
    assert_eq!(early, "soon");
    let (resting, near) =
        (tokio::sync::Semaphore::new(1), Instant::now() + std::time::Duration::from_millis(20));
    leader.shared.await_change_among(&resting, near, || "soon", |_| true).await;
    assert!(Instant::now() >= near, "what rests has places of its own");
    drop(places);
    let near = Instant::now() + std::time::Duration::from_millis(20);
    assert_eq!(leader.shared.await_change(near, || "soon", |_| true).await, "soon");
}
