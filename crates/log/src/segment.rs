//! Segments: the files of the log.
//!
//! ```text
//! segment   block with the header of a file of the journal | group | group | … | zeros
//! ```
//!
//! A segment has its full size from the start: its zeros are on disk before it gets its name. Each group is one frame and
//! begins at a block, so that no write touches a block that holds an earlier group: a torn write damages nothing that
//! was synced.

use partage_journal::frame::FileHeader;
use partage_journal::{AlignedBuffer, Disk, DiskFile, UNFINISHED, is_full, is_refused, unfinished};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Groups begin at multiples of this many bytes.
pub use partage_journal::BLOCK;

/// Zeros are written and synced in pieces of so many bytes, so that a group of another segment waits for one piece at most.
const PIECE: usize = 4 << 20;

const SUFFIX: &str = ".log";

/// How groups get to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each write goes past the page cache and returns when it is on stable storage (`O_DIRECT`, `O_DSYNC`).
    Direct,
    /// Each write goes to the page cache, and a sync follows (`fdatasync`).
    Synced,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Direct => "O_DIRECT and O_DSYNC",
            Mode::Synced => "fdatasync",
        })
    }
}

/// The name of a segment's file.
pub(crate) fn name(number: u64) -> String {
    format!("{number:016x}{SUFFIX}")
}

pub(crate) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(name(number))
}

/// The number of the segment that has that name.
pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX).filter(|digits| digits.len() == 16)?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    (self::name(number) == name).then_some(number)
}

/// Whether that is the name of a segment that was not whole when its process ended.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(UNFINISHED).is_some_and(|name| number(name).is_some())
}

/// How a segment was not made.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// There is no room for it; nothing is left of it.
    Full(String),
    /// The disk failed; some of the segment may be there.
    Failed(String),
}

/// Makes a segment with all its room, and opens it.
pub(crate) fn create(
    disk: &dyn Disk,
    dir: &Path,
    header: FileHeader,
    try_direct: bool,
) -> Result<(Box<dyn DiskFile>, Mode), CreateError> {
    let path = path(dir, header.file_number);
    let first = AlignedBuffer::of(&header.encode());
    if let Err(error) = fill(disk, &unfinished(&path), first.as_slice(), header.step as usize) {
        let _ = disk.remove(&unfinished(&path));
        let what = format!("making the segment `{}`: {error}", path.display());
        return Err(if is_full(&error) { CreateError::Full(what) } else { CreateError::Failed(what) });
    }
    let named = disk
        .rename(&unfinished(&path), &path)
        .and_then(|()| disk.sync_dir(dir))
        .and_then(|()| open(disk, &path, try_direct, 0, first.as_slice()));
    named.map_err(|error| CreateError::Failed(format!("opening the segment `{}`: {error}", path.display())))
}

fn fill(disk: &dyn Disk, path: &Path, first: &[u8], bytes: usize) -> io::Result<()> {
    let mut file = disk.create(path)?;
    file.write_at(0, first)?;
    let zeros = vec![0; PIECE.min(bytes)];
    let mut at = first.len();
    while at < bytes {
        let piece = zeros.len().min(bytes - at);
        file.write_at(at as u64, &zeros[..piece])?;
        file.sync()?;
        at += piece;
    }
    Ok(())
}

/// Opens a segment and writes `bytes`, which are there already, at `at` again: so it is known that they are on stable
/// storage, and whether the file system takes writes past the page cache.
pub(crate) fn open(
    disk: &dyn Disk,
    path: &Path,
    try_direct: bool,
    at: u64,
    bytes: &[u8],
) -> io::Result<(Box<dyn DiskFile>, Mode)> {
    if try_direct && let Some(mut file) = disk.open_direct(path)? {
        match file.write_at(at, bytes) {
            Ok(()) => return Ok((file, Mode::Direct)),
            Err(error) if is_refused(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let mut file = disk.open(path)?;
    file.write_at(at, bytes).and_then(|()| file.sync())?;
    Ok((file, Mode::Synced))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbers_of_one_form() {
        for number in [1, 0xabc, u64::MAX] {
            assert_eq!(self::number(&name(number)), Some(number));
            assert!(is_unfinished(&format!("{}{UNFINISHED}", name(number))));
        }
        for other in
            ["1.log", "000000000000000A.log", "lock", "0000000000000001.log.tmp", "+000000000000001.log"]
        {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
