//! All stored replicas of a run, and what no process in it knows: what is committed, and what was acknowledged.

use super::client;
use super::ends::Ends;
use super::registers::{self, Held, Registers};
use crate::clock::True;
use crate::model::{KeyAt, Op, Register};
use partage_core::base::id::{Epoch, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::{Shard, ShardMap, Stage};
use partage_core::keyspace::sharding::Bounds;
use partage_core::limits::ANSWER_KEPT_MS;
use partage_core::node::exchange::{ReplicaKey, Stored};
use partage_service::table::feed::Change;
use partage_service::table::replication::{self, Entry, LogPosition};
use partage_service::table::rows::{Outcome, Record, Row};
use std::collections::{BTreeMap, BTreeSet};

/// A replica as the disk of its node has it.
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
    ends: Ends,
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

/// The stored replicas, and what is true of each shard.
#[derive(Debug, Default)]
pub struct Tables {
    pub(super) disks: BTreeMap<ReplicaKey, Disk>,
    shards: BTreeMap<(KeyspaceName, ShardId), Truth>,
    registers: BTreeMap<KeyAt, Register>,
    /// The rows, as all that is committed has made them.
    rows: BTreeMap<(KeyspaceName, Key), Row>,
    /// The changes of each row, in their order, and when they were committed.
    changes: BTreeMap<Key, Vec<(LogPosition, Change, True)>>,
    /// Whether any change was removed, as its time was over.
    has_removed: bool,
    /// What each request of a row was answered first, and what the clock of its shard showed.
    outcomes: BTreeMap<Op, (Outcome, u64)>,
    /// Requests that came again when their outcomes need not be kept any more.
    forgotten: BTreeSet<Op>,
    /// Shards that have closed.
    pub watched: BTreeSet<(KeyspaceName, ShardId)>,
    /// Shards whose leaders have just been ordered to hand over.
    pub hand_overs: Vec<(KeyspaceName, ShardId)>,
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

    /// The row of a key as all that is committed has made it.
    pub fn row(&self, keyspace: &KeyspaceName, key: &Key) -> Option<&Row> {
        self.rows.get(&(keyspace.clone(), key.clone()))
    }

    /// The changes of a row that are committed, and when each was.
    pub fn changes_of(&self, key: &Key) -> &[(LogPosition, Change, True)] {
        self.changes.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether any change was removed.
    pub fn has_removed(&self) -> bool {
        self.has_removed
    }

    /// Whether a request came again when its outcome need not be kept any more: a clock that jumps makes that so.
    pub fn is_forgotten(&self, op: Op) -> bool {
        self.forgotten.contains(&op)
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
    pub(super) fn applied(&mut self, replica: &ReplicaKey, entry: &Entry, now: True) -> Result<(), String> {
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
        // The clock of the witness shows what the entry carries.
        let change = truth.applied.apply(entry, client::time_of(entry));
        let done = |outcome: &Outcome| matches!(outcome, Outcome::Done { version, .. } if *version == entry.position);
        truth.ends.apply(entry, change.outcome().is_some_and(|(_, outcome)| done(outcome)));
        let clock_ms = truth.applied.clock_ms();
        if let Some((key, op, deed)) = change.write() {
            self.registers.entry(key).or_default().write(op, deed);
        }
        self.rows_change(&replica.keyspace, &change, now)?;
        self.answers(&change, clock_ms)
    }

    /// Rows change, and each change is one of the feed.
    fn rows_change(
        &mut self,
        keyspace: &KeyspaceName,
        applied: &registers::Change,
        now: True,
    ) -> Result<(), String> {
        let (mut changed, mut told) = (BTreeSet::new(), BTreeSet::new());
        for record in applied.records() {
            match record {
                Record::Row(key, _) => {
                    changed.insert(key);
                }
                Record::Change(at, key, Some(change)) => {
                    told.insert(key);
                    self.changes.entry(key.clone()).or_default().push((*at, change.clone(), now));
                }
                Record::Change(_, _, None) => self.has_removed = true,
                _ => {}
            }
            match record {
                Record::Row(key, Some(row)) => {
                    drop(self.rows.insert((keyspace.clone(), key.clone()), row.clone()));
                }
                Record::Row(key, None) => drop(self.rows.remove(&(keyspace.clone(), key.clone()))),
                _ => {}
            }
        }
        match changed == told {
            true => Ok(()),
            false => Err(format!("the rows of {changed:?} change, and the feed tells of {told:?}")),
        }
    }

    /// A request that comes again gets its first answer, whichever shard its key is in by then, for as long as outcomes are kept.
    fn answers(&mut self, change: &registers::Change, clock_ms: u64) -> Result<(), String> {
        let Some((op, outcome)) = change.outcome() else { return Ok(()) };
        match self.outcomes.get(op) {
            Some((first, _)) if first == outcome => {}
            Some((_, at_ms)) if clock_ms >= at_ms + ANSWER_KEPT_MS => {
                self.forgotten.insert(*op);
            }
            Some((first, _)) => return Err(format!("op {op} is done again: {outcome:?} after {first:?}")),
            None => drop(self.outcomes.insert(*op, (outcome.clone(), clock_ms))),
        }
        Ok(())
    }

    /// A child's replica has its base: what its parents had when they closed, and the same as its others.
    pub(super) fn based(
        &mut self,
        replica: &ReplicaKey,
        parents: &[ShardId],
        (held, base): (&Held, &Registers),
    ) -> Result<(), String> {
        let of = |shard: &ShardId| self.shards.get(&(replica.keyspace.clone(), *shard));
        let parts: Vec<_> = parents.iter().filter_map(of).map(|truth| truth.applied.part(held)).collect();
        let whole = Registers::joined(parts.iter().map(|part| (None, part)), base.at);
        if !base.has_rows_of(&whole) {
            return Err(format!("{replica:?} opens with less than its parents {parents:?} had: {base:?}"));
        }
        let ends = Ends::joined(parents.iter().filter_map(of).map(|truth| &truth.ends), held, base.at.index);
        let truth = self.shards.entry((replica.keyspace.clone(), replica.shard)).or_insert_with(|| Truth {
            base: base.at.index,
            ends,
            applied: base.clone(),
            ..Truth::default()
        });
        match truth.base == base.at.index {
            true => Ok(()),
            false => Err(format!("{replica:?} begins behind {}, others behind {}", base.at, truth.base)),
        }
    }

    /// What is wrong with a row as a replica has read it, by the writes of its shard alone.
    pub(super) fn row_breaks(
        &self,
        replica: &ReplicaKey,
        applied: LogPosition,
        (key, row): (&Key, Option<&Row>),
    ) -> Option<(&'static str, String)> {
        let truth = self.shards.get(&(replica.keyspace.clone(), replica.shard))?;
        let (invariant, text) = truth.ends.breaks(key, applied.index, row)?;
        Some((invariant, format!("{replica:?}: {text}")))
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

#[cfg(test)]
mod tests {
    use super::super::client::{RowWrite, encode};
    use super::super::rows::Page;
    use super::*;
    use crate::oracle::feeds::Feeds;
    use partage_core::base::id::PlacementId;
    use partage_core::keyspace::key::KeyRange;
    use partage_service::table::feed::{Progress, Since};
    use partage_service::table::replication::EntryKind;
    use partage_service::table::rows::{Condition, Expiry};

    /// A shard with so many writes of one row, and a replica that has applied them.
    fn committed(count: u64) -> (Tables, Registers, Key) {
        let key = Key::new(b"k01").unwrap();
        let keyspace = KeyspaceName::new("stock").unwrap();
        let replica = ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(1) };
        let (mut tables, mut registers) = (Tables::default(), Registers::default());
        for index in 1..=count {
            let value = Some(index.to_le_bytes().as_slice().into());
            let write = RowWrite { condition: Condition::Always, value, expiry: Expiry::Never };
            let kind = EntryKind::Write(encode(1_000, index, &key, &write));
            let entry = Entry { position: LogPosition { epoch: Epoch(1), index }, kind };
            tables.applied(&replica, &entry, 0).unwrap();
            registers.apply(&entry, 0);
        }
        (tables, registers, key)
    }

    #[test]
    fn d1_a_change_that_a_reader_misses_or_is_given_again_is_found() {
        let (tables, registers, key) = committed(10);
        let keys = [key];
        let begin = Progress::begin([Bounds::Keys(KeyRange::all())], &Since::Oldest);
        let first = registers.page(begin).unwrap();
        let second = registers.page(first.progress.clone()).unwrap();
        assert_eq!((first.changes.len(), second.changes.len()), (8, 2));
        let broken = |pages: &[&Page]| {
            let mut feeds = Feeds::default();
            let found = pages.iter().flat_map(|page| feeds.read(0, page, &keys, &tables));
            found.map(|(invariant, _)| invariant).collect::<Vec<_>>()
        };
        assert_eq!(broken(&[&first, &second]), [""; 0]);
        assert!(!broken(&[&first, &first]).is_empty(), "each is given again");
        let lacks = Page { changes: second.changes[1..].to_vec(), ..second.clone() };
        assert_eq!(broken(&[&first, &lacks]), ["D1"]);
        let passes = Page { changes: Vec::new(), ..second.clone() };
        assert_eq!(broken(&[&first, &passes]), ["D1"]);
    }
}
