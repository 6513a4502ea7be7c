//! What the log knows of a replica while it runs: enough to check what is written, to say which segments the replica needs,
//! and to write a checkpoint of it.

use crate::Damage;
use crate::group::RecordId;
use crate::record::{Checkpoint, Record};
use partage_core::base::id::Epoch;
use partage_service::table::replication::{Entry, LogPosition, LogWrite};
use std::collections::{BTreeMap, VecDeque};

/// A replica's log but for its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Outline {
    pub(crate) base: LogPosition,
    /// The index of the last entry; that of the base if there is none.
    pub(crate) end: u64,
    pub(crate) fence: Epoch,
    pub(crate) committed: u64,
}

impl Outline {
    /// Takes up a record.
    ///
    /// # Errors
    /// Why the record cannot follow on what is there; then nothing has changed.
    pub(crate) fn apply(&mut self, record: &Record) -> Result<(), &'static str> {
        match record {
            Record::Forget => *self = Outline::default(),
            Record::Committed(index) if *index > self.end => {
                return Err("entries are noted as committed that the log does not have");
            }
            Record::Committed(index) => self.committed = self.committed.max(*index),
            Record::Write(LogWrite::Fence(epoch)) if *epoch < self.fence => {
                return Err("the fence goes back");
            }
            Record::Write(LogWrite::Fence(epoch)) => self.fence = *epoch,
            Record::Write(LogWrite::Append(entries)) => {
                if entries.iter().zip(self.end + 1..).any(|(entry, index)| entry.position.index != index) {
                    return Err("the entries do not follow on the last one");
                }
                self.end += entries.len() as u64;
            }
            Record::Write(LogWrite::Truncate(after)) => self.end = self.end.min(*after).max(self.base.index),
            Record::Write(LogWrite::Trim(base)) => {
                if base.index < self.base.index || base.index > self.end {
                    return Err("the log is trimmed to a place that it does not have");
                }
                self.base = *base;
            }
            Record::Write(LogWrite::Restart(base)) => (self.base, self.end) = (*base, base.index),
        }
        Ok(())
    }

    /// The outline as a record: a start goes on from it.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { base: self.base, end: self.end, fence: self.fence, committed: self.committed }
    }
}

/// How many replicas have entries in each segment.
#[derive(Debug, Default)]
pub(crate) struct Needs(BTreeMap<u64, usize>);

impl Needs {
    fn add(&mut self, segment: u64) {
        *self.0.entry(segment).or_default() += 1;
    }

    fn remove(&mut self, segment: u64) {
        if let Some(replicas) = self.0.get_mut(&segment) {
            *replicas -= 1;
            if *replicas == 0 {
                self.0.remove(&segment);
            }
        }
    }

    /// The oldest segment that has entries which a replica needs.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.0.first_key_value().map(|(segment, _)| *segment)
    }
}

#[derive(Debug, Clone, Copy)]
struct Span {
    segment: u64,
    lowest: u64,
    highest: u64,
}

/// Which segments have the entries of a replica.
#[derive(Debug, Default)]
pub(crate) struct Spans(VecDeque<Span>);

impl Spans {
    /// A record was written to that segment.
    pub(crate) fn apply(&mut self, record: &Record, segment: u64, needs: &mut Needs) {
        match record {
            Record::Write(LogWrite::Append(entries)) => self.append(entries, segment, needs),
            Record::Write(LogWrite::Truncate(after)) => self.truncate(*after, needs),
            Record::Write(LogWrite::Trim(base)) => self.trim(base.index, needs),
            Record::Write(LogWrite::Restart(_)) | Record::Forget => self.clear(needs),
            Record::Write(LogWrite::Fence(_)) | Record::Committed(_) => {}
        }
    }

    fn append(&mut self, entries: &[Entry], segment: u64, needs: &mut Needs) {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return };
        match self.0.back_mut() {
            Some(span) if span.segment == segment => span.highest = last.position.index,
            _ => {
                needs.add(segment);
                self.0.push_back(Span {
                    segment,
                    lowest: first.position.index,
                    highest: last.position.index,
                });
            }
        }
    }

    fn truncate(&mut self, after: u64, needs: &mut Needs) {
        while let Some(span) = self.0.back_mut() {
            if span.lowest <= after {
                span.highest = span.highest.min(after);
                return;
            }
            needs.remove(span.segment);
            self.0.pop_back();
        }
    }

    /// The replica needs the entries up to that index no more.
    pub(crate) fn trim(&mut self, base: u64, needs: &mut Needs) {
        while let Some(span) = self.0.pop_front_if(|span| span.highest <= base) {
            needs.remove(span.segment);
        }
    }

    /// The replica needs no entries any more.
    pub(crate) fn clear(&mut self, needs: &mut Needs) {
        self.0.drain(..).for_each(|span| needs.remove(span.segment));
    }

    /// The oldest segment that has entries of the replica.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.0.front().map(|span| span.segment)
    }
}

/// A replica in the log.
#[derive(Debug)]
pub(crate) struct ReplicaState {
    pub(crate) outline: Outline,
    /// The last record of it, which the next one names.
    pub(crate) last: RecordId,
    /// Its first record or its last checkpoint is in this segment. The segments before have nothing of it but entries.
    pub(crate) root: u64,
    pub(crate) spans: Spans,
    pub(crate) damage: Option<Damage>,
}

impl ReplicaState {
    /// A replica that begins in that segment.
    pub(crate) fn new(segment: u64) -> ReplicaState {
        ReplicaState {
            outline: Outline::default(),
            last: RecordId::default(),
            root: segment,
            spans: Spans::default(),
            damage: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::table::replication::EntryKind;

    fn append(from: u64, to: u64) -> Record {
        let position = |index| LogPosition { epoch: Epoch(1), index };
        let entries = (from..=to).map(|index| Entry { position: position(index), kind: EntryKind::Begin });
        LogWrite::Append(entries.collect()).into()
    }

    #[test]
    fn a_truncation_lets_go_of_all_segments_behind_it() {
        let (mut spans, mut needs) = (Spans::default(), Needs::default());
        for (segment, record) in
            [(1, append(1, 4)), (2, append(5, 6)), (3, append(7, 9)), (4, append(10, 10))]
        {
            spans.apply(&record, segment, &mut needs);
        }
        spans.apply(&LogWrite::Truncate(3).into(), 5, &mut needs);
        assert_eq!((needs.0.len(), spans.oldest()), (1, Some(1)), "1 to 3 are in segment 1");
        spans.apply(&append(4, 5), 5, &mut needs);
        spans.trim(3, &mut needs);
        assert_eq!((needs.oldest(), spans.oldest()), (Some(5), Some(5)));
        spans.clear(&mut needs);
        assert_eq!((needs.oldest(), spans.oldest()), (None, None));
    }
}
