//! Data that outlives its processes: what the coordinator knows of it, what a shard waits for, and for how long.
//!
//! In a durable keyspace the replicas of a dead node stay in the map ([`crate::plan::handover`], its table of ended
//! replicas). A node that comes back names what it has stored, and is given those replicas again.
//!
//! | the shard                                              | the coordinator                                       |
//! |--------------------------------------------------------|-------------------------------------------------------|
//! | a copy lives, and a replica is on a node that is away  | replaces it `replace_after_ms` after its process ended |
//! | a copy lives, and that time is over                    | adds a replica elsewhere, then forgets the one that is away |
//! | no copy lives                                          | waits for the nodes that have one, for ever; a person may choose a copy (`force-join`) |
//! | one copy lives, and its process never begins to serve  | says so: only a person can end that process. The next one on that node has the copy again |
//!
//! The time is counted from when this coordinator found the process ended, or from its own start: a new coordinator
//! gives each node the whole time again.

use super::keyspaces::Keyspaces;
use super::members::NodesView;
use super::{Cluster, Kept, KeyspaceState, Moment, NodeState, Observed};
use crate::base::id::{Epoch, Incarnation, PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::keyspace::Ownership;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Shard, Stage};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{Phase, ReplicaKey};
use crate::plan::handover::{self, DiskState, ReplicaView};
use std::collections::{BTreeMap, BTreeSet};

/// The nodes, by their names.
pub(super) type Nodes = BTreeMap<NodeId, NodeState>;

/// How much a replica has of its shard's data, by what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// Its node is there without it.
    Nothing,
    /// Some of it cannot be read, or others went on without it.
    Part,
    /// All, or it is not there to say so.
    All,
}

/// Failed loads of a replica that are not held against it, as its source was away or may have been.
#[derive(Debug, Clone, Copy)]
pub(super) struct Excuse {
    /// Failed loads up to this number do not count.
    pub(super) attempts: u32,
    /// Until then no failed load counts.
    pub(super) until: Millis,
}

/// Whether the process of a replica has ended.
pub(super) fn has_ended(nodes: &Nodes, replica: &Replica) -> bool {
    nodes.get(&replica.node).is_none_or(|node| node.has_ended(replica.incarnation))
}

/// What is known of the data of a replica whose process has ended. One that has not served since the coordinator's state was
/// restored may have been overtaken before: see [`crate::plan::handover`], its table of ended replicas.
pub(super) fn disk_state(
    seen: NodesView<'_>,
    keyspace: &KeyspaceState,
    shard: &Shard,
    replica: &Replica,
) -> DiskState {
    let key = keyspace.key_of(shard.id, replica.placement);
    let (found, kept) = found(seen, &key, shard, replica);
    let Some(kept) = kept.filter(|_| matches!(found, DiskState::Intact(_))) else { return found };
    if replica.state != ReplicaState::Live || !keyspace.was_restored_since(shard, kept.epoch) {
        return found;
    }
    if keyspace.later_copies(shard, kept.epoch).next().is_some() {
        return DiskState::Overtaken;
    }
    let is_away = |other: &Replica| is_away(seen, keyspace, shard, other);
    // One that has begun since the restore was chosen before this one.
    let has_begun = |other: &Replica| {
        other.placement != replica.placement && !has_ended(seen.nodes, other) && !keyspace.has_lost(other)
    };
    let is_open =
        || shard.staying().any(is_away) || shard.live().any(has_begun) || !keyspace.all_are_back(shard);
    if is_open() { DiskState::Unproven } else { found }
}

/// Whether the process of a replica has ended, and its node is not back to say what it has.
pub(super) fn is_away(
    seen: NodesView<'_>,
    keyspace: &KeyspaceState,
    shard: &Shard,
    replica: &Replica,
) -> bool {
    let key = keyspace.key_of(shard.id, replica.placement);
    has_ended(seen.nodes, replica) && found(seen, &key, shard, replica).0 == DiskState::Away
}

/// What a node says of the data of a replica, looked at by itself.
fn found<'a>(
    seen: NodesView<'a>,
    key: &ReplicaKey,
    shard: &Shard,
    replica: &Replica,
) -> (DiskState, Option<&'a Kept>) {
    let Some(node) = seen.nodes.get(&replica.node) else { return (DiskState::Gone, None) };
    let is_back = node.record.incarnation > replica.incarnation && !node.record.ended;
    if !is_back || node.signs.health(seen.now, seen.settings) != Health::Up {
        return (DiskState::Away, None);
    }
    // What lies on the store of another node is no copy of this replica, whatever it is called.
    let kept = match planted::is(Planted::OtherStore) {
        true => seen.nodes.values().find_map(|node| node.kept.get(key)),
        false => node.kept.get(key),
    };
    let copy = match kept {
        // It has a later epoch than this coordinator knows: the coordinator's state was set back.
        Some(kept) if kept.epoch > shard.epoch => DiskState::Away,
        Some(kept) if kept.damaged && !planted::is(Planted::NotIntact) => DiskState::Damaged,
        Some(_) => DiskState::Intact(node.record.incarnation),
        None if node.sequence > 0 && planted::is(Planted::NotIntact) => {
            DiskState::Intact(node.record.incarnation)
        }
        // Its first beat names everything that it has.
        None if node.sequence > 0 => DiskState::Gone,
        None => DiskState::Away,
    };
    (copy, kept)
}

/// Whether a replica waits for its node and holds up nothing else of its shard.
pub(super) fn is_parked(nodes: &Nodes, replica: &Replica) -> bool {
    replica.state == ReplicaState::Load && replica.replaces().is_none() && has_ended(nodes, replica)
}

impl KeyspaceState {
    /// A replica, as workers name it.
    pub(super) fn key_of(&self, shard: ShardId, placement: PlacementId) -> ReplicaKey {
        ReplicaKey { keyspace: self.map.keyspace().clone(), shard, placement }
    }

    /// Whether nothing is on its way in a shard, replicas that wait for their nodes apart.
    pub(super) fn rests(&self, nodes: &Nodes, shard: &Shard) -> bool {
        let rests = |r: &Replica| r.state == ReplicaState::Live || is_parked(nodes, r);
        shard.is_settled()
            || self.record.keyspace.durable
                && shard.is_serving()
                && shard.leader().is_some()
                && shard.replicas.iter().all(rests)
    }

    /// Keeps `unsettled` and `half_ended` for shards of a durable keyspace, where they depend on nodes too.
    pub(super) fn note_resting(&mut self, nodes: &Nodes, ids: impl IntoIterator<Item = ShardId>) {
        for id in ids {
            let live = || self.map.shard(id).into_iter().flat_map(Shard::live);
            let ended = live().filter(|r| has_ended(nodes, r)).count();
            if 0 < ended && ended < live().count() {
                self.queue.half_ended.insert(id);
            } else {
                self.queue.half_ended.remove(&id);
            }
            let rests = self.map.shard(id).is_none_or(|shard| self.rests(nodes, shard));
            let has_changed =
                if rests { self.queue.unsettled.remove(&id) } else { self.queue.unsettled.insert(id) };
            if let Some(shard) = self.map.shard(id).filter(|_| has_changed) {
                self.queue.under_way.count(shard, if rests { -1 } else { 1 });
            }
        }
    }

    /// Whether a replica of the shard serves, so that others can load from it, or the shard has never had data. A part
    /// of a split or merge that prepares loads from its parents.
    pub(super) fn has_source(&self, seen: NodesView<'_>, shard: &Shard) -> bool {
        let is_heard = |leader: &Replica| {
            let health = seen.nodes.get(&leader.node).map(|node| node.signs.health(seen.now, seen.settings));
            matches!(health, Some(Health::Up | Health::Unreachable))
        };
        let leads = |leader: &Replica| self.leads(seen.nodes, leader) && is_heard(leader);
        let is_led = |shard: &Shard| shard.leader().is_some_and(leads);
        let parents = || shard.parents().iter().filter_map(|parent| self.map.shard(*parent));
        !self.record.keyspace.durable
            || !shard.had_data()
            || match shard.stage() {
                Stage::Forming(_) => parents().all(is_led),
                Stage::Serving | Stage::Closing(_) | Stage::Removing => is_led(shard),
            }
    }

    /// What the worker last said it has done about a replica.
    pub(super) fn phase_of(&self, placement: PlacementId) -> Option<&Phase> {
        self.observed.get(&placement).map(Observed::phase)
    }

    /// Whether the worker has said that a replica serves under that epoch or a later one.
    pub(super) fn serves_under(&self, placement: PlacementId, epoch: Epoch) -> bool {
        let reported = self.observed.get(&placement).filter(|seen| seen.epoch() >= epoch);
        reported.is_some_and(|seen| *seen.phase() == Phase::Serving)
    }

    /// Whether the process of a leader has not ended, and serves.
    pub(super) fn leads(&self, nodes: &Nodes, leader: &Replica) -> bool {
        self.phase_of(leader.placement) == Some(&Phase::Serving) && !has_ended(nodes, leader)
    }

    /// Whether acknowledged writes of a durable shard may be with the replicas of its parents only.
    pub(super) fn inherits(&self, shard: &Shard) -> bool {
        self.record.keyspace.durable && shard.is_serving() && self.parents_with_writes(shard).next().is_some()
    }

    /// Its parents that may have them.
    fn parents_with_writes<'a>(&'a self, shard: &'a Shard) -> impl Iterator<Item = &'a Shard> {
        handover::closing_parents(shard, &self.map).filter(|p| handover::handing_over(p).next().is_some())
    }

    /// Its parents that have them, and of which no replica that has the data lives, while the shard does not serve.
    pub(super) fn parents_away<'a>(
        &'a self,
        nodes: &'a Nodes,
        shard: &'a Shard,
    ) -> impl Iterator<Item = &'a Shard> {
        let serves = shard.leader().is_some_and(|leader| self.leads(nodes, leader));
        let waits = self.inherits(shard) && !serves;
        let is_away = |r: &Replica| has_ended(nodes, r) || self.has_lost(r);
        self.parents_with_writes(shard)
            .filter(move |parent| waits && handover::handing_over(parent).all(is_away))
    }

    /// Notes what replicas of a shard wait for, as it has changed.
    pub(super) fn note_waiting(&mut self, id: ShardId) {
        self.note_unannounced(id);
        let waits = |shard: &Shard| self.inherits(shard) || self.restored.awaits_comparison(id);
        if self.map.shard(id).is_some_and(waits) {
            self.queue.unfollowed.insert(id);
        } else {
            self.queue.unfollowed.remove(&id);
        }
    }

    /// Notes whether a replica loads what others have, and its leader may not know of it yet.
    ///
    /// A leader acknowledges no write without the replicas in `Load` that have begun, so what has copied from a leader
    /// that knew of it before lacks nothing (D1). Parts of a split or merge that prepare get that later, from their parents.
    fn note_unannounced(&mut self, id: ShardId) {
        let loads = |shard: &Shard| shard.replicas.iter().any(|r| r.state == ReplicaState::Load);
        let copies = |shard: &Shard| shard.is_serving() && shard.had_data() && loads(shard);
        if self.record.keyspace.durable && self.map.shard(id).is_some_and(copies) {
            self.queue.unannounced.insert(id);
        } else {
            self.queue.unannounced.remove(&id);
        }
    }

    /// A replica has not loaded. That is held against it when its source is there, and has been there for as long as
    /// its death can stay unnoticed.
    pub(super) fn excuse_load(&mut self, seen: NodesView<'_>, of: &ReplicaKey, phase: &Phase) {
        let placement = of.placement;
        let Phase::Failed(failure) = phase else {
            self.overdue.excused.remove(&placement);
            return;
        };
        let Some(shard) = self.map.shard(of.shard) else { return };
        if !self.record.keyspace.durable || !shard.had_data() {
            return;
        }
        let until = seen.now + seen.settings.dead_after_ms;
        if !self.has_source(seen, shard) {
            self.overdue.excused.insert(placement, Excuse { attempts: failure.attempts, until });
        } else if failure.damaged {
            // That is so whatever its source does.
            self.overdue.excused.remove(&placement);
        } else {
            self.overdue.excused.entry(placement).or_insert(Excuse { attempts: 0, until });
        }
    }

    /// Those of `waiting` for which `condition` holds, which needs a replica on the node. A beat looks through what the node
    /// has, not through all that waits in the cluster.
    fn waiting_on(
        &self,
        node: &NodeId,
        waiting: &BTreeSet<ShardId>,
        condition: impl Fn(&Shard) -> bool,
    ) -> Vec<ShardId> {
        let matches = |id: &ShardId| self.map.shard(*id).is_some_and(&condition);
        match self.hosted.count(node) < waiting.len() {
            true => self.hosted.on(node).filter(|id| waiting.contains(id)).filter(matches).collect(),
            false => waiting.iter().copied().filter(matches).collect(),
        }
    }

    /// Whether the process of a copy reports that it is none: see [`crate::plan::handover`], its table of ended replicas.
    pub(super) fn has_lost(&self, replica: &Replica) -> bool {
        handover::is_reported_lost(replica, self.phase_of(replica.placement))
    }

    /// Whether a shard has data, and none of those that have it, or a part of it, lives; or it is not known whether those that
    /// live have all of it.
    pub(super) fn waits_for_copy(&self, nodes: &Nodes, shard: &Shard) -> bool {
        let is_durable = self.record.keyspace.durable && shard.is_serving() && shard.had_data();
        let no_copy_lives = || shard.live().all(|r| has_ended(nodes, r) || self.has_lost(r));
        let some_are_away = || {
            self.parents_away(nodes, shard).next().is_some()
                || self.missing_copies(nodes, shard).next().is_some()
                || self.restored.awaits_comparison(shard.id) && self.queue.ungranted.contains(&shard.id)
        };
        is_durable && (no_copy_lives() || some_are_away())
    }

    /// The leader of a shard with data which never begins to serve, or gets no lease, if no other process is known to have all
    /// of that: none may lead in its place.
    pub(super) fn hung_copy<'a>(&self, nodes: &Nodes, now: Millis, shard: &'a Shard) -> Option<&'a Replica> {
        let may_be_copied = self.record.keyspace.durable && shard.is_serving() && shard.had_data();
        let has_failed = |r: &Replica| matches!(self.phase_of(r.placement), Some(Phase::Failed(_)));
        let cannot_act = |r: &Replica| has_ended(nodes, r) || self.has_lost(r) || has_failed(r);
        let others_cannot =
            |leader: &Replica| shard.live().all(|r| r.placement == leader.placement || cannot_act(r));
        let is_exclusive = self.record.keyspace.ownership == Ownership::Exclusive;
        let gets_no_lease = |leader: &Replica| {
            is_exclusive && nodes.get(&leader.node).is_some_and(|node| node.gets_no_lease(now))
        };
        let does_not_serve = |leader: &&Replica| self.overdue.has_hung_leader(shard) || gets_no_lease(leader);
        let leader = shard.leader().filter(|leader| may_be_copied && does_not_serve(leader));
        leader.filter(|leader| others_cannot(leader) && !has_ended(nodes, leader))
    }
}

impl NodeState {
    /// When this coordinator learned that an incarnation had ended: the node registered anew, left, or was declared dead.
    pub(super) fn end_of(&self, incarnation: Incarnation) -> Millis {
        if incarnation == self.record.incarnation { self.ended_at } else { self.signs.since }
    }
}

impl KeyspaceState {
    /// Whether replicas of a shard wait to load, and may: its leader serves under its epoch, so that no leader
    /// acknowledges writes under an earlier one, and knows of all of them.
    pub(super) fn is_announced(&self, shard: &Shard, seen: NodesView<'_>) -> bool {
        let knows = |leader: &Replica| {
            let node = seen.nodes.get(&leader.node);
            node.is_some_and(|node| node.orders.has_taken_in(self.map.keyspace(), shard.id))
        };
        self.queue.unannounced.contains(&shard.id)
            && handover::leader_serves(shard, &self.view(seen))
            && (shard.leader().is_some_and(knows) || planted::is(Planted::Announced))
    }

    /// A replica begins anew: no report of it is known yet.
    pub(super) fn note_begun_anew(&mut self, placement: PlacementId, state: ReplicaState) {
        self.observed.remove(&placement);
        self.restored.forget(placement);
        self.overdue.pending_steps.forget(placement);
        self.overdue.excused.remove(&placement);
        // The caller takes the leader out again.
        if state != ReplicaState::Load {
            self.never_led.insert(placement);
        } else {
            self.never_led.remove(&placement);
        }
    }
}

impl Keyspaces {
    /// A worker may have taken in which replicas load from it: the next decision looks.
    pub(super) fn enqueue_unannounced(&mut self, node: &NodeId) {
        let waiting = self.by_name.values_mut().filter(|keyspace| !keyspace.queue.unannounced.is_empty());
        for keyspace in waiting {
            let leads = |shard: &Shard| shard.leader().is_some_and(|leader| leader.node == *node);
            let shards = keyspace.waiting_on(node, &keyspace.queue.unannounced, leads);
            shards.into_iter().for_each(|id| keyspace.queue.enqueue(id));
        }
    }

    /// A node is heard for the first time since copies on other nodes ended: what waited for that is looked at again.
    pub(super) fn enqueue_last_copies(&mut self, nodes: &Nodes, id: &NodeId, heard_before: Option<Millis>) {
        let has_ended_since = |r: &Replica| {
            let end = nodes.get(&r.node).map(|node| node.end_of(r.incarnation));
            has_ended(nodes, r) && end >= heard_before
        };
        for keyspace in self.by_name.values_mut().filter(|keyspace| !keyspace.queue.half_ended.is_empty()) {
            let is_left =
                |shard: &Shard| shard.live().any(|r| r.node == *id) && shard.live().any(has_ended_since);
            let shards = keyspace.waiting_on(id, &keyspace.queue.half_ended, is_left);
            shards.into_iter().for_each(|id| keyspace.queue.enqueue(id));
        }
    }

    /// Forgets what the processes of a node have said of their replicas: they say nothing more.
    pub(super) fn forget_reports_of(&mut self, id: &NodeId) {
        for keyspace in self.by_name.values_mut().filter(|keyspace| keyspace.record.keyspace.durable) {
            let shards: Vec<ShardId> = keyspace.hosted.on(id).collect();
            for shard in shards.iter().filter_map(|shard| keyspace.map.shard(*shard)) {
                for replica in shard.replicas.iter().filter(|r| r.node == *id) {
                    keyspace.observed.remove(&replica.placement);
                }
            }
        }
    }
}

impl Cluster {
    /// Until when the replicas of a node that is away are waited for; none if it is not.
    fn waited_until(&self, keyspace: &KeyspaceState, replica: &Replica) -> Option<Millis> {
        let node = self.members.get(&replica.node).filter(|node| node.record.ended)?;
        Some(node.ended_at + keyspace.record.keyspace.throttle.replace_after_ms)
    }

    /// How many replicas of a shard are waited for: their nodes are away, and not for long.
    pub(super) fn waited_for(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> usize {
        if !keyspace.record.keyspace.durable {
            return 0;
        }
        let is_waited_for = |r: &&Replica| self.waited_until(keyspace, r).is_some_and(|until| until > at.now);
        shard.staying().filter(is_waited_for).count()
    }

    /// A shard that may have its data nowhere else than on this node, whose process has ended.
    pub(super) fn last_copy_on(&self, id: &NodeId) -> Option<(&KeyspaceName, ShardId)> {
        let durable = self.keyspaces.by_name.iter().filter(|(_, keyspace)| keyspace.record.keyspace.durable);
        durable.into_iter().find_map(|(name, keyspace)| {
            let is_last = |shard: &&Shard| {
                // It has left, and the one in its place has not come to serve.
                let has_left =
                    shard.replicas.iter().any(|r| r.node == *id && r.state == ReplicaState::Unload)
                        && !shard.leader().is_some_and(|leader| keyspace.leads(&self.members.nodes, leader));
                let is_best = |replicas: Vec<&Replica>| self.has_best_copy(id, keyspace, shard, &replicas);
                let hands_over = || handover::handing_over(shard).collect();
                // What it has may be later than what lives: others are chosen shard by shard (`force-join`), with what may be
                // missing.
                let is_missing =
                    || keyspace.missing_copies(&self.members.nodes, shard).any(|r| r.node == *id);
                shard.had_data()
                    && (has_left
                        || is_missing()
                        || is_best(shard.members().collect())
                        || is_best(hands_over()))
            };
            let shards = keyspace.hosted.on(id).filter_map(|shard| keyspace.map.shard(shard));
            shards.into_iter().find(is_last).map(|shard| (name, shard.id))
        })
    }

    /// Whether one of these replicas is on that node, and none elsewhere makes up for it by what is known. The map alone does not
    /// say that: it names a copy whose node came back without its disk until another one serves.
    fn has_best_copy(
        &self,
        id: &NodeId,
        keyspace: &KeyspaceState,
        shard: &Shard,
        replicas: &[&Replica],
    ) -> bool {
        let extent = |r: &Replica| {
            let copy = self.view(keyspace, Millis(0)).disk_state(shard, r);
            let ended = has_ended(&self.members.nodes, r);
            match copy {
                _ if r.state == ReplicaState::Load => {
                    (ended && copy != DiskState::Gone).then_some(Extent::Part)
                }
                _ if keyspace.has_lost(r) => Some(Extent::Nothing),
                DiskState::Gone if ended => Some(Extent::Nothing),
                DiskState::Damaged if ended => Some(Extent::Part),
                _ => Some(Extent::All),
            }
        };
        let (here, elsewhere): (Vec<&Replica>, Vec<&Replica>) =
            replicas.iter().copied().partition(|r| r.node == *id);
        let elsewhere = elsewhere.into_iter().filter_map(extent).max();
        match here.into_iter().filter_map(extent).max() {
            Some(Extent::Part | Extent::All) => elsewhere < Some(Extent::All),
            Some(Extent::Nothing) => elsewhere.is_none(),
            None => false,
        }
    }

    /// The nodes that have the data of a shard of which no copy lives, and are away.
    pub(super) fn awaited<'a>(
        &'a self,
        at: Moment,
        keyspace: &'a KeyspaceState,
        shard: &'a Shard,
    ) -> impl Iterator<Item = &'a NodeId> {
        let waits = keyspace.waits_for_copy(&self.members.nodes, shard);
        let is_away = move |r: &&Replica| {
            let ended = waits && has_ended(&self.members.nodes, r);
            ended && self.view(keyspace, at.now).disk_state(shard, r) == DiskState::Away
        };
        let is_parent_away = move |(parent, r): &(&Shard, &Replica)| {
            self.view(keyspace, at.now).disk_state(parent, r) == DiskState::Away
        };
        let parents = keyspace.parents_away(&self.members.nodes, shard);
        let parents = parents.flat_map(|parent| handover::handing_over(parent).map(move |r| (parent, r)));
        shard
            .live()
            .filter(is_away)
            .map(|r| &r.node)
            .chain(parents.filter(is_parent_away).map(|(_, r)| &r.node))
            .chain(self.unheard_for(keyspace, shard))
    }

    /// What a shard waits for, one sentence for each replica whose process has ended.
    pub(super) fn waits(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> Vec<String> {
        if !keyspace.record.keyspace.durable || !shard.had_data() {
            return Vec::new();
        }
        let view = self.view(keyspace, at.now);
        let ended = shard.staying().filter(|r| has_ended(&self.members.nodes, r));
        let sentence = |r: &Replica| {
            let Replica { node, placement, .. } = r;
            match view.disk_state(shard, r) {
                DiskState::Damaged => format!("{node} has {placement} stored, and some of it cannot be read"),
                DiskState::Gone => format!("{node} is back without the data of {placement}"),
                DiskState::Intact(_) => {
                    format!("{node} has {placement} stored, and waits until another replica serves")
                }
                DiskState::Unproven => format!(
                    "{node} has {placement} stored, of before the cluster's state was restored: others may have a later copy"
                ),
                DiskState::Overtaken => self.overtaken(keyspace, shard, r),
                DiskState::Away if r.state == ReplicaState::Live => {
                    format!("it waits for {node}, which has its data as {placement}")
                }
                DiskState::Away => match self.waited_until(keyspace, r).filter(|until| *until > at.now) {
                    Some(until) => {
                        let left_s = until.since(at.now).div_ceil(1_000);
                        format!("{placement} is on {node}, which is away: it is replaced in {left_s} s")
                    }
                    None => format!("{placement} is on {node}, which is away: another node takes its place"),
                },
            }
        };
        let hung = keyspace.hung_copy(&self.members.nodes, at.now, shard).map(|leader| {
            format!("only {} may lead it, and does not serve: restart that process", leader.node)
        });
        let lost = shard.staying().filter(|r| keyspace.has_lost(r)).map(|r| {
            match keyspace.restored.is_overtaken(r) {
                true => self.overtaken(keyspace, shard, r),
                false => format!(
                    "{} has nothing of {}, which it dropped before the cluster's state was restored",
                    r.node, r.placement
                ),
            }
        });
        ended
            .map(sentence)
            .chain(lost)
            .chain(self.waits_for_parents(at, keyspace, shard))
            .chain(self.waits_for_unheard(keyspace, shard))
            .chain(hung)
            .collect()
    }

    /// Which nodes a shard waits for that may have a later copy than those that live.
    pub(super) fn waits_for_unheard(&self, keyspace: &KeyspaceState, shard: &Shard) -> Option<String> {
        let mut unheard = self.unheard_for(keyspace, shard);
        let names: Vec<&str> = unheard.by_ref().take(limits::NAMES_SHOWN).map(NodeId::as_str).collect();
        let more = if unheard.next().is_some() { " and others" } else { "" };
        let sentence = || {
            format!(
                "{}{more} may have a later copy, not heard since the cluster's state was restored",
                names.join(", ")
            )
        };
        (!names.is_empty()).then(sentence)
    }

    /// Which of its parents' replicas a shard waits for, one sentence each.
    fn waits_for_parents(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> Vec<String> {
        let view = self.view(keyspace, at.now);
        let parents = keyspace.parents_away(&self.members.nodes, shard);
        let replicas = parents.flat_map(|parent| handover::handing_over(parent).map(move |r| (parent, r)));
        let sentence = |(parent, r): (&Shard, &Replica)| {
            let (of, Replica { node, placement, .. }) = (parent.id, r);
            if keyspace.has_lost(r) {
                return format!("{node} has nothing of {placement} of {of}, which it comes from");
            }
            match view.disk_state(parent, r) {
                DiskState::Damaged => format!("{node} has {placement} of {of}, which it comes from, damaged"),
                DiskState::Gone => format!("{node} is back without {placement} of {of}, which it comes from"),
                DiskState::Away | DiskState::Intact(_) | DiskState::Unproven | DiskState::Overtaken => {
                    format!("it waits for {node}, which has the last writes of {of} as {placement}")
                }
            }
        };
        replicas.map(sentence).collect()
    }

    /// When a replica of the keyspace is replaced next, unless its node comes back.
    pub(super) fn next_replacement(&self, at: Moment, keyspace: &KeyspaceState) -> Millis {
        let replace_after_ms = keyspace.record.keyspace.throttle.replace_after_ms;
        let is_durable = keyspace.record.keyspace.durable;
        let away = self.members.nodes.iter().filter(|(_, node)| is_durable && node.record.ended);
        let named = away.filter(|(id, _)| keyspace.hosted.names(id));
        let due = named.map(|(_, node)| node.ended_at + replace_after_ms);
        due.filter(|due| *due > at.now).min().unwrap_or(Millis::NEVER)
    }
}
