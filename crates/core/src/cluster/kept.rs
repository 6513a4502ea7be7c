//! Data that workers keep and no map names: when it may be deleted (D7).
//!
//! A worker deletes nothing because no order names it: its orders may come from a coordinator that forgot, or it was
//! away and others were given its shards meanwhile. It unloads, keeps the data, names it with every registration and
//! whole beat, and so asks. The answer follows from the map:
//!
//! | what is kept                                                | answer                                        |
//! |-------------------------------------------------------------|-----------------------------------------------|
//! | of a keyspace, or an earlier one of that name, that was deleted | `Deleted`                                 |
//! | of a partition that was unregistered                        | `Deleted`                                     |
//! | others serve its keys, under its epoch or a later one       | `Superseded`                                  |
//! | the map names it                                            | none: it is ordered, or waits for its lease   |
//! | ids that this coordinator cannot know (lost, or not given out) | none                                       |
//! | nothing serves its keys, or only under an earlier epoch     | none: it may be the only copy                 |
//! | of a keyspace that was never here                           | none                                          |
//!
//! The worker keeps what is undecided and asks again; the coordinator raises an alarm once it lasts.

use super::keyspaces::Keyspaces;
use super::members::Members;
use super::{Cluster, KeyspaceState, Moment, Outbox};
use crate::base::count::counted;
use crate::base::id::{Epoch, ShardId};
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::keyspace::Ownership;
use crate::keyspace::map::{Shard, Stage};
use crate::keyspace::sharding::{Bounds, Sharding, geometry};
use crate::limits;
use crate::node::Health;
use crate::node::exchange::{DropReason, Permission, Phase, ReplicaKey, Report, Stored};
use std::ops::Bound;

/// A replica whose data a node keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The latest epoch that it has served under; 0 = it has only loaded what others had.
    pub epoch: Epoch,
    /// What its shard held, where the node said so.
    pub bounds: Option<Bounds>,
    /// Names the disk on which it lies; 0 = not named.
    pub store: u64,
    /// Some of it cannot be read.
    pub damaged: bool,
    /// Since when it is known.
    pub since: Millis,
}

/// What follows from what a node keeps: which of it may be deleted, and which a person is to know of.
pub(super) struct KeptAnswer {
    permissions: Vec<Permission>,
    /// The last replica that was looked at.
    last: Option<ReplicaKey>,
    /// A replica that waits for too long, and what the coordinator tells people of it.
    waits: Option<(About, String)>,
}

impl KeptAnswer {
    /// Which of the data that the node keeps may be deleted by now; none if it keeps nothing. Looks at a bounded number, in
    /// turn.
    pub(super) fn find(cluster: &Cluster, at: Moment, id: &NodeId) -> Option<KeptAnswer> {
        let node = cluster.members.get(id).filter(|node| !node.kept.is_empty())?;
        let from = node.kept_until.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let turn = node.kept.range((from, Bound::Unbounded)).take(limits::KEPT_AT_ONCE);
        let mut found = KeptAnswer { permissions: Vec::new(), last: None, waits: None };
        for (replica, kept) in turn {
            found.last = Some(replica.clone());
            if cluster.keyspaces.is_named(replica) {
                continue;
            }
            match cluster.may_delete(at, replica, kept) {
                Ok((reason, epoch)) => {
                    found.permissions.push(Permission { replica: replica.clone(), reason, epoch });
                }
                Err(why) if at.now.since(kept.since) >= limits::KEPT_TOLD_MS && !node.kept_told => {
                    let count = counted(node.kept.len(), "replica");
                    found.waits.get_or_insert_with(|| {
                        let ReplicaKey { keyspace, shard, placement } = replica;
                        let text = format!(
                            "node {id} keeps data of {count} that no map names, such as {placement} of shard {shard} \
                             of keyspace {keyspace}: {why}"
                        );
                        (About::shard(keyspace, *shard).and_node(id), text)
                    });
                }
                Err(_) => {}
            }
        }
        Some(found)
    }

    /// Goes on from there the next time, and says what waits. Returns what may be deleted.
    pub(super) fn apply(self, id: &NodeId, members: &mut Members, outbox: &mut Outbox) -> Vec<Permission> {
        let KeptAnswer { permissions, last, waits } = self;
        if let Some(node) = members.get_mut(id) {
            node.kept_until = last;
            node.kept_told |= waits.is_some();
        }
        if let Some((about, text)) = waits {
            outbox.tell(EventKind::Alarm, about, true, text);
        }
        permissions
    }
}

impl Members {
    /// What a registration says is stored.
    pub(super) fn take_stored(
        &mut self,
        at: Moment,
        id: &NodeId,
        stored: Vec<Stored>,
        keyspaces: &mut Keyspaces,
    ) {
        for Stored { replica, bounds, epoch, store, damaged } in stored {
            let kept = Kept { epoch, bounds: Some(bounds), store, damaged, since: at.now };
            self.keep(id, replica, kept, keyspaces);
        }
    }

    /// A report on a replica that the map does not name, or not of this start of the node.
    pub(super) fn take_kept(&mut self, at: Moment, id: &NodeId, report: Report, keyspaces: &mut Keyspaces) {
        let Report { replica, phase, epoch, served, load: _, progress: _, replication: _ } = report;
        let has_served = served.as_ref().is_some_and(|served| served.epoch > Epoch(0));
        let epoch = served.as_ref().map_or(epoch, |served| served.epoch);
        let bounds = served.map(|served| served.bounds);
        let kept = Kept { epoch, bounds, store: 0, damaged: false, since: at.now };
        // A process that lived when the coordinator's state was restored serves what the map does not know any more, or did
        // before it was opened anew, or failed.
        let tells = match phase {
            Phase::Dropped | Phase::Kept => false,
            Phase::Serving | Phase::Unloading | Phase::Unloaded => true,
            Phase::Loading | Phase::Ready | Phase::Failed(_) => has_served,
        };
        if phase == Phase::Kept {
            return self.keep(id, replica, kept, keyspaces);
        }
        if phase == Phase::Dropped
            && let Some(node) = self.nodes.get_mut(id)
        {
            node.kept.remove(&replica);
        }
        if tells
            && !keyspaces.is_named(&replica)
            && let Some(keyspace) = keyspaces.get_mut(&replica.keyspace)
        {
            keyspace.note_stored(id, &replica, &kept);
        }
    }

    fn keep(&mut self, id: &NodeId, replica: ReplicaKey, kept: Kept, keyspaces: &mut Keyspaces) {
        // What the map waits for is never too much: the map is bounded itself.
        let is_named = keyspaces.is_named(&replica);
        if let Some(keyspace) = keyspaces.get_mut(&replica.keyspace) {
            keyspace.note_stored(id, &replica, &kept);
        }
        let Some(node) = self.nodes.get_mut(id) else { return };
        let is_full = node.kept.len() >= limits::KEPT_REPLICAS && !is_named;
        match node.kept.get_mut(&replica) {
            Some(known) => {
                known.epoch = known.epoch.max(kept.epoch);
                known.bounds = kept.bounds.or(known.bounds.take());
                known.damaged |= kept.damaged;
                known.store = known.store.max(kept.store);
            }
            // The node names it again when it registers next.
            None if is_full => {}
            None => {
                node.kept.insert(replica.clone(), kept);
                // A shard may have waited for it.
                keyspaces.enqueue_shard(&replica);
            }
        }
    }
}

impl Cluster {
    /// What the node keeps that no map names.
    pub fn kept_on(&self, id: &NodeId) -> impl Iterator<Item = (&ReplicaKey, &Kept)> {
        self.members.get(id).into_iter().flat_map(|node| &node.kept)
    }

    /// What a node keeps that no map names and that may not be deleted, and why not. Looks at a bounded number.
    pub(super) fn undeletable_kept(
        &self,
        at: Moment,
        id: &NodeId,
    ) -> impl Iterator<Item = (&ReplicaKey, String)> {
        let unnamed = self.kept_on(id).filter(|(replica, _)| !self.keyspaces.is_named(replica));
        unnamed
            .take(limits::KEPT_AT_ONCE)
            .filter_map(move |(replica, kept)| Some((replica, self.may_delete(at, replica, kept).err()?)))
    }

    /// Why the data of a replica that no map names may be deleted, and up to which epoch; or why it may not.
    fn may_delete(&self, at: Moment, key: &ReplicaKey, kept: &Kept) -> Result<(DropReason, Epoch), String> {
        let deleted = Ok((DropReason::Deleted, kept.epoch));
        let Some(keyspace) = self.keyspaces.get(&key.keyspace) else {
            let below = self.record.deleted_keyspaces.get(&key.keyspace);
            return match below {
                Some(below) if key.shard < *below => deleted,
                _ => Err(
                    "this coordinator has never heard of the keyspace; if its data is not needed, stop the \
                          worker and delete it by hand"
                        .to_owned(),
                ),
            };
        };
        // What a coordinator gave out whose state was lost is kept, also where a keyspace of that name was created since: it
        // is not the data of this one, and no worker has deleted it.
        let lost = keyspace.record.lost;
        let is_former = key.shard < keyspace.record.first_shard;
        if is_former && !lost.is_some_and(|lost| (lost.shards.0..lost.shards.1).contains(&key.shard)) {
            return deleted;
        }
        let map = &keyspace.map;
        let is_lost = is_former || lost.is_some_and(|lost| lost.has(key));
        if is_lost || key.shard >= map.next_shard() || key.placement >= map.next_placement() {
            return Err(
                "it was given out by a coordinator whose state was lost; when it is not needed, stop the \
                        worker and delete it by hand"
                    .to_owned(),
            );
        }
        match map.shard(key.shard) {
            Some(shard) if *shard.stage() == Stage::Removing => deleted,
            None if map.sharding() == Sharding::Named => deleted,
            shard => self.served_elsewhere(at, keyspace, shard, key.shard, kept),
        }
    }

    /// Whether every shard that has the keys now serves, under an epoch that is not before.
    fn served_elsewhere(
        &self,
        at: Moment,
        keyspace: &KeyspaceState,
        own: Option<&Shard>,
        id: ShardId,
        kept: &Kept,
    ) -> Result<(DropReason, Epoch), String> {
        if let Some(own) = own.filter(|own| own.is_serving()) {
            let is_later = own.epoch >= kept.epoch || planted::is(Planted::KeptEpoch);
            let serves = is_later && self.is_served(at, keyspace, own);
            return match serves {
                true => Ok((DropReason::Superseded, own.epoch)),
                false => {
                    Err("no replica serves the shard under its epoch or a later one: it may be the only copy"
                        .into())
                }
            };
        }
        let holds_keys = |shard: &&Shard| match (own, &kept.bounds) {
            (Some(own), _) => geometry::overlap(&shard.bounds, &own.bounds),
            (None, Some(bounds)) => geometry::overlap(&shard.bounds, bounds),
            // Never served, such as a part of a split that was given up: its keys are somewhere in the keyspace.
            (None, None) if kept.epoch == Epoch(0) => true,
            (None, None) => shard.parents().contains(&id),
        };
        let mut epoch = None;
        for shard in keyspace.map.shards().filter(|shard| shard.is_serving()).filter(holds_keys) {
            if shard.epoch < kept.epoch || !self.is_served(at, keyspace, shard) {
                return Err(format!(
                    "shard {} that has its keys does not serve, so it may be the only copy",
                    shard.id
                ));
            }
            epoch = Some(epoch.unwrap_or(shard.epoch).min(shard.epoch));
        }
        let unknown = || "no shard is known to have its keys".to_owned();
        epoch.map(|epoch| (DropReason::Superseded, epoch)).ok_or_else(unknown)
    }

    /// Whether the leader of a shard is known to serve under its epoch, and is heard of.
    fn is_served(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard) -> bool {
        let exclusive = keyspace.record.keyspace.ownership == Ownership::Exclusive;
        let granted = !exclusive || !keyspace.queue.ungranted.contains(&shard.id);
        granted
            && shard.leader().is_some_and(|leader| {
                let health = self.replica_health(at, leader);
                keyspace.serves_under(leader.placement, shard.epoch)
                    && matches!(health, Health::Up | Health::Unreachable)
            })
    }
}
