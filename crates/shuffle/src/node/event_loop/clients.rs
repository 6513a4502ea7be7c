//! What clients want, of this node and by way of others.

use super::{EventLoop, Result};
use crate::limits;
use crate::node::hears::Hears;
use crate::node::inbox::{Note, ReadAnswer};
use crate::node::transport::{Packet, SeekOf, SliceOf, seek, seek_of, slice, slice_of};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::buffer::{self, Attempt, Input};
use partage_service::shuffle::holder::{self, NotRead, Slice};
use partage_service::shuffle::leader::{self, Answer, Failed, OwnerUse, QuotaUsedUp, Request};
use partage_service::shuffle::message::{Message, Word};
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::seek::{Found, Seek};
use std::collections::BTreeMap;

/// Who waits for an answer of a leader: a client of this node, which asked that node, or another node.
enum Asker {
    Client(Hears<std::result::Result<Answer, Failed>>, NodeId),
    Node(NodeId, u64),
}

/// Who waits for records, or for what is sought: a client of this node, which asked that node, or another node.
enum Reader {
    Client(u64, Hears<ReadAnswer>, NodeId),
    Node(NodeId, u64),
}

/// Questions without an answer, by the numbers of this node, and since when.
#[derive(Default)]
pub(in crate::node) struct Questions {
    last: u64,
    /// When old ones are looked for next.
    look_at: Millis,
    /// When the node looked last which others it does not reach.
    reached_at: Millis,
    requests: BTreeMap<u64, (Asker, Millis)>,
    reads: BTreeMap<u64, (Reader, Millis)>,
    /// Who waits for the state of a shuffle.
    looks: BTreeMap<ShuffleId, Vec<(Hears<Word>, Millis)>>,
    /// How many these are.
    looking: usize,
    /// What clients of other nodes want of shuffles whose plans are still to come.
    unplanned: BTreeMap<ShuffleId, Unplanned>,
    /// How many questions these have.
    waiting: usize,
}

/// What a client of another node wants of a range.
enum OfRange {
    Read(SliceOf),
    Seek(SeekOf),
}

/// Which node asks and by which number, for what, and since when.
type Unread = ((NodeId, u64), OfRange, Millis);

/// What waits for the plan of a shuffle.
struct Unplanned {
    questions: Vec<Unread>,
    /// When a node was asked for the plan last.
    asked: Millis,
}

impl Questions {
    fn len(&self) -> usize {
        self.requests.len() + self.reads.len() + self.looking + self.waiting
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

    /// When the node looks next which others it does not reach.
    pub(super) fn reach_look_at(&self) -> Millis {
        let is_idle = self.requests.is_empty() && self.reads.is_empty();
        if is_idle { Millis::NEVER } else { self.reached_at + limits::REACH_LOOK_MS }
    }

    /// Answers what clients have asked of nodes that are not reached: they ask another node.
    pub(super) fn give_up_unreachable(&mut self, now: Millis, is_unreachable: impl Fn(&NodeId) -> bool) {
        if now < self.reach_look_at() {
            return;
        }
        self.reached_at = now;
        let mut known = BTreeMap::new();
        let mut is_away = |node: &NodeId| *known.entry(node.clone()).or_insert_with(|| is_unreachable(node));
        let of_reads = |_: &u64, (reader, _): &mut (Reader, Millis)| match reader {
            Reader::Client(_, _, of) => is_away(of),
            Reader::Node(..) => false,
        };
        for (_, (reader, _)) in self.reads.extract_if(.., of_reads) {
            if let Reader::Client(asked, client, _) = reader {
                client.tell(ReadAnswer::NotReached(asked));
            }
        }
        let of_requests = |_: &u64, (asker, _): &mut (Asker, Millis)| match asker {
            Asker::Client(_, of) => is_away(of),
            Asker::Node(..) => false,
        };
        for (_, (asker, _)) in self.requests.extract_if(.., of_requests) {
            if let Asker::Client(client, _) = asker {
                client.tell(Err(Failed::NotLeading));
            }
        }
    }

    /// Those who wait for the state of a shuffle wait no more.
    pub(super) fn looks(&mut self, shuffle: ShuffleId) -> impl Iterator<Item = Hears<Word>> + use<> {
        let looks = self.looks.remove(&shuffle).unwrap_or_default();
        self.looking -= looks.len();
        looks.into_iter().map(|(client, _)| client)
    }

    fn look(&mut self, shuffle: ShuffleId, client: Hears<Word>, now: Millis) {
        self.looks.entry(shuffle).or_default().push((client, now));
        self.looking += 1;
    }

    /// Keeps a question until the plan has come. Says whether the plan is to be asked for: it is long, and one answer is for all
    /// questions.
    fn wait_for_plan(&mut self, shuffle: ShuffleId, question: Unread, resend_ms: u64) -> bool {
        let now = question.2;
        let is_new = !self.unplanned.contains_key(&shuffle);
        let new = || Unplanned { questions: Vec::new(), asked: now };
        let unplanned = self.unplanned.entry(shuffle).or_insert_with(new);
        unplanned.questions.push(question);
        self.waiting += 1;
        let asks = is_new || now.since(unplanned.asked) >= resend_ms;
        if asks {
            unplanned.asked = now;
        }
        asks
    }

    /// What waits for the plan of a shuffle waits no more.
    fn planned(&mut self, shuffle: ShuffleId) -> Vec<Unread> {
        let questions = self.unplanned.remove(&shuffle).map(|unplanned| unplanned.questions);
        let questions = questions.unwrap_or_default();
        self.waiting -= questions.len();
        questions
    }

    /// When a plan is asked for again that has not come.
    pub(super) fn asks_at(&self, resend_ms: u64) -> Millis {
        let at = self.unplanned.values().map(|unplanned| unplanned.asked + resend_ms);
        at.min().unwrap_or(Millis::NEVER)
    }

    /// The shuffles whose plans are asked for again now.
    fn overdue(&mut self, now: Millis, resend_ms: u64) -> Vec<ShuffleId> {
        let mut overdue = Vec::new();
        for (shuffle, unplanned) in &mut self.unplanned {
            if now.since(unplanned.asked) >= resend_ms {
                unplanned.asked = now;
                overdue.push(*shuffle);
            }
        }
        overdue
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
        for unplanned in self.unplanned.values_mut() {
            unplanned.questions.retain(|(_, _, since)| is_fresh(since));
        }
        self.unplanned.retain(|_, unplanned| !unplanned.questions.is_empty());
        self.looking = self.looks.values().map(Vec::len).sum();
        self.waiting = self.unplanned.values().map(|unplanned| unplanned.questions.len()).sum();
        self.requests.retain(|_, (_, since)| is_fresh(since));
    }
}

impl EventLoop {
    fn has_room_for_question(&self) -> bool {
        self.questions.len() < self.config.settings.questions
    }

    pub(super) fn input(&mut self, attempt: Attempt, input: Input, client: Hears<Note>) -> Result {
        let refused = match &input {
            Input::Open(_) if !self.config.settings.roles.buffers() => Some(Note::StoresOnly),
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
            Input::Abort => {
                self.attempts.remove(&attempt);
                self.ending.remove(&attempt);
            }
            Input::End(..) => {
                let now = self.now();
                self.attempts.insert(attempt, client);
                // A client that has no answer asks again.
                self.ending.entry(attempt).or_insert(now);
            }
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
        let may_ask = |node: &NodeId| self.has_room_for_question() && !self.transport.is_unreachable(node);
        let Some(node) = self.map.live(home).first().cloned().filter(may_ask) else {
            client.tell(Err(Failed::NotLeading));
            return Ok(());
        };
        let number = self.questions.request(now, Asker::Client(client, node.clone()));
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
            Some((Asker::Client(client, _), _)) => client.tell(answer),
            Some((Asker::Node(node, asked), _)) => {
                self.transport.send(&node, Packet::Answered(asked, answer))
            }
            None => {}
        }
    }

    /// The number of a question of a client to a node. None: it is answered, as there is no room for it, or no way to the node.
    fn read_question(&mut self, node: &NodeId, (asked, client): (u64, Hears<ReadAnswer>)) -> Option<u64> {
        if !self.has_room_for_question() {
            client.tell(ReadAnswer::Answer(asked, Err(NotRead::Busy)));
            return None;
        }
        if self.transport.is_unreachable(node) {
            client.tell(ReadAnswer::NotReached(asked));
            return None;
        }
        Some(self.questions.read(self.now(), Reader::Client(asked, client, node.clone())))
    }

    pub(super) fn client_reads(
        &mut self,
        node: NodeId,
        slice: Slice,
        asked: (u64, Hears<ReadAnswer>),
    ) -> Result {
        let Some(number) = self.read_question(&node, asked) else { return Ok(()) };
        if node == self.name {
            return self.holder(holder::Event::Read(number, slice));
        }
        // The holder may ask for the plan.
        self.keep_plan(&slice.plan);
        self.transport.send(&node, Packet::Read(number, slice_of(&slice)));
        Ok(())
    }

    pub(super) fn client_seeks(
        &mut self,
        node: NodeId,
        seek: Seek,
        asked: (u64, Hears<ReadAnswer>),
    ) -> Result {
        let Some(number) = self.read_question(&node, asked) else { return Ok(()) };
        if node == self.name {
            return self.holder(holder::Event::Seek(number, seek));
        }
        self.keep_plan(&seek.plan);
        self.transport.send(&node, Packet::Seek(number, seek_of(&seek)));
        Ok(())
    }

    /// A client of another node reads here.
    pub(super) fn node_reads(&mut self, from: (NodeId, u64), of: SliceOf) -> Result {
        self.node_question(from, OfRange::Read(of))
    }

    /// A client of another node wants to know something of a range here.
    pub(super) fn node_seeks(&mut self, from: (NodeId, u64), of: SeekOf) -> Result {
        self.node_question(from, OfRange::Seek(of))
    }

    /// Without the plan it waits: the node that asks has it, and says it. If it has let go of it meanwhile, the leader does.
    fn node_question(&mut self, from: (NodeId, u64), of: OfRange) -> Result {
        if !self.has_room_for_question() {
            self.refuse(from, NotRead::Busy);
            return Ok(());
        }
        let shuffle = match &of {
            OfRange::Read(of) => of.shuffle,
            OfRange::Seek(of) => of.shuffle,
        };
        let now = self.now();
        let Some(plan) = self.plans.get(shuffle).cloned() else {
            if self.questions.waiting >= limits::UNPLANNED {
                self.refuse(from, NotRead::Busy);
                return Ok(());
            }
            let (node, resend_ms) = (from.0.clone(), self.config.settings.machines.resend_ms);
            if self.questions.wait_for_plan(shuffle, (from, of, now), resend_ms) {
                self.send(node, Message::Ask(shuffle));
            }
            return Ok(());
        };
        let number = self.questions.read(now, Reader::Node(from.0, from.1));
        self.holder(match of {
            OfRange::Read(of) => holder::Event::Read(number, slice(of, plan)),
            OfRange::Seek(of) => holder::Event::Seek(number, seek(of, plan)),
        })
    }

    fn refuse(&self, (node, number): (NodeId, u64), why: NotRead) {
        self.transport.send(&node, Packet::Records(number, Err(why)));
    }

    /// Plans that have not come from the nodes that ask for records.
    pub(super) fn ask_leaders_for_plans(&mut self, now: Millis) {
        let resend_ms = self.config.settings.machines.resend_ms;
        for shuffle in self.questions.overdue(now, resend_ms) {
            if let Some(leader) = self.map.live(self.map.home(shuffle)).first().cloned() {
                self.send(leader, Message::Ask(shuffle));
            }
        }
    }

    /// The state of a shuffle was heard: what waits for its plan is read, or never will be.
    pub(super) fn read_unplanned(&mut self, shuffle: ShuffleId, word: &Word) -> Result {
        if matches!(word, Word::Open(..)) {
            return Ok(());
        }
        for (from, of, _) in self.questions.planned(shuffle) {
            match word {
                Word::Sealed(_) => self.node_question(from, of)?,
                Word::Ended(how) => self.refuse(from, NotRead::Over(*how)),
                Word::Open(..) | Word::Failed(_) => self.refuse(from, NotRead::Lacks),
            }
        }
        Ok(())
    }

    pub(super) fn answer_found(&mut self, number: u64, found: Found) {
        match self.questions.reads.remove(&number) {
            Some((Reader::Client(asked, client, _), _)) => client.tell(ReadAnswer::Found(asked, found)),
            Some((Reader::Node(node, asked), _)) => {
                self.transport.send(&node, Packet::Found(asked, found));
            }
            None => {}
        }
    }

    pub(super) fn answer_read(&mut self, number: u64, answer: std::result::Result<OrderedRecords, NotRead>) {
        match self.questions.reads.remove(&number) {
            Some((Reader::Client(asked, client, _), _)) => client.tell(ReadAnswer::Answer(asked, answer)),
            Some((Reader::Node(node, asked), _)) => {
                self.transport.send(&node, Packet::Records(asked, answer));
            }
            None => {}
        }
    }

    /// Records that were read here for a reader who waits for them still. What comes from another node that one has counted.
    pub(super) fn count_read(&self, number: u64, answer: &std::result::Result<OrderedRecords, NotRead>) {
        if let Ok(records) = answer
            && self.questions.reads.contains_key(&number)
        {
            let (count, bytes) = records.sizes();
            self.shared.counters.to_readers.add(count, bytes);
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
            self.questions.look(shuffle, client, now);
            self.send(leader, Message::Ask(shuffle));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn question(number: u64, at: u64) -> Unread {
        let of = SliceOf { shuffle: ShuffleId(1), range: 0, keys: None, from: 0, to: 1 };
        ((NodeId::new("b").unwrap(), number), OfRange::Read(of), Millis(at))
    }

    #[test]
    fn r1_a_plan_is_asked_for_once_for_all_questions_and_again_if_it_does_not_come() {
        let (mut questions, one) = (Questions::default(), ShuffleId(1));
        assert_eq!(questions.asks_at(250), Millis::NEVER);
        assert!(questions.wait_for_plan(one, question(1, 1_000), 250));
        assert!((2..50).all(|number| !questions.wait_for_plan(one, question(number, 1_100), 250)));
        assert_eq!((questions.len(), questions.asks_at(250)), (49, Millis(1_250)));
        assert!(questions.overdue(Millis(1_249), 250).is_empty());
        assert_eq!(questions.overdue(Millis(1_250), 250), [one]);
        assert!(questions.overdue(Millis(1_251), 250).is_empty());
        assert!(questions.wait_for_plan(one, question(50, 1_500), 250));
        assert_eq!((questions.planned(one).len(), questions.len()), (50, 0));
        assert!(questions.wait_for_plan(one, question(51, 1_501), 250), "it was told, and let go of");
    }

    #[test]
    fn what_a_client_has_asked_of_a_node_that_is_not_reached_is_answered() {
        let (mut questions, [b, c]) =
            (Questions::default(), ["b", "c"].map(|name| NodeId::new(name).unwrap()));
        assert_eq!(questions.reach_look_at(), Millis::NEVER);
        let ((reads, answers), (requests, leads)) = (sync_channel(4), sync_channel(4));
        for (number, of) in [(1, &b), (2, &c)] {
            questions.read(Millis(0), Reader::Client(number, reads.clone().into(), of.clone()));
            questions.request(Millis(0), Asker::Client(requests.clone().into(), of.clone()));
        }
        // What other nodes ask is asked of this one.
        questions.read(Millis(0), Reader::Node(c.clone(), 3));
        questions.request(Millis(0), Asker::Node(c.clone(), 4));
        let look = questions.reach_look_at();
        questions.give_up_unreachable(Millis(look.0 - 1), |_| true);
        assert!(answers.try_recv().is_err());
        questions.give_up_unreachable(look, |node| *node == c);
        assert_eq!(answers.try_iter().collect::<Vec<_>>(), [ReadAnswer::NotReached(2)]);
        assert_eq!(leads.try_iter().collect::<Vec<_>>(), [Err(Failed::NotLeading)]);
        assert_eq!((questions.len(), questions.reach_look_at()), (4, look + limits::REACH_LOOK_MS));
    }

    #[test]
    fn what_waits_is_counted() {
        let (mut questions, one) = (Questions::default(), ShuffleId(1));
        let (sender, _hears) = sync_channel::<Word>(1);
        questions.look(one, sender.clone().into(), Millis(0));
        questions.look(one, sender.into(), Millis(900));
        questions.wait_for_plan(one, question(1, 0), 250);
        questions.request(Millis(900), Asker::Node(NodeId::new("b").unwrap(), 1));
        assert_eq!(questions.len(), 4);
        questions.forget_old(Millis(1_000), 1_000);
        assert_eq!(questions.len(), 2);
        assert_eq!((questions.looks(one).count(), questions.len()), (1, 1));
    }
}
