//! What waits for one taker and is taken in turns, so that a shuffle of which much waits keeps no other one waiting.
//!
//! ```text
//!  shuffle A  ▮▮▮▮▮▮▮▮ ─┐
//!  shuffle B  ▮ ────────┼─► one of A, one of B, one of C, one of A …
//!  shuffle C  ▮▮ ───────┘
//! ```
//!
//! Turns count what waits, and neither bytes nor weights: nodes that store a batch do not know the weight of its shuffle.

use std::collections::{BTreeMap, VecDeque};

/// What waits, by the one that it is of.
#[derive(Debug)]
pub(crate) struct Turns<K, T> {
    waiting: BTreeMap<K, VecDeque<T>>,
    /// Those of which something waits, in the order of their turns.
    order: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for Turns<K, T> {
    fn default() -> Turns<K, T> {
        Turns { waiting: BTreeMap::new(), order: VecDeque::new(), len: 0 }
    }
}

impl<K: Ord + Clone, T> Turns<K, T> {
    /// Adds one, behind the others of the same.
    pub(crate) fn push(&mut self, of: K, one: T) {
        let queue = self.waiting.entry(of.clone()).or_default();
        if queue.is_empty() {
            self.order.push_back(of);
        }
        queue.push_back(one);
        self.len += 1;
    }

    /// Takes the next one.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let of = self.order.pop_front()?;
        let queue = self.waiting.get_mut(&of)?;
        let one = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&of);
        } else {
            self.order.push_back(of);
        }
        self.len -= usize::from(one.is_some());
        one
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many wait of this one.
    pub(crate) fn len_of(&self, of: &K) -> usize {
        self.waiting.get(of).map_or(0, VecDeque::len)
    }
}

/// Whether so much more may wait where there is room for `most`: an eighth of it is for shuffles of which little waits, an equal
/// part for each. `own` waits of the same shuffle, and something of so many shuffles, with that one.
pub(crate) fn may_wait((waits, most): (u64, u64), (own, shuffles): (u64, u64), more: u64) -> bool {
    let kept = most / 8;
    let is_little = own + more <= kept / shuffles.max(1);
    waits + more <= if is_little { most } else { most - kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_is_taken_in_turn_in_the_order_in_which_it_came() {
        let mut turns = Turns::default();
        for (of, one) in [('a', 1), ('a', 2), ('a', 3), ('b', 4), ('c', 5), ('b', 6)] {
            turns.push(of, one);
        }
        assert_eq!((turns.len(), turns.len_of(&'a'), turns.len_of(&'d')), (6, 3, 0));
        assert_eq!([turns.pop(), turns.pop()], [Some(1), Some(4)]);
        turns.push('d', 7);
        let rest: Vec<i32> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!((rest, turns.len()), (vec![5, 2, 6, 7, 3], 0));
    }

    #[test]
    fn r1_the_last_eighth_is_for_those_that_have_little() {
        assert!(may_wait((70, 100), (70, 1), 18) && !may_wait((70, 100), (70, 1), 19));
        assert!(may_wait((88, 100), (0, 2), 6) && !may_wait((88, 100), (0, 2), 7));
        assert!(may_wait((90, 100), (1, 2), 5) && !may_wait((95, 100), (0, 2), 6), "there is one bound");
    }
}
