//! Reading batches.

use super::error::BatchError;
use super::index::{Index, Place};
use super::{Damage, file, lock};
use crate::counted::Counted;
use crate::limits;
use crate::objects::Objects;
use partage_journal::Disk;
use partage_service::shuffle::plan::{Plan, PlanRange};
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

    /// The same, and ranges that are not on the disk it reads from the object store, if there are receipts of it here.
    pub(crate) fn with_objects(self, objects: Option<Arc<Objects>>) -> BatchReader {
        BatchReader { objects, ..self }
    }

    /// Whether there is an object store.
    pub(crate) fn has_objects(&self) -> bool {
        self.objects.is_some()
    }

    /// Whether ranges of a slot are read from the object store: there is a receipt of it here, and not all that the plan needs.
    pub(crate) fn is_offloaded(&self, plan: &Plan, slot: PoolSlot) -> bool {
        let index = lock(&self.index);
        let mut needed = plan.needed.get(&slot).into_iter().flatten();
        self.objects.is_some()
            && !index.receipts(plan.shuffle, slot).is_empty()
            && needed.any(|(writer, upto)| index.count((plan.shuffle, slot), writer, *upto) < *upto)
    }

    /// One batch of the disk.
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

    /// Hands over what a plan needs of a range, as long as more is wanted: the batches of its slot on the disk, which have other
    /// ranges too, one by one; or, from the first one on that has gone from there, what the object store has of the range alone.
    ///
    /// # Errors
    /// As [`BatchReader::read_all`]; or the object store does not give it.
    pub(crate) fn read_range(
        &self,
        (plan, range): (&Plan, &PlanRange),
        mut take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), BatchError> {
        let needed = plan.needed.get(&range.slot).into_iter().flatten();
        let wanted = needed.map(|(writer, upto)| (writer, 0, *upto));
        let mut taken = None;
        let read = self.read_while((plan.shuffle, range.slot), wanted, |batch| {
            taken = Some(batch.key.clone());
            take(batch)
        });
        let (Err(BatchError::Absent(key)), Some(objects)) = (&read, &self.objects) else { return read };
        let receipts = lock(&self.index).receipts(plan.shuffle, range.slot);
        let mut failed = BatchError::Absent(key.clone());
        // By the first receipt whose objects are there. Another one goes on behind what was taken.
        for by in receipts {
            match objects.read_range((plan, range), &by, &mut taken, &mut take) {
                Ok(()) => return Ok(()),
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
        match file::read_frame(bytes, place) {
            Ok(batch) if batch.key == *key => {
                self.read.add(batch.records(), place.bytes as u64);
                Ok(Some(batch))
            }
            Ok(_) => Err(damage(place.offset, "another batch lies here".to_owned())),
            Err(found) => Err(damage(found.offset, found.what)),
        }
    }

    /// Reads batches of a shuffle in a slot from the disk, one by one, so that one of them is in memory at a time: of each writer
    /// those behind the first number, up to the second one.
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

    /// The bytes of each slot of each shuffle on the disk, besides receipts of an object store.
    pub(crate) fn sizes(&self) -> Vec<(ShuffleId, PoolSlot, u64)> {
        lock(&self.index).sizes()
    }

    /// The slots of a shuffle of which something is here: bytes on the disk, and whether a receipt says that the object store has
    /// it.
    pub(crate) fn held(&self, shuffle: ShuffleId) -> Vec<(PoolSlot, u64, bool)> {
        lock(&self.index).of_shuffle(shuffle)
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
