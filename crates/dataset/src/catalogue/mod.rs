//! What this node has, and who has the rest: all that a request reads.
//!
//! One writer replaces snapshots while any number of readers read: a reader never waits for the writer, and a reader that
//! has taken a snapshot goes on with it, even if it is replaced meanwhile.
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
mod driver_metrics;
mod meter;
mod stripes;
mod trouble;
mod version;

pub use dataset::{Dataset, NotTaken, Options, Reading, UnknownVersion};
pub use driver_metrics::{DriverMetrics, Labels, LoadEvent};
pub use meter::{Hop, Meter, Outcome, Series};
pub use trouble::{Link, Trouble, Troubles};
pub use version::{LoadProgress, Place, State, Version};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use partage_clock::Clock;
use partage_service::dataset::name::DatasetName;
use partage_wire::dataset::status::StoreCheck;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A node of the cluster, as pages name it and peers reach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NodeInfo {
    /// What its share is computed from; empty if it takes none.
    pub shard_id: String,
    /// `host:port` of its door for requests.
    pub address: Arc<str>,
}

/// This node and the others.
#[derive(Debug, Clone, Default)]
pub struct Neighbours {
    /// This node, as its peers know it.
    pub me: NodeInfo,
    /// The other nodes, as last seen.
    pub others: Vec<NodeInfo>,
}

type DatasetMap = BTreeMap<DatasetName, Arc<Dataset>>;

/// Every dataset by its name. Shared as an `Arc`: one writer, any number of readers.
#[derive(Debug)]
pub struct Catalogue {
    datasets: ArcSwap<DatasetMap>,
    neighbours: ArcSwap<Neighbours>,
    awaited: ArcSwapOption<String>,
    troubles: ArcSwap<Troubles>,
    store_check: ArcSwapOption<StoreCheck>,
    driver_metrics: DriverMetrics,
    clock: Clock,
}

impl Default for Catalogue {
    fn default() -> Catalogue {
        Catalogue::new(NodeInfo::default())
    }
}

impl Catalogue {
    /// An empty one, of this node.
    pub fn new(me: NodeInfo) -> Catalogue {
        Catalogue {
            datasets: ArcSwap::from_pointee(BTreeMap::new()),
            neighbours: ArcSwap::from_pointee(Neighbours { me, others: Vec::new() }),
            awaited: ArcSwapOption::empty(),
            troubles: ArcSwap::default(),
            store_check: ArcSwapOption::empty(),
            driver_metrics: DriverMetrics::default(),
            clock: Clock::start(),
        }
    }

    /// The clock that [`Version::last_request`] counts by.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes a dataset up. One of the same name stays, and is returned.
    pub fn add(&self, dataset: Dataset) -> Arc<Dataset> {
        let dataset = Arc::new(dataset);
        self.datasets.rcu(|datasets| {
            let mut datasets = DatasetMap::clone(datasets);
            datasets.entry(dataset.name().clone()).or_insert_with(|| dataset.clone());
            datasets
        });
        self.dataset(dataset.name().as_str()).unwrap_or(dataset)
    }

    /// Lets a dataset go: no request finds it from now on. Those that found it end with it.
    pub fn remove(&self, name: &str) -> Option<Arc<Dataset>> {
        let before = self.datasets.rcu(|datasets| {
            let mut datasets = DatasetMap::clone(datasets);
            datasets.remove(name);
            datasets
        });
        before.get(name).cloned()
    }

    /// A dataset, for who keeps it.
    pub fn dataset(&self, name: &str) -> Option<Arc<Dataset>> {
        self.datasets.load().get(name).cloned()
    }

    /// All, in the order of their names.
    pub fn datasets(&self) -> Vec<Arc<Dataset>> {
        self.datasets.load().values().cloned().collect()
    }

    /// All datasets of one moment, without counting the reader: for the way of a request.
    pub(crate) fn snapshot(&self) -> Guard<Arc<DatasetMap>> {
        self.datasets.load()
    }

    /// The name and address of this node, and of the other nodes.
    pub fn neighbours(&self) -> Arc<Neighbours> {
        self.neighbours.load_full()
    }

    /// What a node that was just started waits for, until it can answer that something is not there; none: nothing.
    pub fn awaited(&self) -> Option<Arc<String>> {
        self.awaited.load_full()
    }

    /// Sets what [`Catalogue::awaited`] returns.
    pub fn set_awaited(&self, what: Option<String>) {
        self.awaited.store(what.map(Arc::new));
    }

    /// Replaces what [`Catalogue::neighbours`] returns.
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

    /// Sets what [`Catalogue::store_check`] returns; none: the check has ended.
    pub fn set_store_check(&self, check: Option<StoreCheck>) {
        self.store_check.store(check.map(Arc::new));
    }

    /// What the driver has done.
    pub fn driver_metrics(&self) -> &DriverMetrics {
        &self.driver_metrics
    }
}

#[cfg(test)]
mod tests;
