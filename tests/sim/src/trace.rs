//! The trace: a hash over everything that happened, and on demand the last events in words.
//!
//! The hash is what "same seed, same bytes" means. Words are made only in a run that prints them: the run
//! of a failing seed is repeated with words on.

use crate::clock::True;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Events in words that are kept.
const KEPT: usize = 400;

/// What a run leaves behind.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    words: Option<VecDeque<String>>,
    keep: usize,
}

/// FNV-1a, as a hasher: the same on every machine and for ever.
struct Fnv<'a>(&'a mut u64);

impl Hasher for Fnv<'_> {
    fn finish(&self) -> u64 {
        *self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            *self.0 = (*self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, word: u64) {
        *self.0 = (*self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

impl Trace {
    /// Of a run with or without words.
    pub fn new(words: Option<usize>) -> Trace {
        Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
            words: words.map(|_| VecDeque::new()),
            keep: words.unwrap_or(0).max(KEPT),
        }
    }

    /// Takes in one event: facts that are hashed, and words for people.
    pub fn event(&mut self, now: True, facts: impl Hash, words: impl FnOnce() -> String) {
        self.events += 1;
        let mut hasher = Fnv(&mut self.hash);
        hasher.write_u64(now);
        facts.hash(&mut hasher);
        if let Some(kept) = &mut self.words {
            if kept.len() == self.keep {
                kept.pop_front();
            }
            kept.push_back(format!("{:>12.3} ms  {}", now as f64 / 1_000.0, words()));
        }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events the hash is over.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The last events in words.
    pub fn words(&self) -> impl Iterator<Item = &String> {
        self.words.iter().flatten()
    }
}
