//! Nodes that are killed while a shuffle is written, sealed and read, and start again.

use crate::job::{Job, Keys};
use crate::nodes::{Cluster, NODES, pause, until};
use partage_service::shuffle::{Durability, Terms};
use std::sync::atomic::{AtomicBool, Ordering};

/// A node is away for so long, in milliseconds.
const AWAY_MS: u64 = 400;

fn kill_for_a_while(cluster: &Cluster, node: usize) {
    cluster.kill(node);
    pause(AWAY_MS);
    cluster.start_node(node);
}

fn read_and_delete(cluster: Cluster, job: &Job) {
    let plan = job.seal(&cluster);
    job.read(&cluster, &plan, 7);
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn d6_each_node_is_killed_in_turn_while_clients_write() {
    let cluster = Cluster::start();
    let job = Job::start(&cluster, 16, 10_000).paced(25);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| job.write(&cluster));
        for node in 0..NODES {
            let wanted = 20 * (node as u64 + 1);
            until("clients go on", || job.pieces() >= wanted || writing.is_finished());
            kill_for_a_while(&cluster, node);
        }
    });
    assert!(job.attempts_run_again() > 0, "clients had attempts at the nodes that were killed");
    read_and_delete(cluster, &job);
}

#[test]
fn o2_a_process_names_the_slots_that_it_may_not_lead() {
    let cluster = Cluster::start();
    assert_eq!(cluster.status(0).not_led, []);
    // A node that has started a shuffle has the epoch on its disk.
    while cluster.leader(Job::start(&cluster, 1, 1).shuffle.id) != 0 {}
    cluster.kill(0);
    cluster.start_node_under_the_same_map(0);
    until("the node says which slots it does not lead", || !cluster.status(0).not_led.is_empty());
    cluster.kill(0);
    cluster.start_node(0);
    until("others lead them", || cluster.status(0).not_led.is_empty());
}

#[test]
fn d6_the_leader_is_killed_while_it_seals() {
    for wait in [0, 5, 40, 150] {
        let cluster = Cluster::start();
        let job = Job::start(&cluster, 4, 5_000);
        job.write(&cluster);
        let leader = cluster.leader(job.shuffle.id);
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| job.seal(&cluster));
            pause(wait);
            kill_for_a_while(&cluster, leader);
            let first = sealing.join().unwrap();
            assert_eq!(job.seal(&cluster), first, "a sealed shuffle has one plan");
        });
        read_and_delete(cluster, &job);
    }
}

#[test]
fn d6_a_shuffle_in_memory_outlives_all_of_its_processes_at_once() {
    let cluster = Cluster::start();
    (0..NODES).for_each(|node| cluster.disk(node).outlives_the_process());
    let terms = Terms { durability: Durability::Memory, ..Terms::new(30, 48) };
    let job = Job::start_as(&cluster, terms, Keys::Mixed, (4, 10_000));
    assert_eq!(job.shuffle.terms.durability, Durability::Memory);
    job.write(&cluster);
    for is_sealed in [false, true] {
        (0..NODES).for_each(|node| cluster.kill(node));
        (0..NODES).for_each(|node| cluster.start_node(node));
        let plan = job.seal(&cluster);
        assert!((0..NODES).all(|node| cluster.status(node).damages.is_empty()), "sealed before: {is_sealed}");
        job.read(&cluster, &plan, 7);
    }
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn x9_nodes_are_killed_while_readers_read() {
    let cluster = Cluster::start();
    let job = Job::start(&cluster, 4, 20_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for node in (0..NODES).cycle().take(2 * NODES) {
                if !is_over.load(Ordering::Acquire) {
                    kill_for_a_while(&cluster, node);
                }
            }
        });
        for n in [1, 7, 16] {
            job.read(&cluster, &plan, n);
        }
        is_over.store(true, Ordering::Release);
    });
    // Also all at once: what was acknowledged is on the disks.
    (0..NODES).for_each(|node| cluster.kill(node));
    (0..NODES).for_each(|node| cluster.start_node(node));
    let after = cluster.client(1).plan(job.shuffle.id).unwrap();
    assert_eq!(after, plan);
    job.read(&cluster, &after, 16);
    job.delete(&cluster);
    cluster.has_nothing();
}
