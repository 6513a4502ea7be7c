//! From a hash straight to one of several nodes: what the schemes have in common.
//!
//! A scheme is built from nodes with names and weights, and then answers, for any 64-bit hash, which node
//! it falls to, and which are the first r different ones. The hash must use all its bits:
//! [`HashFunction::scatter`](crate::keyspace::hash::HashFunction::scatter) of a key, or
//! [`mix`](crate::keyspace::hash::mix) of a number.
//!
//! | scheme | a node more or less moves | one lookup | memory | weights | node order matters |
//! |---|---|---|---|---|---|
//! | [`modulo`](super::modulo) | nearly all keys | O(1) | O(nodes) | exact | yes |
//! | [`ring`](super::ring) | its share | O(1) expected | O(tokens) | ±10 % at 100 tokens | no |
//! | [`rendezvous`](super::rendezvous) | its share | O(nodes) | O(nodes) | exact | no |
//! | [`jump`](super::jump) | its share, at the end of the list only | O(log nodes) | O(nodes) | exact | yes |
//!
//! All arithmetic is on integers, but for two operations in jump that IEEE 754 defines to the bit. So answers are the same
//! everywhere; `vectors/schemes.json` holds them, and `vectors/README.md` describes each scheme well enough to write it again.

use crate::base::name::NodeId;
use crate::keyspace::hash::murmur3;
use crate::limits;
use std::collections::BTreeSet;

/// A node and the share it should get, relative to the others'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedNode {
    /// The node's id: the only thing about it that enters a hash.
    pub name: NodeId,
    /// Its share, 1 to [`limits::NODE_WEIGHT`]. Small units are cheaper: a ring has tokens in proportion.
    pub weight: u32,
}

impl WeightedNode {
    /// A node of weight 1.
    pub fn plain(name: NodeId) -> WeightedNode {
        WeightedNode { name, weight: 1 }
    }
}

/// Why no scheme can be built of these nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemeError {
    /// The list of nodes is empty.
    #[error("no nodes to choose from: give at least one")]
    NoNodes,
    /// The list has more than [`limits::NODES`] nodes.
    #[error("{nodes} nodes are too many: the limit is {max}", max = limits::NODES)]
    TooManyNodes {
        /// How many were given.
        nodes: usize,
    },
    /// Two nodes of the list have one name.
    #[error("node {name} is given twice: each node once, with its weight")]
    Duplicate {
        /// The name that two nodes have.
        name: NodeId,
    },
    /// Weight 0, or above the limit.
    #[error("node {name} has weight {weight}: give 1 to {max}, or leave the node out", max = limits::NODE_WEIGHT)]
    Weight {
        /// The node whose weight is out of its range.
        name: NodeId,
        /// The weight that was given: 0, or above [`limits::NODE_WEIGHT`].
        weight: u32,
    },
    /// Tokens per unit of weight 0, or too many tokens in all.
    #[error(
        "{tokens} tokens on the ring: give 1 to {max} in all, by fewer tokens per unit of weight or smaller weights",
        max = limits::TOKENS_ON_RING
    )]
    Tokens {
        /// How many tokens there would be on the ring.
        tokens: u64,
    },
}

/// A way from hashes to nodes. Nodes are named by their index in the list that the scheme was built from.
pub trait NodeScheme {
    /// The node of this hash.
    fn node(&self, hash: u64) -> usize;

    /// The first `count` different nodes of this hash, best first; all nodes when there are fewer. The
    /// first is [`node`](Self::node).
    fn first(&self, hash: u64, count: usize) -> Vec<usize>;

    /// How many nodes there are.
    fn nodes(&self) -> usize;

    /// Bytes held for lookups, names not counted: they stay with the caller.
    fn memory_bytes(&self) -> usize;
}

/// The checks that every scheme begins with.
pub(super) fn check(nodes: &[WeightedNode]) -> Result<(), SchemeError> {
    if nodes.is_empty() {
        return Err(SchemeError::NoNodes);
    }
    if nodes.len() > limits::NODES {
        return Err(SchemeError::TooManyNodes { nodes: nodes.len() });
    }
    let mut names = BTreeSet::new();
    for node in nodes {
        if !(1..=limits::NODE_WEIGHT).contains(&node.weight) {
            return Err(SchemeError::Weight { name: node.name.clone(), weight: node.weight });
        }
        if !names.insert(&node.name) {
            return Err(SchemeError::Duplicate { name: node.name.clone() });
        }
    }
    Ok(())
}

/// The number that stands for a node in the ring and in rendezvous: `h1` of murmur3-x64-128 of its name.
pub(super) fn seed(name: &NodeId) -> u64 {
    murmur3::x64_128(name.as_str().as_bytes(), 0).0
}

/// Nodes laid end to end, each as long as its weight. Backs the schemes that count (modulo and jump).
#[derive(Debug, Clone)]
pub(super) struct Stretches {
    /// For each node, where its stretch ends.
    ends: Vec<u64>,
}

impl Stretches {
    pub(super) fn build(nodes: &[WeightedNode]) -> Result<Stretches, SchemeError> {
        check(nodes)?;
        let end = |sum: &mut u64, node: &WeightedNode| {
            *sum += u64::from(node.weight);
            Some(*sum)
        };
        Ok(Stretches { ends: nodes.iter().scan(0, end).collect() })
    }

    /// Length of all together: the sum of the weights.
    pub(super) fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The node whose stretch holds `at`, which is below [`total`](Self::total).
    pub(super) fn node(&self, at: u64) -> usize {
        if self.total() == self.ends.len() as u64 {
            return at as usize; // All weights are 1.
        }
        self.ends.partition_point(|end| *end <= at)
    }

    pub(super) fn nodes(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Stretches>() + size_of_val(&*self.ends)
    }

    /// `node`, then the nodes after it in the list, round to the start, to `count` in all.
    pub(super) fn from(&self, node: usize, count: usize) -> Vec<usize> {
        let nodes = self.nodes();
        (0..count.min(nodes)).map(|step| (node + step) % nodes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, weight: u32) -> WeightedNode {
        WeightedNode { name: NodeId::new(name).unwrap(), weight }
    }

    #[test]
    fn bad_lists_are_refused_by_name() {
        assert_eq!(check(&[]), Err(SchemeError::NoNodes));
        let name = NodeId::new("a").unwrap();
        assert_eq!(check(&[node("a", 0)]), Err(SchemeError::Weight { name: name.clone(), weight: 0 }));
        let above = limits::NODE_WEIGHT + 1;
        assert!(matches!(check(&[node("a", above)]), Err(SchemeError::Weight { .. })));
        assert_eq!(check(&[node("a", 1), node("a", 2)]), Err(SchemeError::Duplicate { name }));
        let many: Vec<_> = (0..=limits::NODES).map(|i| node(&format!("n{i}"), 1)).collect();
        assert_eq!(check(&many), Err(SchemeError::TooManyNodes { nodes: limits::NODES + 1 }));
        assert_eq!(check(&many[1..]), Ok(()));
    }

    #[test]
    fn stretches_are_as_long_as_the_weights() {
        let stretches = Stretches::build(&[node("a", 2), node("b", 1), node("c", 3)]).unwrap();
        let found: Vec<usize> = (0..stretches.total()).map(|at| stretches.node(at)).collect();
        assert_eq!(found, [0, 0, 1, 2, 2, 2]);
        assert_eq!(stretches.from(2, 9), [2, 0, 1]);
    }
}
