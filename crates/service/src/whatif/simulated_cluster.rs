//! Nodes, and what happens to them and to the keys.

use super::Scene;
use super::error::WhatIfError;
use super::measure::Load;
use super::sample::Sample;
use partage_core::base::name::{NodeId, Zone};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::nodes::WeightedNode;
use partage_core::limits;

/// A node on which schemes place keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name by which events call it: no other node ever has it.
    pub name: NodeId,
    /// Its share, relative to the others': 1 to [`limits::NODE_WEIGHT`].
    pub capacity: u32,
    /// The zone with which it fails.
    pub zone: Option<Zone>,
}

/// Something that happens to the nodes or to the keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Nodes join, and schemes place keys on them.
    Join {
        /// The nodes that join.
        nodes: Vec<Node>,
    },
    /// A node goes, and what it held must be elsewhere.
    Leave {
        /// The name of the node that leaves.
        node: NodeId,
    },
    /// There are so many times as many keys, of the same kind as now.
    Grow {
        /// At least 1, at most [`limits::WHATIF_FACTOR`]: with 1.5 every second key gets a copy.
        factor: f64,
    },
    /// One key gets more load.
    Hot {
        /// The key; none: the heaviest one.
        key: Option<Key>,
        /// The load that the key gets.
        heat: Heat,
    },
}

/// How hot a key becomes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Heat {
    /// So many times its weight.
    Times(f64),
    /// So much of the load of all keys, from 0 to 1, both excluded.
    Share(f64),
}

/// The keys and the nodes at one moment.
#[derive(Debug, Clone)]
pub struct SimulatedCluster {
    pub(super) sample: Sample,
    /// Every node there ever was; an index of this list means the same node for ever.
    pub(super) roster: Vec<Node>,
    /// Those that are there, in the order in which schemes list them.
    pub(super) present: Vec<u32>,
    pub(super) hash: HashFunction,
    pub(super) seed: u64,
}

impl SimulatedCluster {
    /// The cluster at the start, with these nodes.
    pub fn new(
        sample: Sample,
        nodes: Vec<Node>,
        hash: HashFunction,
        seed: u64,
    ) -> Result<SimulatedCluster, WhatIfError> {
        let mut cluster = SimulatedCluster { sample, roster: Vec::new(), present: Vec::new(), hash, seed };
        cluster.join(nodes)?;
        Ok(cluster)
    }

    fn join(&mut self, nodes: Vec<Node>) -> Result<(), WhatIfError> {
        let found = self.roster.len() + nodes.len();
        if found > limits::NODES {
            return Err(WhatIfError::TooMany { what: "nodes", found, limit: limits::NODES });
        }
        let first = self.roster.len() as u32;
        self.roster.extend(nodes);
        self.present.extend(first..self.roster.len() as u32);
        // A name that occurs twice and a capacity out of bounds are refused here, as schemes would refuse them; a node that left
        // does not come back under its name either.
        let all: Vec<WeightedNode> = self.roster.iter().map(weighted).collect();
        partage_core::keyspace::sharding::modulo::Modulo::build(&all)?;
        Ok(())
    }

    /// Lets it happen, and says what it was.
    pub fn apply(&mut self, event: &Event) -> Result<String, WhatIfError> {
        match event {
            Event::Join { nodes } => {
                let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
                let title = match names.as_slice() {
                    [] => return Err(WhatIfError::NobodyJoins),
                    [one] => format!("{one} joins"),
                    [first, .., last] => format!("{first} to {last} join"),
                };
                self.join(nodes.clone())?;
                Ok(title)
            }
            Event::Leave { node } => self.leave(node),
            Event::Grow { factor } => {
                self.sample.grow(*factor)?;
                Ok(format!("keys ×{factor}"))
            }
            Event::Hot { key, heat } => self.heat(key.as_ref(), *heat),
        }
    }

    fn leave(&mut self, node: &NodeId) -> Result<String, WhatIfError> {
        let is_it = |at: &u32| self.roster[*at as usize].name == *node;
        let Some(at) = self.present.iter().position(is_it) else {
            let known = self.nodes().take(limits::COMPLAINTS).map(|node| node.name.to_string()).collect();
            return Err(WhatIfError::UnknownNode { node: node.clone(), known });
        };
        if self.present.len() == 1 {
            return Err(WhatIfError::LastNode { node: node.clone() });
        }
        self.present.remove(at);
        Ok(format!("{node} leaves"))
    }

    fn heat(&mut self, key: Option<&Key>, heat: Heat) -> Result<String, WhatIfError> {
        let found = key.map_or(Some(self.sample.heaviest()), |key| self.sample.find(key));
        let at =
            found.ok_or_else(|| WhatIfError::UnknownKey { key: key.cloned().unwrap_or(Key::empty()) })?;
        let weight = self.sample.items()[at].weight;
        let (weight, how) = match heat {
            Heat::Times(factor) => {
                if !(0.0..=limits::WHATIF_FACTOR).contains(&factor) {
                    return Err(WhatIfError::Factor { what: "heat", factor, least: 0.0 });
                }
                (weight * factor, format!("×{factor}"))
            }
            Heat::Share(share) => {
                if !(share > 0.0 && share < 1.0) {
                    return Err(WhatIfError::Share { share });
                }
                let others = self.total().weight - weight;
                (others * share / (1.0 - share), format!("gets {} % of the load", share * 100.0))
            }
        };
        self.sample.set_weight(at, weight);
        Ok(format!("{} {how}", self.sample.items()[at].key))
    }

    /// The nodes that are there.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.present.iter().map(|at| &self.roster[*at as usize])
    }

    /// The same, as schemes want them.
    pub(super) fn weighted(&self) -> Vec<WeightedNode> {
        self.nodes().map(weighted).collect()
    }

    /// What an average node is entitled to.
    pub(super) fn fair_weight(&self) -> f64 {
        self.total().weight / self.present.len() as f64
    }

    /// The load of all keys that there are now.
    pub(super) fn total(&self) -> Load {
        self.sample.items().iter().fold(Load::default(), |mut sum, item| {
            sum.add(1, item.weight, item.bytes);
            sum
        })
    }

    pub(super) fn scene(&self, title: String) -> Scene {
        Scene { title, total: self.total(), present: self.present.clone() }
    }
}

fn weighted(node: &Node) -> WeightedNode {
    WeightedNode { name: node.name.clone(), weight: node.capacity }
}
