//! Builds a whole version where the batch job runs: nodes then only fetch the store files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use partage_engine::readonly::{Reader, UNFINISHED};
use partage_service::dataset::{DatasetName, VersionName};
use partage_wire::dataset::manifest::{MANIFEST, Manifest, StoredPartition};

use super::load::on_a_thread;
use super::{Error, Load, Options, Progress, file_name, inspect};
use crate::limits::READ_BYTES;
use crate::source::{Source, Throttle};

/// Builds every partition of a version into `<out>/<dataset>/<version>`, which is itself a version that any source may
/// hold: store files, their manifest, and `_SUCCESS` at last. The folder has its name only when all is there.
pub fn build_all<'a>(
    source: &'a Source,
    version: (&'a DatasetName, &'a VersionName),
    out: &'a Path,
    options: &'a Options,
    progress: &'a Arc<Progress>,
) -> BoxFuture<'a, Result<Manifest, Error>> {
    // Boxed, so that the compiler makes its code in this crate, and not in each that builds.
    Box::pin(build(source, version, out, options, progress))
}

async fn build(
    source: &Source,
    (dataset, version): (&DatasetName, &VersionName),
    out: &Path,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Manifest, Error> {
    let folder = out.join(dataset.as_str());
    let finished = folder.join(version.as_str());
    if finished.symlink_metadata().is_ok() {
        let source = std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            "the version is there already; remove it, or give another version",
        );
        return Err(Error::Disk { path: finished, source });
    }
    let throttle = Throttle::new(0);
    let files = source.files(dataset, version).await?;
    let inspection = inspect(source, (dataset, version), &files, options, &throttle).await?;
    let unfinished = folder.join(format!("{UNFINISHED}{version}"));
    // What an earlier run left is of no use: its files may have been others.
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(|error| Error::of_disk(&unfinished, error))?;
    }
    fs::create_dir_all(&unfinished).map_err(|error| Error::of_disk(&unfinished, error))?;
    let load = Load {
        source: source.clone(),
        files,
        inspection,
        options: options.clone(),
        throttle,
        progress: Arc::clone(progress),
        folder: unfinished.clone(),
        replaced: BTreeSet::new(),
    };
    let keys = Mutex::new(vec![0; load.inspection.layout.partitions as usize]);
    let wanted: BTreeSet<u32> = (0..load.inspection.layout.partitions).collect();
    let ready = |partition: u32, reader: Arc<Reader>| {
        keys.lock().unwrap_or_else(PoisonError::into_inner)[partition as usize] = reader.len();
    };
    load.run(&wanted, &ready).await?;
    let keys = keys.into_inner().unwrap_or_else(PoisonError::into_inner);
    let what = unfinished.display().to_string();
    on_a_thread(what, move || seal(&load, &unfinished, &finished, keys)).await
}

/// Writes the manifest, and gives the folder its name.
fn seal(load: &Load, unfinished: &Path, finished: &Path, keys: Vec<u64>) -> Result<Manifest, Error> {
    let stored = |(partition, keys): (u32, u64)| {
        let path = unfinished.join(file_name(partition));
        // Nodes trust the checksum: it must not be one of a file that the disk has spoilt already.
        Reader::open(&path)?.verify()?;
        let (bytes, crc32c) = checksum(&path)?;
        Ok(StoredPartition { partition, bytes, crc32c, keys })
    };
    let inspection = &load.inspection;
    let manifest = Manifest {
        dataset: inspection.dataset.clone(),
        version: inspection.version.clone(),
        partitioner: inspection.layout.partitioner,
        partitions: inspection.layout.partitions,
        source: inspection.layout.digest,
        files: (0..).zip(keys).map(stored).collect::<Result<_, Error>>()?,
    };
    write(&unfinished.join(MANIFEST), &manifest.encode())?;
    write(&unfinished.join("_SUCCESS"), b"")?;
    sync_folder(unfinished)?;
    fs::rename(unfinished, finished).map_err(|error| Error::of_disk(finished, error))?;
    finished.parent().map_or(Ok(()), sync_folder)?;
    Ok(manifest)
}

/// Length and CRC32C of a file.
fn checksum(path: &Path) -> Result<(u64, u32), Error> {
    let disk = |error| Error::of_disk(path, error);
    let mut file = File::open(path).map_err(disk)?;
    let (mut buffer, mut bytes, mut crc) = (vec![0; READ_BYTES], 0, 0);
    loop {
        let count = file.read(&mut buffer).map_err(disk)?;
        if count == 0 {
            return Ok((bytes, crc));
        }
        bytes += count as u64;
        crc = crc32c::crc32c_append(crc, &buffer[..count]);
    }
}

/// Writes a small file to the disk.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let written = File::create(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| Error::of_disk(path, error))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::of_disk(folder, error))
}
