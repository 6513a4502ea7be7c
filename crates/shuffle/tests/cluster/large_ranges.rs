//! Ranges that are larger than the memory for ranges: keys that are all equal make one of all records.

use crate::job::{Job, Keys};
use crate::nodes::{Cluster, NODES, settings};
use partage_service::shuffle::settings::Settings;
use partage_shuffle::node::NodeSettings;

/// What ranges may take in memory on each node: a small part of what the records of the one range take.
const RANGE_BYTES: u64 = 1 << 20;

/// A batch has one piece of a client, and a division no more batches than have room in a quarter of that memory: one that took
/// more would be seen.
fn cluster() -> Cluster {
    let settings = settings();
    let machines = Settings { batch_bytes: 16 << 10, division_batches: 4, ..settings.machines.clone() };
    Cluster::start_with(NodeSettings {
        machines,
        range_bytes: RANGE_BYTES,
        answer_bytes: 64 << 10,
        ..settings
    })
}

fn memory_is_bounded(cluster: &Cluster, nodes: impl Iterator<Item = usize>) {
    for at in nodes {
        let peak = cluster.status(at).reading_peak_bytes;
        assert!(peak <= RANGE_BYTES, "ranges had {peak} bytes of memory on node {at}");
    }
}

#[test]
fn r1_records_of_one_key_are_read_in_order_within_the_memory_for_ranges() {
    let cluster = cluster();
    let job = Job::start_of(&cluster, Keys::Equal, 8, 5_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    let most = plan.ranges.iter().map(|range| range.records).max();
    assert_eq!(most, Some(40_000), "they lie in one range");
    for n in [1, 7, 40] {
        job.read(&cluster, &plan, n);
    }
    job.read_keys(&cluster, &plan);
    memory_is_bounded(&cluster, 0..NODES);
    let sorted = (0..NODES).filter(|at| cluster.status(*at).sorted_file_bytes > 40_000 * 32).count();
    assert!(sorted >= 1, "it was sorted on disk");
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn x9_each_replica_of_a_large_range_gives_the_same_records() {
    let cluster = cluster();
    let job = Job::start_of(&cluster, Keys::Equal, 4, 5_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    for at in 0..NODES {
        // Of the two replicas one is left, or none was killed. A node that starts again has to sort again.
        cluster.kill(at);
        job.read(&cluster, &plan, 7);
        memory_is_bounded(&cluster, (0..NODES).filter(|other| *other != at));
        cluster.start_node(at);
    }
    job.read(&cluster, &plan, 3);
    job.delete(&cluster);
    cluster.has_nothing();
}
