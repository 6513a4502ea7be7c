//! Requests that wait for the machine, and the outcomes of writes that it has not answered yet.

use crate::error::{ReadError, WriteError};
use crate::limits::OUTCOMES_BEYOND;
use crate::queue::{Read, Waiting, WriteAnswer};
use partage_core::service::table::replication::{Failed, LogPosition, Request};
use partage_core::service::table::rows::Outcome;
use std::collections::BTreeMap;

/// Why all that wait are answered.
#[derive(Debug, Clone)]
pub(super) enum Stopped {
    /// The replica is closed.
    Closed,
    /// What is stored is damaged.
    Damaged,
    /// The store, or the log, has failed.
    Failed(String),
}

impl Stopped {
    fn of_write(&self) -> WriteError {
        match self {
            Stopped::Closed => WriteError::NotOpen,
            Stopped::Damaged => WriteError::Refused(Failed::Damaged),
            Stopped::Failed(why) => WriteError::Stopped(why.clone()),
        }
    }

    fn of_read(&self) -> ReadError {
        match self {
            Stopped::Closed => ReadError::NotOpen,
            Stopped::Damaged => ReadError::Refused(Failed::Damaged),
            Stopped::Failed(why) => ReadError::Stopped(why.clone()),
        }
    }

    fn why(&self) -> String {
        match self {
            Stopped::Closed => "the replica was closed before the write was committed".to_owned(),
            Stopped::Damaged => "the replica is damaged".to_owned(),
            Stopped::Failed(why) => why.clone(),
        }
    }
}

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct Requests {
    last: Request,
    /// Each with the time when it was taken up, in nanoseconds.
    writes: BTreeMap<Request, (WriteAnswer, u64)>,
    reads: BTreeMap<Request, Read>,
    outcomes: BTreeMap<LogPosition, Outcome>,
}

impl Requests {
    pub(super) fn add_write(&mut self, answer: WriteAnswer, now: u64) -> Request {
        self.last += 1;
        self.writes.insert(self.last, (answer, now));
        self.last
    }

    pub(super) fn add_read(&mut self, read: Read) -> Request {
        self.last += 1;
        self.reads.insert(self.last, read);
        self.last
    }

    pub(super) fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Keeps an outcome until the machine says that the write may be answered: no more of them than writes may be in flight.
    pub(super) fn keep(&mut self, position: LogPosition, outcome: Outcome, in_flight: usize) {
        self.outcomes.insert(position, outcome);
        while self.outcomes.len() > in_flight + OUTCOMES_BEYOND {
            self.outcomes.pop_first();
        }
    }

    /// The write is committed, and applied here. Says when it was taken up.
    pub(super) fn written(&mut self, request: Request, position: LogPosition) -> Option<u64> {
        let mut later = self.outcomes.split_off(&position);
        let outcome = later.remove(&position);
        self.outcomes = later;
        let (answer, began) = self.writes.remove(&request)?;
        let lost = || WriteError::Unknown("its outcome was not kept".to_owned());
        // A client that has gone hears nothing.
        let _ = answer.send(outcome.ok_or_else(lost));
        if self.writes.is_empty() {
            self.outcomes.clear();
        }
        Some(began)
    }

    pub(super) fn failed(&mut self, request: Request, failed: Failed) {
        if let Some((answer, _)) = self.writes.remove(&request) {
            let _ = answer.send(Err(failed.into()));
        } else if let Some(read) = self.reads.remove(&request) {
            read.refuse(failed.into());
        }
    }

    pub(super) fn take_read(&mut self, request: Request) -> Option<Read> {
        self.reads.remove(&request)
    }

    /// Answers all that wait: what the machine has taken may be done or not.
    pub(super) fn end(&mut self, stopped: &Stopped) {
        self.outcomes.clear();
        for (_, (answer, _)) in std::mem::take(&mut self.writes) {
            let _ = answer.send(Err(WriteError::Unknown(stopped.why())));
        }
        for (_, read) in std::mem::take(&mut self.reads) {
            read.refuse(stopped.of_read());
        }
    }
}

/// Answers all that wait that the replica is not open.
pub(crate) fn refuse_closed(waiting: Waiting) {
    refuse(waiting, &Stopped::Closed);
}

/// Refuses what the machine has not seen.
pub(super) fn refuse(waiting: Waiting, stopped: &Stopped) {
    for (_, answer) in waiting.writes {
        let _ = answer.send(Err(stopped.of_write()));
    }
    for read in waiting.reads {
        read.refuse(stopped.of_read());
    }
}
