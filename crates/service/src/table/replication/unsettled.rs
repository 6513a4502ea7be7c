//! Unsettled writes: a former leader answers the writes that it had admitted when it learns from the next leader what became of
//! their entries.
//!
//! | at the place of the entry | then the write is |
//! |---|---|
//! | the entry, committed, and as many replicas as a write needs have it | done |
//! | another entry, committed | not done: no later log has the entry |
//! | nothing yet, but an entry of a later epoch is committed before it | not done: epochs never go down along a log, so no log has the entry there |
//! | nothing that is known, as a snapshot came instead | unknown |
//! | nothing that is committed, until `write_wait_ms` is over | unknown |
//!
//! A committed entry stays committed, whichever leader reported it. So these answers need no promises. That an entry was cut
//! from this log says nothing: another replica may have it and lead next.

use super::writes::Uncommitted;
use super::{Answer, Effect, Failed, LogPosition, Replica};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::VecDeque;

const NOT_COMMITTED: Failed =
    Failed::Unknown("the leader of the shard changed before the write was committed");

impl Replica {
    /// Keeps the writes that were in flight when this replica stepped down, up to as many as may be in flight.
    pub(super) fn keep_unsettled(&mut self, uncommitted: VecDeque<Uncommitted>) {
        self.unsettled.extend(uncommitted.into_iter().filter(|write| write.request.is_some()));
        while self.unsettled.len() > self.settings.in_flight_entries {
            let first = self.unsettled.pop_front();
            self.answer_unsettled(first, Err(NOT_COMMITTED));
        }
    }

    /// When the oldest unsettled write is overdue.
    pub(super) fn unsettled_until(&self) -> Millis {
        self.unsettled.front().map_or(Millis::NEVER, |write| write.since + self.settings.write_wait_ms)
    }

    /// Answers the writes whose outcome is known, and those that are overdue.
    pub(super) fn settle_former_writes(&mut self, now: Millis) {
        let enough = self.committed_on_enough();
        while let Some(write) = self.unsettled.front() {
            let index = write.position.index;
            let is_overdue = now >= write.since + self.settings.write_wait_ms;
            let answer = match self.log.position(index) {
                _ if index > self.committed && self.has_no_place(&write.position) => {
                    Err(Failed::NotLeader(self.leader_elsewhere()))
                }
                _ if index > self.committed && is_overdue => Err(NOT_COMMITTED),
                _ if index > self.committed => return,
                Some(position) if position != write.position && !planted::is(Planted::AnyEntry) => {
                    Err(Failed::NotLeader(self.leader_elsewhere()))
                }
                Some(_) if index <= self.applied && index <= enough => Ok(Answer::Written(write.position)),
                Some(_) if !is_overdue => return,
                Some(_) | None => Err(NOT_COMMITTED),
            };
            let write = self.unsettled.pop_front();
            self.answer_unsettled(write, answer);
        }
    }

    /// Whether no log has the entry that was to be at that position, which is after all that is committed here.
    fn has_no_place(&self, position: &LogPosition) -> bool {
        let committed = self.log.position(self.committed);
        let is_later = committed.is_some_and(|committed| committed.epoch > position.epoch);
        is_later && !planted::is(Planted::AwaitedEntry)
    }

    /// Answers all of them as unknown: this replica does not hear of their entries any more.
    pub(super) fn give_up_unsettled(&mut self) {
        while let Some(write) = self.unsettled.pop_front() {
            self.answer_unsettled(Some(write), Err(NOT_COMMITTED));
        }
    }

    /// Up to which index what is committed is on as many replicas as a write needs.
    fn committed_on_enough(&self) -> u64 {
        match &self.lead {
            Some(_) if self.is_enough() => self.committed,
            Some(_) => 0,
            None => self.following.acknowledgeable,
        }
    }

    fn answer_unsettled(&mut self, write: Option<Uncommitted>, answer: Result<Answer, Failed>) {
        if let Some(request) = write.and_then(|write| write.request) {
            self.effects.push(Effect::Answer(request, answer));
        }
    }
}
