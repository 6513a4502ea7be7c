//! What the driver of a node has done since it started, counted: loads, upgrades, looks at the source.
//!
//! It counts seldom, so these are the counters of the metrics' own library.

use partage_service::dataset::name::DatasetName;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Labels, with their values.
pub type Labels = Vec<(&'static str, String)>;

/// What becomes of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadEvent {
    /// The node began to load a version.
    Begun,
    /// All wanted partitions of the version are on this node.
    Done,
    /// The load ended with an error.
    Failed,
    /// The version is no longer wanted, so the load was ended.
    Stopped,
}

/// See the module. A copy counts the same things.
#[derive(Debug, Clone, Default)]
pub struct DriverMetrics {
    pub(crate) loads: Family<Labels, Counter>,
    pub(crate) read: Family<Labels, Counter>,
    pub(crate) upgrades: Family<Labels, Counter>,
    pub(crate) damaged: Family<Labels, Counter>,
    pub(crate) source_errors: Family<Labels, Counter>,
    pub(crate) unheard: Family<Labels, Counter>,
    pub(crate) unlisted: Family<Labels, Gauge>,
    pub(crate) refreshes: Counter,
    pub(crate) published: Gauge,
}

impl DriverMetrics {
    /// A load of a version began or ended.
    pub fn load(&self, dataset: &DatasetName, what: LoadEvent) {
        let event = match what {
            LoadEvent::Begun => "begun",
            LoadEvent::Done => "done",
            LoadEvent::Failed => "failed",
            LoadEvent::Stopped => "stopped",
        };
        let labels = [of(dataset), vec![("event", event.to_owned())]].concat();
        self.loads.get_or_create(&labels).inc();
    }

    /// Counts bytes that were read from the source.
    pub fn read(&self, dataset: &DatasetName, bytes: u64) {
        self.read.get_or_create(&of(dataset)).inc_by(bytes);
    }

    /// Clients get another version.
    pub fn upgraded(&self, dataset: &DatasetName) {
        self.upgrades.get_or_create(&of(dataset)).inc();
    }

    /// A store file turned out to be damaged.
    pub fn damaged(&self, dataset: &DatasetName) {
        self.damaged.get_or_create(&of(dataset)).inc();
    }

    /// The source, or a dataset in it, could not be looked at.
    pub fn source_failed(&self, dataset: Option<&DatasetName>) {
        let labels = dataset.map_or(vec![("dataset", String::new())], of);
        self.source_errors.get_or_create(&labels).inc();
    }

    /// The source is looked at.
    pub fn refreshed(&self) {
        self.refreshes.inc();
    }

    /// Sets how many messages of other nodes were not listened to, by reason.
    pub fn unheard(&self, counts: Vec<(&'static str, u64)>) {
        for (reason, count) in counts {
            let counter = self.unheard.get_or_create(&vec![("reason", reason.to_owned())]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// Sets how many versions peers have that this node's source does not list.
    pub fn unlisted(&self, dataset: &DatasetName, versions: usize) {
        self.unlisted.get_or_create(&of(dataset)).set(versions as i64);
    }

    /// Sets how many keys the node publishes in the coordination service.
    pub fn published(&self, keys: usize) {
        self.published.set(keys as i64);
    }
}

fn of(dataset: &DatasetName) -> Labels {
    vec![("dataset", dataset.to_string())]
}
