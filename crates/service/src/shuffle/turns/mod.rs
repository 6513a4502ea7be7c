//! What waits for one taker and is taken in turns, so that a shuffle of which much waits keeps no other one waiting.
//!
//! ```text
//!  shuffle A  ▮▮▮▮ ▮▮▮▮ ▮▮▮▮ ─┐
//!  shuffle B  ▮▮ ─────────────┼─► the one that was given least goes first: B, B, C, A, C …
//!  shuffle C  ▮ ▮ ────────────┘
//! ```
//!
//! The order is that of start-time fair queueing (Goyal, Vin, Cheng, 1996). Each line has a begin: what it was given so far, in
//! bytes over its weight. The line with the least begin goes next, and its begin grows by what it was given. A line that comes
//! back goes on where the others are, or at its own begin if that is later. So a shuffle of which little waits goes before a
//! shuffle that floods, after one piece of the flood at most, however many pieces the little is in.
//!
//! What was not done: turns that count pieces. A small shuffle has a small batch for each range, and each of them waited for a
//! large batch of the flood.

use partage_core::limits;
use std::collections::{BTreeMap, BTreeSet};

/// What so many bytes of a shuffle of this weight count in [`Turns`].
pub fn cost(bytes: u64, weight: u64) -> u64 {
    bytes.saturating_mul(u64::from(limits::SHUFFLE_WEIGHT)) / weight.max(1)
}

/// What waits of one of them.
#[derive(Debug, Clone)]
struct Line<T> {
    /// By its place, with its cost.
    waiting: BTreeMap<u64, (T, u64)>,
    /// Where the line goes on.
    begin: u64,
}

impl<T> Default for Line<T> {
    fn default() -> Line<T> {
        Line { waiting: BTreeMap::new(), begin: 0 }
    }
}

impl<T> Line<T> {
    fn first(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(place, _)| *place)
    }
}

/// What waits, by the one that it is of.
#[derive(Debug, Clone)]
pub struct Turns<K, T> {
    lines: BTreeMap<K, Line<T>>,
    /// The lines in which something waits, by their begins, and then by the places of what is first in them.
    order: BTreeSet<(u64, u64, K)>,
    /// The others, by their begins: each was given more than those that wait.
    ahead: BTreeSet<(u64, K)>,
    /// The begin of the line that something was taken from last.
    now: u64,
    /// The last place that was given.
    last: u64,
    len: usize,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Turns<K, T> {
        Turns {
            lines: BTreeMap::new(),
            order: BTreeSet::new(),
            ahead: BTreeSet::new(),
            now: 0,
            last: 0,
            len: 0,
        }
    }
}

impl<K: Ord + Clone, T> Turns<K, T> {
    /// Adds one behind the others of the same, and says its place.
    pub fn push(&mut self, of: K, one: T, cost: u64) -> u64 {
        self.last += 1;
        let place = self.last;
        self.put_back(of, one, (place, cost));
        place
    }

    /// Adds one at the place that it had: before those of the same that came later.
    pub fn put_back(&mut self, of: K, one: T, (place, cost): (u64, u64)) {
        self.change(of, |line| {
            line.waiting.insert(place, (one, cost));
        });
    }

    /// Takes the next one.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_if(|_, _| true).map(|(_, one)| one)
    }

    /// Takes the next one of those that may go, by whom each is of and what it is. Only the first of each line is looked at, in
    /// the order of their turns. The answer has its place and its cost, too.
    pub fn pop_if(&mut self, may_go: impl Fn(&K, &T) -> bool) -> Option<((u64, u64), T)> {
        let (begin, of) = self.order.iter().find_map(|(begin, place, of)| {
            let (first, _) = self.lines.get(of)?.waiting.get(place)?;
            may_go(of, first).then(|| (*begin, of.clone()))
        })?;
        self.now = self.now.max(begin);
        self.change(of, |line| {
            let (place, (one, cost)) = line.waiting.pop_first()?;
            line.begin = line.begin.saturating_add(cost.max(1));
            Some(((place, cost), one))
        })
    }

    /// Whose turn it is, of those that may go. Nothing is taken.
    pub fn first_if(&self, may_go: impl Fn(&K) -> bool) -> Option<&K> {
        self.order.iter().map(|(_, _, of)| of).find(|of| may_go(of))
    }

    /// One of them was given so much in its turn, and what waits of it goes on waiting: its next turn comes the later. So one
    /// that is given pieces whose sizes are not known before waits as one piece that costs nothing.
    pub fn charge(&mut self, of: &K, cost: u64) {
        let Some(begin) = self.lines.get(of).map(|line| line.begin) else { return };
        self.now = self.now.max(begin);
        self.change(of.clone(), |line| line.begin = line.begin.saturating_add(cost.max(1)));
    }

    /// Removes the one at that place.
    pub fn remove(&mut self, of: &K, place: u64) -> Option<T> {
        if !self.lines.contains_key(of) {
            return None;
        }
        self.change(of.clone(), |line| line.waiting.remove(&place)).map(|(one, _)| one)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many wait of this one.
    pub fn len_of(&self, of: &K) -> usize {
        self.lines.get(of).map_or(0, |line| line.waiting.len())
    }

    fn change<R>(&mut self, of: K, change: impl FnOnce(&mut Line<T>) -> R) -> R {
        let line = self.lines.entry(of.clone()).or_default();
        match line.first() {
            Some(place) => {
                self.order.remove(&(line.begin, place, of.clone()));
            }
            None => {
                self.ahead.remove(&(line.begin, of.clone()));
                line.begin = line.begin.max(self.now);
            }
        }
        self.len -= line.waiting.len();
        let result = change(line);
        self.len += line.waiting.len();
        match line.first() {
            Some(place) => {
                self.order.insert((line.begin, place, of));
            }
            None => {
                self.ahead.insert((line.begin, of));
            }
        }
        self.forget();
        result
    }

    /// Forgets lines in which nothing waits, when they have no more than those in which something does.
    fn forget(&mut self) {
        if self.len == 0 {
            self.lines.clear();
            self.ahead.clear();
            self.now = 0;
        }
        while let Some((begin, of)) = self.ahead.pop_first() {
            if begin > self.now {
                self.ahead.insert((begin, of));
                break;
            }
            self.lines.remove(&of);
        }
    }
}

/// Whether so much more may wait where there is room for `most`: an eighth of it is for shuffles of which little waits, an equal
/// part for each. `own` waits of the same shuffle, and something of so many shuffles, with that one.
pub fn may_wait((waits, most): (u64, u64), (own, shuffles): (u64, u64), more: u64) -> bool {
    let kept = most / 8;
    let is_little = is_little((own, shuffles), kept, more);
    waits.saturating_add(more) <= if is_little { most } else { most - kept }
}

/// Whether a shuffle has, with so much more, no more than its part of what is kept for shuffles that have little.
pub fn is_little((own, shuffles): (u64, u64), kept: u64, more: u64) -> bool {
    own.saturating_add(more) <= kept / shuffles.max(1)
}

#[cfg(test)]
mod tests;
