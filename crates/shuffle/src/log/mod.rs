//! The decisions of leaders, on disk: the replicas of [`partage_service::shuffle::log`] over the log of the node's disk.
//!
//! ```text
//!  Append of a leader ─► Replicas::take ─► record of the slot ─► GroupWriter ─► Synced ─► "appended", to the leader
//!                        (in memory)        (in the queue)        (one sync)
//! ```
//!
//! The thread of the machines has this log, and never waits for its disk: what finds no room in the queue of the writer waits
//! here. Then nothing more is taken of leaders, who send it again, and no lead begins; so what waits is a few records of each
//! slot.
//!
//! Each slot is one replica of the log ([`partage_log`]): its entries are what the machine took in, its fence is the epoch. One
//! write of the machine is one record, which is on the disk as a whole or not at all; a large one has several entries. A slot of
//! which many decisions have come gets its whole copy as a record, and what is before is trimmed; so what has ended leaves the
//! disk.
//!
//! | machine | records |
//! |---|---|
//! | a later epoch is heard of, or led under | fence |
//! | a whole copy replaces what was there | append of the copy, trim of all before |
//! | decisions that follow | append of these; after some of them the copy, as above |
//! | the slot is dropped | forget |
//! | its records are damaged | forget, append of a note that decisions were lost |
//!
//! A slot whose decisions were lost may not be led before it has taken a whole copy ([`DecisionLog::may_lead`]), nor after the
//! next start. What was not done: shuffles do not use the replication of tables, whose in-sync set asks the coordinator; a pool
//! asks it nothing.

mod replay;
#[cfg(test)]
mod tests;

use crate::forms::decision::{encode_after, encode_lost, encode_whole};
use crate::limits;
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::node::exchange::ReplicaKey;
use partage_journal::Disk;
use partage_log::{
    DamagedPlace, GroupWriter, Log, LogSettings, OpenError, Record, Report, SubmitError, WriterSettings,
};
use partage_service::shuffle::PoolSlot;
use partage_service::shuffle::log::{Append, Decisions, Refused, Replicas, What};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, LogWrite, Stored};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

/// The first byte of an entry that is the last one of its record, and of one on which more follows.
const LAST: u8 = 1;
const MORE: u8 = 0;

/// The numbers that the log of decisions runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionSettings {
    /// Of the log.
    pub log: LogSettings,
    /// Of the thread that writes it.
    pub writer: WriterSettings,
    /// After so many records of a slot its whole copy is written, and what is before goes. Large against a copy that is written
    /// for it, small against a start that reads all of them.
    pub records_before_copy: usize,
    /// Shuffles that have ended and that a copy names, the last ones.
    pub ended_kept: usize,
}

impl Default for DecisionSettings {
    fn default() -> DecisionSettings {
        DecisionSettings {
            log: LogSettings::default(),
            writer: WriterSettings::default(),
            records_before_copy: 64,
            ended_kept: 4_096,
        }
    }
}

/// Why the log of decisions was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DecisionsError {
    /// The log under it was not.
    #[error("the log of decisions: {0}")]
    Open(#[from] OpenError),
    /// A later version of the program has written it.
    #[error(
        "the log of decisions has slot {0} in a form of a later version of this program: start that version, or give this one another folder"
    )]
    Later(u32),
    /// The system gives no thread.
    #[error("the log of decisions has no writer: {0}")]
    Writer(String),
    /// The log takes no records.
    #[error("the log of decisions: {0}")]
    Submit(#[from] SubmitError),
}

/// Decisions of a slot are on disk: what the holder and the leader are to hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// The slot.
    pub slot: PoolSlot,
    /// The leader that sent them.
    pub leader: NodeId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Up to which decision the copy is the leader's.
    pub sequence: u64,
}

/// What the log has of one slot.
#[derive(Debug, Default)]
struct SlotLog {
    /// Index of the last entry.
    end: u64,
    fence: Epoch,
    /// Records since the copy was written last.
    records: usize,
    /// Leaders that wait, by the number of the record.
    waits: VecDeque<(u64, Logged)>,
    /// The last record that was handed over, and the last one that is synced.
    submitted: u64,
    synced: u64,
}

/// The decisions of the slots of one node.
#[derive(Debug)]
pub struct DecisionLog {
    settings: DecisionSettings,
    keyspace: KeyspaceName,
    replicas: Replicas,
    slots: BTreeMap<PoolSlot, SlotLog>,
    /// Slots whose decisions may be lost.
    unfit: BTreeSet<PoolSlot>,
    /// A damaged place may have had all that there was of a slot.
    hides_slots: bool,
    /// Epochs that earlier processes of the node have heard of: under these it leads no more.
    before: BTreeMap<PoolSlot, Epoch>,
    writer: GroupWriter,
    number: u64,
    /// Records that found no room in the queue of the writer, in their order.
    waiting: VecDeque<(PoolSlot, u64, Record)>,
    /// Slots whose copies are to be written when there is room again, as they keep the oldest segment.
    held: BTreeSet<PoolSlot>,
}

impl DecisionLog {
    /// Opens the log in `dir`, and starts its thread, which calls `report`. Reports are to be handed to [`DecisionLog::synced`]
    /// and [`DecisionLog::refused`] by the thread that has this log.
    ///
    /// # Errors
    /// Another process has the folder, a later version of the program has written it, or the disk failed. Damage is no error: the
    /// answer names the places.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        keyspace: KeyspaceName,
        settings: DecisionSettings,
        report: impl FnMut(Report) + Send + 'static,
    ) -> Result<(DecisionLog, Vec<DamagedPlace>), DecisionsError> {
        let (log, recovered) = Log::open(disk, dir, settings.log)?;
        // Before anything is written: a slot whose decisions are lost is forgotten.
        let mut whole = recovered.replicas.iter().filter(|(key, _)| !recovered.damaged.contains_key(*key));
        if let Some((key, _)) = whole.find(|(_, stored)| replay::is_later(stored)) {
            return Err(DecisionsError::Later(slot_of(key).map_or(u32::MAX, |slot| slot.0)));
        }
        let writer = GroupWriter::start(log, settings.writer, report)
            .map_err(|error| DecisionsError::Writer(error.to_string()))?;
        let mut decisions = DecisionLog {
            settings,
            keyspace,
            replicas: Replicas::default(),
            slots: BTreeMap::new(),
            unfit: BTreeSet::new(),
            hides_slots: recovered.places.iter().any(|place| place.may_hide_a_replica),
            before: BTreeMap::new(),
            writer,
            number: 0,
            waiting: VecDeque::new(),
            held: BTreeSet::new(),
        };
        for (key, stored) in recovered.replicas {
            let Some(slot) = slot_of(&key) else { continue };
            let damaged = recovered.damaged.contains_key(&key);
            match replay::copy(&stored, settings.ended_kept).filter(|_| !damaged) {
                Some(copy) => decisions.take_up(slot, copy, &stored),
                None => decisions.lost(slot)?,
            }
        }
        for slot in recovered.damaged.keys().filter_map(slot_of) {
            if !decisions.unfit.contains(&slot) {
                decisions.lost(slot)?;
            }
        }
        Ok((decisions, recovered.places))
    }

    /// The map names this node for these slots. Of those that the log does not have it may have lost all.
    ///
    /// # Errors
    /// The log has ended.
    pub fn named(&mut self, slots: impl IntoIterator<Item = PoolSlot>) -> Result<(), SubmitError> {
        if !self.hides_slots {
            return Ok(());
        }
        let lost: Vec<PoolSlot> = slots.into_iter().filter(|slot| !self.slots.contains_key(slot)).collect();
        lost.into_iter().try_for_each(|slot| self.lost(slot))
    }

    fn take_up(&mut self, slot: PoolSlot, copy: Decisions, stored: &Stored) {
        let end = stored.entries.last().map_or(stored.base.index, |entry| entry.position.index);
        let log = SlotLog { end, fence: stored.fence, records: stored.entries.len(), ..SlotLog::default() };
        self.slots.insert(slot, log);
        self.before.insert(slot, copy.epoch.max(stored.fence));
        self.replicas.copies.insert(slot, copy);
    }

    fn lost(&mut self, slot: PoolSlot) -> Result<(), SubmitError> {
        self.forget(slot)?;
        self.unfit.insert(slot);
        self.append(slot, &encode_lost())
    }

    /// The copies, for the holder at its start.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// The slots whose decisions were damaged and have not been replaced by a leader's copy since.
    pub fn unfit(&self) -> impl Iterator<Item = PoolSlot> {
        self.unfit.iter().copied()
    }

    /// Whether this process may lead the slot under that epoch: no earlier process of the node has heard of it, and no decision
    /// was lost.
    pub fn may_lead(&self, slot: PoolSlot, epoch: Epoch) -> bool {
        !self.unfit.contains(&slot) && self.before.get(&slot).is_none_or(|before| epoch > *before)
    }

    /// The node is to lead the slot under that epoch: its copy, to begin with. None: the epoch, or what the copy has, is not on
    /// disk yet. A leader that sent it before would know less after a restart than those that it has sent it to.
    ///
    /// # Errors
    /// The log has ended.
    pub fn lead(&mut self, slot: PoolSlot, epoch: Epoch) -> Result<Option<Decisions>, SubmitError> {
        if self.is_full() {
            return Ok(None);
        }
        let copy = self.replicas.lead(slot, epoch);
        self.fence(slot, copy.epoch)?;
        let is_on_disk = self.slots.get(&slot).is_none_or(|log| log.synced >= log.submitted);
        Ok(is_on_disk.then_some(copy))
    }

    /// Whether the writer takes no records now, as when its disk is full. What a leader sends is then to be dropped as if it had
    /// been lost on the way: the leader sends it again.
    pub fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands over what found no room before. To be called when the writer has reported something.
    ///
    /// # Errors
    /// The log has ended.
    pub fn hand_over(&mut self) -> Result<(), SubmitError> {
        while let Some((slot, number, record)) = self.waiting.pop_front() {
            if let Some(record) = self.try_submit(slot, number, record)? {
                self.waiting.push_front((slot, number, record));
                return Ok(());
            }
        }
        while !self.is_full()
            && let Some(slot) = self.held.pop_first()
        {
            self.write_copy(slot)?;
        }
        Ok(())
    }

    /// Takes in what a leader sends; `known` is the epoch of the slot in the node's map. If all of it is on disk already, the
    /// answer is for the leader now, else [`DecisionLog::synced`] has it later.
    ///
    /// # Errors
    /// The replica refuses it; or the log has ended.
    pub fn take(
        &mut self,
        leader: NodeId,
        append: Append,
        known: Epoch,
    ) -> Result<Result<Option<Logged>, Refused>, SubmitError> {
        let (slot, is_whole) = (append.slot, matches!(append.what, What::Whole(_)));
        let known = self.before.get(&slot).map_or(known, |before| known.max(*before));
        let before =
            self.replicas.copies.get(&slot).map(|copy| (copy.epoch, copy.sequence)).unwrap_or_default();
        let follows: Vec<_> = match &append.what {
            What::After(first, decisions) => {
                let known = before.1.saturating_sub(*first);
                decisions.iter().skip(usize::try_from(known).unwrap_or(usize::MAX)).cloned().collect()
            }
            What::Whole(_) => Vec::new(),
        };
        let (epoch, sequence) = match self.replicas.take(append, known, self.settings.ended_kept) {
            Ok(taken) => taken,
            Err(refused) => return Ok(Err(refused)),
        };
        if is_whole {
            self.unfit.remove(&slot);
        }
        if is_whole && before != (epoch, sequence) {
            // Before the fence: the former copy is never on disk under this epoch.
            self.write_copy(slot)?;
        }
        self.fence(slot, epoch)?;
        if !follows.is_empty() {
            self.append(slot, &encode_after(before.1, &follows))?;
            if self.slots.get(&slot).is_some_and(|log| log.records >= self.settings.records_before_copy) {
                self.write_copy(slot)?;
            }
        }
        let logged = Logged { slot, leader, epoch, sequence };
        let log = self.slots.entry(slot).or_default();
        if log.synced >= log.submitted {
            return Ok(Ok(Some(logged)));
        }
        // Of many that wait for a slow disk the last one says what those before it would.
        if log.waits.len() >= limits::LOGGED_WAITING {
            log.waits.pop_back();
        }
        log.waits.push_back((log.submitted, logged));
        Ok(Ok(None))
    }

    /// Records are on disk up to these numbers: who is to hear of it.
    pub fn synced(&mut self, synced: &[(ReplicaKey, u64)]) -> Vec<Logged> {
        let mut logged = Vec::new();
        for (key, number) in synced {
            let Some(log) = slot_of(key).and_then(|slot| self.slots.get_mut(&slot)) else { continue };
            log.synced = log.synced.max(*number);
            while let Some((_, one)) = log.waits.pop_front_if(|(waits, _)| *waits <= *number) {
                logged.push(one);
            }
        }
        logged
    }

    /// The log refuses a record of this slot: its decisions are not on disk, so they are forgotten until a leader sends its copy.
    ///
    /// # Errors
    /// The log has ended.
    pub fn refused(&mut self, key: &ReplicaKey) -> Result<(), SubmitError> {
        match slot_of(key) {
            Some(slot) if !self.unfit.contains(&slot) => self.lost(slot),
            _ => Ok(()),
        }
    }

    /// These keep the oldest segment: their copies are written, and what is before is trimmed.
    ///
    /// # Errors
    /// The log has ended.
    pub fn let_go(&mut self, keys: &[ReplicaKey]) -> Result<(), SubmitError> {
        self.held.extend(keys.iter().filter_map(slot_of));
        self.hand_over()
    }

    /// All that is here of the slot goes.
    ///
    /// # Errors
    /// The log has ended.
    pub fn forget(&mut self, slot: PoolSlot) -> Result<(), SubmitError> {
        self.replicas.copies.remove(&slot);
        self.unfit.remove(&slot);
        self.submit(slot, Record::Forget)?;
        let log = self.slots.entry(slot).or_default();
        *log = SlotLog { submitted: log.submitted, synced: log.synced, ..SlotLog::default() };
        Ok(())
    }

    /// The pool of the slot is gone: the epochs of another one count from the first on again.
    ///
    /// # Errors
    /// The log has ended.
    pub fn forget_epochs(&mut self, slot: PoolSlot) -> Result<(), SubmitError> {
        self.before.remove(&slot);
        self.forget(slot)
    }

    fn fence(&mut self, slot: PoolSlot, epoch: Epoch) -> Result<(), SubmitError> {
        if self.slots.get(&slot).is_some_and(|log| log.fence >= epoch) {
            return Ok(());
        }
        self.submit(slot, LogWrite::Fence(epoch).into())?;
        self.slots.entry(slot).or_default().fence = epoch;
        Ok(())
    }

    /// Writes the copy of a slot, and trims what is before.
    fn write_copy(&mut self, slot: PoolSlot) -> Result<(), SubmitError> {
        let Some(form) = self.replicas.copies.get(&slot).map(encode_whole) else { return Ok(()) };
        let base = self.slots.get(&slot).map_or(0, |log| log.end);
        self.append(slot, &form)?;
        let log = self.slots.entry(slot).or_default();
        log.records = 0;
        let base = LogPosition { epoch: log.fence, index: base };
        self.submit(slot, LogWrite::Trim(base).into())
    }

    /// Writes one record, in as many entries as it needs.
    fn append(&mut self, slot: PoolSlot, form: &[u8]) -> Result<(), SubmitError> {
        let log = self.slots.entry(slot).or_default();
        let part = self.settings.log.entry_bytes.saturating_sub(1).max(1);
        let count = form.len().div_ceil(part).max(1);
        let entries = (0..count).map(|at| {
            log.end += 1;
            let from = at * part;
            let piece = form.get(from..form.len().min(from + part)).unwrap_or_default();
            let mut payload = vec![if at + 1 == count { LAST } else { MORE }];
            payload.extend_from_slice(piece);
            let position = LogPosition { epoch: log.fence, index: log.end };
            Entry { position, kind: EntryKind::Write(payload.into()) }
        });
        let entries: Vec<Entry> = entries.collect();
        log.records += 1;
        self.submit(slot, LogWrite::Append(entries).into())
    }

    fn submit(&mut self, slot: PoolSlot, record: Record) -> Result<(), SubmitError> {
        self.number += 1;
        let number = self.number;
        self.slots.entry(slot).or_default().submitted = number;
        if matches!(record, Record::Forget) {
            // What waits of the slot would be forgotten: so no slot has more than a few records that wait.
            self.waiting.retain(|(waits, ..)| *waits != slot);
        }
        let record = if self.is_full() { Some(record) } else { self.try_submit(slot, number, record)? };
        self.waiting.extend(record.map(|record| (slot, number, record)));
        Ok(())
    }

    /// Gives the record back if there is no room for it. Who calls has the machines: it never waits for a disk.
    fn try_submit(&self, slot: PoolSlot, number: u64, record: Record) -> Result<Option<Record>, SubmitError> {
        match self.writer.try_submit(key_of(&self.keyspace, slot), number, record) {
            Ok(()) => Ok(None),
            Err((SubmitError::Full, record)) => Ok(Some(record)),
            Err((SubmitError::Stopped, _)) => Err(SubmitError::Stopped),
        }
    }

    /// The number of the group that is being written; none: nothing waits. The same one for long is a disk that stores nothing.
    pub fn writing(&self) -> Option<u64> {
        self.writer.writing()
    }
}

fn key_of(keyspace: &KeyspaceName, slot: PoolSlot) -> ReplicaKey {
    // A node has a slot once, and what it had before is forgotten by a record: the placement tells nothing here.
    ReplicaKey { keyspace: keyspace.clone(), shard: ShardId(u64::from(slot.0)), placement: PlacementId(0) }
}

fn slot_of(key: &ReplicaKey) -> Option<PoolSlot> {
    u32::try_from(key.shard.0).ok().map(PoolSlot)
}
