//! What this node keeps of datasets on its disk: a cache, from which a restart serves without asking the source (S20).
//!
//! A larder. What is in it is labelled; what has no label, or is open, is thrown away when the door is opened, and
//! fetched again. Whoever is inside has the key.
//!
//! ```text
//!  <data dir>/datasets/.lock
//!                     /<dataset>/<version>/_manifest.json      which partition a key is in, and of what it was made
//!                                         /00000.partage       one for each partition that is here
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

use partage_core::dataset::node::Layout;
use partage_core::dataset::{DatasetName, VersionName};
use partage_engine::readonly::{Reader, UNFINISHED};
use partage_wire::dataset::{MANIFEST, Manifest};

use crate::build::{self, Inspection, file_name, partition_of, sync_folder, write};

/// The folder, held for this process alone.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    /// Held as long as it is open.
    _lock: File,
}

/// What lies in it.
#[derive(Debug, Default)]
pub struct Scan {
    /// In order.
    pub versions: Vec<Stored>,
    /// What was thrown away, and why: for the log.
    pub removed: Vec<(PathBuf, String)>,
}

/// A version, or what is here of it.
#[derive(Debug)]
pub struct Stored {
    /// Which dataset.
    pub dataset: DatasetName,
    /// Which version.
    pub version: VersionName,
    /// Which partition a key is in.
    pub layout: Layout,
    /// Those that are here.
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
    /// The disk.
    #[error(transparent)]
    Disk(#[from] build::Error),
}

fn disk(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::Disk(build::Error::of_disk(path, error))
}

const DELETING: &str = ".deleting-";

impl Store {
    /// Opens the store of a data directory, makes it if there is none, and says what lies in it.
    pub fn open(data_dir: &Path) -> Result<(Store, Scan), Error> {
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

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a version into which it may be loaded. What is there of another version of that name is removed.
    pub fn begin(&self, inspection: &Inspection) -> Result<PathBuf, Error> {
        let Inspection { dataset, version, layout, source, .. } = inspection;
        let manifest = Manifest {
            dataset: dataset.clone(),
            version: version.clone(),
            partitioner: layout.partitioner,
            partitions: layout.partitions,
            source: *source,
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

    /// Removes a version. Who still reads from it does so to the end.
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

    /// Removes partitions of a version. Who still reads from them does so to the end.
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

    fn scan(&self) -> Result<Scan, Error> {
        let mut scan = Scan::default();
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
        scan: &mut Scan,
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
                _ if name == MANIFEST => continue,
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
        let layout = Layout { partitioner: manifest.partitioner, partitions: manifest.partitions };
        scan.versions.push(Stored { dataset: dataset.clone(), version: version.clone(), layout, partitions });
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
