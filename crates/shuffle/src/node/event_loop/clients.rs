//! What clients want, of this node and by way of others.

use super::{EventLoop, Result};
use crate::limits;
use crate::node::hears::Hears;
use crate::node::inbox::{Note, ReadAnswer};
use crate::node::transport::{Packet, SliceOf, slice, slice_of};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::buffer::{self, Attempt, Input};
use partage_service::shuffle::holder::{self, NotRead, Slice};
use partage_service::shuffle::leader::{self, Answer, Failed, OwnerUse, QuotaUsedUp, Request};
use partage_service::shuffle::message::{Message, Word};
use partage_service::shuffle::plan::Placed;
use std::collections::BTreeMap;

/// Who waits for an answer of a leader.
enum Asker {
    Client(Hears<std::result::Result<Answer, Failed>>),
    Node(NodeId, u64),
}

/// Who waits for records.
enum Reader {
    Client(u64, Hears<ReadAnswer>),
    Node(NodeId, u64),
}

/// Questions without an answer, by the numbers of this node, and since when.
#[derive(Default)]
pub(in crate::node) struct Questions {
    last: u64,
    /// When old ones are looked for next.
    look_at: Millis,
    requests: BTreeMap<u64, (Asker, Millis)>,
    reads: BTreeMap<u64, (Reader, Millis)>,
    /// Who waits for the state of a shuffle.
    looks: BTreeMap<ShuffleId, Vec<(Hears<Word>, Millis)>>,
}

impl Questions {
    fn len(&self) -> usize {
        self.requests.len() + self.reads.len() + self.looks.values().map(Vec::len).sum::<usize>()
    }

    fn request(&mut self, now: Millis, asker: Asker) -> u64 {
        self.last += 1;
        self.requests.insert(self.last, (asker, now));
        self.last
    }

    fn read(&mut self, now: Millis, reader: Reader) -> u64 {
        self.last += 1;
        self.reads.insert(self.last, (reader, now));
        self.last
    }

    /// Those who wait for the state of a shuffle wait no more.
    pub(super) fn looks(&mut self, shuffle: ShuffleId) -> impl Iterator<Item = Hears<Word>> + use<> {
        self.looks.remove(&shuffle).unwrap_or_default().into_iter().map(|(client, _)| client)
    }

    /// Those who asked so long ago have asked again.
    pub(super) fn forget_old(&mut self, now: Millis, question_ms: u64) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + question_ms / 4;
        let is_fresh = |since: &Millis| now.since(*since) < question_ms;
        self.reads.retain(|_, (_, since)| is_fresh(since));
        for looks in self.looks.values_mut() {
            looks.retain(|(_, since)| is_fresh(since));
        }
        self.looks.retain(|_, looks| !looks.is_empty());
        self.requests.retain(|_, (_, since)| is_fresh(since));
    }
}

/// The first of the records: as many as one answer may have by their bytes, and one at least.
fn bounded(mut records: Vec<Placed>) -> Vec<Placed> {
    let mut bytes = 0;
    let mut is_within = |one: &Placed| {
        bytes += one.memory();
        bytes <= limits::ANSWER_BYTES
    };
    let count = records.iter().take_while(|one| is_within(one)).count();
    records.truncate(count.max(1));
    records
}

impl EventLoop {
    fn has_room_for_question(&self) -> bool {
        self.questions.len() < self.config.settings.questions
    }

    pub(super) fn input(&mut self, attempt: Attempt, input: Input, client: Hears<Note>) -> Result {
        let refused = match &input {
            Input::Open(_) if self.now() < self.full_until || self.shared.is_at_limit() => {
                Some(Note::DiskFull)
            }
            Input::Open(_) if self.attempts.len() >= self.config.settings.attempts => Some(Note::TooMany),
            _ => None,
        };
        if let Some(note) = refused {
            client.tell(note);
            return Ok(());
        }
        match &input {
            Input::Abort => drop(self.attempts.remove(&attempt)),
            _ => drop(self.attempts.insert(attempt, client)),
        }
        self.buffer(buffer::Event::Client(attempt, input))
    }

    pub(super) fn client_asks(
        &mut self,
        shuffle: ShuffleId,
        request: Request,
        client: Hears<std::result::Result<Answer, Failed>>,
    ) -> Result {
        let (now, home) = (self.now(), self.map.home(shuffle));
        let Some(node) = self.map.live(home).first().cloned().filter(|_| self.has_room_for_question()) else {
            client.tell(Err(Failed::NotLeading));
            return Ok(());
        };
        let number = self.questions.request(now, Asker::Client(client));
        if node == self.name {
            return self.ask_own_leader(number, shuffle, request);
        }
        self.transport.send(&node, Packet::Request(number, shuffle, request));
        Ok(())
    }

    /// A client of another node asks a leader here.
    pub(super) fn node_asks(&mut self, from: (NodeId, u64), shuffle: ShuffleId, request: Request) -> Result {
        if !self.has_room_for_question() {
            self.transport.send(&from.0, Packet::Answered(from.1, Err(Failed::NotLeading)));
            return Ok(());
        }
        let number = self.questions.request(self.now(), Asker::Node(from.0, from.1));
        self.ask_own_leader(number, shuffle, request)
    }

    fn ask_own_leader(&mut self, number: u64, shuffle: ShuffleId, request: Request) -> Result {
        let home = self.map.home(shuffle);
        if let Request::Start(_, options) = &request
            && let Some(used_up) = self.quota_used_up(shuffle, &options.owner)
        {
            self.answer_request(number, Err(Failed::QuotaUsedUp(used_up)));
            return Ok(());
        }
        self.leader(home, leader::Event::Request(number, shuffle, request))
    }

    /// Why this node starts no further shuffle of an owner; none: it does, or the shuffle is there already, or it does not lead.
    fn quota_used_up(&self, shuffle: ShuffleId, owner: &str) -> Option<QuotaUsedUp> {
        let quota = self.config.settings.owner_quota;
        if quota.is_none() || owner.is_empty() {
            return None;
        }
        let home = self.leaders.get(&self.map.home(shuffle)).filter(|leader| leader.has_begun())?;
        if home.has(shuffle) {
            return None;
        }
        let led = self.leaders.values().filter(|leader| leader.has_begun());
        let has = led.clone().fold(OwnerUse::default(), |sum, leader| {
            let OwnerUse { shuffles, bytes } = leader.used_by(owner);
            OwnerUse { shuffles: sum.shuffles + shuffles, bytes: sum.bytes.saturating_add(bytes) }
        });
        quota.used_up(has, led.count(), self.map.places.len())
    }

    pub(super) fn answer_request(&mut self, number: u64, answer: std::result::Result<Answer, Failed>) {
        if let Ok(Answer::Sealed(plan)) = &answer {
            self.keep_plan(plan);
        }
        match self.questions.requests.remove(&number) {
            Some((Asker::Client(client), _)) => client.tell(answer),
            Some((Asker::Node(node, asked), _)) => {
                self.transport.send(&node, Packet::Answered(asked, answer))
            }
            None => {}
        }
    }

    pub(super) fn client_reads(
        &mut self,
        node: NodeId,
        slice: Slice,
        (asked, client): (u64, Hears<ReadAnswer>),
    ) -> Result {
        if !self.has_room_for_question() {
            client.tell((asked, Err(NotRead::Busy)));
            return Ok(());
        }
        let now = self.now();
        let number = self.questions.read(now, Reader::Client(asked, client));
        if node == self.name {
            return self.holder(holder::Event::Read(number, slice));
        }
        // The holder may ask for the plan.
        self.keep_plan(&slice.plan);
        self.transport.send(&node, Packet::Read(number, slice_of(&slice)));
        Ok(())
    }

    /// A client of another node reads here.
    pub(super) fn node_reads(&mut self, from: (NodeId, u64), of: SliceOf) -> Result {
        let Some(plan) = self.plans.get(of.shuffle).cloned() else {
            // The node that asks has the plan. It asks again, as of one that is busy.
            self.send(from.0.clone(), Message::Ask(of.shuffle));
            self.transport.send(&from.0, Packet::Records(from.1, Err(NotRead::Busy)));
            return Ok(());
        };
        if !self.has_room_for_question() {
            self.transport.send(&from.0, Packet::Records(from.1, Err(NotRead::Busy)));
            return Ok(());
        }
        let now = self.now();
        let number = self.questions.read(now, Reader::Node(from.0, from.1));
        self.holder(holder::Event::Read(number, slice(of, plan)))
    }

    pub(super) fn answer_read(&mut self, number: u64, answer: std::result::Result<Vec<Placed>, NotRead>) {
        match self.questions.reads.remove(&number) {
            Some((Reader::Client(asked, client), _)) => client.tell((asked, answer)),
            Some((Reader::Node(node, asked), _)) => {
                // Its reader goes on where an answer ends.
                self.transport.send(&node, Packet::Records(asked, answer.map(bounded)));
            }
            None => {}
        }
    }

    /// A client wants the state of a shuffle: the leader says it, unless the shuffle is sealed.
    pub(super) fn client_looks(&mut self, shuffle: ShuffleId, client: Hears<Word>) {
        if let Some(plan) = self.plans.get(shuffle) {
            return client.tell(Word::Sealed(plan.clone()));
        }
        let Some(leader) = self.map.live(self.map.home(shuffle)).first().cloned() else { return };
        if self.has_room_for_question() {
            let now = self.now();
            self.questions.looks.entry(shuffle).or_default().push((client, now));
            self.send(leader, Message::Ask(shuffle));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_an_answer_of_records_of_length_zero_has_an_end() {
        let nothing =
            Placed { key: Vec::new().into(), partition: 0, frame: 1, index: 0, value: Vec::new().into() };
        let answer = bounded(vec![nothing; 200_000]);
        assert!((1_000..200_000).contains(&answer.len()), "{} records", answer.len());
    }
}
