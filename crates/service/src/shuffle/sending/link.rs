//! What is under way to one node, and what waits until there is room for it.
//!
//! | a batch | event | next |
//! |---|---|---|
//! | waits | there is room, and its shuffle has its turn | under way |
//! | under way | the node has stored it | gone |
//! | under way | nothing is heard of it for a while | under way, and the node is asked about it |
//! | under way | the node knows nothing of it | waits, before all that came later |
//! | under way | the node has no room for it | waits, before all that came later; of its shuffle the node gets nothing for a while, and of all less at a time |
//! | under way | the disk of the node is full | the same, and for a while the node gets nothing at all |
//!
//! An eighth of the room is for shuffles of which little is under way, so they wait for nothing of one that floods. In the rest
//! shuffles take turns by bytes over their weights.
//!
//! A node that is busy answers late: what it has is not sent again, as that would make it busier. One that does not answer
//! questions is silent, and gets nothing but questions until it answers.

use crate::shuffle::ShuffleId;
use crate::shuffle::message::AskOrder;
use crate::shuffle::record::{BatchKey, Stream};
use crate::shuffle::settings::Settings;
use crate::shuffle::turns::{Turns, is_little, may_wait};
use partage_core::base::time::Millis;
use std::cell::Cell;
use std::collections::BTreeMap;

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
    /// Among those that wait, and what it counts there.
    turn: (u64, u64),
    at: Millis,
    /// When the node was asked about it last.
    asked: Option<Millis>,
    /// After so long it is asked again.
    pause: u64,
}

/// What of one shuffle is under way.
#[derive(Debug, Clone, Copy, Default)]
struct OfShuffle {
    batches: u64,
    memory: u64,
}

/// What is under way.
#[derive(Debug, Clone)]
struct Window {
    batches: BTreeMap<BatchKey, Sent>,
    /// That of all, in bytes.
    memory: u64,
    of: BTreeMap<ShuffleId, OfShuffle>,
    /// So much memory may be under way now, besides what is kept for shuffles of which little is.
    room: u64,
    /// Until then it does not become less.
    kept_until: Millis,
}

/// The part of a window that is for shuffles of which little is under way.
fn kept(settings: &Settings) -> u64 {
    settings.window_bytes / 8
}

/// The other part.
fn most_room(settings: &Settings) -> u64 {
    (settings.window_bytes - kept(settings)).max(1)
}

/// Whether there is room for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    /// In what is kept for shuffles of which little is under way.
    Kept,
    Lacks,
}

impl Window {
    /// The room for a batch of the shuffle that takes so much memory. One always may go.
    fn room_for(&self, shuffle: ShuffleId, memory: u64, settings: &Settings) -> Room {
        if self.batches.is_empty() {
            return Room::Enough;
        }
        let own = self.of.get(&shuffle).copied().unwrap_or_default();
        let shuffles = self.of.len() as u64 + u64::from(own.batches == 0);
        let kept = kept(settings);
        let (count, most) = (self.batches.len() as u64, settings.window_batches.max(1));
        if !may_wait((count, most), (own.batches, shuffles), 1) {
            return Room::Lacks;
        }
        let with_it = self.memory.saturating_add(memory);
        if is_little((own.memory, shuffles), kept, memory) && with_it <= settings.window_bytes {
            return Room::Kept;
        }
        // Beside little a batch goes that is longer than the room.
        if with_it <= self.room || self.memory <= kept { Room::Enough } else { Room::Lacks }
    }

    fn add(&mut self, key: BatchKey, sent: Sent) {
        let of = self.of.entry(key.stream.shuffle).or_default();
        of.batches += 1;
        of.memory += sent.memory;
        self.memory += sent.memory;
        self.batches.insert(key, sent);
    }

    fn remove(&mut self, key: &BatchKey) -> Option<Sent> {
        let sent = self.batches.remove(key)?;
        self.memory -= sent.memory;
        let shuffle = key.stream.shuffle;
        if let Some(of) = self.of.get_mut(&shuffle) {
            of.batches -= 1;
            of.memory -= sent.memory;
            if of.batches == 0 {
                self.of.remove(&shuffle);
            }
        }
        Some(sent)
    }

    /// The node had no room: from now on it has half of what it had, once in a while however many batches it had none for.
    fn halve(&mut self, now: Millis, settings: &Settings) {
        if now >= self.kept_until {
            self.room = (self.room / 2).max(1);
            self.kept_until = now + settings.resend_ms;
        }
    }

    fn grow(&mut self, by: u64, settings: &Settings) {
        self.room = self.room.saturating_add(by).min(most_room(settings));
    }
}

/// What is under way to one node, and what waits for it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    window: Window,
    /// With what each takes in memory.
    waiting: Turns<ShuffleId, (BatchKey, u64)>,
    /// The places of those that wait.
    places: BTreeMap<BatchKey, u64>,
    /// When something was heard last, or since when something is under way.
    heard: Millis,
    /// When the node was asked first whether it answers, since it was heard.
    asked: Option<Millis>,
    /// When it has stored something last, or since when there is something to store.
    moved: Millis,
    /// When it has said last that its disk is full, and has stored nothing since.
    full_at: Option<Millis>,
    /// It gets nothing until then, as its disk was full.
    rests_until: Millis,
    /// It gets nothing of these shuffles until then, as it had no room for a batch of theirs.
    rests: BTreeMap<ShuffleId, Millis>,
}

impl Link {
    pub(super) fn new(now: Millis, settings: &Settings) -> Link {
        let (batches, memory, of, kept_until) = Default::default();
        let window = Window { batches, memory, of, room: most_room(settings), kept_until };
        let (waiting, places, rests) = Default::default();
        let (asked, full_at, rests_until) = (None, None, Millis(0));
        Link { window, waiting, places, heard: now, asked, moved: now, full_at, rests_until, rests }
    }

    /// Whether the batch waits, or is under way.
    pub(super) fn has(&self, key: &BatchKey) -> bool {
        self.window.batches.contains_key(key) || self.places.contains_key(key)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.window.batches.is_empty() && self.places.is_empty()
    }

    /// A batch waits, behind the others of its shuffle. It takes so much memory, and counts so much where shuffles take turns.
    pub(super) fn add(&mut self, now: Millis, key: &BatchKey, (memory, cost): (u64, u64)) {
        if self.is_idle() {
            self.moved = now;
        }
        let place = self.waiting.push(key.stream.shuffle, (key.clone(), memory), cost);
        self.places.insert(key.clone(), place);
    }

    /// The next batch that goes, if there is room. One for which there is none is overtaken by those alone for which room is
    /// kept: a large batch would find none beside small ones.
    pub(super) fn next(&mut self, now: Millis, settings: &Settings) -> Option<BatchKey> {
        if now < self.rests_until || self.is_silent(now, settings) {
            return None;
        }
        let Link { window, waiting, rests, .. } = self;
        let is_overtaken = Cell::new(false);
        let may_go = |shuffle: &ShuffleId, (_, memory): &(BatchKey, u64)| {
            if rests.get(shuffle).is_some_and(|until| now < *until) {
                return false;
            }
            let room = window.room_for(*shuffle, *memory, settings);
            let goes = room == Room::Kept || (room == Room::Enough && !is_overtaken.get());
            is_overtaken.set(is_overtaken.get() || !goes);
            goes
        };
        let (turn, (key, memory)) = waiting.pop_if(may_go)?;
        self.places.remove(&key);
        if self.window.batches.is_empty() {
            self.heard = now;
            self.asked = None;
        }
        let sent = Sent { memory, turn, at: now, asked: None, pause: ask_ms(settings) };
        self.window.add(key.clone(), sent);
        Some(key)
    }

    /// A batch that was under way waits again, where it was before.
    fn put_back(&mut self, key: &BatchKey, sent: &Sent) {
        self.places.insert(key.clone(), sent.turn.0);
        self.waiting.put_back(key.stream.shuffle, (key.clone(), sent.memory), sent.turn);
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
        self.withdraw(key);
        if let Some(sent) = self.window.remove(key) {
            self.window.grow(sent.memory / 4 + 1, settings);
        }
    }

    /// The node has no room for the batch, in memory or on disk: the batch waits again. Late answers of the same kind, to what
    /// was sent before the first of them came, do not make the rest longer.
    pub(super) fn put_back_refused(
        &mut self,
        now: Millis,
        key: &BatchKey,
        is_disk: bool,
        settings: &Settings,
    ) {
        let Some(sent) = self.window.remove(key) else { return };
        self.window.halve(now, settings);
        let until = now + settings.resend_ms;
        if is_disk {
            self.full_at = Some(now);
            if now >= self.rests_until {
                self.rests_until = until;
            }
        }
        self.rests.retain(|_, until| now < *until);
        self.rests.entry(key.stream.shuffle).or_insert(until);
        self.put_back(key, &sent);
    }

    /// The node knows nothing of the batch, which waits again. An answer to a question before the batch was sent last says
    /// nothing.
    pub(super) fn put_back_lost(&mut self, key: &BatchKey) {
        if self.window.batches.get(key).is_some_and(|sent| sent.asked.is_some())
            && let Some(sent) = self.window.remove(key)
        {
            self.put_back(key, &sent);
        }
    }

    /// The batch is not to be sent any more. If it is under way, the node has it still.
    pub(super) fn withdraw(&mut self, key: &BatchKey) {
        if let Some(place) = self.places.remove(key) {
            self.waiting.remove(&key.stream.shuffle, place);
        }
    }

    /// The node does not store the batch, and is not to.
    pub(super) fn give_up(&mut self, key: &BatchKey) {
        self.withdraw(key);
        self.window.remove(key);
    }

    /// What there is of these streams is neither sent nor waited for.
    pub(super) fn forget(&mut self, is_over: &impl Fn(&Stream) -> bool) {
        let keys = self.window.batches.keys().chain(self.places.keys());
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
        let under_way = self.window.batches.iter();
        let old = under_way.filter(|&(key, sent)| now.since(sent.at) >= patience && !is_wanted(key));
        let old: Vec<BatchKey> = old.map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|key| self.give_up(key));
    }

    /// The batches that the node is to be asked about now: whether it has them, and, if it was not heard for a while, whether it
    /// answers at all, as a question behind batches may wait as long as they do.
    pub(super) fn questions(&mut self, now: Millis, settings: &Settings) -> Vec<(BatchKey, AskOrder)> {
        let mut questions = Vec::new();
        let longest = settings.resend_ms.saturating_mul(LONGEST_PAUSE).max(1);
        for (key, sent) in &mut self.window.batches {
            if now.since(sent.asked.unwrap_or(sent.at)) >= sent.pause {
                sent.asked = Some(now);
                sent.pause = sent.pause.saturating_mul(2).clamp(1, longest);
                questions.push((key.clone(), AskOrder::Behind));
            }
        }
        if now.since(self.heard) >= ask_ms(settings)
            && let Some((key, _)) = self.window.batches.iter().min_by_key(|(_, sent)| sent.at)
        {
            self.asked.get_or_insert(now);
            questions.push((key.clone(), AskOrder::Ahead));
        }
        questions
    }

    /// Whether the node has not answered a question in time.
    fn is_silent(&self, now: Millis, settings: &Settings) -> bool {
        let time = settings.stand_in_ms.saturating_sub(ask_ms(settings));
        !self.window.batches.is_empty() && self.asked.is_some_and(|at| now.since(at) >= time)
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
        self.window.memory
    }
}
