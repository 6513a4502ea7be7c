//! Splits, merges, and keys with a shard of their own, as a person asks for them.
//!
//! Children begin on the nodes of their parents: there the data is, and the planner spreads them after.

use super::{AdminError, Intent, SplitAt};
use crate::cluster::{Cluster, KeyspaceState, Moment};
use crate::id::ShardId;
use crate::key::{HashRange, Key, KeyRange};
use crate::map::{Role, Shard};
use crate::name::{KeyspaceName, NodeId};
use crate::plan::Change;
use crate::sharding::{Bounds, Position};

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
            (Bounds::Hashes(range), SplitAt::Points(points)) => cut_points(range, &points)?,
            (Bounds::Hashes(range), SplitAt::Middle) => cut_points(range, &[middle(range)?])?,
            (bounds @ (Bounds::Slot(_) | Bounds::Name(_)), _) => return Err(whole(keyspace, bounds)),
            (Bounds::Keys(_), SplitAt::Points(_)) | (Bounds::Hashes(_), SplitAt::Keys(_)) => {
                let sharding = keyspace.record.keyspace.sharding;
                return Err(invalid(
                    format!("keyspace {name} is sharded by {sharding}"),
                    "cut key ranges at keys and hash ranges at points",
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
        self.planned(at, by, name, Intent::new(summary, vec![]), vec![change])
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
        let bounds = joined(keyspace, parents)?;
        self.refuse_under_way(keyspace, &[left, right])?;
        let least = keyspace.record.keyspace.resharding.min_shards as usize;
        let serving = keyspace.map.shards().filter(|shard| shard.is_serving()).count();
        if serving - 1 < least {
            return Err(AdminError::Refused {
                problem: format!("keyspace {name} would have {} shards", serving - 1),
                way_out: format!("its min_shards is {least}: lower it first"),
            });
        }
        // The heavier one stays where it is; the other's data moves.
        let bytes = |shard: &Shard| keyspace.leader_load(shard).map_or(0, |load| load.size_bytes);
        let [left_shard, right_shard] = parents;
        let heavier = if bytes(right_shard) > bytes(left_shard) { right_shard } else { left_shard };
        let nodes = self.homes(at, heavier)?;
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
        let parts = match (&shard.bounds, position) {
            (Bounds::Keys(range), Position::Key(partition)) => around_key(range, partition)?,
            (Bounds::Hashes(range), Position::Point(point)) => around_point(range, point)?,
            (bounds, _) => return Err(whole(keyspace, bounds)),
        };
        if parts.len() == 1 {
            let summary = format!("key {key:?} of keyspace {name} has shard {} for itself already", shard.id);
            return Ok(Intent::new(summary, vec![]));
        }
        let summary = format!("isolate key {key:?} of keyspace {name}: split shard {}", shard.id);
        self.split_into(at, by, keyspace, shard, parts, summary)
    }

    /// Refuses what would end in the middle of another change of the same shard.
    fn refuse_under_way(&self, keyspace: &KeyspaceState, ids: &[ShardId]) -> Result<(), AdminError> {
        let busy = |id: &&ShardId| {
            keyspace.map.shards().any(|s| !s.is_serving() && s.parents.contains(id) && s.id != **id)
        };
        match ids.iter().find(busy) {
            None => Ok(()),
            Some(id) => Err(AdminError::Conflict {
                problem: format!("shard {id} is being split or merged already"),
                way_out: "wait until that has ended".into(),
            }),
        }
    }

    /// The nodes of a shard, the leader's first, all of which must be able to take a child.
    fn homes(&self, at: Moment, shard: &Shard) -> Result<Vec<NodeId>, AdminError> {
        let mut replicas: Vec<_> = shard.staying().collect();
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
    /// What the shard's leader last reported.
    pub(in crate::cluster) fn leader_load(&self, shard: &Shard) -> Option<&crate::load::Load> {
        let leader = shard.leader().or_else(|| shard.live().next())?;
        self.observed.get(&leader.placement)?.load.as_deref()
    }
}

fn whole(keyspace: &KeyspaceState, bounds: &Bounds) -> AdminError {
    let way_out = match bounds {
        Bounds::Slot(_) => "a fixed number of shards changes only by resharding the whole keyspace",
        Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => {
            "a named partition is whole: register several partitions and let the service divide its keys"
        }
    };
    let settings = &keyspace.record.keyspace;
    AdminError::Refused {
        problem: format!("shards of keyspace {} ({}) have fixed bounds", settings.name, settings.sharding),
        way_out: way_out.into(),
    }
}

fn median(keyspace: &KeyspaceState, shard: &Shard) -> Result<Key, AdminError> {
    let reported = keyspace.leader_load(shard).and_then(|load| load.median.clone());
    reported.ok_or_else(|| AdminError::Refused {
        problem: format!("the leader of shard {} has reported no median key", shard.id),
        way_out: "say at which keys to cut".into(),
    })
}

fn middle(range: &HashRange) -> Result<u64, AdminError> {
    if range.first == range.last {
        let problem = format!("the range {range} is a single point");
        return Err(AdminError::Refused { problem, way_out: "it cannot be cut any further".into() });
    }
    Ok(range.first + (range.last - range.first) / 2 + 1)
}

/// The range cut at keys that lie inside it, in order.
fn cut_keys(range: &KeyRange, keys: &[Key]) -> Result<Vec<Bounds>, AdminError> {
    if keys.is_empty() {
        return Err(invalid("no key to cut at was given".into(), "give one or more, or none for the median"));
    }
    let mut parts = Vec::with_capacity(keys.len() + 1);
    let mut begin = &range.begin;
    for key in keys {
        if key <= begin || !range.contains(key.as_bytes()) {
            return Err(invalid(
                format!("key {key:?} is not above {begin:?} and inside {range}"),
                "give keys in order, each once, that lie inside the shard and not at its begin",
            ));
        }
        parts.push(Bounds::Keys(KeyRange { begin: begin.clone(), end: key.clone() }));
        begin = key;
    }
    parts.push(Bounds::Keys(KeyRange { begin: begin.clone(), end: range.end.clone() }));
    Ok(parts)
}

/// The range cut at points that lie inside it, in order.
fn cut_points(range: &HashRange, points: &[u64]) -> Result<Vec<Bounds>, AdminError> {
    if points.is_empty() {
        return Err(invalid(
            "no point to cut at was given".into(),
            "give one or more, or none for the middle",
        ));
    }
    let mut parts = Vec::with_capacity(points.len() + 1);
    let mut first = range.first;
    for point in points {
        if *point <= first || *point > range.last {
            return Err(invalid(
                format!("point {point:016x} is not above {first:016x} and inside {range}"),
                "give points in order, each once, that lie inside the shard and not at its begin",
            ));
        }
        parts.push(Bounds::Hashes(HashRange { first, last: point - 1 }));
        first = *point;
    }
    parts.push(Bounds::Hashes(HashRange { first, last: range.last }));
    Ok(parts)
}

pub(super) fn around_key(range: &KeyRange, partition: &[u8]) -> Result<Vec<Bounds>, AdminError> {
    let long = || invalid("the key is as long as a key can be".into(), "cut beside it instead");
    let key = Key::new(partition).map_err(|_| long())?;
    let after = key.successor().ok_or_else(long)?;
    let inside = |cut: &Key| *cut > range.begin && (range.end.is_empty() || *cut < range.end);
    let cuts: Vec<_> = [key, after].into_iter().filter(inside).collect();
    if cuts.is_empty() { Ok(vec![Bounds::Keys(range.clone())]) } else { cut_keys(range, &cuts) }
}

pub(super) fn around_point(range: &HashRange, point: u64) -> Result<Vec<Bounds>, AdminError> {
    let after = point.checked_add(1).filter(|after| *after <= range.last);
    let cuts: Vec<_> = Some(point).filter(|p| *p > range.first).into_iter().chain(after).collect();
    if cuts.is_empty() { Ok(vec![Bounds::Hashes(*range)]) } else { cut_points(range, &cuts) }
}

/// The bounds of both, which must be neighbours in this order.
fn joined(keyspace: &KeyspaceState, [left, right]: [&Shard; 2]) -> Result<Bounds, AdminError> {
    match (&left.bounds, &right.bounds) {
        (Bounds::Keys(a), Bounds::Keys(b)) if a.end == b.begin && !a.end.is_empty() => {
            Ok(Bounds::Keys(KeyRange { begin: a.begin.clone(), end: b.end.clone() }))
        }
        (Bounds::Hashes(a), Bounds::Hashes(b)) if a.last.checked_add(1) == Some(b.first) => {
            Ok(Bounds::Hashes(HashRange { first: a.first, last: b.last }))
        }
        (Bounds::Keys(_) | Bounds::Hashes(_), _) => Err(invalid(
            format!("shard {} does not begin where shard {} ends", right.id, left.id),
            "name two neighbours, the lower one first",
        )),
        (bounds @ (Bounds::Slot(_) | Bounds::Name(_)), _) => Err(whole(keyspace, bounds)),
    }
}
