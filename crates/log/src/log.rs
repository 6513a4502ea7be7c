//! The log while it runs.

use crate::error::{Damage, OpenError, WriteError};
use crate::group::{self, GroupId, RecordId, Section};
use crate::record::{BodyRef, Checkpoint, Record, payload_bytes};
use crate::recovery::{Recovered, Replay, SegmentEnd};
use crate::replica::{Needs, Outline, ReplicaState};
use crate::segment::{self, BLOCK, CreateError, Mode};
use crate::settings::LogSettings;
use partage_core::node::exchange::ReplicaKey;
use partage_journal::{AlignedBuffer, Disk, DiskFile, FileHeader, frame};
use partage_service::table::replication::LogWrite;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The file that keeps a second process out of the folder.
const LOCK: &str = "lock";

/// Memory for groups that is kept between writes.
const KEPT_BUFFER_BYTES: usize = 4 << 20;

type Created = Result<(Box<dyn DiskFile>, Mode), CreateError>;

/// The segment that groups are written to.
#[derive(Debug)]
struct Head {
    number: u64,
    file: Box<dyn DiskFile>,
    mode: Mode,
    /// Where the next group goes.
    at: usize,
    groups: u64,
    /// How many groups the segment before has.
    before: u64,
}

/// The segment behind the head.
#[derive(Debug)]
enum Next {
    None,
    /// A thread makes it.
    Making(JoinHandle<Created>),
    Made(Box<dyn DiskFile>, Mode),
}

/// How a replica was before a record of a group that may still be refused.
#[derive(Debug)]
struct Before<'a> {
    key: &'a ReplicaKey,
    /// None: it was not in the log.
    state: Option<(Outline, RecordId, u64)>,
    /// The damage that the record ended.
    damage: Option<Damage>,
}

/// What is kept of a replica when the segments with its records are deleted.
#[derive(Debug)]
struct Carried {
    key: ReplicaKey,
    checkpoint: Checkpoint,
    damage: Option<Damage>,
}

impl Carried {
    fn body(&self) -> BodyRef<'_> {
        self.damage.as_ref().map_or(BodyRef::Checkpoint(&self.checkpoint), BodyRef::Damaged)
    }
}

/// The log of one folder.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    settings: LogSettings,
    replicas: BTreeMap<ReplicaKey, ReplicaState>,
    needs: Needs,
    /// The segments that there are, the head too, the oldest first.
    segments: VecDeque<u64>,
    head: Option<Head>,
    /// What a head that is yet to be made follows on: the number of the last segment, and its groups.
    last: (u64, u64),
    next: Next,
    /// Why the log refuses every write.
    ended: Option<String>,
    buffer: AlignedBuffer,
    written_bytes: u64,
    _lock: Box<dyn Any + Send>,
}

impl Log {
    /// Opens the log in `dir`, and makes it if there is none.
    ///
    /// The answer has what was synced. If a write was under way when the process before ended, its group is there as a
    /// whole or not at all.
    ///
    /// # Errors
    /// Another process has the folder, the files are of another store or program, or the disk failed. Damaged
    /// bytes are no error: [`Recovered`] says what they touch. A full disk is none either: the first write is refused then.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        settings: LogSettings,
    ) -> Result<(Log, Recovered), OpenError> {
        settings.check()?;
        let failed = |what: &str| {
            let what = format!("{what} in `{}`", dir.display());
            move |error: std::io::Error| OpenError::Disk(format!("{what}: {error}"))
        };
        disk.create_dir(dir).map_err(failed("making the folder of the log"))?;
        let lock = disk.lock(&dir.join(LOCK)).map_err(failed("locking the log"))?;
        let lock = lock.ok_or_else(|| OpenError::Locked(dir.display().to_string()))?;
        let names = disk.list(dir).map_err(failed("listing the segments"))?;
        for litter in names.iter().filter(|name| segment::is_unfinished(name)) {
            disk.remove(&dir.join(litter)).map_err(failed("removing an unfinished segment"))?;
        }
        // The process before may have ended between a change of names and its sync.
        disk.sync_dir(dir).map_err(failed("syncing the folder"))?;
        let mut replay = Replay::default();
        let numbers: Vec<u64> = names.iter().filter_map(|name| segment::number(name)).collect();
        for number in &numbers {
            let file = disk.read(&segment::path(dir, *number)).map_err(failed("reading a segment"))?;
            replay.segment(*number, &file, settings.owner)?;
        }
        let replayed = replay.finish();
        let mut log = Log {
            disk,
            dir: dir.to_owned(),
            settings,
            replicas: replayed.replicas,
            needs: replayed.needs,
            segments: numbers.into(),
            head: None,
            last: (0, 0),
            next: Next::None,
            ended: None,
            buffer: AlignedBuffer::default(),
            written_bytes: 0,
            _lock: lock,
        };
        log.go_on(&replayed.segments).map_err(failed("opening the last segment"))?;
        if log.head.is_none() {
            match log.advance() {
                Ok(()) | Err(WriteError::Full(_)) => {}
                Err(error) => return Err(OpenError::Disk(error.to_string())),
            }
        }
        let recovered = Recovered { mode: log.mode(), ..replayed.recovered };
        Ok((log, recovered))
    }

    /// Takes the last segment as the head if groups may be added to it. If an unfinished write or damage follows on its
    /// last group, the head will be a new one.
    fn go_on(&mut self, ends: &[SegmentEnd]) -> std::io::Result<()> {
        let [before @ .., last] = ends else { return Ok(()) };
        let before = before.last().filter(|before| before.number + 1 == last.number);
        self.last = (last.number, last.groups);
        if !last.is_clean() {
            return Ok(());
        }
        match before.filter(|before| last.groups == 0 && before.is_clean()) {
            Some(head) => {
                let (file, mode) = self.reopen(last)?;
                self.next = Next::Made(file, mode);
                self.segments.pop_back();
                // What the segment before the head has is in the head's first group already, if the head has one.
                let earlier = ends.iter().find(|end| end.number + 1 == head.number);
                self.head = Some(self.head_of(head, earlier)?);
            }
            None => self.head = Some(self.head_of(last, before)?),
        }
        Ok(())
    }

    fn head_of(&self, end: &SegmentEnd, before: Option<&SegmentEnd>) -> std::io::Result<Head> {
        let (file, mode) = self.reopen(end)?;
        let before = before.map_or(0, |before| before.groups);
        Ok(Head { number: end.number, file, mode, at: end.at, groups: end.groups, before })
    }

    /// Opens a segment and writes its last group once more, as the process before may have ended between that write and its
    /// sync.
    fn reopen(&self, end: &SegmentEnd) -> std::io::Result<(Box<dyn DiskFile>, Mode)> {
        let path = segment::path(&self.dir, end.number);
        let (at, bytes) = &end.last;
        segment::open(&*self.disk, &path, self.settings.try_direct, *at as u64, bytes.as_slice())
    }

    /// Writes a group, with one sync: when it returns, all of the group is on stable storage.
    ///
    /// # Errors
    /// [`WriteError::is_definite`] says whether it is certain that nothing was written. Otherwise the process must end, and
    /// the log refuses every later write.
    pub fn write(&mut self, group: &[(ReplicaKey, Record)]) -> Result<(), WriteError> {
        self.check_ended()?;
        if group.is_empty() {
            return Ok(());
        }
        self.check_entries(group)?;
        let of_sections =
            group.iter().map(|(key, record)| group::section_bytes(key, &BodyRef::Record(record)));
        let bytes = frame_bytes(group.len(), of_sections.sum());
        let id = self.make_room(bytes, self.settings.reserved_bytes())?;
        let previous = self.take_up(group, id)?;
        let records = group.iter().zip(previous);
        let sections: Vec<Section<'_>> = records
            .map(|((key, record), previous)| Section { key, previous, body: BodyRef::Record(record) })
            .collect();
        self.put(id, &sections)?;
        self.note_written(group, id.segment);
        self.prepare_next();
        Ok(())
    }

    fn check_entries(&self, group: &[(ReplicaKey, Record)]) -> Result<(), WriteError> {
        let most = self.settings.entry_bytes;
        for (key, record) in group {
            let Record::Write(LogWrite::Append(entries)) = record else { continue };
            if let Some(bytes) = entries.iter().map(payload_bytes).find(|bytes| *bytes > most) {
                return Err(WriteError::EntryTooLarge { replica: key.clone(), bytes, most });
            }
        }
        Ok(())
    }

    /// Takes up the records in what is known of their replicas; says which record is before each. If a record is refused,
    /// all is as it was.
    fn take_up(
        &mut self,
        group: &[(ReplicaKey, Record)],
        id: GroupId,
    ) -> Result<Vec<Option<RecordId>>, WriteError> {
        let mut changed: Vec<Before<'_>> = Vec::with_capacity(group.len());
        let mut previous = Vec::with_capacity(group.len());
        for (section, (key, record)) in (0..).zip(group) {
            let mut before = Before { key, state: None, damage: None };
            let state = match self.replicas.get_mut(key) {
                Some(state) => {
                    before.state = Some((state.outline, state.last, state.root));
                    state
                }
                None => self.replicas.entry(key.clone()).or_insert_with(|| ReplicaState::new(id.segment)),
            };
            let is_forget = matches!(record, Record::Forget);
            let refused = match &state.damage {
                Some(damage) if !is_forget => {
                    Some(WriteError::Damaged { replica: key.clone(), damage: damage.clone() })
                }
                _ => state
                    .outline
                    .apply(record)
                    .err()
                    .map(|what| WriteError::OutOfOrder { replica: key.clone(), what }),
            };
            previous.push(Some(state.last).filter(|last| *last != RecordId::default()));
            state.last = RecordId { group: id, section };
            if is_forget {
                (state.last, state.root) = (RecordId::default(), id.segment);
                before.damage = state.damage.take();
            }
            changed.push(before);
            if let Some(error) = refused {
                self.undo(changed);
                return Err(error);
            }
        }
        Ok(previous)
    }

    fn undo(&mut self, changed: Vec<Before<'_>>) {
        for Before { key, state, damage } in changed.into_iter().rev() {
            match state {
                None => drop(self.replicas.remove(key)),
                Some((outline, last, root)) => {
                    let Some(state) = self.replicas.get_mut(key) else { continue };
                    (state.outline, state.last, state.root) = (outline, last, root);
                    state.damage = damage.or_else(|| state.damage.take());
                }
            }
        }
    }

    /// The group is on disk: takes up which segments its replicas need.
    fn note_written(&mut self, group: &[(ReplicaKey, Record)], segment: u64) {
        for (key, record) in group {
            if matches!(record, Record::Write(LogWrite::Fence(_)) | Record::Committed(_)) {
                continue;
            }
            let Some(state) = self.replicas.get_mut(key) else { continue };
            state.spans.apply(record, segment, &mut self.needs);
            if matches!(record, Record::Forget) && state.last == RecordId::default() {
                self.replicas.remove(key);
            }
        }
    }

    fn check_ended(&self) -> Result<(), WriteError> {
        self.ended.as_ref().map_or(Ok(()), |what| Err(WriteError::Ends(what.clone())))
    }

    fn end(&mut self, what: String) -> WriteError {
        self.ended = Some(what.clone());
        WriteError::Ends(what)
    }

    /// Makes room for a group of so many bytes, frame included, so that `reserved` bytes are left behind it; says
    /// which group it is.
    fn make_room(&mut self, bytes: usize, reserved: usize) -> Result<GroupId, WriteError> {
        let most = self.settings.group_bytes();
        let bytes = bytes.next_multiple_of(BLOCK);
        if bytes > most {
            return Err(WriteError::GroupTooLarge { bytes, most });
        }
        let end = self.settings.segment_bytes as usize - reserved;
        if self.head.as_ref().is_none_or(|head| head.at + bytes > end) {
            self.advance()?;
        }
        let head = self.head.as_ref().map(|head| GroupId { segment: head.number, group: head.groups + 1 });
        head.ok_or_else(|| self.end("the log has no segment to write to".to_owned()))
    }

    /// Goes on to the next segment.
    fn advance(&mut self) -> Result<(), WriteError> {
        let (number, before) = match &self.head {
            Some(head) => (head.number + 1, head.groups),
            None => (self.last.0 + 1, self.last.1),
        };
        let created = match std::mem::replace(&mut self.next, Next::None) {
            Next::Made(file, mode) => Ok((file, mode)),
            Next::Making(thread) => thread.join().unwrap_or_else(|_| {
                Err(CreateError::Failed("the thread that makes segments panicked".to_owned()))
            }),
            Next::None => {
                segment::create(&*self.disk, &self.dir, self.header(number), self.settings.try_direct)
            }
        };
        match created {
            Ok((file, mode)) => {
                self.head = Some(Head { number, file, mode, at: BLOCK, groups: 0, before });
                self.segments.push_back(number);
                Ok(())
            }
            Err(CreateError::Full(what)) => Err(WriteError::Full(what)),
            Err(CreateError::Failed(what)) => Err(self.end(what)),
        }
    }

    fn header(&self, file_number: u64) -> FileHeader {
        FileHeader { owner: self.settings.owner, file_number, step: self.settings.segment_bytes }
    }

    /// Lets a thread make the next segment, if it is time.
    fn prepare_next(&mut self) {
        let Some(head) = self.head.as_ref().filter(|_| self.settings.prepare_ahead) else { return };
        if head.at < self.settings.segment_bytes as usize / 2 || !matches!(self.next, Next::None) {
            return;
        }
        let (disk, dir, try_direct) = (Arc::clone(&self.disk), self.dir.clone(), self.settings.try_direct);
        let header = self.header(head.number + 1);
        let make = move || segment::create(&*disk, &dir, header, try_direct);
        // Without a thread the write that needs the segment makes it.
        if let Ok(thread) = std::thread::Builder::new().name("log-segment".to_owned()).spawn(make) {
            self.next = Next::Making(thread);
        }
    }

    /// Writes a group where there is room for it.
    fn put(&mut self, id: GroupId, sections: &[Section<'_>]) -> Result<(), WriteError> {
        let Some(head) = &mut self.head else {
            return Err(self.end("the log has no segment to write to".to_owned()));
        };
        let payload = group::encode(id, head.before, sections);
        self.buffer.fill(&frame::encode(id.segment, id.group, payload));
        let bytes = self.buffer.as_slice();
        let written = head.file.write_at(head.at as u64, bytes).and_then(|()| head.file.sync());
        if let Err(error) = written {
            let path = segment::path(&self.dir, id.segment);
            return Err(self.end(format!("writing to the segment `{}`: {error}", path.display())));
        }
        head.at += bytes.len();
        self.written_bytes += bytes.len() as u64;
        head.groups = id.group;
        self.buffer.shrink(KEPT_BUFFER_BYTES);
        Ok(())
    }

    /// Deletes the oldest segments of which no replica needs an entry; says how many. What else is in them of a replica is
    /// written to the head segment before, as a checkpoint.
    ///
    /// # Errors
    /// As of [`Log::write`]. If the disk is full, the checkpoints take what is reserved for them at the end of the head
    /// segment; if that is too little, nothing is deleted.
    pub fn reclaim(&mut self) -> Result<usize, WriteError> {
        self.check_ended()?;
        let Some(newest) = self.segments.back().copied() else { return Ok(0) };
        let end = self.needs.oldest().map_or(newest, |needed| needed.min(newest));
        let deleted = self.segments.iter().take_while(|segment| **segment < end).count();
        if deleted > 0 {
            self.checkpoint_before(end)?;
        }
        for _ in 0..deleted {
            let Some(number) = self.segments.pop_front() else { break };
            let path = segment::path(&self.dir, number);
            // Synced one by one: of the segments that are left none is missing in between.
            let removed = self.disk.remove(&path).and_then(|()| self.disk.sync_dir(&self.dir));
            removed
                .map_err(|error| self.end(format!("deleting the segment `{}`: {error}", path.display())))?;
        }
        Ok(deleted)
    }

    /// Writes checkpoints of the replicas whose first record or last checkpoint is before that segment.
    fn checkpoint_before(&mut self, segment: u64) -> Result<(), WriteError> {
        /// Bytes of sections of one group.
        const BATCH: usize = 256 << 10;
        let old = self.replicas.iter().filter(|(_, state)| state.root < segment);
        let old: Vec<Carried> = old
            .map(|(key, state)| Carried {
                key: key.clone(),
                checkpoint: state.outline.checkpoint(),
                damage: state.damage.clone(),
            })
            .collect();
        let most = BATCH.min(self.settings.group_bytes() / 4);
        let mut rest = old.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |carried: &&Carried| {
                bytes = group::group_bytes(1, bytes + group::section_bytes(&carried.key, &carried.body()));
                bytes <= most
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (batch, later) = rest.split_at(count);
            self.write_checkpoints(batch)?;
            rest = later;
        }
        Ok(())
    }

    fn write_checkpoints(&mut self, batch: &[Carried]) -> Result<(), WriteError> {
        let section = |carried: &'_ Carried| {
            let last = self.replicas.get(&carried.key).map(|state| state.last);
            last.filter(|last| *last != RecordId::default())
        };
        let sections: Vec<Section<'_>> = batch
            .iter()
            .map(|carried| Section { key: &carried.key, previous: section(carried), body: carried.body() })
            .collect();
        let bytes = sections.iter().map(|section| group::section_bytes(section.key, &section.body)).sum();
        let id = self.make_room(frame_bytes(sections.len(), bytes), 0)?;
        self.put(id, &sections)?;
        for (section, carried) in (0..).zip(batch) {
            if let Some(state) = self.replicas.get_mut(&carried.key) {
                (state.last, state.root) = (RecordId { group: id, section }, id.segment);
            }
        }
        Ok(())
    }

    /// The replicas that need entries of the oldest segment that any replica needs: when they have flushed and trimmed,
    /// [`Log::reclaim`] can delete it. Empty if that is the head segment.
    pub fn holding_oldest(&self) -> Vec<ReplicaKey> {
        let oldest =
            self.needs.oldest().filter(|oldest| self.segments.back().is_some_and(|newest| oldest < newest));
        let Some(oldest) = oldest else { return Vec::new() };
        let holds = |(_, state): &(&ReplicaKey, &ReplicaState)| state.spans.oldest() == Some(oldest);
        self.replicas.iter().filter(holds).map(|(key, _)| key.clone()).collect()
    }

    /// The oldest segment that has entries which a replica needs.
    pub fn oldest_needed(&self) -> Option<u64> {
        self.needs.oldest()
    }

    /// How many segments there are, without one that is made ahead.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes of the groups that were written since the log was opened, padding included.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether [`Log::reclaim`] would delete a segment.
    pub fn can_reclaim(&self) -> bool {
        let (Some(oldest), Some(newest)) = (self.segments.front(), self.segments.back()) else {
            return false;
        };
        oldest < newest && self.needs.oldest().is_none_or(|needed| *oldest < needed)
    }

    /// How groups get to the disk: none while the disk has no room for a segment.
    pub fn mode(&self) -> Option<Mode> {
        self.head.as_ref().map(|head| head.mode)
    }

    /// The settings that the log was opened with.
    pub fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// Whether the log refuses every write, as the disk has failed.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The thread must not make files when another process has the folder.
        if let Next::Making(thread) = std::mem::replace(&mut self.next, Next::None) {
            let _ = thread.join();
        }
    }
}

/// Bytes of a frame with a group of so many sections that have so many bytes in all.
fn frame_bytes(sections: usize, section_bytes: usize) -> usize {
    frame::extent(group::group_bytes(sections, section_bytes))
}
