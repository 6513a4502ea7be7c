//! Reading batches.

use super::error::BatchError;
use super::index::{Index, Place};
use super::{Damage, file, lock};
use crate::limits;
use partage_journal::Disk;
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{PoolSlot, ShuffleId, Writer};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Reads the files of a store while it is written. A copy reads the same.
#[derive(Debug, Clone)]
pub struct BatchReader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    index: Arc<Mutex<Index>>,
}

/// `EIO`, as the system numbers it.
const IO_ERROR: i32 = 5;

/// Whether reading it again would fail in the same way.
fn is_of_disk(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof || error.raw_os_error() == Some(IO_ERROR)
}

impl BatchReader {
    pub(super) fn new(disk: Arc<dyn Disk>, dir: PathBuf, index: Arc<Mutex<Index>>) -> BatchReader {
        BatchReader { disk, dir, index }
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

    fn read_at(&self, key: &BatchKey, place: Place) -> Result<Option<Batch>, BatchError> {
        let path = file::path(&self.dir, key.stream.shuffle, place.file);
        let name = || path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let damage = |offset, what| {
            let damage = Box::new(Damage { file: name(), offset, what });
            BatchError::Damaged { key: key.clone(), damage }
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
            Ok(batch) if batch.key == *key => Ok(Some(batch)),
            Ok(_) => Err(damage(place.offset, "another batch lies here".to_owned())),
            Err(found) => Err(damage(found.offset, found.what)),
        }
    }

    /// The batches of a shuffle in a slot that are wanted, by their writers and numbers.
    ///
    /// # Errors
    /// The first one that is not as it was written. One that is not here any more is left out.
    pub fn read_slot(
        &self,
        (shuffle, slot): (ShuffleId, PoolSlot),
        is_wanted: impl Fn(&Writer, u64) -> bool,
    ) -> Result<Vec<Arc<Batch>>, BatchError> {
        let mut keys = lock(&self.index).of_slot(shuffle, slot);
        keys.retain(|key| is_wanted(&key.stream.writer, key.number));
        let mut batches = Vec::with_capacity(keys.len());
        for key in &keys {
            match self.read(key) {
                Ok(batch) => batches.push(batch),
                Err(BatchError::Absent(_)) => {}
                Err(damaged) => return Err(damaged),
            }
        }
        Ok(batches)
    }

    /// Bytes of all frames, also of those that are not wanted any more.
    pub fn bytes(&self) -> u64 {
        lock(&self.index).bytes()
    }
}
