//! Which file is damaged. The library says that something is; the checksums of whole files, which it keeps, say where.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lsm_tree::{AbstractTree, Checksum, Table};
use xxhash_rust::xxh3::Xxh3;

use super::super::Error;
use super::folder::RUNS;
use super::library::{Library, Shared, guarded};

/// Read at a time to compute a checksum.
const PIECE_BYTES: usize = 256 << 10;

/// Puts the damaged file in the place of the folder: the first of those that may have a stored key, or of all.
pub(super) fn name_damaged_file(library: &Library, key: Option<&[u8]>, error: Error) -> Error {
    let what = match &error {
        Error::Damaged { what, .. } => what.clone(),
        Error::Panicked { doing, what, .. } => format!("{doing}: lsm-tree panicked: {what}"),
        _ => return error,
    };
    match first_damaged(library, key) {
        Ok(Some(path)) => Error::Damaged { path, what },
        _ => error,
    }
}

/// The same for a tree that could not be opened.
pub(super) fn name_damaged_file_of_closed(folder: &Path, error: Error, shared: &Shared) -> Error {
    let what = match &error {
        Error::Damaged { what, .. } => what.clone(),
        Error::Panicked { what, .. } => format!("open: lsm-tree panicked: {what}"),
        _ => return error,
    };
    let Ok(files) = fs::read_dir(folder.join(RUNS)) else { return error };
    let opens = |path: &Path| {
        let (cache, checksum) = (shared.cache.clone(), Checksum::from_raw(0));
        guarded(folder, "open a run", || {
            Table::recover(path.to_owned(), checksum, 0, u64::MAX, cache, None, false, false)
        })
        .is_ok()
    };
    let mut refused: Vec<PathBuf> =
        files.flatten().map(|file| file.path()).filter(|path| !opens(path)).collect();
    match (refused.pop(), refused.is_empty()) {
        // A run that a crash left half written cannot be opened either, so that only a single one says something.
        (Some(path), true) => Error::Damaged { path, what },
        _ => Error::Damaged { path: folder.to_owned(), what },
    }
}

/// Reads all files of a tree.
pub(super) fn verify(library: &Library) -> Result<(), Error> {
    match first_damaged(library, None)? {
        None => Ok(()),
        Some(path) => Err(Error::Damaged {
            path,
            what: "its checksum is not the one of when it was written".to_owned(),
        }),
    }
}

fn first_damaged(library: &Library, key: Option<&[u8]>) -> Result<Option<PathBuf>, Error> {
    let version = guarded(library.folder(), "list the files", || Ok(library.tree().current_version()))?;
    for table in version.iter_tables() {
        let range = &table.metadata.key_range;
        if key.is_none_or(|key| &**range.min() <= key && key <= &**range.max())
            && !is_sound(&table.path, table.checksum())?
        {
            return Ok(Some(PathBuf::clone(&table.path)));
        }
    }
    for values in version.blob_files.iter() {
        if !is_sound(values.path(), values.checksum())? {
            return Ok(Some(values.path().to_owned()));
        }
    }
    Ok(None)
}

fn is_sound(path: &Path, checksum: Checksum) -> Result<bool, Error> {
    let read = || -> io::Result<bool> {
        let (mut file, mut hash) = (File::open(path)?, Xxh3::new());
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hash.digest128() == checksum.into_u128()),
                bytes => hash.update(&piece[..bytes]),
            }
        }
    };
    let failed = |source: io::Error| Error::Io { path: path.to_owned(), doing: "read the file", source };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map_err(failed),
    }
}
