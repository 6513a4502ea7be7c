//! The journal: every transaction, on disk before anyone is told.
//!
//! A ship's log: lines are only added, each signed, and when the book is thick, the present state is
//! copied into a new book and the old one thrown away, in that order. How lines lie in the file and
//! how damage is found is in `frame`; what they say is in `record`.
//!
//! The directory holds `journal-N` (the book, N grows), `identity` (that there must be a book, and whose), and
//! `lock` (one process at a time). `*.tmp` is an unfinished book and is removed at open.
//!
//! # Why not redb, or another library
//!
//! redb 4 was tried first: it lost nothing over 40 kills, but returned a row with a flipped bit without a
//! word, and its integrity check says that something is wrong, not in which file at which byte. The
//! state of a coordinator is small and lives in memory; it needs a log, not a database.
//!
//! # When the disk fails
//!
//! Room is taken, zeroed and synced before it is written, so a full disk is noticed while nothing has
//! been written: a definite error, and the store goes on. Once a record's write or its sync has failed,
//! nobody knows what is on the disk, and a second sync may report success for pages that the kernel has
//! dropped (Rebello et al., "Can Applications Recover from fsync Failures?", 2020). So it is never
//! retried: the outcome is indefinite, and the journal refuses everything until it is opened anew.

use std::any::Any;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes};

use crate::error::{Error, Result};
use crate::limits::SNAPSHOT_RECORD_BYTES;
use crate::transaction::Version;
use crate::watch::Change;

use super::Options;
use super::disk::{Disk, DiskFile};
use super::frame::{self, Damage, FileHeader};
use super::record::{Committed, Record};
use super::replay::replay;
use super::tree::Tree;
use crate::claim::ClusterId;

/// The file that says that there must be a journal, and whose.
pub(crate) const IDENTITY: &str = "identity";
const IDENTITY_MAGIC: [u8; 8] = *b"PARTAGEI";
/// The file that one process at a time holds.
pub(crate) const LOCK: &str = "lock";
const UNFINISHED: &str = ".tmp";

/// An open journal. Owned by the one writer.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    header: FileHeader,
    path: PathBuf,
    file: Box<dyn DiskFile>,
    /// Where the next record goes, and its number.
    end: u64,
    next_record: u64,
    /// The file's length, zeros included.
    len: u64,
    compact_bytes: u64,
    compact_at: u64,
    _lock: Box<dyn Any + Send>,
}

/// How a transaction failed to become durable.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// Nothing was written; the journal is as it was.
    Nothing(Error),
    /// It may be there or not; the journal must not be used any more.
    Unknown(String),
}

/// The name of file `number`.
pub(crate) fn file_name(number: u64) -> String {
    format!("journal-{number:08}")
}

/// The number in a journal's name.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("journal-")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

impl Journal {
    /// Opens the journal in `dir`, or begins one if the directory holds none, and gives the state in it.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<(Self, Tree)> {
        disk.create_dir(dir).map_err(|error| failed("create", dir, &error))?;
        let lock_path = dir.join(LOCK);
        let lock = disk.lock(&lock_path).map_err(|error| failed("lock", &lock_path, &error))?;
        let lock = lock.ok_or_else(|| Error::InUse { dir: dir.to_owned() })?;
        let names = disk.list(dir).map_err(|error| failed("list", dir, &error))?;
        for name in names.iter().filter(|name| name.ends_with(UNFINISHED)) {
            let path = dir.join(name);
            disk.remove(&path).map_err(|error| failed("remove", &path, &error))?;
        }
        let identity = names.iter().any(|name| name == IDENTITY);
        let identity = if identity { Some(read_identity(&*disk, dir)?) } else { None };
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| file_number(name)).collect();
        numbers.sort_unstable();
        let (journal, tree) = match (numbers.pop(), identity) {
            (Some(newest), identity) => Self::reopen(disk, dir, options, lock, newest, identity)?,
            (None, None) => Self::begin(disk, dir, options, lock, Tree::default())?,
            (None, Some(_)) => {
                let what = "the journal that belongs to it is missing from the directory".to_owned();
                return Err(Error::Corrupt { file: dir.join(IDENTITY), offset: 0, what });
            }
        };
        journal.check_cluster(options)?;
        if identity.is_none() {
            write_identity(&*journal.disk, dir, journal.header.cluster)?;
        }
        // Left by a crash between the rename of the newest and the deletion of the one before. The
        // newest has just been read from its first byte to its last.
        for old in numbers {
            let path = dir.join(file_name(old));
            journal.disk.remove(&path).map_err(|error| failed("remove", &path, &error))?;
        }
        Ok((journal, tree))
    }

    /// Begins a journal that holds `tree`, in a directory without one.
    pub fn begin(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
        lock: Box<dyn Any + Send>,
        tree: Tree,
    ) -> Result<(Self, Tree)> {
        let cluster = options.cluster.unwrap_or_else(ClusterId::random).0;
        let header = FileHeader { cluster, file_number: 1, step: options.step_bytes };
        let written =
            write_file(&*disk, dir, header, &tree).map_err(|(path, error)| failed("write", &path, &error))?;
        let path = dir.join(file_name(1));
        let publish = disk.rename(&written.path, &path).and_then(|()| disk.sync_dir(dir));
        publish.map_err(|error| failed("publish", &path, &error))?;
        Ok((Self::over(disk, dir, header, path, written, options.compact_bytes, lock), tree))
    }

    fn over(
        disk: Arc<dyn Disk>,
        dir: &Path,
        header: FileHeader,
        path: PathBuf,
        written: Written,
        compact_bytes: u64,
        lock: Box<dyn Any + Send>,
    ) -> Self {
        let Written { file, end, next_record, len, .. } = written;
        let compact_at = compact_bytes.max(2 * end);
        let dir = dir.to_owned();
        Self { disk, dir, header, path, file, end, next_record, len, compact_bytes, compact_at, _lock: lock }
    }

    fn reopen(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &Options,
        lock: Box<dyn Any + Send>,
        newest: u64,
        identity: Option<u128>,
    ) -> Result<(Self, Tree)> {
        let path = dir.join(file_name(newest));
        let bytes = disk.read(&path).map_err(|error| failed("read", &path, &error))?;
        let replayed = replay(&bytes, newest).map_err(|damage| corrupt(&path, damage))?;
        if identity.is_some_and(|cluster| cluster != replayed.header.cluster) {
            return Err(corrupt(&path, Damage::new(16, "this journal belongs to another directory")));
        }
        if replayed.torn {
            tracing::warn!(
                file = %path.display(),
                offset = replayed.end,
                "dropped a write that a crash left unfinished; it was never acknowledged"
            );
        }
        let (end, len) = (replayed.end as u64, bytes.len() as u64);
        let mut file = disk.open(&path).map_err(|error| failed("open", &path, &error))?;
        // Zeros again after the last record: over an unfinished write, and so that the room is really
        // there if a crash came before it was filled.
        let zeros = vec![0; bytes.len() - replayed.end];
        file.write_at(end, &zeros)
            .and_then(|()| file.sync())
            .map_err(|error| failed("write", &path, &error))?;
        let next_record = replayed.next_record;
        let written = Written { path: path.clone(), file, end, next_record, len };
        let tree = *replayed.tree;
        let mut journal = Self::over(disk, dir, replayed.header, path, written, options.compact_bytes, lock);
        journal.compact_at = options.compact_bytes.max(2 * tree.live_bytes() as u64);
        Ok((journal, tree))
    }

    fn check_cluster(&self, options: &Options) -> Result<()> {
        match options.cluster {
            Some(expected) if expected.0 != self.header.cluster => Err(Error::WrongCluster {
                location: self.dir.display().to_string(),
                expected: expected.to_string(),
                found: self.cluster().to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Whose journal this is.
    pub fn cluster(&self) -> ClusterId {
        ClusterId(self.header.cluster)
    }

    /// Makes a batch durable, as one record with one sync.
    pub fn append(&mut self, batch: Vec<Committed>) -> Result<(), AppendError> {
        let payload = Record::Batch(batch).encode();
        let end = self.end + frame::extent(payload.len()) as u64;
        self.make_room(end)?;
        let record = frame::encode(self.header.file_number, self.next_record, payload);
        let written = self.file.write_at(self.end, &record).and_then(|()| self.file.sync());
        written
            .map_err(|error| AppendError::Unknown(format!("writing `{}`: {error}", self.path.display())))?;
        self.end = end;
        self.next_record += 1;
        Ok(())
    }

    /// Takes room so that zeros are left after `end`.
    fn make_room(&mut self, end: u64) -> Result<(), AppendError> {
        let wanted = room(end, self.header.step);
        if wanted <= self.len {
            return Ok(());
        }
        let zeros = vec![0; usize::try_from(wanted - self.len).expect("a record and a step fit in memory")];
        let taken = self
            .file
            .set_len(wanted)
            .and_then(|()| self.file.write_at(self.len, &zeros))
            .and_then(|()| self.file.sync());
        match taken {
            Ok(()) => self.len = wanted,
            Err(error) => {
                let back = self.file.set_len(self.len).and_then(|()| self.file.sync());
                return Err(match back {
                    Ok(()) if is_full(&error) => AppendError::Nothing(failed("extend", &self.path, &error)),
                    _ => AppendError::Unknown(format!("extending `{}`: {error}", self.path.display())),
                });
            }
        }
        Ok(())
    }

    /// Moves to a new file with `tree` alone, if the present one is long for what it holds. An error
    /// means that the journal must not be used any more.
    pub fn compact_if_long(&mut self, tree: &Tree) -> Result<(), String> {
        if self.end < self.compact_at {
            return Ok(());
        }
        let header = FileHeader { file_number: self.header.file_number + 1, ..self.header };
        let written = match write_file(&*self.disk, &self.dir, header, tree) {
            Ok(written) => written,
            Err((path, error)) => {
                // The old file is whole, so this costs room only. Not tried again at every commit.
                self.compact_at = self.end + self.compact_bytes;
                tracing::warn!(file = %path.display(), %error, "journal not compacted, will try again later");
                if let Err(error) = self.disk.remove(&path) {
                    tracing::warn!(file = %path.display(), %error, "unfinished file not removed");
                }
                return Ok(());
            }
        };
        let path = self.dir.join(file_name(header.file_number));
        let publish = self.disk.rename(&written.path, &path).and_then(|()| self.disk.sync_dir(&self.dir));
        publish.map_err(|error| format!("publishing `{}`: {error}", path.display()))?;
        let Written { file, end, next_record, len, .. } = written;
        let old = std::mem::replace(&mut self.path, path);
        (self.header, self.file, self.end, self.next_record, self.len) =
            (header, file, end, next_record, len);
        self.compact_at = self.compact_bytes.max(2 * end);
        // Only now is the old one not needed. One that stays is removed at the next open.
        if let Err(error) = self.disk.remove(&old) {
            tracing::warn!(file = %old.display(), %error, "old journal not removed, will try again at start");
        }
        Ok(())
    }
}

/// The file length at which zeros follow `end`.
fn room(end: u64, step: u32) -> u64 {
    (end + frame::ALIGN as u64).next_multiple_of(u64::from(step))
}

/// A file that was written and synced, under its unfinished name.
struct Written {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    end: u64,
    next_record: u64,
    len: u64,
}

/// Writes a whole file that holds `tree`.
fn write_file(
    disk: &dyn Disk,
    dir: &Path,
    header: FileHeader,
    tree: &Tree,
) -> Result<Written, (PathBuf, io::Error)> {
    let path = dir.join(format!("{}{UNFINISHED}", file_name(header.file_number)));
    let write = || {
        let mut file = disk.create(&path)?;
        file.write_at(0, &header.encode())?;
        let (mut end, mut number) = (frame::FILE_HEADER as u64, 1);
        for record in snapshot(tree) {
            let bytes = frame::encode(header.file_number, number, record.encode());
            file.write_at(end, &bytes)?;
            end += bytes.len() as u64;
            number += 1;
        }
        let len = room(end, header.step);
        let zeros = usize::try_from(len - end).expect("less than a step and 32 bytes");
        file.write_at(end, &vec![0; zeros])?;
        file.sync()?;
        Ok(Written { path: path.clone(), file, end, next_record: number, len })
    };
    write().map_err(|error| (path.clone(), error))
}

/// The records of a snapshot, made one at a time.
fn snapshot(tree: &Tree) -> impl Iterator<Item = Record> {
    let mut entries = tree.entries().iter().peekable();
    let parts = std::iter::from_fn(move || {
        entries.peek()?;
        let (mut part, mut bytes) = (Vec::new(), 0);
        while bytes < SNAPSHOT_RECORD_BYTES
            && let Some((key, entry)) = entries.next()
        {
            bytes += key.as_str().len() + entry.value.len();
            part.push(Change { key: key.clone(), entry: Some(entry.clone()) });
        }
        Some(Record::Snapshot(part))
    });
    parts.chain(std::iter::once_with(|| Record::SnapshotEnd(tree.version())))
}

/// `identity`: magic 8, cluster 16, zeros 4, checksum 4.
fn write_identity(disk: &dyn Disk, dir: &Path, cluster: u128) -> Result<()> {
    let mut bytes = Vec::with_capacity(32);
    bytes.put_slice(&IDENTITY_MAGIC);
    bytes.put_u128(cluster);
    bytes.put_bytes(0, 4);
    bytes.put_u32(crc32c::crc32c(&bytes));
    let path = dir.join(IDENTITY);
    let unfinished = dir.join(format!("{IDENTITY}{UNFINISHED}"));
    let write = || {
        let mut file = disk.create(&unfinished)?;
        file.write_at(0, &bytes)?;
        file.sync()?;
        disk.rename(&unfinished, &path)?;
        disk.sync_dir(dir)
    };
    write().map_err(|error| failed("write", &path, &error))
}

fn read_identity(disk: &dyn Disk, dir: &Path) -> Result<u128> {
    let path = dir.join(IDENTITY);
    let bytes = disk.read(&path).map_err(|error| failed("read", &path, &error))?;
    decode_identity(&bytes).map_err(|damage| corrupt(&path, damage))
}

/// The cluster that a directory belongs to.
pub(crate) fn decode_identity(bytes: &[u8]) -> Result<u128, Damage> {
    use bytes::Buf;
    if bytes.len() != 32 {
        return Err(Damage::new(bytes.len().min(32), "an identity has exactly 32 bytes"));
    }
    let mut content = Bytes::copy_from_slice(bytes);
    let check = content.split_off(28).get_u32();
    if content[..8] != IDENTITY_MAGIC || crc32c::crc32c(&content) != check {
        return Err(Damage::new(0, "its first bytes or its checksum are wrong"));
    }
    content.advance(8);
    Ok(content.get_u128())
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) fn corrupt(path: &Path, Damage { offset, what }: Damage) -> Error {
    Error::Corrupt { file: path.to_owned(), offset, what }
}

/// An error of the system before anything was promised.
pub(crate) fn failed(verb: &str, path: &Path, error: &io::Error) -> Error {
    if is_full(error) {
        return Error::DiskFull { file: path.to_owned(), what: error.to_string() };
    }
    let mut what = format!("cannot {verb} `{}`: {error}", path.display());
    if error.kind() == io::ErrorKind::PermissionDenied {
        let _ = write!(what, "; check its owner and rights");
    }
    Error::Unavailable { what }
}

/// Where versions go on after `tree`, when it is not known how many were given since.
pub(crate) fn far_after(version: Version, lost_bytes: u64) -> Version {
    // A transaction takes more than one byte of the journal, so no lost one had a higher version.
    Version::new(version.get().saturating_add(lost_bytes).saturating_add(1))
}
