//! What must hold, judged by what no process in the simulation sees: the true order of what is committed, and true time.

use crate::clock::{MS, True};
use crate::replication::engine::{Change, Engine, Key, Value};
use partage_core::base::id::Epoch;
use partage_service::table::replication::{Entry, EntryKind, LogPosition};
use std::collections::BTreeMap;

/// What is true of one shard.
#[derive(Debug, Default)]
struct Truth {
    /// What is committed, in order.
    entries: Vec<Entry>,
    /// Which entries changed a key, or tried to, and what it held then.
    keys: BTreeMap<Key, Vec<(u64, Value)>>,
    engine: Engine,
    /// When each acknowledgement was sent, and the highest index acknowledged until then.
    acknowledged: Vec<(True, u64)>,
    /// The highest epoch under which something was acknowledged or read, or that has begun.
    acted: Epoch,
    /// Of each key, the latest index that any client has seen.
    seen: BTreeMap<Key, u64>,
}

/// What is true of all shards.
#[derive(Debug)]
pub struct Oracle {
    shards: Vec<Truth>,
}

impl Oracle {
    pub fn new(shards: usize) -> Oracle {
        Oracle { shards: (0..shards).map(|_| Truth::default()).collect() }
    }

    /// A replica applies an entry: the same that any other has applied there.
    pub fn applied(&mut self, shard: usize, entry: &Entry) -> Result<(), String> {
        let truth = &mut self.shards[shard];
        let at = (entry.position.index - 1) as usize;
        match truth.entries.get(at) {
            Some(known) if known == entry => Ok(()),
            Some(known) => Err(format!("D1: {entry:?} is applied where {known:?} is committed")),
            None if at == truth.entries.len() => {
                truth.entries.push(entry.clone());
                truth.engine.apply(entry);
                if let EntryKind::Write(payload) = &entry.kind
                    && let Some(change) = Change::decode(payload)
                {
                    let value = truth.engine.value(change.key());
                    truth.keys.entry(change.key()).or_default().push((entry.position.index, value));
                }
                Ok(())
            }
            None => Err(format!("D1: {} is applied before what is before it", entry.position)),
        }
    }

    /// The last entry that was acknowledged.
    pub fn acknowledged(&self, shard: usize) -> Option<LogPosition> {
        let truth = &self.shards[shard];
        let index = truth.acknowledged.last()?.1;
        truth.entries.get((index - 1) as usize).map(|entry| entry.position)
    }

    /// How many writes were acknowledged.
    pub fn writes(&self) -> usize {
        self.shards.iter().map(|truth| truth.acknowledged.len()).sum()
    }

    /// Under that epoch a leader has begun, acknowledges, or answers a linearizable read.
    pub fn acts(&mut self, shard: usize, epoch: Epoch) -> Result<(), String> {
        let acted = &mut self.shards[shard].acted;
        if epoch < *acted {
            return Err(format!("O2, D2: a leader of {epoch} answers when one of {acted} has begun"));
        }
        *acted = epoch;
        Ok(())
    }

    /// A write is acknowledged, which so many disks have.
    pub fn acknowledges(
        &mut self,
        shard: usize,
        now: True,
        at: LogPosition,
        disks: usize,
        min_in_sync: usize,
    ) -> Result<(), String> {
        let truth = &mut self.shards[shard];
        let known = truth.entries.get((at.index - 1) as usize).map(|entry| entry.position);
        if known != Some(at) {
            return Err(format!("D1: {at} is acknowledged, and {known:?} committed there"));
        }
        if disks < min_in_sync {
            return Err(format!("D1: {at} is acknowledged and on {disks} disks of at least {min_in_sync}"));
        }
        let highest = truth.acknowledged.last().map_or(0, |(_, index)| *index).max(at.index);
        truth.acknowledged.push((now, highest));
        Ok(())
    }

    /// A replica answers from a state up to `applied`, which is at most so many milliseconds old.
    pub fn reads(&self, shard: usize, now: True, applied: u64, age_ms: u64) -> Result<(), String> {
        // By the clock of the replica, which may be slow.
        let before = now.saturating_sub(age_ms * MS * 103 / 100 + 2 * MS);
        let acknowledged = &self.shards[shard].acknowledged;
        let at = acknowledged.partition_point(|(when, _)| *when < before);
        let needed = at.checked_sub(1).map_or(0, |at| acknowledged[at].1);
        if applied < needed {
            return Err(format!(
                "D2: a read from {applied} that is to be no older than {age_ms} ms, and {needed} was acknowledged before"
            ));
        }
        Ok(())
    }

    /// What clients have seen of a key so far: what begins now comes after it.
    pub fn floor(&self, shard: usize, key: Key) -> u64 {
        self.shards[shard].seen.get(&key).copied().unwrap_or(0)
    }

    /// A client hears that its write is at that index.
    pub fn written(&mut self, shard: usize, key: Key, index: u64, floor: u64) -> Result<(), String> {
        if index <= floor {
            return Err(format!(
                "D2: a write of key {key} at {index} comes before {floor}, seen when it began"
            ));
        }
        let seen = self.shards[shard].seen.entry(key).or_default();
        *seen = (*seen).max(index);
        Ok(())
    }

    /// A client hears that a key holds that value. The index is that of the last change that left it so.
    pub fn read(&mut self, shard: usize, key: Key, value: &Value, floor: Option<u64>) -> Result<(), String> {
        let truth = &mut self.shards[shard];
        let changes = truth.keys.get(&key).map_or(&[][..], Vec::as_slice);
        let last = changes.iter().rev().find(|(_, held)| held == value).map(|(index, _)| *index);
        let index = match last {
            Some(index) => index,
            None if value.0.is_empty() => 0,
            None => return Err(format!("D1: {value:?} was read of key {key}, which it never held")),
        };
        if let Some(floor) = floor {
            // A change may leave what was there: of two that did, the earlier one counts as seen.
            if index < floor {
                return Err(format!(
                    "D2: {value:?} of key {key}, of {index}, was read after {floor} was seen"
                ));
            }
            let first = changes.iter().find(|(_, held)| held == value).map_or(0, |(index, _)| *index);
            let seen = truth.seen.entry(key).or_default();
            *seen = (*seen).max(first);
        }
        Ok(())
    }

    /// A follower goes on behind a snapshot: it has what every replica had at that position.
    pub fn installed(&self, shard: usize, engine: &Engine) -> Result<(), String> {
        let held = |(key, changes): (&Key, &Vec<(u64, Value)>)| {
            let later = changes.partition_point(|(index, _)| *index <= engine.at.index);
            later.checked_sub(1).map(|last| (*key, changes[last].1.clone()))
        };
        let expected: BTreeMap<Key, Value> = self.shards[shard].keys.iter().filter_map(held).collect();
        match expected == engine.keys {
            true => Ok(()),
            false => Err(format!(
                "D1: a snapshot at {} has {:?}, and {expected:?} was there",
                engine.at, engine.keys
            )),
        }
    }

    /// In the end: a replica has applied all of it.
    pub fn is_whole(&self, shard: usize, engine: &Engine) -> bool {
        self.shards[shard].engine == *engine
    }
}
