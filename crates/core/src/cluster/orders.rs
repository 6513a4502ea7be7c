//! The orders to each worker: computed from the maps, with a version, sent as differences.
//!
//! An [`OrderIndex`] has no orders, only the shards of which a node has a replica, and the version of each change that the
//! worker has not confirmed yet. The coordinator computes an order from the map when it sends it. So it keeps a number for each
//! of a million replicas, not a message.

use super::keyspaces::Keyspaces;
use super::members::{Members, NodesView};
use super::{Cluster, KeyspaceState, NodeState, Outbox, PackedMap, Write, stored};
use crate::base::id::{Configuration, PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard, Stage};
use crate::keyspace::{Keyspace, Ownership};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{
    DropReason, KeyspaceBrief, LeaseRenewal, Order, Orders, Peer, Phase, ReplicaKey, ReplicationReport,
};
use crate::plan::handover::{self, DiskState, ReplicaView, TransferStep};
use std::collections::{BTreeMap, BTreeSet};

/// How many removals are kept for differences; a worker that is further behind gets whole orders.
const REMOVALS: usize = 4_096;

/// A replica of the current incarnation of a node, with its shard and keyspace.
pub(super) type HostedReplica<'a> = (&'a KeyspaceState, &'a Shard, &'a Replica);

/// Which replicas one node should have, and in which versions that changed.
#[derive(Debug, Clone, Default)]
pub(super) struct OrderIndex {
    version: u64,
    /// The shards of which it has a replica; by keyspace, so that each name is kept once.
    held: BTreeMap<KeyspaceName, PackedMap<ShardId, ()>>,
    /// For each shard whose orders changed after `floor`, the last version in which they did.
    changed: BTreeMap<(KeyspaceName, ShardId), u64>,
    /// For each replica that was withdrawn after `floor`, the version.
    removed: BTreeMap<ReplicaKey, u64>,
    /// The oldest version on which a difference can build.
    floor: u64,
    /// The version that the worker has confirmed.
    confirmed: u64,
}

impl OrderIndex {
    fn touch(&mut self, keyspace: &KeyspaceName, shard: ShardId) {
        self.version += 1;
        self.held.entry(keyspace.clone()).or_default().insert(shard, ());
        self.changed.insert((keyspace.clone(), shard), self.version);
    }

    /// Adds the shards of a keyspace, in order, for which an earlier coordinator gave orders.
    pub(super) fn recall(&mut self, keyspace: &KeyspaceName, shards: &[ShardId]) {
        self.version += shards.len() as u64;
        self.floor = self.version;
        self.held.insert(keyspace.clone(), shards.iter().map(|id| (*id, ())).collect());
    }

    /// Withdraws a replica. `another_stays` if the node has another one of the same shard.
    fn remove(&mut self, key: ReplicaKey, another_stays: bool) {
        if let Some(held) = self.held.get_mut(&key.keyspace).filter(|_| !another_stays) {
            held.remove(&key.shard);
            if held.is_empty() {
                self.held.remove(&key.keyspace);
            }
            self.changed.remove(&(key.keyspace.clone(), key.shard));
        }
        self.version += 1;
        self.removed.insert(key, self.version);
        if self.removed.len() > REMOVALS {
            self.forget_until(self.version);
        }
    }

    /// Notes that the worker has applied `version`.
    pub(super) fn confirm(&mut self, version: u64) {
        if self.floor < version && version <= self.version {
            self.forget_until(version);
        }
        if self.floor == version {
            self.confirmed = version;
        }
    }

    /// Whether the worker has applied the latest orders for a shard.
    pub(super) fn has_taken_in(&self, keyspace: &KeyspaceName, shard: ShardId) -> bool {
        self.confirmed >= self.floor && !self.changed.contains_key(&(keyspace.clone(), shard))
    }

    /// Whether the worker has applied the latest version.
    pub(super) fn is_taken_in(&self) -> bool {
        self.confirmed == self.version
    }

    /// Forgets changes up to `version`: a worker with an older one gets whole orders.
    fn forget_until(&mut self, version: u64) {
        self.floor = version;
        self.changed.retain(|_, changed| *changed > version);
        self.removed.retain(|_, removed| *removed > version);
    }

    pub(super) fn pack(&mut self, room: &mut i64) {
        self.held.values_mut().for_each(|held| held.pack(room));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The base of a difference for a worker that has applied this version; 0 for whole orders.
    fn base(&self, applied: u64) -> u64 {
        if applied < self.floor || applied > self.version { 0 } else { applied }
    }

    /// The shards of one keyspace of which it has a replica.
    pub(super) fn shards_of(&self, keyspace: &KeyspaceName) -> impl Iterator<Item = ShardId> {
        self.held.get(keyspace).into_iter().flat_map(|held| held.keys().copied())
    }

    /// All shards of which it has a replica.
    fn shards(&self) -> impl Iterator<Item = (&KeyspaceName, ShardId)> {
        self.held.iter().flat_map(|(keyspace, held)| held.keys().map(move |shard| (keyspace, *shard)))
    }

    /// The shards whose orders have changed after `base`.
    fn changed_since(&self, base: u64) -> Vec<(&KeyspaceName, ShardId)> {
        if base == 0 {
            return self.shards().collect();
        }
        let fresh = self.changed.iter().filter(|(_, version)| **version > base);
        fresh.map(|((keyspace, shard), _)| (keyspace, *shard)).collect()
    }

    /// How many shards have a replica on the node.
    pub(super) fn len(&self) -> usize {
        self.held.values().map(|held| held.len()).sum()
    }
}

/// The coordinator's view of one keyspace, for [`handover`].
pub(super) struct KeyspaceView<'a> {
    pub(super) keyspace: &'a KeyspaceState,
    pub(super) seen: NodesView<'a>,
}

impl ReplicaView for KeyspaceView<'_> {
    fn keyspace(&self) -> &Keyspace {
        &self.keyspace.record.keyspace
    }

    fn phase(&self, placement: PlacementId) -> Option<&Phase> {
        self.keyspace.phase_of(placement)
    }

    fn epoch(&self, placement: PlacementId) -> Option<crate::base::id::Epoch> {
        self.keyspace.observed.get(&placement).map(super::Observed::epoch)
    }

    fn lease_is_over(&self, replica: &Replica) -> bool {
        let node = self.seen.nodes.get(&replica.node);
        node.is_none_or(|node| node.lease_is_over(replica.incarnation, self.seen.now))
    }

    fn has_ended(&self, replica: &Replica) -> bool {
        stored::has_ended(self.seen.nodes, replica)
    }

    fn need_not_lead(&self, replica: &Replica) -> bool {
        self.seen.nodes.get(&replica.node).is_some_and(|node| {
            let exclusive = self.keyspace().ownership == Ownership::Exclusive;
            let gets_no_lease = exclusive && node.gets_no_lease(self.seen.now);
            let cannot_lead = node.is_silent(self.seen.now) || node.long_unreachable || gets_no_lease;
            node.record.incarnation == replica.incarnation && cannot_lead && !node.record.ended
        })
    }

    fn takes_no_writes(&self, node: &NodeId) -> bool {
        self.seen.nodes.get(node).is_some_and(|node| !node.disk.takes_writes())
    }

    fn sends_heartbeats(&self, replica: &Replica) -> bool {
        self.seen.nodes.get(&replica.node).is_some_and(|node| {
            let health = node.signs.health(self.seen.now, self.seen.settings);
            node.record.incarnation == replica.incarnation
                && matches!(health, Health::Up | Health::Unreachable)
        })
    }

    fn was_heard_since(&self, replica: &Replica, ended: &Replica) -> bool {
        let heard = self.seen.nodes.get(&replica.node).and_then(|node| node.signs.heard_at);
        self.seen.nodes.get(&ended.node).is_none_or(|node| heard >= Some(node.end_of(ended.incarnation)))
    }

    fn disk_state(&self, shard: &Shard, replica: &Replica) -> DiskState {
        stored::disk_state(self.seen, self.keyspace, shard, replica)
    }

    fn wanted(&self, shard: ShardId) -> usize {
        self.keyspace.wanted_replicas(shard) as usize
    }

    fn load_attempts(&self) -> u32 {
        self.seen.settings.load_attempts
    }

    fn wish(&self, leader: PlacementId) -> Option<(Configuration, &[PlacementId])> {
        let said = self.keyspace.replication.get(&leader)?;
        Some((said.configuration, said.wish.as_deref()?))
    }

    fn transfer_step(&self, shard: &Shard, heir: PlacementId) -> TransferStep {
        self.keyspace.transfer_step(shard, heir, self.seen)
    }

    fn is_silenced(&self, shard: &Shard, leader: &Replica) -> bool {
        let is_quiet = self.seen.nodes.get(&leader.node).is_none_or(|node| {
            let heard_at = node.signs.heard_at.unwrap_or_default();
            self.seen.now.since(heard_at) > limits::BEATS_MISSED_BY_LEADER * self.seen.settings.heartbeat_ms
        });
        let misses = |r: &&Replica| {
            let says = self.keyspace.replication.get(&r.placement).is_some_and(|said| said.leader_silent);
            says && self.epoch(r.placement) >= Some(shard.epoch) && self.sends_heartbeats(r)
        };
        let members = shard.in_sync().count();
        is_quiet
            && 2 * shard.in_sync().filter(|r| r.placement != leader.placement).filter(misses).count()
                >= members
    }

    fn is_expected(&self, member: &Replica) -> bool {
        let replace_after_ms = self.keyspace.record.keyspace.throttle.replace_after_ms;
        let is_waited_for = |node: &NodeState| self.seen.now < node.ended_at + replace_after_ms;
        !self.has_ended(member)
            || self.seen.nodes.get(&member.node).is_some_and(|node| node.record.ended && is_waited_for(node))
    }

    fn has_never_led(&self, placement: PlacementId) -> bool {
        self.keyspace.never_led.contains(&placement)
    }

    fn excused_attempts(&self, placement: PlacementId) -> u32 {
        self.keyspace.overdue.excused_attempts(placement, self.seen.now)
    }

    fn awaits_comparison(&self, shard: &Shard) -> bool {
        self.keyspace.restored.awaits_comparison(shard.id)
    }

    fn may_be_later(&self, shard: &Shard, replica: &Replica) -> bool {
        self.keyspace.may_be_later(self.seen, shard, replica)
    }

    fn is_overdue(&self, placement: PlacementId, state: ReplicaState) -> bool {
        self.keyspace.overdue.pending_steps.is_overdue(placement, state)
    }
}

impl KeyspaceState {
    pub(super) fn view<'a>(&'a self, seen: NodesView<'a>) -> KeyspaceView<'a> {
        KeyspaceView { keyspace: self, seen }
    }

    /// Whether followers of a durable shard have to wait: for the leader, which has to fetch their missing writes first, or for
    /// the comparison of copies after a restore.
    pub(super) fn follows_later(&self, shard: &Shard, seen: NodesView<'_>) -> bool {
        self.restored.awaits_comparison(shard.id)
            || self.inherits(shard) && !handover::leader_serves(shard, &self.view(seen))
    }
}

impl Keyspaces {
    /// The replicas that a node should have.
    pub(super) fn held<'a>(&'a self, node: &'a NodeState) -> impl Iterator<Item = HostedReplica<'a>> {
        node.orders.shards().flat_map(|(keyspace, shard)| self.held_of(node, keyspace, shard))
    }

    /// Those of one shard; two if the node gets a shard again before it has dropped the old replica.
    fn held_of<'a>(
        &'a self,
        node: &'a NodeState,
        keyspace: &KeyspaceName,
        shard: ShardId,
    ) -> impl Iterator<Item = HostedReplica<'a>> {
        let found =
            self.by_name.get(keyspace).and_then(|keyspace| Some((keyspace, keyspace.map.shard(shard)?)));
        let start = (&node.record.spec.id, node.record.incarnation);
        found.into_iter().flat_map(move |(keyspace, shard)| {
            let here = shard.replicas.iter().filter(move |r| (&r.node, r.incarnation) == start);
            here.map(move |replica| (keyspace, shard, replica))
        })
    }
}

impl Members {
    /// Notes that the orders for `shards`, and for their parents and children, may have changed.
    pub(super) fn refresh_orders(
        &mut self,
        keyspace: &KeyspaceState,
        shards: impl IntoIterator<Item = ShardId>,
        outbox: &mut Outbox,
    ) {
        let name = keyspace.map.keyspace();
        let mut affected: BTreeSet<ShardId> = shards.into_iter().collect();
        for shard in affected.clone().iter().filter_map(|id| keyspace.map.shard(*id)) {
            affected.extend(shard.parents().iter());
        }
        let children: Vec<_> = affected.iter().flat_map(|id| keyspace.children_under_way(*id)).collect();
        affected.extend(children);
        for shard in affected.iter().filter_map(|id| keyspace.map.shard(*id)) {
            for replica in &shard.replicas {
                let Some(node) = self.nodes.get_mut(&replica.node) else { continue };
                if node.record.incarnation == replica.incarnation {
                    node.orders.touch(name, shard.id);
                    if node.note_held() {
                        outbox.writes.push(Write::Node(node.record.clone()));
                    }
                    outbox.changed_orders.insert(replica.node.clone());
                }
            }
        }
    }

    /// Withdraws the order for a replica that the map no longer names. `shard` is its shard, if that is still in the map.
    pub(super) fn withdraw_order(
        &mut self,
        key: ReplicaKey,
        gone: &Replica,
        shard: Option<&Shard>,
        outbox: &mut Outbox,
    ) {
        let Some(node) = self.nodes.get_mut(&gone.node) else { return };
        if node.record.incarnation != gone.incarnation || node.record.ended {
            return;
        }
        let another_stays = shard.is_some_and(|shard| shard.replicas.iter().any(|r| node.runs_replica(r)));
        node.orders.remove(key, another_stays);
        outbox.changed_orders.insert(gone.node.clone());
    }
}

impl Cluster {
    pub(super) fn view<'a>(&'a self, keyspace: &'a KeyspaceState, now: Millis) -> KeyspaceView<'a> {
        keyspace.view(self.nodes_at(now))
    }

    pub(super) fn nodes_at(&self, now: Millis) -> NodesView<'_> {
        self.members.view(now, &self.settings)
    }

    /// The orders to `node`: a difference to the version that it has `applied`, or whole.
    pub fn orders_since(&self, node: &NodeId, applied: u64, lease: Option<LeaseRenewal>) -> Option<Orders> {
        let state = self.members.get(node)?;
        let index = &state.orders;
        let base = index.base(applied);
        let changed = index.changed_since(base).into_iter();
        let replicas = changed.flat_map(|(keyspace, shard)| self.keyspaces.held_of(state, keyspace, shard));
        let changed: Vec<Order> = replicas.map(|held| self.order(held)).collect();
        let names: BTreeSet<_> = changed.iter().map(|order| &order.replica.keyspace).collect();
        let keyspaces =
            names.into_iter().filter_map(|name| self.keyspaces.get(name)).map(KeyspaceState::brief).collect();
        let tells = base > 0 && !planted::is(Planted::Removals);
        let gone = index.removed.iter().filter(|(_, version)| tells && **version > base);
        Some(Orders {
            cluster: self.record.id,
            incarnation: state.record.incarnation,
            version: index.version,
            base,
            keyspaces,
            changed,
            removed: gone.map(|(key, _)| key.clone()).collect(),
            permissions: vec![],
            lease,
            // A process that has just begun has no orders yet for what it has stored, and the map does not name a later
            // copy than its own.
            may_go: state.leaving
                && index.is_empty()
                && self.last_copy_on(node).is_none()
                && self.shards_that_wait_for(node) == 0,
        })
    }

    fn order(&self, held: HostedReplica<'_>) -> Order {
        let (keyspace, shard, replica) = held;
        let leads = replica.role == Role::Leader && replica.state == ReplicaState::Live;
        Order {
            replica: key(held),
            bounds: shard.bounds.clone(),
            role: replica.role,
            state: replica.state,
            epoch: shard.epoch,
            configuration: shard.configuration,
            in_sync: replica.in_sync,
            granted: match replica.state {
                // As it was decided, not as it would be now: a former owner whose lease was over may have
                // come back since, with an order to stop.
                _ if leads => !keyspace.queue.ungranted.contains(&shard.id),
                ReplicaState::Load => !keyspace.queue.unannounced.contains(&shard.id),
                // What is known to be no copy must not store an epoch that would make it one again for the next coordinator.
                ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal => {
                    !keyspace.follows_later(shard, self.nodes_at(Millis(0)))
                        && !keyspace.is_unheard(&self.members.nodes, replica)
                        && !keyspace.has_lost(replica)
                }
            },
            peers: self.peers(keyspace, shard, replica),
            had_data: shard.had_data(),
            drop: drop_reason(shard, replica),
            hand_over_to: keyspace.heir_of(shard).filter(|_| leads),
        }
    }

    /// The other replicas that a replica needs to know: see [`Order::peers`].
    fn peers(&self, keyspace: &KeyspaceState, shard: &Shard, of: &Replica) -> Vec<Peer> {
        let map = &keyspace.map;
        let related: &[ShardId] = match shard.stage() {
            Stage::Closing(children) => children,
            Stage::Forming(_) | Stage::Serving => shard.parents(),
            Stage::Removing => &[],
        };
        let shards = std::iter::once(shard).chain(related.iter().filter_map(|id| map.shard(*id)));
        let others = shards.flat_map(|s| s.replicas.iter().map(move |r| (s, r)));
        // What waits for its node can neither be copied from nor store anything. But while the map calls it a copy, or
        // has it in the in-sync set, the leader must not acknowledge without it: it stays named until a commit has made it
        // none, also when the shard closes, and when its node is removed from the cluster.
        // Nor must a child serve while all replicas of a parent that have its last writes are away.
        let is_there = |s: &Shard, r: &Replica| {
            let has_ended = |r: &Replica| stored::has_ended(&self.members.nodes, r);
            let is_needed = || {
                let mut last = handover::handing_over(s);
                s.id != shard.id && r.state == ReplicaState::Unload && last.all(has_ended)
            };
            let is_counted = s.id == shard.id && r.in_sync || r.state == ReplicaState::Live;
            let ended = keyspace.record.keyspace.durable && has_ended(r);
            !ended || is_counted || is_needed()
        };
        let useful = others.filter(|(s, r)| {
            r.placement != of.placement && r.state != ReplicaState::UnloadFinal && is_there(s, r)
        });
        useful
            .map(|(s, r)| Peer {
                shard: s.id,
                placement: r.placement,
                bounds: s.bounds.clone(),
                node: r.node.clone(),
                incarnation: r.incarnation,
                address: self.members.get(&r.node).map(|node| node.record.spec.address.clone()),
                role: r.role,
                state: r.state,
                in_sync: r.in_sync,
            })
            .collect()
    }
}

impl KeyspaceState {
    /// Takes in what a replica says of the replication of its shard. Returns whether it waits for an answer.
    pub(super) fn note_replication(
        &mut self,
        placement: PlacementId,
        said: Option<ReplicationReport>,
    ) -> bool {
        let Some(said) = said.filter(|_| self.record.keyspace.ownership == Ownership::Replicated) else {
            return false;
        };
        let asks = said.asks();
        self.replication.insert(placement, said);
        asks
    }

    /// What a worker or router must know of it.
    pub fn brief(&self) -> KeyspaceBrief {
        let settings = &self.record.keyspace;
        KeyspaceBrief {
            name: settings.name.clone(),
            sharding: settings.sharding,
            partition_key: settings.partition_key,
            ownership: settings.ownership,
            generation: self.map.generation(),
            first_shard: self.record.first_shard,
            durable: settings.durable,
            min_in_sync: settings.min_in_sync,
            kind: settings.kind,
            values: settings.values,
            feed_ms: settings.feed_ms,
        }
    }
}

/// Why the data of a replica in `UnloadFinal` may be deleted: it came there because the new leader serves, or because
/// no keyspace wants the shard.
fn drop_reason(shard: &Shard, replica: &Replica) -> Option<DropReason> {
    let reason = match shard.stage() {
        Stage::Removing | Stage::Forming(_) => DropReason::Deleted,
        Stage::Serving | Stage::Closing(_) => DropReason::Moved,
    };
    (replica.state == ReplicaState::UnloadFinal).then_some(reason)
}

/// Its name in a cluster.
pub(super) fn key((keyspace, shard, replica): HostedReplica<'_>) -> ReplicaKey {
    ReplicaKey { keyspace: keyspace.map.keyspace().clone(), shard: shard.id, placement: replica.placement }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{Incarnation, TransactionId};
    use crate::keyspace::map::ShardMap;
    use crate::keyspace::sharding::{Bounds, PartitionKey, Sharding};
    use proptest::prelude::*;

    fn named() -> KeyspaceName {
        KeyspaceName::new("users").unwrap()
    }

    fn of(shard: u64, placement: u64) -> ReplicaKey {
        ReplicaKey { keyspace: named(), shard: ShardId(shard), placement: PlacementId(placement) }
    }

    #[derive(Debug, Clone)]
    enum Event {
        Touch(u64),
        Remove(u64),
        /// By so many versions less than there are.
        Confirm(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0u64..8).prop_map(Event::Touch),
            2 => (0u64..8).prop_map(Event::Remove),
            1 => (0u64..6).prop_map(Event::Confirm),
        ];
        prop::collection::vec(event, 0..60)
    }

    proptest! {
        /// The model remembers the version of every change there ever was.
        #[test]
        fn a_difference_says_all_that_has_changed_and_nothing_that_is_confirmed(events in events()) {
            let (mut index, mut touched, mut gone) = (OrderIndex::default(), BTreeMap::new(), BTreeMap::new());
            let (name, mut confirmed) = (named(), 0);
            for event in events {
                match event {
                    Event::Touch(shard) => {
                        index.touch(&name, ShardId(shard));
                        touched.insert(ShardId(shard), index.version);
                    }
                    Event::Remove(shard) => {
                        // Every removal is of a replica of its own.
                        let key = of(shard, index.version);
                        index.remove(key.clone(), false);
                        touched.remove(&ShardId(shard));
                        gone.insert(key, index.version);
                    }
                    Event::Confirm(behind) => {
                        let version = index.version.saturating_sub(behind);
                        index.confirm(version);
                        confirmed = version.max(confirmed);
                    }
                }
                prop_assert_eq!(index.shards().map(|(_, id)| id).collect::<Vec<_>>(), touched.keys().copied().collect::<Vec<_>>());
                prop_assert!(index.changed.values().chain(index.removed.values()).all(|version| *version > confirmed));
                for applied in 0..=index.version + 1 {
                    let base = index.base(applied);
                    prop_assert_eq!(base, if (confirmed..=index.version).contains(&applied) { applied } else { 0 });
                    let said: BTreeSet<_> = index.changed_since(base).into_iter().map(|(_, id)| id).collect();
                    let changed = touched.iter().filter(|(_, at)| **at > base).map(|(id, _)| *id).collect();
                    prop_assert_eq!(said, changed);
                    let lacks = gone.iter().filter(|(_, at)| base > 0 && **at > base);
                    prop_assert!(lacks.map(|(key, _)| key).all(|key| index.removed.contains_key(key)));
                }
            }
        }
    }

    /// Shard 1 serves, 2 was split into 4, which serves, 3 is to be split into 5, and 6 is removed. Each has one replica.
    fn in_every_stage() -> ShardMap {
        let mut map = ShardMap::empty(named(), Sharding::Named, PartitionKey::Whole);
        let bounds = |name: &str| Bounds::Name(name.parse().unwrap());
        let mut edit = map.edit();
        let [serves, split, stays] = ["a", "b", "c"].map(|name| edit.create_shard(bounds(name)).unwrap());
        let [child] = edit.form_shards(vec![bounds("b")], &[split]).unwrap()[..] else { panic!("one child") };
        let [forming] = edit.form_shards(vec![bounds("c")], &[stays]).unwrap()[..] else {
            panic!("one child")
        };
        let removed = edit.create_shard(bounds("d")).unwrap();
        for shard in [serves, split, stays, child, forming, removed] {
            edit.add_replica(shard, &NodeId::new("n1").unwrap(), Incarnation(1), None).unwrap();
        }
        edit.switch(&[split], &[child]).unwrap();
        edit.close(removed).unwrap();
        let diff = edit.commit(TransactionId([1; 20]));
        map.apply(&diff).unwrap();
        map
    }

    /// D7. An order never says `Superseded`: no map names what a worker kept while it was away, so a permission lets that
    /// go (`kept.rs`).
    #[test]
    fn d7_an_order_to_drop_says_whether_the_data_was_moved_or_deleted() {
        let map = in_every_stage();
        let reason = |shard: u64, state| {
            let shard = map.shard(ShardId(shard)).unwrap();
            drop_reason(shard, &Replica { state, ..shard.replicas[0].clone() })
        };
        for (shard, what, expected) in [
            (1, "another replica serves it", DropReason::Moved),
            (2, "the shards that it was split into serve", DropReason::Moved),
            (4, "it came from a split, and has moved since", DropReason::Moved),
            (5, "the split that it prepared for was given up", DropReason::Deleted),
            (6, "its partition was deleted", DropReason::Deleted),
        ] {
            assert_eq!(reason(shard, ReplicaState::UnloadFinal), Some(expected), "{what}");
            for state in [ReplicaState::Load, ReplicaState::Live, ReplicaState::Unload] {
                assert_eq!(reason(shard, state), None, "in {state} nothing may be dropped yet: {what}");
            }
        }
    }

    #[test]
    fn a_shard_is_held_while_another_replica_of_it_stays() {
        let mut index = OrderIndex::default();
        index.touch(&named(), ShardId(1));
        index.remove(of(1, 1), true);
        assert_eq!((index.len(), index.removed.len()), (1, 1));
        index.remove(of(1, 2), false);
        assert_eq!((index.is_empty(), index.removed.len(), index.changed.len()), (true, 2, 0));
    }
}
