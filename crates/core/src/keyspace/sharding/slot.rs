//! A slot: what remains of a hash after a division. `3 of 12` holds the hashes that are 3 modulo 12; `3 of 4` holds those that
//! are 3, 7 or 11 modulo 12.
//!
//! A slot names its divisor, so that slots of several divisors can stand side by side while the number of
//! shards changes from n to k·n or back (K7): slot i of n is exactly slots i, i + n, … i + (k-1)·n of k·n.

use super::Bounds;
use crate::keyspace::hash;
use crate::limits;
use std::fmt;

/// The hashes that are `number` modulo `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    number: u32,
    of: u32,
}

/// A slot number that is not below the number of slots, or too many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no slot {number} of {of}: slots count from 0 and are at most {max}", max = limits::SHARDS)]
pub struct NoSuchSlot {
    /// The slot number that was given, which should be below `of`.
    pub number: u32,
    /// The number of slots that was given.
    pub of: u32,
}

impl Slot {
    /// Slot `number`, counted from 0, of `of`.
    pub fn new(number: u32, of: u32) -> Result<Slot, NoSuchSlot> {
        let exists = number < of && of as usize <= limits::SHARDS;
        if exists { Ok(Slot { number, of }) } else { Err(NoSuchSlot { number, of }) }
    }

    /// All slots of `of`, as bounds; none of 0.
    pub fn all(of: u32) -> Vec<Bounds> {
        (0..of).map(|number| Bounds::Slot(Slot { number, of })).collect()
    }

    /// The remainder that its hashes leave, from 0.
    pub fn number(self) -> u32 {
        self.number
    }

    /// The divisor: how many such slots there are.
    pub fn of(self) -> u32 {
        self.of
    }

    /// Whether a hash falls in here.
    #[inline]
    pub fn contains(self, value: u128) -> bool {
        hash::modulo(value, self.of) == self.number
    }

    /// The numbers that make it up among the slots of `of`, a multiple of its own.
    pub fn among(self, of: u32) -> impl Iterator<Item = u32> {
        (self.number..of).step_by(self.of.max(1) as usize)
    }

    /// The same hashes as slots of `of`, a multiple of its own.
    pub fn refined(self, of: u32) -> impl Iterator<Item = Slot> {
        self.among(of).map(move |number| Slot { number, of })
    }

    /// The slot of `of`, a divisor of its own, that it is a part of.
    pub fn coarser(self, of: u32) -> Slot {
        Slot { number: self.number % of.max(1), of: of.max(1) }
    }
}

/// The least number that all of `divisors` divide; none above [`limits::SHARDS`]; 1 for none at all.
pub fn common_multiple(divisors: impl IntoIterator<Item = u32>) -> Option<u32> {
    divisors.into_iter().try_fold(1u32, |ring, of| {
        if of > 0 && ring.is_multiple_of(of) {
            return Some(ring);
        }
        let next = u64::from(ring / gcd(ring, of)) * u64::from(of);
        u32::try_from(next).ok().filter(|next| (1..=limits::SHARDS).contains(&(*next as usize)))
    })
}

pub(super) fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.number, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn k7_a_slot_is_exactly_its_refinement(value in any::<u128>(), of in 1u32..300, factor in 1u32..40) {
            let finer = of * factor;
            for number in 0..of {
                let slot = Slot::new(number, of).unwrap();
                let parts: Vec<Slot> = slot.refined(finer).filter(|part| part.contains(value)).collect();
                prop_assert_eq!(parts.len(), usize::from(slot.contains(value)));
                prop_assert_eq!(slot.refined(finer).count(), factor as usize);
                prop_assert!(slot.refined(finer).all(|part| part.coarser(of) == slot));
            }
        }

        #[test]
        fn the_common_multiple_is_the_least(a in 1u32..2_000, b in 1u32..2_000) {
            let least = (1..).map(|n| u64::from(a) * n).find(|n: &u64| n.is_multiple_of(u64::from(b))).unwrap();
            let expected = u32::try_from(least).ok().filter(|n| *n as usize <= limits::SHARDS);
            prop_assert_eq!(common_multiple([a, b, a]), expected);
        }
    }

    #[test]
    fn slots_that_cannot_be_are_refused() {
        assert!(Slot::new(3, 4).is_ok());
        for (number, of) in [(4, 4), (0, 0), (0, limits::SHARDS as u32 + 1)] {
            assert_eq!(Slot::new(number, of), Err(NoSuchSlot { number, of }));
        }
        assert_eq!((common_multiple([]), common_multiple([0])), (Some(1), None));
    }
}
