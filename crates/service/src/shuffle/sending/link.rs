//! What is under way to one node, and what waits until there is room for it.
//!
//! | a batch | event | next |
//! |---|---|---|
//! | waits | there is room, and its shuffle has its turn | under way |
//! | under way | the node has stored it | gone |
//! | under way | nothing is heard of it for a while | under way, and the node is asked about it |
//! | under way | the node knows nothing of it | waits, before all that came later |
//! | under way | the node has no room for it | waits, before all that came later; the node gets nothing for a while, and then half as much at a time |
//!
//! A node that is busy answers late: what it has is not sent again, as that would make it busier. One that does not answer
//! questions is silent, and gets nothing but questions until it answers.

use crate::shuffle::ShuffleId;
use crate::shuffle::record::{BatchKey, Stream};
use crate::shuffle::settings::Settings;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, VecDeque};

/// So many times as long as until a stand-in is asked in the place of a silent node a node has for a batch that answers: it is
/// busy, and a stand-in would make more of the same work.
const BUSY_TIMES: u64 = 40;

/// Questions about one batch come in longer and longer intervals, up to so many times `resend_ms`.
const LONGEST_PAUSE: u64 = 8;

/// How long a node that answers has for a batch.
pub(super) fn busy_patience(settings: &Settings) -> u64 {
    settings.stand_in_ms.saturating_mul(BUSY_TIMES)
}

/// After so long a node is asked about a batch. It has the rest of `stand_in_ms` for the answer.
fn ask_ms(settings: &Settings) -> u64 {
    settings.resend_ms.min(settings.stand_in_ms / 2)
}

/// A batch that was sent, and not answered.
#[derive(Debug, Clone)]
struct Sent {
    memory: u64,
    /// Among those that wait.
    place: u64,
    at: Millis,
    /// When the node was asked about it last.
    asked: Option<Millis>,
    /// After so long it is asked again.
    pause: u64,
}

/// Batches that wait, of one shuffle in their order, and of several in turns.
#[derive(Debug, Clone, Default)]
struct Waiting {
    /// With what each takes in memory.
    batches: BTreeMap<ShuffleId, BTreeMap<u64, (BatchKey, u64)>>,
    places: BTreeMap<BatchKey, u64>,
    /// Those of which something waits.
    turns: VecDeque<ShuffleId>,
    last: u64,
}

impl Waiting {
    fn next_place(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn push(&mut self, key: BatchKey, memory: u64, place: u64) {
        let shuffle = key.stream.shuffle;
        let of = self.batches.entry(shuffle).or_default();
        if of.is_empty() {
            self.turns.push_back(shuffle);
        }
        self.places.insert(key.clone(), place);
        of.insert(place, (key, memory));
    }

    /// The first batch of the next shuffle of which one may go.
    fn pop(&mut self, may_go: impl Fn(ShuffleId) -> bool) -> Option<(u64, BatchKey, u64)> {
        for _ in 0..self.turns.len() {
            let shuffle = self.turns.pop_front()?;
            if !may_go(shuffle) {
                self.turns.push_back(shuffle);
                continue;
            }
            let of = self.batches.get_mut(&shuffle)?;
            let first = of.pop_first();
            if of.is_empty() {
                self.batches.remove(&shuffle);
            } else {
                self.turns.push_back(shuffle);
            }
            let (place, (key, memory)) = first?;
            self.places.remove(&key);
            return Some((place, key, memory));
        }
        None
    }

    fn remove(&mut self, key: &BatchKey) {
        let Some(place) = self.places.remove(key) else { return };
        let shuffle = key.stream.shuffle;
        let Some(of) = self.batches.get_mut(&shuffle) else { return };
        of.remove(&place);
        if of.is_empty() {
            self.batches.remove(&shuffle);
            self.turns.retain(|other| *other != shuffle);
        }
    }
}

/// What is under way to one node, and what waits for it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    under_way: BTreeMap<BatchKey, Sent>,
    /// That of what is under way, in bytes.
    memory: u64,
    /// How many are under way of each shuffle.
    of: BTreeMap<ShuffleId, u64>,
    /// So much memory may be under way now.
    room: u64,
    waiting: Waiting,
    /// When something was heard last, or since when something is under way.
    heard: Millis,
    /// When the node was asked first whether it answers, since it was heard.
    asked: Option<Millis>,
    /// When it has stored something last, or since when there is something to store.
    moved: Millis,
    /// When it has said last that its disk is full, and has stored nothing since.
    full_at: Option<Millis>,
    /// It gets nothing until then.
    rests_until: Millis,
}

impl Link {
    pub(super) fn new(now: Millis, settings: &Settings) -> Link {
        let (under_way, memory, of, waiting) = Default::default();
        Link {
            under_way,
            memory,
            of,
            room: settings.window_bytes.max(1),
            waiting,
            heard: now,
            asked: None,
            moved: now,
            full_at: None,
            rests_until: Millis(0),
        }
    }

    /// Whether the batch waits, or is under way.
    pub(super) fn has(&self, key: &BatchKey) -> bool {
        self.under_way.contains_key(key) || self.waiting.places.contains_key(key)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.waiting.places.is_empty()
    }

    /// A batch waits, behind the others of its shuffle.
    pub(super) fn add(&mut self, now: Millis, key: &BatchKey, memory: u64) {
        if self.is_idle() {
            self.moved = now;
        }
        let place = self.waiting.next_place();
        self.waiting.push(key.clone(), memory, place);
    }

    /// The next batch that goes, if there is room. An eighth of the room is for shuffles of which nothing is under way.
    pub(super) fn next(&mut self, now: Millis, settings: &Settings) -> Option<BatchKey> {
        if now < self.rests_until || self.is_silent(now, settings) {
            return None;
        }
        let (count, most) = (self.under_way.len() as u64, settings.window_batches.max(1));
        let has_room = |kept: u64| {
            let bytes = self.memory == 0 || self.memory.saturating_add(kept * (self.room / 8)) < self.room;
            bytes && (count == 0 || count + kept * (most / 8) < most)
        };
        let (is_free, is_full) = (has_room(1), !has_room(0));
        if is_full {
            return None;
        }
        let of = &self.of;
        let (place, key, memory) = self.waiting.pop(|shuffle| is_free || !of.contains_key(&shuffle))?;
        if self.under_way.is_empty() {
            self.heard = now;
            self.asked = None;
        }
        self.memory += memory;
        *self.of.entry(key.stream.shuffle).or_default() += 1;
        let sent = Sent { memory, place, at: now, asked: None, pause: ask_ms(settings) };
        self.under_way.insert(key.clone(), sent);
        Some(key)
    }

    /// It is under way no more.
    fn release(&mut self, key: &BatchKey) -> Option<Sent> {
        let sent = self.under_way.remove(key)?;
        self.memory -= sent.memory;
        let shuffle = key.stream.shuffle;
        match self.of.get(&shuffle).copied().unwrap_or(0) {
            0 | 1 => drop(self.of.remove(&shuffle)),
            count => drop(self.of.insert(shuffle, count - 1)),
        }
        Some(sent)
    }

    /// The node has answered something.
    pub(super) fn hear(&mut self, now: Millis) {
        self.heard = now;
        self.asked = None;
    }

    /// It has stored the batch. After it had no room it gets more with each that it has stored.
    pub(super) fn stored(&mut self, now: Millis, key: &BatchKey, settings: &Settings) {
        self.hear(now);
        self.moved = now;
        self.full_at = None;
        self.waiting.remove(key);
        if let Some(sent) = self.release(key) {
            let more = self.room.saturating_add(sent.memory / 4 + 1);
            self.room = more.min(settings.window_bytes.max(1));
        }
    }

    /// It has no room for the batch, in memory or on disk. False: that is known.
    pub(super) fn has_no_room(
        &mut self,
        now: Millis,
        key: &BatchKey,
        is_disk: bool,
        settings: &Settings,
    ) -> bool {
        let Some(sent) = self.release(key) else { return false };
        // One pause halves it once, however many batches the node had no room for.
        if now >= self.rests_until {
            self.room = (self.room / 2).max(1);
        }
        self.rests_until = now + settings.resend_ms;
        if is_disk {
            self.full_at = Some(now);
        }
        self.waiting.push(key.clone(), sent.memory, sent.place);
        true
    }

    /// It knows nothing of the batch. An answer to a question before the batch was sent last says nothing.
    pub(super) fn is_lost(&mut self, key: &BatchKey) {
        if self.under_way.get(key).is_some_and(|sent| sent.asked.is_some())
            && let Some(sent) = self.release(key)
        {
            self.waiting.push(key.clone(), sent.memory, sent.place);
        }
    }

    /// The batch is not to be sent any more. If it is under way, the node has it still.
    pub(super) fn withdraw(&mut self, key: &BatchKey) {
        self.waiting.remove(key);
    }

    /// The node does not store the batch, and is not to.
    pub(super) fn give_up(&mut self, key: &BatchKey) {
        self.waiting.remove(key);
        self.release(key);
    }

    /// What there is of these streams is neither sent nor waited for.
    pub(super) fn forget(&mut self, is_over: &impl Fn(&Stream) -> bool) {
        let keys = self.under_way.keys().chain(self.waiting.places.keys());
        let over: Vec<BatchKey> = keys.filter(|key| is_over(&key.stream)).cloned().collect();
        over.iter().for_each(|key| self.give_up(key));
    }

    /// What others have stored enough of, and what this node has not answered for long, takes no room any more.
    pub(super) fn give_up_old(
        &mut self,
        now: Millis,
        settings: &Settings,
        is_wanted: impl Fn(&BatchKey) -> bool,
    ) {
        let patience = busy_patience(settings);
        let old =
            self.under_way.iter().filter(|&(key, sent)| now.since(sent.at) >= patience && !is_wanted(key));
        let old: Vec<BatchKey> = old.map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|key| self.give_up(key));
    }

    /// The batches that the node is to be asked about now: whether it has them, and, if it was not heard for a while, whether it
    /// answers at all (`true`), as a question behind batches may wait as long as they do.
    pub(super) fn questions(&mut self, now: Millis, settings: &Settings) -> Vec<(BatchKey, bool)> {
        let mut questions = Vec::new();
        let longest = settings.resend_ms.saturating_mul(LONGEST_PAUSE).max(1);
        for (key, sent) in &mut self.under_way {
            if now.since(sent.asked.unwrap_or(sent.at)) >= sent.pause {
                sent.asked = Some(now);
                sent.pause = sent.pause.saturating_mul(2).clamp(1, longest);
                questions.push((key.clone(), false));
            }
        }
        if now.since(self.heard) >= ask_ms(settings)
            && let Some((key, _)) = self.under_way.iter().min_by_key(|(_, sent)| sent.at)
        {
            self.asked.get_or_insert(now);
            questions.push((key.clone(), true));
        }
        questions
    }

    /// Whether the node has not answered a question in time.
    fn is_silent(&self, now: Millis, settings: &Settings) -> bool {
        let time = settings.stand_in_ms.saturating_sub(ask_ms(settings));
        !self.under_way.is_empty() && self.asked.is_some_and(|at| now.since(at) >= time)
    }

    /// Whether it may be counted on that the node stores what waits for it, and what is under way to it. It may not if the node
    /// is silent, its disk is full, or it has stored nothing for long.
    pub(super) fn is_reliable(&self, now: Millis, settings: &Settings) -> bool {
        let patience = busy_patience(settings);
        let is_stuck = !self.is_idle() && now.since(self.moved) >= patience;
        let is_full = self.full_at.is_some_and(|at| now.since(at) < patience);
        !(is_stuck || is_full || self.is_silent(now, settings))
    }

    /// Bytes that are under way.
    #[cfg(test)]
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }
}
