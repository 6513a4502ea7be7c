//! Store files that were built before: fetched, checked, and given their name.
//!
//! A file in a folder of the same file system need not be copied: it can have a second name here, and stays when the
//! source's is gone (`is_linked`). It is read and checked all the same.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use partage_engine::limits::OUTPUT_BYTES;
use partage_engine::readonly::{ReadError, Reader, UNFINISHED};
use partage_wire::dataset::manifest::{Manifest, StoredPartition};
use tempfile::TempPath;

use super::load::{Load, Ready, on_a_thread};
use super::progress::{Alive, CountingReader, ThreadGroup};
use super::{Error, file_name, sync_folder};
use crate::limits::READ_BYTES;
use crate::source::Download;

/// Fetches the store files of the `wanted` partitions, and calls `ready` for each.
pub async fn fetch(
    load: &Load,
    manifest: &Manifest,
    wanted: &BTreeSet<u32>,
    ready: Ready<'_>,
) -> Result<(), Error> {
    let threads = ThreadGroup::new();
    let stored = || manifest.files.iter().filter(|stored| wanted.contains(&stored.partition));
    load.progress.begin(wanted.len() as u64, stored().map(|stored| stored.bytes).sum());
    let fetched: Vec<_> = stored().map(|stored| fetch_one(load, *stored, threads.alive(), ready)).collect();
    let done = stream::iter(fetched).buffer_unordered(load.options.at_once.max(1)).try_collect().await;
    threads.join().await;
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
    let bytes = CountingReader { bytes: download, progress: Arc::clone(&progress) };
    let (folder, url, alive) = (load.folder.clone(), file.url.clone(), alive.clone());
    let is_linked = load.options.is_linked;
    let work = move || {
        let _alive = alive;
        let fetched = Fetched { folder: &folder, stored, url: &url };
        match is_linked.then(|| fetched.linked(&bytes.bytes)).flatten() {
            Some(name) => fetched.take_linked(bytes, name),
            None => fetched.take_copied(bytes),
        }
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

/// A store file that is being taken over.
struct Fetched<'a> {
    folder: &'a Path,
    stored: StoredPartition,
    url: &'a str,
}

impl Fetched<'_> {
    /// The source's own file under another name here, where that can be. It goes with what is returned.
    fn linked(&self, file: &Download) -> Option<TempPath> {
        // Whatever hinders it, a copy either does without or says what is wrong.
        let linked = unfinished().make_in(self.folder, |name| file.link(name)).ok()?;
        Some(linked.into_temp_path())
    }

    /// Checks what was linked; it is all there.
    fn take_linked(&self, mut bytes: CountingReader<Download>, name: TempPath) -> Result<Reader, Error> {
        self.check(&mut bytes, &name, READ_BYTES, |_| Ok(()))?;
        bytes.bytes.sync().map_err(|error| self.disk(error))?;
        self.finish(name)
    }

    fn take_copied(&self, mut bytes: impl Read) -> Result<Reader, Error> {
        let copy = unfinished().tempfile_in(self.folder).map_err(|error| self.disk(error))?;
        let (mut copy, name) = copy.into_parts();
        // In pieces as long as those of store files that are built.
        self.check(&mut bytes, &name, OUTPUT_BYTES, |piece| copy.write_all(piece))?;
        copy.sync_all().map_err(|error| self.disk(error))?;
        self.finish(name)
    }

    /// Reads all bytes, hands them on in pieces of this length, and compares them with the manifest.
    fn check(
        &self,
        bytes: &mut impl Read,
        name: &Path,
        piece: usize,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Error> {
        let (mut buffer, mut filled, mut crc) = (vec![0; piece], 0, 0);
        loop {
            let room = (filled + READ_BYTES).min(piece);
            let count = bytes.read(&mut buffer[filled..room]).map_err(|error| {
                super::error::of_source(error).unwrap_or_else(|error| Error::of_disk(self.folder, error))
            })?;
            crc = crc32c::crc32c_append(crc, &buffer[filled..filled + count]);
            filled += count;
            if filled == piece || count == 0 {
                take(&buffer[..filled]).map_err(|error| self.disk(error))?;
                filled = 0;
            }
            if count == 0 {
                break;
            }
        }
        if crc == self.stored.crc32c { Ok(()) } else { Err(self.not_as_built(damage(name))) }
    }

    /// Gives the file its name.
    fn finish(&self, name: TempPath) -> Result<Reader, Error> {
        let path = self.folder.join(file_name(self.stored.partition));
        name.persist(&path).map_err(|error| self.disk(error.error))?;
        sync_folder(self.folder)?;
        let reader = Reader::open(&path)?;
        match reader.len() {
            keys if keys == self.stored.keys => Ok(reader),
            keys => Err(self.not_as_built(format!("{keys} keys, not {}", self.stored.keys))),
        }
    }

    fn disk(&self, error: io::Error) -> Error {
        Error::of_disk(self.folder, error)
    }

    fn not_as_built(&self, how: String) -> Error {
        Error::NotAsBuilt { url: self.url.to_owned(), how }
    }
}

fn unfinished() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    // As any file: what the user's mask leaves of it.
    builder.prefix(UNFINISHED).permissions(Permissions::from_mode(0o666));
    builder
}
