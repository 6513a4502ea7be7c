//! What is on its way: one row for each replica that is not yet, or not any more, live.
//!
//! A move has one row at any time, in one of three stages:
//!
//! | stage          | the map says                          | it waits for                                    |
//! |----------------|---------------------------------------|-------------------------------------------------|
//! | loading        | the new replica is in `Load`          | its node to load it, or its siblings, or its turn |
//! | handing over   | the old replica is in `Unload`        | its node to let go, then the new one to serve   |
//! | dropping       | the old replica is in `UnloadFinal`   | its node to delete its copy                     |
//!
//! A first load, a repair and the child of a split come from nowhere; a removed replica goes nowhere. See
//! [`crate::plan::handover`] for what follows when.

use super::admin::AdminError;
use super::status::Since;
use super::{Cluster, KeyspaceState, Moment};
use crate::base::count::counted;
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Shard, Stage};
use crate::node::Health;
use crate::node::exchange::{Failure, Phase};
use std::fmt;

/// How far a move is: the table of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStage {
    /// The new replica prepares, in `Load`.
    Loading,
    /// The old replica lets go, in `Unload`.
    HandingOver,
    /// The old replica is deleted, in `UnloadFinal`.
    Dropping,
}

impl MoveStage {
    /// Every stage, in the order of a move.
    pub const ALL: [MoveStage; 3] = [MoveStage::Loading, MoveStage::HandingOver, MoveStage::Dropping];
}

impl fmt::Display for MoveStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            MoveStage::Loading => "loading",
            MoveStage::HandingOver => "handing over",
            MoveStage::Dropping => "dropping",
        })
    }
}

/// The last step of a replica that is not live. Not stored.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// When it was taken, in milliseconds of Unix time.
    since_ms: u64,
    /// The node whose replica has taken its place. The map forgets that as soon as that one serves.
    successor: Option<NodeId>,
}

/// A replica that comes, goes or moves, as one row of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRow {
    /// The keyspace of the shard whose replica moves.
    pub keyspace: KeyspaceName,
    /// The shard whose replica comes or goes.
    pub shard: ShardId,
    /// The node that it leaves; none for a first load, a repair, and a child of a split or merge.
    pub from: Option<NodeId>,
    /// The node that takes over; none when no node does.
    pub to: Option<NodeId>,
    /// The stage that the move is in.
    pub stage: MoveStage,
    /// Since when it is in that stage.
    pub since: Since,
    /// What it waits for, as a part of a sentence: "n2 to load it".
    pub waits_for: String,
}

impl Cluster {
    /// What is on its way, in the order of keyspaces and shards: at most `limit` rows, of one keyspace or of all.
    pub fn moves(
        &self,
        at: Moment,
        of: Option<&KeyspaceName>,
        limit: usize,
    ) -> Result<Vec<MoveRow>, AdminError> {
        if let Some(name) = of {
            self.keyspace(name)?;
        }
        let keyspaces = self.keyspaces.by_name.iter().filter(|(name, _)| of.is_none_or(|of| of == *name));
        let rows = keyspaces.flat_map(|(name, keyspace)| {
            let shards = keyspace.queue.unsettled.iter().filter_map(move |id| keyspace.map.shard(*id));
            let replicas = shards.flat_map(|shard| shard.replicas.iter().map(move |r| (shard, r)));
            replicas.filter_map(move |(shard, replica)| self.move_row(at, name, keyspace, shard, replica))
        });
        Ok(rows.take(limit).collect())
    }

    fn move_row(
        &self,
        at: Moment,
        name: &KeyspaceName,
        keyspace: &KeyspaceState,
        shard: &Shard,
        replica: &Replica,
    ) -> Option<MoveRow> {
        let here = || Some(replica.node.clone());
        let step = keyspace.stepped.get(&replica.placement);
        let successor = match step {
            Some(step) => step.successor.clone(),
            // Begun under a coordinator before this one: the present leader is the best guess.
            None => shard.leader().map(|leader| leader.node.clone()),
        };
        let (from, to, stage) = match replica.state {
            ReplicaState::Live => return None,
            ReplicaState::Load => {
                let old = replica.replaces().and_then(|old| shard.replica(old)).map(|old| old.node.clone());
                (old, here(), MoveStage::Loading)
            }
            ReplicaState::Unload => (here(), successor, MoveStage::HandingOver),
            ReplicaState::UnloadFinal => (here(), successor, MoveStage::Dropping),
        };
        Some(MoveRow {
            keyspace: name.clone(),
            shard: shard.id,
            from,
            to,
            stage,
            since: self.since(at, step.map(|step| step.since_ms)),
            waits_for: self.waits_for(at, keyspace, shard, replica),
        })
    }

    fn waits_for(&self, at: Moment, keyspace: &KeyspaceState, shard: &Shard, replica: &Replica) -> String {
        let node = &replica.node;
        let health = self.members.get(node).map(|node| node.signs.health(at.now, &self.settings));
        let phase = keyspace.phase_of(replica.placement);
        if let Some(health) = health.filter(|health| *health != Health::Up) {
            return format!("{node}, which is {health}");
        }
        match (replica.state, phase) {
            (_, Some(Phase::Failed(failure))) => {
                let Failure { attempts, reason, .. } = &**failure;
                format!("{node} to try again: it has failed {} ({reason})", counted(*attempts, "time"))
            }
            (ReplicaState::Load, Some(Phase::Ready)) => turn(shard),
            (ReplicaState::Load, Some(Phase::Loading)) => format!("{node} to load it"),
            (ReplicaState::Load, _) => format!("{node} to begin loading it"),
            (ReplicaState::Unload, Some(Phase::Unloaded | Phase::Dropped)) => match shard.leader() {
                Some(leader) => format!("{} to serve it", leader.node),
                None => "a leader that serves".to_owned(),
            },
            (ReplicaState::Unload, _) => format!("{node} to let go of it"),
            (ReplicaState::UnloadFinal, _) => format!("{node} to delete its copy"),
            (ReplicaState::Live, _) => "nothing".to_owned(),
        }
    }
}

/// What a replica waits for that is ready.
fn turn(shard: &Shard) -> String {
    match shard.stage() {
        Stage::Forming(_) => "its siblings to be ready".to_owned(),
        Stage::Serving | Stage::Closing(_) | Stage::Removing => "its turn to take over".to_owned(),
    }
}

impl KeyspaceState {
    /// Keeps `stepped`: the shard was `old`, and is what the map says.
    pub(super) fn note_steps(&mut self, at: Moment, id: ShardId, old: Option<&Shard>) {
        let state = |shard: Option<&Shard>, placement: PlacementId| {
            shard.and_then(|shard| shard.replica(placement)).map(|replica| replica.state)
        };
        for replica in old.into_iter().flat_map(|shard| &shard.replicas) {
            if state(self.map.shard(id), replica.placement).is_none() {
                self.stepped.remove(&replica.placement);
            }
        }
        for replica in self.map.shard(id).into_iter().flat_map(|shard| &shard.replicas) {
            let placement = replica.placement;
            match replica.state {
                ReplicaState::Live => {
                    self.stepped.remove(&placement);
                }
                now if state(old, placement) != Some(now) => {
                    let successors = old.into_iter().flat_map(|shard| &shard.replicas);
                    let successor =
                        successors.filter(|r| r.replaces() == Some(placement)).map(|r| r.node.clone()).next();
                    let known = || self.stepped.get(&placement)?.successor.clone();
                    let successor = successor.or_else(known);
                    self.stepped.insert(placement, Step { since_ms: at.wall_ms, successor });
                }
                ReplicaState::Load | ReplicaState::Unload | ReplicaState::UnloadFinal => {}
            }
        }
    }
}
