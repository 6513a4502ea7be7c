//! A disk that is full, bits that flip, and requests that make no sense.

use crate::job::Job;
use crate::nodes::{Cluster, NODES, OWNER_SHUFFLES, until};
use partage_journal::RealDisk;
use partage_service::shuffle::buffer::Failed;
use partage_service::shuffle::record::{BatchKey, Record};
use partage_service::shuffle::{Ended, ShuffleId, ShuffleOptions, Terms, Writer};
use partage_shuffle::node::client::{ClientError, PutError, Sealed};
use partage_shuffle::store::{Store, StoreSettings};
use std::sync::Arc;

/// The batches on the disk of a node that runs, by a copy of its files.
fn stored_on(cluster: &Cluster, node: usize) -> Vec<BatchKey> {
    let copy = tempfile::tempdir().unwrap();
    for path in cluster.files(node) {
        // One that has been written anew meanwhile is gone.
        let _ = std::fs::copy(&path, copy.path().join(path.file_name().unwrap()));
    }
    let opened = Store::open(Arc::new(RealDisk), copy.path(), StoreSettings::default());
    opened.unwrap().1.batches.into_iter().map(|(key, _)| key).collect()
}

#[test]
fn a_full_disk_refuses_attempts_by_name_and_goes_on_when_there_is_room() {
    let cluster = Cluster::start();
    let job = Job::start(&cluster, 4, 4_000);
    cluster.disk(0).set_full(true);
    // What cannot be stored on the full node is stored on stand-ins.
    job.attempt(&cluster, 0, 1).unwrap();
    until("the full node refuses attempts", || {
        let refused = job.attempt(&cluster, 1, 0);
        assert!(matches!(refused, Ok(()) | Err(PutError::DiskFull)), "{refused:?}");
        refused == Err(PutError::DiskFull)
    });
    assert!(cluster.status(0).is_full && cluster.status(0).ended.is_none());
    assert!(PutError::DiskFull.runs_again());
    cluster.disk(0).set_full(false);
    until("the node has what found no room on it", || {
        let first = |key: &BatchKey| match &key.stream.writer {
            Writer::Buffer(buffer) => buffer.node.as_str() == "n1" && key.number == 1,
            Writer::Division(..) | Writer::Objects(_) => false,
        };
        stored_on(&cluster, 0).iter().any(first)
    });
    until("the node takes attempts again", || job.attempt(&cluster, 2, 0).is_ok());
    assert!(!cluster.files(0).is_empty(), "and has stored something");
    job.write(&cluster);
    let plan = job.seal(&cluster);
    job.read(&cluster, &plan, 7);
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn x8_flipped_bits_are_found_named_and_healed_and_never_served() {
    let cluster = Cluster::start();
    let job = Job::start(&cluster, 4, 10_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    let files = cluster.files(0);
    assert!(!files.is_empty());
    for path in &files {
        let mut bytes = std::fs::read(path).unwrap();
        let step = bytes.len() / 10;
        (1..10).for_each(|at| bytes[at * step] ^= 0x10);
        std::fs::write(path, bytes).unwrap();
    }
    job.read(&cluster, &plan, 16);
    let damages = cluster.status(0).damages;
    assert!(!damages.is_empty());
    let is_named = |name: &str| files.iter().any(|path| path.file_name().unwrap() == name);
    assert!(damages.iter().all(|damage| is_named(&damage.file) && damage.offset > 0), "{damages:?}");
    // What a read has found was fetched from the other replica; the rest is found when the process starts again.
    cluster.kill(0);
    cluster.start_node(0);
    assert!(!cluster.status(0).damages.is_empty());
    job.read(&cluster, &plan, 7);
    assert_eq!(cluster.status(1).damages.len() + cluster.status(2).damages.len(), 0);
    job.delete(&cluster);
    cluster.has_nothing();
}

#[test]
fn a_thread_that_panics_ends_its_node_which_says_why() {
    let cluster = Cluster::start();
    let job = Job::start(&cluster, 4, 4_000);
    job.write(&cluster);
    cluster.disk(0).panic_at_reads();
    // To seal, batches are divided and counted: also those of this node.
    let (client, shuffle) = (cluster.client(1), job.shuffle.id);
    let sealing = std::thread::spawn(move || drop(client.seal(shuffle, (0..4).collect())));
    until("the node has ended, and says why", || {
        cluster.status(0).ended.is_some_and(|why| why.contains("panicked"))
    });
    drop(cluster);
    sealing.join().unwrap();
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let cluster = Cluster::start();
    let client = cluster.client(0);
    let unknown = ShuffleId(77);
    assert_eq!(client.keep_alive(unknown), Err(ClientError::Over(Ended::Unknown)));
    assert_eq!(client.plan(unknown), Err(ClientError::Over(Ended::Unknown)));
    let job = Job::start(&cluster, 2, 100);
    assert_eq!(client.plan(job.shuffle.id), Err(ClientError::NotSealed));
    job.attempt(&cluster, 1, 0).unwrap();
    assert_eq!(client.seal(job.shuffle.id, [0, 1].into()), Ok(Sealed::Lacks(vec![0])));
    let mut put = client.open(job.shuffle, 0).unwrap();
    let large = Record { key: vec![0; (64 << 10) + 1].into(), value: Vec::new().into() };
    let refused = put.put(vec![large].into()).unwrap_err();
    assert!(matches!(refused, PutError::Failed(Failed::TooLarge { .. })) && !refused.runs_again());
    job.attempt(&cluster, 0, 1).unwrap();
    job.seal(&cluster);
    // A buffer that has nothing of the shuffle may take one attempt before it hears that the shuffle is sealed.
    until("an attempt of a partition that was not expected is refused", || {
        job.attempt(&cluster, 5, 2) == Err(PutError::Failed(Failed::Sealed))
    });
    assert!(!PutError::Failed(Failed::Sealed).runs_again());
    assert_eq!(job.attempt(&cluster, 0, 2), Ok(()), "its partition has a winner");
    client.keep_alive(job.shuffle.id).unwrap();
    job.delete(&cluster);
    assert_eq!(client.keep_alive(job.shuffle.id), Err(ClientError::Over(Ended::Deleted)));
    until("every node has heard of it", || {
        (0..NODES).all(|node| job.attempt(&cluster, 0, node).is_err_and(|error| !error.runs_again()))
    });
    cluster.has_nothing();
}

#[test]
fn an_owner_has_as_many_shuffles_as_its_quota_says_and_others_do_not_feel_it() {
    let cluster = Cluster::start();
    let client = cluster.client(0);
    let terms = Terms::new(3, 3);
    let start = |owner: &str| {
        client.start_with(terms, ShuffleOptions { owner: owner.to_owned(), ..ShuffleOptions::default() })
    };
    let mut started = Vec::new();
    // The numbers are drawn: some node has room for some of them, until none has.
    for _ in 0..60 {
        match start("greedy") {
            Ok(shuffle) => started.push(shuffle),
            Err(refused) => assert!(matches!(refused, ClientError::QuotaUsedUp(_)), "{refused}"),
        }
    }
    let most = OWNER_SHUFFLES + NODES as u64;
    assert!((OWNER_SHUFFLES..most).contains(&(started.len() as u64)), "{}", started.len());
    let other = start("modest").unwrap();
    let nobodys = client.start(terms).unwrap();
    for shuffle in started.iter().chain([&other, &nobodys]) {
        client.delete(shuffle.id).unwrap();
    }
    let again = start("greedy").unwrap();
    client.delete(again.id).unwrap();
    cluster.has_nothing();
}
