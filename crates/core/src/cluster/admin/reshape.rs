//! Splits, merges, and keys with a shard of their own, as a person asks for them.
//!
//! Children begin on the nodes of their parents: there the data is, and the planner spreads them after.

use super::{AdminError, Intent, SplitAt};
use crate::base::id::ShardId;
use crate::base::name::{KeyspaceName, NodeId};
use crate::cluster::{Cluster, KeyspaceState, Moment};
use crate::keyspace::key::Key;
use crate::keyspace::map::{Role, Shard};
use crate::keyspace::sharding::Bounds;
use crate::keyspace::sharding::geometry::{around, cut_keys, cut_points, joined, lowest, middle};
use crate::keyspace::{Keyspace, Mode};
use crate::plan::Change;

/// That the planner merges shards again which come from a split and carry little, also those of a split that a person made.
fn merged_again(keyspace: &KeyspaceState, count: usize) -> Option<String> {
    let Keyspace { name, mode, resharding, .. } = &keyspace.record.keyspace;
    let may_merge =
        *mode == Mode::Automatic && keyspace.may_reshape() && count > resharding.min_shards as usize;
    may_merge.then(|| {
        format!(
            "the planner merges the new shards again if they carry little for {} s: `partage keyspace update {name} --min-shards \
             {count}` keeps them",
            resharding.window_ms / 1_000
        )
    })
}

fn invalid(problem: String, way_out: impl Into<String>) -> AdminError {
    AdminError::Invalid { problem, way_out: way_out.into() }
}

impl Cluster {
    pub(super) fn split_shard(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        id: ShardId,
        cuts: SplitAt,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let shard = keyspace.serving(id)?;
        let parts = match (&shard.bounds, cuts) {
            (Bounds::Keys(range), SplitAt::Keys(keys)) => cut_keys(range, &keys)?,
            (Bounds::Keys(range), SplitAt::Middle) => cut_keys(range, &[median(keyspace, shard)?])?,
            (Bounds::Hashes(range), SplitAt::Points(points)) => cut_points(*range, &points)?,
            (Bounds::Hashes(range), SplitAt::Middle) => cut_points(*range, &[middle(*range)?])?,
            (bounds @ (Bounds::Slot(_) | Bounds::Name(_)), _) => return Err(whole(keyspace, bounds)),
            (Bounds::Keys(_), SplitAt::Points(_)) | (Bounds::Hashes(_), SplitAt::Keys(_)) => {
                let sharding = keyspace.record.keyspace.sharding;
                return Err(invalid(
                    format!("keyspace {name} is sharded by {sharding}"),
                    "cut key ranges at keys (--at KEY) and hash ranges at points (--at-point POINT)",
                ));
            }
        };
        let summary = format!("split shard {id} of keyspace {name} into {}", parts.len());
        self.split_into(at, by, keyspace, shard, parts, summary)
    }

    fn split_into(
        &self,
        at: Moment,
        by: &str,
        keyspace: &KeyspaceState,
        shard: &Shard,
        parts: Vec<Bounds>,
        summary: String,
    ) -> Result<Intent, AdminError> {
        let name = &keyspace.record.keyspace.name;
        self.refuse_under_way(keyspace, &[shard.id])?;
        let serving = keyspace.map.shards().filter(|shard| shard.is_serving()).count();
        let (count, most) = (serving - 1 + parts.len(), keyspace.record.keyspace.resharding.max_shards);
        if count > most as usize {
            return Err(AdminError::Refused {
                problem: format!("keyspace {name} would have {count} shards"),
                way_out: format!("its max_shards is {most}: raise it first"),
            });
        }
        let nodes = self.homes(at, shard)?;
        let children = parts.into_iter().map(|bounds| (bounds, nodes.clone())).collect();
        let change = Change::Split { shard: shard.id, children };
        let warnings = merged_again(keyspace, count).into_iter().collect();
        self.planned(at, by, name, Intent { warnings, ..Intent::new(summary, vec![]) }, vec![change])
    }

    pub(super) fn merge_shards(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        left: ShardId,
        right: ShardId,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let parents = [keyspace.serving(left)?, keyspace.serving(right)?];
        let bounds = joined_in_order(keyspace, parents)?;
        self.refuse_under_way(keyspace, &[left, right])?;
        let least = keyspace.record.keyspace.resharding.min_shards as usize;
        let serving = keyspace.map.shards().filter(|shard| shard.is_serving()).count();
        if serving - 1 < least {
            return Err(AdminError::Refused {
                problem: format!("keyspace {name} would have {} shards", serving - 1),
                way_out: format!("its min_shards is {least}: lower it first"),
            });
        }
        let nodes = self.homes(at, keyspace.heaviest(&parents).unwrap_or(parents[0]))?;
        let summary = format!("merge shards {left} and {right} of keyspace {name}");
        let change = Change::Merge { shards: vec![left, right], child: (bounds, nodes) };
        self.planned(at, by, name, Intent::new(summary, vec![]), vec![change])
    }

    pub(super) fn isolate_key(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        key: &Key,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let settings = &keyspace.record.keyspace;
        let position = settings.sharding.position(settings.partition_key, key.as_bytes());
        let Some(shard) = keyspace.map.find(key.as_bytes()) else {
            return Err(AdminError::Refused {
                problem: format!("no shard of keyspace {name} holds {key:?}"),
                way_out: "its partition is not registered".into(),
            });
        };
        let parts = match &shard.bounds {
            Bounds::Keys(_) | Bounds::Hashes(_) => around(&shard.bounds, position)?,
            Bounds::Slot(_) | Bounds::Name(_) => return Err(whole(keyspace, &shard.bounds)),
        };
        if parts.len() == 1 {
            let summary = format!("key {key:?} of keyspace {name} has shard {} for itself already", shard.id);
            return Ok(Intent::new(summary, vec![]));
        }
        let summary = format!("isolate key {key:?} of keyspace {name}: split shard {}", shard.id);
        self.split_into(at, by, keyspace, shard, parts, summary)
    }

    /// Refuses what would end in the middle of another change of the same shard.
    pub(super) fn refuse_under_way(
        &self,
        keyspace: &KeyspaceState,
        ids: &[ShardId],
    ) -> Result<(), AdminError> {
        match ids.iter().find(|id| !keyspace.children_under_way(**id).is_empty()) {
            None => Ok(()),
            Some(id) => Err(AdminError::Conflict {
                problem: format!("shard {id} is being split or merged already"),
                way_out: "wait until that has ended".into(),
            }),
        }
    }

    /// The nodes of a shard, the leader's first, all of which must be able to take a child.
    pub(super) fn homes(&self, at: Moment, shard: &Shard) -> Result<Vec<NodeId>, AdminError> {
        let mut replicas: Vec<_> = shard.members().collect();
        replicas.sort_by_key(|r| (r.role != Role::Leader, r.placement));
        let nodes: Vec<_> = replicas.into_iter().map(|r| r.node.clone()).collect();
        if nodes.is_empty() {
            return Err(AdminError::Conflict {
                problem: format!("shard {} is on no node", shard.id),
                way_out: "wait until it is placed".into(),
            });
        }
        match nodes.iter().find_map(|node| Some((node, self.closed(at, node)?))) {
            None => Ok(nodes),
            Some((node, why)) => Err(AdminError::Refused {
                problem: format!("children of shard {} would begin on node {node}, but {why}", shard.id),
                way_out: format!("move the shard away from {node} first"),
            }),
        }
    }
}

impl KeyspaceState {
    /// Of shards that are to be one, that which stays where it is; the data of the others moves.
    pub(super) fn heaviest<'a>(&self, parents: &[&'a Shard]) -> Option<&'a Shard> {
        let bytes = |shard: &&&Shard| self.size_bytes(shard).unwrap_or(0);
        parents.iter().rev().max_by_key(bytes).copied()
    }

    /// What the shard's leader last reported.
    pub(in crate::cluster) fn leader_load(&self, shard: &Shard) -> Option<&crate::node::load::Load> {
        let leader = shard.leader().or_else(|| shard.live().next())?;
        self.observed.get(&leader.placement)?.load()
    }
}

fn whole(keyspace: &KeyspaceState, bounds: &Bounds) -> AdminError {
    let way_out = match bounds {
        Bounds::Slot(_) => format!(
            "change the number of all its shards at once (partage keyspace update {} --shards N)",
            keyspace.record.keyspace.name
        ),
        Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => {
            "a named partition is whole: register several partitions and let the service divide its keys"
                .into()
        }
    };
    let settings = &keyspace.record.keyspace;
    AdminError::Refused {
        problem: format!("shards of keyspace {} ({}) have fixed bounds", settings.name, settings.sharding),
        way_out,
    }
}

fn median(keyspace: &KeyspaceState, shard: &Shard) -> Result<Key, AdminError> {
    let reported = keyspace.leader_load(shard).and_then(|load| load.profile.median().cloned());
    reported.ok_or_else(|| AdminError::Refused {
        problem: format!("the leader of shard {} has reported no median key", shard.id),
        way_out: "say at which keys to cut (--at KEY)".into(),
    })
}

/// The bounds of both, which must be neighbours in this order.
fn joined_in_order(keyspace: &KeyspaceState, [left, right]: [&Shard; 2]) -> Result<Bounds, AdminError> {
    let bounds = [&left.bounds, &right.bounds];
    if let Some(fixed) = bounds.into_iter().find(|b| matches!(b, Bounds::Slot(_) | Bounds::Name(_))) {
        return Err(whole(keyspace, fixed));
    }
    let in_order = lowest(bounds[0]) < lowest(bounds[1]);
    joined(&bounds).filter(|_| in_order).ok_or_else(|| {
        invalid(
            format!("shard {} does not begin where shard {} ends", right.id, left.id),
            "name two neighbours, the lower one first",
        )
    })
}
