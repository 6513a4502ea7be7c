//! Which shuffles may fill the memory of a buffer (R1).
//!
//! Each shuffle that writes here has a share of the memory, by its weight; one that writes alone has all of it. A frame comes:
//!
//! | its shuffle has here | the memory has room | then |
//! |---|---|---|
//! | nothing, or less than its share, with the frame | yes | it is taken |
//! | the same | no | it waits, and room that comes is kept for those that wait, for the one first that waits longest |
//! | its share | – | it waits until some of what its shuffle has here is stored |
//!
//! So memory that comes free goes to shuffles that are below their shares, however often another one asks for it, and what a
//! shuffle floods a buffer with waits for itself alone. Where the shares of all are smaller than a frame, one frame of each is
//! taken in turn. Of the frames of one shuffle room is kept for the one that waits longest (`line.rs`).
//!
//! A division waits with them, by its slot, and has no share: its shuffle may write here nothing else. From its first order on
//! room is kept for it, until it is read.
//!
//! What was not done: memory above the shares is not lent while all are below theirs. A shuffle that came back to its share would
//! have to wait until what was lent is stored.

use super::open::Open;
use super::{Attempt, Buffer, PoolSlot, ShuffleId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::limits;
use std::collections::BTreeMap;

mod line;

use line::Lines;

/// A shuffle whose clients have sent nothing for so long, in milliseconds, leaves its share to others: most such clients are
/// gone, or compute for long. It has its share again with its next frame. Until it is quiet it has its share also between two
/// attempts: one that trickles has mostly none open, and would find the memory filled each time.
const QUIET_MS: u64 = 1_000;

/// Room is kept for a frame for so long, in milliseconds: its client hands it in again within some tens of them, or is gone.
const KEPT_MS: u64 = 1_000;

/// Room is kept for a division for so long, in milliseconds, beyond the time after which its leader orders it again four
/// times: it is read meanwhile, and an order may be lost.
const KEPT_TO_READ_MS: u64 = 2_000;

/// What waits for room: the frames of a shuffle, or a division of it in a slot.
pub(super) type Waiter = (ShuffleId, Option<PoolSlot>);

/// A frame or a division for which there was no room.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Counts those that began to wait.
    turn: u64,
    memory: u64,
    /// Until when room is kept for it.
    until: Millis,
}

/// The shuffles that are below their shares and wait for room, and the divisions that do.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    turns: u64,
    of: BTreeMap<Waiter, Wait>,
    lines: Lines,
}

impl Waits {
    /// What is kept for those that wait for longer than this one.
    fn ahead(&mut self, now: Millis, waiter: Waiter) -> u64 {
        self.of.retain(|_, wait| now < wait.until);
        let own = self.of.get(&waiter).map_or(u64::MAX, |wait| wait.turn);
        self.of.values().filter(|wait| wait.turn < own).map(|wait| wait.memory).sum()
    }

    fn add(&mut self, waiter: Waiter, memory: u64, until: Millis) {
        self.turns += 1;
        let wait = self.of.entry(waiter).or_insert(Wait { turn: self.turns, memory, until });
        (wait.memory, wait.until) = (memory, until);
    }

    pub(super) fn end(&mut self, waiter: Waiter) {
        self.of.remove(&waiter);
    }

    /// Forgets an attempt that sends nothing any more.
    pub(super) fn remove_attempt(&mut self, attempt: Attempt) {
        self.lines.remove(attempt);
    }

    pub(super) fn remove(&mut self, shuffle: ShuffleId) {
        self.of.retain(|(of, _), _| *of != shuffle);
        self.lines.remove_all(shuffle);
    }
}

/// Whether a frame is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    /// The memory has no room besides what is kept for others.
    Full,
    /// The shuffle has its share.
    Shared,
}

impl Open {
    /// Whether clients write it, so that it has a share.
    fn writes(&self, now: Millis) -> bool {
        let is_written = self.plan.is_none() && !self.attempts.is_empty();
        is_written && now.since(self.heard) < QUIET_MS
    }
}

impl Buffer {
    /// What a shuffle has of the memory, held and under way.
    pub fn memory_of(&self, shuffle: ShuffleId) -> u64 {
        self.shuffles.get(&shuffle).map_or(0, Open::memory) + self.sending.memory_of(shuffle)
    }

    /// The memory that a shuffle may have now, in bytes.
    fn share(&self, now: Millis, shuffle: ShuffleId) -> u64 {
        let (mut own, mut all) = (1, 0);
        for (id, open) in &self.shuffles {
            if *id == shuffle {
                own = open.weight;
            } else if open.writes(now) {
                all += open.weight;
            }
        }
        let share = u128::from(self.most_memory()) * u128::from(own) / u128::from(own + all);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Whether a frame that takes so much memory is taken. If not, the buffer sends what makes room for it.
    pub(super) fn has_room(&mut self, now: Millis, attempt: Attempt, memory: u64) -> bool {
        let shuffle = attempt.shuffle;
        let kept = self.waits.lines.ahead(now, attempt);
        let room = self.room(now, (shuffle, kept), memory);
        if room == Room::Enough {
            self.waits.lines.remove(attempt);
        } else {
            self.waits.lines.add(now, attempt, memory);
        }
        // The turn of a shuffle is that of its frame which waits longest.
        if kept == 0 && room == Room::Full {
            self.waits.add((shuffle, None), memory, now + KEPT_MS);
        } else if kept == 0 {
            self.waits.end((shuffle, None));
        }
        match room {
            Room::Enough => {}
            Room::Full => self.make_room(),
            Room::Shared => {
                if self.is_worth_sending(shuffle) {
                    self.flush(shuffle);
                }
            }
        }
        self.counts.held_back += u64::from(room != Room::Enough);
        room == Room::Enough
    }

    /// The room for a frame, beside so much that is kept for another frame of the shuffle.
    fn room(&mut self, now: Millis, (shuffle, kept): (ShuffleId, u64), memory: u64) -> Room {
        let (all, most) = (self.memory(), self.most_memory());
        let has_room = |ahead: u64| all + ahead + memory <= most || all + ahead == 0;
        if planted::is(Planted::NoShares) {
            return if has_room(0) { Room::Enough } else { Room::Full };
        }
        let own = self.memory_of(shuffle) + kept;
        if own > 0 && own + memory > self.share(now, shuffle) {
            return Room::Shared;
        }
        let ahead = self.waits.ahead(now, (shuffle, None)) + kept;
        if has_room(ahead) { Room::Enough } else { Room::Full }
    }

    /// Whether a division that takes so much may begin. Room is kept for it from now on. If there is none, the buffer sends
    /// what makes room.
    pub(super) fn has_room_to_divide(&mut self, now: Millis, waiter: Waiter, memory: u64) -> bool {
        let kept = KEPT_TO_READ_MS.saturating_add(self.settings.resend_ms.saturating_mul(4));
        let before = self.memory() + self.waits.ahead(now, waiter);
        self.waits.add(waiter, memory, now + kept);
        let has_room = before == 0 || before + memory <= self.most_memory();
        if !has_room {
            self.make_room();
        }
        has_room
    }

    /// Sends what is held of the shuffle that has most here over its weight. One that holds little is left out, unless all
    /// do: it would be many small batches, which give little room.
    pub(super) fn make_room(&mut self) {
        let least = self.settings.chunk_bytes.min(self.settings.buffer_bytes / 64);
        let over_weight = |shuffle: ShuffleId, open: &Open| {
            self.memory_of(shuffle).saturating_mul(u64::from(limits::SHUFFLE_WEIGHT)) / open.weight.max(1)
        };
        let most = self
            .shuffles
            .iter()
            .filter(|(shuffle, _)| self.is_worth_sending(**shuffle))
            .max_by_key(|(shuffle, open)| (open.memory_of_chunks() >= least, over_weight(**shuffle, open)))
            .map(|(shuffle, _)| *shuffle);
        most.into_iter().for_each(|shuffle| self.flush(shuffle));
    }

    /// Whether to send what is held of a shuffle. If more of it is on its way than is held, room comes by itself; sent now,
    /// what is held would be many small batches.
    fn is_worth_sending(&self, shuffle: ShuffleId) -> bool {
        let Some(open) = self.shuffles.get(&shuffle) else { return false };
        let held = open.memory_of_chunks();
        held > 0 && held >= open.outgoing.memory() + self.sending.memory_of(shuffle)
    }
}

#[cfg(test)]
mod tests;
