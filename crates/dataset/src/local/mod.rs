//! What this node keeps of datasets on its disk: a cache, from which a restart serves without asking the source (S20).
//!
//! Every version in it has a manifest; what has none, or is not finished, is deleted when the store is opened, and
//! loaded again. The process that has it open holds its lock.
//!
//! ```text
//!  <data dir>/datasets/.lock
//!                     /<dataset>/<version>/_manifest.json      which partition a key is in, and of what it was made
//!                                         /00000.partage       one for each partition that is here
//!                                         /_rejects.jsonl      rows that are no records, if there are any
//!                                         /.partage-unfinished-...    of a process that was killed
//!                     /.deleting-...                           the same
//! ```
//!
//! A store file has its name only when all of it is on the disk, so that resuming is looking at what is there. It may
//! all be deleted while no node runs.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use partage_engine::readonly::{Reader, UNFINISHED};
use partage_service::dataset::node::Layout;
use partage_service::dataset::{DatasetName, VersionName};
use partage_wire::dataset::manifest::{MANIFEST, Manifest};

use crate::build::{self, Inspection, REJECTS, file_name, partition_of, sync_folder, write};

/// The folder, held for this process alone.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Held as long as it is open.
    _lock: File,
}

/// What lies in it.
#[derive(Debug, Default)]
pub struct StoreContents {
    /// The versions that were found, sorted by the names of dataset and version.
    pub versions: Vec<StoredVersion>,
    /// What was thrown away, and why: for the log.
    pub removed: Vec<(PathBuf, String)>,
}

/// A version, or what is here of it.
#[derive(Debug)]
pub struct StoredVersion {
    /// The dataset that the version belongs to.
    pub dataset: DatasetName,
    /// The name of the version.
    pub version: VersionName,
    /// The partitions of the version, and which of them a key is in.
    pub layout: Layout,
    /// The partitions that are on this disk, by number.
    pub partitions: BTreeMap<u32, Arc<Reader>>,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it.
    #[error(
        "{} is used by another process; stop it, or give this one another data directory",
        .0.display()
    )]
    Locked(PathBuf),
    /// The system refuses to read or write in the folder, or the disk is full.
    #[error(transparent)]
    Disk(#[from] build::Error),
}

fn disk(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::Disk(build::Error::of_disk(path, error))
}

/// Before the name of a dataset and a version that is being loaded.
const LOADING: &str = ".loading-";

/// See [`Store::mark`].
#[derive(Debug)]
pub struct Mark(PathBuf);

/// Whether a load was going on, and how often a process was killed in an earlier one.
fn read_mark(path: &Path) -> (bool, u32) {
    let text = fs::read_to_string(path).unwrap_or_default();
    let times = text.split_whitespace().nth(1).and_then(|times| times.parse().ok());
    (text.starts_with("loading"), times.unwrap_or(0))
}

/// Not synced: what is lost with the power was not lost by the load.
fn write_mark(path: &Path, word: &str, died: u32) {
    if let Err(error) = fs::write(path, format!("{word} {died}\n")) {
        tracing::warn!(path = %path.display(), %error, "not marked: a load that kills this process is begun anew");
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // It was not killed this time: what it was before is over.
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.0.display(), %error, "a mark of a load that has ended stays");
        }
    }
}

const DELETING: &str = ".deleting-";

impl Store {
    /// Opens the store of a data directory, makes it if there is none, and says what lies in it.
    pub fn open(data_dir: &Path) -> Result<(Store, StoreContents), Error> {
        let folder = Store::folder_in(data_dir);
        fs::create_dir_all(&folder).map_err(disk(&folder))?;
        let path = folder.join(".lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(disk(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Locked(folder)),
            Err(TryLockError::Error(error)) => return Err(disk(&path)(error)),
        }
        let store = Store { folder, _lock: lock };
        let scan = store.scan()?;
        Ok((store, scan))
    }

    /// Where the store of a data directory is.
    pub fn folder_in(data_dir: &Path) -> PathBuf {
        data_dir.join("datasets")
    }

    /// The folder with all versions, below the data directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a version into which it may be loaded. What is there of another version of that name is removed.
    pub fn begin(&self, inspection: &Inspection) -> Result<PathBuf, Error> {
        let Inspection { dataset, version, layout, .. } = inspection;
        let manifest = Manifest {
            dataset: dataset.clone(),
            version: version.clone(),
            partitioner: layout.partitioner,
            partitions: layout.partitions,
            source: layout.digest,
            files: Vec::new(),
        };
        let folder = self.folder_of(dataset, version);
        let path = folder.join(MANIFEST);
        if fs::read(&path).ok().and_then(|text| Manifest::decode(&text).ok()).as_ref() == Some(&manifest) {
            return Ok(folder);
        }
        self.remove(dataset, version)?;
        fs::create_dir_all(&folder).map_err(disk(&folder))?;
        let unfinished = folder.join(format!("{UNFINISHED}manifest"));
        write(&unfinished, &manifest.encode())?;
        fs::rename(&unfinished, &path).map_err(disk(&path))?;
        let dataset_folder = self.folder.join(dataset.as_str());
        for folder in [&folder, &dataset_folder, &self.folder] {
            sync_folder(folder)?;
        }
        Ok(folder)
    }

    /// Marks on the disk that a version is being loaded, until what is returned is dropped. A process that is killed
    /// meanwhile, for want of memory mostly, finds the mark when it is started again: [`Store::died`].
    pub fn mark(&self, dataset: &DatasetName, version: &VersionName) -> Mark {
        let path = self.folder.join(format!("{LOADING}{dataset}.{version}"));
        write_mark(&path, "loading", read_mark(&path).1);
        Mark(path)
    }

    /// The versions that were being loaded when a process was killed, and how often that was so.
    pub fn died(&self) -> Vec<((DatasetName, VersionName), u32)> {
        let died = |(dataset, version, path): (DatasetName, VersionName, PathBuf)| {
            let (was_loading, times) = read_mark(&path);
            let times = times + u32::from(was_loading);
            write_mark(&path, "died", times);
            ((dataset, version), times)
        };
        self.marks().map(died).collect()
    }

    /// Forgets what is marked of versions of a dataset that there are not any more.
    pub fn forget_marks(&self, dataset: &DatasetName, versions: &[VersionName]) {
        for (of, version, path) in self.marks() {
            if of == *dataset && !versions.contains(&version) {
                drop(Mark(path));
            }
        }
    }

    fn marks(&self) -> impl Iterator<Item = (DatasetName, VersionName, PathBuf)> {
        let entries = entries(&self.folder).unwrap_or_default().into_iter();
        entries.filter_map(|(name, path)| {
            let (dataset, version) = name.strip_prefix(LOADING)?.split_once('.')?;
            Some((DatasetName::new(dataset).ok()?, VersionName::new(version).ok()?, path))
        })
    }

    /// Removes a version. A reader that has a file of it open reads to its end.
    pub fn remove(&self, dataset: &DatasetName, version: &VersionName) -> Result<(), Error> {
        let folder = self.folder_of(dataset, version);
        // Out of the way first, so that a version is never half there.
        let doomed = self.folder.join(format!("{DELETING}{dataset}.{version}"));
        remove_all(&doomed)?;
        match fs::rename(&folder, &doomed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed.map_err(disk(&folder))?,
        }
        remove_all(&doomed)?;
        // The dataset's folder goes with its last version.
        let _ = fs::remove_dir(self.folder.join(dataset.as_str()));
        Ok(())
    }

    /// Removes partitions of a version. A reader that has a file of them open reads to its end.
    pub fn remove_partitions(
        &self,
        (dataset, version): (&DatasetName, &VersionName),
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<(), Error> {
        let folder = self.folder_of(dataset, version);
        partitions.into_iter().try_for_each(|partition| remove_all(&folder.join(file_name(partition))))
    }

    fn folder_of(&self, dataset: &DatasetName, version: &VersionName) -> PathBuf {
        self.folder.join(dataset.as_str()).join(version.as_str())
    }

    fn scan(&self) -> Result<StoreContents, Error> {
        let mut scan = StoreContents::default();
        for (name, path) in entries(&self.folder)? {
            if name.starts_with(DELETING) {
                remove_all(&path)?;
                scan.removed.push((path, "its deletion was interrupted".to_owned()));
            } else if let Ok(dataset) = DatasetName::new(&name) {
                for (name, path) in entries(&path)? {
                    if let Ok(version) = VersionName::new(&name) {
                        self.scan_version(&dataset, &version, &path, &mut scan)?;
                    }
                }
            }
        }
        Ok(scan)
    }

    fn scan_version(
        &self,
        dataset: &DatasetName,
        version: &VersionName,
        folder: &Path,
        scan: &mut StoreContents,
    ) -> Result<(), Error> {
        let manifest = match read_manifest(folder, dataset, version) {
            Ok(manifest) => manifest,
            Err(reason) => {
                self.remove(dataset, version)?;
                scan.removed.push((folder.to_owned(), reason));
                return Ok(());
            }
        };
        let mut partitions = BTreeMap::new();
        for (name, path) in entries(folder)? {
            let partition = partition_of(&name).filter(|partition| *partition < manifest.partitions);
            let opened = match partition {
                _ if name == MANIFEST || name == REJECTS => continue,
                Some(partition) => {
                    Reader::open(&path).map(|file| (partition, file)).map_err(|e| e.to_string())
                }
                None => Err("not finished, or not of this version".to_owned()),
            };
            match opened {
                Ok((partition, reader)) => {
                    partitions.insert(partition, Arc::new(reader));
                }
                Err(reason) => {
                    remove_all(&path)?;
                    scan.removed.push((path, reason));
                }
            }
        }
        let Manifest { partitioner, partitions: count, source: digest, .. } = manifest;
        let layout = Layout { partitioner, partitions: count, digest };
        scan.versions.push(StoredVersion {
            dataset: dataset.clone(),
            version: version.clone(),
            layout,
            partitions,
        });
        Ok(())
    }
}

fn read_manifest(folder: &Path, dataset: &DatasetName, version: &VersionName) -> Result<Manifest, String> {
    let text = fs::read(folder.join(MANIFEST)).map_err(|error| format!("no manifest: {error}"))?;
    let manifest = Manifest::decode(&text).map_err(|error| error.to_string())?;
    if (&manifest.dataset, &manifest.version) != (dataset, version) {
        return Err(format!("the manifest of {}, {}", manifest.dataset, manifest.version));
    }
    Ok(manifest)
}

/// Names and paths, in order.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(disk(folder))? {
        let entry = entry.map_err(disk(folder))?;
        found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    found.sort();
    Ok(found)
}

fn remove_all(path: &Path) -> Result<(), Error> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
