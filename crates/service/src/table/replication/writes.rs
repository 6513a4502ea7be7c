//! Writes: what a leader admits, and how each ends (rule 2).

use super::lead::Phase;
use super::{Answer, Effect, Entry, EntryKind, Failed, LogPosition, LogWrite, Payload, Replica, Request};
use partage_core::base::time::Millis;

/// An entry of this leader that is not committed.
#[derive(Debug, Clone)]
pub(super) struct Uncommitted {
    pub(super) position: LogPosition,
    bytes: usize,
    pub(super) since: Millis,
    /// The request of the client that waits for it, if one does.
    pub(super) request: Option<Request>,
}

impl Replica {
    pub(super) fn on_write(&mut self, now: Millis, writes: Vec<(Request, Payload)>) {
        for (request, payload) in writes {
            match self.admits(payload.len()) {
                Ok(()) => drop(self.append(now, Some(request), EntryKind::Write(payload))),
                Err(failed) => self.effects.push(Effect::Answer(request, Err(failed))),
            }
        }
        self.join_appends();
        self.send_new(now);
    }

    /// Whether a write enters the log.
    fn admits(&self, bytes: usize) -> Result<(), Failed> {
        let Some(lead) = &self.lead else { return Err(Failed::NotLeader(self.leader_elsewhere())) };
        if self.closes() {
            return Err(Failed::Closed);
        }
        match lead.phase {
            Phase::Waiting | Phase::Beginning => return Err(Failed::NotBegun),
            Phase::Closed => return Err(Failed::Closed),
            Phase::HandingOver { .. } => return Err(Failed::HandingOver),
            Phase::Leading => {}
        }
        let (have, need) = (self.set_size(), self.settings.min_in_sync);
        if have < need {
            return Err(Failed::TooFewInSync { have, need });
        }
        if lead.uncommitted.len() >= self.settings.in_flight_entries {
            return Err(Failed::Full("as many writes as may be are not committed yet (in_flight_entries)"));
        }
        if !lead.uncommitted.is_empty() && lead.uncommitted_bytes + bytes > self.settings.in_flight_bytes {
            return Err(Failed::Full("as many bytes as may be are not committed yet (in_flight_bytes)"));
        }
        Ok(())
    }

    /// How many replicas are in sync by the set of the order and by the one asked for, whichever is smaller. A newcomer counts
    /// when the map names it: until then the coordinator may give it up and delete its data.
    pub(super) fn set_size(&self) -> usize {
        let ordered = self.order.as_ref().map_or(0, |order| order.in_sync.len());
        let wished = self.lead.as_ref().and_then(|lead| lead.wish.as_ref()).map(|asked| asked.in_sync.len());
        ordered.min(wished.unwrap_or(usize::MAX))
    }

    /// Whether the loss of one more replica stops writes. Then filling a follower is more urgent than the writes of clients.
    pub fn has_none_to_spare(&self) -> bool {
        self.set_size() <= self.settings.min_in_sync
    }

    /// Whether as many replicas are in sync as a write needs.
    pub(super) fn is_enough(&self) -> bool {
        self.set_size() >= self.settings.min_in_sync
    }

    /// Appends an entry to the own log, and says at which index.
    pub(super) fn append(&mut self, now: Millis, request: Option<Request>, kind: EntryKind) -> u64 {
        let Some(lead) = &mut self.lead else { return 0 };
        let position = LogPosition { epoch: lead.epoch, index: self.log.end().index + 1 };
        let entry = Entry { position, kind };
        let bytes = entry.bytes();
        lead.uncommitted.push_back(Uncommitted { position, bytes, since: now, request });
        lead.uncommitted_bytes += bytes;
        self.log.push(entry.clone());
        let number = self.durable.begin(position.index);
        self.effects.push(Effect::Write(number, LogWrite::Append(vec![entry])));
        position.index
    }

    /// Joins consecutive appends into one write, with the number of the last.
    fn join_appends(&mut self) {
        let mut joined: Vec<Effect> = Vec::with_capacity(self.effects.len());
        for effect in self.effects.drain(..) {
            match (joined.last_mut(), effect) {
                (
                    Some(Effect::Write(number, LogWrite::Append(group))),
                    Effect::Write(later, LogWrite::Append(entries)),
                ) => {
                    *number = later;
                    group.extend(entries);
                }
                (_, effect) => joined.push(effect),
            }
        }
        self.effects = joined;
    }

    /// Answers the writes that are committed, and so applied. The caller has checked the promises. Writes of a former epoch are
    /// committed with `Begin`, for which one replica suffices: they are answered when `min_in_sync` replicas have them.
    pub(super) fn answer_committed(&mut self) {
        let (committed, is_enough) = (self.committed, self.is_enough());
        let Some(lead) = &mut self.lead else { return };
        let epoch = lead.epoch;
        let is_due = |write: &mut Uncommitted| {
            write.position.index <= committed && (is_enough || write.position.epoch == epoch)
        };
        while let Some(write) = lead.uncommitted.pop_front_if(is_due) {
            lead.uncommitted_bytes -= write.bytes;
            if let Some(request) = write.request {
                self.effects.push(Effect::Answer(request, Ok(Answer::Written(write.position))));
            }
        }
    }

    /// Answers writes that were not committed in time: they stay in the log, and their outcome is unknown.
    pub(super) fn answer_overdue(&mut self, now: Millis) {
        let wait = self.settings.write_wait_ms;
        let Some(lead) = &mut self.lead else { return };
        for write in lead.uncommitted.iter_mut().take_while(|write| now >= write.since + wait) {
            if let Some(request) = write.request.take() {
                let unknown = Failed::Unknown("not all in-sync replicas have stored it in time");
                self.effects.push(Effect::Answer(request, Err(unknown)));
            }
        }
    }
}
