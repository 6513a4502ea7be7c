//! The order in which frames of one shuffle get room.

use super::KEPT_MS;
use crate::shuffle::ShuffleId;
use crate::shuffle::buffer::Attempt;
use partage_core::base::time::Millis;
use std::collections::BTreeMap;

/// A frame of an attempt for which there was no room.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    attempt: Attempt,
    memory: u64,
    /// When it was handed in last.
    at: Millis,
}

/// The frames of each shuffle that wait, one of an attempt, in the order in which they began to. Room is kept for the first one:
/// a large frame beside many small ones of its shuffle would find none otherwise.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines {
    turns: u64,
    waiting: BTreeMap<(ShuffleId, u64), Waiting>,
    turn_of: BTreeMap<Attempt, u64>,
}

impl Lines {
    /// What is kept for the frame of this shuffle that waits longest; nothing if that is of this attempt.
    pub(super) fn ahead(&mut self, now: Millis, attempt: Attempt) -> u64 {
        let of_shuffle = (attempt.shuffle, 0)..=(attempt.shuffle, u64::MAX);
        while let Some(first) = self.waiting.range(of_shuffle.clone()).next().map(|(_, first)| *first) {
            if now.since(first.at) < KEPT_MS {
                return if first.attempt == attempt { 0 } else { first.memory };
            }
            self.remove(first.attempt);
        }
        0
    }

    pub(super) fn add(&mut self, now: Millis, attempt: Attempt, memory: u64) {
        self.turns += 1;
        let turn = *self.turn_of.entry(attempt).or_insert(self.turns);
        self.waiting.insert((attempt.shuffle, turn), Waiting { attempt, memory, at: now });
    }

    pub(super) fn remove(&mut self, attempt: Attempt) {
        if let Some(turn) = self.turn_of.remove(&attempt) {
            self.waiting.remove(&(attempt.shuffle, turn));
        }
    }

    pub(super) fn remove_all(&mut self, shuffle: ShuffleId) {
        self.waiting.retain(|(of, _), _| *of != shuffle);
        self.turn_of.retain(|attempt, _| attempt.shuffle != shuffle);
    }
}
