//! The folder of a store, before the library opens it and when it goes.
//!
//! ```text
//! current     number u64 · checksum of the list u128 · 0
//! vN          the list of the files, by number
//! tables/N    runs
//! blobs/N     separated values
//! .tmp…       what a crash left of a new `current`
//! ```
//!
//! The library does not compare the list with its checksum when it opens a store, so that a flipped bit in it could put an older
//! run before a newer one. This module does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use super::super::Error;
use super::library::sync_folder;

/// Folder of the runs.
pub(super) const RUNS: &str = "tables";

/// Folder of the separated values.
pub(super) const VALUES: &str = "blobs";

const CURRENT: &str = "current";

/// Makes a folder ready for the library: removes what a crash left, and checks the list of files.
pub(super) fn prepare(path: &Path) -> Result<(), Error> {
    remove_all(&removed_name(path)?)?;
    if !path.try_exists().map_err(failed(path, "look for the folder"))? {
        let parent = parent(path)?;
        fs::create_dir_all(path).map_err(failed(path, "make the folder"))?;
        return sync(parent);
    }
    let names = names(path)?;
    if names.iter().any(|name| name == CURRENT) {
        for name in names.iter().filter(|name| name.starts_with(".tmp")) {
            remove_file(&path.join(name))?;
        }
        return check_list(path);
    }
    // The library writes `current` when the list is there, and the first run after that.
    for inner in [RUNS, VALUES] {
        let inner = path.join(inner);
        if inner.try_exists().map_err(failed(&inner, "look for the folder"))?
            && !self::names(&inner)?.is_empty()
        {
            let what = "the file is missing, though the store has runs".to_owned();
            return Err(Error::Damaged { path: path.join(CURRENT), what });
        }
    }
    for name in names.iter().filter(|name| name.starts_with('v') || name.starts_with(".tmp")) {
        remove_file(&path.join(name))?;
    }
    Ok(())
}

/// The files of runs and of separated values that there are, also those that no list names.
pub(super) fn files(path: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let mut files = BTreeSet::new();
    for inner in [RUNS, VALUES] {
        let inner = path.join(inner);
        files.extend(names(&inner)?.iter().map(|name| inner.join(name)));
    }
    Ok(files)
}

/// Removes what a write has left that found no room: files that are not among those of `before`, and the list of files that is
/// not in use.
pub(super) fn remove_leftovers(path: &Path, before: &BTreeSet<PathBuf>, list: u64) -> Result<(), Error> {
    for file in files(path)?.difference(before) {
        remove_file(file)?;
    }
    match fs::remove_file(path.join(format!("v{list}"))) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::Io { path: path.to_owned(), doing: "remove a list of files", source: error })
        }
        _ => Ok(()),
    }
}

/// The number and the checksum of the list that `current` names.
pub(super) fn current_list(path: &Path) -> Result<(u64, u128), Error> {
    let current = path.join(CURRENT);
    let bytes = fs::read(&current).map_err(failed(&current, "read the file"))?;
    let parts = bytes.split_first_chunk().and_then(|(number, rest)| {
        let (checksum, kind) = rest.split_first_chunk()?;
        (kind == [0]).then_some((u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
    });
    parts.ok_or_else(|| Error::Damaged {
        path: current,
        what: "it has not the form of such a file".to_owned(),
    })
}

/// Whether `current` and the list that it names are as they were written.
pub(super) fn check_list(path: &Path) -> Result<(), Error> {
    let damaged = |path: &Path, what: &str| Error::Damaged { path: path.to_owned(), what: what.to_owned() };
    let (number, checksum) = current_list(path)?;
    let list = path.join(format!("v{number}"));
    match fs::read(&list) {
        Ok(bytes) if xxh3_128(&bytes) == checksum => Ok(()),
        Ok(_) => Err(damaged(&list, "its checksum is not the one in the file `current`")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(damaged(&path.join(CURRENT), "it names a list of files that is not there"))
        }
        Err(source) => Err(Error::Io { path: list, doing: "read the file", source }),
    }
}

/// Removes a store as a whole: first its name, then its files.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    let removed = removed_name(path)?;
    remove_all(&removed)?;
    match fs::rename(path, &removed) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(Error::Io { path: path.to_owned(), doing: "rename the folder", source }),
    }
    sync(parent(path)?)?;
    remove_all(&removed)
}

/// Syncs a folder, so that the names in it are on the disk.
pub(super) fn sync(path: &Path) -> Result<(), Error> {
    sync_folder(path).map_err(failed(path, "sync the folder"))
}

/// What a folder is called while it is being removed.
fn removed_name(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| no_name(path))?;
    let mut name = name.to_owned();
    name.push(".removed");
    Ok(path.with_file_name(name))
}

fn parent(path: &Path) -> Result<&Path, Error> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(parent) => Ok(parent),
        None => Err(no_name(path)),
    }
}

fn no_name(path: &Path) -> Error {
    let source = io::Error::new(ErrorKind::InvalidInput, "it has no name");
    Error::Io { path: path.to_owned(), doing: "use the folder for a store", source }
}

fn names(path: &Path) -> Result<Vec<String>, Error> {
    let read = || {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    };
    read().map_err(failed(path, "read the folder"))
}

fn remove_file(path: &Path) -> Result<(), Error> {
    fs::remove_file(path).map_err(failed(path, "remove the file"))
}

fn remove_all(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::Io { path: path.to_owned(), doing: "remove the folder", source: error })
        }
        _ => Ok(()),
    }
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, doing, source }
}
