//! What the nodes announce: their keys in the coordination service, and the mirror of those keys at a node.
//!
//! The mirror may be behind the keys by any time, so an announcement may no longer be true.

use super::super::name::{DatasetName, VersionName};
use super::super::partition::Partitioner;
use super::super::seats::{Address, Claim};
use std::collections::{BTreeMap, BTreeSet};

/// How the keys of a version are divided, and what it is made of. Two layouts are two versions, even of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    /// The hash by which keys come to partitions.
    pub partitioner: Partitioner,
    /// Into how many partitions: as many as the version has files.
    pub partitions: u32,
    /// Digest of what the node's own source lists for it: the names and lengths of its files. Copies of one source have
    /// the same digest; another source has another, unless its files have the same names and lengths (Z5).
    pub digest: u64,
}

/// An operator's order which version clients get; it holds in the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Pin {
    /// Of two orders the higher one holds. 0: none was given.
    pub order: u64,
    /// The version that clients get; none: the latest.
    pub version: Option<VersionName>,
}

impl Pin {
    /// An order numbered further ahead of the clock than this is forged. The number is the time of day in milliseconds,
    /// or one more than all that are known; after the highest number there could be no other order.
    const AHEAD_MS: u64 = 100 * 366 * 86_400_000;

    /// Whether a clock that shows `unix_ms` can have given the number, or one that differs by decades.
    pub fn is_plausible(&self, unix_ms: u64) -> bool {
        self.order <= unix_ms.saturating_add(Pin::AHEAD_MS)
    }
}

/// A key that a node publishes of itself. Its address is part of the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The node is there, at a seat (S9).
    Node,
    /// The node has a partition, ready to be read (S12).
    Partition(DatasetName, VersionName, u32),
    /// The node knows of an order.
    Pin(DatasetName),
}

/// What is published at a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The seat of the node, at [`Key::Node`].
    Claim(Claim),
    /// The layout of the version there, at [`Key::Partition`].
    Layout(Layout),
    /// The order that the node knows, at [`Key::Pin`].
    Pin(Pin),
}

/// One key of the mirror that has changed. Without its value it is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A node is at that seat, or is gone.
    Node(Address, Option<Claim>),
    /// A node has a partition, or has it no longer.
    Partition {
        /// The dataset that the version is of.
        dataset: DatasetName,
        /// The version that the partition is of.
        version: VersionName,
        /// The number of the partition, from 0.
        partition: u32,
        /// The node that has it.
        address: Address,
        /// How the version is divided there; none: the partition is gone there.
        layout: Option<Layout>,
    },
    /// A node knows of that order; none: it publishes none.
    Pin(DatasetName, Address, Option<Pin>),
    /// A node has so many keys of a version, in all the partitions that it has.
    Keys {
        /// The dataset that the version is of.
        dataset: DatasetName,
        /// The version whose keys were counted.
        version: VersionName,
        /// The node that has the keys.
        address: Address,
        /// How many keys; none: the node does not tell.
        keys: Option<u64>,
    },
}

/// Which other nodes have which partitions of one version.
///
/// The last holders of a partition are remembered while no node has it: after an outage of the coordination service all
/// keys may be gone for a moment, though the nodes that published them still run. Only those are remembered that had it
/// in the node's own layout of the version: it asks no others, and a node that announced one layout after the
/// other would fill its memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Holders {
    now: BTreeMap<Layout, BTreeMap<u32, BTreeSet<Address>>>,
    last: BTreeMap<u32, BTreeSet<Address>>,
    /// The layout of `last`.
    own: Option<Layout>,
    /// How many keys each has, in all the partitions that it has.
    keys: BTreeMap<Address, u64>,
}

impl Holders {
    /// Takes in that `address` has a partition, or has it no longer. The node's own layout is `own`.
    pub(super) fn hear(
        &mut self,
        partition: u32,
        address: &Address,
        layout: Option<Layout>,
        own: Option<Layout>,
    ) {
        self.remember_of(own);
        for (layout, partitions) in &mut self.now {
            if let Some(holders) = partitions.get_mut(&partition)
                && holders.remove(address)
                && holders.is_empty()
            {
                partitions.remove(&partition);
                if own == Some(*layout) {
                    self.last.insert(partition, [address.clone()].into());
                }
            }
        }
        self.now.retain(|_, partitions| !partitions.is_empty());
        if let Some(layout) = layout.filter(|layout| partition < layout.partitions) {
            self.now.entry(layout).or_default().entry(partition).or_default().insert(address.clone());
            if own == Some(layout) {
                self.last.remove(&partition);
            }
        }
    }

    fn remember_of(&mut self, own: Option<Layout>) {
        if self.own != own {
            self.last.clear();
            self.own = own;
        }
    }

    /// Takes in how many keys a node has, or that it does not tell.
    pub(super) fn hear_keys(&mut self, address: &Address, keys: Option<u64>) {
        match keys {
            Some(keys) => drop(self.keys.insert(address.clone(), keys)),
            None => drop(self.keys.remove(address)),
        }
    }

    /// For each node that tells: its keys of the version in this layout, and in how many partitions they are.
    pub(super) fn counted(&self, layout: Layout) -> impl Iterator<Item = (u64, usize)> {
        let mut held: BTreeMap<&Address, usize> = BTreeMap::new();
        for address in self.now.get(&layout).into_iter().flatten().flat_map(|(_, holders)| holders) {
            *held.entry(address).or_default() += 1;
        }
        held.into_iter().filter_map(|(address, held)| Some((*self.keys.get(address)?, held)))
    }

    /// Remembers the holders of the node's own layout as the last ones: the mirror begins anew.
    pub(super) fn forget(&mut self, own: Option<Layout>) {
        self.keys.clear();
        self.remember_of(own);
        let now = std::mem::take(&mut self.now);
        let of_own = now.into_iter().filter(|(layout, _)| own == Some(*layout));
        self.last.extend(of_own.flat_map(|(_, partitions)| partitions));
    }

    /// The nodes that may be asked for a partition: its holders, else the last ones.
    pub fn worth_asking(&self, layout: Layout, partition: u32) -> impl Iterator<Item = &Address> {
        let is_held = self.own != Some(layout) || self.count(layout, partition) > 0;
        let last = self.last.get(&partition).into_iter().flatten();
        self.of(layout, partition).chain(last.filter(move |_| !is_held))
    }

    /// The nodes that have a partition of this layout.
    pub fn of(&self, layout: Layout, partition: u32) -> impl Iterator<Item = &Address> {
        self.now.get(&layout).and_then(|partitions| partitions.get(&partition)).into_iter().flatten()
    }

    /// How many nodes have the partition.
    pub fn count(&self, layout: Layout, partition: u32) -> usize {
        let partitions = self.now.get(&layout);
        partitions.and_then(|partitions| partitions.get(&partition)).map_or(0, BTreeSet::len)
    }

    /// The other layouts that nodes have under the name of the version.
    pub(super) fn other_layouts(&self, layout: Layout) -> BTreeSet<Layout> {
        self.now.keys().filter(|other| **other != layout).copied().collect()
    }

    /// The nodes that have another layout under the name of the version.
    pub(super) fn of_other_layouts(&self, layout: Layout) -> BTreeSet<&Address> {
        let others = self.now.iter().filter(|(other, _)| **other != layout);
        others.flat_map(|(_, partitions)| partitions.values().flatten()).collect()
    }

    /// The number of partitions whose last holders are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.last.len()
    }

    /// Whether `address` has any partition.
    pub(super) fn has_any_of(&self, address: &Address) -> bool {
        self.now.values().flat_map(BTreeMap::values).any(|holders| holders.contains(address))
    }

    /// Whether no other node has any partition.
    pub fn is_empty(&self) -> bool {
        self.now.is_empty()
    }

    /// The layout of which nodes have most replicas.
    pub(super) fn layout(&self) -> Option<Layout> {
        let held =
            |partitions: &BTreeMap<u32, BTreeSet<Address>>| partitions.values().map(BTreeSet::len).sum();
        let most = self.now.iter().max_by_key(|(_, partitions)| -> usize { held(partitions) });
        most.map(|(layout, _)| *layout)
    }
}
