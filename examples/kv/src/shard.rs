//! What one replica of a shard keeps.
//!
//! Rows in the order of keys, and beside them a log: the order in which this replica learnt of them. A peer
//! copies a shard by reading the log from where it stopped the last time, while writes go on; what is
//! overwritten moves to the log's end, so each row is in it once. Deleted rows stay as marks, else a
//! copy that is late would bring them back.
//!
//! A durable replica has a file besides ([`crate::disk`]): what changes it is on the disk before it is in the table.

use crate::disk::{DiskError, Log};
use crate::limits::PIECE_BYTES;
use crate::records::{Record, Version};
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Row {
    value: Option<Bytes>,
    version: Version,
    /// Its place in the log.
    place: u64,
}

#[derive(Default)]
struct Table {
    rows: BTreeMap<Bytes, Row>,
    log: BTreeMap<u64, Bytes>,
    last_place: u64,
    last_count: u64,
    /// Writes of earlier epochs are refused.
    epoch: u64,
    keys: u64,
    bytes: u64,
}

/// A write by a node that does not lead any more.
#[derive(Debug, thiserror::Error)]
#[error("the write came in epoch {epoch}, and the shard is in epoch {newest}: ask the new leader")]
pub struct OldEpoch {
    epoch: u64,
    newest: u64,
}

/// A write that the replica does not take.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another node leads by now.
    #[error(transparent)]
    Epoch(#[from] OldEpoch),
    /// It cannot be made durable.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// One replica: its rows in memory, and its file if the keyspace is durable.
#[derive(Default)]
pub struct Shard {
    table: Mutex<Table>,
    /// Its file, if it is durable. Locked by each change of the table, from before the write to the disk until after
    /// that to the table.
    file: Mutex<Option<Log>>,
    /// Whether it has had all that was acknowledged, once.
    caught_up: AtomicBool,
    log_id: LogId,
    /// How far the logs of other replicas were read, by placement: which log, and a place in that.
    read: Mutex<BTreeMap<u64, (u64, u64)>>,
}

/// Drawn when a replica is opened: places in its log count for that long.
struct LogId(u64);

impl Default for LogId {
    #[expect(clippy::disallowed_methods, reason = "nothing is ordered by it")]
    fn default() -> LogId {
        LogId(rand::random())
    }
}

/// How large a replica is.
pub struct Size {
    pub keys: u64,
    pub bytes: u64,
}

impl Table {
    fn set(&mut self, record: Record) {
        self.last_place += 1;
        self.last_count = self.last_count.max(record.version.count);
        let place = self.last_place;
        self.log.insert(place, record.key.clone());
        if let Some(value) = &record.value {
            self.keys += 1;
            self.bytes += (record.key.len() + value.len()) as u64;
        }
        let row = Row { value: record.value, version: record.version, place };
        if let Some(old) = self.rows.insert(record.key.clone(), row) {
            self.log.remove(&old.place);
            if let Some(value) = old.value {
                self.keys -= 1;
                self.bytes -= (record.key.len() + value.len()) as u64;
            }
        }
    }
}

impl Shard {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is kept on a disk: then changes block for as long as the disk takes.
    pub fn is_durable(&self) -> bool {
        self.file().is_some()
    }

    /// It has all that was acknowledged by now.
    pub fn has_caught_up(&self) {
        self.caught_up.store(true, Ordering::Relaxed);
    }

    /// Whether it has had all that was acknowledged, once.
    pub fn is_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Relaxed)
    }

    /// From now on everything is written to that file, too.
    pub fn keep_in(&mut self, file: Log) {
        self.file = Mutex::new(Some(file));
    }

    fn file(&self) -> MutexGuard<'_, Option<Log>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row that was read from the file.
    pub fn restore(&self, record: Record) {
        self.table().set(record);
    }

    /// How many rows it has, deleted ones included.
    pub fn len(&self) -> usize {
        self.table().rows.len()
    }

    /// All rows, deleted ones included.
    pub fn all(&self) -> Vec<Record> {
        let table = self.table();
        let record = |(key, row): (&Bytes, &Row)| Record {
            key: key.clone(),
            value: row.value.clone(),
            version: row.version,
        };
        table.rows.iter().map(record).collect()
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.table().rows.get(key)?.value.clone()
    }

    /// Writes (or, with none, deletes) as the leader of `epoch`.
    pub fn write(&self, epoch: u64, key: Bytes, value: Option<Bytes>) -> Result<Record, WriteError> {
        let mut file = self.file();
        let version = {
            let mut table = self.table();
            if epoch < table.epoch {
                return Err(OldEpoch { epoch, newest: table.epoch }.into());
            }
            table.epoch = epoch;
            Version { epoch, count: table.last_count + 1 }
        };
        let record = Record { key, value, version };
        if let Some(file) = &mut *file {
            file.add(std::slice::from_ref(&record))?;
        }
        self.table().set(record.clone());
        Ok(record)
    }

    /// Takes in what another replica has, unless this one knows better.
    pub fn merge(&self, mut records: Vec<Record>) -> Result<(), DiskError> {
        let mut file = self.file();
        let is_news = |table: &Table, record: &Record| {
            table.rows.get(&record.key).is_none_or(|row| row.version < record.version)
        };
        {
            let table = self.table();
            records.retain(|record| is_news(&table, record));
        }
        if let Some(file) = &mut *file {
            file.add(&records)?;
        }
        let mut table = self.table();
        for record in records {
            // A key may be among them twice.
            if is_news(&table, &record) {
                table.set(record);
            }
        }
        Ok(())
    }

    /// From now on writes of earlier epochs are refused.
    pub fn enter(&self, epoch: u64) -> Result<(), DiskError> {
        if let Some(file) = &mut *self.file() {
            file.enter(epoch)?;
        }
        let mut table = self.table();
        table.epoch = table.epoch.max(epoch);
        Ok(())
    }

    /// The end of the log.
    pub fn last_place(&self) -> u64 {
        self.table().last_place
    }

    /// Records of the log after `since` up to `end`, about a piece of them, and the place they reach; none
    /// when there are no more.
    pub fn piece(&self, since: u64, end: u64) -> Option<(u64, Bytes)> {
        let table = self.table();
        let (mut reached, mut piece) = (since, BytesMut::new());
        if since >= end {
            return None;
        }
        for (place, key) in table.log.range(since + 1..=end) {
            let row = table.rows.get(key)?;
            Record { key: key.clone(), value: row.value.clone(), version: row.version }.put(&mut piece);
            reached = *place;
            if piece.len() >= PIECE_BYTES {
                break;
            }
        }
        (reached > since).then(|| (reached, piece.freeze()))
    }

    /// The number of its log.
    pub fn log_id(&self) -> u64 {
        self.log_id.0
    }

    /// From where to read on at another replica: its log, and a place in that.
    pub fn read_until(&self, placement: u64) -> (u64, u64) {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.get(&placement).copied().unwrap_or_default()
    }

    /// Remembers how far the log of another replica was read: up to `place`, in the log with the number `log`.
    pub fn has_read(&self, placement: u64, log: u64, place: u64) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(placement, (log, place));
    }

    /// How large it is.
    pub fn size(&self) -> Size {
        let table = self.table();
        Size { keys: table.keys, bytes: table.bytes }
    }

    /// The key in the middle.
    pub fn median(&self) -> Option<Bytes> {
        let table = self.table();
        let present = table.rows.iter().filter(|(_, row)| row.value.is_some());
        present.map(|(key, _)| key.clone()).nth(table.keys as usize / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shard: &Shard, since: u64) -> Vec<Record> {
        let (mut at, end, mut records) = (since, shard.last_place(), Vec::new());
        while let Some((reached, piece)) = shard.piece(at, end) {
            let mut piece = BytesMut::from(&piece[..]);
            while let Some(record) = Record::take(&mut piece).unwrap() {
                records.push(record);
            }
            at = reached;
        }
        records
    }

    fn bytes(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    #[test]
    fn a_copy_and_what_came_after_it_make_the_same_shard() {
        let (from, to) = (Shard::default(), Shard::default());
        for n in 0..2_000 {
            from.write(1, bytes(&format!("k{n}")), Some(bytes(&"v".repeat(500)))).unwrap();
        }
        let place = from.last_place();
        to.merge(all(&from, 0)).unwrap();
        from.write(1, bytes("k7"), Some(bytes("new"))).unwrap();
        from.write(1, bytes("k8"), None).unwrap();
        let tail = all(&from, place);
        assert_eq!(tail.len(), 2, "only what is new");
        to.merge(tail).unwrap();
        assert_eq!(to.get(b"k7"), Some(bytes("new")));
        assert_eq!((to.get(b"k8"), to.get(b"k9").is_some()), (None, true));
        assert_eq!((to.size().keys, to.size().bytes), (from.size().keys, from.size().bytes));
        assert_eq!(to.size().keys, 1_999);
    }

    #[test]
    fn o2_an_older_epoch_neither_writes_nor_overwrites_and_a_late_copy_brings_nothing_back() {
        let (old, new) = (Shard::default(), Shard::default());
        let late = old.write(1, bytes("k"), Some(bytes("old"))).unwrap();
        new.merge(vec![late.clone()]).unwrap();
        new.enter(2).unwrap();
        assert!(new.write(1, bytes("k"), Some(bytes("older"))).is_err());
        new.write(2, bytes("k"), None).unwrap();
        new.merge(vec![late]).unwrap();
        assert_eq!(new.get(b"k"), None);
    }
}
