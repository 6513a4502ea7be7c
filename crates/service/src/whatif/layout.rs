//! A scheme at one moment: which node owns which key.

use super::direct::{self, Direct};
use super::error::WhatIfError;
use super::scheme::Scheme;
use super::shards::Shards;
use super::simulated_cluster::SimulatedCluster;
use std::collections::BTreeMap;

/// Says which node owns a key, by the code that says so in production.
#[derive(Debug, Clone)]
pub struct Layout {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Direct(Direct),
    Shards(Shards),
}

/// The owners of all keys of a sample, as indexes of the roster.
#[derive(Debug, Clone)]
pub(super) struct Owners {
    /// The owner of each key, or of its first sub-key.
    pub(super) first: Vec<u32>,
    /// The owners of the sub-keys of each salted key.
    pub(super) parts: BTreeMap<u32, Vec<u32>>,
}

impl Layout {
    /// The layout at the start, before any event.
    pub fn build(scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Layout, WhatIfError> {
        let kind = match direct::node_scheme(scheme, cluster)? {
            Some((scheme, ways)) => Kind::Direct(Direct::build(scheme, ways, cluster)?),
            None => Kind::Shards(Shards::build(scheme, cluster)?),
        };
        Ok(Layout { kind })
    }

    /// The layout after the cluster has changed. Schemes that compute are computed again; shards are split and placed again,
    /// beginning with what each node holds.
    pub fn follow(&self, scheme: &Scheme, cluster: &SimulatedCluster) -> Result<Layout, WhatIfError> {
        match &self.kind {
            Kind::Direct(_) => Layout::build(scheme, cluster),
            Kind::Shards(shards) => Ok(Layout { kind: Kind::Shards(shards.follow(scheme, cluster)?) }),
        }
    }

    /// The node of `key`, as an index of the roster; for a salted key, the node that it would have unsalted.
    /// This is the lookup that the table serves on every request: time it.
    #[inline]
    pub fn owner(&self, key: &[u8]) -> u32 {
        match &self.kind {
            Kind::Direct(direct) => direct.owner(key),
            Kind::Shards(shards) => shards.owner(key),
        }
    }

    /// How many shards there are; none for schemes that have no shards.
    pub fn shards(&self) -> Option<usize> {
        match &self.kind {
            Kind::Direct(_) => None,
            Kind::Shards(shards) => Some(shards.len()),
        }
    }

    /// Bytes held by the lookup structure.
    pub fn memory_bytes(&self) -> usize {
        match &self.kind {
            Kind::Direct(direct) => direct.memory_bytes(),
            Kind::Shards(shards) => shards.memory_bytes(),
        }
    }

    pub(super) fn owners(&self, cluster: &SimulatedCluster) -> Owners {
        let items = cluster.sample.items();
        let mut owners = Owners {
            first: items.iter().map(|item| self.owner(item.key.as_bytes())).collect(),
            parts: BTreeMap::new(),
        };
        if let Kind::Direct(direct) = &self.kind {
            for (at, item) in items.iter().enumerate() {
                if let Some(parts) = direct.parts(&item.key) {
                    owners.first[at] = parts[0];
                    owners.parts.insert(at as u32, parts);
                }
            }
        }
        owners
    }
}
