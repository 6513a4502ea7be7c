//! One file of batches: how it is written, and how a start reads it.
//!
//! ```text
//! file   header of the journal 64, zeros | group | group | …              (blocks of 4,096 bytes; nothing behind the last one)
//! group  frame | frame | … | zeros
//! frame  of the journal; its payload: bytes that were synced before, and 1 more in the last frame of a group 8 | batch
//! ```
//!
//! The room is not taken ahead, as it is in a log: each byte would be written twice. So a group of frames is written behind the
//! end of the file, and synced, unless each batch of it is of durability `memory`. What is synced goes past the page cache where
//! the file system lets it, in whole blocks: the copy into that cache cost as much as all else that is done to write. What is
//! not synced has no other place than the cache: from the first such group on the file is written as any other one.
//!
//! A crash can tear any frame behind the last sync, and leave a later one of them whole. Each frame therefore says how much of
//! the file was synced when its group began, and whether another one of its group follows: that one begins where the frame ends,
//! and the next group at the next block. What a start finds at the place of a frame:
//!
//! | found there | verdict |
//! |---|---|
//! | a whole frame | a batch |
//! | the file ends, or there are only zeros | the end |
//! | a frame that is not as it was written; a later one says that this place was synced | damage |
//! | one that was begun and not ended, or of which a sector was never written; no later one says that | unfinished: the file is cut here |
//! | anything else | damage |
//!
//! Between the last frame of a group and the next block, and behind the header, there are zeros, or the file ends. Anything else
//! is damage, which costs no batch.
//!
//! No single bit that flips makes a frame look unfinished. What no file can tell by itself: that whole sectors of its end are
//! gone. The replicas of the slot tell that, when they compare what they have.

use super::index::Place;
use crate::forms::batch::{self, OtherVersion, StoredHead};
use bytes::{Buf, BufMut, Bytes};
use partage_journal::frame::{self, Found};
use partage_journal::{AlignedBuffer, BLOCK, Disk, DiskFile, FileHeader, frame::Damage, is_full};
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::record::{Batch, BatchKey, EndMark, Tagged};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The end of the name of a file of batches.
const ENDING: &str = ".batches";

/// What the journal asks of the header. These files do not grow by steps.
const STEP: u32 = 512;

/// Bytes of a payload before the batch.
const BEFORE: usize = 8;

/// What a frame that is the last one of its group adds to the bytes that were synced before: these are whole blocks.
const LAST: u64 = 1;

/// The path of a file.
pub(crate) fn path(dir: &Path, shuffle: ShuffleId, number: u64) -> PathBuf {
    dir.join(format!("{shuffle}-{number:016x}{ENDING}"))
}

/// The shuffle and the number of a file, by its name. None: it is no file of batches.
pub(crate) fn parse(name: &str) -> Option<(ShuffleId, u64)> {
    let (shuffle, number) = name.strip_suffix(ENDING)?.split_once('-')?;
    if (shuffle.len(), number.len()) != (32, 16) {
        return None;
    }
    let shuffle = u128::from_str_radix(shuffle, 16).ok()?;
    Some((ShuffleId(shuffle), u64::from_str_radix(number, 16).ok()?))
}

/// Why a group is not in a file.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// There is no room. Nothing of it is there.
    Full,
    /// What is there is not known.
    Unknown(String),
}

/// A file that is added to.
#[derive(Debug)]
pub(crate) struct BatchFile {
    pub(crate) number: u64,
    path: PathBuf,
    /// None: it is closed, as files of other shuffles were added to since.
    file: Option<Box<dyn DiskFile>>,
    /// Something of it was written to the page cache: what follows goes there, too.
    is_cached: bool,
    /// What is written.
    pub(crate) end: u64,
    /// What of it is synced.
    synced: u64,
    /// The folder was synced after the file was made.
    is_named: bool,
    next_frame: u64,
}

impl BatchFile {
    /// Makes an empty file, for a first group that is synced or not. It is there for sure when the folder is synced after that
    /// group.
    pub(crate) fn create(
        disk: &dyn Disk,
        dir: &Path,
        (shuffle, number): (ShuffleId, u64),
        buffer: &mut AlignedBuffer,
        syncs: bool,
    ) -> Result<BatchFile, AppendError> {
        let path = path(dir, shuffle, number);
        let header = FileHeader { owner: shuffle.0, file_number: number, step: STEP }.encode();
        buffer.fill(&header);
        let created = if syncs { disk.create_past_cache(&path) } else { disk.create(&path) };
        let made = created.and_then(|mut file| {
            file.write_at(0, buffer.as_slice())?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                let end = BLOCK as u64;
                Ok(BatchFile {
                    number,
                    path,
                    file: Some(file),
                    is_cached: !syncs,
                    end,
                    synced: end,
                    is_named: false,
                    next_frame: 1,
                })
            }
            Err(error) if is_full(&error) => match disk.remove(&path) {
                Ok(()) => Err(AppendError::Full),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(AppendError::Full),
                Err(error) => Err(unknown(&path, "removing", &error)),
            },
            Err(error) => Err(unknown(&path, "making", &error)),
        }
    }

    /// Writes a group, made in `buffer`; with `syncs` the caller syncs it before it counts. The answer says where each batch
    /// lies, in their order.
    pub(crate) fn append(
        &mut self,
        disk: &dyn Disk,
        buffer: &mut AlignedBuffer,
        (group, syncs): (&[Arc<Batch>], bool),
    ) -> Result<Vec<Place>, AppendError> {
        let places = self.encode(group, buffer);
        let bytes = buffer.as_slice();
        if !syncs && !self.is_cached {
            (self.is_cached, self.file) = (true, None);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let opened = match self.is_cached {
                    true => disk.open(&self.path),
                    false => disk.open_past_cache(&self.path),
                };
                self.file.insert(opened.map_err(|error| unknown(&self.path, "opening", &error))?)
            }
        };
        if let Err(error) = file.write_at(self.end, bytes) {
            let back = file.set_len(self.end).and_then(|()| file.sync());
            return Err(match back {
                Ok(()) if is_full(&error) => AppendError::Full,
                _ => unknown(&self.path, "writing", &error),
            });
        }
        self.end += bytes.len() as u64;
        self.next_frame += places.len() as u64;
        Ok(places)
    }

    /// Whether the folder was synced after the file was made.
    pub(crate) fn is_named(&self) -> bool {
        self.is_named
    }

    /// Syncs all that was written. If the file is not named, the caller syncs the folder, too, before anything counts.
    ///
    /// # Errors
    /// What of it is on the disk is not known.
    pub(crate) fn sync(&mut self) -> Result<(), String> {
        let Some(file) = &mut self.file else {
            return Err(format!("`{}` was closed before it was synced", self.path.display()));
        };
        file.sync().map_err(|error| format!("syncing `{}`: {error}", self.path.display()))?;
        (self.synced, self.is_named) = (self.end, true);
        Ok(())
    }

    /// The places that the batches of a group get, and their frames in the buffer.
    fn encode(&self, group: &[Arc<Batch>], buffer: &mut AlignedBuffer) -> Vec<Place> {
        let room = |batch: &Arc<Batch>| frame::extent(BEFORE + usize::try_from(batch.room()).unwrap_or(0));
        let mut places = Vec::with_capacity(group.len());
        buffer.build(group.iter().map(room).sum(), |out| {
            let start = out.len();
            for batch in group {
                let number = self.next_frame + places.len() as u64;
                let offset = self.end + (out.len() - start) as u64;
                let is_last = places.len() + 1 == group.len();
                let mut head = 0;
                let bytes = frame::encode_into(out, self.number, number, |out| {
                    out.put_u64(self.synced + if is_last { LAST } else { 0 });
                    head = batch::encode(batch, out);
                });
                places.push(Place { file: self.number, offset, bytes, number, head });
            }
        });
        places
    }

    /// The next group opens it again.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    #[cfg(test)]
    pub(crate) fn is_open(&self) -> bool {
        self.file.is_some()
    }
}

fn unknown(path: &Path, what: &str, error: &io::Error) -> AppendError {
    AppendError::Unknown(format!("{what} `{}`: {error}", path.display()))
}

/// The batch in a frame that was read, or what is wrong with it.
pub(crate) fn read_frame(mut bytes: Vec<u8>, place: Place) -> Result<Batch, Damage> {
    let damage = |what: String| Damage { offset: place.offset, what };
    let Some(length) =
        frame::payload_in_place(&mut bytes, place.file, place.number).map(|payload| payload.len())
    else {
        return Err(match frame::find(&bytes, place.file, 0, place.number) {
            Ok(_) => damage(format!("record {} is not whole", place.number)),
            Err(found) => damage(found.what),
        });
    };
    let payload = Bytes::from(bytes).slice(frame::RECORD_HEADER..frame::RECORD_HEADER + length);
    let form = payload.slice(BEFORE.min(length)..);
    batch::decode(&form).ok_or_else(|| damage("the form of the batch is not known".to_owned()))
}

/// Bytes of a frame up to the records of its batch.
pub(crate) fn head_bytes(place: Place) -> usize {
    frame::RECORD_HEADER + BEFORE + place.head as usize
}

/// The head of the batch in a frame, of which these are the first bytes. It is checked as a whole frame is; how much was synced
/// before the frame is not, and is not used.
pub(crate) fn read_head(bytes: &mut [u8], place: Place) -> Result<StoredHead, Damage> {
    let damage = |what: &str| {
        let what = format!("record {} is damaged: {what}", place.number);
        Damage { offset: place.offset, what }
    };
    let header = frame::head(bytes).ok_or_else(|| damage("the header is not as it was written"))?;
    let is_it = (header.file_number, header.number) == (place.file, place.number);
    if !is_it || frame::extent(header.payload_bytes) != place.bytes {
        return Err(damage("another record lies there"));
    }
    let payload = bytes.get_mut(frame::RECORD_HEADER..head_bytes(place));
    let payload = payload.ok_or_else(|| damage("the file ends before"))?;
    frame::unmix(place.number, 0, payload);
    let stored = StoredHead::of(payload.get(BEFORE..).unwrap_or_default());
    let stored = stored.filter(|stored| BEFORE + stored.form_bytes() == header.payload_bytes);
    stored.ok_or_else(|| damage("the head of the batch is not as it was written"))
}

/// The records of some tags, of which these bytes have all. They begin at byte `from` behind the head.
pub(crate) fn read_runs(
    stored: &StoredHead,
    tags: &[Tag],
    (from, mut bytes): (usize, Vec<u8>),
    place: Place,
) -> Result<Tagged, Damage> {
    let damage = || {
        let what =
            format!("record {} is damaged: what it has of a range is not as it was written", place.number);
        Damage { offset: place.offset, what }
    };
    let mut runs = Vec::with_capacity(tags.len());
    for tag in tags {
        let run = stored.run(*tag).ok_or_else(damage)?;
        let begin = run.start.checked_sub(from).ok_or_else(damage)?;
        let lie = begin..begin + run.len();
        let lying = bytes.get_mut(lie.clone()).ok_or_else(damage)?;
        frame::unmix(place.number, BEFORE + place.head as usize + run.start, lying);
        if !stored.has_sum(*tag, lying) {
            return Err(damage());
        }
        runs.push((*tag, lie));
    }
    let bytes = Bytes::from(bytes);
    let segments = |(tag, lie): (Tag, Range<usize>)| Some((tag, stored.segments(tag, &bytes.slice(lie))?));
    runs.into_iter().map(segments).collect::<Option<Tagged>>().ok_or_else(damage)
}

/// What a start finds in a file.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    pub(crate) batches: Vec<(BatchKey, Option<EndMark>, Place)>,
    pub(crate) damages: Vec<Damage>,
    /// Where an unfinished group begins.
    pub(crate) cut_at: Option<u64>,
    /// It has a batch in the form of another version: nothing of it may be changed.
    pub(crate) other_version: Option<OtherVersion>,
    /// The content is that of another file: nothing of it is taken up.
    pub(crate) is_foreign: bool,
}

/// Reads a file of that shuffle and number from its first byte to its last. Pure.
pub(crate) fn scan(file: Vec<u8>, shuffle: ShuffleId, number: u64) -> Scanned {
    let mut scanned = Scanned::default();
    let length = file.len();
    let header = FileHeader::decode(&file);
    let mut scan = Scan { file, length, number };
    match header {
        Ok(header) if (header.owner, header.file_number) == (shuffle.0, number) => {}
        Ok(_) => {
            let what = "the file has the content of another one: its name was changed".to_owned();
            scanned.damages.push(Damage { offset: 0, what });
            scanned.is_foreign = true;
            return scanned;
        }
        // Nothing of it was synced.
        Err(_) if scan.is_new() => {
            scanned.cut_at = Some(0);
            return scanned;
        }
        Err(damage) => scanned.damages.push(damage),
    }
    scanned.other_version = scan.earlier_form();
    let (mut at, mut expected) = (scan.next_block(frame::FILE_HEADER, &mut scanned.damages), 1);
    loop {
        match scan.find(at, expected) {
            Ok(Found::Record { payload, number: record, next }) => {
                let form = payload.get(BEFORE..).unwrap_or_default();
                scanned.other_version = scanned.other_version.or_else(|| batch::other_version(form));
                match batch::decode_name(form) {
                    Some((key, mark, head)) if key.stream.shuffle == shuffle => {
                        let (offset, bytes) = (at as u64, next - at);
                        let place = Place { file: number, offset, bytes, number: record, head };
                        scanned.batches.push((key, mark, place));
                    }
                    _ => scanned.damages.push(Damage::new(at, "the form of the batch is not known")),
                }
                let is_last = before(&payload).1;
                at = if is_last { scan.next_block(next, &mut scanned.damages) } else { next };
                expected = record + 1;
            }
            Ok(Found::End) => return scanned,
            Ok(Found::Torn) => {
                scanned.cut_at = Some(at as u64);
                return scanned;
            }
            Err(_) if scan.is_unfinished(at, expected) => {
                scanned.cut_at = Some(at as u64);
                return scanned;
            }
            Err(damage) => {
                scanned.damages.push(damage);
                let Some((next, record, _)) = scan.next_good(at + frame::ALIGN) else { return scanned };
                (at, expected) = (next, record);
            }
        }
    }
}

/// How much of the file was synced before the group of a frame with this payload, and whether it is the last one of the group.
fn before(mut payload: &[u8]) -> (u64, bool) {
    let before = payload.try_get_u64().unwrap_or(0);
    (before & !LAST, before & LAST != 0)
}

/// A file that is being read. Zeros are put behind its end as far as a frame needs them to be judged.
struct Scan {
    file: Vec<u8>,
    length: usize,
    number: u64,
}

impl Scan {
    fn find(&mut self, at: usize, expected: u64) -> Result<Found, Damage> {
        let wanted = self.extent(at).max(frame::ALIGN) + frame::ALIGN;
        if self.file.len() < at + wanted {
            self.file.resize(at + wanted, 0);
        }
        frame::find(&self.file, self.number, at, expected)
    }

    /// Files of form 1 had their first record right behind the header of the file.
    fn earlier_form(&mut self) -> Option<OtherVersion> {
        let found = self.find(frame::FILE_HEADER, 1).ok()?;
        matches!(found, Found::Record { .. }).then_some(OtherVersion::Earlier)
    }

    /// Where the first block begins at or behind this place. What lies before it is damage unless it is zeros.
    fn next_block(&self, at: usize, damages: &mut Vec<Damage>) -> usize {
        let next = at.next_multiple_of(BLOCK);
        let between = self.file.get(at..next.min(self.length)).unwrap_or_default();
        if *between != [0_u8; BLOCK][..between.len()] {
            damages.push(Damage::new(at, "there is something where zeros fill up a block"));
        }
        next
    }

    /// Bytes of the frame that begins there, if its header is good.
    fn extent(&self, at: usize) -> usize {
        let head = frame::head(self.file.get(at..).unwrap_or_default());
        let head = head.filter(|head| head.file_number == self.number);
        head.map_or(0, |head| frame::extent(head.payload_bytes))
    }

    /// The next good frame: where it is, its number, and how much of the file was synced before it.
    fn next_good(&self, from: usize) -> Option<(usize, u64, u64)> {
        match frame::find_any(&self.file, self.number, from)? {
            (at, Found::Record { payload, number, .. }) => Some((at, number, before(&payload).0)),
            _ => None,
        }
    }

    /// Whether nothing of the file was synced: its first group was not finished.
    fn is_new(&self) -> bool {
        let has_header = self.file.iter().take(frame::FILE_HEADER).any(|byte| *byte != 0);
        let mut from = 0;
        while let Some((at, _, synced)) = self.next_good(from) {
            if has_header || synced > BLOCK as u64 {
                return false;
            }
            from = at + frame::ALIGN;
        }
        true
    }

    /// Whether what begins there belongs to a group that was not finished.
    fn is_unfinished(&self, at: usize, expected: u64) -> bool {
        let mut from = at + frame::ALIGN;
        while let Some((next, _, synced)) = self.next_good(from) {
            if synced > at as u64 {
                return false;
            }
            from = next + frame::ALIGN;
        }
        // As if nothing followed on it: a frame of the same group may.
        let own = match self.extent(at) {
            0 => self.next_head(at + frame::ALIGN) - at,
            extent => extent,
        };
        let end = self.file.len().min(at + own);
        let mut view = self.file[..end].to_vec();
        view.resize(at + own + 2 * frame::ALIGN, 0);
        matches!(frame::find(&view, self.number, at, expected), Ok(Found::Torn | Found::End))
    }

    /// Where the next frame begins whose header is good; the end of the file if there is none.
    fn next_head(&self, from: usize) -> usize {
        let mut starts = (from.next_multiple_of(frame::ALIGN)..self.length).step_by(frame::ALIGN);
        starts.find(|start| self.extent(*start) > 0).unwrap_or(self.length.max(from))
    }
}
