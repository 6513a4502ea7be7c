//! Calls of the library `lsm-tree`: its panics and errors become errors of this crate.
//!
//! The tree only ever takes sorted runs. It numbers them by itself; a reader that gives a number sees the runs with lower ones.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lsm_tree::compaction::Leveled;
use lsm_tree::config::PinningPolicy;
use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, KvSeparationOptions, SequenceNumberCounter,
    Slice,
};

use super::super::layers::Entry;
use super::super::limits::{DUE_RUNS, SEPARATED_BYTES, VALUE_FILE_BYTES};
use super::super::merge::Source;
use super::super::stored_form::ROWS;
use super::super::{Direction, Error};
use super::{damage, folder};

/// What all trees of a node share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) cache: Arc<Cache>,
    pub(super) files: Arc<DescriptorTable>,
    pub(super) run_file_bytes: u64,
}

/// The tree of one store.
pub(super) struct Library {
    folder: PathBuf,
    tree: AnyTree,
    files: Arc<DescriptorTable>,
    run_file_bytes: u64,
    /// The number of the next run, and of the next reader.
    visible: SequenceNumberCounter,
    /// The numbers of the readers, and how many have each.
    readers: Mutex<BTreeMap<u64, usize>>,
}

/// A reader of the runs that the tree had when it was made. They are kept while it lives.
pub(super) struct Reader {
    library: Arc<Library>,
    number: u64,
}

impl Library {
    /// Opens the tree in a folder, or begins one.
    pub(super) fn open(path: &Path, shared: &Shared) -> Result<Library, Error> {
        folder::prepare(path)?;
        let (next, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        let separation = KvSeparationOptions::default()
            .separation_threshold(SEPARATED_BYTES)
            .file_target_size(VALUE_FILE_BYTES);
        let config = Config::new(path, next.clone(), visible.clone())
            .use_cache(shared.cache.clone())
            .use_descriptor_table(Some(shared.files.clone()))
            // Blocks of thousands of trees would not fit: all of them are in the cache or nowhere.
            .index_block_pinning_policy(PinningPolicy::all(false))
            .filter_block_pinning_policy(PinningPolicy::all(false))
            .with_kv_separation(Some(separation));
        let tree = guarded(path, "open", || config.open())
            .map_err(|error| damage::name_damaged_file_of_closed(path, error, shared))?;
        // From 1 on: 0 would mean the first of all states to a reader.
        let first = tree.get_highest_persisted_seqno().map_or(1, |last| last + 1);
        next.set(first);
        visible.set(first);
        Ok(Library {
            folder: path.to_owned(),
            tree,
            files: shared.files.clone(),
            run_file_bytes: shared.run_file_bytes,
            visible,
            readers: Mutex::default(),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn run_file_bytes(&self) -> u64 {
        self.run_file_bytes
    }

    pub(super) fn tree(&self) -> &AnyTree {
        &self.tree
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tree.table_count() == 0
    }

    /// Runs of the first level.
    pub(super) fn runs(&self) -> usize {
        self.tree.l0_run_count()
    }

    /// The value of a stored key in the newest run that has it.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Slice>, Error> {
        self.get_at(key, u64::MAX)
    }

    fn get_at(&self, key: &[u8], number: u64) -> Result<Option<Slice>, Error> {
        guarded(&self.folder, "read a row", || self.tree.get(key, number))
            .map_err(|error| damage::name_damaged_file(self, Some(key), error))
    }

    /// The last row of the table.
    pub(super) fn last_key(self: &Arc<Library>) -> Result<Option<Slice>, Error> {
        let last = self.reader().rows(ROWS.0, ROWS.1, Direction::Backward).next();
        Ok(last.transpose()?.map(|(key, _)| key))
    }

    /// Adds a run as a whole, on the disk when the call returns. Stored keys ascend. Nothing else writes to the tree meanwhile.
    ///
    /// # Errors
    /// After [`Error::NoRoom`] all is as it was.
    pub(super) fn ingest(&self, rows: impl Iterator<Item = Entry>) -> Result<(), Error> {
        self.all_or_nothing("write a run", || {
            let (mut run, mut is_separated) = (self.tree.ingestion()?, false);
            for (key, value) in rows {
                match value {
                    Some(value) => {
                        is_separated |= value.len() >= SEPARATED_BYTES as usize;
                        run.write(key, value)?;
                    }
                    None => run.write_tombstone(key)?,
                }
            }
            if is_separated {
                // The library syncs the other folders. The names of the files are there before the run is complete.
                sync_folder(&self.folder.join(folder::VALUES))?;
            }
            run.finish()
        })?;
        self.remove_old_runs();
        Ok(())
    }

    /// Changes the tree wholly or not at all. If the disk is full, it removes the part that was written, so that the next attempt
    /// has as much room.
    fn all_or_nothing<T>(
        &self,
        doing: &'static str,
        write: impl FnOnce() -> lsm_tree::Result<T>,
    ) -> Result<T, Error> {
        let before = folder::files(&self.folder)?;
        match guarded(&self.folder, doing, write) {
            Err(Error::Io { source, .. }) if is_full(&source) => {
                let path = self.folder.clone();
                let list = guarded(&path, "list the files", || Ok(self.tree.current_version().id()))?;
                if folder::current_list(&path)?.0 != list {
                    // The new list is in use on the disk, and the tree does not know it.
                    return Err(Error::Io { path, doing, source });
                }
                folder::remove_leftovers(&path, &before, list + 1)?;
                Err(Error::NoRoom { path, doing, source })
            }
            done => done,
        }
    }

    /// One step of compaction. Says whether something changed. Nothing else writes to the tree meanwhile.
    ///
    /// # Errors
    /// After [`Error::NoRoom`] all is as it was.
    pub(super) fn compact(&self) -> Result<bool, Error> {
        let kept = self.oldest_reader();
        let strategy =
            Leveled::default().with_l0_threshold(DUE_RUNS).with_table_target_size(self.run_file_bytes);
        let has_changed = self
            .all_or_nothing("compact", || {
                let before = self.tree.current_version().id();
                self.tree.compact(Arc::new(strategy), kept)?;
                Ok(self.tree.current_version().id() != before)
            })
            .map_err(|error| damage::name_damaged_file(self, None, error))?;
        if has_changed && self.tree.blob_file_count() > 0 {
            // Compaction may have copied values to a new file. The library has synced that, and not its name.
            folder::sync(&self.folder.join(folder::VALUES))?;
        }
        self.remove_old_runs();
        Ok(has_changed)
    }

    /// Removes the files of runs that no reader needs any more. The library would do so only after the next compaction.
    fn remove_old_runs(&self) {
        let kept = self.oldest_reader();
        // If a file cannot be removed now, the next opening removes it.
        let _ = guarded(&self.folder, "remove old files", || {
            self.tree.get_version_history_lock().maintenance(&self.folder, kept)
        });
    }

    /// The lowest number that a reader has or may get.
    fn oldest_reader(&self) -> u64 {
        let readers = self.readers();
        readers.keys().next().copied().unwrap_or_else(|| self.visible.get())
    }

    pub(super) fn reader(self: &Arc<Library>) -> Reader {
        let mut readers = self.readers();
        let number = self.visible.get();
        *readers.entry(number).or_default() += 1;
        drop(readers);
        Reader { library: self.clone(), number }
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Library {
    /// Closes the files: the room of a removed one is only given back then, and the table of open files has no other occasion.
    fn drop(&mut self) {
        let _ = guarded(&self.folder, "close the files", || {
            let (tree, version) = (self.tree.id(), self.tree.current_version());
            for run in version.iter_tables() {
                self.files.remove_for_table(&(tree, run.id()).into());
            }
            for values in version.blob_files.iter() {
                self.files.remove_for_blob_file(&(tree, values.id()).into());
            }
            Ok(())
        });
    }
}

impl Reader {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Slice>, Error> {
        self.library.get_at(key, self.number)
    }

    /// The rows from a stored key on and before another one.
    pub(super) fn rows(&self, from: &[u8], to: &[u8], direction: Direction) -> Source<'static> {
        let library = self.library.clone();
        let range =
            guarded(&library.folder, "read rows", || Ok(library.tree.range(from..to, self.number, None)));
        let mut range = match range {
            Ok(range) => range,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let mut last = Slice::from(from);
        Box::new(std::iter::from_fn(move || {
            let next = guarded(&library.folder, "read rows", || {
                let next = match direction {
                    Direction::Forward => range.next(),
                    Direction::Backward => range.next_back(),
                };
                next.map(Guard::into_inner).transpose()
            });
            match next {
                Ok(next) => next.map(|(key, value)| {
                    last = key.clone();
                    Ok((key, Some(value)))
                }),
                Err(error) => Some(Err(damage::name_damaged_file(&library, Some(&last), error))),
            }
        }))
    }

    /// The stored key before which half of the bytes of all rows lie, found by reading all keys; no separated value is read.
    pub(super) fn middle(&self) -> Result<Option<Slice>, Error> {
        let tree = &self.library.tree;
        guarded(&self.library.folder, "read sizes", || {
            let mut sizes = Vec::new();
            for row in tree.range(ROWS.0..ROWS.1, self.number, None) {
                sizes.push(row.size()?);
            }
            let sizes = sizes.iter().enumerate().map(|(number, bytes)| (number, *bytes as usize));
            let Some(middle) = super::super::simulated::middle(sizes) else { return Ok(None) };
            tree.range(ROWS.0..ROWS.1, self.number, None).nth(middle).map(Guard::key).transpose()
        })
        .map_err(|error| damage::name_damaged_file(&self.library, None, error))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut readers = self.library.readers();
        if let Some(count) = readers.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.number);
            }
        }
    }
}

/// Calls the library, and turns its panic into an error.
pub(super) fn guarded<T>(
    folder: &Path,
    doing: &'static str,
    call: impl FnOnce() -> lsm_tree::Result<T>,
) -> Result<T, Error> {
    // A panic poisons the locks of the library, so later calls panic as well: no half-done change is used.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(to_error(folder, doing, error)),
        Err(panic) => {
            Err(Error::Panicked { path: folder.to_owned(), doing, what: panic_text(panic.as_ref()) })
        }
    }
}

fn to_error(folder: &Path, doing: &'static str, error: lsm_tree::Error) -> Error {
    let damaged = |what: String| Error::Damaged { path: folder.to_owned(), what: format!("{doing}: {what}") };
    match error {
        lsm_tree::Error::Io(source) if is_damage(&source) => damaged(source.to_string()),
        lsm_tree::Error::Io(source) => Error::Io { path: folder.to_owned(), doing, source },
        other => damaged(other.to_string()),
    }
}

/// Whether an error says that a file is not there or is other than it must be.
fn is_damage(error: &io::Error) -> bool {
    use ErrorKind::{InvalidData, InvalidInput, NotFound, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | NotFound | InvalidData | InvalidInput)
}

/// Whether an error says that there is no room: the disk is full, or a quota is used up, or the process may not make a file any
/// larger.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}

/// Syncs a folder, so that the names in it are on the disk.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
