//! Which machine a message is for.

use super::{Ends, EventLoop, Result};
use crate::node::counters::Counters;
use crate::node::transport::Packet;
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::log::Append;
use partage_service::shuffle::message::{Message, WhyNotStored, Word};
use partage_service::shuffle::{PoolSlot, ShuffleId, buffer, holder, leader};

impl EventLoop {
    pub(super) fn packet(&mut self, from: NodeId, packet: Packet) -> Result {
        match packet {
            Packet::Message(message) => self.message(from, message),
            Packet::Request(number, shuffle, request) => self.node_asks((from, number), shuffle, request),
            Packet::Answered(number, answer) => {
                self.answer_request(number, answer);
                Ok(())
            }
            Packet::Read(number, slice) => self.node_reads((from, number), slice),
            Packet::Records(number, answer) => {
                self.answer_read(number, answer);
                Ok(())
            }
            Packet::Seek(number, seek) => self.node_seeks((from, number), seek),
            Packet::Found(number, found) => {
                self.answer_found(number, found);
                Ok(())
            }
        }
    }

    pub(super) fn message(&mut self, from: NodeId, message: Message) -> Result {
        match message {
            Message::Append(append) => self.append(from, append),
            Message::Stored(key) => self.buffer(buffer::Event::Stored(from, key)),
            Message::Refused(key, how) => self.buffer(buffer::Event::Refused(key, how)),
            Message::Word(shuffle, ref word) => {
                self.hear_word(shuffle, word);
                self.read_unplanned(shuffle, word)?;
                self.buffer(buffer::Event::Word(shuffle, word.clone()))?;
                self.holder(holder::Event::Message(from, message))
            }
            Message::NotStored(key, why) => self.buffer(buffer::Event::NotStored(from, key, why)),
            // Its sender finds another node.
            Message::Batch(ref batch) if !self.may_have(batch.key.stream.slot) => {
                self.send(from, Message::NotStored(batch.key.clone(), WhyNotStored::Elsewhere));
                Ok(())
            }
            // Its sender sends it again, after a pause.
            Message::Batch(ref batch) if !self.has_room_to_store(batch.key.stream.shuffle) => {
                Counters::add(&self.shared.counters.not_stored, 1);
                self.send(from, Message::NotStored(batch.key.clone(), WhyNotStored::Busy));
                Ok(())
            }
            Message::Appended(slot, ..) | Message::NotAppended(slot, ..) => {
                self.leader(slot, leader::Event::Message(from, message))
            }
            Message::Ask(shuffle) => self.asked(from, shuffle),
            Message::Sample(shuffle, ..)
            | Message::Marks { shuffle, .. }
            | Message::Divided(shuffle, ..)
            | Message::Counted(shuffle, ..)
            | Message::Lacks(shuffle, ..)
            | Message::Dropped(shuffle) => {
                self.leader(self.map.home(shuffle), leader::Event::Message(from, message))
            }
            message => self.holder(holder::Event::Message(from, message)),
        }
    }

    /// Whether something of the slot may be stored here: the map gives it to this node, or the node stands in for others.
    fn may_have(&self, slot: PoolSlot) -> bool {
        self.shared.stands_in() || self.map.has(slot, &self.name)
    }

    /// While the thread of the node waited for the one that writes, it would answer nothing: there are always orders left.
    fn has_room_to_store(&self, shuffle: ShuffleId) -> bool {
        let settings = &self.config.settings;
        let are_few = self.stored_soon.len() < (settings.storing_orders / 4 * 3).max(1);
        are_few && self.stored_soon.has_room(shuffle, settings.storing_bytes)
    }

    /// How is a shuffle? The leader of its home says. So does, of a sealed one, each node that has the plan, be it that it is
    /// about to lead: the plan is final.
    fn asked(&mut self, from: NodeId, shuffle: ShuffleId) -> Result {
        let home = self.map.home(shuffle);
        let is_led = self.leaders.get(&home).is_some_and(leader::Leader::has_begun);
        match self.plans.get(shuffle).cloned() {
            Some(plan) if !is_led => {
                self.send(from, Message::Word(shuffle, Word::Sealed(plan)));
                Ok(())
            }
            _ => self.leader(home, leader::Event::Message(from, Message::Ask(shuffle))),
        }
    }

    fn hear_word(&mut self, shuffle: ShuffleId, word: &Word) {
        match word {
            Word::Sealed(plan) => self.keep_plan(plan),
            Word::Ended(_) => self.plans.remove(shuffle),
            Word::Open(..) | Word::Failed(_) => {}
        }
        for client in self.questions.looks(shuffle) {
            client.tell(word.clone());
        }
    }

    /// A replica takes decisions; it answers when they are synced.
    fn append(&mut self, from: NodeId, append: Append) -> Result {
        // Its sender sends it again, when the log may have room.
        if self.decisions.is_full() {
            return Ok(());
        }
        let (slot, epoch) = (append.slot, append.epoch);
        let known = self.map.place(slot).map_or(Epoch(0), |place| place.epoch);
        let taken =
            self.decisions.take(from.clone(), append, known).map_err(|error| Ends(error.to_string()))?;
        match taken {
            Ok(Some(logged)) => self.logged(logged),
            Ok(None) => Ok(()),
            Err(refused) => {
                self.send(from, Message::NotAppended(slot, epoch, refused));
                Ok(())
            }
        }
    }

    pub(super) fn logged(&mut self, logged: crate::log::Logged) -> Result {
        let crate::log::Logged { slot, leader, epoch, sequence } = logged;
        self.holder(holder::Event::Logged(slot, epoch))?;
        self.send(leader, Message::Appended(slot, epoch, sequence));
        Ok(())
    }

    /// Sends to a node, or to this one.
    pub(super) fn send(&mut self, to: NodeId, message: Message) {
        if to != self.name {
            return self.transport.send(&to, Packet::Message(message));
        }
        if self.local.len() < self.config.settings.local_messages {
            self.local.push_back(message);
        }
    }

    pub(super) fn leader(&mut self, slot: PoolSlot, event: leader::Event) -> Result {
        let now = self.now();
        let effects = match (self.leaders.get_mut(&slot), event) {
            (Some(leader), event) => leader.handle(now, event),
            (None, leader::Event::Request(number, ..)) => {
                vec![leader::Effect::Answer(number, Err(leader::Failed::NotLeading))]
            }
            (None, _) => Vec::new(),
        };
        for effect in effects {
            match effect {
                leader::Effect::Send(to, message) => self.send(to, message),
                leader::Effect::Answer(number, answer) => self.answer_request(number, answer),
            }
        }
        Ok(())
    }
}
