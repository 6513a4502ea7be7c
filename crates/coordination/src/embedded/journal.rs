//! The journal: every transaction, on disk before its acknowledgement.
//!
//! A log file is only appended to, and each record has a checksum; when the file is large, the present state is
//! copied into a new file and the old one is removed, in that order. How records lie in the file and
//! how damage is found is in [`partage_journal`]; what they say is in `record`.
//!
//! The directory holds `journal-N` (the log file, N grows), `identity` (that there must be a log file, and whose), and
//! `lock` (one process at a time). `*.tmp` is an unfinished log file and is removed at open.
//!
//! # Why not redb, or another library
//!
//! redb 4 was tried first: it lost nothing over 40 kills, but returned a row with a flipped bit without a
//! word, and its integrity check says that something is wrong, not in which file at which byte. The
//! state of a coordinator is small and lives in memory; it needs a log, not a database.

use std::any::Any;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use partage_journal::{self as journal, Damage, Disk, FileHeader, LogFile, UNFINISHED, is_full};

use crate::error::{Error, Result};
use crate::limits::SNAPSHOT_RECORD_BYTES;
use crate::transaction::Version;
use crate::watch::Change;

use super::Options;
use super::record::{Committed, Record};
use super::replay::{Replayed, replay};
use super::tree::Tree;
use crate::claim::ClusterId;

/// The file that requires a journal, and names its cluster.
pub(crate) const IDENTITY: &str = "identity";
const IDENTITY_MAGIC: [u8; 8] = *b"PARTAGEI";
/// The file that one process at a time holds.
pub(crate) const LOCK: &str = "lock";

/// An open journal. Owned by the one writer.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file: LogFile,
    compact_bytes: u64,
    compact_at: u64,
    _lock: Box<dyn Any + Send>,
}

/// How a transaction failed to become durable.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// Not written; the journal is as it was.
    Nothing(Error),
    /// It may be written or not; the journal must not be used any more.
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
            write_identity(&*journal.disk, dir, journal.file.header().owner)?;
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
        let header = FileHeader { owner: cluster, file_number: 1, step: options.step_bytes };
        let path = dir.join(file_name(1));
        let file = write_log_file(&*disk, &path, header, &tree);
        let file = file.map_err(|error| failed("write", &path, &error))?;
        file.publish(&*disk).map_err(|error| failed("publish", &path, &error))?;
        Ok((Self::over(disk, dir, file, options.compact_bytes, lock), tree))
    }

    fn over(
        disk: Arc<dyn Disk>,
        dir: &Path,
        file: LogFile,
        compact_bytes: u64,
        lock: Box<dyn Any + Send>,
    ) -> Self {
        let compact_at = compact_bytes.max(2 * file.end());
        Self { disk, dir: dir.to_owned(), file, compact_bytes, compact_at, _lock: lock }
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
        let Replayed { tree, contents } = replay(&bytes, newest).map_err(|damage| corrupt(&path, damage))?;
        if identity.is_some_and(|cluster| cluster != contents.header.owner) {
            return Err(corrupt(&path, Damage::new(16, "this journal belongs to another directory")));
        }
        if contents.torn {
            tracing::warn!(
                file = %path.display(),
                offset = contents.end,
                "dropped a write that a crash left unfinished; it was never acknowledged"
            );
        }
        let file = LogFile::reopen(&*disk, &path, bytes.len(), &contents);
        let file = file.map_err(|error| failed("write", &path, &error))?;
        let mut journal = Self::over(disk, dir, file, options.compact_bytes, lock);
        journal.compact_at = options.compact_bytes.max(2 * tree.live_bytes() as u64);
        Ok((journal, *tree))
    }

    fn check_cluster(&self, options: &Options) -> Result<()> {
        match options.cluster {
            Some(expected) if expected.0 != self.file.header().owner => Err(Error::WrongCluster {
                location: self.dir.display().to_string(),
                expected: expected.to_string(),
                found: self.cluster().to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// The cluster that the header of the journal file names.
    pub fn cluster(&self) -> ClusterId {
        ClusterId(self.file.header().owner)
    }

    /// Makes a batch durable, as one record with one sync.
    pub fn append(&mut self, batch: Vec<Committed>) -> Result<(), AppendError> {
        let appended = self.file.append(Record::Batch(batch).encode());
        appended.map_err(|error| self.not_appended(error))
    }

    /// Makes the file long enough for a transaction of about so many bytes.
    pub fn make_room(&mut self, bytes: u64) -> Result<(), AppendError> {
        let made = self.file.reserve(usize::try_from(bytes).unwrap_or(usize::MAX / 2));
        made.map_err(|error| self.not_appended(error))
    }

    fn not_appended(&self, error: journal::AppendError) -> AppendError {
        match error {
            journal::AppendError::Full(error) => {
                AppendError::Nothing(failed("extend", self.file.path(), &error))
            }
            journal::AppendError::Unknown(what) => AppendError::Unknown(what),
        }
    }

    /// Moves to a new file with `tree` alone, if the present one is long for what it holds. An error
    /// means that the journal must not be used any more.
    pub fn compact_if_long(&mut self, tree: &Tree) -> Result<(), String> {
        if self.file.end() < self.compact_at {
            return Ok(());
        }
        let header = self.file.header();
        let header = FileHeader { file_number: header.file_number + 1, ..header };
        let path = self.dir.join(file_name(header.file_number));
        let file = match write_log_file(&*self.disk, &path, header, tree) {
            Ok(file) => file,
            Err(error) => {
                // The old file is whole, so this costs room only. Not retried at every commit.
                self.compact_at = self.file.end() + self.compact_bytes;
                tracing::warn!(file = %path.display(), %error, "journal not compacted, will try again later");
                if let Err(error) = self.disk.remove(&journal::unfinished(&path)) {
                    tracing::warn!(file = %path.display(), %error, "unfinished file not removed");
                }
                return Ok(());
            }
        };
        file.publish(&*self.disk).map_err(|error| format!("publishing `{}`: {error}", path.display()))?;
        let old = std::mem::replace(&mut self.file, file);
        self.compact_at = self.compact_bytes.max(2 * self.file.end());
        // Only now is the old one not needed. One that stays is removed at the next open.
        if let Err(error) = self.disk.remove(old.path()) {
            tracing::warn!(file = %old.path().display(), %error, "old journal not removed, will try again at start");
        }
        Ok(())
    }
}

/// Writes a whole log file that holds `tree`.
fn write_log_file(disk: &dyn Disk, path: &Path, header: FileHeader, tree: &Tree) -> io::Result<LogFile> {
    LogFile::write(disk, path, header, snapshot(tree).map(|record| record.encode()))
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

pub(crate) fn corrupt(path: &Path, Damage { offset, what }: Damage) -> Error {
    Error::Corrupt { file: path.to_owned(), offset, what }
}

/// An error of the system before any acknowledgement.
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

/// A version above all that were given after `version`, if `lost_bytes` of the journal are lost.
pub(crate) fn far_after(version: Version, lost_bytes: u64) -> Version {
    // A transaction takes more than one byte of the journal, so no lost one had a higher version.
    Version::new(version.get().saturating_add(lost_bytes).saturating_add(1))
}
