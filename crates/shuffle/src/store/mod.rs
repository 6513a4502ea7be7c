//! The files in which a holder keeps batches.
//!
//! ```text
//!  batches ─► group ─┬─► file of shuffle A ─┐ one write of each file, then all are synced at once,
//!                    └─► file of shuffle B ─┘   then the holder hears that they are stored
//! ```
//!
//! Each shuffle has files of its own in one folder, so a shuffle that ends gives all of its room back at once, by deleting files.
//! A file is added to until it is large, and never after the process that made it. [`Store`] writes, [`BatchReader`] reads.
//!
//! # What is promised
//!
//! - When [`Store::store`] names a batch as stored, the batch is on stable storage. One of durability `memory` is written, so
//!   that it outlives the process; the system brings it to the disk when it likes. A full disk is a definite answer: nothing of
//!   these batches is there, and the next call may succeed. After any other error the process must end ([`StoreError::Ends`]):
//!   a failed sync is never tried again, as the kernel may have dropped what it says it has.
//! - A start finds every batch that was stored; after the power was gone, every one that was synced. It syncs what it finds:
//!   that counts as stored from now on. It cuts off what is unfinished, and reports each place that is damaged by file and
//!   offset; the batches behind such a place are found (`file.rs`).
//!   A batch of the last group may be there that was never acknowledged: a batch never changes, so that does no harm.
//! - A read checks all that it gives: a batch by the checksum of its frame, its head and the records of a range by their own
//!   (`read.rs`).
//! - What is dropped stays dropped while the process lives. After a crash it may be there again: the holder asks the home of the
//!   shuffle, or compares the slot, and drops it once more.
//! - Of files that are added to so many are open as [`StoreSettings::open_files`] says, and twice as many at most while a group
//!   is written; the others are opened again when a batch comes. Of each the store keeps some numbers in memory, less than of one
//!   batch.
//! - When most of a file is not wanted any more, because slots were dropped, the store writes the rest of it anew and deletes the
//!   file. It syncs the copy of each of them: the system may have brought it to the disk long before.
//! - Batches in the form of another version of the program are not damage: the store is not opened, and none is removed.
//! - Two processes cannot open one folder.

mod error;
mod file;
mod index;
mod read;
mod syncing;
#[cfg(test)]
pub(crate) mod tests;

pub use error::{BatchError, StoreError};
pub use index::Place;
pub use partage_log::Damage;
pub use read::BatchReader;
pub(crate) use read::RangeSource;

use crate::forms::batch::OtherVersion;
use crate::limits::{KEPT_OF_FILE, LITTLE_OF_GROUP_BYTES, REWRITTEN_AT_ONCE, REWRITTEN_BYTES};
use file::{AppendError, BatchFile};
use index::Index;
use partage_journal::{AlignedBuffer, Disk};
use partage_service::shuffle::record::{Batch, BatchKey, EndMark};
use partage_service::shuffle::{Durability, PoolSlot, ShuffleId};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use syncing::SyncThreads;

/// The file that keeps two processes apart.
const LOCK: &str = "lock";

/// When a slot goes, files are written anew of which less than one in so many bytes is wanted.
const SPARSE_OF_SLOT: u64 = 2;
/// The same when copies go, as the object store has them: the other slots of the shuffle go soon, and files then need no copy.
const SPARSE_OF_COPIES: u64 = 8;

/// The numbers that a store runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// Bytes after which a file is added to no more. Large, so that few files are synced; small against memory, as a start
    /// reads each file as a whole.
    pub file_bytes: u64,
    /// Files that are open for writing, the ones that were added to last. Enough for the shuffles that write at a time, few
    /// against what the system gives a process.
    pub open_files: usize,
}

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings { file_bytes: 64 << 20, open_files: 256 }
    }
}

/// What a start has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The batches, and the marks that they carry.
    pub batches: Vec<(BatchKey, Option<EndMark>)>,
    /// The places that are damaged. The batches that lay there are not among those above.
    pub damages: Vec<Damage>,
    /// How many files ended in an unfinished group.
    pub unfinished: usize,
}

/// What became of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Written {
    /// As their durability says.
    pub stored: Vec<BatchKey>,
    /// Not there, as the disk is full.
    pub refused: Vec<BatchKey>,
}

/// The files of one node.
#[derive(Debug)]
pub struct Store {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    settings: StoreSettings,
    index: Arc<Mutex<Index>>,
    /// The file of each shuffle that is added to.
    heads: BTreeMap<ShuffleId, BatchFile>,
    /// The shuffles whose files are open, the one that was added to last at the end.
    open: VecDeque<ShuffleId>,
    next_file: u64,
    /// What is written: the same memory for each group, as the system would have to clear fresh one.
    buffer: AlignedBuffer,
    syncing: SyncThreads,
    ended: Option<StoreError>,
    _lock: Box<dyn Any + Send>,
}

/// Whether a store that is open, in this process or another one, has the folder.
///
/// # Errors
/// The disk failed.
pub fn is_locked(disk: &dyn Disk, dir: &Path) -> Result<bool, StoreError> {
    match disk.lock(&dir.join(LOCK)) {
        Ok(lock) => Ok(lock.is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("locking", dir)(error)),
    }
}

impl Store {
    /// Opens the files in `dir`, and makes the folder if there is none.
    ///
    /// # Errors
    /// Another process has the folder, another version of the program has written it, or the disk failed. Damage is no error:
    /// [`Found`] says where it is.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: StoreSettings,
    ) -> Result<(Store, Found), StoreError> {
        disk.create_dir(dir).map_err(failed("making", dir))?;
        let lock = disk.lock(&dir.join(LOCK)).map_err(failed("locking", dir))?;
        let lock = lock.ok_or_else(|| StoreError::Locked(dir.display().to_string()))?;
        let names = disk.list(dir).map_err(failed("listing", dir))?;
        let mut store = Store {
            disk,
            dir: dir.to_owned(),
            settings,
            index: Arc::default(),
            heads: BTreeMap::new(),
            open: VecDeque::new(),
            next_file: 1,
            buffer: AlignedBuffer::default(),
            syncing: SyncThreads::default(),
            ended: None,
            _lock: lock,
        };
        let mut found = Found::default();
        let mut files: Vec<(u64, ShuffleId)> = names
            .iter()
            .filter_map(|name| file::parse(name))
            .map(|(shuffle, number)| (number, shuffle))
            .collect();
        files.sort_unstable();
        for (number, shuffle) in files {
            store.next_file = store.next_file.max(number.saturating_add(1));
            store.take_up(shuffle, number, &mut found)?;
        }
        store.remove_unused()?;
        // The process before may have ended between a change of names and its sync.
        store.disk.sync_dir(dir).map_err(failed("syncing", dir))?;
        Ok((store, found))
    }

    fn take_up(&mut self, shuffle: ShuffleId, number: u64, found: &mut Found) -> Result<(), StoreError> {
        let path = file::path(&self.dir, shuffle, number);
        let bytes = self.disk.read(&path).map_err(failed("reading", &path))?;
        let scanned = file::scan(bytes, shuffle, number);
        if let Some(other) = scanned.other_version {
            let path = path.display().to_string();
            return Err(match other {
                OtherVersion::Earlier => StoreError::Earlier(path),
                OtherVersion::Later => StoreError::Later(path),
            });
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let damages = scanned.damages.into_iter();
        found.damages.extend(damages.map(|one| Damage {
            file: name.clone(),
            offset: one.offset,
            what: one.what,
        }));
        found.unfinished += usize::from(scanned.cut_at.is_some());
        if !scanned.batches.is_empty() {
            self.bring_to_disk(&path, scanned.cut_at)?;
        }
        if scanned.is_foreign {
            // It stays for a person to look at.
            return Ok(());
        }
        let mut index = lock(&self.index);
        index.add_file(number, shuffle);
        for (key, mark, place) in scanned.batches {
            if index.get(&key).is_none() {
                found.batches.push((key.clone(), mark));
            }
            index.insert(&key, place);
        }
        Ok(())
    }

    /// What a start finds counts as stored from now on, and the process before may not have synced it. Nothing is added to the
    /// file any more, so no later group syncs it.
    fn bring_to_disk(&self, path: &Path, cut_at: Option<u64>) -> Result<(), StoreError> {
        let mut file = self.disk.open(path).map_err(failed("opening", path))?;
        if let Some(end) = cut_at {
            file.set_len(end).map_err(failed("cutting", path))?;
        }
        file.sync().map_err(failed("syncing", path))
    }

    /// A reader of these files. Each copy may be used by another thread.
    pub fn reader(&self) -> BatchReader {
        BatchReader::new(Arc::clone(&self.disk), self.dir.clone(), Arc::clone(&self.index))
    }

    /// Bytes of all frames, also of those that are not wanted any more.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes()
    }

    /// Writes a group, with one sync for each shuffle in it that has a batch which is to be on disk.
    ///
    /// # Errors
    /// The disk failed: the process must end.
    pub fn store(&mut self, group: &[Arc<Batch>]) -> Result<Written, StoreError> {
        self.store_as(group, false)
    }

    /// The same, and says first what became of the batches of shuffles of which the group has little: these do not wait for what
    /// is written of others.
    ///
    /// # Errors
    /// As of [`Store::store`]. What was said is so.
    pub fn store_each(
        &mut self,
        group: &[Arc<Batch>],
        mut say: impl FnMut(Written),
    ) -> Result<(), StoreError> {
        self.store_parts(group, false, &mut say)
    }

    /// Each file is synced if `syncs_all`.
    fn store_as(&mut self, group: &[Arc<Batch>], syncs_all: bool) -> Result<Written, StoreError> {
        let mut all = Written::default();
        let mut add = |written: Written| {
            all.stored.extend(written.stored);
            all.refused.extend(written.refused);
        };
        self.store_parts(group, syncs_all, &mut add)?;
        Ok(all)
    }

    fn store_parts(
        &mut self,
        group: &[Arc<Batch>],
        syncs_all: bool,
        say: &mut dyn FnMut(Written),
    ) -> Result<(), StoreError> {
        self.check()?;
        let (little, much): (Vec<Part>, Vec<Part>) =
            by_shuffles(group).into_iter().partition(|part| part.bytes < LITTLE_OF_GROUP_BYTES);
        for parts in [little, much] {
            for some in parts.chunks(self.settings.open_files.max(1)) {
                say(self.store_some(some, syncs_all)?);
            }
        }
        Ok(())
    }

    /// Writes what there is of some shuffles, and then syncs their files, all at once.
    fn store_some(&mut self, some: &[Part], syncs_all: bool) -> Result<Written, StoreError> {
        let (mut put, mut to_sync) = (Vec::with_capacity(some.len()), BTreeSet::new());
        let mut written = Written::default();
        for Part { shuffle, batches, .. } in some {
            let syncs = syncs_all || batches.iter().any(|batch| batch.durability == Durability::Disk);
            match self.append(*shuffle, batches, syncs) {
                Ok(places) => {
                    put.push((batches, places));
                    to_sync.extend(syncs.then_some(*shuffle));
                }
                Err(AppendError::Full) => {
                    written.refused.extend(batches.iter().map(|batch| batch.key.clone()));
                }
                Err(AppendError::Unknown(why)) => return Err(self.ends(StoreError::Ends(why))),
            }
        }
        self.sync(&to_sync)?;
        for (batches, places) in put {
            let mut index = lock(&self.index);
            batches.iter().zip(places).for_each(|(batch, place)| index.insert(&batch.key, place));
            written.stored.extend(batches.iter().map(|batch| batch.key.clone()));
        }
        self.close_some(some.iter().map(|part| part.shuffle));
        Ok(written)
    }

    /// Syncs the files of these shuffles that are added to, and the folder if one of them is new.
    fn sync(&mut self, shuffles: &BTreeSet<ShuffleId>) -> Result<(), StoreError> {
        let head = |shuffle: &ShuffleId| Some((*shuffle, self.heads.remove(shuffle)?));
        let wanted = shuffles.iter().filter_map(head).collect();
        let (heads, synced) = self.syncing.sync_all(wanted, &self.disk, &self.dir);
        self.heads.extend(heads);
        synced.map_err(|why| self.ends(StoreError::Ends(why)))
    }

    /// These shuffles were added to last. Files that are large are added to no more, and those beyond the bound are closed.
    fn close_some(&mut self, shuffles: impl Iterator<Item = ShuffleId>) {
        for shuffle in shuffles {
            self.open.retain(|open| *open != shuffle);
            match self.heads.get(&shuffle).map(|head| head.end < self.settings.file_bytes) {
                Some(true) => self.open.push_back(shuffle),
                Some(false) => drop(self.heads.remove(&shuffle)),
                None => {}
            }
        }
        while self.open.len() > self.settings.open_files.max(1)
            && let Some(shuffle) = self.open.pop_front()
        {
            // It may have gone with its shuffle.
            self.heads.get_mut(&shuffle).into_iter().for_each(BatchFile::close);
        }
    }

    /// Writes batches to the file of their shuffle, and syncs nothing. The answer says where they lie.
    fn append(
        &mut self,
        shuffle: ShuffleId,
        batches: &[Arc<Batch>],
        syncs: bool,
    ) -> Result<Vec<Place>, AppendError> {
        let mut head = match self.heads.remove(&shuffle) {
            Some(head) => head,
            None => {
                let number = self.next_file;
                let (disk, buffer) = (self.disk.as_ref(), &mut self.buffer);
                let head = BatchFile::create(disk, &self.dir, (shuffle, number), buffer, syncs)?;
                self.next_file += 1;
                lock(&self.index).add_file(number, shuffle);
                head
            }
        };
        let appended = head.append(self.disk.as_ref(), &mut self.buffer, (batches, syncs));
        self.buffer.shrink(usize::try_from(self.settings.file_bytes / KEPT_OF_FILE).unwrap_or(usize::MAX));
        self.heads.insert(shuffle, head);
        appended
    }

    /// All batches of a shuffle go, and its files. The folder is not synced: other shuffles would wait for it, and what is there
    /// again after a crash is dropped then.
    ///
    /// # Errors
    /// The disk failed: the process must end.
    pub fn drop_shuffle(&mut self, shuffle: ShuffleId) -> Result<(), StoreError> {
        self.check()?;
        self.heads.remove(&shuffle);
        lock(&self.index).remove_shuffle(shuffle);
        self.unlink_unused().map(drop)
    }

    /// All batches of a slot go. Files that hold little else are written anew. The answer names batches that were found to be
    /// damaged by that; they stay until they are forgotten.
    ///
    /// # Errors
    /// The disk failed: the process must end.
    pub fn drop_slot(&mut self, slot: PoolSlot) -> Result<Vec<(BatchKey, Place, Damage)>, StoreError> {
        self.check()?;
        lock(&self.index).remove_slot(slot);
        self.rewrite(SPARSE_OF_SLOT)
    }

    /// All batches of a shuffle in a slot go, but for receipts of an object store. Files that hold little else are written anew,
    /// also the one that is added to. The answer is that of [`Store::drop_slot`].
    ///
    /// # Errors
    /// The disk failed: the process must end.
    pub fn drop_copies(
        &mut self,
        shuffle: ShuffleId,
        slot: PoolSlot,
    ) -> Result<Vec<(BatchKey, Place, Damage)>, StoreError> {
        self.check()?;
        lock(&self.index).remove_copies(shuffle, slot);
        let is_sparse = |head: &BatchFile| lock(&self.index).is_sparse(head.number, SPARSE_OF_COPIES);
        if self.heads.get(&shuffle).is_some_and(is_sparse) {
            self.heads.remove(&shuffle);
            self.open.retain(|open| *open != shuffle);
        }
        self.rewrite(SPARSE_OF_COPIES)
    }

    /// A batch that was found to be damaged at that place counts no more. One that was stored anew since, at another place,
    /// stays.
    ///
    /// # Errors
    /// The disk failed: the process must end.
    pub fn forget(&mut self, key: &BatchKey, place: Place) -> Result<(), StoreError> {
        self.check()?;
        lock(&self.index).remove(key, place);
        self.remove_unused()
    }

    /// Writes what is left of files of which less than that part is wanted to other files, those of which least is wanted first.
    /// Each is deleted before the next one is read, so that a disk that is nearly full has room for the copy. What is beyond
    /// [`REWRITTEN_AT_ONCE`] the next call does: batches wait meanwhile.
    fn rewrite(&mut self, part: u64) -> Result<Vec<(BatchKey, Place, Damage)>, StoreError> {
        self.remove_unused()?;
        let heads = self.head_numbers();
        let mut sparse: Vec<(u64, u64)> = lock(&self.index)
            .files()
            .filter(|(number, file)| !heads.contains(number) && file.is_sparse(part))
            .map(|(number, file)| (file.live, number))
            .collect();
        sparse.sort_unstable();
        let (reader, mut damaged, mut copied) = (self.reader(), Vec::new(), 0);
        for (live, number) in sparse {
            if copied > REWRITTEN_AT_ONCE {
                break;
            }
            copied += live;
            let (mut rest, mut bytes, keys) = (Vec::new(), 0, lock(&self.index).of_file(number));
            let mut has_room = true;
            for key in keys {
                match reader.read(&key) {
                    Ok(batch) => {
                        bytes += batch.memory();
                        rest.push(batch);
                    }
                    // What was not copied keeps its file.
                    Err(
                        BatchError::Absent(_)
                        | BatchError::Failed { .. }
                        | BatchError::Moved(_)
                        | BatchError::Object { .. },
                    ) => {}
                    Err(BatchError::Damaged { key, place, damage }) => damaged.push((key, *place, *damage)),
                }
                if bytes >= REWRITTEN_BYTES {
                    has_room = self.store_as(&std::mem::take(&mut rest), true)?.refused.is_empty();
                    bytes = 0;
                }
                if !has_room {
                    break;
                }
            }
            if !has_room || !self.store_as(&rest, true)?.refused.is_empty() {
                // Without room for the copy the file stays.
                break;
            }
            self.remove_unused()?;
        }
        self.remove_unused()?;
        Ok(damaged)
    }

    fn head_numbers(&self) -> BTreeSet<u64> {
        self.heads.values().map(|head| head.number).collect()
    }

    /// Deletes the files in which no batch is wanted, and syncs the folder: then the disk has room for others.
    fn remove_unused(&mut self) -> Result<(), StoreError> {
        if !self.unlink_unused()? {
            return Ok(());
        }
        let synced = self.disk.sync_dir(&self.dir).map_err(failed("syncing", &self.dir));
        synced.map_err(|error| self.ends(error))
    }

    /// Deletes these files. False: there are none.
    fn unlink_unused(&mut self) -> Result<bool, StoreError> {
        let unused: Vec<(u64, ShuffleId)> = lock(&self.index)
            .files()
            .filter(|(_, file)| file.live == 0)
            .map(|(number, file)| (number, file.shuffle))
            .collect();
        for (number, shuffle) in &unused {
            if self.heads.get(shuffle).is_some_and(|head| head.number == *number) {
                self.heads.remove(shuffle);
            }
            let path = file::path(&self.dir, *shuffle, *number);
            match self.disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.ends(failed("removing", &path)(error)));
                }
                _ => lock(&self.index).remove_file(*number),
            }
        }
        Ok(!unused.is_empty())
    }

    fn check(&self) -> Result<(), StoreError> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    fn ends(&mut self, error: StoreError) -> StoreError {
        self.ended.get_or_insert(error).clone()
    }
}

/// What a group has of a shuffle.
struct Part {
    shuffle: ShuffleId,
    /// Bytes of their stored forms, at most.
    bytes: u64,
    batches: Vec<Arc<Batch>>,
}

/// The batches of a group by their shuffles.
fn by_shuffles(group: &[Arc<Batch>]) -> Vec<Part> {
    let mut parts: BTreeMap<ShuffleId, Part> = BTreeMap::new();
    for batch in group {
        let shuffle = batch.key.stream.shuffle;
        let part = parts.entry(shuffle).or_insert_with(|| Part { shuffle, bytes: 0, batches: Vec::new() });
        part.bytes += batch.room();
        part.batches.push(Arc::clone(batch));
    }
    parts.into_values().collect()
}

pub(crate) fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    // A thread that panicked while it had the lock was about to read, or has left one entry too many: none is acknowledged by
    // that.
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.display().to_string();
    move |error| StoreError::Ends(format!("{what} `{path}`: {error}"))
}
