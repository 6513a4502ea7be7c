//! What this node has, and who has the rest: all that a request reads.
//!
//! The card index at the desk. The keeper changes cards while the readers look: a reader never waits for the keeper,
//! and who has taken a card goes on with what it said, even if it is replaced meanwhile.
//!
//! ```text
//! Catalogue ─► Dataset ─┬─► the version that clients get
//!                       └─► every version that peers may ask for, by name
//!                               └─► for each partition: the reader here, the peers that have it
//! ```
//!
//! The driver of the node writes it, in this order for a new version: [`Dataset::prepare`], [`Version::hold`] and
//! [`Version::found_at`] as partitions come, [`Dataset::upgrade`], and for the old one [`Dataset::retire`] when its
//! timer ([`Version::last_request`]) has run out and [`Version::in_flight`] is 0. Nothing is decided here.
//!
//! Reads take no lock and no shared counter: `arc-swap` for the pointers, and counters in stripes, one for each few
//! threads, because a line of memory that two cores write costs more than a lookup.

mod dataset;
mod doings;
mod meter;
mod stripes;
mod trouble;
mod version;

pub use dataset::{Dataset, NotTaken, Options, Reading, UnknownVersion};
pub use doings::{Doings, Labels, Load};
pub use meter::{Hop, Meter, Outcome, Series};
pub use trouble::{Link, Trouble, Troubles};
pub use version::{Place, Progress, State, Version};

use crate::clock::Clock;
use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use partage_core::dataset::name::DatasetName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A node of the cluster, as pages name it and peers reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NodeCard {
    /// What its share is computed from; empty if it takes none.
    pub shard_id: String,
    /// `host:port` of its door for requests.
    pub address: Arc<str>,
}

/// This node and the others.
#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    /// This node.
    pub me: NodeCard,
    /// The others, as last seen.
    pub others: Vec<NodeCard>,
}

/// How far a reading of all of the local store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreCheck {
    /// Read so far.
    pub bytes: u64,
    /// To be read.
    pub bytes_in_all: u64,
}

type Shelf = BTreeMap<DatasetName, Arc<Dataset>>;

/// Every dataset by its name. Shared as an `Arc`: one writer, any number of readers.
#[derive(Debug)]
pub struct Catalogue {
    shelf: ArcSwap<Shelf>,
    neighbours: ArcSwap<Neighbours>,
    awaited: ArcSwapOption<String>,
    troubles: ArcSwap<Troubles>,
    store_check: ArcSwapOption<StoreCheck>,
    doings: Doings,
    clock: Clock,
}

impl Default for Catalogue {
    fn default() -> Catalogue {
        Catalogue::new(NodeCard::default())
    }
}

impl Catalogue {
    /// An empty one, of this node.
    pub fn new(me: NodeCard) -> Catalogue {
        Catalogue {
            shelf: ArcSwap::from_pointee(BTreeMap::new()),
            neighbours: ArcSwap::from_pointee(Neighbours { me, others: Vec::new() }),
            awaited: ArcSwapOption::empty(),
            troubles: ArcSwap::default(),
            store_check: ArcSwapOption::empty(),
            doings: Doings::default(),
            clock: Clock::start(),
        }
    }

    /// The clock by which [`Version::last_request`] is told.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes a dataset up. One of the same name stays, and is returned.
    pub fn add(&self, dataset: Dataset) -> Arc<Dataset> {
        let dataset = Arc::new(dataset);
        self.shelf.rcu(|shelf| {
            let mut shelf = Shelf::clone(shelf);
            shelf.entry(dataset.name().clone()).or_insert_with(|| dataset.clone());
            shelf
        });
        self.dataset(dataset.name().as_str()).unwrap_or(dataset)
    }

    /// Lets a dataset go: no request finds it from now on. Those that found it end with it.
    pub fn remove(&self, name: &str) -> Option<Arc<Dataset>> {
        let before = self.shelf.rcu(|shelf| {
            let mut shelf = Shelf::clone(shelf);
            shelf.remove(name);
            shelf
        });
        before.get(name).cloned()
    }

    /// A dataset, for who keeps it.
    pub fn dataset(&self, name: &str) -> Option<Arc<Dataset>> {
        self.shelf.load().get(name).cloned()
    }

    /// All, in the order of their names.
    pub fn datasets(&self) -> Vec<Arc<Dataset>> {
        self.shelf.load().values().cloned().collect()
    }

    /// All of one moment, without counting anybody: for the way of a request.
    pub(crate) fn shelf(&self) -> Guard<Arc<Shelf>> {
        self.shelf.load()
    }

    /// Who this node is, and who the others are.
    pub fn neighbours(&self) -> Arc<Neighbours> {
        self.neighbours.load_full()
    }

    /// What a node that was just started waits for, until it can tell that something is not there.
    pub fn awaited(&self) -> Option<Arc<String>> {
        self.awaited.load_full()
    }

    /// Says what is waited for, or that nothing is.
    pub fn set_awaited(&self, what: Option<String>) {
        self.awaited.store(what.map(Arc::new));
    }

    /// Says who the others are.
    pub fn set_neighbours(&self, neighbours: Neighbours) {
        self.neighbours.store(Arc::new(neighbours));
    }

    /// What does not work.
    pub fn troubles(&self) -> Arc<Troubles> {
        self.troubles.load_full()
    }

    /// Says what does not work, or works again. `change` may be called more than once.
    pub fn change_troubles(&self, mut change: impl FnMut(&mut Troubles)) {
        self.troubles.rcu(|troubles| {
            let mut troubles = Troubles::clone(troubles);
            change(&mut troubles);
            troubles
        });
    }

    /// How far the node is that reads its local store through for damage, while it does.
    pub fn store_check(&self) -> Option<StoreCheck> {
        self.store_check.load().as_deref().copied()
    }

    /// Says so.
    pub fn set_store_check(&self, check: Option<StoreCheck>) {
        self.store_check.store(check.map(Arc::new));
    }

    /// What the driver has done.
    pub fn doings(&self) -> &Doings {
        &self.doings
    }
}

#[cfg(test)]
mod tests;
