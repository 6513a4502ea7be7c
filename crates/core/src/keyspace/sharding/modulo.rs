//! Hash modulo the number of nodes, present to be compared with.
//!
//! The simplest scheme, and fine while the list of nodes never changes. When it does, a key stays where it
//! was only if two remainders happen to agree: going from n nodes to n + 1 moves n/(n + 1) of all keys.
//! The simulator shows it; static routing to a fixed list may use it.
//!
//! The hash is [`scatter`](crate::keyspace::hash::HashFunction::scatter)ed like every scheme's. To repeat what some
//! client computes as `hash(key) % n`, call [`slot`](crate::keyspace::hash::HashFunction::slot).

use super::nodes::{NodeScheme, SchemeError, Stretches, WeightedNode};

/// Hash modulo the sum of the weights; each node takes as many remainders as it weighs, in list order.
#[derive(Debug, Clone)]
pub struct Modulo {
    stretches: Stretches,
}

impl Modulo {
    /// A scheme over these nodes, in this order.
    pub fn build(nodes: &[WeightedNode]) -> Result<Modulo, SchemeError> {
        Ok(Modulo { stretches: Stretches::build(nodes)? })
    }
}

impl NodeScheme for Modulo {
    fn node(&self, hash: u64) -> usize {
        self.stretches.node(hash % self.stretches.total())
    }

    /// The node, then its successors in the list.
    fn first(&self, hash: u64, count: usize) -> Vec<usize> {
        self.stretches.from(self.node(hash), count)
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
    use crate::keyspace::hash::mix;

    #[test]
    fn one_node_more_moves_nearly_everything() {
        let nodes: Vec<_> =
            (0..11).map(|i| WeightedNode::plain(NodeId::new(&format!("n{i}")).unwrap())).collect();
        let (before, after) = (Modulo::build(&nodes[..10]).unwrap(), Modulo::build(&nodes).unwrap());
        let moved = (0..11_000).filter(|i| before.node(mix(*i)) != after.node(mix(*i))).count();
        assert!((9_800..10_200).contains(&moved), "{moved} of 11,000, expected 10/11");
    }
}
