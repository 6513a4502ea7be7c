//! Reads: linearizable ones rest on the promises of all required replicas (rule 6), bounded ones on a clock that came back.
//!
//! A follower sends its clock with each reply, and the leader sends the latest one back with the next append. All that was
//! acknowledged before the clock read so is committed in that append: but only if the sender still led when it sent. So a
//! leader sends clocks back only while it may rely on its promises; a follower of a leader that was replaced would else take what
//! it has for fresh.

use super::lead::{LeaderState, Phase};
use super::promise::relied_on;
use super::{Answer, Consistency, Effect, Failed, Replica, Request};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;

/// A linearizable read that waits for promises.
#[derive(Debug, Clone)]
pub(super) struct WaitingRead {
    pub(super) request: Request,
    pub(super) until: Millis,
    at_least: u64,
}

impl Replica {
    /// Until when this leader knows that no other replica leads; none if it never knew, or has not begun.
    pub fn relies_until(&self) -> Option<Millis> {
        if self.lead.as_ref().is_some_and(LeaderState::has_begun) { self.promised_until() } else { None }
    }

    /// Until when what is applied here may be read as a linearizable read, without asking this machine again; none: not at all.
    ///
    /// The driver publishes this. Before it carries out the effects of an event it takes back what is published and not in this
    /// any more, as one of them may let another replica lead; it publishes more only after them, as one of them may apply what
    /// was acknowledged by a former leader. A reader that has seen a time that is not over may then look at the rows: all that
    /// was acknowledged before is among them.
    pub fn reads_until(&self) -> Option<Millis> {
        let late = if planted::is(Planted::LateReaders) { self.settings.promise_ms } else { 0 };
        let until = self.relies_until().filter(|_| !self.closes() && self.damage.is_none());
        until.map(|until| until + late)
    }

    /// Until when all required replicas have promised to lead under no later epoch. With no other replica in the set no
    /// other one can be made leader.
    pub(super) fn promised_until(&self) -> Option<Millis> {
        let lead = self.lead.as_ref()?;
        let promise_ms = self.settings.promise_ms;
        let mut ends = self.required().map(|placement| {
            let acked_sent = lead.followers.get(&placement).and_then(|follower| follower.acked_sent);
            acked_sent.map(|sent| relied_on(sent, promise_ms))
        });
        ends.try_fold(Millis::NEVER, |soonest, end| Some(soonest.min(end?)))
    }

    /// Whether this leader knows that no other replica leads.
    pub fn may_rely(&self, now: Millis) -> bool {
        self.relies_until().is_some_and(|until| now < until)
    }

    pub(super) fn on_read(&mut self, now: Millis, request: Request, consistency: Consistency, at_least: u64) {
        let answer = match consistency {
            Consistency::Linearizable => match self.read_as_leader(now) {
                Some(answer) => answer,
                None => return self.wait_for_promises(now, request, at_least),
            },
            Consistency::Bounded(bound_ms) => match self.age_ms(now) {
                Some(age_ms) if age_ms <= bound_ms => self.read(Some(age_ms)),
                _ => Err(Failed::TooOld),
            },
            Consistency::Any => self.read(self.age_ms(now)),
        };
        self.answer_read(request, answer, at_least);
    }

    /// What a leader answers; none if it waits for promises.
    fn read_as_leader(&self, now: Millis) -> Option<Result<Answer, Failed>> {
        match self.phase() {
            None if planted::is(Planted::ReaderLeads) && self.is_read_from_only() => Some(self.read(Some(0))),
            None => Some(Err(Failed::NotLeader(self.leader_elsewhere()))),
            Some(_) if self.closes() => Some(Err(Failed::Closed)),
            Some(Phase::Closed) => Some(Err(Failed::Closed)),
            Some(Phase::Waiting | Phase::Beginning) => Some(Err(Failed::NotBegun)),
            Some(Phase::HandingOver { .. } | Phase::Leading) => {
                let may = self.may_rely(now) || planted::is(Planted::UnpromisedRead);
                may.then(|| self.read(Some(0)))
            }
        }
    }

    /// Whether the coordinator has ordered that it never joins the in-sync set.
    fn is_read_from_only(&self) -> bool {
        let peers = self.order.iter().flat_map(|order| &order.peers);
        peers.into_iter().any(|peer| peer.placement == self.me && !peer.may_join)
    }

    fn read(&self, age_ms: Option<u64>) -> Result<Answer, Failed> {
        Ok(Answer::Read { applied: self.applied, age_ms })
    }

    /// How old what is applied here may be at most, in milliseconds by the own clock, which hides up to one; none: that is not
    /// known.
    pub fn age_ms(&self, now: Millis) -> Option<u64> {
        match self.relies_until() {
            Some(until) if now < until => Some(0),
            Some(until) => Some(now.since(until) + 1),
            None => self.following.fresh.map(|fresh| now.since(fresh) + 1),
        }
    }

    fn answer_read(&mut self, request: Request, answer: Result<Answer, Failed>, at_least: u64) {
        let answer = match answer {
            Ok(Answer::Read { applied, .. }) if applied < at_least => Err(Failed::Behind { applied }),
            answer => answer,
        };
        self.effects.push(Effect::Answer(request, answer));
    }

    fn wait_for_promises(&mut self, now: Millis, request: Request, at_least: u64) {
        if self.reads.len() >= self.settings.reads_waiting {
            let full = Failed::Full("as many reads as may wait do so (reads_waiting)");
            self.effects.push(Effect::Answer(request, Err(full)));
            return;
        }
        let until = now + self.settings.read_wait_ms;
        self.reads.push_back(WaitingRead { request, until, at_least });
    }

    /// Promises may have come.
    pub(super) fn answer_waiting_reads(&mut self, now: Millis) {
        if self.reads.is_empty() || !self.may_rely(now) {
            return;
        }
        for read in std::mem::take(&mut self.reads) {
            self.answer_read(read.request, self.read(Some(0)), read.at_least);
        }
    }

    /// Those that have waited for too long are refused.
    pub(super) fn end_waiting_reads(&mut self, now: Millis) {
        while let Some(read) = self.reads.pop_front_if(|read| now >= read.until) {
            self.effects.push(Effect::Answer(read.request, Err(Failed::NoPromises)));
        }
    }
}
