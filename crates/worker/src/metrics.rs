//! What a worker does, in the text form of Prometheus.
//!
//! | metric                                   | type    | labels                       |
//! |------------------------------------------|---------|------------------------------|
//! | `partage_worker_up`                      | gauge   | `health`                     |
//! | `partage_worker_lease_renewed_late_total`| counter |                              |
//! | `partage_worker_replicas`                | gauge   | `keyspace`, `role`, `phase`  |
//! | `partage_worker_requests_inside`         | gauge   | `keyspace`                   |
//! | `partage_worker_entrances_total`         | counter | `outcome`                    |
//! | `partage_worker_requests_total`          | counter | `keyspace`, `shard`, `placement` |
//! | `partage_worker_request_cpu_seconds_total` | counter | `keyspace`, `shard`, `placement` |
//!
//! The last two name each replica, so that no series ever goes down, and are left out above
//! [`limits::METRIC_REPLICAS`] replicas.

use crate::limits;
use crate::worker::{Health, Replica, Worker};
use partage_core::node::exchange::Phase;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// The page that [`crate::http::router`] answers at [`crate::http::METRICS_PATH`].
pub fn text(worker: &Worker) -> String {
    let mut page = Page(String::new());
    let replicas = worker.replicas();
    page.head("partage_worker_up", "gauge", "1 at how the worker is doing");
    for health in [Health::Joining, Health::Up, Health::Lapsed, Health::Leaving] {
        let value = u8::from(worker.health() == health);
        page.line("partage_worker_up", &[("health", &health)], value);
    }
    let lapses = worker.shared().published.load().lapses;
    let name = "partage_worker_lease_renewed_late_total";
    page.head(name, "counter", "Leases that were renewed after they had run out");
    page.line(name, &[], lapses);
    page.head(
        "partage_worker_entrances_total",
        "counter",
        "Requests that asked to be let in, by what was answered",
    );
    for (outcome, count) in worker.shared().admissions.counts() {
        page.line("partage_worker_entrances_total", &[("outcome", &outcome)], count);
    }
    sums(&mut page, &replicas);
    if replicas.len() <= limits::METRIC_REPLICAS {
        each(&mut page, &replicas);
    }
    page.0
}

fn sums(page: &mut Page, replicas: &[Replica]) {
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    let mut in_flight: BTreeMap<_, usize> = BTreeMap::new();
    for replica in replicas {
        let shard = &replica.assignment;
        *counts.entry((shard.keyspace(), shard.role.to_string(), word(&replica.phase))).or_default() += 1;
        *in_flight.entry(shard.keyspace()).or_default() += replica.in_flight;
    }
    page.head("partage_worker_replicas", "gauge", "Replicas on this node");
    for ((keyspace, role, phase), count) in counts {
        page.line(
            "partage_worker_replicas",
            &[("keyspace", &keyspace), ("role", &role), ("phase", &phase)],
            count,
        );
    }
    page.head("partage_worker_requests_inside", "gauge", "Requests that are being served");
    for (keyspace, count) in in_flight {
        page.line("partage_worker_requests_inside", &[("keyspace", &keyspace)], count);
    }
}

fn each(page: &mut Page, replicas: &[Replica]) {
    let labels = |page: &mut Page, name: &str, replica: &Replica, value: &dyn Display| {
        let key = &replica.assignment.replica;
        let labels: [(&str, &dyn Display); 3] =
            [("keyspace", &key.keyspace), ("shard", &key.shard.0), ("placement", &key.placement.0)];
        page.line(name, &labels, value);
    };
    let name = "partage_worker_requests_total";
    page.head(name, "counter", "Requests that were let in");
    replicas.iter().for_each(|replica| labels(page, name, replica, &replica.requests));
    let name = "partage_worker_request_cpu_seconds_total";
    page.head(name, "counter", "Processor time of requests, where it is metered");
    replicas.iter().for_each(|replica| labels(page, name, replica, &replica.cpu.as_secs_f64()));
}

fn word(phase: &Phase) -> String {
    match phase {
        Phase::Failed(_) => "failed".to_owned(),
        phase => format!("{phase:?}").to_lowercase(),
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    /// No label has a quote in it: names are checked when they come in.
    fn line(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}
