//! Prometheus metrics: one registry for each coordinator, so that several can run in one process.
//!
//! Nothing is labelled by shard: at a million shards that would be the largest thing in the house. Single
//! shards are asked for through the admin API.

use partage_core::cluster::Cluster;
use partage_core::node::Health;
use partage_core::time::Millis;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKeyspace {
    keyspace: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InHealth {
    health: Word,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>) -> std::fmt::Result {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

/// The numbers and where they are kept.
pub struct Metrics {
    registry: Registry,
    nodes: Family<InHealth, Gauge>,
    shards: Family<OfKeyspace, Gauge>,
    unsettled: Family<OfKeyspace, Gauge>,
    generation: Family<OfKeyspace, Gauge>,
    alarms: Counter,
    commits: Counter,
    commit_seconds: Histogram,
    batch_calls: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("partage_coordinator");
        let metrics = Metrics {
            nodes: Family::default(),
            shards: Family::default(),
            unsettled: Family::default(),
            generation: Family::default(),
            alarms: Counter::default(),
            commits: Counter::default(),
            commit_seconds: Histogram::new(exponential_buckets(0.000_1, 2.0, 16)),
            batch_calls: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            registry: Registry::default(),
        };
        registry.register("nodes", "Nodes by how they look", metrics.nodes.clone());
        registry.register("shards", "Shards of any stage", metrics.shards.clone());
        registry.register("shards_unsettled", "Shards with something under way", metrics.unsettled.clone());
        registry.register("map_generation", "Sequence of the current map", metrics.generation.clone());
        registry.register("alarms", "Notices that ask for a person", metrics.alarms.clone());
        registry.register("commits", "Durable transactions", metrics.commits.clone());
        let (help, seconds) = ("How long durable transactions took", metrics.commit_seconds.clone());
        registry.register_with_unit("commit", help, Unit::Seconds, seconds);
        registry.register("batch_calls", "Calls behind one round of decisions", metrics.batch_calls.clone());
        Metrics { registry, ..metrics }
    }
}

impl Metrics {
    /// A notice was given.
    pub fn noticed(&self, alarm: bool) {
        self.alarms.inc_by(u64::from(alarm));
    }

    /// Something was made durable in that many seconds.
    pub fn committed(&self, seconds: f64) {
        self.commits.inc();
        self.commit_seconds.observe(seconds);
    }

    /// A round of decisions stood behind that many calls.
    pub fn decided(&self, calls: usize) {
        self.batch_calls.observe(calls as f64);
    }

    /// Brings the gauges up to date.
    pub fn look(&self, cluster: &Cluster, now: Millis) {
        let words = [
            (Health::Unknown, "unknown"),
            (Health::Up, "up"),
            (Health::Suspect, "suspect"),
            (Health::Unreachable, "unreachable"),
            (Health::Down, "down"),
            (Health::Left, "left"),
        ];
        for (health, word) in words {
            let so =
                cluster.nodes().values().filter(|node| node.signs.health(now, cluster.settings()) == health);
            self.nodes.get_or_create(&InHealth { health: Word(word) }).set(so.count() as i64);
        }
        for (name, keyspace) in cluster.keyspaces() {
            let label = OfKeyspace { keyspace: name.to_string() };
            self.shards.get_or_create(&label).set(keyspace.map.len() as i64);
            self.unsettled.get_or_create(&label).set(keyspace.unsettled().len() as i64);
            self.generation.get_or_create(&label).set(keyspace.map.generation().sequence as i64);
        }
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
