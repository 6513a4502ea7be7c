//! The closed set of changes to a map, and their one application.
//!
//! Each change is checked against the map as it stands with the changes before it; a refused change leaves
//! the edit as it was. Nothing here decides *whether* to change: see [`crate::plan::handover`] and the planner.

use super::{Lineage, MapDiff, Predecessor, Replica, Replicas, Role, Shard, ShardMap, Stage};
use crate::base::id::{Configuration, Epoch, Incarnation, PlacementId, ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::base::planted::{self, Planted};
use crate::keyspace::lifecycle::{IllegalStep, ReplicaState};
use crate::keyspace::sharding::Bounds;
use crate::limits;
use std::collections::BTreeMap;

/// A change that the map does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The map has no shard of that id (any more).
    #[error("there is no shard {0}: {way}", way = self.way_out())]
    NoShard(ShardId),
    /// The shard has no replica of that placement id (any more).
    #[error("shard {shard} has no replica {placement}: {}", self.way_out())]
    NoReplica {
        /// The shard in which the replica was looked for.
        shard: ShardId,
        /// The placement id that no replica of the shard has.
        placement: PlacementId,
    },
    /// A step that the replica's life does not have.
    #[error(transparent)]
    IllegalStep(#[from] IllegalStep),
    /// Two replicas of one shard on one node.
    #[error("node {node} has a replica of shard {shard} already: {}", self.way_out())]
    AlreadyThere {
        /// The shard that has a replica on the node already.
        shard: ShardId,
        /// The node that has a replica of the shard already.
        node: NodeId,
    },
    /// Only a live replica can lead, or be in sync.
    #[error("replica {placement} of shard {shard} is in {state}: {}", self.way_out())]
    NotLive {
        /// The shard of the replica.
        shard: ShardId,
        /// The placement id of the replica that was to lead, or to be in sync.
        placement: PlacementId,
        /// The state of the replica, which should be `Live`.
        state: ReplicaState,
    },
    /// Only a replica that has every acknowledged write can lead.
    #[error("replica {placement} of shard {shard} is not in sync: {}", self.way_out())]
    NotInSync {
        /// The shard that was to get the leader.
        shard: ShardId,
        /// The placement id of the replica that was to lead.
        placement: PlacementId,
    },
    /// A read replica is never in the in-sync set.
    #[error("replica {placement} of shard {shard} is a read replica: {}", self.way_out())]
    ReadReplica {
        /// The shard of the read replica.
        shard: ShardId,
        /// The placement id of the replica that was to be taken in.
        placement: PlacementId,
    },
    /// A stage that the operation does not fit.
    #[error("shard {shard} is {stage}: {}", self.way_out())]
    WrongStage {
        /// The shard whose stage does not fit the operation.
        shard: ShardId,
        /// The stage that the shard is in.
        stage: Stage,
    },
    /// The change would make more of something than a map may have.
    #[error("{what} would be {count}: {}", self.way_out())]
    Limit {
        /// What is counted: "the number of shards", "the number of replicas".
        what: &'static str,
        /// How many there would be after the change.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
}

impl EditError {
    /// What to do instead: the end of the sentence.
    pub fn way_out(&self) -> String {
        match self {
            EditError::NoShard(_) => "it was split, merged or removed; look it up again".to_owned(),
            EditError::NoReplica { .. } => "it was removed; look it up again".to_owned(),
            EditError::IllegalStep(_) => IllegalStep::WAY_OUT.to_owned(),
            EditError::AlreadyThere { .. } => "choose another node".to_owned(),
            EditError::NotLive { .. } => "only a replica in Live can lead, or be in sync".to_owned(),
            EditError::NotInSync { .. } => "only a member of the in-sync set can lead".to_owned(),
            EditError::ReadReplica { .. } => "make it a follower before".to_owned(),
            EditError::WrongStage { .. } => "wait until what is under way has ended".to_owned(),
            EditError::Limit { limit, .. } => format!("the limit is {limit}"),
        }
    }
}

/// Changes on top of a map, not committed yet.
pub struct Edit<'a> {
    base: &'a ShardMap,
    /// Touched shards; `None` is removed.
    touched: BTreeMap<ShardId, Option<Shard>>,
    next_shard: ShardId,
    next_placement: PlacementId,
}

impl<'a> Edit<'a> {
    pub(super) fn new(base: &'a ShardMap) -> Edit<'a> {
        Edit {
            base,
            touched: BTreeMap::new(),
            next_shard: base.next_shard,
            next_placement: base.next_placement,
        }
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty()
    }

    /// The shard as it stands with the changes so far.
    pub fn shard(&self, id: ShardId) -> Result<&Shard, EditError> {
        match self.touched.get(&id) {
            Some(touched) => touched.as_ref(),
            None => self.base.shards.get(&id),
        }
        .ok_or(EditError::NoShard(id))
    }

    fn shard_mut(&mut self, id: ShardId) -> Result<&mut Shard, EditError> {
        let current = self.shard(id)?.clone();
        self.touched.entry(id).or_insert(Some(current)).as_mut().ok_or(EditError::NoShard(id))
    }

    fn replica_mut(&mut self, shard: ShardId, placement: PlacementId) -> Result<&mut Replica, EditError> {
        let missing = EditError::NoReplica { shard, placement };
        if self.shard(shard)?.replica(placement).is_none() {
            return Err(missing);
        }
        self.shard_mut(shard)?.replicas.iter_mut().find(|r| r.placement == placement).ok_or(missing)
    }

    /// A new shard without replicas, serving at once: for new keyspaces and newly registered partitions.
    pub fn create_shard(&mut self, bounds: Bounds) -> Result<ShardId, EditError> {
        let id = self.next_shard;
        self.insert(Shard {
            id,
            epoch: Epoch(0),
            configuration: Configuration(0),
            bounds,
            lineage: Lineage::default(),
            replicas: Replicas::default(),
        })
    }

    /// The children of a split or merge of `parents`, without replicas, one for each of `bounds`.
    pub fn form_shards(
        &mut self,
        bounds: Vec<Bounds>,
        parents: &[ShardId],
    ) -> Result<Vec<ShardId>, EditError> {
        let epoch = self.serving_epoch(parents)?;
        let first = self.next_shard.0;
        let ids: Vec<_> = (first..first + bounds.len() as u64).map(ShardId).collect();
        for (id, bounds) in ids.iter().copied().zip(bounds) {
            let lineage = Lineage::new(Stage::Forming(ids.as_slice().into()), parents.into());
            let (configuration, replicas) = (Configuration(0), Replicas::default());
            self.insert(Shard { id, epoch, configuration, bounds, lineage, replicas })?;
        }
        Ok(ids)
    }

    /// The highest epoch of `ids`, all of which must be serving.
    fn serving_epoch(&self, ids: &[ShardId]) -> Result<Epoch, EditError> {
        ids.iter().try_fold(Epoch(0), |highest, id| match self.shard(*id)? {
            shard if shard.is_serving() => Ok(highest.max(shard.epoch)),
            shard => Err(EditError::WrongStage { shard: *id, stage: shard.stage().clone() }),
        })
    }

    fn insert(&mut self, shard: Shard) -> Result<ShardId, EditError> {
        let count = self.base.shards.len() + self.touched.len() + 1;
        if count > limits::SHARDS {
            return Err(EditError::Limit { what: "the number of shards", count, limit: limits::SHARDS });
        }
        let id = shard.id;
        self.next_shard = id.next();
        self.touched.insert(id, Some(shard));
        Ok(id)
    }

    /// Takes out a shard that has no replicas left.
    pub fn remove_shard(&mut self, id: ShardId) -> Result<(), EditError> {
        self.shard(id)?;
        self.touched.insert(id, None);
        Ok(())
    }

    /// A new replica in `Load`, as follower, which in time takes the place of `replaces`.
    pub fn add_replica(
        &mut self,
        id: ShardId,
        node: &NodeId,
        incarnation: Incarnation,
        replaces: Option<PlacementId>,
    ) -> Result<PlacementId, EditError> {
        let shard = self.shard(id)?;
        if let Stage::Closing(_) | Stage::Removing = shard.stage() {
            return Err(EditError::WrongStage { shard: id, stage: shard.stage().clone() });
        }
        if shard.bars(node, replaces) {
            return Err(EditError::AlreadyThere { shard: id, node: node.clone() });
        }
        if let Some(placement) = replaces.filter(|old| shard.replica(*old).is_none()) {
            return Err(EditError::NoReplica { shard: id, placement });
        }
        let count = shard.replicas.len() + 1;
        if count > 2 * limits::REPLICAS {
            return Err(EditError::Limit {
                what: "the number of replicas",
                count,
                limit: 2 * limits::REPLICAS,
            });
        }
        let placement = self.next_placement;
        self.next_placement = placement.next();
        self.shard_mut(id)?.replicas.push(Replica {
            placement,
            node: node.clone(),
            incarnation,
            role: Role::Follower,
            state: ReplicaState::Load,
            in_sync: false,
            predecessor: replaces.and_then(Predecessor::new),
        });
        Ok(placement)
    }

    /// One step in the life of a replica. A leader that stops being live leads no more: the epoch grows.
    pub fn step(&mut self, id: ShardId, placement: PlacementId, to: ReplicaState) -> Result<(), EditError> {
        let replica = self.replica_mut(id, placement)?;
        replica.state = replica.state.step(placement, to)?;
        if to == ReplicaState::Live {
            replica.predecessor = None;
            return Ok(());
        }
        let led = replica.role == Role::Leader;
        replica.role = replica.role.without_lead();
        self.take_out(id, placement)?;
        if led { self.raise_epoch(id) } else { Ok(()) }
    }

    /// A new replica in `Load` that is there to be read from only: see [`Edit::add_replica`].
    pub fn add_read_replica(
        &mut self,
        id: ShardId,
        node: &NodeId,
        incarnation: Incarnation,
        replaces: Option<PlacementId>,
    ) -> Result<PlacementId, EditError> {
        let placement = self.add_replica(id, node, incarnation, replaces)?;
        self.replica_mut(id, placement)?.role = Role::ReadReplica;
        Ok(placement)
    }

    /// A read replica becomes a follower: its leader asks it into the in-sync set when it has all. It serves again then. What was
    /// to take its place as a read replica takes no other's: a member does not leave for a read replica.
    pub fn make_member(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        self.take_over_from_none(id, placement)?;
        let replica = self.replica_mut(id, placement)?;
        replica.role = Role::Follower;
        match replica.state {
            ReplicaState::Live => {
                let incarnation = replica.incarnation;
                self.begin_anew(id, placement, incarnation, ReplicaState::Load)
            }
            ReplicaState::Load | ReplicaState::Unload | ReplicaState::UnloadFinal => Ok(()),
        }
    }

    /// Takes a live replica into the in-sync set: its leader has asked for it, or the shard has no data yet.
    pub fn take_in(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let replica = self.replica_mut(id, placement)?;
        if replica.state != ReplicaState::Live {
            return Err(EditError::NotLive { shard: id, placement, state: replica.state });
        }
        if replica.is_read_replica() {
            return Err(EditError::ReadReplica { shard: id, placement });
        }
        let is_new = !std::mem::replace(&mut replica.in_sync, true);
        if is_new { self.configure(id) } else { Ok(()) }
    }

    /// Takes a replica out of the in-sync set, if it is in it. The others have everything that was acknowledged.
    fn take_out(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let was_in = std::mem::replace(&mut self.replica_mut(id, placement)?.in_sync, false);
        if was_in { self.configure(id) } else { Ok(()) }
    }

    /// The next configuration of a shard: another in-sync set or leader, or the same, in answer to a wish that cannot be
    /// granted.
    pub fn configure(&mut self, id: ShardId) -> Result<(), EditError> {
        let shard = self.shard_mut(id)?;
        shard.configuration = shard.configuration.next();
        Ok(())
    }

    /// A replica is wanted no more: it goes through `Unload` if it has served.
    pub fn leave(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let leaving = self.replica_mut(id, placement)?.state.leaving();
        self.step(id, placement, leaving)
    }

    /// Makes a live replica the leader, under a new epoch; the former leader, if any, follows. Where the shard has an in-sync
    /// set, only a member of it leads.
    pub fn lead(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let replica = self.replica_mut(id, placement)?;
        let (state, in_sync) = (replica.state, replica.in_sync);
        if state != ReplicaState::Live {
            return Err(EditError::NotLive { shard: id, placement, state });
        }
        let by_set = self.shard(id)?.has_in_sync_set();
        if by_set && !in_sync {
            return Err(EditError::NotInSync { shard: id, placement });
        }
        if by_set {
            self.configure(id)?;
        }
        self.give_lead(id, placement)?;
        self.raise_epoch(id)
    }

    /// A stored replica whose process has ended begins anew with the start `incarnation` of its node: as follower, or
    /// as the leader, or the closer, that it was, then under a new epoch (O3). With the same `incarnation` and in `Load` it waits
    /// for the next start, and counts no more meanwhile.
    pub fn begin_anew(
        &mut self,
        id: ShardId,
        placement: PlacementId,
        incarnation: Incarnation,
        state: ReplicaState,
    ) -> Result<(), EditError> {
        let replica = self.replica_mut(id, placement)?;
        if !replica.state.may_begin_anew_as(state) {
            return Err(IllegalStep { placement, from: replica.state, to: state }.into());
        }
        let led = replica.role == Role::Leader;
        let closes =
            replica.state == ReplicaState::Unload && state == ReplicaState::Unload && replica.in_sync;
        replica.state = state;
        replica.incarnation = incarnation;
        replica.predecessor = None;
        if closes {
            self.configure(id)?;
        } else if state != ReplicaState::Live {
            replica.role = replica.role.without_lead();
            self.take_out(id, placement)?;
        } else if !replica.in_sync && self.shard(id)?.has_in_sync_set() {
            // A person has chosen it, be it a read replica.
            self.replica_mut(id, placement)?.role = Role::Follower;
            self.take_in(id, placement)?;
        } else if led && self.shard(id)?.has_in_sync_set() {
            self.configure(id)?;
        }
        if led { self.raise_epoch(id) } else { Ok(()) }
    }

    /// Whether a replica of the shard begins anew with these changes: it takes its next step in the next commit.
    pub fn has_begun_anew(&self, id: ShardId) -> bool {
        let (Some(base), Ok(now)) = (self.base.shards.get(&id), self.shard(id)) else { return false };
        let is_set_back = |before: &Replica, now: &Replica| {
            before.state == ReplicaState::Live && now.state == ReplicaState::Load
        };
        let begins = |now: &Replica| {
            let before = base.replica(now.placement);
            before.is_some_and(|b| b.incarnation != now.incarnation || is_set_back(b, now))
        };
        now.replicas.iter().any(begins)
    }

    /// Puts a replica that the map forgot back, live and with the data that its node has stored: a person chose it.
    pub fn readmit(&mut self, id: ShardId, replica: Replica) -> Result<(), EditError> {
        let shard = self.shard(id)?;
        if shard.bars(&replica.node, None) {
            return Err(EditError::AlreadyThere { shard: id, node: replica.node });
        }
        if !shard.is_serving() {
            return Err(EditError::WrongStage { shard: id, stage: shard.stage().clone() });
        }
        let (by_set, placement) = (shard.has_in_sync_set(), replica.placement);
        self.shard_mut(id)?.replicas.push(replica);
        if by_set { self.take_in(id, placement) } else { Ok(()) }
    }

    /// Takes out a replica whose data is gone or whose node is.
    pub fn remove_replica(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let led = self.replica_mut(id, placement)?.role == Role::Leader;
        self.take_out(id, placement)?;
        self.shard_mut(id)?.replicas.retain(|r| r.placement != placement);
        self.take_over_from_none(id, placement)?;
        if led { self.raise_epoch(id) } else { Ok(()) }
    }

    /// No replica is to take the place of that one any more.
    fn take_over_from_none(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let replicas = self.shard_mut(id)?.replicas.iter_mut();
        replicas.filter(|r| r.replaces() == Some(placement)).for_each(|r| r.predecessor = None);
        Ok(())
    }

    /// The one moment of a split or merge: `parents` close, `children` serve, all under epochs above every
    /// parent's (O8).
    pub fn switch(&mut self, parents: &[ShardId], children: &[ShardId]) -> Result<(), EditError> {
        let epoch = self.serving_epoch(parents)?;
        for id in children {
            let child = self.shard_mut(*id)?;
            if *child.stage() != Stage::Forming(children.into()) {
                return Err(EditError::WrongStage { shard: *id, stage: child.stage().clone() });
            }
            child.lineage.turn(Stage::Serving);
            child.epoch = child.epoch.max(epoch).next();
        }
        for id in parents {
            let parent = self.shard_mut(*id)?;
            parent.lineage.turn(Stage::Closing(children.into()));
            parent.epoch = parent.epoch.next();
            parent.leave_to_children();
        }
        Ok(())
    }

    /// Another member of the in-sync set of a shard that closes is its closer, under a new epoch.
    pub fn name_closer(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        let shard = self.shard(id)?;
        if !matches!(shard.stage(), Stage::Closing(_)) {
            return Err(EditError::WrongStage { shard: id, stage: shard.stage().clone() });
        }
        if !self.replica_mut(id, placement)?.in_sync {
            return Err(EditError::NotInSync { shard: id, placement });
        }
        self.give_lead(id, placement)?;
        self.configure(id)?;
        self.raise_epoch(id)
    }

    fn give_lead(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        for replica in &mut self.shard_mut(id)?.replicas {
            let leads = replica.placement == placement;
            replica.role = if leads { Role::Leader } else { replica.role.without_lead() };
        }
        Ok(())
    }

    /// The closer of a shard has asked for an in-sync set without that replica.
    pub fn close_without(&mut self, id: ShardId, placement: PlacementId) -> Result<(), EditError> {
        self.take_out(id, placement)
    }

    /// The beginning of the end of a partition: it answers no more, its replicas unload, and it goes with the
    /// last of them.
    pub fn close(&mut self, id: ShardId) -> Result<(), EditError> {
        self.serving_epoch(&[id])?;
        let shard = self.shard_mut(id)?;
        shard.lineage.turn(Stage::Removing);
        shard.epoch = shard.epoch.next();
        shard.leave_whole();
        Ok(())
    }

    /// A durable shard goes on without some of its copies: under a later epoch, by which its copies can be told from those. A
    /// change of leader in the same commit does that already.
    pub fn go_on_without(&mut self, id: ShardId) -> Result<(), EditError> {
        let before = self.base.shards.get(&id).map(|shard| shard.epoch);
        let has_changed = before != Some(self.shard(id)?.epoch) || planted::is(Planted::EpochOfSurvivors);
        if has_changed { Ok(()) } else { self.raise_epoch(id) }
    }

    fn raise_epoch(&mut self, id: ShardId) -> Result<(), EditError> {
        let shard = self.shard_mut(id)?;
        shard.epoch = shard.epoch.next();
        Ok(())
    }

    /// The difference that the changes make, as the commit after the base map named `transaction`.
    pub fn commit(self, transaction: TransactionId) -> MapDiff {
        let from = self.base.generation;
        let to = crate::base::id::Generation { sequence: from.sequence + 1, transaction };
        let (changed, removed): (Vec<_>, Vec<_>) =
            self.touched.into_iter().partition(|(_, shard)| shard.is_some());
        MapDiff {
            keyspace: self.base.keyspace.clone(),
            from,
            to,
            parent: Some(from),
            changed: changed.into_iter().filter_map(|(_, shard)| shard).collect(),
            removed: removed
                .into_iter()
                .map(|(id, _)| id)
                .filter(|id| self.base.shards.contains_key(id))
                .collect(),
            next_shard: self.next_shard,
            next_placement: self.next_placement,
        }
    }
}
