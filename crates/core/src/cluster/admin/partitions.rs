//! Named partitions come and go (A1).

use super::{AdminError, Effect, Intent, keyspaces::refuse_repeated};
use crate::base::count::counted;
use crate::base::id::{ShardId, TransactionId};
use crate::base::name::{KeyspaceName, PartitionName};
use crate::base::planted::{self, Planted};
use crate::cluster::{Cluster, KeyspaceState, Moment, ShardRule};
use crate::keyspace::Keyspace;
use crate::keyspace::map::{Edit, Stage};
use crate::keyspace::sharding::{Bounds, Sharding};
use crate::limits;
use crate::plan::check;
use std::collections::BTreeMap;

/// The shards of a keyspace by partition name: those that serve and those that are on their way out.
#[derive(Default)]
struct Partitions {
    serving: BTreeMap<PartitionName, ShardId>,
    removing: BTreeMap<PartitionName, ShardId>,
}

fn partitions_of(keyspace: &KeyspaceState) -> Result<Partitions, AdminError> {
    let settings = &keyspace.record.keyspace;
    if settings.sharding != Sharding::Named {
        return Err(AdminError::Refused {
            problem: format!("keyspace {} is sharded by {}", settings.name, settings.sharding),
            way_out: "create one with named partitions, or split a shard of this one".into(),
        });
    }
    let mut partitions = Partitions::default();
    for shard in keyspace.map.shards() {
        let Bounds::Name(name) = &shard.bounds else { continue };
        let known = if *shard.stage() == Stage::Removing {
            &mut partitions.removing
        } else {
            &mut partitions.serving
        };
        known.insert(name.clone(), shard.id);
    }
    Ok(partitions)
}

fn refuse_none(names: &[PartitionName]) -> Result<(), AdminError> {
    if names.is_empty() {
        let (problem, way_out) = ("no partition was named".into(), "name at least one".into());
        return Err(AdminError::Invalid { problem, way_out });
    }
    refuse_repeated(names)
}

fn checked(
    keyspace: &KeyspaceState,
    edit: Edit<'_>,
    transaction: TransactionId,
) -> Result<Effect, AdminError> {
    let diff = edit.commit(transaction);
    match check::diff(&keyspace.map, &diff).into_iter().next() {
        None => Ok(Effect::Map(diff)),
        Some(finding) => Err(AdminError::Refused {
            problem: format!("the next map would not be a map ({finding})"),
            way_out: "please report this".into(),
        }),
    }
}

impl Cluster {
    pub(super) fn register_partitions(
        &self,
        at: Moment,
        transaction: TransactionId,
        name: &KeyspaceName,
        names: &[PartitionName],
        replicas: Option<u32>,
        ahead: bool,
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let known = partitions_of(keyspace)?;
        refuse_none(names)?;
        check_replicas(&keyspace.record.keyspace, replicas)?;
        let taken: Vec<_> = names.iter().filter(|n| known.serving.contains_key(*n)).cloned().collect();
        if !taken.is_empty() {
            return Err(AdminError::PartitionsExist { keyspace: name.clone(), partitions: taken });
        }
        // Two shards of one name would be two owners of its keys, each with a grant of its own (O1).
        let is_removing =
            |n: &&PartitionName| known.removing.contains_key(*n) && !planted::is(Planted::TwicePartition);
        if let Some(partition) = names.iter().find(is_removing) {
            return Err(AdminError::Conflict {
                problem: format!("partition {partition} of keyspace {name} is still being removed"),
                way_out: "try again when its replicas have unloaded".into(),
            });
        }
        let most = keyspace.record.keyspace.resharding.max_shards as usize;
        if keyspace.map.len() + names.len() > most {
            return Err(AdminError::Refused {
                problem: format!("keyspace {name} would have {} shards", keyspace.map.len() + names.len()),
                way_out: format!("its max_shards is {most}: raise it or unregister some"),
            });
        }
        let warnings = self.room_for_partitions(at, &keyspace.record, replicas, ahead)?.into_iter().collect();
        let mut edit = keyspace.map.edit();
        let mut record = keyspace.record.clone();
        for partition in names {
            let id = edit.create_shard(Bounds::Name(partition.clone()))?;
            if replicas.is_some() {
                record.rules.insert(id, ShardRule { replicas, ..ShardRule::default() });
            }
        }
        let mut effects = vec![checked(keyspace, edit, transaction)?];
        if replicas.is_some() {
            effects.insert(0, Effect::Keyspace(record));
        }
        let summary = format!("register {} in keyspace {name}", counted(names.len(), "partition"));
        Ok(Intent { warnings, ..Intent::new(summary, effects) })
    }

    pub(super) fn unregister_partitions(
        &self,
        transaction: TransactionId,
        name: &KeyspaceName,
        names: &[PartitionName],
    ) -> Result<Intent, AdminError> {
        let keyspace = self.keyspace(name)?;
        let known = partitions_of(keyspace)?;
        refuse_none(names)?;
        let missing: Vec<_> = names.iter().filter(|n| !known.serving.contains_key(*n)).cloned().collect();
        if !missing.is_empty() {
            return Err(AdminError::NoPartitions { keyspace: name.clone(), partitions: missing });
        }
        let mut edit = keyspace.map.edit();
        names.iter().filter_map(|n| known.serving.get(n)).try_for_each(|id| edit.close(*id))?;
        let effects = vec![checked(keyspace, edit, transaction)?];
        let summary = format!("unregister {} of keyspace {name}", counted(names.len(), "partition"));
        Ok(Intent::new(summary, effects))
    }
}

/// Refuses 0 and more than [`limits::REPLICAS`]; in a replicated keyspace also fewer than must have stored a write.
pub(super) fn check_replicas(keyspace: &Keyspace, replicas: Option<u32>) -> Result<(), AdminError> {
    let least = keyspace.min_in_sync.max(1);
    match replicas {
        Some(count) if count < least || count as usize > limits::REPLICAS => Err(AdminError::Invalid {
            problem: match count {
                1.. if count < least => format!(
                    "with {} no write to the shard could succeed: keyspace {} has min_in_sync {least}",
                    counted(count, "replica"),
                    keyspace.name
                ),
                _ => format!("a shard cannot have {count} replicas"),
            },
            way_out: format!("give {least} to {}", limits::REPLICAS),
        }),
        _ => Ok(()),
    }
}
