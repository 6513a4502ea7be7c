//! One replica, while the log is read.

use crate::Damage;
use crate::group::RecordId;
use crate::record::{Checkpoint, Record};
use crate::replica::{Needs, Outline, ReplicaState, Spans};
use partage_service::table::replication::{Entry, LogPosition, LogWrite, Stored};
use std::collections::VecDeque;

/// What was read of a replica so far.
#[derive(Debug)]
pub(super) struct Rebuilt {
    outline: Outline,
    /// Whether the outline is known. If not, a checkpoint that follows says it: the segments with the first records are
    /// deleted.
    is_rooted: bool,
    root: u64,
    entries: VecDeque<Entry>,
    spans: Spans,
    pub(super) last: RecordId,
    pub(super) damage: Option<Damage>,
}

impl Rebuilt {
    /// A replica of which the first record is in that segment, or the first that is still there.
    pub(super) fn new(segment: u64, is_rooted: bool) -> Rebuilt {
        Rebuilt {
            outline: Outline::default(),
            is_rooted,
            root: segment,
            entries: VecDeque::new(),
            spans: Spans::default(),
            last: RecordId::default(),
            damage: None,
        }
    }

    /// Takes up a record of the driver.
    ///
    /// # Errors
    /// Why the record does not follow on those before.
    pub(super) fn apply(
        &mut self,
        record: Record,
        segment: u64,
        needs: &mut Needs,
    ) -> Result<(), &'static str> {
        if self.is_rooted {
            self.outline.apply(&record)?;
        } else if let Record::Write(LogWrite::Restart(base) | LogWrite::Trim(base)) = &record {
            self.outline.base = *base;
        }
        self.spans.apply(&record, segment, needs);
        match record {
            Record::Write(LogWrite::Append(entries)) => self.entries.extend(entries),
            Record::Write(LogWrite::Truncate(after)) => {
                while self.entries.pop_back_if(|entry| entry.position.index > after).is_some() {}
            }
            Record::Write(LogWrite::Trim(base)) => self.trim(base),
            Record::Write(LogWrite::Restart(_)) | Record::Forget => self.entries.clear(),
            Record::Write(LogWrite::Fence(_)) | Record::Committed(_) => {}
        }
        Ok(())
    }

    fn trim(&mut self, base: LogPosition) {
        while self.entries.pop_front_if(|entry| entry.position.index <= base.index).is_some() {}
    }

    /// Takes up a checkpoint. Entries behind its base may be missing, if the log is trimmed later: their segments are deleted.
    ///
    /// # Errors
    /// Why the checkpoint does not fit to what is there.
    pub(super) fn checkpoint(
        &mut self,
        checkpoint: Checkpoint,
        segment: u64,
        needs: &mut Needs,
    ) -> Result<(), &'static str> {
        let Checkpoint { base, end, fence, committed } = checkpoint;
        let outline = Outline { base, end, fence, committed };
        if self.is_rooted && self.damage.is_none() && self.outline != outline {
            return Err("the checkpoint differs from the records before it");
        }
        if self.damage.is_some() {
            self.entries.clear();
            self.spans.clear(needs);
            self.damage = None;
        }
        self.trim(base);
        self.spans.trim(base.index, needs);
        (self.outline, self.is_rooted, self.root) = (outline, true, segment);
        Ok(())
    }

    /// An earlier opening found it damaged.
    pub(super) fn damaged(&mut self, damage: Damage, segment: u64, needs: &mut Needs) {
        (self.damage, self.is_rooted, self.root) = (Some(damage), true, segment);
        self.clear(needs);
    }

    /// Lets go of its entries.
    pub(super) fn clear(&mut self, needs: &mut Needs) {
        self.entries.clear();
        self.spans.clear(needs);
    }

    /// At the end of the log: refuses what has no first records, or not all entries.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if !self.is_rooted {
            return Err("the replica's first records are missing, and no checkpoint follows");
        }
        let Outline { base, end, .. } = self.outline;
        let first = self.entries.front().map_or(end + 1, |entry| entry.position.index);
        let last = self.entries.back().map_or(base.index, |entry| entry.position.index);
        if last != end || (!self.entries.is_empty() && first != base.index + 1) {
            return Err("entries are missing");
        }
        if self.entries.len() as u64 != end - base.index {
            return Err("entries are missing in between");
        }
        Ok(())
    }

    /// What the log keeps of it, and what the replica begins with unless it is damaged.
    pub(super) fn finish(self) -> (ReplicaState, Option<Stored>) {
        let Rebuilt { outline, root, entries, spans, last, damage, .. } = self;
        let Outline { base, fence, committed, .. } = outline;
        let stored = Stored { base, entries: entries.into(), fence, committed, ..Stored::default() };
        let stored = damage.is_none().then_some(stored);
        (ReplicaState { outline, last, root, spans, damage }, stored)
    }
}
