//! Reading batches.

use super::error::BatchError;
use super::index::{Index, Place};
use super::{Damage, file, lock};
use crate::counted::Counted;
use crate::limits;
use crate::objects::{ObjectCursor, Objects, ReadPermit};
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
    /// Where batches are that have gone from the disk.
    objects: Option<Arc<Objects>>,
}

/// Whether reading it again would fail in the same way.
fn is_of_disk(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO)
}

impl BatchReader {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, index: Arc<Mutex<Index>>) -> BatchReader {
        BatchReader { disk, dir, index, read: Arc::default(), objects: None }
    }

    /// The same, and what is not on the disk it reads from the object store, if its receipt is here.
    pub(crate) fn with_objects(self, objects: Option<Arc<Objects>>) -> BatchReader {
        BatchReader { objects, ..self }
    }

    /// Whether a thread may read of the slot of a shuffle now: from the object store not more than so many do at a time. None: it
    /// may not.
    pub(crate) fn permit(
        &self,
        (shuffle, slot): (ShuffleId, PoolSlot),
        most: usize,
    ) -> Option<Option<ReadPermit<'_>>> {
        match &self.objects {
            Some(objects) if !lock(&self.index).receipts(shuffle, slot).is_empty() => {
                objects.permit(most).map(Some)
            }
            _ => Some(None),
        }
    }

    /// One batch.
    ///
    /// # Errors
    /// It is not here, or not as it was written.
    pub fn read(&self, key: &BatchKey) -> Result<Arc<Batch>, BatchError> {
        self.read_by(key, &mut ObjectCursor::one())
    }

    fn read_by(&self, key: &BatchKey, cursor: &mut ObjectCursor) -> Result<Arc<Batch>, BatchError> {
        match self.read_of_disk(key) {
            Err(BatchError::Absent(_)) => self.read_of_objects(key, cursor),
            read => read,
        }
    }

    /// By the first receipt whose objects are there.
    fn read_of_objects(&self, key: &BatchKey, cursor: &mut ObjectCursor) -> Result<Arc<Batch>, BatchError> {
        let absent = BatchError::Absent(key.clone());
        let Some(objects) = self.objects.as_ref().filter(|_| !key.stream.writer.is_objects()) else {
            return Err(absent);
        };
        let receipts = lock(&self.index).receipts(key.stream.shuffle, key.stream.slot);
        let mut failed = absent;
        for by in receipts {
            match cursor.read(objects, key, &by) {
                Ok(batch) => return Ok(Arc::new(batch)),
                Err(error) => {
                    let (key, is_lost, why) = (key.clone(), error.is_lost, error.why);
                    failed = BatchError::Object { key, is_lost, why };
                    if !is_lost {
                        break;
                    }
                }
            }
        }
        Err(failed)
    }

    fn read_of_disk(&self, key: &BatchKey) -> Result<Arc<Batch>, BatchError> {
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
        let mut cursor = ObjectCursor::ahead();
        for (writer, after, upto) in wanted {
            let stream = Stream { shuffle, slot, writer: writer.clone() };
            let mut key = BatchKey { stream, number: after };
            while key.number < upto {
                key.number += 1;
                if !take(&self.read_by(&key, &mut cursor)?) {
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

    /// The bytes of each slot of each shuffle on the disk, besides receipts of an object store.
    pub(crate) fn sizes(&self) -> Vec<(ShuffleId, PoolSlot, u64)> {
        lock(&self.index).sizes()
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
