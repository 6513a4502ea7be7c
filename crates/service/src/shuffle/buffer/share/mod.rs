//! Who may fill the memory of a buffer (R1).
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
//! taken in turn.
//!
//! What was not done: memory above the shares is not lent while all are below theirs. A shuffle that came back to its share would
//! have to wait until what was lent is stored.

use super::open::Open;
use super::{Buffer, ShuffleId};
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use partage_core::limits;
use std::collections::BTreeMap;

/// A shuffle whose clients have attempts open and have sent nothing for so long, in milliseconds, leaves its share to others:
/// most such clients are gone, or compute for long. It has its share again with its next frame.
const QUIET_MS: u64 = 1_000;

/// Room is kept for a frame for so long, in milliseconds: its client hands it in again within some tens of them, or is gone.
const KEPT_MS: u64 = 1_000;

/// A frame for which there was no room.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Counts those that began to wait.
    turn: u64,
    memory: u64,
    /// When it was handed in last.
    at: Millis,
}

/// The shuffles that are below their shares and wait for room.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    turns: u64,
    of: BTreeMap<ShuffleId, Wait>,
}

impl Waits {
    /// What is kept for those that wait for longer than this one.
    fn ahead(&mut self, now: Millis, shuffle: ShuffleId) -> u64 {
        self.of.retain(|_, wait| now.since(wait.at) < KEPT_MS);
        let own = self.of.get(&shuffle).map_or(u64::MAX, |wait| wait.turn);
        self.of.values().filter(|wait| wait.turn < own).map(|wait| wait.memory).sum()
    }

    fn add(&mut self, now: Millis, shuffle: ShuffleId, memory: u64) {
        self.turns += 1;
        let wait = self.of.entry(shuffle).or_insert(Wait { turn: self.turns, memory, at: now });
        (wait.memory, wait.at) = (memory, now);
    }

    pub(super) fn remove(&mut self, shuffle: ShuffleId) {
        self.of.remove(&shuffle);
    }
}

/// Whether a frame is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    /// Others have it.
    Full,
    /// The shuffle has its share.
    Shared,
}

impl Open {
    /// Whether it has a share.
    fn writes(&self, now: Millis) -> bool {
        self.writing > 0 && now.since(self.heard) < QUIET_MS
    }
}

impl Buffer {
    /// What a shuffle has of the memory, held and under way.
    pub fn memory_of(&self, shuffle: ShuffleId) -> u64 {
        self.shuffles.get(&shuffle).map_or(0, Open::memory) + self.sending.memory_of(shuffle)
    }

    /// What a shuffle may have of it, now.
    fn share(&self, now: Millis, shuffle: ShuffleId) -> u64 {
        let (mut own, mut all) = (1, 0);
        for (id, open) in &self.shuffles {
            if *id == shuffle {
                own = open.weight;
            } else if open.writes(now) {
                all += open.weight;
            }
        }
        let share = u128::from(self.settings.buffer_bytes) * u128::from(own) / u128::from(own + all);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Whether a frame that takes so much is taken. If it is not, what helps is sent.
    pub(super) fn has_room(&mut self, now: Millis, shuffle: ShuffleId, memory: u64) -> bool {
        let room = self.room(now, shuffle, memory);
        match room {
            Room::Enough => self.waits.remove(shuffle),
            Room::Full => {
                self.waits.add(now, shuffle, memory);
                self.make_room(now);
            }
            Room::Shared => {
                self.waits.remove(shuffle);
                if self.is_worth_sending(shuffle) {
                    self.flush(now, shuffle);
                }
            }
        }
        self.counts.held_back += u64::from(room != Room::Enough);
        room == Room::Enough
    }

    fn room(&mut self, now: Millis, shuffle: ShuffleId, memory: u64) -> Room {
        let (all, most) = (self.memory(), self.settings.buffer_bytes);
        let has_room = |ahead: u64| all + ahead + memory <= most || all + ahead == 0;
        if planted::is(Planted::NoShares) {
            return if has_room(0) { Room::Enough } else { Room::Full };
        }
        let own = self.memory_of(shuffle);
        if own > 0 && own + memory > self.share(now, shuffle) {
            return Room::Shared;
        }
        let ahead = self.waits.ahead(now, shuffle);
        if has_room(ahead) { Room::Enough } else { Room::Full }
    }

    /// What is held of the shuffle goes out that has most here over its weight.
    pub(super) fn make_room(&mut self, now: Millis) {
        let over_weight = |shuffle: ShuffleId, open: &Open| {
            self.memory_of(shuffle).saturating_mul(u64::from(limits::SHUFFLE_WEIGHT)) / open.weight.max(1)
        };
        let most = self
            .shuffles
            .iter()
            .filter(|(shuffle, _)| self.is_worth_sending(**shuffle))
            .max_by_key(|(shuffle, open)| over_weight(**shuffle, open))
            .map(|(shuffle, _)| *shuffle);
        most.into_iter().for_each(|shuffle| self.flush(now, shuffle));
    }

    /// Of a shuffle of which more is under way than is held, room comes by itself; sent now, what is held would be many small
    /// batches.
    fn is_worth_sending(&self, shuffle: ShuffleId) -> bool {
        let held = self.shuffles.get(&shuffle).map_or(0, Open::memory);
        held > 0 && held >= self.sending.memory_of(shuffle)
    }
}

#[cfg(test)]
mod tests;
