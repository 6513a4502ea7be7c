//! Shuffles on three nodes in one process: real files, real threads, a network in memory or of sockets (`sockets.rs`), and maps
//! made by hand.
//!
//! A node that is killed loses what it had not synced (`disk.rs`). Clients write records of a fixed length, run attempts again
//! that fail, and read partitions; what is read must be the input in its one order, record for record (`job.rs`).

#![allow(clippy::unwrap_used, reason = "a test on real files and threads stops at its first surprise")]

mod combining;
mod disk;
mod job;
mod killing;
mod large_ranges;
mod nodes;
mod offloading;
mod sockets;
mod troubles;

use job::Job;
use nodes::Cluster;

#[test]
fn x13_two_hundred_thousand_records_are_divided_exactly_and_read_in_order() {
    let cluster = Cluster::start();
    let job = Job::start(&cluster, 8, 25_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    for n in [1, 7, 16] {
        job.read(&cluster, &plan, n);
    }
    job.read_keys(&cluster, &plan);
    assert_eq!(job.attempts_run_again(), 0, "nothing has failed");
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn a_shuffle_without_records_and_one_of_a_few_are_read_too() {
    let cluster = Cluster::start();
    for records in [0, 3] {
        let job = Job::start(&cluster, 2, records);
        job.write(&cluster);
        let plan = job.seal(&cluster);
        for n in [1, 16] {
            job.read(&cluster, &plan, n);
        }
        job.delete(&cluster);
    }
    cluster.has_nothing();
}
