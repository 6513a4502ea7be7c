//! Requests that wait for the machine, and the outcomes of writes that it has not answered yet.

use crate::error::{ReadError, WriteError};
use crate::limits::{
    HOLD_MS, OUTCOMES_BEYOND, WRITE_BYTES_HELD, WRITE_BYTES_WAITING, WRITES_HELD, WRITES_WAITING,
};
use crate::queue::{Read, Waiting, WriteAnswer};
use partage_core::base::time::Millis;
use partage_service::table::replication::{ENTRY_AROUND_BYTES, Failed, LogPosition, Payload, Request};
use partage_service::table::rows::Outcome;
use std::collections::{BTreeMap, VecDeque};

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

/// Writes that the machine has not seen, because a sync of the log is under way: they go into the log together when it ends, so
/// that they cost one record, one message to each follower and one sync. They would wait for the next sync in any case. And
/// writes for which the log has no room, as a copy of rows to a follower needs what is left of it: they go in as the copy goes
/// on.
#[derive(Debug, Default)]
struct Held {
    writes: Vec<(Payload, WriteAnswer)>,
    bytes: usize,
    /// The time until which they wait at most.
    until: Millis,
}

/// The requests that wait, and what each waits for.
#[derive(Debug, Default)]
pub(super) struct Requests {
    last: Request,
    /// Each with the time when it was taken up, in nanoseconds.
    writes: BTreeMap<Request, (WriteAnswer, u64)>,
    reads: BTreeMap<Request, Read>,
    held: Held,
    /// By position: they are kept in the order in which entries are applied.
    outcomes: VecDeque<(LogPosition, Outcome)>,
}

impl Requests {
    pub(super) fn add_write(&mut self, answer: WriteAnswer, now: u64) -> Request {
        self.last += 1;
        self.writes.insert(self.last, (answer, now));
        self.last
    }

    /// Keeps writes back for a while. The caller lets go of them when they are many: see [`Requests::must_release`].
    pub(super) fn hold(&mut self, writes: Vec<(Payload, WriteAnswer)>, now: Millis) {
        if self.held.writes.is_empty() {
            self.held.until = now + HOLD_MS;
        }
        self.held.bytes += writes.iter().map(|(payload, _)| payload.len()).sum::<usize>();
        self.held.writes.extend(writes);
    }

    /// When what is held goes on at the latest.
    pub(super) fn held_until(&self) -> Millis {
        if self.held.writes.is_empty() { Millis::NEVER } else { self.held.until }
    }

    /// Whether so many writes are held that no more may be.
    pub(super) fn must_release(&self) -> bool {
        self.held.writes.len() >= WRITES_HELD || self.held.bytes >= WRITE_BYTES_HELD
    }

    /// The writes that are held, in their order.
    pub(super) fn release(&mut self) -> Vec<(Payload, WriteAnswer)> {
        std::mem::take(&mut self.held).writes
    }

    /// As many of them as so many bytes of log have room for, and one more that begins there. The others are held on; those that
    /// are more than may wait are refused, the latest first.
    pub(super) fn release_within(&mut self, room: u64, now: Millis) -> Vec<(Payload, WriteAnswer)> {
        let mut bytes = 0;
        let fits = |(payload, _): &&(Payload, WriteAnswer)| {
            let has_room = bytes < room;
            bytes += (ENTRY_AROUND_BYTES + payload.len()) as u64;
            has_room
        };
        let fitting = self.held.writes.iter().take_while(fits).count();
        let rest = self.held.writes.split_off(fitting);
        let released = self.release();
        if !rest.is_empty() {
            self.hold(rest, now);
        }
        while self.held.writes.len() > WRITES_WAITING || self.held.bytes > WRITE_BYTES_WAITING {
            let Some((payload, answer)) = self.held.writes.pop() else { break };
            self.held.bytes -= payload.len();
            // A client that has gone hears nothing.
            let _ = answer.send(Err(WriteError::Busy));
        }
        released
    }

    /// Whether writes are held.
    pub(super) fn holds(&self) -> bool {
        !self.held.writes.is_empty()
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
        self.outcomes.push_back((position, outcome));
        while self.outcomes.len() > in_flight + OUTCOMES_BEYOND {
            self.outcomes.pop_front();
        }
    }

    /// The write is committed, and applied here. Says when it was taken up.
    pub(super) fn written(&mut self, request: Request, position: LogPosition) -> Option<u64> {
        while self.outcomes.pop_front_if(|(kept, _)| *kept < position).is_some() {}
        let outcome = self.outcomes.pop_front_if(|(kept, _)| *kept == position).map(|(_, outcome)| outcome);
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
        for (_, answer) in self.release() {
            let _ = answer.send(Err(stopped.of_write()));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::{self, Receiver};

    fn held(
        requests: &mut Requests,
        writes: usize,
        bytes: usize,
    ) -> Vec<Receiver<Result<Outcome, WriteError>>> {
        let (answers, waits): (Vec<_>, Vec<_>) = (0..writes).map(|_| oneshot::channel()).unzip();
        let writes = answers.into_iter().map(|answer| (Payload::from(vec![0u8; bytes]), answer)).collect();
        requests.hold(writes, Millis(0));
        waits
    }

    #[test]
    fn what_the_log_has_no_room_for_is_held_on_in_its_order() {
        let mut requests = Requests::default();
        let _waits = held(&mut requests, 5, 100 - ENTRY_AROUND_BYTES);
        assert_eq!(requests.release_within(0, Millis(7)).len(), 0);
        assert_eq!((requests.holds(), requests.held_until()), (true, Millis(7) + HOLD_MS));
        assert_eq!(requests.release_within(101, Millis(9)).len(), 2, "one that begins within the room goes");
        assert_eq!(requests.release_within(u64::MAX, Millis(9)).len(), 3);
        assert_eq!((requests.holds(), requests.held_until()), (false, Millis::NEVER));
    }

    #[test]
    fn r1_of_more_writes_than_may_wait_the_latest_are_refused() {
        let mut requests = Requests::default();
        let mut waits = held(&mut requests, WRITES_WAITING + 2, 1);
        assert!(requests.release_within(0, Millis(0)).is_empty());
        let mut is_refused = |at: usize| matches!(waits[at].try_recv(), Ok(Err(WriteError::Busy)));
        assert!(
            is_refused(WRITES_WAITING) && is_refused(WRITES_WAITING + 1) && !is_refused(WRITES_WAITING - 1)
        );
        assert_eq!(requests.release().len(), WRITES_WAITING);
    }
}
