//! The engine of a simulation: all in memory, with a disk that a crash leaves as it was at the last flush.
//!
//! A crash is [`SimulatedEngine::crash`]: from then on the stores that are open refuse everything, and a store that is opened has
//! what was flushed. Nothing here depends on time, on threads or on the order of a hash table.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partage_service::table::replication::LogPosition;

use super::limits::ROW_OVERHEAD_BYTES;
use super::{
    Change, Condition, Direction, Engine, Error, Row, Rows, SharedBytes, Size, Snapshot, Store, check_chunk,
    check_group, condition_after,
};

type Map = Arc<BTreeMap<SharedBytes, SharedBytes>>;

/// What one store has on the simulated disk.
#[derive(Debug, Clone)]
struct Stored {
    rows: Map,
    condition: Condition,
}

#[derive(Debug, Default)]
struct Disk {
    stores: BTreeMap<PathBuf, Stored>,
    crashes: u64,
    refuses_writes: bool,
}

/// Stores in memory. A clone is the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimulatedEngine(Arc<Mutex<Disk>>);

impl SimulatedEngine {
    /// Everything that was not flushed is lost, and the stores that are open can no longer be used.
    pub fn crash(&self) {
        self.disk().crashes += 1;
    }

    /// From now on the disk refuses to be written, as a full one does, or takes writes again.
    pub fn refuse_writes(&self, refuses: bool) {
        self.disk().refuses_writes = refuses;
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for SimulatedEngine {
    type Store = SimulatedStore;

    fn open(&self, folder: &Path) -> Result<SimulatedStore, Error> {
        let mut disk = self.disk();
        let crashes = disk.crashes;
        let new = || Stored {
            rows: Map::default(),
            condition: Condition::Usable { flushed: LogPosition::default() },
        };
        let stored = disk.stores.entry(folder.to_owned()).or_insert_with(new).clone();
        drop(disk);
        let applied = match stored.condition {
            Condition::Usable { flushed } => flushed,
            Condition::Filling { .. } => LogPosition::default(),
        };
        let memory = Memory { rows: stored.rows, applied, unflushed_bytes: 0 };
        Ok(SimulatedStore {
            engine: self.clone(),
            folder: folder.to_owned(),
            crashes,
            memory: Mutex::new(memory),
        })
    }

    fn remove(&self, folder: &Path) -> Result<(), Error> {
        self.disk().stores.remove(folder);
        Ok(())
    }
}

#[derive(Debug)]
struct Memory {
    rows: Map,
    applied: LogPosition,
    unflushed_bytes: usize,
}

/// A store of a [`SimulatedEngine`].
#[derive(Debug)]
pub struct SimulatedStore {
    engine: SimulatedEngine,
    folder: PathBuf,
    /// So many crashes there had been when it was opened.
    crashes: u64,
    memory: Mutex<Memory>,
}

impl SimulatedStore {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of a store that the last crash has not ended.
    fn alive(&self) -> Result<MutexGuard<'_, Memory>, Error> {
        if self.engine.disk().crashes != self.crashes {
            let why = "its process has crashed".to_owned();
            return Err(Error::Broken { path: self.folder.clone(), why });
        }
        Ok(self.memory())
    }

    fn usable(&self) -> Result<MutexGuard<'_, Memory>, Error> {
        let memory = self.alive()?;
        match self.condition() {
            Condition::Usable { .. } => Ok(memory),
            Condition::Filling { position, .. } => Err(Error::Filling { position }),
        }
    }

    fn write(&self, stored: Stored) -> Result<(), Error> {
        let mut disk = self.engine.disk();
        if disk.refuses_writes {
            let source = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::NoRoom {
                path: self.folder.clone(),
                doing: "write to the simulated disk",
                source,
            });
        }
        disk.stores.insert(self.folder.clone(), stored);
        Ok(())
    }
}

impl Store for SimulatedStore {
    type Snapshot = SimulatedSnapshot;

    fn condition(&self) -> Condition {
        let stored = self.engine.disk().stores.get(&self.folder).map(|stored| stored.condition.clone());
        stored.unwrap_or(Condition::Usable { flushed: LogPosition::default() })
    }

    fn applied(&self) -> LogPosition {
        self.memory().applied
    }

    fn apply(&self, before: LogPosition, position: LogPosition, changes: &[Change<'_>]) -> Result<(), Error> {
        let mut memory = self.usable()?;
        check_group(memory.applied, before, position, changes)?;
        let rows = Arc::make_mut(&mut memory.rows);
        for change in changes {
            let key = SharedBytes::from(change.key);
            match change.value {
                Some(value) => rows.insert(key, value.into()),
                None => rows.remove(&key),
            };
        }
        let bytes = |change: &Change<'_>| {
            change.key.len() + change.value.unwrap_or_default().len() + ROW_OVERHEAD_BYTES
        };
        memory.unflushed_bytes += changes.iter().map(bytes).sum::<usize>();
        memory.applied = position;
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<SharedBytes>, Error> {
        Ok(self.usable()?.rows.get(&SharedBytes::from(key)).cloned())
    }

    fn snapshot(&self) -> Result<SimulatedSnapshot, Error> {
        let memory = self.usable()?;
        Ok(SimulatedSnapshot { rows: memory.rows.clone(), position: memory.applied })
    }

    fn unflushed_bytes(&self) -> usize {
        self.memory().unflushed_bytes
    }

    fn flush(&self) -> Result<LogPosition, Error> {
        let mut memory = self.usable()?;
        let flushed = memory.applied;
        let stored = Stored { rows: memory.rows.clone(), condition: Condition::Usable { flushed } };
        self.write(stored)?;
        memory.unflushed_bytes = 0;
        Ok(flushed)
    }

    fn fill(&self, position: LogPosition, rows: &[Row], is_last: bool) -> Result<(), Error> {
        let mut memory = self.alive()?;
        let has = self.condition();
        check_chunk(&has, memory.applied, position, rows)?;
        let mut filled = memory.rows.clone();
        Arc::make_mut(&mut filled).extend(rows.iter().map(|row| (row.key.clone(), row.value.clone())));
        let condition = condition_after(&has, position, rows, is_last);
        self.write(Stored { rows: filled.clone(), condition })?;
        memory.rows = filled;
        if is_last {
            memory.applied = position;
        }
        Ok(())
    }

    fn compact(&self) -> Result<bool, Error> {
        self.alive().map(|_| false)
    }

    fn size(&self) -> Size {
        let disk = self.engine.disk();
        let rows = disk.stores.get(&self.folder).map(|stored| stored.rows.clone()).unwrap_or_default();
        drop(disk);
        let bytes = rows.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        Size {
            disk_bytes: bytes as u64,
            unflushed_bytes: self.unflushed_bytes() as u64,
            disk_rows: rows.len() as u64,
            runs: 0,
        }
    }

    fn median(&self) -> Result<Option<SharedBytes>, Error> {
        let rows = self.usable()?.rows.clone();
        let bytes = |(key, value): (&SharedBytes, &SharedBytes)| key.len() + value.len();
        Ok(middle(rows.keys().zip(rows.iter().map(bytes))).cloned())
    }

    fn verify(&self) -> Result<(), Error> {
        self.alive().map(|_| ())
    }
}

/// The key with about half of all bytes before it: not the first one, so that both halves have a row.
pub(super) fn middle<K>(sizes: impl Iterator<Item = (K, usize)> + Clone) -> Option<K> {
    let whole: usize = sizes.clone().map(|(_, bytes)| bytes + 1).sum();
    let mut before = 0;
    for (number, (key, bytes)) in sizes.enumerate() {
        // The last row always fits: what is before it is not nothing.
        if number > 0 && 2 * before + bytes >= whole {
            return Some(key);
        }
        before += bytes + 1;
    }
    None
}

/// A snapshot of a [`SimulatedStore`].
#[derive(Debug, Clone)]
pub struct SimulatedSnapshot {
    rows: Map,
    position: LogPosition,
}

impl Snapshot for SimulatedSnapshot {
    fn position(&self) -> LogPosition {
        self.position
    }

    fn get(&self, key: &[u8]) -> Result<Option<SharedBytes>, Error> {
        Ok(self.rows.get(&SharedBytes::from(key)).cloned())
    }

    fn range<'a>(&'a self, from: Option<&[u8]>, to: Option<&[u8]>, direction: Direction) -> Rows<'a> {
        if to.is_some_and(|to| to <= from.unwrap_or_default()) {
            return Box::new(std::iter::empty());
        }
        let from = from.map_or(Bound::Unbounded, |key| Bound::Included(SharedBytes::from(key)));
        let to = to.map_or(Bound::Unbounded, |key| Bound::Excluded(SharedBytes::from(key)));
        let row =
            |(key, value): (&SharedBytes, &SharedBytes)| Ok(Row { key: key.clone(), value: value.clone() });
        let range = self.rows.range((from, to));
        match direction {
            Direction::Forward => Box::new(range.map(row)),
            Direction::Backward => Box::new(range.rev().map(row)),
        }
    }
}
