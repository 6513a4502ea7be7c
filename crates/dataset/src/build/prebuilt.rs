//! Store files that were built before: fetched, checked, and given their name.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use partage_engine::readonly::{ReadError, Reader, UNFINISHED};
use partage_wire::dataset::{Manifest, StoredPartition};

use super::load::{Load, Ready, on_a_thread};
use super::progress::{Alive, Crew, Watched};
use super::{Error, file_name};
use crate::limits::READ_BYTES;

/// Fetches these partitions.
pub async fn fetch(
    load: &Load,
    manifest: &Manifest,
    wanted: &BTreeSet<u32>,
    ready: Ready<'_>,
) -> Result<(), Error> {
    let crew = Crew::new();
    let stored = || manifest.files.iter().filter(|stored| wanted.contains(&stored.partition));
    load.progress.begin(wanted.len() as u64, stored().map(|stored| stored.bytes).sum());
    let fetched: Vec<_> = stored().map(|stored| fetch_one(load, *stored, crew.alive(), ready)).collect();
    let done = stream::iter(fetched).buffer_unordered(load.options.at_once.max(1)).try_collect().await;
    crew.gone().await;
    done
}

async fn fetch_one(
    load: &Load,
    stored: StoredPartition,
    alive: &Alive,
    ready: Ready<'_>,
) -> Result<(), Error> {
    let Some(file) = load.files.files.get(stored.partition as usize) else {
        let partitions = load.files.files.len() as u32;
        return Err(Error::NoPartition { partition: stored.partition, partitions });
    };
    let download = load.source.download(file, &load.throttle).await?;
    let _stopper = download.stopper();
    let progress = Arc::clone(&load.progress);
    let bytes = Watched { bytes: download, progress: Arc::clone(&progress) };
    let (folder, url, alive) = (load.folder.clone(), file.url.clone(), alive.clone());
    let work = move || {
        let _alive = alive;
        write(&folder, bytes, stored, &url)
    };
    let reader = on_a_thread(&file.url, work).await?;
    progress.add_file();
    progress.add_records(stored.keys);
    ready(stored.partition, Arc::new(reader));
    Ok(())
}

/// Where a file is damaged that does not match its checksum: read whole once more, since only that tells.
fn damage(path: &Path) -> String {
    let verified = Reader::open(path).and_then(|reader| reader.verify());
    match verified {
        Err(ReadError::Refused { offset, reason, .. }) => {
            format!("offset {offset}: {}", reason.what())
        }
        Err(ReadError::Io { source, .. }) => format!("does not match its checksum: {source}"),
        Ok(()) | Err(ReadError::NotOrdered(_)) => {
            "does not match its checksum, though it is sound in itself: it is of another build than its manifest"
                .to_owned()
        }
    }
}

/// Copies the bytes, compares them with the manifest, and gives the file its name.
fn write(folder: &Path, mut bytes: impl Read, stored: StoredPartition, url: &str) -> Result<Reader, Error> {
    let disk = |error| Error::of_disk(folder, error);
    let not_as_built = |how: String| Error::NotAsBuilt { url: url.to_owned(), how };
    let mut builder = tempfile::Builder::new();
    // As any file: what the user's mask leaves of it.
    builder.prefix(UNFINISHED).permissions(Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(disk)?;
    let (mut buffer, mut crc) = (vec![0; READ_BYTES], 0);
    loop {
        let count = bytes.read(&mut buffer).map_err(|error| {
            super::error::of_source(error).unwrap_or_else(|error| Error::of_disk(folder, error))
        })?;
        if count == 0 {
            break;
        }
        crc = crc32c::crc32c_append(crc, &buffer[..count]);
        file.write_all(&buffer[..count]).map_err(disk)?;
    }
    if crc != stored.crc32c {
        return Err(not_as_built(damage(file.path())));
    }
    file.as_file().sync_all().map_err(disk)?;
    let path = folder.join(file_name(stored.partition));
    file.persist(&path).map_err(|error| disk(error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(disk)?;
    let reader = Reader::open(&path)?;
    match reader.len() {
        keys if keys == stored.keys => Ok(reader),
        keys => Err(not_as_built(format!("{keys} keys, not {}", stored.keys))),
    }
}
