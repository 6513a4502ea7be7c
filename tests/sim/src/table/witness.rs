//! All stored replicas of a run, and what nobody in it knows: what is committed, and what was acknowledged.

use super::registers::Registers;
use crate::clock::True;
use crate::model::{KeyAt, Register};
use partage_core::base::id::{Epoch, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::{Shard, ShardMap, Stage};
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{ReplicaKey, Stored};
use partage_service::table::replication::{self, Entry, LogPosition};
use std::collections::{BTreeMap, BTreeSet};

/// A stored replica.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) node: usize,
    pub(super) bounds: Bounds,
    /// The latest epoch under which it has served.
    pub(super) epoch: Epoch,
    pub(super) stored: replication::Stored,
    pub(super) flushed: Registers,
    /// It is a child's, and has not all that its parents had.
    pub(super) lacks_base: bool,
}

impl Disk {
    fn has(&self, position: LogPosition) -> bool {
        let replication::Stored { base, entries, flushed, .. } = &self.stored;
        position.index <= flushed.index.max(base.index)
            || entries.get((position.index - base.index - 1) as usize).is_some_and(|e| e.position == position)
    }
}

/// What is committed of a shard.
#[derive(Debug, Default)]
struct Truth {
    /// The index behind which its log begins; none of a child until one of its replicas has its base.
    base: u64,
    entries: Vec<Entry>,
    applied: Registers,
    /// Up to this index writes were acknowledged.
    acknowledged: u64,
    /// When the last one was.
    acknowledged_at: True,
}

impl Truth {
    fn entry(&self, index: u64) -> Option<&Entry> {
        self.entries.get(index.checked_sub(self.base + 1)? as usize)
    }
}

/// The witness.
#[derive(Debug, Default)]
pub struct Tables {
    pub(super) disks: BTreeMap<ReplicaKey, Disk>,
    shards: BTreeMap<(KeyspaceName, ShardId), Truth>,
    registers: BTreeMap<KeyAt, Register>,
    /// Shards that have closed.
    pub watched: BTreeSet<(KeyspaceName, ShardId)>,
}

impl Tables {
    /// What a node names when it registers.
    pub fn stored_on(&self, node: usize) -> Vec<Stored> {
        let of_it = self.disks.iter().filter(|(_, disk)| disk.node == node);
        let stored = |(replica, disk): (&ReplicaKey, &Disk)| Stored {
            replica: replica.clone(),
            bounds: disk.bounds.clone(),
            epoch: disk.epoch,
            store: node as u64 + 1,
            damaged: false,
        };
        of_it.map(stored).collect()
    }

    /// A register as all that is committed has made it.
    pub fn register(&self, key: KeyAt) -> Option<&Register> {
        self.registers.get(&key)
    }

    /// Deletes what is stored of a replica.
    pub fn delete(&mut self, replica: &ReplicaKey) {
        self.disks.remove(replica);
    }

    /// D1, D10: what a member of an in-sync set of the map lacks of what was acknowledged, by its shard or by what that was
    /// split or merged from.
    pub fn lacking(&self, map: &ShardMap) -> Option<String> {
        map.shards()
            .find_map(|shard| self.lacks_acknowledged(map, shard).or_else(|| self.lacks_base(map, shard)))
    }

    fn lacks_acknowledged(&self, map: &ShardMap, shard: &Shard) -> Option<String> {
        let truth = self.shards.get(&(map.keyspace().clone(), shard.id))?;
        let last = truth.entry(truth.acknowledged)?.position;
        let lacks = |placement| {
            let key = ReplicaKey { keyspace: map.keyspace().clone(), shard: shard.id, placement };
            self.disks.get(&key).is_none_or(|disk| !disk.has(last) || disk.lacks_base)
        };
        let member = shard.in_sync().find(|replica| lacks(replica.placement))?;
        let text = "in sync and lacks what was acknowledged at";
        Some(format!("{} of {} is {text} {last}: {shard:#?}", member.placement, map.keyspace()))
    }

    /// A child's replica in sync that has not its base needs all of its parents.
    fn lacks_base(&self, map: &ShardMap, shard: &Shard) -> Option<String> {
        let lacks = |placement| {
            let key = ReplicaKey { keyspace: map.keyspace().clone(), shard: shard.id, placement };
            self.disks.get(&key).is_some_and(|disk| disk.lacks_base)
        };
        let member = shard.in_sync().find(|replica| lacks(replica.placement))?;
        let hands_over =
            |parent: &Shard| matches!(parent.stage(), Stage::Closing(_)) && parent.in_sync().next().is_some();
        let gone = shard.parents().iter().find(|id| !map.shard(**id).is_some_and(hands_over))?;
        let text = "is in sync and lacks its base, and nothing that counts is left of";
        Some(format!("{} of {} {text} {gone}: {shard:#?}", member.placement, map.keyspace()))
    }

    /// A replica applies an entry: the same that all others apply there.
    pub(super) fn applied(&mut self, replica: &ReplicaKey, entry: &Entry) -> Result<(), String> {
        let truth = self.shards.entry((replica.keyspace.clone(), replica.shard)).or_default();
        let Some(at) = entry.position.index.checked_sub(truth.base + 1) else {
            return Err(format!("{entry:?} is applied before the log of {} begins", replica.shard));
        };
        match truth.entries.get(at as usize) {
            Some(known) if known == entry => return Ok(()),
            Some(known) => return Err(format!("{entry:?} is applied where {known:?} is committed")),
            None if at as usize > truth.entries.len() => {
                return Err(format!("{} is applied before what is before it", entry.position));
            }
            None => truth.entries.push(entry.clone()),
        }
        if let Some((key, op, deed)) = truth.applied.apply(entry).write() {
            self.registers.entry(key).or_default().write(op, deed);
        }
        Ok(())
    }

    /// A child's replica has its base: what its parents had when they closed, and the same as its others.
    pub(super) fn based(
        &mut self,
        replica: &ReplicaKey,
        parents: &[ShardId],
        (keys, base): (&BTreeSet<KeyAt>, &Registers),
    ) -> Result<(), String> {
        let of = |shard: &ShardId| self.shards.get(&(replica.keyspace.clone(), *shard));
        let parts: Vec<_> = parents.iter().filter_map(of).map(|truth| truth.applied.part(keys)).collect();
        if !base.has_rows_of(&Registers::joined(&parts, base.at)) {
            return Err(format!("{replica:?} opens with less than its parents {parents:?} had: {base:?}"));
        }
        let truth = self.shards.entry((replica.keyspace.clone(), replica.shard)).or_insert_with(|| Truth {
            base: base.at.index,
            applied: base.clone(),
            ..Truth::default()
        });
        match truth.base == base.at.index {
            true => Ok(()),
            false => Err(format!("{replica:?} begins behind {}, others behind {}", base.at, truth.base)),
        }
    }

    pub(super) fn acknowledged(&mut self, replica: &ReplicaKey, at: LogPosition, now: True) {
        if let Some(truth) = self.shards.get_mut(&(replica.keyspace.clone(), replica.shard)) {
            truth.acknowledged = truth.acknowledged.max(at.index);
            truth.acknowledged_at = now;
        }
    }

    /// When a write to a shard was acknowledged last.
    pub(super) fn acknowledged_at(&self, keyspace: &KeyspaceName, shard: ShardId) -> True {
        self.shards.get(&(keyspace.clone(), shard)).map_or(0, |truth| truth.acknowledged_at)
    }

    /// Up to which index writes to the shard of a replica were acknowledged.
    pub(super) fn last_acknowledged(&self, replica: &ReplicaKey) -> u64 {
        let truth = self.shards.get(&(replica.keyspace.clone(), replica.shard));
        truth.map_or(0, |truth| truth.acknowledged)
    }

    pub(super) fn is_whole(&self, replica: &ReplicaKey, has: &Registers) -> bool {
        let truth = self.shards.get(&(replica.keyspace.clone(), replica.shard));
        truth.is_none_or(|truth| truth.applied == *has)
    }
}
