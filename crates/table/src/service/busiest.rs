//! Metrics of single replicas: of the busiest ones only, as a node has thousands.

use super::Tables;
use crate::limits::BUSIEST;
use crate::queue::ReplicaQueue;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use std::cmp::Reverse;
use std::sync::Arc;

/// Which replica: names and values of labels.
type Labels = Vec<(String, String)>;

fn labels(queue: &ReplicaQueue) -> Labels {
    let key = &queue.key;
    let label = |name: &str, value: String| (name.to_owned(), value);
    vec![
        label("table", key.keyspace.to_string()),
        label("shard", key.shard.0.to_string()),
        label("placement", key.placement.0.to_string()),
    ]
}

impl Tables {
    /// Registers what all replicas of the node have together, and what each of the busiest has.
    pub(super) fn register_replicas(&self, registry: &mut Registry) {
        let mut open = self.node().open_queues();
        let all = open.iter().map(|queue| queue.figures.latest());
        let (log, store) =
            all.fold((0, 0), |(log, store), one| (log + one.log_bytes, store + one.store_bytes));
        registry.register("log_bytes", "Log that replicas here keep", ConstGauge::new(log));
        registry.register(
            "store_bytes",
            "Files and unflushed rows of the replicas here",
            ConstGauge::new(store),
        );
        registry.register(
            "replicas_formed",
            "Replicas of new shards, of splits and merges, that have taken what the old ones had",
            ConstCounter::new(self.node().formed()),
        );
        registry.register(
            "outcomes_forgotten_early",
            "Outcomes of requests that a replica has forgotten before their time, as its shard had too many",
            ConstCounter::new(self.node().forgotten_early()),
        );
        open.sort_by_key(|queue| Reverse(queue.figures.requests()));
        open.truncate(BUSIEST);
        register_busiest(registry, &open);
    }
}

fn register_busiest(registry: &mut Registry, busiest: &[Arc<ReplicaQueue>]) {
    let requests = Family::<Labels, Counter>::default();
    for queue in busiest {
        requests.get_or_create(&labels(queue)).inc_by(queue.figures.requests());
    }
    let help = "Reads and writes that reached the replica, of the busiest replicas";
    registry.register("replica_requests", help, requests);
    gauge(registry, busiest, "replica_leads", "1 while the replica leads its shard and serves", |queue| {
        i64::from(queue.figures.latest().leads)
    });
    gauge(registry, busiest, "replica_in_sync", "In-sync replicas of its shard", |queue| {
        count(queue.figures.latest().in_sync as u64)
    });
    let help = "How old what the replica has applied may be: 0 at a leader, -1 if it is not known";
    gauge(registry, busiest, "replica_lag_milliseconds", help, |queue| {
        queue.figures.latest().lag_ms.map_or(-1, count)
    });
    gauge(registry, busiest, "replica_log_bytes", "Log that the replica keeps", |queue| {
        count(queue.figures.latest().log_bytes)
    });
    let help = "Files and unflushed rows of the replica";
    gauge(registry, busiest, "replica_store_bytes", help, |queue| count(queue.figures.latest().store_bytes));
}

fn gauge(
    registry: &mut Registry,
    of: &[Arc<ReplicaQueue>],
    name: &str,
    help: &str,
    value: fn(&ReplicaQueue) -> i64,
) {
    let family = Family::<Labels, Gauge>::default();
    for queue in of {
        family.get_or_create(&labels(queue)).set(value(queue));
    }
    registry.register(name, help, family);
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
