//! What a replica writes to the log of the node.
//!
//! The log's queue has a bound for all replicas, and what it has no room for waits here: no more than the machine has in
//! flight, which has bounds of its own. The thread of the log says when there may be room.

use super::LocalReplica;
use crate::limits::NOTE_MS;
use crate::timing::seconds;
use partage_core::base::time::Millis;
use partage_core::service::table::replication::LogWrite;
use partage_log::{Record, SubmitError};
use prometheus_client::metrics::histogram::Histogram;
use std::collections::VecDeque;

/// The records of one replica.
#[derive(Debug, Default)]
pub(super) struct Logging {
    waiting: VecDeque<(u64, Record)>,
    /// Writes of the machine that are not on disk, with the time when they were submitted, in nanoseconds.
    submitted: VecDeque<(u64, u64)>,
    /// The number of the last write of the machine.
    last: u64,
    /// All writes up to this one are on disk.
    pub(super) synced: u64,
    /// Up to which index entries are noted to be committed.
    noted: u64,
    noted_at: Millis,
}

impl Logging {
    pub(super) fn is_synced(&self) -> bool {
        self.waiting.is_empty() && self.synced >= self.last
    }

    /// Observes how long the writes took that are on disk now.
    pub(super) fn observe(&mut self, times: &Histogram, now: u64) {
        let synced = self.synced;
        while let Some((_, began)) = self.submitted.pop_front_if(|(number, _)| *number <= synced) {
            times.observe(seconds(began, now));
        }
    }
}

impl LocalReplica {
    /// Writes to the log. The entries of one write may be more than one group of the log takes: then they are several records, of
    /// which only the last one has the number.
    pub(super) fn submit_write(&mut self, number: u64, write: LogWrite) {
        self.logging.submitted.push_back((number, self.shared.clock.nanos()));
        let LogWrite::Append(entries) = write else { return self.submit(number, write.into()) };
        let most = self.shared.settings.log.group_bytes() / 2;
        let (before, mut bytes, mut part) = (self.logging.last, 0, Vec::with_capacity(entries.len()));
        for entry in entries {
            bytes += entry.bytes();
            if bytes > most && !part.is_empty() {
                let full = std::mem::take(&mut part);
                self.submit(before, LogWrite::Append(full).into());
                bytes = entry.bytes();
            }
            part.push(entry);
        }
        self.submit(number, LogWrite::Append(part).into());
    }

    /// Hands a record over, after those that wait.
    fn submit(&mut self, number: u64, record: Record) {
        self.logging.last = self.logging.last.max(number);
        self.logging.waiting.push_back((number, record));
        if self.logging.waiting.len() == 1 && !self.submit_waiting() {
            // There may be room since: else somebody's record waits, and its report wakes this replica.
            self.shared.registry.wait_for_room(&self.queue);
            self.submit_waiting();
        }
    }

    /// Hands over what waits; says whether all of it is handed over.
    fn submit_waiting(&mut self) -> bool {
        while let Some((number, record)) = self.logging.waiting.pop_front() {
            match self.shared.writer.try_submit(self.queue.key.clone(), number, record) {
                Ok(()) => {}
                Err((SubmitError::Full, record)) => {
                    self.logging.waiting.push_front((number, record));
                    return false;
                }
                // The disk failed, which the node is told, or the node stops.
                Err((SubmitError::Stopped, _)) => self.logging.waiting.clear(),
            }
        }
        true
    }

    /// The log may have room.
    pub(super) fn try_room(&mut self) {
        if !self.submit_waiting() {
            self.shared.registry.wait_for_room(&self.queue);
            self.submit_waiting();
        }
    }

    /// When to note what is committed.
    pub(super) fn note_at(&self) -> Millis {
        if self.rows.applied().index > self.logging.noted {
            self.logging.noted_at + NOTE_MS
        } else {
            Millis::NEVER
        }
    }

    /// Notes what is committed: of that only what is applied, which is on the own disk.
    pub(super) fn note_committed(&mut self, now: Millis) {
        if now >= self.note_at() {
            let applied = self.rows.applied().index;
            (self.logging.noted, self.logging.noted_at) = (applied, now);
            self.submit(self.logging.last, Record::Committed(applied));
        }
    }

    /// The same, as the last record before the replica closes: what is not flushed is applied again without waiting for a leader.
    /// The record has a number of its own, and the replica waits for it: a report of an earlier record that came after the
    /// replica is opened again, and counts from 0, would tell it that what it has not stored is on disk.
    pub(super) fn note_committed_at_the_end(&mut self) {
        let (applied, number) = (self.rows.applied().index, self.logging.last + 1);
        self.submit(number, Record::Committed(applied));
    }
}
