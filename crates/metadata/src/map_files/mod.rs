//! METADATA files on disk: one for each map that a server keeps, one directory for each keyspace.
//!
//! | name | what |
//! |---|---|
//! | `<keyspace>/<transaction>.metadata` | a METADATA file, named by the transaction that it began with |
//! | `<keyspace>/<transaction>.metadata.tmp` | one that was not whole yet: removed at the start |
//! | `<keyspace>/<transaction>.metadata.damaged` | one that could not be read: kept for a person, and read by nobody |
//!
//! All calls block; they run on threads that may.

use crate::limits::{OPERATIONS, SMALL_LOG_BYTES, STEP_BYTES};
use partage_core::base::id::TransactionId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_journal::frame::extent;
use partage_journal::{AppendError, Damage, Disk, FileHeader, LogFile, UNFINISHED, unfinished};
use partage_wire::stored::map_file::{self, MapFileReader, StoredMapFile};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ENDING: &str = ".metadata";
const DAMAGED: &str = ".damaged";

/// How a write failed.
#[derive(Debug)]
pub enum WriteError {
    /// There is no room; nothing has changed.
    Full(String),
    /// It may be on the disk or not: everything must be read anew.
    Unknown(String),
}

/// A file that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedMapFile {
    /// Under its new name.
    pub path: PathBuf,
    /// Where, and what.
    pub damage: Damage,
}

/// An open METADATA file.
#[derive(Debug)]
struct OpenMapFile {
    log: LogFile,
    /// Operations on the base, and the bytes that they take.
    operations: u64,
    log_bytes: u64,
}

/// The METADATA files of one keyspace.
#[derive(Debug)]
pub struct MapFiles {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    keyspace: KeyspaceName,
    /// Added to the operations that a file may hold.
    slack: u64,
    files: BTreeMap<TransactionId, OpenMapFile>,
    written_bytes: u64,
}

/// What a directory held, and which files of it were damaged.
pub type Opened = (MapFiles, Vec<(TransactionId, ShardMap, Vec<MapDiff>)>, Vec<DamagedMapFile>);

impl MapFiles {
    /// Opens the files of a keyspace below `data`. `seed` spreads the rewriting of files over servers.
    ///
    /// # Errors
    /// What the disk said.
    pub fn open(disk: Arc<dyn Disk>, data: &Path, keyspace: &KeyspaceName, seed: u64) -> io::Result<Opened> {
        let dir = data.join(keyspace.as_str());
        let mut files = MapFiles {
            disk,
            dir,
            keyspace: keyspace.clone(),
            slack: seed % (OPERATIONS / 4),
            files: BTreeMap::new(),
            written_bytes: 0,
        };
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        let names = match files.disk.list(&files.dir) {
            // Nothing was ever kept of it here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            listed => listed?,
        };
        for name in names {
            let path = files.dir.join(&name);
            if name.ends_with(UNFINISHED) {
                files.disk.remove(&path)?;
            } else if let Some(transaction) = name.strip_suffix(ENDING).and_then(parse) {
                match files.open_file(transaction, &path)? {
                    Ok(StoredMapFile { map, operations }) => found.push((transaction, map, operations)),
                    Err(damage) => damaged.push(files.put_aside(&path, damage)?),
                }
            }
        }
        Ok((files, found, damaged))
    }

    fn open_file(&mut self, name: TransactionId, path: &Path) -> io::Result<Result<StoredMapFile, Damage>> {
        let bytes = self.disk.read(path)?;
        let read = read(&bytes, &self.keyspace, name);
        let (contents, log_bytes, stored) = match read {
            Ok(read) => read,
            Err(damage) => return Ok(Err(damage)),
        };
        let log = LogFile::reopen(&*self.disk, path, bytes.len(), &contents)?;
        let operations = stored.operations.len() as u64;
        self.files.insert(name, OpenMapFile { log, operations, log_bytes });
        Ok(Ok(stored))
    }

    fn put_aside(&self, path: &Path, damage: Damage) -> io::Result<DamagedMapFile> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(DAMAGED);
        let aside = PathBuf::from(aside);
        self.disk.rename(path, &aside)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(DamagedMapFile { path: aside, damage })
    }

    fn path(&self, name: TransactionId) -> PathBuf {
        self.dir.join(format!("{name}{ENDING}"))
    }

    /// Writes a whole file, in place of any of that name.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn write<'a>(
        &mut self,
        name: TransactionId,
        map: &ShardMap,
        operations: impl Iterator<Item = &'a MapDiff>,
    ) -> Result<(), WriteError> {
        let path = self.path(name);
        let full = |error: io::Error| WriteError::Full(format!("cannot write `{}`: {error}", path.display()));
        if self.files.is_empty() {
            self.disk.create_dir(&self.dir).map_err(full)?;
        }
        let header = FileHeader { owner: 0, file_number: number(name), step: STEP_BYTES };
        let (mut count, mut log_bytes) = (0, 0);
        let operations = operations.map(|diff| {
            let record = map_file::operation(name, diff);
            count += 1;
            log_bytes += extent(record.len()) as u64;
            record
        });
        let records = map_file::whole(name, map).chain(operations);
        let written = LogFile::write(&*self.disk, &path, header, records).map_err(|error| {
            // Nothing has changed: the unfinished file is removed, now or at the next start.
            let _ = self.disk.remove(&unfinished(&path));
            full(error)
        })?;
        let unknown =
            |error: io::Error| WriteError::Unknown(format!("publishing `{}`: {error}", path.display()));
        written.publish(&*self.disk).map_err(unknown)?;
        let file = OpenMapFile { log: written, operations: count, log_bytes };
        if let Some(old) = self.files.insert(name, file) {
            self.written_bytes += old.log.written_bytes();
        }
        Ok(())
    }

    /// Adds an operation to a file, and syncs it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn append(&mut self, name: TransactionId, diff: &MapDiff) -> Result<(), WriteError> {
        let record = map_file::operation(name, diff);
        self.add(name, record)
    }

    /// Notes that an operation never counts.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn drop_operation(&mut self, name: TransactionId, gone: TransactionId) -> Result<(), WriteError> {
        let record = map_file::dropped(&self.keyspace, name, gone);
        self.add(name, record)
    }

    fn add(&mut self, name: TransactionId, record: Vec<u8>) -> Result<(), WriteError> {
        let Some(file) = self.files.get_mut(&name) else {
            return Err(WriteError::Full(format!("there is no book {name}")));
        };
        file.operations += 1;
        file.log_bytes += extent(record.len()) as u64;
        let path = file.log.path().to_owned();
        file.log.append(record).map_err(|error| match error {
            AppendError::Full(error) => {
                WriteError::Full(format!("cannot write `{}`: {error}", path.display()))
            }
            AppendError::Unknown(why) => WriteError::Unknown(why),
        })
    }

    /// Removes a file.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn remove(&mut self, name: TransactionId) -> Result<(), WriteError> {
        let Some(file) = self.files.remove(&name) else { return Ok(()) };
        self.written_bytes += file.log.written_bytes();
        let path = self.path(name);
        let removed = self.disk.remove(&path).and_then(|()| self.disk.sync_dir(&self.dir));
        removed.map_err(|error| WriteError::Unknown(format!("removing `{}`: {error}", path.display())))
    }

    /// Whether a file has so many operations that it should be written anew.
    pub fn is_long(&self, name: TransactionId) -> bool {
        self.files.get(&name).is_some_and(|file| {
            let base_bytes = file.log.end() - file.log_bytes;
            file.operations > OPERATIONS + self.slack || file.log_bytes > SMALL_LOG_BYTES.max(base_bytes)
        })
    }

    /// Bytes handed to the disk so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes + self.files.values().map(|file| file.log.written_bytes()).sum::<u64>()
    }
}

/// Which file a record belongs to, as the journal counts files: by the first bytes of its name.
fn number(name: TransactionId) -> u64 {
    name.0.iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

fn parse(hex: &str) -> Option<TransactionId> {
    let mut bytes = [0; 20];
    if hex.len() != 40 || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..40).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    let name = TransactionId(bytes);
    (name.to_string() == hex).then_some(name)
}

/// Reads the bytes of a file. Pure: the same bytes, the same answer.
pub(crate) fn read(
    bytes: &[u8],
    keyspace: &KeyspaceName,
    name: TransactionId,
) -> Result<(partage_journal::Contents, u64, StoredMapFile), Damage> {
    let mut reader = MapFileReader::new(keyspace.clone(), name);
    let mut log_bytes = 0;
    let contents = partage_journal::read(bytes, number(name), |_, record| {
        if reader.is_whole() {
            log_bytes += extent(record.len()) as u64;
        }
        reader.take(&record)
    })?;
    let stored = reader.finish().map_err(|what| Damage { offset: contents.end as u64, what })?;
    Ok((contents, log_bytes, stored))
}

#[cfg(test)]
mod tests;
