//! The engine of the product: a sorted map in memory over one `lsm-tree` for each store.
//!
//! The tree only ever takes sorted runs, by the library's ingestion: its own map in memory stays empty, and it has no log. Each
//! run of a flush begins with the row that says up to which log position the store has everything. The library adds a run by
//! writing a new list of files and then renaming a small file over `current`, so that a crash leaves either the list with the run
//! or the one without it.
//!
//! A flush freezes the map, writes it as a run without a lock, and drops it when the run is in the tree; a read in between finds
//! the same rows in both.
//!
//! What the library does not do, and this engine does: it compares the list of files with its checksum (`folder.rs`), catches
//! panics (`library.rs`), finds the damaged file (`damage.rs`), keeps the runs of the first level below the number that
//! the list can hold, and syncs the folder of separated values.

mod damage;
mod folder;
mod library;
mod snapshot;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lsm_tree::{AbstractTree, Cache, DescriptorTable, Slice};
use partage_service::table::replication::LogPosition;

use super::layers::{Entry, Layers, merged};
use super::limits::{
    CACHE_BYTES, KEY_BYTES, MEDIAN_FILES, OPEN_FILES, RUN_FILE_BYTES, RUNS, STEPS_BEFORE_FLUSH,
};
use super::stored_form::{STATE_KEY, decode, encode, stored_key_of, with_stored_key};
use super::{
    Change, Condition, Direction, Engine, Error, Row, SharedBytes, Size, Snapshot, Store, check_chunk,
    check_group, condition_after, simulated,
};
use library::{Library, Shared};
pub use snapshot::TreeSnapshot;

/// What all stores of a node share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Memory for blocks of runs and for separated values.
    pub cache_bytes: u64,
    /// Files that are kept open.
    pub open_files: usize,
    /// Size at which compaction begins another file of a run.
    pub run_file_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: CACHE_BYTES, open_files: OPEN_FILES, run_file_bytes: RUN_FILE_BYTES }
    }
}

/// The stores of a node.
#[derive(Clone)]
pub struct TreeEngine(Shared);

impl TreeEngine {
    /// An engine whose stores share a cache.
    pub fn new(options: Options) -> TreeEngine {
        TreeEngine(Shared {
            cache: Arc::new(Cache::with_capacity_bytes(options.cache_bytes)),
            files: Arc::new(DescriptorTable::new(options.open_files)),
            run_file_bytes: options.run_file_bytes,
        })
    }
}

impl Default for TreeEngine {
    fn default() -> TreeEngine {
        TreeEngine::new(Options::default())
    }
}

impl Engine for TreeEngine {
    type Store = TreeStore;

    fn open(&self, folder: &Path) -> Result<TreeStore, Error> {
        let library = Arc::new(Library::open(folder, &self.0)?);
        let damaged = |what: &str| Error::Damaged { path: folder.to_owned(), what: what.to_owned() };
        let condition = match library.get(STATE_KEY)? {
            None if library.is_empty() => Condition::Usable { flushed: LogPosition::default() },
            None => return Err(damaged("the row with the log position is missing")),
            Some(row) => {
                match decode(&row).ok_or_else(|| damaged("the row with the log position is unreadable"))? {
                    (flushed, true) => Condition::Usable { flushed },
                    (position, false) => {
                        let through = library.last_key()?.map(SharedBytes::stored_key);
                        Condition::Filling { position, through }
                    }
                }
            }
        };
        let applied = match condition {
            Condition::Usable { flushed } => flushed,
            Condition::Filling { .. } => LogPosition::default(),
        };
        let state = State { condition, applied, layers: Layers::default(), broken: None };
        Ok(TreeStore {
            library,
            state: RwLock::new(state),
            writing: Mutex::new(()),
            compacting: Mutex::new(()),
        })
    }

    fn remove(&self, path: &Path) -> Result<(), Error> {
        folder::remove(path)
    }
}

struct State {
    condition: Condition,
    applied: LogPosition,
    layers: Layers,
    /// Why the store must be opened again.
    broken: Option<String>,
}

impl State {
    fn usable(&self) -> Result<(), Error> {
        match self.condition {
            Condition::Usable { .. } => Ok(()),
            Condition::Filling { position, .. } => Err(Error::Filling { position }),
        }
    }
}

/// A store of a [`TreeEngine`].
pub struct TreeStore {
    library: Arc<Library>,
    state: RwLock<State>,
    /// One flush or filling at a time.
    writing: Mutex<()>,
    /// One step of compaction, or one write of a run, at a time: each must know which files are its own.
    compacting: Mutex<()>,
}

impl TreeStore {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_not_broken(&self, state: &State) -> Result<(), Error> {
        match &state.broken {
            Some(why) => Err(Error::Broken { path: self.library.folder().to_owned(), why: why.clone() }),
            None => Ok(()),
        }
    }

    /// The value of a key if the rows in memory have or delete it, with the position of the last applied group; none: only the
    /// disk knows. Never blocks on the disk.
    pub fn get_in_memory(&self, key: &[u8]) -> Option<(LogPosition, Option<SharedBytes>)> {
        if key.len() > KEY_BYTES {
            return None;
        }
        with_stored_key(key, |key| {
            let state = self.read();
            state.usable().ok()?;
            let value = state.layers.get(key)?.clone();
            Some((state.applied, value.map(SharedBytes::value)))
        })
    }

    /// Writes to the disk. After an error other than [`Error::NoRoom`] the store is broken, as part of the write may be there.
    fn write_to_disk<T>(&self, write: impl FnOnce(&Library) -> Result<T, Error>) -> Result<T, Error> {
        let _one = self.compacting.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_not_broken(&self.read())?;
        let written = write(&self.library);
        if let Err(error) = &written
            && !error.is_no_room()
        {
            self.mark_broken(error);
        }
        written
    }

    /// The store must be opened again.
    fn mark_broken(&self, error: &Error) {
        self.write().broken = Some(error.to_string());
    }

    /// Compacts while the first level has so many runs that another one might not be stored.
    fn make_room(&self) -> Result<(), Error> {
        for _ in 0..STEPS_BEFORE_FLUSH {
            if self.library.runs() < RUNS {
                return Ok(());
            }
            self.compact()?;
        }
        let runs = self.library.runs();
        if runs < RUNS {
            Ok(())
        } else {
            Err(Error::TooManyRuns { path: self.library.folder().to_owned(), runs })
        }
    }

    /// A bound between files of the sorted levels, if they have most of the data.
    fn median_by_files(&self) -> Option<SharedBytes> {
        let version = library::guarded(self.library.folder(), "list the files", || {
            Ok(self.library.tree().current_version())
        })
        .ok()?;
        let bytes = |table: &lsm_tree::Table| {
            table.metadata.file_size + table.referenced_blob_bytes().unwrap_or_default()
        };
        let mut files: Vec<(Slice, u64)> = Vec::new();
        for run in version.iter_levels().skip(1).flat_map(|level| level.iter()) {
            files.extend(run.iter().map(|table| (table.metadata.key_range.max().clone(), bytes(table))));
        }
        let first_level =
            version.iter_tables().map(bytes).sum::<u64>() - files.iter().map(|file| file.1).sum::<u64>();
        if files.len() < MEDIAN_FILES {
            return None;
        }
        files.retain(|(last, _)| &**last > STATE_KEY);
        files.sort();
        let whole: u64 = files.iter().map(|file| file.1).sum();
        if first_level > whole {
            return None;
        }
        let mut before = 0;
        let (last, bytes) = files.into_iter().find(|(_, bytes)| {
            before += bytes;
            2 * before >= whole
        })?;
        // A file with a large part of all data has no bound near the middle.
        (4 * bytes <= whole).then(|| SharedBytes::stored_key(last))
    }
}

impl Store for TreeStore {
    type Snapshot = TreeSnapshot;

    fn condition(&self) -> Condition {
        self.read().condition.clone()
    }

    fn applied(&self) -> LogPosition {
        self.read().applied
    }

    fn apply(&self, before: LogPosition, position: LogPosition, changes: &[Change<'_>]) -> Result<(), Error> {
        let mut state = self.write();
        state.usable()?;
        self.check_not_broken(&state)?;
        check_group(state.applied, before, position, changes)?;
        state.layers.apply(changes);
        state.applied = position;
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<SharedBytes>, Error> {
        if key.len() > KEY_BYTES {
            return Ok(None);
        }
        with_stored_key(key, |key| {
            let state = self.read();
            state.usable()?;
            if let Some(value) = state.layers.get(key) {
                return Ok(value.clone());
            }
            drop(state);
            // If a flush has ended in between, the tree has its run.
            self.library.get(key)
        })
        .map(|value| value.map(SharedBytes::value))
    }

    fn snapshot(&self) -> Result<TreeSnapshot, Error> {
        let mut state = self.write();
        state.usable()?;
        let layers = state.layers.freeze();
        Ok(TreeSnapshot { reader: self.library.reader(), layers, position: state.applied })
    }

    fn unflushed_bytes(&self) -> usize {
        self.read().layers.bytes()
    }

    fn flush(&self) -> Result<LogPosition, Error> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room()?;
        let (layers, position) = {
            let mut state = self.write();
            state.usable()?;
            self.check_not_broken(&state)?;
            if state.condition == (Condition::Usable { flushed: state.applied }) {
                return Ok(state.applied);
            }
            (state.layers.begin_flush(), state.applied)
        };
        let whole = merged(&layers);
        let first = std::iter::once(state_row(position, true));
        let rows =
            whole.iter().flat_map(|layer| layer.iter()).map(|(key, value)| (key.clone(), value.clone()));
        let written = self.write_to_disk(|library| library.ingest(first.chain(rows)));
        let mut state = self.write();
        match written {
            Ok(()) => {
                state.layers.flushed();
                state.condition = Condition::Usable { flushed: position };
                Ok(position)
            }
            Err(error) => {
                state.layers.not_flushed();
                Err(error)
            }
        }
    }

    fn fill(&self, position: LogPosition, rows: &[Row], is_last: bool) -> Result<(), Error> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_room()?;
        let has = {
            let state = self.read();
            self.check_not_broken(&state)?;
            check_chunk(&state.condition, state.applied, position, rows)?;
            state.condition.clone()
        };
        // Only the first run of a filling has a row of the store, and the last one has nothing else: so those between do not
        // overlap, and the library does not merge them.
        let first = matches!(has, Condition::Usable { .. }).then(|| state_row(position, false));
        if first.is_some() || !rows.is_empty() {
            let rows = rows.iter().map(|row| (stored_key_of(&row.key), Some(row.value.to_slice())));
            self.write_to_disk(|library| library.ingest(first.into_iter().chain(rows)))?;
        }
        if is_last {
            // The rows of the chunk are there, so that it cannot be added again.
            let end =
                self.write_to_disk(|library| library.ingest(std::iter::once(state_row(position, true))));
            end.inspect_err(|error| self.mark_broken(error))?;
        }
        let mut state = self.write();
        state.condition = condition_after(&has, position, rows, is_last);
        if is_last {
            state.applied = position;
        }
        Ok(())
    }

    fn compact(&self) -> Result<bool, Error> {
        self.write_to_disk(Library::compact)
    }

    fn size(&self) -> Size {
        let unflushed_bytes = self.unflushed_bytes() as u64;
        let tree = self.library.tree();
        // A tree whose locks are poisoned has no size.
        let disk = library::guarded(self.library.folder(), "list the files", || {
            Ok(Size {
                disk_bytes: tree.disk_space(),
                unflushed_bytes,
                disk_rows: tree.approximate_len() as u64,
                runs: tree.l0_run_count(),
            })
        });
        disk.unwrap_or(Size { unflushed_bytes, ..Size::default() })
    }

    fn median(&self) -> Result<Option<SharedBytes>, Error> {
        let size = self.size();
        if size.disk_bytes <= self.library.run_file_bytes() / 2 || size.disk_bytes <= size.unflushed_bytes {
            let snapshot = self.snapshot()?;
            let mut sizes = Vec::new();
            for row in snapshot.range(None, None, Direction::Forward) {
                let row = row?;
                sizes.push((row.key.clone(), row.key.len() + row.value.len()));
            }
            return Ok(simulated::middle(sizes.into_iter()));
        }
        self.read().usable()?;
        match self.median_by_files() {
            Some(key) => Ok(Some(key)),
            None => Ok(self.library.reader().middle()?.map(SharedBytes::stored_key)),
        }
    }

    fn verify(&self) -> Result<(), Error> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let compacting = self.compacting.lock().unwrap_or_else(PoisonError::into_inner);
        folder::check_list(self.library.folder())?;
        drop((writing, compacting));
        damage::verify(&self.library)
    }
}

/// The row of the store itself.
fn state_row(position: LogPosition, is_complete: bool) -> Entry {
    (Slice::from(STATE_KEY), Some(Slice::from(encode(position, is_complete))))
}
