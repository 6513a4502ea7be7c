//! Rendezvous hashing, or highest random weight (Thaler and Ravishankar, 1998), with weights.
//!
//! Every node draws a lot for every key, from a hash of both; the best lot wins. A node that leaves takes its
//! lots away, so its keys go to the second best, spread over everybody. Shares are exact, and no token table
//! is needed; the price is one draw for each node on each lookup.
//!
//! With weights, a lot is `−log2(u) / w` for a uniform `u` in (0, 1], and the smallest wins: that node i
//! wins is then as likely as its weight says, whatever the others'. The logarithm is the trouble: two
//! machines' maths libraries may differ in the last bit, and then two routers would disagree on a key now
//! and then. So it is computed on integers ([`cost`]): whole part by counting leading zeros, fraction from
//! a table of 257 entries with straight lines between. The lines deviate from the curve by at most
//! 0.000003, equally for all nodes, which no share can show. Lots are compared by cross multiplication, so
//! nothing is rounded after that.

use super::nodes::{self, NodeScheme, SchemeError, WeightedNode};
use crate::keyspace::hash::mix;
use std::cmp::Ordering;

/// Bits after the point of a [`cost`]: 64 whole units by the largest weight still fit a word.
const FRACTION_BITS: u32 = 44;

/// `log2(1 + i/256)` in units of 2^−44, cut off.
const LOG2: [u64; 257] = log2_table();

/// Bit by bit: squaring a number doubles its logarithm, so the next bit is whether the square reaches 2.
const fn log2_table() -> [u64; 257] {
    let mut table = [0; 257];
    let mut i = 0;
    while i < 256 {
        // In units of 2^-63, from 1 (included) to 2 (excluded).
        let mut y = (256 + i as u128) << 55;
        let mut log = 0;
        let mut bit = 0;
        while bit < FRACTION_BITS {
            y = (y * y) >> 63;
            log <<= 1;
            if y >> 64 != 0 {
                log |= 1;
                y >>= 1;
            }
            bit += 1;
        }
        table[i] = log;
        i += 1;
    }
    table[256] = 1 << FRACTION_BITS;
    table
}

/// `64 − log2(lot)` in units of 2^−44, from 0 for the highest lots to 64 units for lot 0. Never grows as the
/// lot grows.
fn cost(lot: u64) -> u64 {
    const ALL: u64 = 64 << FRACTION_BITS;
    if lot == 0 {
        return ALL;
    }
    let zeros = lot.leading_zeros();
    let fraction = lot << zeros << 1; // What follows the leading one bit.
    let (line, along) = ((fraction >> 56) as usize, fraction << 8 >> 8);
    let rise = (u128::from(LOG2[line + 1] - LOG2[line]) * u128::from(along)) >> 56;
    ALL - (u64::from(63 - zeros) << FRACTION_BITS) - LOG2[line] - rise as u64
}

#[derive(Debug, Clone, Copy)]
struct SeededNode {
    seed: u64,
    weight: u64,
    /// Where the node is in the caller's list.
    index: u32,
}

/// A node's draw for one key.
#[derive(Debug, Clone, Copy)]
struct Draw {
    lot: u64,
    cost: u64,
    weight: u64,
    node: u32,
}

impl Draw {
    /// Less is better. Equal draws keep the order of names, in which they are compared.
    fn compare(&self, other: &Draw) -> Ordering {
        let (mine, theirs) = (self.cost * other.weight, other.cost * self.weight);
        mine.cmp(&theirs).then(other.lot.cmp(&self.lot))
    }
}

/// Nodes that draw lots.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// In the order of names, which decides between equal lots.
    nodes: Vec<SeededNode>,
    /// Whether all weights are the same, so that the highest lot wins without a logarithm.
    even: bool,
}

impl Rendezvous {
    /// A scheme over these nodes. The lot of a node is `mix(seed ^ mix(hash))`, where `seed` is `h1` of
    /// murmur3-x64-128 of its name.
    pub fn build(nodes: &[WeightedNode]) -> Result<Rendezvous, SchemeError> {
        nodes::check(nodes)?;
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_unstable_by_key(|index| &nodes[*index].name);
        let node = |index: usize| SeededNode {
            seed: nodes::seed(&nodes[index].name),
            weight: nodes[index].weight.into(),
            index: index as u32,
        };
        let even = nodes.iter().all(|node| node.weight == nodes[0].weight);
        Ok(Rendezvous { nodes: order.into_iter().map(node).collect(), even })
    }

    fn draws(&self, hash: u64) -> impl Iterator<Item = Draw> {
        let key = mix(hash);
        self.nodes.iter().map(move |node| {
            let lot = mix(node.seed ^ key);
            Draw { lot, cost: cost(lot), weight: node.weight, node: node.index }
        })
    }

    /// The highest lot; the first in the order of names if there are two.
    fn highest(&self, hash: u64) -> usize {
        let key = mix(hash);
        let (mut best, mut winner) = (mix(self.nodes[0].seed ^ key), self.nodes[0].index);
        for node in &self.nodes[1..] {
            let lot = mix(node.seed ^ key);
            if lot > best {
                (best, winner) = (lot, node.index);
            }
        }
        winner as usize
    }
}

impl NodeScheme for Rendezvous {
    fn node(&self, hash: u64) -> usize {
        if self.even {
            return self.highest(hash);
        }
        // `min_by` keeps the first of equals.
        self.draws(hash).min_by(Draw::compare).map_or(0, |draw| draw.node as usize)
    }

    /// The nodes with the `count` best lots; selects them before it sorts, as `count` is small.
    fn first(&self, hash: u64, count: usize) -> Vec<usize> {
        let count = count.min(self.nodes());
        let mut draws: Vec<(usize, Draw)> = self.draws(hash).enumerate().collect();
        let order = |a: &(usize, Draw), b: &(usize, Draw)| a.1.compare(&b.1).then(a.0.cmp(&b.0));
        if (1..draws.len()).contains(&count) {
            draws.select_nth_unstable_by(count - 1, order);
        }
        draws.truncate(count);
        draws.sort_unstable_by(order);
        draws.into_iter().map(|(_, draw)| draw.node as usize).collect()
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Rendezvous>() + size_of_val(&*self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::name::NodeId;
    use crate::limits;

    fn nodes(weights: &[u32]) -> Vec<WeightedNode> {
        let node = |(i, weight): (usize, &u32)| WeightedNode {
            name: NodeId::new(&format!("n{i}")).unwrap(),
            weight: *weight,
        };
        weights.iter().enumerate().map(node).collect()
    }

    #[test]
    fn cost_is_the_logarithm_and_never_grows() {
        let exact = |lot: u64| 64.0 - (lot as f64).log2();
        let mut before = u64::MAX;
        for shift in (0..64).rev() {
            for step in [0u64, 1, 77, 1 << 20, u64::MAX >> 9, u64::MAX >> 1] {
                let lot = (1u64 << 63 | step) >> shift;
                let ours = cost(lot) as f64 / (1u64 << FRACTION_BITS) as f64;
                assert!((ours - exact(lot)).abs() < 3e-6, "{lot:x}: {ours} for {}", exact(lot));
                assert!(cost(lot) <= before, "{lot:x}");
                before = cost(lot);
            }
        }
        assert_eq!((cost(0), cost(1), cost(1 << 63)), (64 << 44, 64 << 44, 1 << 44));
        assert!(cost(u64::MAX) <= 1, "the highest lot costs next to nothing");
        assert!(cost(0).checked_mul(limits::NODE_WEIGHT.into()).is_some());
    }

    #[test]
    fn shares_are_as_the_weights() {
        let scheme = Rendezvous::build(&nodes(&[1, 2, 3, 10])).unwrap();
        let mut load = [0u32; 4];
        (0..32_000).for_each(|i| load[scheme.node(mix(i))] += 1);
        for (load, expected) in load.into_iter().zip([2_000u32, 4_000, 6_000, 20_000]) {
            assert!(load.abs_diff(expected) < 250, "{load}, expected {expected}");
        }
    }

    #[test]
    fn a_heavier_node_only_takes_and_order_does_not_matter() {
        let light = nodes(&[3, 3, 3]);
        let mut heavy = nodes(&[3, 3, 4]);
        heavy.reverse();
        let (before, after) = (Rendezvous::build(&light).unwrap(), Rendezvous::build(&heavy).unwrap());
        for hash in (0..5_000).map(mix) {
            let (from, to) = (&light[before.node(hash)].name, &heavy[after.node(hash)].name);
            assert!(from == to || to.as_str() == "n2");
        }
    }

    #[test]
    fn the_first_nodes_are_those_that_win_when_better_ones_leave() {
        let mut left = nodes(&[1, 5, 2, 2, 1]);
        let hash = mix(12);
        let order = Rendezvous::build(&left).unwrap().first(hash, 9);
        let names: Vec<_> = order.iter().map(|node| left[*node].name.clone()).collect();
        for name in names {
            let winner = Rendezvous::build(&left).unwrap().node(hash);
            assert_eq!(left.remove(winner).name, name);
        }
    }

    #[test]
    fn the_way_without_logarithm_agrees_with_the_one_with() {
        let (one, seven) = (Rendezvous::build(&nodes(&[1; 9])), Rendezvous::build(&nodes(&[7; 9])));
        let (one, seven) = (one.unwrap(), seven.unwrap());
        for hash in (0..2_000).map(mix) {
            assert_eq!(one.node(hash), seven.first(hash, 1)[0]);
            assert_eq!(one.node(hash), seven.node(hash));
        }
    }
}
