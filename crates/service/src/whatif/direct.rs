//! Keys that go straight to nodes by their hash, hot ones over sub-keys if so asked.

use super::error::WhatIfError;
use super::scheme::Scheme;
use super::simulated_cluster::SimulatedCluster;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::jump::Jump;
use partage_core::keyspace::sharding::modulo::Modulo;
use partage_core::keyspace::sharding::nodes::NodeScheme;
use partage_core::keyspace::sharding::rendezvous::Rendezvous;
use partage_core::keyspace::sharding::ring::Ring;
use partage_core::limits;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A key with more than this part of a node's fair share is salted: below it, no node can be far from even
/// because of one key.
const SALT_ABOVE: f64 = 0.25;

/// A scheme over the nodes that are there.
#[derive(Clone)]
pub(super) struct Direct {
    scheme: Arc<dyn NodeScheme + Send + Sync>,
    /// The place in the roster of each of the scheme's nodes.
    nodes: Vec<u32>,
    hash: HashFunction,
    /// Sub-keys of a salted key; 0 when nothing is salted.
    ways: u32,
    /// The keys that are salted: recorded, as readers must know them.
    salted: BTreeSet<Key>,
}

impl Direct {
    pub(super) fn build(
        scheme: Arc<dyn NodeScheme + Send + Sync>,
        ways: u32,
        cluster: &SimulatedCluster,
    ) -> Result<Direct, WhatIfError> {
        if ways != 0 && !(2..=limits::SALT_WAYS).contains(&ways) {
            return Err(WhatIfError::SaltWays { ways });
        }
        let above = SALT_ABOVE * cluster.fair_weight();
        let hot = cluster.sample.items().iter().filter(|item| ways > 0 && item.weight > above);
        let salted = hot.map(|item| item.key.clone()).collect();
        Ok(Direct { scheme, nodes: cluster.present.clone(), hash: cluster.hash, ways, salted })
    }

    #[inline]
    pub(super) fn owner(&self, key: &[u8]) -> u32 {
        self.nodes[self.scheme.node(self.hash.scatter(key))]
    }

    /// The nodes of the sub-keys of a salted key, one for each; none for a key that is whole.
    pub(super) fn parts(&self, key: &Key) -> Option<Vec<u32>> {
        if !self.salted.contains(key) {
            return None;
        }
        let part = |i: u32| self.owner(&[key.as_bytes(), &[0, i as u8]].concat());
        Some((0..self.ways).map(part).collect())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let salted: usize = self.salted.iter().map(|key| size_of::<Key>() + key.as_bytes().len()).sum();
        self.scheme.memory_bytes() + size_of_val(&*self.nodes) + salted
    }
}

/// The scheme that goes from hashes to nodes, if `scheme` is of that kind, and the sub-keys of a hot key.
pub(super) type Schemes = Option<(Arc<dyn NodeScheme + Send + Sync>, u32)>;

pub(super) fn node_scheme(scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Schemes, WhatIfError> {
    let nodes = cluster.weighted();
    Ok(Some(match scheme {
        Scheme::Modulo => (Arc::new(Modulo::build(&nodes)?), 0),
        Scheme::Ring { tokens } => (Arc::new(Ring::build(&nodes, *tokens)?), 0),
        Scheme::Rendezvous => (Arc::new(Rendezvous::build(&nodes)?), 0),
        Scheme::Jump => (Arc::new(Jump::build(&nodes)?), 0),
        Scheme::Salted { ways } => (Arc::new(Rendezvous::build(&nodes)?), *ways),
        Scheme::Fixed { .. } | Scheme::HashRange { .. } | Scheme::KeyRange { .. } => return Ok(None),
    }))
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct")
            .field("nodes", &self.nodes)
            .field("salted", &self.salted)
            .finish_non_exhaustive()
    }
}
