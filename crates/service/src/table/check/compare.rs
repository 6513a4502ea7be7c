//! Where digests differ.

use super::{Digest, Part, RangeDigest, Sum};
use partage_core::base::name::NodeId;
use partage_core::keyspace::key::Key;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The node whose replica has it.
    pub node: NodeId,
    /// The part that differs.
    pub part: Part,
    /// The key with which the range begins in which it is.
    pub first: Key,
    /// Against what it differs, and both sums.
    pub kind: Kind,
}

/// How a replica differs from what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It differs from what most of the other replicas have.
    FromReplicas {
        /// What the replica has.
        found: Sum,
        /// What most have; none: there is no majority.
        most: Option<Sum>,
    },
    /// It differs from what the rows of the same replica ask for.
    FromRows {
        /// What the replica has.
        found: Sum,
        /// What it should have.
        expected: Sum,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: u64| if count == 1 { "1 record".to_owned() } else { format!("{count} records") };
        match self {
            Kind::FromReplicas { found, most: Some(most) } if found.count == most.count => {
                write!(f, "{}, of which at least one is another one than on most replicas", of(found.count))
            }
            Kind::FromReplicas { found, most: Some(most) } => {
                write!(f, "{}, and most replicas have {}", of(found.count), most.count)
            }
            Kind::FromReplicas { found, most: None } => {
                write!(f, "{}, and each replica has something else", of(found.count))
            }
            Kind::FromRows { found, expected } if found.count == expected.count => {
                write!(f, "{}, of which at least one does not fit the rows", of(found.count))
            }
            Kind::FromRows { found, expected } => {
                write!(f, "{}, and its rows ask for {}", of(found.count), expected.count)
            }
        }
    }
}

/// What differs between replicas of a shard, and within each, by key, part and node.
pub fn compare(replicas: &BTreeMap<NodeId, Digest>) -> Vec<Difference> {
    let mut found = Vec::new();
    let firsts: BTreeSet<&Key> = replicas.values().flat_map(|digest| digest.ranges.keys()).collect();
    let none = RangeDigest::default();
    for first in firsts {
        let ranges: BTreeMap<&NodeId, &RangeDigest> =
            replicas.iter().map(|(node, digest)| (node, digest.ranges.get(first).unwrap_or(&none))).collect();
        between(first, &ranges, &mut found);
        for (node, range) in ranges {
            within(node, first, range, &mut found);
        }
    }
    found
}

/// Differences between the replicas in one range.
fn between(first: &Key, ranges: &BTreeMap<&NodeId, &RangeDigest>, found: &mut Vec<Difference>) {
    let parts: BTreeSet<&Part> = ranges.values().flat_map(|range| range.stored.keys()).collect();
    for part in parts {
        let sums: Vec<(&NodeId, Sum)> = ranges
            .iter()
            .map(|(node, range)| (*node, range.stored.get(part).copied().unwrap_or_default()))
            .collect();
        let have = |sum: &Sum| sums.iter().filter(|(_, other)| other == sum).count();
        let most = sums.iter().map(|(_, sum)| *sum).find(|sum| 2 * have(sum) > sums.len());
        for (node, sum) in &sums {
            if most != Some(*sum) {
                let kind = Kind::FromReplicas { found: *sum, most };
                let (node, part, first) = ((*node).clone(), part.clone(), first.clone());
                found.push(Difference { node, part, first, kind });
            }
        }
    }
}

/// Differences between the rows of a replica and what follows from them.
fn within(node: &NodeId, first: &Key, range: &RangeDigest, found: &mut Vec<Difference>) {
    for (part, expected) in &range.expected {
        let stored = range.stored.get(part).copied().unwrap_or_default();
        if stored != *expected {
            let kind = Kind::FromRows { found: stored, expected: *expected };
            let (node, part, first) = (node.clone(), part.clone(), first.clone());
            found.push(Difference { node, part, first, kind });
        }
    }
}
