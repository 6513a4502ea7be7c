//! How long the parts of a write take on this node, for its metrics.

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// From 10 µs to 5 s, each bucket twice the one before.
const BUCKETS: u16 = 20;

/// The parts of a write, in seconds.
#[derive(Debug, Clone)]
pub(crate) struct WriteTimes {
    /// Until the replica is served, and takes the writes that wait: of each group the longest.
    pub(crate) queue: Histogram,
    /// From there until the write is committed and applied here: the own log and those of the followers.
    pub(crate) commit: Histogram,
    /// Of these, the own log: until a record is on disk, at followers too.
    pub(crate) sync: Histogram,
    /// From when a leader's entries are on its own disk until they are committed: what its followers take beyond that.
    pub(crate) followers: Histogram,
    /// Until a group of committed entries is applied, at followers too.
    pub(crate) apply: Histogram,
}

impl Default for WriteTimes {
    fn default() -> WriteTimes {
        let histogram = || Histogram::new(exponential_buckets(0.000_01, 2.0, BUCKETS));
        WriteTimes {
            queue: histogram(),
            commit: histogram(),
            sync: histogram(),
            followers: histogram(),
            apply: histogram(),
        }
    }
}

impl WriteTimes {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let parts = [
            (
                "write_queue_seconds",
                "Time until the replica takes writes that wait, of each group the longest",
                &self.queue,
            ),
            (
                "write_commit_seconds",
                "Time from there until a write is committed and applied by the leader",
                &self.commit,
            ),
            ("log_sync_seconds", "Time until a record of a replica is on the disk of the log", &self.sync),
            (
                "write_followers_seconds",
                "Time from when a leader's entries are on its own disk until they are committed",
                &self.followers,
            ),
            ("apply_seconds", "Time in which a group of committed entries is applied", &self.apply),
        ];
        for (name, help, histogram) in parts {
            registry.register(name, help, histogram.clone());
        }
    }
}

/// Seconds between two times in nanoseconds.
pub(crate) fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}
