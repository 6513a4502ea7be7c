//! How far a change of a plan has got, read from the map.

use super::KeyspaceState;
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::NodeId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Shard, Stage};
use crate::keyspace::sharding::Bounds;
use crate::plan::{Change, Progress};

/// Whether the map shows that a change has begun, or is done.
pub(super) fn has_begun(change: &Change, keyspace: &KeyspaceState) -> bool {
    let map = &keyspace.map;
    let is_gone = |shard: &Shard, placement: &PlacementId| {
        shard.replica(*placement).is_none_or(|replica| !replica.state.is_staying())
    };
    let comes = |shard: &Shard, node: &NodeId, to_replace: Option<&PlacementId>| {
        let replaces =
            |r: &Replica| to_replace.is_none_or(|old| r.replaces() == Some(*old) || is_gone(shard, old));
        shard.staying().any(|r| r.node == *node && replaces(r))
    };
    let is_formed = |parents: &[ShardId], children: &[&Bounds]| {
        let is_there = |bounds: &&Bounds| map.shards().any(|shard| shard.bounds == **bounds);
        parents.iter().any(|id| !keyspace.children_under_way(*id).is_empty())
            || parents.iter().all(|id| map.shard(*id).is_none()) && children.iter().all(is_there)
    };
    match change {
        Change::Add { shard, node } => map.shard(*shard).is_some_and(|shard| comes(shard, node, None)),
        Change::Move { shard, from, to } => {
            map.shard(*shard).is_some_and(|shard| comes(shard, to, Some(from)))
        }
        Change::Remove { shard, placement } => {
            map.shard(*shard).is_some_and(|shard| is_gone(shard, placement))
        }
        Change::Lead { shard, placement } => {
            let leader = map.shard(*shard).and_then(Shard::leader);
            leader.is_some_and(|leader| leader.placement == *placement)
        }
        Change::Split { shard, children } => {
            is_formed(&[*shard], &children.iter().map(|(bounds, _)| bounds).collect::<Vec<_>>())
        }
        Change::Merge { shards, child: (bounds, _) } => is_formed(shards, &[bounds]),
    }
}

/// How far a change that was begun has got.
pub(super) fn progress_of(change: &Change, keyspace: &KeyspaceState) -> Progress {
    let map = &keyspace.map;
    let gone = || Progress::Dropped("the shard was split, merged or removed".to_owned());
    match change {
        Change::Add { shard, node } => map.shard(*shard).map_or_else(gone, |shard| arrival(shard, node)),
        Change::Move { shard, from, to } => match map.shard(*shard) {
            None => gone(),
            Some(shard) if shard.replica(*from).is_none() => arrival(shard, to),
            Some(shard) if stays_beside(shard, *from, to) => {
                Progress::Dropped(format!("replica {from} has become a member meanwhile, and stays"))
            }
            Some(shard) if arrival(shard, to) == Progress::Done => {
                // The new one has taken over. A node that keeps the old one holds up no plan (L4).
                let old = shard.replica(*from);
                if old.is_some_and(|r| keyspace.is_left_behind(r)) {
                    Progress::Done
                } else {
                    Progress::Started
                }
            }
            Some(shard) => arrival(shard, to),
        },
        Change::Remove { shard, placement } => {
            match map.shard(*shard).and_then(|shard| shard.replica(*placement)) {
                Some(replica) if keyspace.is_left_behind(replica) => {
                    Progress::Dropped(format!("{} does not let go of it", replica.node))
                }
                Some(_) => Progress::Started,
                None => Progress::Done,
            }
        }
        Change::Lead { shard, placement } => match map.shard(*shard).and_then(Shard::leader) {
            Some(leader) if leader.placement == *placement => Progress::Done,
            _ => Progress::Dropped("another replica leads by now".to_owned()),
        },
        Change::Split { shard, .. } => family_progress(keyspace, &[*shard]),
        Change::Merge { shards, .. } => family_progress(keyspace, shards),
    }
}

/// Whether both stay, and neither takes the other's place: a read replica that was to be moved was made a member.
fn stays_beside(shard: &Shard, old: PlacementId, to: &NodeId) -> bool {
    let mut staying = shard.staying();
    shard.replica(old).is_some_and(|old| old.state.is_staying())
        && staying.any(|r| r.node == *to && r.placement != old && r.replaces() != Some(old))
}

fn arrival(shard: &Shard, node: &NodeId) -> Progress {
    match shard.replicas.iter().find(|r| r.node == *node && r.state.is_staying()).map(|r| r.state) {
        Some(ReplicaState::Live) => Progress::Done,
        Some(_) => Progress::Started,
        None => Progress::Dropped(format!("the replica on {node} did not come to serve")),
    }
}

fn family_progress(keyspace: &KeyspaceState, parents: &[ShardId]) -> Progress {
    let parent = |id: &ShardId| keyspace.map.shard(*id);
    let left_behind = |shard: &&Shard| {
        let mut replicas = shard.replicas.iter();
        matches!(shard.stage(), Stage::Closing(_)) && replicas.all(|r| keyspace.is_left_behind(r))
    };
    let there = parents.iter().filter_map(parent).filter(|shard| !left_behind(shard));
    let stages: Vec<_> = there.map(|shard| shard.stage()).collect();
    let forming = || parents.iter().any(|id| !keyspace.children_under_way(*id).is_empty());
    match stages.as_slice() {
        [] => Progress::Done,
        stages if stages.iter().any(|stage| matches!(stage, Stage::Closing(_))) => Progress::Started,
        _ if forming() => Progress::Started,
        _ => Progress::Dropped(match keyspace.overdue.failed_child_of(parents) {
            Some(why) => format!("a child could not be loaded ({why}); the parents go on"),
            None => "a child could not be loaded; the parents go on".to_owned(),
        }),
    }
}
