//! Changes of one parent that wait for its snapshot, in a file: written behind the last, read in the same order.
//!
//! ```text
//! ( up to which entry u64 · length u32 · checksum u64 · ( key length u32 · value length u32, or 2^32 - 1 of what is deleted ·
//!   key · value )* )*
//! ```
//!
//! Numbers are little-endian. The file is of no use to another process, and nothing of it is synced.

use crate::limits::ASIDE_BYTES;
use crate::rows::RowsError;
use crate::transport::StoredChange;
use bytes::{Buf, BufMut, Bytes};
use partage_engine::replica::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The file in its folder.
const NAME: &str = "changes";

/// Bytes before the changes of a record.
const HEAD: usize = 20;

/// The length of a value that is none.
const DELETED: u32 = u32::MAX;

/// A spool grows when so many bytes more are unread than the least that [`Spool::grows`] has found unread.
const GROWS: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    path: PathBuf,
    written: u64,
    read: u64,
    /// The fewest unread bytes that a call of [`Spool::grows`] has found: 0 once all was read.
    least: u64,
    /// More has come than was read, and not all was read since.
    has_grown: bool,
}

/// What a parent has changed up to an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spooled {
    pub(super) to: u64,
    pub(super) changes: Vec<StoredChange>,
}

impl Spool {
    /// Begins an empty one in that folder.
    pub(super) fn create(folder: &Path) -> Result<Spool, RowsError> {
        let path = folder.join(NAME);
        let created = std::fs::create_dir_all(folder)
            .and_then(|()| OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path));
        let file = created.map_err(|source| failed(&path, "create the file", source))?;
        Ok(Spool { file, path, written: 0, read: 0, least: u64::MAX, has_grown: false })
    }

    /// How many bytes were not read yet.
    pub(super) fn unread(&self) -> u64 {
        self.written - self.read
    }

    /// Whether more has come than was read. It stays so until all is read: what waits would never become less if it were read
    /// without rests only as long as it grows.
    pub(super) fn grows(&mut self) -> bool {
        let unread = self.unread();
        if unread == 0 {
            (self.least, self.has_grown) = (0, false);
        }
        self.least = self.least.min(unread);
        self.has_grown |= unread > self.least.saturating_add(GROWS);
        self.has_grown
    }

    /// Adds what a parent has changed.
    pub(super) fn add(&mut self, to: u64, changes: &[StoredChange]) -> Result<(), RowsError> {
        self.add_within(ASIDE_BYTES, to, changes)
    }

    /// The same, to a file that has at most so many bytes.
    fn add_within(&mut self, most: u64, to: u64, changes: &[StoredChange]) -> Result<(), RowsError> {
        if self.unread() == 0 {
            (self.written, self.read) = (0, 0);
        }
        let record = encode(to, changes);
        let bytes = record.len() as u64;
        // What was read of the file is on the disk, too, until all is.
        if self.written + bytes > most {
            let source = io::Error::other("more changes wait than may");
            return Err(failed(&self.path, "write", source));
        }
        let begin = SeekFrom::Start(self.written);
        let written = self.file.seek(begin).and_then(|_| self.file.write_all(&record));
        written.map_err(|source| failed(&self.path, "write", source))?;
        self.written += bytes;
        Ok(())
    }

    /// The next of what was added; none: all was read.
    pub(super) fn next(&mut self) -> Result<Option<Spooled>, RowsError> {
        if self.unread() == 0 {
            return Ok(None);
        }
        let begin = SeekFrom::Start(self.read);
        let mut head = [0; HEAD];
        let read = self.file.seek(begin).and_then(|_| self.file.read_exact(&mut head));
        read.map_err(|source| failed(&self.path, "read", source))?;
        let mut head = &head[..];
        let (to, length, checksum) = (head.get_u64_le(), head.get_u32_le(), head.get_u64_le());
        if HEAD as u64 + u64::from(length) > self.unread() {
            return Err(self.damaged());
        }
        let mut body = vec![0; length as usize];
        self.file.read_exact(&mut body).map_err(|source| failed(&self.path, "read", source))?;
        if checksum != sum(to, &body) {
            return Err(self.damaged());
        }
        let changes = decode(body.into()).ok_or_else(|| self.damaged())?;
        self.read += HEAD as u64 + u64::from(length);
        Ok(Some(Spooled { to, changes }))
    }

    fn damaged(&self) -> RowsError {
        Error::Damaged { path: self.path.clone(), what: "a record is not as it was written".to_owned() }
            .into()
    }
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> RowsError {
    Error::Io { path: path.to_owned(), doing, source }.into()
}

fn sum(to: u64, body: &[u8]) -> u64 {
    xxh3_64(body) ^ to
}

fn encode(to: u64, changes: &[StoredChange]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in changes {
        // Keys and values are far below what 32 bits count.
        body.put_u32_le(key.len() as u32);
        body.put_u32_le(value.as_ref().map_or(DELETED, |value| value.len() as u32));
        body.put_slice(key);
        body.put_slice(value.as_deref().unwrap_or_default());
    }
    let mut record = Vec::with_capacity(HEAD + body.len());
    record.put_u64_le(to);
    record.put_u32_le(body.len() as u32);
    record.put_u64_le(sum(to, &body));
    record.put_slice(&body);
    record
}

fn decode(mut body: Bytes) -> Option<Vec<StoredChange>> {
    let mut changes = Vec::new();
    while body.has_remaining() {
        if body.remaining() < 8 {
            return None;
        }
        let (key, value) = (body.get_u32_le() as usize, body.get_u32_le());
        let is_deleted = value == DELETED;
        let value = if is_deleted { 0 } else { value as usize };
        if body.remaining() < key.checked_add(value)? {
            return None;
        }
        let (key, value) = (body.split_to(key), body.split_to(value));
        changes.push((key, (!is_deleted).then_some(value)));
    }
    Some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn changes() -> impl Strategy<Value = Vec<StoredChange>> {
        let bytes = |most| prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from);
        prop::collection::vec((bytes(20), prop::option::of(bytes(60))), 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// What is added comes in the same order, whenever it is read.
        #[test]
        fn what_waits_comes_as_it_was_added(
            added in prop::collection::vec((any::<u64>(), changes(), 0usize..3), 0..12),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut spool = Spool::create(&folder.path().join("1.2.3")).unwrap();
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            for (to, changes, reads) in added {
                spool.add(to, &changes).unwrap();
                expected.push(Spooled { to, changes });
                for _ in 0..reads {
                    found.extend(spool.next().unwrap());
                }
            }
            while let Some(next) = spool.next().unwrap() {
                found.push(next);
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(spool.unread(), 0);
        }
    }

    #[test]
    fn a_changed_byte_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let change = (Bytes::from_static(b"key"), Some(Bytes::from_static(b"value")));
        let length = encode(7, std::slice::from_ref(&change)).len() as u64;
        for at in 0..length {
            let mut spool = Spool::create(folder.path()).unwrap();
            spool.add(7, std::slice::from_ref(&change)).unwrap();
            let mut byte = [0];
            spool.file.seek(SeekFrom::Start(at)).unwrap();
            spool.file.read_exact(&mut byte).unwrap();
            spool.file.seek(SeekFrom::Start(at)).unwrap();
            spool.file.write_all(&[byte[0] ^ 1]).unwrap();
            assert!(spool.next().is_err(), "byte {at}");
        }
    }

    #[test]
    fn it_grows_when_more_comes_than_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(folder.path()).unwrap();
        let change = (Bytes::from_static(b"key"), Some(vec![7; 1 << 20].into()));
        spool.add(1, std::slice::from_ref(&change)).unwrap();
        assert!(!spool.grows());
        for to in 2..8 {
            spool.add(to, std::slice::from_ref(&change)).unwrap();
        }
        assert!(spool.grows());
        for _ in 0..6 {
            spool.next().unwrap().unwrap();
            assert!(spool.grows(), "it is read without rests until nothing waits");
        }
        assert!(spool.next().unwrap().is_some());
        assert!(!spool.grows());
        for to in 8..11 {
            spool.add(to, std::slice::from_ref(&change)).unwrap();
            assert!(!spool.grows());
        }
        spool.add(11, &[change]).unwrap();
        assert!(spool.grows());
    }

    /// More comes than is read with rests, and less than without.
    #[test]
    fn l1_what_waits_is_read_though_more_comes() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(folder.path()).unwrap();
        let change = (Bytes::from_static(b"key"), Some(vec![7; 256 << 10].into()));
        for to in 0..64 {
            spool.add(to, std::slice::from_ref(&change)).unwrap();
        }
        let mut turns = 0;
        while spool.unread() > 0 {
            turns += 1;
            assert!(turns < 100, "{} bytes wait", spool.unread());
            let reads = if spool.grows() { 4 } else { 1 };
            for _ in 0..reads {
                spool.next().unwrap();
            }
            if spool.unread() > 0 {
                (0..2).for_each(|to| spool.add(64 + to, std::slice::from_ref(&change)).unwrap());
            }
        }
    }

    #[test]
    fn r1_the_file_is_bounded_also_by_what_was_read_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(folder.path()).unwrap();
        let change = (Bytes::from_static(b"key"), Some(vec![7; 100].into()));
        let add = |spool: &mut Spool| spool.add_within(1_000, 1, std::slice::from_ref(&change));
        add(&mut spool).unwrap();
        for _ in 0..5 {
            add(&mut spool).unwrap();
            spool.next().unwrap();
        }
        assert!(spool.unread() < 200);
        assert!((0..3).any(|_| add(&mut spool).is_err()));
        while spool.next().unwrap().is_some() {}
        add(&mut spool).unwrap();
    }
}
