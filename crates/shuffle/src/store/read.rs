//! Reading batches: whole, or no more of one than is wanted.
//!
//! | wanted | read of each frame | checked by |
//! |---|---|---|
//! | a batch, to divide it, to pass it on, to put it into an object store or into another file | all | the checksum of the frame |
//! | records and bytes of ranges | the head of the batch | the checksums of the frame's header and of the head |
//! | the records of a range | the head, and the records of its tags; a small frame is read at once | these, and the checksum of the records of each tag |
//!
//! So a bit that flips is found by the next read of what it is in, and by the next start, which reads all.

use super::error::BatchError;
use super::index::{Index, Place};
use super::{Damage, file, lock};
use crate::counted::Counted;
use crate::forms::batch::StoredHead;
use crate::limits;
use crate::objects::Objects;
use partage_journal::Disk;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::head::{BatchHead, HeadBody};
use partage_service::shuffle::plan::{Plan, PlanRange};
use partage_service::shuffle::record::{Batch, BatchKey, Body, Stream, Tagged};
use partage_service::shuffle::{PoolSlot, ShuffleId, Writer};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
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

/// Where a range is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeSource {
    /// On the disk alone: the object store may take long, or not answer.
    Disk,
    /// On the disk, and from the first batch on that has gone from there, in the object store.
    DiskAndObjects,
}

/// Whether reading it again would fail in the same way.
fn is_of_disk(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO)
}

/// Goes through batches of a shuffle in a slot, as long as more is wanted: of each writer those behind the first number, up to
/// the second one.
fn each<'a>(
    (shuffle, slot): (ShuffleId, PoolSlot),
    wanted: impl IntoIterator<Item = (&'a Writer, u64, u64)>,
    mut read: impl FnMut(&BatchKey) -> Result<bool, BatchError>,
) -> Result<(), BatchError> {
    for (writer, after, upto) in wanted {
        let stream = Stream { shuffle, slot, writer: writer.clone() };
        let mut key = BatchKey { stream, number: after };
        while key.number < upto {
            key.number += 1;
            if !read(&key)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Where the records of these tags lie behind the head: those that are near to each other are read at once.
fn spans(stored: &StoredHead, tags: Vec<Tag>) -> Vec<(Vec<Tag>, Range<usize>)> {
    let mut spans: Vec<(Vec<Tag>, Range<usize>)> = Vec::new();
    for tag in tags {
        let Some(run) = stored.run(tag) else { continue };
        match spans.last_mut() {
            Some((tags, span)) if run.start <= span.end + limits::GAP_BYTES => {
                tags.push(tag);
                span.end = run.end;
            }
            _ => spans.push((vec![tag], run)),
        }
    }
    spans
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
        self.look(key, |place| self.whole(key, place)).map(Arc::new)
    }

    /// What a batch of the disk has before its records. Nothing else of it is read.
    ///
    /// # Errors
    /// It is not here, or not as it was written; of its records nothing is said.
    pub fn head(&self, key: &BatchKey) -> Result<BatchHead, BatchError> {
        self.look(key, |place| {
            let of = 0..file::head_bytes(place);
            let Some(mut bytes) = self.lying(key, place, of)? else { return Ok(None) };
            self.read.add(0, bytes.len() as u64);
            self.stored_head(key, place, &mut bytes).map(|stored| Some(stored.head))
        })
    }

    /// A batch of the disk with nothing but what lies under the tags that are wanted of it. What else it has is not read, or, of
    /// a small batch, not looked at.
    fn part(
        &self,
        key: &BatchKey,
        wanted: impl Fn(&BatchHead) -> Vec<Tag>,
    ) -> Result<Arc<Batch>, BatchError> {
        self.look(key, |place| self.part_at(key, place, &wanted)).map(Arc::new)
    }

    /// Looks for a batch again, if its file is gone: it is somewhere else then, or was dropped.
    fn look<T>(
        &self,
        key: &BatchKey,
        read: impl Fn(Place) -> Result<Option<T>, BatchError>,
    ) -> Result<T, BatchError> {
        for _ in 0..limits::READ_LOOKS {
            let place = lock(&self.index).get(key);
            let Some(place) = place else { break };
            if let Some(found) = read(place)? {
                return Ok(found);
            }
        }
        Err(BatchError::Absent(key.clone()))
    }

    /// Hands over what a plan needs of a range, as long as more is wanted: of each batch of its slot on the disk, one by one,
    /// what lies under tags of the range; and from the first batch on that has gone from there, what the object store has, unless
    /// that is not to be asked.
    ///
    /// # Errors
    /// As [`BatchReader::read_all`]; or the object store does not give it, or is not asked.
    pub(crate) fn read_range(
        &self,
        source: RangeSource,
        (plan, range): (&Plan, &PlanRange),
        mut take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), BatchError> {
        let needed = plan.needed.get(&range.slot).into_iter().flatten();
        let wanted = needed.map(|(writer, upto)| (writer, 0, *upto));
        let mut taken = None;
        let read = each((plan.shuffle, range.slot), wanted, |key| {
            let part = self.part(key, |head| plan.tags_of(range, head))?;
            taken = Some(key.clone());
            Ok(take(&part))
        });
        let (Err(BatchError::Absent(key)), Some(objects)) = (&read, &self.objects) else { return read };
        let receipts = lock(&self.index).receipts(plan.shuffle, range.slot);
        if source == RangeSource::Disk && !receipts.is_empty() {
            return Err(BatchError::Moved(key.clone()));
        }
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

    /// Bytes of the frame of a batch, by their places in it, as they lie there. None: the file is gone.
    fn lying(&self, key: &BatchKey, place: Place, of: Range<usize>) -> Result<Option<Vec<u8>>, BatchError> {
        let path = file::path(&self.dir, key.stream.shuffle, place.file);
        match self.disk.read_at(&path, place.offset + of.start as u64, of.len()) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // The disk cannot read the place, or the file ends before it.
            Err(error) if is_of_disk(&error) => {
                Err(self.damaged(key, place, format!("it cannot be read: {error}")))
            }
            Err(error) => Err(BatchError::Failed { key: key.clone(), why: error.to_string() }),
        }
    }

    fn damaged(&self, key: &BatchKey, place: Place, what: String) -> BatchError {
        let path = file::path(&self.dir, key.stream.shuffle, place.file);
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let damage = Box::new(Damage { file, offset: place.offset, what });
        BatchError::Damaged { key: key.clone(), place: Box::new(place), damage }
    }

    fn whole(&self, key: &BatchKey, place: Place) -> Result<Option<Batch>, BatchError> {
        let Some(bytes) = self.lying(key, place, 0..place.bytes)? else { return Ok(None) };
        match file::read_frame(bytes, place) {
            Ok(batch) if batch.key == *key => {
                self.read.add(batch.records(), place.bytes as u64);
                Ok(Some(batch))
            }
            Ok(_) => Err(self.damaged(key, place, "another batch lies here".to_owned())),
            Err(found) => Err(self.damaged(key, place, found.what)),
        }
    }

    fn stored_head(&self, key: &BatchKey, place: Place, bytes: &mut [u8]) -> Result<StoredHead, BatchError> {
        match file::read_head(bytes, place) {
            Ok(stored) if stored.head.key == *key => Ok(stored),
            Ok(_) => Err(self.damaged(key, place, "another batch lies here".to_owned())),
            Err(found) => Err(self.damaged(key, place, found.what)),
        }
    }

    fn part_at(
        &self,
        key: &BatchKey,
        place: Place,
        wanted: &impl Fn(&BatchHead) -> Vec<Tag>,
    ) -> Result<Option<Batch>, BatchError> {
        let (head_bytes, is_small) = (file::head_bytes(place), place.bytes <= limits::WHOLE_FRAME_BYTES);
        let first = if is_small { place.bytes } else { head_bytes };
        let Some(mut bytes) = self.lying(key, place, 0..first)? else { return Ok(None) };
        self.read.add(0, bytes.len() as u64);
        let stored = self.stored_head(key, place, &mut bytes)?;
        let tags = wanted(&stored.head);
        let mut parts = Vec::new();
        if is_small && !tags.is_empty() {
            parts.push((tags, (0, bytes.split_off(head_bytes))));
        } else {
            for (tags, span) in spans(&stored, tags) {
                let of = head_bytes + span.start..head_bytes + span.end;
                let Some(bytes) = self.lying(key, place, of)? else { return Ok(None) };
                self.read.add(0, bytes.len() as u64);
                parts.push((tags, (span.start, bytes)));
            }
        }
        let mut tagged = Tagged::new();
        for (tags, part) in parts {
            let read = file::read_runs(&stored, &tags, part, place);
            tagged.extend(read.map_err(|found| self.damaged(key, place, found.what))?);
        }
        let BatchHead { key, durability, body } = stored.head;
        let body = match body {
            HeadBody::Mark(mark) => Body::Mark(mark),
            HeadBody::Records(_) => Body::Records(tagged),
        };
        let batch = Batch { key, durability, body };
        self.read.add(batch.records(), 0);
        Ok(Some(batch))
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
        each((shuffle, slot), wanted, |key| Ok(take(&self.read(key)?)))
    }

    /// The same of heads of batches, all that are wanted.
    ///
    /// # Errors
    /// As [`BatchReader::read_all`], as far as [`BatchReader::head`] finds it.
    pub fn read_heads<'a>(
        &self,
        (shuffle, slot): (ShuffleId, PoolSlot),
        wanted: impl IntoIterator<Item = (&'a Writer, u64, u64)>,
        mut take: impl FnMut(&BatchHead),
    ) -> Result<(), BatchError> {
        each((shuffle, slot), wanted, |key| {
            take(&self.head(key)?);
            Ok(true)
        })
    }

    /// Records that were read so far, by this reader and its copies, and the bytes that were read for that, and for counts.
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
