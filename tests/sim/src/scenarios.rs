//! What must be so whatever the draw: small worlds and single machines, each built to show one rule. [`crate::mutants`]
//! hunts with them for bugs that chance seldom brings out. Each says what it saw instead, if it is not so.

use crate::alone::{Alone, Member};
use crate::clock::SECOND;
use crate::model::KeyAt;
use crate::shape::Shape;
use crate::world::World;
use partage_core::base::id::{
    ClusterId, Configuration, Epoch, Generation, Incarnation, PlacementId, ShardId, TransactionId,
};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::base::settings::Settings;
use partage_core::base::time::Millis;
use partage_core::cluster::publication::{Retention, Since, WatchCache};
use partage_core::keyspace::Ownership;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Access;
use partage_core::keyspace::map::{MapDiff, Role};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{KeyspaceBrief, LeaseRenewal, Order, Orders, ReplicaKey};
use partage_core::worker::gates::Verdict;
use partage_core::worker::{Callback, CallbackTimeouts, Worker};
use partage_service::table::replication::message::{Append, Reply};
use partage_service::table::replication::{
    self as replication, Effect, EntryKind, LogPosition, LogWrite, Message, Replica,
};

/// What was seen instead.
type Outcome = Result<(), String>;

/// A key that kills its owners in a cluster of ten, whose processes are not started again: how many it killed, and the
/// world a while later.
pub fn poisoned() -> (usize, World) {
    let shape = Shape { coordinators: 1, nodes: 10, routers: 1, faulty: 0, calm: 0, ..Shape::FULL };
    let mut world = World::still(3, shape, None);
    world.begin();
    world.run_until(6 * SECOND);
    world.scene.poison.insert(KeyAt { keyspace: 0, key: 5 });
    world.look_again();
    world.run_until(40 * SECOND);
    (world.nodes.iter().filter(|node| node.is_down()).count(), world)
}

/// It kills three nodes at the most (R5).
pub fn a_key_that_kills_is_set_aside() -> Outcome {
    let (killed, world) = poisoned();
    if let Some(violation) = world.scene.violation {
        return Err(format!("{}: {}", violation.invariant, violation.text));
    }
    if killed > 3 { Err(format!("R5: a key has killed {killed} nodes")) } else { Ok(()) }
}

/// A worker that has orders of version 5.
fn ordered_worker() -> Worker {
    let mut worker =
        Worker::new(NodeId::new("node-0").expect("a plain word is a name"), CallbackTimeouts::default());
    let welcome = Welcome {
        cluster: ClusterId(1),
        continues: Vec::new(),
        incarnation: Incarnation(1),
        heartbeat_ms: 100,
        lease_ms: 1_000,
    };
    worker.welcomed(&welcome).expect("a worker of no cluster takes any");
    let _nothing_to_do = worker.apply_orders(Millis(10), orders(5, 0));
    worker
}

fn orders(version: u64, base: u64) -> Orders {
    Orders {
        cluster: ClusterId(1),
        permissions: Vec::new(),
        incarnation: Incarnation(1),
        version,
        base,
        keyspaces: Vec::new(),
        changed: Vec::new(),
        removed: Vec::new(),
        lease: None,
        may_go: false,
    }
}

fn leased(version: u64, base: u64) -> Orders {
    let lease = LeaseRenewal { sent_at: Millis(20), lease_ms: 1_000, spread_ms: 0 };
    Orders { lease: Some(lease), ..orders(version, base) }
}

fn fails_if(is_wrong: bool, why: &str) -> Outcome {
    if is_wrong { Err(why.to_owned()) } else { Ok(()) }
}

/// Orders that come after later ones are ignored (W1).
pub fn overtaken_orders_change_nothing() -> Outcome {
    let mut worker = ordered_worker();
    let _nothing_to_do = worker.apply_orders(Millis(30), orders(3, 0));
    let applied = worker.beat(Millis(40)).map(|beat| beat.applied);
    fails_if(applied != Some(5), "W1: a worker goes back to orders that later ones have overtaken")
}

/// A lease says "what you do is still yours to do": a node that refuses the orders beside it does not know what that is.
pub fn refused_orders_give_no_lease() -> Outcome {
    let mut worker = ordered_worker();
    let _nothing_to_do = worker.apply_orders(Millis(30), leased(9, 7));
    fails_if(worker.lease().holds(Millis(40)), "O1: a worker has a lease from orders that it refused")
}

/// The orders that renew a lease are long on their way: the coordinator counts from when it sent them at the latest, so the
/// worker counts from when it asked (O4).
pub fn a_lease_counts_from_the_beat_that_asked_for_it() -> Outcome {
    let mut worker = ordered_worker();
    let _nothing_to_do = worker.apply_orders(Millis(900), leased(6, 5));
    fails_if(!worker.lease().holds(Millis(910)), "the scenario gives no lease")?;
    fails_if(worker.lease().holds(Millis(1_030)), "O4: a worker counts its lease from when the answer came")
}

/// An incarnation that has ended has no lease (O6).
pub fn an_end_ends_the_lease() -> Outcome {
    let mut worker = ordered_worker();
    let _nothing_to_do = worker.apply_orders(Millis(30), leased(6, 5));
    let had = worker.lease().holds(Millis(40));
    let _nothing_to_do = worker.ended(Millis(40));
    fails_if(!had || worker.lease().holds(Millis(40)), "O6: an incarnation that has ended keeps its lease")
}

/// A permit of an earlier epoch is none: others may have led between it and the lead of now (O7).
pub fn a_permit_ends_with_its_epoch() -> Outcome {
    let mut worker = ordered_worker();
    let replica = only_replica()?;
    let (first, second) = (Epoch(17), Epoch(21));
    let orders = |version, state, role, epoch, granted| {
        let order = Order {
            replica: replica.clone(),
            bounds: Bounds::Hashes(HashRange::ALL),
            role,
            state,
            epoch,
            configuration: Configuration(0),
            in_sync: false,
            granted,
            peers: Vec::new(),
            had_data: false,
            drop: None,
            hand_over_to: None,
        };
        let keyspaces = vec![whole_keyspace(&replica.keyspace)];
        Orders { keyspaces, changed: vec![order], ..leased(version, version - 1) }
    };
    let load = orders(6, ReplicaState::Load, Role::Follower, Epoch(0), true);
    let _calls_load = worker.apply_orders(Millis(20), load);
    let _nothing_to_do = worker.returned(Millis(20), &replica, Callback::Load, Ok(()));
    let mut permit = None;
    for (version, epoch) in [(7, first), (8, second)] {
        let lead = orders(version, ReplicaState::Live, Role::Leader, epoch, true);
        let _calls_serve = worker.apply_orders(Millis(20), lead);
        let _calls_serve = worker.requests_ended(Millis(20), &replica);
        let serve = Callback::Serve(Role::Leader, epoch);
        let _nothing_to_do = worker.returned(Millis(20), &replica, serve, Ok(()));
        let judged = worker.gates().judge(Millis(30), &replica.keyspace, b"key", Access::Write);
        let Verdict::Serve(given) = judged else { return Err(format!("it does not lead: {judged:?}")) };
        if given.epoch != epoch || !worker.gates().still_holds(Millis(30), &given) {
            return Err(format!("it does not lead under {epoch:?}: {given:?}"));
        }
        permit = permit.or(Some(given));
    }
    let holds = permit.is_some_and(|permit| worker.gates().still_holds(Millis(30), &permit));
    fails_if(holds, "O7: a request that was let in under epoch 17 is answered under epoch 21")
}

fn only_replica() -> Result<ReplicaKey, String> {
    let keyspace = KeyspaceName::new("ledger").map_err(|error| error.to_string())?;
    Ok(ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(1) })
}

fn whole_keyspace(name: &KeyspaceName) -> KeyspaceBrief {
    KeyspaceBrief {
        name: name.clone(),
        sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 },
        partition_key: PartitionKey::default(),
        ownership: Ownership::Exclusive,
        generation: Generation::default(),
        first_shard: ShardId(1),
        durable: false,
        min_in_sync: 0,
        kind: partage_core::keyspace::KeyspaceKind::App,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    }
}

/// It heard no node while it slept, which says nothing about the nodes.
pub fn a_coordinator_that_slept_gives_nobody_up() -> Outcome {
    let settings = Settings::default();
    let dead_ms = settings.dead_after_ms;
    let mut alone = Alone::with_shards(3, settings)?;
    alone.now = alone.now + 10 * dead_ms;
    alone.decide();
    let given_up = alone.cluster.nodes().values().filter(|node| node.record.ended).count();
    let braked = alone.cluster.brake().is_some();
    fails_if(given_up > 0 || braked, "R6: a coordinator takes its own sleep for the silence of its nodes")
}

/// More nodes fall silent than the brake bears, and nothing says that a shard is to blame.
pub fn the_brake_bears_no_more_than_it_says() -> Outcome {
    let settings = Settings::default();
    let beats = 2 * settings.dead_after_ms / settings.heartbeat_ms;
    let borne = ((settings.brake_share * 10.0) as usize).max(2);
    let mut alone = Alone::with_shards(10, settings)?;
    alone.members.truncate(10 - borne - 1);
    for _ in 0..beats {
        alone.beats(&Member::serves)?;
    }
    let given_up = alone.cluster.nodes().values().filter(|node| node.record.ended).count();
    fails_if(given_up > 0, &format!("R4: {given_up} of 10 nodes are given up without a brake"))
}

/// A standby misses a change of a map: a reader there is not led over the gap.
pub fn a_standby_that_missed_a_change_leads_nobody_over_the_gap() -> Outcome {
    let keyspace = KeyspaceName::new("ledger").map_err(|error| error.to_string())?;
    let at = |sequence| Generation { sequence, transaction: TransactionId([0; 20]) };
    let brief = |sequence| KeyspaceBrief {
        name: keyspace.clone(),
        sharding: Sharding::Named,
        partition_key: PartitionKey::default(),
        ownership: Ownership::Eventual,
        generation: at(sequence),
        first_shard: ShardId(1),
        durable: false,
        min_in_sync: 0,
        kind: partage_core::keyspace::KeyspaceKind::App,
        values: partage_core::keyspace::RowValues::Bytes,
        feed_ms: 0,
    };
    let diff = |sequence: u64| MapDiff {
        keyspace: keyspace.clone(),
        from: at(sequence - 1),
        to: at(sequence),
        parent: Some(at(sequence - 1)),
        changed: Vec::new(),
        removed: Vec::new(),
        next_shard: ShardId(1),
        next_placement: PlacementId(1),
    };
    let mut cache = WatchCache::new(Retention { diffs: 10, shards: 10, forgotten: 10 });
    for sequence in [2, 3, 5] {
        cache.pass_on(brief(sequence), diff(sequence));
    }
    let lead = cache.since(&keyspace, Some(at(2)));
    fails_if(lead != Since::Whole, &format!("W4: a reader at g2 is led to g5 by {lead:?}, without g4"))
}

/// What a replica of a table is told by the order that makes `leader` the leader of that epoch.
fn told_to_follow(epoch: u64, leader: PlacementId) -> Result<replication::Event, String> {
    let peer = |placement: u64| {
        let node = NodeId::new(&format!("n{placement}")).map_err(|error| error.to_string())?;
        let (placement, incarnation) = (PlacementId(placement), Incarnation(1));
        Ok::<_, String>(replication::Peer { placement, node, incarnation, may_join: true })
    };
    let peers = (1..=3).map(peer).collect::<Result<Vec<_>, _>>()?;
    Ok(replication::Event::Order(replication::Order {
        epoch: Epoch(epoch),
        configuration: Configuration(epoch),
        leader,
        in_sync: peers.iter().map(|peer| peer.placement).collect(),
        peers,
        closes: false,
        hand_over_to: None,
    }))
}

/// Hands an event in, and says at once that what is to be written is on disk. Whether the replica has begun to lead.
fn begins(replica: &mut Replica, now: Millis, event: replication::Event) -> bool {
    let mut events = vec![event];
    let mut begins = false;
    while let Some(event) = events.pop() {
        for effect in replica.handle(now, event) {
            if let Effect::Write(number, write) = effect {
                let entries = if let LogWrite::Append(entries) = write { entries } else { Vec::new() };
                begins |= entries.iter().any(|entry| entry.kind == EntryKind::Begin);
                events.push(replication::Event::Synced(number));
            }
        }
    }
    begins
}

/// A leader of a table is ordered to hand over while a write is under way: its heir is ready when all in-sync replicas have the
/// write, and not before, so that no client is left without an outcome by the change (T16).
pub fn an_heir_is_ready_when_no_write_is_under_way() -> Outcome {
    let (now, settings) = (Millis(10_000), replication::Settings::default());
    let [me, heir, other] = [1, 2, 3].map(PlacementId);
    let mut leader = Replica::recover((me, Incarnation(1)), settings, Default::default(), now, true);
    let reply = |matched| {
        let (epoch, incarnation) = (Epoch(1), Incarnation(1));
        Message::Reply(Reply { epoch, fence: epoch, incarnation, sent: now, clock: now, matched, ends: None })
    };
    let mut hand_over = told_to_follow(1, me)?;
    if let replication::Event::Order(order) = &mut hand_over {
        order.hand_over_to = Some(heir);
    }
    let received = [
        told_to_follow(1, me)?,
        replication::Event::Message(heir, reply(1)),
        replication::Event::Message(other, reply(1)),
        replication::Event::Write(vec![(1, std::sync::Arc::from(&b"a"[..]))]),
        replication::Event::Message(heir, reply(2)),
        hand_over,
    ];
    for event in received {
        begins(&mut leader, now, event);
    }
    if leader.status().end.index != 2 || leader.status().heir_ready.is_some() {
        return Err(format!("T16: its heir is ready while a write is under way: {:?}", leader.status()));
    }
    begins(&mut leader, now, replication::Event::Message(other, reply(2)));
    match leader.status().heir_ready {
        Some(ready) if ready == heir => Ok(()),
        ready => Err(format!("L1: all have the write, and {ready:?} is ready")),
    }
}

/// A replica of a table has promised to the leader of epoch 5; the leader of epoch 4 says late that it has let go; and the
/// replica is made the leader of epoch 6. It begins when its promise is over, and not before (D2).
pub fn a_promise_to_a_later_leader_is_waited_out() -> Outcome {
    let (now, settings) = (Millis(10_000), replication::Settings::default());
    let [former, me, earlier] = [1, 2, 3].map(PlacementId);
    let mut replica = Replica::recover((me, Incarnation(1)), settings, Default::default(), now, true);
    let append = Message::Append(Append {
        epoch: Epoch(5),
        before: LogPosition::default(),
        entries: Vec::new(),
        committed: 0,
        is_enough: false,
        sent: Millis(1),
        echo: None,
    });
    let late = Message::LetGo(Epoch(4));
    let received = [
        told_to_follow(5, former)?,
        replication::Event::Message(former, append),
        replication::Event::Message(earlier, late),
        told_to_follow(6, me)?,
        replication::Event::Tick,
    ];
    for event in received {
        if begins(&mut replica, now, event) {
            return Err("D2: it begins while the former leader relies on its promise".to_owned());
        }
    }
    let over = now + settings.promise_ms + 1;
    match begins(&mut replica, over, replication::Event::Tick) {
        true => Ok(()),
        false => Err("L1: it does not begin when its promise is over".to_owned()),
    }
}
