//! METADATA files on disk: one for each map that a server keeps, one directory for each keyspace.
//!
//! | name | what |
//! |---|---|
//! | `<keyspace>/<transaction>.metadata` | a book, named by the transaction that it began with |
//! | `<keyspace>/<transaction>.metadata.tmp` | one that was not whole yet: removed at the start |
//! | `<keyspace>/<transaction>.metadata.damaged` | one that could not be read: kept for a person, and read by nobody |
//!
//! All calls block; they run on threads that may.

use crate::limits::{OPERATIONS, SMALL_LOG_BYTES, STEP_BYTES};
use partage_core::id::TransactionId;
use partage_core::map::{MapDiff, ShardMap};
use partage_core::name::KeyspaceName;
use partage_journal::frame::extent;
use partage_journal::{AppendError, Book, Damage, Disk, FileHeader, UNFINISHED, unfinished};
use partage_wire::stored::book::{self, BookReader, StoredBook};
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
pub struct DamagedBook {
    /// Under its new name.
    pub path: PathBuf,
    /// Where, and what.
    pub damage: Damage,
}

/// An open book.
#[derive(Debug)]
struct BookFile {
    book: Book,
    /// Operations on the base, and the bytes that they take.
    operations: u64,
    log_bytes: u64,
}

/// The books of one keyspace.
#[derive(Debug)]
pub struct Shelf {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    keyspace: KeyspaceName,
    /// Added to the operations that a book may hold.
    slack: u64,
    books: BTreeMap<TransactionId, BookFile>,
    written_bytes: u64,
}

/// What a directory held, and which files of it were damaged.
pub type Opened = (Shelf, Vec<(TransactionId, ShardMap, Vec<MapDiff>)>, Vec<DamagedBook>);

impl Shelf {
    /// Opens the books of a keyspace below `data`. `seed` spreads the rewriting of books over servers.
    ///
    /// # Errors
    /// What the disk said.
    pub fn open(disk: Arc<dyn Disk>, data: &Path, keyspace: &KeyspaceName, seed: u64) -> io::Result<Opened> {
        let dir = data.join(keyspace.as_str());
        let mut shelf = Shelf {
            disk,
            dir,
            keyspace: keyspace.clone(),
            slack: seed % (OPERATIONS / 4),
            books: BTreeMap::new(),
            written_bytes: 0,
        };
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        let names = match shelf.disk.list(&shelf.dir) {
            // Nothing was ever kept of it here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
            listed => listed?,
        };
        for name in names {
            let path = shelf.dir.join(&name);
            if name.ends_with(UNFINISHED) {
                shelf.disk.remove(&path)?;
            } else if let Some(transaction) = name.strip_suffix(ENDING).and_then(parse) {
                match shelf.open_book(transaction, &path)? {
                    Ok(StoredBook { map, operations }) => found.push((transaction, map, operations)),
                    Err(damage) => damaged.push(shelf.put_aside(&path, damage)?),
                }
            }
        }
        Ok((shelf, found, damaged))
    }

    fn open_book(&mut self, name: TransactionId, path: &Path) -> io::Result<Result<StoredBook, Damage>> {
        let bytes = self.disk.read(path)?;
        let read = read(&bytes, &self.keyspace, name);
        let (contents, log_bytes, stored) = match read {
            Ok(read) => read,
            Err(damage) => return Ok(Err(damage)),
        };
        let book = Book::reopen(&*self.disk, path, bytes.len(), &contents)?;
        let operations = stored.operations.len() as u64;
        self.books.insert(name, BookFile { book, operations, log_bytes });
        Ok(Ok(stored))
    }

    fn put_aside(&self, path: &Path, damage: Damage) -> io::Result<DamagedBook> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(DAMAGED);
        let aside = PathBuf::from(aside);
        self.disk.rename(path, &aside)?;
        self.disk.sync_dir(&self.dir)?;
        Ok(DamagedBook { path: aside, damage })
    }

    fn path(&self, name: TransactionId) -> PathBuf {
        self.dir.join(format!("{name}{ENDING}"))
    }

    /// Writes a whole book, in place of any of that name.
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
        if self.books.is_empty() {
            self.disk.create_dir(&self.dir).map_err(full)?;
        }
        let header = FileHeader { owner: 0, file_number: number(name), step: STEP_BYTES };
        let (mut count, mut log_bytes) = (0, 0);
        let operations = operations.map(|diff| {
            let record = book::operation(name, diff);
            count += 1;
            log_bytes += extent(record.len()) as u64;
            record
        });
        let records = book::whole(name, map).chain(operations);
        let written = Book::write(&*self.disk, &path, header, records).map_err(|error| {
            // Nothing has changed: the unfinished file is litter, now or at the next start.
            let _ = self.disk.remove(&unfinished(&path));
            full(error)
        })?;
        let unknown =
            |error: io::Error| WriteError::Unknown(format!("publishing `{}`: {error}", path.display()));
        written.publish(&*self.disk).map_err(unknown)?;
        let file = BookFile { book: written, operations: count, log_bytes };
        if let Some(old) = self.books.insert(name, file) {
            self.written_bytes += old.book.written_bytes();
        }
        Ok(())
    }

    /// Adds an operation to a book, and syncs it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn append(&mut self, name: TransactionId, diff: &MapDiff) -> Result<(), WriteError> {
        let record = book::operation(name, diff);
        self.add(name, record)
    }

    /// Notes that an operation never counts.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn drop_operation(&mut self, name: TransactionId, gone: TransactionId) -> Result<(), WriteError> {
        let record = book::dropped(&self.keyspace, name, gone);
        self.add(name, record)
    }

    fn add(&mut self, name: TransactionId, record: Vec<u8>) -> Result<(), WriteError> {
        let Some(file) = self.books.get_mut(&name) else {
            return Err(WriteError::Full(format!("there is no book {name}")));
        };
        file.operations += 1;
        file.log_bytes += extent(record.len()) as u64;
        let path = file.book.path().to_owned();
        file.book.append(record).map_err(|error| match error {
            AppendError::Full(error) => {
                WriteError::Full(format!("cannot write `{}`: {error}", path.display()))
            }
            AppendError::Unknown(why) => WriteError::Unknown(why),
        })
    }

    /// Removes a book.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn remove(&mut self, name: TransactionId) -> Result<(), WriteError> {
        let Some(file) = self.books.remove(&name) else { return Ok(()) };
        self.written_bytes += file.book.written_bytes();
        let path = self.path(name);
        let removed = self.disk.remove(&path).and_then(|()| self.disk.sync_dir(&self.dir));
        removed.map_err(|error| WriteError::Unknown(format!("removing `{}`: {error}", path.display())))
    }

    /// Whether a book has so many operations that it should be written anew.
    pub fn is_long(&self, name: TransactionId) -> bool {
        self.books.get(&name).is_some_and(|file| {
            let base_bytes = file.book.end() - file.log_bytes;
            file.operations > OPERATIONS + self.slack || file.log_bytes > SMALL_LOG_BYTES.max(base_bytes)
        })
    }

    /// Bytes handed to the disk so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes + self.books.values().map(|file| file.book.written_bytes()).sum::<u64>()
    }
}

/// Which file a record belongs to, in the journal's own words: by the first bytes of the book's name.
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

/// Reads the bytes of a book. Pure: the same bytes, the same answer.
pub(crate) fn read(
    bytes: &[u8],
    keyspace: &KeyspaceName,
    name: TransactionId,
) -> Result<(partage_journal::Contents, u64, StoredBook), Damage> {
    let mut reader = BookReader::new(keyspace.clone(), name);
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
