//! What a node of tables counts, for its metrics.

use super::{Refusal, Tables};
use crate::network::SendCounts;
use crate::pacing::CopyCounts;
use partage_service::table::replication::Consistency;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The kinds of reads.
const READS: [&str; 3] = ["linearizable", "bounded", "any"];

/// Requests that reached a replica of this node.
#[derive(Debug, Default)]
pub(super) struct RequestCounts {
    writes: AtomicU64,
    /// Reads of each kind, in the order of [`READS`].
    reads: [AtomicU64; READS.len()],
    /// Refusals of each kind, in the order of [`Refusal::ALL`].
    refused: [AtomicU64; Refusal::ALL.len()],
    feed_streams: AtomicU64,
}

/// A stream of changes that a client holds open.
#[derive(Debug)]
pub(crate) struct FeedStream(Tables);

impl Drop for FeedStream {
    fn drop(&mut self) {
        self.0.0.counts.feed_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RequestCounts {
    pub(super) fn write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, consistency: Consistency) {
        let kind = match consistency {
            Consistency::Linearizable => 0,
            Consistency::Bounded(_) => 1,
            Consistency::Any => 2,
        };
        self.reads[kind].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, refusal: Refusal) {
        let mut counters = Refusal::ALL.iter().zip(&self.refused);
        if let Some((_, counter)) = counters.find(|(known, _)| **known == refusal) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A label with one word.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Label(&'static str, &'static str);

impl EncodeLabelSet for Label {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), fmt::Error> {
        [(self.0, self.1)].encode(encoder)
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    registry.register(name, help, ConstCounter::new(value));
}

impl Tables {
    /// Counts a stream of changes as long as it is kept.
    pub(crate) fn feed_stream(&self) -> FeedStream {
        self.0.counts.feed_streams.fetch_add(1, Ordering::Relaxed);
        FeedStream(self.clone())
    }

    /// What the tables of this node do, in the text form of Prometheus.
    pub fn metrics(&self) -> String {
        let mut registry = Registry::with_prefix("partage_table");
        let counts = &self.0.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counter(&mut registry, "writes", "Writes that reached a replica here", get(&counts.writes));
        let reads = Family::<Label, Counter>::default();
        for (kind, counter) in READS.iter().zip(&counts.reads) {
            reads.get_or_create(&Label("consistency", kind)).inc_by(get(counter));
        }
        registry.register("reads", "Reads that reached a replica here, by consistency", reads);
        self.node().times().register(&mut registry);
        let refused = Family::<Label, Counter>::default();
        for (refusal, counter) in Refusal::ALL.iter().zip(&counts.refused) {
            refused.get_or_create(&Label("reason", refusal.word())).inc_by(get(counter));
        }
        registry.register("refused", "Requests that were refused, by reason", refused);
        self.register_disk(&mut registry);
        let behind = partage_clock::wall_behind_seconds();
        let help =
            "By how much the clock by which rows end is behind the system's time of day; below zero: ahead";
        registry.register("clock_behind_seconds", help, ConstGauge::new(behind));
        let in_sync = self.in_sync();
        registry.register(
            "replicas_ordered",
            "Replicas that the coordinator has ordered",
            ConstGauge::new(in_sync.len() as u64),
        );
        registry.register(
            "read_replicas",
            "Those of them that are read replicas of hot shards: no leader waits for them",
            ConstGauge::new(self.read_replicas().len() as u64),
        );
        let least = in_sync.iter().map(|(_, count)| *count).min().unwrap_or_default();
        registry.register(
            "least_in_sync",
            "In-sync replicas of the shard that has the fewest, of those with a replica here",
            ConstGauge::new(least as u64),
        );
        registry.register(
            "replicas_forming",
            "Replicas of new shards, of splits and merges, that take what the old ones have",
            ConstGauge::new(self.node().forming() as u64),
        );
        registry.register(
            "feed_streams",
            "Streams of changes that clients of gRPC hold open",
            ConstGauge::new(get(&counts.feed_streams)),
        );
        self.register_replicas(&mut registry);
        copies(&mut registry, self.node().copies());
        network(&mut registry, self.0.network.counts());
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text.trim_end().trim_end_matches("# EOF").to_owned()
    }
}

impl Tables {
    fn register_disk(&self, registry: &mut Registry) {
        let disk = &self.0.disk;
        let is = |flag: &AtomicBool| u64::from(flag.load(Ordering::Relaxed));
        let is_full = u64::from(self.full().borrow().is_some());
        let help = "1 while the disk has no room for the log or for a store, or is used up to the limit";
        registry.register("disk_is_full", help, ConstGauge::new(is_full));
        let help = "1 while so much of the disk is used that nothing new is placed here";
        registry.register("disk_is_nearly_full", help, ConstGauge::new(is(&disk.is_nearly_full)));
        let help = "The share of the disk that is used, 0 to 1, by all that is on it";
        registry.register("disk_used_ratio", help, ConstGauge::new(disk.used()));
        let help = "1 while the log has stored nothing for seconds though records wait";
        registry.register("disk_is_stalled", help, ConstGauge::new(is(&disk.is_stalled)));
    }
}

fn copies(registry: &mut Registry, counts: CopyCounts) {
    let CopyCounts { bytes_out, bytes_in, waits, waited_ms, resumed, slowed } = counts;
    let family = Family::<Label, Counter>::default();
    for (direction, bytes) in [("out", bytes_out), ("in", bytes_in)] {
        family.get_or_create(&Label("direction", direction)).inc_by(bytes);
    }
    let help = "Bytes of rows that were copied to other replicas, and from other nodes";
    registry.register("copied_bytes", help, family);
    let help = "How often a copy of rows waited, for the limit of bytes or for clients that write";
    counter(registry, "copy_waits", help, waits);
    let help = "For how long copies of rows waited so, all together";
    registry.register("copy_wait_seconds", help, ConstCounter::new(waited_ms as f64 / 1e3));
    let help = "Snapshots that went on, after a restart, behind the rows that were stored before";
    counter(registry, "snapshots_resumed", help, resumed);
    let help =
        "How often writes waited for a copy of rows, as the log that is kept for it would have been used up";
    counter(registry, "copy_slowed_writes", help, slowed);
}

fn network(registry: &mut Registry, counts: SendCounts) {
    let SendCounts { sent, batches, streams_opened, streams_failed, .. } = counts;
    counter(registry, "packets_sent", "Packets to replicas on other nodes", sent);
    counter(registry, "batches_sent", "Messages in which packets were sent", batches);
    counter(registry, "streams_opened", "Streams that other nodes have accepted", streams_opened);
    counter(registry, "streams_failed", "Streams that ended or could not be opened", streams_failed);
    let dropped = [
        ("full", counts.dropped_full),
        ("away", counts.dropped_away),
        ("no_address", counts.dropped_no_address),
        ("too_large", counts.dropped_too_large),
    ];
    let family = Family::<Label, Counter>::default();
    for (reason, count) in dropped {
        family.get_or_create(&Label("reason", reason)).inc_by(count);
    }
    registry.register("packets_dropped", "Packets that were dropped, by reason", family);
}
