//! What a replica writes to the log of the node.
//!
//! The log's queue has a bound for all replicas, and what it has no room for waits here: no more than the machine has in
//! flight, which has bounds of its own. The thread of the log says when there may be room.

use super::LocalReplica;
use crate::limits::NOTE_MS;
use crate::timing::{WriteTimes, seconds};
use partage_core::base::time::Millis;
use partage_log::{Record, SubmitError};
use partage_service::table::replication::LogWrite;
use std::collections::VecDeque;

/// A write of the machine that is not on disk.
#[derive(Debug)]
struct Submitted {
    number: u64,
    /// When the machine gave it, by the clock of the node in nanoseconds.
    at: u64,
    /// The index of the last entry that it appends.
    end: Option<u64>,
}

/// The records of one replica.
#[derive(Debug, Default)]
pub(super) struct Logging {
    waiting: VecDeque<(u64, Record)>,
    submitted: VecDeque<Submitted>,
    /// Up to which index entries are on the own disk, and since when, in nanoseconds, of those that are not committed, while the
    /// replica leads: at most one for each write in flight.
    uncommitted: VecDeque<(u64, u64)>,
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

    /// Observes how long the writes took that are on disk now. A leader's entries wait for its followers from here on.
    pub(super) fn observe(&mut self, times: &WriteTimes, now: u64, leads: bool) {
        if !leads {
            self.uncommitted.clear();
        }
        let synced = self.synced;
        while let Some(write) = self.submitted.pop_front_if(|write| write.number <= synced) {
            times.sync.observe(seconds(write.at, now));
            if let Some(end) = write.end.filter(|_| leads) {
                // What a leader before had appended there is no part of the log any more.
                while self.uncommitted.pop_back_if(|(index, _)| *index >= end).is_some() {}
                self.uncommitted.push_back((end, now));
            }
        }
    }

    /// Observes how long a leader's entries were on its own disk when they were committed, all up to that index. Where the
    /// followers were faster than the own disk, an entry is committed with the sync, and has not waited for them.
    pub(super) fn committed(&mut self, index: u64, times: &WriteTimes, now: u64, leads: bool) {
        while let Some((_, synced)) = self.uncommitted.pop_front_if(|(end, _)| *end <= index) {
            if leads {
                times.followers.observe(seconds(synced, now));
            }
        }
    }
}

impl LocalReplica {
    /// Writes to the log. The entries of one write may be more than one group of the log takes: then they are several records, of
    /// which only the last one has the number.
    pub(super) fn submit_write(&mut self, number: u64, write: LogWrite) {
        let end = match &write {
            LogWrite::Append(entries) => entries.last().map(|entry| entry.position.index),
            _ => None,
        };
        let at = self.shared.clock.nanos();
        self.logging.submitted.push_back(Submitted { number, at, end });
        let LogWrite::Append(entries) = write else { return self.submit(number, write.into()) };
        self.shared.pacing.entries_are_logged(Millis(at / 1_000_000));
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
            // There may be room since: else a record of another replica waits, and its report wakes this replica.
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

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    const SECOND: u64 = 1_000_000_000;

    /// The sum and the count of what followers took.
    fn followers(times: &WriteTimes) -> (String, String) {
        let mut registry = Registry::default();
        times.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let of = |what: &str| {
            let name = format!("write_followers_seconds_{what} ");
            text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
        };
        (of("sum"), of("count"))
    }

    #[test]
    fn followers_take_the_time_from_the_own_sync_to_the_commit() {
        let times = WriteTimes::default();
        let mut logging = Logging::default();
        for (number, end) in [(1, Some(5)), (2, None), (3, Some(7))] {
            logging.submitted.push_back(Submitted { number, at: 0, end });
        }
        logging.synced = 2;
        logging.observe(&times, SECOND, true);
        logging.committed(4, &times, 2 * SECOND, true);
        assert_eq!(followers(&times), ("0.0".to_owned(), "0".to_owned()));
        logging.committed(6, &times, 3 * SECOND, true);
        assert_eq!(followers(&times), ("2.0".to_owned(), "1".to_owned()));
        // The followers were faster.
        logging.synced = 3;
        logging.observe(&times, 4 * SECOND, true);
        logging.committed(7, &times, 4 * SECOND, true);
        assert_eq!(followers(&times), ("2.0".to_owned(), "2".to_owned()));
        assert!(logging.uncommitted.is_empty());
    }

    #[test]
    fn a_follower_observes_nothing_of_that() {
        let times = WriteTimes::default();
        let mut logging = Logging { synced: 1, ..Logging::default() };
        logging.submitted.push_back(Submitted { number: 1, at: 0, end: Some(5) });
        logging.observe(&times, SECOND, false);
        logging.committed(5, &times, 2 * SECOND, false);
        assert_eq!(followers(&times).1, "0");
        assert!(logging.uncommitted.is_empty());
    }
}
