//! A token ring with virtual nodes (Karger et al., 1997).
//!
//! Bend the hash space into a circle and let every node put tokens on it, at places that follow from its
//! name alone. A key belongs to the first token at or after its hash, clockwise. A node that leaves takes
//! its tokens away, so exactly its keys go to their next tokens; no other node's move.
//!
//! Few tokens make uneven arcs: at 100 tokens a node the fullest of many nodes is about 25 to 30 % above
//! the mean. [`Ring::bounded`] mends that for a set of keys known together (shards, say): a node that
//! is full is passed over (Mirrokni, Thorup and Zadimoghaddam, 2016).
//!
//! A lookup is one read of a table that says, for the leading bits of a hash, at which token to begin, and
//! usually one token. Tokens are as good as random, so no search tree is needed.
//!
//! Not here: tokens chosen to be even (they depend on the order of joins, so on history).

use super::nodes::{self, NodeScheme, SchemeError, WeightedNode};
use crate::keyspace::hash::mix;
use crate::limits;

/// Step between the numbers that are mixed into the tokens of one node: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug, Clone, Copy)]
struct Token {
    at: u64,
    node: u32,
}

/// Nodes on a ring.
#[derive(Debug, Clone)]
pub struct Ring {
    /// In the order of their places; equal places in the order of names.
    tokens: Vec<Token>,
    /// For each value of a hash's leading bits, the first token at or after the lowest such hash.
    starts: Vec<u32>,
    /// How far to shift a hash right to have those bits.
    shift: u32,
    weights: Vec<u32>,
}

impl Ring {
    /// A ring on which a node of weight w has `tokens_per_weight`·w tokens ([`limits::RING_TOKENS`] for weight 1
    /// is a good number). Token i of a node, from 0, is
    /// `mix(seed + (i + 1)·STEP)`, where `seed` is `h1` of murmur3-x64-128 of its name.
    pub fn build(nodes: &[WeightedNode], tokens_per_weight: u32) -> Result<Ring, SchemeError> {
        nodes::check(nodes)?;
        let weight: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
        let count = weight * u64::from(tokens_per_weight);
        if !(1..=limits::TOKENS_ON_RING).contains(&count) {
            return Err(SchemeError::Tokens { tokens: count });
        }
        let mut tokens = Vec::with_capacity(count as usize);
        for (index, node) in nodes.iter().enumerate() {
            let seed = nodes::seed(&node.name);
            let place = |i: u64| mix(seed.wrapping_add(i.wrapping_mul(STEP)));
            let own = u64::from(node.weight) * u64::from(tokens_per_weight);
            tokens.extend((1..=own).map(|i| Token { at: place(i), node: index as u32 }));
        }
        let name = |token: &Token| &nodes[token.node as usize].name;
        tokens.sort_unstable_by(|a, b| a.at.cmp(&b.at).then_with(|| name(a).cmp(name(b))));
        // At least two leading bits, so that the shift is always less than a word.
        let bits = count.next_power_of_two().ilog2().max(2);
        let shift = 64 - bits;
        let start = |lead: u64| tokens.partition_point(|token| token.at >> shift < lead) as u32;
        let starts = (0..1 << bits).map(start).collect();
        let weights = nodes.iter().map(|node| node.weight).collect();
        Ok(Ring { tokens, starts, shift, weights })
    }

    /// The node of each of `hashes`, with no node above its share of them by more than `slack_percent`
    /// (rounded up to a whole one). In the order given: earlier hashes find their first choice free more
    /// often, so the caller's order is part of the input.
    ///
    /// A node of weight w takes at most ⌈count · w · (100 + slack) / (100 · sum of weights)⌉.
    pub fn bounded(&self, hashes: &[u64], slack_percent: u32) -> Vec<usize> {
        let total: u128 = self.weights.iter().map(|weight| u128::from(*weight)).sum();
        let scale = hashes.len() as u128 * (100 + u128::from(slack_percent));
        let room = |weight: &u32| (scale * u128::from(*weight)).div_ceil(100 * total);
        let mut room: Vec<u128> = self.weights.iter().map(room).collect();
        let mut place = |hash: &u64| {
            // The rooms sum to at least the count of hashes, so a free node is always met.
            let free = |node: &usize| room[*node] > 0;
            let node = self.walk(*hash).find(free).unwrap_or_else(|| self.node(*hash));
            room[node] = room[node].saturating_sub(1);
            node
        };
        hashes.iter().map(&mut place).collect()
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn position(&self, hash: u64) -> usize {
        let mut at = self.starts[(hash >> self.shift) as usize] as usize;
        while at < self.tokens.len() && self.tokens[at].at < hash {
            at += 1;
        }
        if at == self.tokens.len() { 0 } else { at }
    }

    /// The nodes of all tokens from the one of `hash`, once round.
    fn walk(&self, hash: u64) -> impl Iterator<Item = usize> {
        let (before, after) = self.tokens.split_at(self.position(hash));
        after.iter().chain(before).map(|token| token.node as usize)
    }
}

impl NodeScheme for Ring {
    fn node(&self, hash: u64) -> usize {
        self.tokens[self.position(hash)].node as usize
    }

    /// The nodes met clockwise, each once.
    fn first(&self, hash: u64, count: usize) -> Vec<usize> {
        let count = count.min(self.nodes());
        let mut found = Vec::with_capacity(count);
        for node in self.walk(hash) {
            if found.len() == count {
                break;
            }
            if !found.contains(&node) {
                found.push(node);
            }
        }
        found
    }

    fn nodes(&self) -> usize {
        self.weights.len()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Ring>()
            + size_of_val(&*self.tokens)
            + size_of_val(&*self.starts)
            + size_of_val(&*self.weights)
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
    fn the_owner_is_the_first_token_at_or_after() {
        let ring = Ring::build(&nodes(&[1, 2, 1]), 7).unwrap();
        let slow = |hash: u64| {
            let token = ring.tokens.iter().find(|token| token.at >= hash).unwrap_or(&ring.tokens[0]);
            token.node as usize
        };
        let edges = ring.tokens.iter().flat_map(|t| [t.at - 1, t.at, t.at + 1]);
        for hash in edges.chain([0, u64::MAX]).chain((0..1_000).map(mix)) {
            assert_eq!(ring.node(hash), slow(hash), "{hash:x}");
        }
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_keys_and_order_does_not_matter() {
        let all = nodes(&[1, 3, 2, 1]);
        let mut rest = vec![all[3].clone(), all[0].clone(), all[2].clone()];
        let (before, after) = (Ring::build(&all, 50).unwrap(), Ring::build(&rest, 50).unwrap());
        rest.push(all[1].clone());
        for hash in (0..5_000).map(mix) {
            let from = &all[before.node(hash)];
            assert!(*from == all[1] || *from == rest[after.node(hash)]);
        }
    }

    #[test]
    fn weights_are_kept_roughly() {
        let ring = Ring::build(&nodes(&[1, 2, 1]), 400).unwrap();
        let second = (0..20_000).filter(|i| ring.node(mix(*i)) == 1).count();
        assert!((9_000..11_000).contains(&second), "{second} of 20,000, expected half");
    }

    #[test]
    fn bounded_loads_are_bounded_by_weight() {
        let ring = Ring::build(&nodes(&[1, 2, 1]), 5).unwrap();
        let hashes: Vec<u64> = (0..1_000).map(mix).collect();
        for (slack, most) in [(0, [250, 500, 250]), (10, [275, 550, 275])] {
            let mut load = [0; 3];
            ring.bounded(&hashes, slack).into_iter().for_each(|node| load[node] += 1);
            assert!(load.iter().zip(most).all(|(load, most)| *load <= most), "{load:?} above {most:?}");
        }
        let loose = ring.bounded(&hashes, 1_000);
        assert!(hashes.iter().zip(loose).all(|(hash, node)| node == ring.node(*hash)));
        assert_eq!(ring.bounded(&[], 0), [0; 0]);
    }

    #[test]
    fn impossible_token_counts_are_refused() {
        assert_eq!(Ring::build(&nodes(&[1]), 0).err(), Some(SchemeError::Tokens { tokens: 0 }));
        let error = Ring::build(&nodes(&[2]), 8_000_001).err();
        assert_eq!(error, Some(SchemeError::Tokens { tokens: 16_000_002 }));
        let one = Ring::build(&nodes(&[1]), 1).unwrap();
        assert!([0, u64::MAX].iter().all(|hash| one.node(*hash) == 0));
    }

    #[test]
    fn further_nodes_are_different_and_all_are_found() {
        let ring = Ring::build(&nodes(&[9, 1, 1]), 3).unwrap();
        for hash in (0..200).map(mix) {
            let mut first = ring.first(hash, 5);
            assert_eq!(first[0], ring.node(hash));
            first.sort_unstable();
            assert_eq!(first, [0, 1, 2]);
        }
    }
}
