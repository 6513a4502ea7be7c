//! Jump consistent hashing (Lamping and Veach, 2014).
//!
//! While the list of buckets grows one by one, a key moves to each new bucket with just the chance that keeps all even,
//! decided by a generator seeded with the key. The algorithm computes only the buckets to which the key moves, so it takes
//! ln n steps, and needs no memory.
//!
//! The price: only the last bucket can go. A node that leaves from the middle of the list renumbers all after
//! it; put another in its place instead. And a weight is a stretch of buckets, so it can grow for free only
//! at the end of the list.
//!
//! Floating point: one division of two integers that f64 holds exactly and one multiplication, each rounded
//! correctly as IEEE 754 demands, then a cut to an integer. No library function is called, hence no
//! difference between machines (x87 code on 32-bit Intel without SSE2 is not a target we build for).

use super::nodes::{NodeScheme, SchemeError, Stretches, WeightedNode};
use crate::keyspace::hash::mix;

/// The bucket of `key` among `buckets` (at least 1), as published: the same answers as every other
/// implementation for up to 2^31 buckets.
pub fn bucket(mut key: u64, buckets: u32) -> u32 {
    // Signed, because processors turn f64 into signed numbers with one instruction and into unsigned with
    // several. The highest, 2^31 · 2^31, fits.
    let (mut at, mut next) = (0i64, 0i64);
    while next < i64::from(buckets) {
        at = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let rest = (key >> 33) as i64 + 1;
        next = ((at + 1) as f64 * ((1i64 << 31) as f64 / rest as f64)) as i64;
    }
    at as u32
}

/// Jump over a list of nodes whose order is part of the scheme.
#[derive(Debug, Clone)]
pub struct Jump {
    stretches: Stretches,
}

impl Jump {
    /// A scheme over these nodes, in this order. A node of weight w takes w buckets.
    pub fn build(nodes: &[WeightedNode]) -> Result<Jump, SchemeError> {
        Ok(Jump { stretches: Stretches::build(nodes)? })
    }
}

/// Rehashes to find each further node before taking the next one in the list: two equal nodes of a list need
/// that once in 256 keys, longer lists almost never.
const ATTEMPTS: usize = 8;

/// Step between the numbers that are mixed into further hashes: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl NodeScheme for Jump {
    fn node(&self, hash: u64) -> usize {
        // Node count and weights are limited so that the sum is below 2^31.
        self.stretches.node(bucket(hash, self.stretches.total() as u32).into())
    }

    /// The node of the hash, then those of further hashes `mix(hash + i·STEP)` for i = 1, 2, …, as far as
    /// they are new. When 8 of them in a row give nothing new, the next new node in list order after the
    /// one found last.
    fn first(&self, hash: u64, count: usize) -> Vec<usize> {
        let count = count.min(self.nodes());
        let mut found = Vec::with_capacity(count);
        let mut further = (1..).map(|i: u64| self.node(mix(hash.wrapping_add(i.wrapping_mul(STEP)))));
        let mut next = (count > 0).then(|| self.node(hash));
        while let Some(node) = next {
            found.push(node);
            if found.len() == count {
                break;
            }
            let new = |node: &usize| !found.contains(node);
            let tried = further.by_ref().take(ATTEMPTS).find(new);
            next = tried.or_else(|| self.stretches.from(node, self.nodes()).into_iter().find(new));
        }
        found
    }

    fn nodes(&self) -> usize {
        self.stretches.nodes()
    }

    fn memory_bytes(&self) -> usize {
        self.stretches.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::name::NodeId;

    fn nodes(weights: &[u32]) -> Vec<WeightedNode> {
        let node = |(i, weight): (usize, &u32)| WeightedNode {
            name: NodeId::new(&format!("n{i}")).unwrap(),
            weight: *weight,
        };
        weights.iter().enumerate().map(node).collect()
    }

    #[test]
    fn published_values() {
        // From the tests of several implementations that agree.
        for (key, buckets, expected) in [
            (0, 1, 0),
            (42, 57, 43),
            (0xdead_10cc, 1, 0),
            (0xdead_10cc, 666, 361),
            (256, 1024, 520),
            (0, 10, 0),
        ] {
            assert_eq!(bucket(key, buckets), expected, "{key} in {buckets}");
        }
    }

    #[test]
    fn a_node_added_at_the_end_only_takes() {
        let (before, after) =
            (Jump::build(&nodes(&[3, 1, 2])).unwrap(), Jump::build(&nodes(&[3, 1, 2, 2])).unwrap());
        let mut taken = 0;
        for i in 0..8_000 {
            let (from, to) = (before.node(mix(i)), after.node(mix(i)));
            assert!(from == to || to == 3);
            taken += usize::from(to == 3);
        }
        assert!((1_850..2_150).contains(&taken), "{taken} of 8,000, expected 2/8");
    }

    #[test]
    fn further_nodes_are_different_and_all_are_found() {
        let jump = Jump::build(&nodes(&[1000, 1, 1, 1])).unwrap();
        for i in 0..500 {
            let mut first = jump.first(mix(i), 9);
            assert_eq!(first[0], jump.node(mix(i)));
            assert_eq!(first[..2], jump.first(mix(i), 2));
            first.sort_unstable();
            assert_eq!(first, [0, 1, 2, 3]);
        }
    }
}
