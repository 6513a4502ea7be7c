//! Keyspaces come, change and go.

use super::{AdminError, Effect, Intent, KeyspaceChanges, Presplit, tables};
use crate::base::count::counted;
use crate::base::id::TransactionId;
use crate::base::name::{KeyspaceName, PartitionName};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::cluster::keyspaces::Keyspaces;
use crate::cluster::members::Members;
use crate::cluster::plans::Plans;
use crate::cluster::recovered::FromMap;
use crate::cluster::{Cluster, ClusterRecord, KeyspaceRecord, KeyspaceState, Moment, Outbox, Write};
use crate::keyspace::key::{HashRange, KeyRange};
use crate::keyspace::map::{MapDiff, ShardMap};
use crate::keyspace::sharding::presplit::{self, PresplitError};
use crate::keyspace::sharding::{Bounds, Sharding, Slot};
use crate::keyspace::{Constraint, Keyspace, KeyspaceKind, Ownership};
use crate::limits;
use crate::node::lease::GrantedLease;
use crate::plan::check;
use std::collections::BTreeSet;

impl Cluster {
    pub(super) fn create_keyspace(
        &self,
        at: Moment,
        transaction: TransactionId,
        keyspace: Keyspace,
        presplit: Presplit,
        ahead: bool,
    ) -> Result<Intent, AdminError> {
        let name = keyspace.name.clone();
        if self.keyspaces.by_name.contains_key(&name) {
            return Err(AdminError::KeyspaceExists(name));
        }
        if let Some((problem, way_out)) = self.quarantine(&name) {
            return Err(AdminError::Refused { problem, way_out });
        }
        if self.keyspaces.by_name.len() >= limits::KEYSPACES {
            return Err(AdminError::Refused {
                problem: format!("the cluster has {} keyspaces, the most it can have", limits::KEYSPACES),
                way_out: "delete one first, or put several tenants in one keyspace".into(),
            });
        }
        self.check_name_is_free(at, &keyspace)?;
        if keyspace.ownership == Ownership::Replicated && keyspace.kind != KeyspaceKind::Table {
            return Err(AdminError::Refused {
                problem: format!(
                    "keyspace {name} would be replicated, and only tables replicate their shards"
                ),
                way_out: "choose exclusive or eventual, or create a table".into(),
            });
        }
        keyspace.sharding.check()?;
        let mut warnings = self.check_settings(&keyspace, &Constraint::default(), ahead)?;
        let bounds = first_bounds(keyspace.sharding, presplit)?;
        let most = keyspace.resharding.max_shards as usize;
        if bounds.len() > most {
            return Err(AdminError::Invalid {
                problem: format!("keyspace {name} would begin with {} shards", bounds.len()),
                way_out: format!("its max_shards is {most}: raise it or ask for fewer"),
            });
        }
        let empty = ShardMap::empty(name.clone(), keyspace.sharding, keyspace.partition_key);
        let empty = empty.empty_after(self.record.next_shard, self.record.next_placement);
        let mut edit = empty.edit();
        let count = bounds.len();
        bounds.into_iter().try_for_each(|bounds| edit.create_shard(bounds).map(drop))?;
        let diff = edit.commit(transaction);
        if let Some(finding) = check::diff(&empty, &diff).into_iter().next() {
            return Err(AdminError::Invalid {
                problem: format!("the first map of keyspace {name} would not be a map ({finding})"),
                way_out: "give other first shards".into(),
            });
        }
        let record = KeyspaceRecord {
            lost: self.record.lost_of(&keyspace.name),
            ..KeyspaceRecord::new(keyspace, at.wall_ms, self.record.next_shard)
        };
        warnings.extend(self.room_for_keyspace(at, None, &record, ahead)?);
        let effects = vec![Effect::Create(record, diff)];
        let summary = format!("create keyspace {name} with {}", counted(count, "shard"));
        Ok(Intent { warnings, ..Intent::new(summary, effects) })
    }

    /// After an exclusive keyspace was deleted, a worker that was cut off may own its keys for one lease more.
    fn check_name_is_free(&self, at: Moment, keyspace: &Keyspace) -> Result<(), AdminError> {
        let is_taken = |free: &&Millis| **free > at.now && !planted::is(Planted::FreeName);
        match self.keyspaces.deleted.get(&keyspace.name).filter(is_taken) {
            Some(free) if keyspace.ownership == Ownership::Exclusive => Err(AdminError::Conflict {
                problem: format!(
                    "a keyspace {} was deleted just now, and its last owners may not know yet",
                    keyspace.name
                ),
                way_out: format!("try again in {} ms", free.since(at.now)),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses settings that are wrong for any cluster, or that newly name what this one does not have.
    fn check_settings(
        &self,
        keyspace: &Keyspace,
        before: &Constraint,
        ahead: bool,
    ) -> Result<Vec<String>, AdminError> {
        keyspace.check()?;
        tables::check_settings(keyspace)?;
        self.policies.check(&keyspace.policy)?;
        Ok(self.check_pins(&keyspace.constraint, before, ahead)?.into_iter().collect())
    }

    pub(super) fn delete_keyspace(
        &self,
        transaction: TransactionId,
        name: &KeyspaceName,
    ) -> Result<Intent, AdminError> {
        if self.faults().quarantine.contains_key(name) {
            let summary = format!(
                "give up keyspace {name}, which is in quarantine; nodes keep what they have of it: delete that there"
            );
            return Ok(Intent::new(summary, vec![Effect::GiveUp(name.clone())]));
        }
        let keyspace = self.keyspace(name)?;
        let nodes: BTreeSet<_> =
            keyspace.map.shards().flat_map(|shard| &shard.replicas).map(|r| &r.node).collect();
        let shards = counted(keyspace.map.len(), "shard");
        let summary = match nodes.len() {
            0 => format!("delete keyspace {name} with {shards}, none of which is on a node"),
            count => {
                let nodes = counted(count, "node");
                format!("delete keyspace {name} with {shards} on {nodes}, and all that they hold")
            }
        };
        let mut edit = keyspace.map.edit();
        keyspace.map.shards().try_for_each(|shard| edit.remove_shard(shard.id))?;
        Ok(Intent::new(summary, vec![Effect::Drop(edit.commit(transaction))]))
    }

    pub(super) fn update_keyspace(
        &self,
        at: Moment,
        by: &str,
        name: &KeyspaceName,
        changes: KeyspaceChanges,
        ahead: bool,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        if changes == KeyspaceChanges::default() {
            return Err(AdminError::Invalid {
                problem: format!("nothing to change about keyspace {name} was given"),
                way_out: "give replicas, policy, mode, spread, constraint, throttle, resharding or shards"
                    .into(),
            });
        }
        let old = &keyspace.record.keyspace;
        if changes.dataset_replication.is_some() && old.kind != KeyspaceKind::Dataset {
            return Err(AdminError::Invalid {
                problem: format!("keyspace {name} is of kind {} and belongs to no dataset", old.kind),
                way_out: "give replicas instead".into(),
            });
        }
        let followed = changes.dataset_replication.map_or_else(|| old.clone(), |said| old.following(said));
        let new = Keyspace {
            replicas: changes.replicas.unwrap_or(followed.replicas),
            policy: changes.policy.unwrap_or_else(|| old.policy.clone()),
            mode: changes.mode.unwrap_or(old.mode),
            spread: changes.spread.unwrap_or(old.spread),
            constraint: changes.constraint.unwrap_or_else(|| old.constraint.clone()),
            throttle: changes.throttle.unwrap_or_else(|| old.throttle.clone()),
            resharding: changes.resharding.unwrap_or_else(|| old.resharding.clone()),
            ..followed
        };
        let mut warnings = self.check_settings(&new, &old.constraint, ahead)?;
        let mut told = differences(old, &new);
        let record = KeyspaceRecord { keyspace: new, ..keyspace.record.clone() };
        warnings.extend(self.room_for_keyspace(at, Some(&keyspace.record), &record, ahead)?);
        let effects = if told.is_empty() { vec![] } else { vec![Effect::Keyspace(record)] };
        let reshapes = match changes.shards {
            Some(to) => self.reshard(at, keyspace, to)?,
            None => vec![],
        };
        if let Some(to) = changes.shards.filter(|_| !reshapes.is_empty()) {
            told.push(format!("shards to {to}, by {} splits or merges", reshapes.len()));
        }
        if told.is_empty() {
            told.push("nothing differs".into());
        }
        let summary = format!("update keyspace {name}: {}", told.join(", "));
        let intent = Intent { warnings, ..Intent::new(summary, effects) };
        if reshapes.is_empty() { Ok(intent) } else { self.planned(at, by, name, intent, reshapes) }
    }
}

/// What an update changes, for people.
fn differences(old: &Keyspace, new: &Keyspace) -> Vec<String> {
    let mut told = Vec::new();
    if old.replicas != new.replicas {
        told.push(format!("replicas from {} to {}", old.replicas, new.replicas));
    }
    if old.policy != new.policy {
        told.push(format!("policy from {} to {}", old.policy, new.policy));
    }
    if old.mode != new.mode {
        told.push(format!("mode from {} to {}", old.mode, new.mode));
    }
    if old.spread != new.spread {
        told.push(format!("spread from {} to {}", old.spread, new.spread));
    }
    if let Some(said) = new.dataset_replication.filter(|said| old.dataset_replication != Some(*said)) {
        let kept = if new.replicas == said { "" } else { "; its replicas were set by hand and stay" };
        told.push(format!("replication {said} in the settings of its dataset{kept}"));
    }
    let others = [
        ("constraint", old.constraint != new.constraint),
        ("throttle", old.throttle != new.throttle),
        ("resharding", old.resharding != new.resharding),
    ];
    told.extend(others.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| what.to_owned()));
    told
}

/// The bounds of the first shards.
fn first_bounds(sharding: Sharding, presplit: Presplit) -> Result<Vec<Bounds>, AdminError> {
    let keys = |ranges: Vec<KeyRange>| ranges.into_iter().map(Bounds::Keys).collect();
    match (sharding, presplit) {
        (Sharding::KeyRange, Presplit::None) => Ok(vec![Bounds::Keys(KeyRange::all())]),
        (Sharding::KeyRange, Presplit::Points(points)) => Ok(keys(presplit::at_points(&points)?)),
        (Sharding::KeyRange, Presplit::SampleKeys { keys: sample, weights, shards }) => {
            if !weights.is_empty() && weights.len() != sample.len() {
                return Err(AdminError::Invalid {
                    problem: format!(
                        "{} weights were given for {} sampled keys",
                        weights.len(),
                        sample.len()
                    ),
                    way_out: "give one for each key, or none".into(),
                });
            }
            let weights = weights.into_iter().chain(std::iter::repeat(1));
            Ok(keys(presplit::from_sample(sample.into_iter().zip(weights), shards as usize)?))
        }
        (Sharding::HashRange { .. }, Presplit::None) => Ok(vec![Bounds::Hashes(HashRange::ALL)]),
        (Sharding::HashRange { .. }, Presplit::HashRanges(shards)) => {
            Ok(presplit::even_hashes(shards as usize)?.into_iter().map(Bounds::Hashes).collect())
        }
        (Sharding::Fixed { shards, .. }, Presplit::None) => Ok(Slot::all(shards)),
        (Sharding::Named, Presplit::None) => Ok(vec![]),
        (Sharding::Named, Presplit::Names(names)) => named_bounds(names),
        (
            Sharding::KeyRange | Sharding::HashRange { .. } | Sharding::Fixed { .. } | Sharding::Named,
            Presplit::Points(_) | Presplit::SampleKeys { .. } | Presplit::HashRanges(_) | Presplit::Names(_),
        ) => Err(AdminError::Invalid {
            problem: format!("{sharding} cannot be cut beforehand in that way"),
            way_out:
                "points and samples go with key ranges, a number of ranges with hash ranges, names with \
                      named partitions, and nothing with a fixed number"
                    .into(),
        }),
    }
}

fn named_bounds(names: Vec<PartitionName>) -> Result<Vec<Bounds>, AdminError> {
    if names.len() > limits::SHARDS {
        return Err(PresplitError::TooManyShards { shards: names.len() }.into());
    }
    refuse_repeated(&names)?;
    Ok(names.into_iter().map(Bounds::Name).collect())
}

/// Refuses names that are given twice in one command.
pub(super) fn refuse_repeated(names: &[PartitionName]) -> Result<(), AdminError> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(AdminError::Invalid {
            problem: format!("partition {name} is named twice"),
            way_out: "name each partition once".into(),
        }),
    }
}

impl Keyspaces {
    /// Takes in a new keyspace, with its first map.
    pub(super) fn create(
        &mut self,
        at: Moment,
        (record, diff): (KeyspaceRecord, MapDiff),
        of_cluster: &mut ClusterRecord,
        outbox: &mut Outbox,
    ) {
        let settings = &record.keyspace;
        let name = settings.name.clone();
        let mut map = ShardMap::empty(name.clone(), settings.sharding, settings.partition_key);
        if let Err(error) = map.apply(&diff) {
            outbox.tell(
                EventKind::Alarm,
                About::keyspace(&name),
                true,
                format!("keyspace {name} was not created: {error}"),
            );
            return;
        }
        outbox.writes.push(Write::Keyspace(record.clone()));
        outbox.writes.push(Write::Map(diff.clone()));
        outbox.maps.push(diff);
        let from_map = FromMap::of_new(&map);
        let mut keyspace = KeyspaceState::new(record, (map, from_map), at);
        keyspace.map.shards().for_each(|shard| keyspace.since.insert(shard.id, at.wall_ms));
        self.deleted.remove(&name);
        if of_cluster.deleted_keyspaces.remove(&name).is_some() {
            outbox.writes.push(Write::Cluster(of_cluster.clone()));
        }
        self.by_name.insert(name, keyspace);
    }

    /// Deletes a keyspace, and what belongs to it.
    pub(super) fn remove(
        &mut self,
        at: Moment,
        diff: MapDiff,
        record: &mut ClusterRecord,
        (members, plans): (&mut Members, &mut Plans),
        outbox: &mut Outbox,
    ) {
        let name = &diff.keyspace.clone();
        let Some(keyspace) = self.by_name.remove(name) else { return };
        self.forget_footprint(&keyspace);
        outbox.maps.push(diff);
        for shard in keyspace.map.shards() {
            for replica in &shard.replicas {
                let key = keyspace.key_of(shard.id, replica.placement);
                members.withdraw_order(key, replica, None, outbox);
            }
        }
        record.next_shard = record.next_shard.max(keyspace.map.next_shard());
        record.next_placement = record.next_placement.max(keyspace.map.next_placement());
        record.remember_deleted(name.clone(), keyspace.map.next_shard());
        outbox.writes.push(Write::Cluster(record.clone()));
        outbox.writes.push(Write::DropKeyspace(name.clone()));
        plans.forget_all_of(name, outbox);
        self.deleted.retain(|_, free| *free > at.now);
        if keyspace.record.keyspace.ownership == Ownership::Exclusive {
            // As for any lease: by the worker's clock, which may be the slower one.
            let longest = GrantedLease::assumed(at.now, record.longest_lease_ms);
            self.deleted.insert(name.clone(), longest.end());
        }
    }
}
