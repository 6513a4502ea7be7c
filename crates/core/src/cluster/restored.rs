//! Which copies of durable shards are the latest, when the coordinator's state was restored from a backup.
//!
//! The map of a backup may call a copy what others have gone on without since, and does not know what was placed later. So
//! nodes name what they have, each copy with the epoch under which it has served last:
//!
//! | the copy                                       | what says it                                                 |
//! |------------------------------------------------|--------------------------------------------------------------|
//! | is stored, its process has ended               | the registration of the next process, or a report as `Kept`  |
//! | is held by a process that lives through the restore | the reports of its first beat, before any order changes that epoch |
//! | is of a shard that the map does not know       | the same, with what the shard holds                          |
//!
//! A shard waits until every replica that the map has, or has as one to load, was heard, and every other node that may have
//! data: also one that is declared dead, or was when the backup was taken, as it may have come back in between and led alone
//! (seed 4103). A person says that such a node is gone by removing it. A shard that has gone on since the restore waits for no
//! dead node: see [`KeyspaceState::has_gone_on`].
//!
//! A copy that has served since the restore is compared with nothing, nor is a leader that was granted the shard. An earlier
//! one is *overtaken* when somebody has named a later one. Those that go on without a copy do so under a later epoch, so
//! copies of one epoch have the same writes.
//!
//! Not done: a node that joined, or got its first shard, after the backup was taken, and that is not back, may have the latest
//! copy, and others go on. And the coordinator does not store what it has found. A coordinator that begins between the comparison
//! and the next epoch of a shard hears that one copy has served under the restored epoch and another not yet, and takes the other
//! for overtaken, though both have everything: that one loads anew.

use super::decide::Transition;
use super::members::NodesView;
use super::stored::{Nodes, has_ended, is_away};
use super::{Cluster, Kept, KeyspaceState, LostIds, Moment, NodeState, Observed};
use crate::base::id::{Epoch, PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::keyspace::sharding::{Bounds, geometry};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{Phase, ReplicaKey, Report, Served};
use std::collections::{BTreeMap, BTreeSet};

/// A copy that a node has named.
#[derive(Debug, Clone, Default)]
pub(super) struct Named {
    /// Under which it served last: before the restore, where its node has said so.
    epoch: Epoch,
    bounds: Option<Bounds>,
    /// It has served since the restore, too.
    serves_since: bool,
}

/// Which copies of the durable shards of a keyspace are the latest. Not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct RestoredCopies {
    /// The copies of each shard that are older than the restore of this coordinator's state, as nodes have named them.
    named_copies: BTreeMap<ShardId, BTreeMap<(NodeId, PlacementId), Named>>,
    /// Which nodes were back since the coordinator's state was restored, at the last decision.
    back: Heard,
    /// Shards with copies on processes that live and have not served since that, until all nodes have said what they have.
    uncompared: BTreeSet<ShardId>,
    /// Those of them of which something has changed since they were last looked at.
    to_compare: BTreeSet<ShardId>,
    /// Copies on processes that live, without which others have gone on since: they count for nothing until they have
    /// loaded.
    overtaken: BTreeSet<PlacementId>,
}

impl RestoredCopies {
    /// What a node has named of a replica.
    fn named(&self, shard: ShardId, replica: &Replica) -> Option<&Named> {
        self.named_copies.get(&shard)?.get(&(replica.node.clone(), replica.placement))
    }

    /// What the comparison of a shard's copies rests on has changed.
    pub(super) fn compare_again(&mut self, shard: ShardId) {
        if self.uncompared.contains(&shard) {
            self.to_compare.insert(shard);
        }
    }

    /// Whether copies of the shard are not compared yet: see [`super::restored::ComparedCopies`].
    pub(super) fn awaits_comparison(&self, shard: ShardId) -> bool {
        self.uncompared.contains(&shard)
    }

    /// Whether others have gone on without a copy on a process that lives.
    pub(super) fn is_overtaken(&self, replica: &Replica) -> bool {
        self.overtaken.contains(&replica.placement)
    }

    /// The copy loads anew: that others went on without it says nothing about it any more.
    pub(super) fn forget(&mut self, placement: PlacementId) {
        self.overtaken.remove(&placement);
    }

    /// Under which epoch a copy has served last before the restore, as its node has named it; none where it has served since.
    pub(super) fn named_epoch(&self, shard: ShardId, replica: &Replica) -> Option<Epoch> {
        self.named(shard, replica).filter(|named| !named.serves_since).map(|named| named.epoch)
    }

    /// Whether a copy has served since the restore, by what its node has named, or was chosen by a person.
    fn is_known_to_serve_since(&self, shard: ShardId, replica: &Replica) -> bool {
        self.named(shard, replica).is_some_and(|named| named.serves_since)
    }
}

/// Of which nodes it is known what they have stored. One that has not said it may have a later copy that the map does not
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Heard {
    /// Some node that is not dead has not said yet what it has stored.
    #[default]
    NotAll,
    /// All but dead ones that may have data have said it.
    AllButDead,
    /// Every node that may have data has said what it has stored.
    All,
}

impl Heard {
    /// By whether a node was heard since this coordinator began, or is heard now.
    fn of<'a>(
        nodes: impl IntoIterator<Item = &'a NodeState>,
        was_heard: impl Fn(&NodeState) -> bool,
    ) -> Heard {
        let one = |node: &NodeState| match was_heard(node) {
            true => Heard::All,
            false if node.is_awaited_dead() => Heard::AllButDead,
            false if node.record.ended => Heard::All,
            false => Heard::NotAll,
        };
        nodes.into_iter().map(one).min().unwrap_or(Heard::All)
    }

    /// Whether a shard of a keyspace that was restored waits for no node any more that the map does not name for it.
    fn is_enough(self, keyspace: &KeyspaceState, shard: &Shard) -> bool {
        self == Heard::All || self == Heard::AllButDead && keyspace.has_gone_on(shard)
    }
}

impl NodeState {
    /// Whether this coordinator has not heard it, and it may have data though it was declared dead.
    fn is_awaited_dead(&self) -> bool {
        self.record.ended && self.record.held && self.sequence == 0
    }

    /// Whether this coordinator has not heard it, and it may have a later copy of a shard that has, or has not, gone on since the
    /// coordinator's state was restored.
    fn may_have_later(&self, has_gone_on: bool) -> bool {
        self.sequence == 0 && !self.record.ended || !has_gone_on && self.is_awaited_dead()
    }
}

/// Which nodes are back.
fn back(seen: NodesView<'_>) -> Heard {
    Heard::of(seen.nodes.values(), |node| node.signs.health(seen.now, seen.settings) == Health::Up)
}

impl KeyspaceState {
    /// Whether its data outlives processes, and the coordinator's state was restored since it was created.
    fn was_restored(&self) -> bool {
        self.record.keyspace.durable && self.record.lost.is_some()
    }

    /// Whether the coordinator's state was restored since a copy of the shard has served under that epoch.
    pub(super) fn was_restored_since(&self, shard: &Shard, epoch: Epoch) -> bool {
        let first = self.record.lost.map(|lost| lost.shards.1.0);
        // All numbers went on from one moment, but where some were above it: then an epoch grew by far more than one.
        let first = first.filter(|first| *first <= shard.epoch.0);
        epoch.0 < first.unwrap_or(shard.epoch.0.saturating_sub(limits::COUNTER_JUMP / 2))
    }

    /// What nodes have named since the coordinator's state was restored of a shard, or of what it became before, that has
    /// served under a later epoch than this: the node, and the replica. Also what they know to be no copy any more, as
    /// others went on without it: they went on without what is older, too.
    pub(super) fn later_copies<'a>(
        &'a self,
        shard: &'a Shard,
        epoch: Epoch,
    ) -> impl Iterator<Item = (&'a NodeId, ReplicaKey)> {
        let own = self.restored.named_copies.get_key_value(&shard.id).into_iter();
        let forgotten =
            self.record.lost.map(|lost| self.restored.named_copies.range(lost.shards.0..lost.shards.1));
        // What the map has is compared with its own copies; what a shard comes from hands its writes over.
        let others = forgotten.into_iter().flatten().filter(|(id, _)| self.map.shard(**id).is_none());
        let others = others.filter(|(id, _)| !shard.parents().contains(id));
        let stored = own.chain(others);
        let named =
            stored.flat_map(|(id, copies)| copies.iter().map(move |(copy, named)| (*id, copy, named)));
        named.filter_map(move |(id, (node, placement), named)| {
            let overlaps = |bounds: &Bounds| geometry::overlap(bounds, &shard.bounds);
            let is_related = id == shard.id || named.bounds.as_ref().is_none_or(overlaps);
            (is_related && named.epoch > epoch).then(|| (node, self.key_of(id, *placement)))
        })
    }

    /// Notes what a node has stored, where the coordinator's state was restored: the map may name earlier copies. A replica
    /// that was placed since is in the map that counts, so this grows no further than by what there was at the restore.
    pub(super) fn note_stored(&mut self, node: &NodeId, replica: &ReplicaKey, kept: &Kept) {
        let was_placed_before = |lost: LostIds| replica.placement < lost.placements.1;
        if self.record.keyspace.durable && self.record.lost.is_some_and(was_placed_before) {
            let shard = self.map.shard(replica.shard);
            let serves_since = shard.is_some_and(|shard| !self.was_restored_since(shard, kept.epoch));
            let of_shard = self.restored.named_copies.entry(replica.shard).or_default();
            let is_new = !of_shard.contains_key(&(node.clone(), replica.placement));
            let named = of_shard.entry((node.clone(), replica.placement)).or_default();
            named.serves_since |= serves_since;
            // A follower that serves under the map's epoch is no later copy than the leader that is to lead under it.
            if is_new || !serves_since {
                named.epoch = named.epoch.max(kept.epoch);
            }
            named.bounds = kept.bounds.clone().or(named.bounds.take());
            self.restored.compare_again(replica.shard);
        }
    }

    /// A person goes on with a copy, whatever others have: it counts as one that serves under the present epoch. Not stored:
    /// should another coordinator lead before it has, and hear of a later copy, a person is asked again.
    pub(super) fn note_chosen(&mut self, id: ShardId, placement: PlacementId) {
        let Some(shard) = self.map.shard(id).filter(|_| self.record.lost.is_some()) else { return };
        let Some(replica) = shard.replica(placement) else { return };
        let key = (replica.node.clone(), placement);
        let bounds = Some(shard.bounds.clone());
        let chosen = Named { epoch: shard.epoch, bounds, serves_since: true };
        self.restored.named_copies.entry(id).or_default().insert(key, chosen);
        self.restored.uncompared.remove(&id);
        // The coordinator may have found before that others had a later one, and would take its reports for those of a copy that
        // is none: a person could put an empty shard in the place of one that serves (seed 402301).
        self.restored.overtaken.remove(&placement);
        self.note_waiting(id);
        self.queue.enqueue(id);
    }

    /// Whether every node is back that the shard waits for, though the map does not name it.
    pub(super) fn all_are_back(&self, shard: &Shard) -> bool {
        self.restored.back.is_enough(self, shard)
    }

    /// Whether a copy of the shard that the map has is known to have served since the coordinator's state was restored, or was
    /// loaded from one that had: those that went on without an earlier copy, wherever that is.
    fn has_gone_on(&self, shard: &Shard) -> bool {
        let was_placed_since =
            |r: &Replica| self.record.lost.is_none_or(|lost| r.placement >= lost.placements.1);
        shard.live().any(|r| was_placed_since(r) || self.restored.is_known_to_serve_since(shard.id, r))
    }

    /// Whether the process of a copy has not said under which epoch it has served, while that may be before a restore. Until
    /// then no order may let it serve under another one.
    pub(super) fn is_unheard(&self, nodes: &Nodes, replica: &Replica) -> bool {
        self.was_restored() && nodes.get(&replica.node).is_some_and(|node| node.sequence == 0)
    }

    /// The replicas of a restored shard on nodes of which nothing was heard since this coordinator began: any of them may be
    /// later than the copies that were, also one that is to load by the restored map (seed 1424).
    fn unheard_copies<'a>(&'a self, nodes: &'a Nodes, shard: &'a Shard) -> impl Iterator<Item = &'a Replica> {
        let is_named = move |r: &Replica| self.restored.named(shard.id, r).is_some();
        let has_gone_on = self.has_gone_on(shard);
        let counts = move |r: &Replica| r.state == ReplicaState::Live || !has_gone_on;
        shard.staying().filter(move |r| counts(r) && self.is_unheard(nodes, r) && !is_named(r))
    }

    /// Whether a replica that is to load by the map may be a later one than the copies, of which none leads since the restore.
    pub(super) fn may_be_later(&self, seen: NodesView<'_>, shard: &Shard, replica: &Replica) -> bool {
        let leads = || shard.leader().is_some_and(|leader| self.leads(seen.nodes, leader));
        self.was_restored() && is_away(seen, self, shard, replica) && !leads()
    }

    /// Those of them whose processes have ended, where the others are not compared without them.
    pub(super) fn missing_copies<'a>(
        &'a self,
        nodes: &'a Nodes,
        shard: &'a Shard,
    ) -> impl Iterator<Item = &'a Replica> {
        let waits = self.restored.uncompared.contains(&shard.id);
        self.unheard_copies(nodes, shard).filter(move |r| waits && has_ended(nodes, r))
    }

    /// Takes in what a process that lives says of a copy, where the coordinator's state was restored. A copy that has not
    /// served since the restore may be one that others went on without, as its process was cut off.
    pub(super) fn note_live_copy(&mut self, report: &mut Report, node: &NodeId, nodes: &Nodes, heard: Heard) {
        if !self.was_restored() {
            return;
        }
        // Also what its process has let go of. A keyspace was in quarantine, and the copy would be opened under the map's epoch
        // before anybody has named a later one (seed 968); or parts were to go on that have never served, and what is
        // older than this copy must not lead (seed 40782).
        let tells = match report.phase {
            Phase::Ready | Phase::Serving | Phase::Unloading | Phase::Unloaded | Phase::Kept => true,
            // It is no copy any more, and has served all the same: what is older must not lead, whichever coordinator hears
            // of it (seed 442).
            Phase::Dropped => true,
            // What has only loaded what others have tells nothing; a copy that was served before it was opened anew, or before
            // it failed, does.
            Phase::Loading | Phase::Failed(_) => {
                report.served.as_ref().is_some_and(|served| served.epoch > Epoch(0))
            }
        };
        let served = report.served.take().filter(|_| tells);
        let kept = served.map(|Served { epoch, bounds }| Kept {
            epoch,
            bounds: Some(bounds),
            store: 0,
            damaged: false,
            since: Millis(0),
        });
        let placement = report.replica.placement;
        let Some(shard) = self.map.shard(report.replica.shard) else {
            // What the shards of the map were split or merged into since the backup: a later copy than theirs.
            if let Some(kept) = kept {
                self.note_stored(node, &report.replica, &kept);
            }
            return;
        };
        if shard.replica(placement).is_none_or(|r| r.state != ReplicaState::Live) {
            return;
        }
        if self.restored.overtaken.contains(&placement) {
            report.phase = Phase::Dropped;
        }
        let Some(kept) = kept else { return self.note_gone_on(report, node) };
        let is_open = !heard.is_enough(self, shard) || self.unheard_copies(nodes, shard).next().is_some();
        let is_old = self.was_restored_since(shard, kept.epoch);
        let is_chosen =
            shard.replica(placement).is_some_and(|r| self.restored.is_known_to_serve_since(shard.id, r));
        self.note_stored(node, &report.replica, &kept);
        if is_old && is_open && !is_chosen {
            self.restored.uncompared.insert(report.replica.shard);
            self.restored.to_compare.insert(report.replica.shard);
            self.note_waiting(report.replica.shard);
        }
    }

    /// Notes that a copy has served since the restore, as its leader was granted the shard and it serves under that epoch: should
    /// anybody name a later copy from now on, it is compared with nothing.
    fn note_gone_on(&mut self, report: &Report, node: &NodeId) {
        let ReplicaKey { shard: id, placement, .. } = report.replica;
        let Some(shard) = self.map.shard(id).filter(|_| !self.restored.awaits_comparison(id)) else { return };
        let leads = |leader: &Replica| {
            leader.placement == placement || self.serves_under(leader.placement, shard.epoch)
        };
        let is_led = !self.queue.ungranted.contains(&id) && shard.leader().is_some_and(leads);
        if is_led && report.phase == Phase::Serving && report.epoch >= shard.epoch {
            let copies = self.restored.named_copies.get_mut(&id);
            let named = copies.and_then(|copies| copies.get_mut(&(node.clone(), placement)));
            named.into_iter().for_each(|named| named.serves_since = true);
        }
    }

    /// The copies on processes that live which have not served since the coordinator's state was restored, while others
    /// have a later one. A leader that was granted the shard may have acknowledged writes: it is none of them any more.
    fn find_overtaken(&self, nodes: &Nodes, shard: &Shard) -> Vec<PlacementId> {
        let is_overtaken = |r: &&Replica| {
            let is_old = |epoch: &Epoch| self.was_restored_since(shard, *epoch);
            let later = |epoch: Epoch| self.later_copies(shard, epoch).next().is_some();
            let may_lead = r.role == Role::Leader && !self.queue.ungranted.contains(&shard.id);
            !may_lead
                && !has_ended(nodes, r)
                && self.restored.named_epoch(shard.id, r).filter(is_old).is_some_and(later)
        };
        shard.live().filter(is_overtaken).map(|r| r.placement).collect()
    }

    /// Compares the copies of those `shards` that wait for no node any more.
    fn compare(&mut self, nodes: &Nodes, heard: Heard, shards: BTreeSet<ShardId>) {
        let waits = |shard: &Shard| {
            !heard.is_enough(self, shard) || self.unheard_copies(nodes, shard).next().is_some()
        };
        let is_open = |id: &ShardId| self.map.shard(*id).is_some_and(waits);
        let proven: Vec<ShardId> = shards.into_iter().filter(|id| !is_open(id)).collect();
        for shard in proven.iter().filter_map(|id| self.map.shard(*id)) {
            for placement in self.find_overtaken(nodes, shard) {
                let epoch = self.observed.get(&placement).map(Observed::epoch).unwrap_or_default();
                self.observed.insert(placement, Observed::new(Phase::Dropped, epoch, None));
                self.restored.overtaken.insert(placement);
            }
        }
        for id in proven {
            self.restored.uncompared.remove(&id);
            self.queue.enqueue(id);
            self.note_waiting(id);
        }
    }
}

/// Restored keyspaces whose shards wait no longer for nodes that are back.
pub(super) struct ShardsAfterRestore {
    back: Heard,
    keyspaces: Vec<KeyspaceName>,
}

impl Transition for ShardsAfterRestore {
    fn find(cluster: &Cluster, at: Moment) -> ShardsAfterRestore {
        let mut restored =
            cluster.keyspaces.by_name.iter().filter(|(_, keyspace)| keyspace.was_restored()).peekable();
        if restored.peek().is_none() {
            return ShardsAfterRestore { back: Heard::NotAll, keyspaces: Vec::new() };
        }
        let back = back(cluster.nodes_at(at.now));
        let changed = restored.filter(|(_, keyspace)| keyspace.restored.back != back);
        ShardsAfterRestore { back, keyspaces: changed.map(|(name, _)| name.clone()).collect() }
    }

    fn apply(self, cluster: &mut Cluster, _: Moment) -> Millis {
        for name in &self.keyspaces {
            let Some(keyspace) = cluster.keyspaces.get_mut(name) else { continue };
            if self.back > keyspace.restored.back {
                keyspace.queue.queued.extend(keyspace.map.shards().map(|shard| shard.id));
            }
            keyspace.restored.back = self.back;
        }
        Millis::NEVER
    }
}

/// When every node has said what it has, the copies on processes that live through a restore are compared: one that was not
/// heard may have led last, where the map does not name it.
pub(super) struct ComparedCopies {
    heard: Heard,
    /// The nodes that are not heard, and the keyspaces that have something to compare; none while nothing is compared.
    now: Option<(BTreeSet<NodeId>, Vec<KeyspaceName>)>,
}

impl Transition for ComparedCopies {
    fn find(cluster: &Cluster, _: Moment) -> ComparedCopies {
        let before = cluster.recovered.heard;
        let is_heard = |node: &NodeState| node.sequence > 0;
        let heard = if before < Heard::All {
            before.max(Heard::of(cluster.members.nodes.values(), is_heard))
        } else {
            before
        };
        let uncompared = cluster.keyspaces.by_name.iter().filter(|(_, k)| !k.restored.uncompared.is_empty());
        let names: Vec<KeyspaceName> = uncompared.map(|(name, _)| name.clone()).collect();
        if heard == Heard::NotAll || names.is_empty() {
            return ComparedCopies { heard, now: None };
        }
        let unheard =
            cluster.members.nodes.iter().filter(|(_, node)| !is_heard(node)).map(|(id, _)| id.clone());
        ComparedCopies { heard, now: Some((unheard.collect(), names)) }
    }

    fn apply(self, cluster: &mut Cluster, _: Moment) -> Millis {
        cluster.recovered.heard = self.heard;
        let Some((unheard, names)) = self.now else { return Millis::NEVER };
        let has_changed = cluster.recovered.unheard.as_ref() != Some(&unheard);
        cluster.recovered.unheard = Some(unheard);
        for name in &names {
            let Some(keyspace) = cluster.keyspaces.get_mut(name) else { continue };
            let changed = std::mem::take(&mut keyspace.restored.to_compare);
            let shards = if has_changed { keyspace.restored.uncompared.clone() } else { changed };
            keyspace.compare(&cluster.members.nodes, self.heard, shards);
        }
        Millis::NEVER
    }
}

impl Cluster {
    /// For which of them a shard waits, as they may have later copies than those that are there.
    pub(super) fn unheard_for<'a>(
        &'a self,
        keyspace: &KeyspaceState,
        shard: &Shard,
    ) -> impl Iterator<Item = &'a NodeId> {
        let waits = keyspace.was_restored() && keyspace.waits_for_copy(&self.members.nodes, shard);
        let has_gone_on = keyspace.has_gone_on(shard);
        self.members
            .nodes
            .values()
            .filter(move |node| waits && node.may_have_later(has_gone_on))
            .map(|node| &node.record.spec.id)
    }

    /// How many shards wait for a node that the map does not name for them, or wait and know of a later copy on it.
    pub(super) fn shards_that_wait_for(&self, id: &NodeId) -> usize {
        let Some(node) = self.members.get(id) else { return 0 };
        let waits = |(keyspace, shard): &(&KeyspaceState, &Shard)| {
            let has_later = || {
                let epoch = shard.live().filter_map(|r| keyspace.restored.named_epoch(shard.id, r)).max();
                keyspace.later_copies(shard, epoch.unwrap_or_default()).any(|(other, _)| other == id)
            };
            let is_awaited = || node.may_have_later(keyspace.has_gone_on(shard));
            keyspace.waits_for_copy(&self.members.nodes, shard) && (is_awaited() || has_later())
        };
        self.restored_shards().filter(waits).count()
    }

    /// Whether a shard waits for dead nodes that were not heard since a restore: none of those is forgotten meanwhile.
    pub(super) fn waits_for_the_dead(&self) -> bool {
        self.restored_shards().any(|(keyspace, shard)| {
            keyspace.waits_for_copy(&self.members.nodes, shard) && !keyspace.has_gone_on(shard)
        })
    }

    /// The shards of keyspaces that were restored.
    fn restored_shards(&self) -> impl Iterator<Item = (&KeyspaceState, &Shard)> {
        let restored = self.keyspaces.by_name.values().filter(|keyspace| keyspace.was_restored());
        restored.flat_map(|keyspace| keyspace.map.shards().map(move |shard| (keyspace, shard)))
    }

    /// Which later copy others have of what a replica has stored.
    pub(super) fn overtaken(&self, keyspace: &KeyspaceState, shard: &Shard, replica: &Replica) -> String {
        let Replica { node, placement, .. } = replica;
        let key = keyspace.key_of(shard.id, *placement);
        let kept = self.members.get(node).and_then(|state| state.kept.get(&key)).map(|kept| kept.epoch);
        let epoch = kept.or_else(|| keyspace.restored.named_epoch(shard.id, replica)).unwrap_or_default();
        let later = keyspace.later_copies(shard, epoch).next();
        let later = later.map(|(other, key)| format!(" than {} of {} on {other}", key.placement, key.shard));
        format!("{node} has {placement}, which is older{}", later.unwrap_or_default())
    }
}
