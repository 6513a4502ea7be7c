//! Reading batches.

use super::error::BatchError;
use super::index::{Index, Place};
use super::{Damage, file, lock};
use crate::counted::Counted;
use crate::limits;
use partage_journal::Disk;
use partage_service::shuffle::record::{Batch, BatchKey, Stream};
use partage_service::shuffle::{PoolSlot, ShuffleId, Writer};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Reads the files of a store while it is written. A copy reads the same.
#[derive(Debug, Clone)]
pub struct BatchReader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    index: Arc<Mutex<Index>>,
    /// What was read so far.
    read: Arc<Counted>,
}

/// Whether reading it again would fail in the same way.
fn is_of_disk(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO)
}

impl BatchReader {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, index: Arc<Mutex<Index>>) -> BatchReader {
        BatchReader { disk, dir, index, read: Arc::default() }
    }

    /// One batch.
    ///
    /// # Errors
    /// It is not here, or not as it was written.
    pub fn read(&self, key: &BatchKey) -> Result<Arc<Batch>, BatchError> {
        for _ in 0..limits::READ_LOOKS {
            let place = lock(&self.index).get(key);
            let Some(place) = place else { break };
            match self.read_at(key, place) {
                Ok(Some(batch)) => return Ok(Arc::new(batch)),
                // The file is gone: the batch is somewhere else, or was dropped.
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        Err(BatchError::Absent(key.clone()))
    }

    /// Where a batch lies. None: it is not here.
    pub fn place(&self, key: &BatchKey) -> Option<Place> {
        lock(&self.index).get(key)
    }

    fn read_at(&self, key: &BatchKey, place: Place) -> Result<Option<Batch>, BatchError> {
        let path = file::path(&self.dir, key.stream.shuffle, place.file);
        let name = || path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let damage = |offset, what| {
            let damage = Box::new(Damage { file: name(), offset, what });
            BatchError::Damaged { key: key.clone(), place: Box::new(place), damage }
        };
        let bytes = match self.disk.read_at(&path, place.offset, place.bytes) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The disk cannot read the place, or the file ends before it.
            Err(error) if is_of_disk(&error) => {
                return Err(damage(place.offset, format!("it cannot be read: {error}")));
            }
            Err(error) => return Err(BatchError::Failed { key: key.clone(), why: error.to_string() }),
        };
        match file::read_frame(&bytes, place) {
            Ok(batch) if batch.key == *key => {
                self.read.add(batch.records(), place.bytes as u64);
                Ok(Some(batch))
            }
            Ok(_) => Err(damage(place.offset, "another batch lies here".to_owned())),
            Err(found) => Err(damage(found.offset, found.what)),
        }
    }

    /// Reads batches of a shuffle in a slot one by one, so that one of them is in memory at a time: of each writer those behind
    /// the first number, up to the second one.
    ///
    /// # Errors
    /// The first one that is not here, or not as it was written. What was taken before is then not all that was wanted, and makes
    /// no answer.
    pub fn read_all<'a>(
        &self,
        (shuffle, slot): (ShuffleId, PoolSlot),
        wanted: impl IntoIterator<Item = (&'a Writer, u64, u64)>,
        mut take: impl FnMut(&Arc<Batch>),
    ) -> Result<(), BatchError> {
        self.read_while((shuffle, slot), wanted, |batch| {
            take(batch);
            true
        })
    }

    /// The same, until `take` says that it wants no more.
    ///
    /// # Errors
    /// As [`BatchReader::read_all`].
    pub fn read_while<'a>(
        &self,
        (shuffle, slot): (ShuffleId, PoolSlot),
        wanted: impl IntoIterator<Item = (&'a Writer, u64, u64)>,
        mut take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), BatchError> {
        for (writer, after, upto) in wanted {
            let stream = Stream { shuffle, slot, writer: writer.clone() };
            let mut key = BatchKey { stream, number: after };
            while key.number < upto {
                key.number += 1;
                if !take(&self.read(&key)?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Records that were read so far, by this reader and its copies, and the bytes of the frames that had them.
    pub(crate) fn reads(&self) -> (u64, u64) {
        self.read.get()
    }

    /// Bytes of the frames of a slot.
    pub fn slot_bytes(&self, slot: PoolSlot) -> u64 {
        lock(&self.index).slot_bytes(slot)
    }

    /// Bytes of all frames, also of those that are not wanted any more.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x8_what_the_disk_cannot_read_is_damage_and_what_the_system_refuses_is_not() {
        assert!(is_of_disk(&Errno::IO.into()) && is_of_disk(&io::ErrorKind::UnexpectedEof.into()));
        for error in [Errno::MFILE, Errno::NOMEM, Errno::ACCESS] {
            assert!(!is_of_disk(&error.into()), "{error}");
        }
    }
}
