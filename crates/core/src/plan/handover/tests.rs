//! What becomes of copies whose processes have ended, by what is known of the others.

use super::*;
use crate::base::id::TransactionId;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::HashRange;
use crate::node::exchange::Failure;

use crate::base::name::KeyspaceName;
use crate::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use std::collections::{BTreeMap, BTreeSet};

/// What is seen of nodes, by name; all that is not said is "no".
#[derive(Default)]
struct Seen {
    ended: BTreeSet<&'static str>,
    /// Back in a second start, with everything stored.
    back: BTreeSet<&'static str>,
    /// Back in a second start, with nothing.
    gone: BTreeSet<&'static str>,
    silent: BTreeSet<&'static str>,
    unheard: BTreeSet<&'static str>,
    lease_over: BTreeSet<&'static str>,
    /// What replicas report; the others serve.
    phases: BTreeMap<PlacementId, Option<Phase>>,
    /// Was to serve, and has not begun.
    overdue: Option<PlacementId>,
    keyspace: DurableKeyspace,
    /// What the leader of a replicated shard asks for, in place of which configuration, under which epoch.
    wish: Option<(Epoch, Configuration, Vec<PlacementId>)>,
    /// Of replicated shards: the leader is heard neither by its followers nor by the coordinator.
    silenced: bool,
}

/// Exclusive, if not said otherwise.
struct DurableKeyspace(Keyspace);

impl DurableKeyspace {
    fn of(ownership: Ownership) -> DurableKeyspace {
        let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
        let keyspace = Keyspace::new(KeyspaceName::new("ks").unwrap(), sharding);
        DurableKeyspace(Keyspace { ownership, durable: true, ..keyspace })
    }
}

impl Default for DurableKeyspace {
    fn default() -> DurableKeyspace {
        DurableKeyspace::of(Ownership::Exclusive)
    }
}

impl Seen {
    fn is_in(set: &BTreeSet<&'static str>, replica: &Replica) -> bool {
        replica.incarnation == Incarnation(1) && set.contains(replica.node.as_str())
    }
}

impl ReplicaView for Seen {
    fn keyspace(&self) -> &Keyspace {
        &self.keyspace.0
    }

    fn phase(&self, placement: PlacementId) -> Option<&Phase> {
        self.phases.get(&placement).map_or(Some(&Phase::Serving), Option::as_ref)
    }

    fn epoch(&self, _: PlacementId) -> Option<Epoch> {
        self.wish.as_ref().map(|(epoch, ..)| *epoch)
    }

    fn wish(&self, _: PlacementId) -> Option<(Configuration, &[PlacementId])> {
        self.wish.as_ref().map(|(_, configuration, members)| (*configuration, members.as_slice()))
    }

    fn is_silenced(&self, _: &Shard, _: &Replica) -> bool {
        self.silenced
    }

    fn lease_is_over(&self, replica: &Replica) -> bool {
        Seen::is_in(&self.lease_over, replica) || self.has_ended(replica)
    }

    fn has_ended(&self, replica: &Replica) -> bool {
        Seen::is_in(&self.ended, replica)
    }

    fn need_not_lead(&self, replica: &Replica) -> bool {
        Seen::is_in(&self.silent, replica)
    }

    fn sends_heartbeats(&self, replica: &Replica) -> bool {
        !Seen::is_in(&self.unheard, replica) && !self.has_ended(replica)
    }

    fn is_overdue(&self, placement: PlacementId, state: ReplicaState) -> bool {
        state == Live && self.overdue == Some(placement)
    }

    fn load_attempts(&self) -> u32 {
        3
    }

    fn disk_state(&self, _: &Shard, replica: &Replica) -> DiskState {
        match replica.node.as_str() {
            node if self.back.contains(node) => DiskState::Intact(Incarnation(2)),
            node if self.gone.contains(node) => DiskState::Gone,
            _ => DiskState::Away,
        }
    }

    fn wanted(&self, _: ShardId) -> usize {
        2
    }

    fn takes_no_writes(&self, _: &NodeId) -> bool {
        false
    }

    fn was_heard_since(&self, _: &Replica, _: &Replica) -> bool {
        true
    }

    fn transfer_step(&self, _: &Shard, _: PlacementId) -> TransferStep {
        TransferStep::Done
    }

    fn is_expected(&self, member: &Replica) -> bool {
        !self.has_ended(member)
    }

    fn has_never_led(&self, _: PlacementId) -> bool {
        false
    }

    fn excused_attempts(&self, _: PlacementId) -> u32 {
        0
    }

    fn awaits_comparison(&self, _: &Shard) -> bool {
        false
    }

    fn may_be_later(&self, _: &Shard, _: &Replica) -> bool {
        false
    }
}

fn committed(map: &ShardMap, change: impl FnOnce(&mut Edit<'_>)) -> ShardMap {
    let mut edit = map.edit();
    change(&mut edit);
    let diff = edit.commit(TransactionId([map.generation().sequence as u8; 20]));
    let mut next = map.clone();
    next.apply(&diff).unwrap();
    next
}

/// One shard: `a` leads, `b` follows, and has had data.
fn led_by_a() -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let empty = ShardMap::empty(KeyspaceName::new("ks").unwrap(), sharding, PartitionKey::default());
    committed(&empty, |edit| {
        let id = edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap();
        for node in ["a", "b"] {
            let node = NodeId::new(node).unwrap();
            let placement = edit.add_replica(id, &node, Incarnation(1), None).unwrap();
            edit.step(id, placement, ReplicaState::Live).unwrap();
        }
        edit.lead(id, PlacementId(1)).unwrap();
    })
}

/// The state and the start of each replica when nothing more is to be done, and who leads.
fn settled(seen: &Seen) -> (Vec<(ReplicaState, u64)>, Option<PlacementId>) {
    let mut map = led_by_a();
    for _ in 0..4 {
        map = committed(&map, |edit| reconcile(edit, ShardId(1), seen).unwrap());
    }
    let shard = map.shard(ShardId(1)).unwrap();
    let states = shard.replicas.iter().map(|r| (r.state, r.incarnation.0)).collect();
    (states, shard.leader().map(|r| r.placement))
}

use ReplicaState::{Live, Load, Unload};

#[test]
fn d1_a_follower_that_a_leader_may_go_on_without_is_no_copy_when_it_is_back() {
    let [a, b] = ["a", "b"].map(|name| BTreeSet::from([name]));
    // The leader serves; its address answers no more, while its lease runs; it needs no lease.
    let leaders = [
        Seen::default(),
        Seen { silent: a.clone(), ..Seen::default() },
        Seen {
            silent: a.clone(),
            lease_over: a,
            keyspace: DurableKeyspace::of(Ownership::Eventual),
            ..Seen::default()
        },
    ];
    for leader in leaders {
        let seen = Seen { ended: b.clone(), back: b.clone(), ..leader };
        let (replicas, leads) = settled(&seen);
        assert_eq!((replicas[0], replicas[1].0, leads), ((Live, 1), Load, Some(PlacementId(1))));
    }
}

#[test]
fn d10_a_follower_whose_leader_cannot_act_any_more_is_a_copy_when_it_is_back() {
    let [a, b] = ["a", "b"].map(|name| BTreeSet::from([name]));
    let [ended, back] = [b.clone(), b];
    let seen = Seen { ended, back, silent: a.clone(), lease_over: a, ..Seen::default() };
    assert_eq!(settled(&seen).0, [(Live, 1), (Live, 2)]);
}

#[test]
fn d10_a_leader_is_back_as_a_copy_where_its_follower_could_not_lead() {
    let [a, b] = ["a", "b"].map(|name| BTreeSet::from([name]));
    let seen = Seen { ended: a.clone(), back: a, silent: b, ..Seen::default() };
    let (replicas, leads) = settled(&seen);
    assert_eq!(replicas, [(Live, 2), (Live, 1)]);
    assert_eq!(leads, Some(PlacementId(1)));
}

#[test]
fn d1_nothing_is_decided_about_a_follower_while_its_leader_may_live() {
    let [a, b] = ["a", "b"].map(|name| BTreeSet::from([name]));
    let seen = Seen { ended: b.clone(), back: b, unheard: a, ..Seen::default() };
    assert_eq!(settled(&seen).0, [(Live, 1), (Live, 1)]);
}

/// It is back alone after everything has ended: the others are copies until it has opened what it has.
#[test]
fn d10_a_leader_that_has_opened_nothing_makes_no_copy_wait() {
    let b = BTreeSet::from(["b"]);
    let of = |phase: Option<Phase>, back: &BTreeSet<&'static str>| {
        let (ended, back, phases) = (b.clone(), back.clone(), [(PlacementId(1), phase)].into());
        settled(&Seen { ended, back, phases, ..Seen::default() }).0
    };
    for phase in [Phase::Loading, Phase::failed(1, "the disk is gone".to_owned())] {
        assert_eq!(of(Some(phase.clone()), &BTreeSet::new()), [(Live, 1), (Live, 1)]);
        assert_eq!(of(Some(phase), &b), [(Live, 1), (Live, 2)]);
    }
    assert_eq!(of(None, &b), [(Live, 1), (Live, 1)], "it may be open");
    assert_eq!(of(Some(Phase::Ready), &b), [(Live, 1), (Load, 1)], "until it serves");
}

/// It has opened what it has, and never begins to serve it.
#[test]
fn d10_a_leader_that_never_begins_makes_no_copy_wait() {
    let b = BTreeSet::from(["b"]);
    let phases = BTreeMap::from([(PlacementId(1), Some(Phase::Ready))]);
    let hangs = Seen { ended: b.clone(), phases, overdue: Some(PlacementId(1)), ..Seen::default() };
    assert_eq!(settled(&hangs).0, [(Live, 1), (Live, 1)], "while the other one is away");
    let (replicas, leads) = settled(&Seen { back: b, ..hangs });
    assert_eq!((replicas[1], leads), ((Live, 2), Some(PlacementId(2))), "when it is back");
}

/// What follows may fail to serve only because its leader is away; it is a copy all the same. While the leader's node may come
/// back with its own, that is waited for; when it is back with nothing, nobody else is left to lead.
#[test]
fn l1_d10_a_follower_that_failed_leads_when_all_others_are_lost() {
    let failed = Phase::failed(1, "its leader does not answer".to_owned());
    let phases: BTreeMap<_, _> = [(PlacementId(1), None), (PlacementId(2), Some(failed))].into();
    let away = Seen { ended: ["a"].into(), phases, ..Seen::default() };
    assert_eq!(settled(&away), (vec![(Live, 1), (Live, 1)], Some(PlacementId(1))));
    let lost = Seen { gone: ["a"].into(), ..away };
    assert_eq!(settled(&lost), (vec![(Live, 1), (Live, 1)], Some(PlacementId(2))));
}

/// What is stored of a follower is damaged: no further attempt is waited for, and another placement takes its place. Other
/// failures may pass.
#[test]
fn d10_a_follower_that_is_found_damaged_is_removed_after_its_first_attempt() {
    let failed = |attempts, damaged| {
        let failure = Failure { attempts, reason: "no".to_owned(), damaged };
        let phases = [(PlacementId(2), Some(Phase::Failed(Box::new(failure))))].into();
        settled(&Seen { phases, ..Seen::default() }).0
    };
    assert_eq!(failed(1, false), [(Live, 1), (Live, 1)]);
    assert_ne!(failed(3, false)[1], (Live, 1));
    assert_eq!(failed(1, true), [(Live, 1)]);
}

/// One shard of a replicated keyspace: `a` leads, `b` is in sync, `c` and `d` load, `d` in place of `a`.
fn in_sync() -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let empty = ShardMap::empty(KeyspaceName::new("ks").unwrap(), sharding, PartitionKey::default());
    committed(&empty, |edit| {
        let id = edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap();
        for (name, replaced) in [("a", None), ("b", None), ("c", None), ("d", Some(PlacementId(1)))] {
            let at = NodeId::new(name).unwrap();
            let placement = edit.add_replica(id, &at, Incarnation(1), replaced).unwrap();
            if ["a", "b"].contains(&name) {
                edit.step(id, placement, ReplicaState::Live).unwrap();
                edit.take_in(id, placement).unwrap();
            }
        }
        edit.lead(id, PlacementId(1)).unwrap();
    })
}

/// The in-sync set and the leader after what is ready is done, and by how much the configuration has grown.
fn after_wish(seen: &Seen) -> (Vec<u64>, Option<u64>, u64) {
    let before = in_sync();
    let step = |map: &ShardMap| committed(map, |edit| reconcile(edit, ShardId(1), seen).unwrap());
    // What has ended is seen to first, in a commit of its own.
    let map = step(&step(&before));
    let [before, now] = [&before, &map].map(|map| map.shard(ShardId(1)).unwrap());
    let set = now.in_sync().map(|r| r.placement.0).collect();
    (set, now.leader().map(|r| r.placement.0), now.configuration.0 - before.configuration.0)
}

fn asks(members: &[u64]) -> Seen {
    let shard = in_sync().shard(ShardId(1)).unwrap().clone();
    let members = members.iter().copied().map(PlacementId).collect();
    // `c` and `d` are ready to serve.
    let ready = [3, 4].map(|placement| (PlacementId(placement), Some(Phase::Ready)));
    Seen {
        wish: Some((shard.epoch, shard.configuration, members)),
        keyspace: DurableKeyspace::of(Ownership::Replicated),
        phases: ready.into(),
        ..Seen::default()
    }
}

#[test]
fn t14_what_is_possible_of_a_wish_is_granted_in_one_commit() {
    let (set, leader, grown) = after_wish(&asks(&[1, 2, 3]));
    assert_eq!((set, leader, grown), (vec![1, 2, 3], Some(1), 1), "one comes");
    let (set, leader, _) = after_wish(&asks(&[1]));
    assert_eq!((set, leader), (vec![1], Some(1)), "one goes");
    let (set, leader, _) = after_wish(&asks(&[1, 3]));
    assert_eq!((set, leader), (vec![1, 3], Some(1)), "one comes and one goes");
    let (set, leader, _) = after_wish(&asks(&[1, 2, 4]));
    assert_eq!((set, leader), (vec![2, 4], Some(4)), "what takes the leader's place leads");
    let (set, leader, grown) = after_wish(&asks(&[1, 2, 3, 9]));
    assert_eq!((set, leader, grown), (vec![1, 2, 3], Some(1), 1), "one is unknown");
}

/// `b` is in sync, and `e` is a read replica; `f` loads, to be read from in the place of `replaced`.
fn with_read_replicas(replaced: PlacementId) -> ShardMap {
    committed(&in_sync(), |edit| {
        let [e, f] = ["e", "f"].map(|name| NodeId::new(name).unwrap());
        let read = edit.add_read_replica(ShardId(1), &e, Incarnation(1), None).unwrap();
        edit.step(ShardId(1), read, ReplicaState::Live).unwrap();
        edit.add_read_replica(ShardId(1), &f, Incarnation(1), Some(replaced)).unwrap();
    })
}

#[test]
fn d1_no_member_leaves_for_a_read_replica() {
    let ready = Seen {
        keyspace: DurableKeyspace::of(Ownership::Replicated),
        phases: [(PlacementId(6), Some(Phase::Ready))].into(),
        wish: Some((in_sync().shard(ShardId(1)).unwrap().epoch, Configuration(0), vec![])),
        ..Seen::default()
    };
    let settled = |map: &ShardMap| {
        let map = committed(map, |edit| reconcile(edit, ShardId(1), &ready).unwrap());
        let shard = map.shard(ShardId(1)).unwrap();
        let states = [2, 5, 6].map(|placement| shard.replica(PlacementId(placement)).map(|r| r.state));
        (states, shard.in_sync().map(|r| r.placement.0).collect::<Vec<_>>())
    };
    let moved = with_read_replicas(PlacementId(5));
    assert_eq!(settled(&moved), ([Some(Live), Some(Unload), Some(Live)], vec![1, 2]), "a read replica does");
    let beside = with_read_replicas(PlacementId(2));
    assert_eq!(settled(&beside), ([Some(Live), Some(Live), Some(Live)], vec![1, 2]));
    let led = with_read_replicas(PlacementId(1));
    assert_eq!(settled(&led), ([Some(Live), Some(Live), Some(Live)], vec![1, 2]), "nor does the leader");
    let made = committed(&moved, |edit| edit.make_member(ShardId(1), PlacementId(5)).unwrap());
    let shard = made.shard(ShardId(1)).unwrap();
    assert_eq!(shard.replica(PlacementId(6)).unwrap().replaces(), None);
    assert_eq!(settled(&made), ([Some(Live), Some(Load), Some(Live)], vec![1, 2]), "it catches up");
}

/// Who loses the place in the set catches up anew, and others can tell by the epoch that they went on without it.
#[test]
fn d1_who_is_asked_out_loads_and_the_epoch_tells() {
    let before = in_sync();
    let map = committed(&before, |edit| reconcile(edit, ShardId(1), &asks(&[1])).unwrap());
    let [before, now] = [&before, &map].map(|map| map.shard(ShardId(1)).unwrap());
    assert_eq!(now.replica(PlacementId(2)).unwrap().state, Load);
    assert!(now.epoch > before.epoch);
}

#[test]
fn d1_an_old_wish_is_ignored_and_an_impossible_one_is_answered_by_a_later_configuration() {
    let kept = (vec![1, 2], Some(1));
    let shard = in_sync().shard(ShardId(1)).unwrap().clone();
    for (epoch, configuration) in [(Epoch(0), shard.configuration), (shard.epoch, Configuration(1))] {
        let wish = Some((epoch, configuration, [1, 2, 3].map(PlacementId).to_vec()));
        let (set, leader, grown) = after_wish(&Seen { wish, ..asks(&[]) });
        assert_eq!(((set, leader), grown), (kept.clone(), 0), "{epoch} {configuration}");
    }
    let (set, leader, grown) = after_wish(&asks(&[1, 2]));
    assert_eq!(((set, leader), grown), (kept.clone(), 1), "the present set: a later epoch is asked for");
    let loading = Seen { phases: [(PlacementId(3), Some(Phase::Loading))].into(), ..asks(&[1, 2, 3]) };
    let ended = Seen { ended: ["c"].into(), ..asks(&[1, 2, 3]) };
    for refused in [asks(&[1, 2, 9]), asks(&[2]), asks(&[]), loading, ended] {
        let (set, leader, grown) = after_wish(&refused);
        assert_eq!(((set, leader), grown), (kept.clone(), 1), "{:?}", refused.wish);
    }
}

#[test]
fn l1_a_silent_leader_is_followed_by_a_member_and_taken_out() {
    let seen = Seen { wish: None, silenced: true, ..asks(&[]) };
    let (set, leader, _) = after_wish(&seen);
    assert_eq!((set, leader), (vec![2], Some(2)));
}
