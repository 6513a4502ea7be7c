//! Disks that fill, and an object store: slots of a sealed shuffle go there, are read from there, and are deleted.

use crate::job::{Job, Keys};
use crate::nodes::{Cluster, NODES, pause, until};
use bytes::Bytes;
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::reader::Failed;
use partage_service::shuffle::{Durability, Terms};
use partage_shuffle::node::client::ReadError;
use partage_shuffle::objects::{ObjectError, ObjectPlace};
use partage_shuffle_wire::client::{Again, Refusal};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Objects in memory, of a store that can refuse, be slow, and not answer.
#[derive(Debug, Default)]
pub struct Bucket {
    objects: Mutex<BTreeMap<String, Bytes>>,
    refuses: AtomicBool,
    /// What each call takes.
    slow_ms: AtomicU64,
    /// No call is answered; and those that wait are given up, as a client of a store does in the end.
    hangs: AtomicBool,
    gives_up: AtomicBool,
    /// Reads and puts that wait for an answer.
    reads_waiting: AtomicU64,
    puts_waiting: AtomicU64,
    refused: AtomicU64,
    refused_deletions: AtomicU64,
}

impl Bucket {
    fn set_refuses(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Release);
    }

    fn check(&self) -> Result<(), ObjectError> {
        if self.refuses.load(Ordering::Acquire) {
            self.refused.fetch_add(1, Ordering::AcqRel);
            return Err(ObjectError { is_lost: false, why: "403".to_owned() });
        }
        Ok(())
    }

    fn set_hangs(&self, hangs: bool) {
        self.gives_up.store(false, Ordering::Release);
        self.hangs.store(hangs, Ordering::Release);
    }

    /// Waits for the answer of the store.
    fn answer(&self, waiting: Option<&AtomicU64>) -> Result<(), ObjectError> {
        pause(self.slow_ms.load(Ordering::Acquire));
        if let Some(waiting) = waiting {
            waiting.fetch_add(1, Ordering::AcqRel);
        }
        while self.hangs.load(Ordering::Acquire) && !self.gives_up.load(Ordering::Acquire) {
            pause(10);
        }
        if let Some(waiting) = waiting {
            waiting.fetch_sub(1, Ordering::AcqRel);
        }
        if self.hangs.load(Ordering::Acquire) {
            return Err(ObjectError { is_lost: false, why: "no answer within 20 s".to_owned() });
        }
        Ok(())
    }

    fn count(&self) -> usize {
        self.objects.lock().unwrap().len()
    }

    fn indexes(&self) -> usize {
        self.objects.lock().unwrap().keys().filter(|path| path.ends_with("/index")).count()
    }

    fn object(&self, path: &str) -> Result<Bytes, ObjectError> {
        self.answer(Some(&self.reads_waiting))?;
        self.check()?;
        let none = || ObjectError { is_lost: true, why: format!("{path}: not there") };
        self.objects.lock().unwrap().get(path).cloned().ok_or_else(none)
    }
}

/// When this goes, calls that wait are given up, and further ones at once: also when a test fails, whose threads wait for them.
struct GivesUp<'a>(&'a Bucket);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        self.0.gives_up.store(true, Ordering::Release);
    }
}

impl ObjectPlace for Bucket {
    fn url(&self) -> &str {
        "bucket"
    }

    fn put(&self, path: &str, bytes: Bytes) -> Result<(), ObjectError> {
        self.answer(Some(&self.puts_waiting))?;
        self.check()?;
        self.objects.lock().unwrap().insert(path.to_owned(), bytes);
        Ok(())
    }

    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError> {
        let object = self.object(path)?;
        Ok(object.slice(from as usize..(from + bytes) as usize))
    }

    fn get_all(&self, path: &str, _: u64) -> Result<Bytes, ObjectError> {
        self.object(path)
    }

    /// It lists whatever it refuses.
    fn list(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        self.answer(None)?;
        let below = format!("{path}/");
        let objects = self.objects.lock().unwrap();
        Ok(objects.keys().filter(|known| known.starts_with(&below)).cloned().collect())
    }

    fn folders(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        self.answer(None)?;
        let below = format!("{path}/");
        let objects = self.objects.lock().unwrap();
        let names = objects.keys().filter_map(|known| Some(known.strip_prefix(&below)?.split_once('/')?.0));
        let names: BTreeSet<&str> = names.collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn delete(&self, path: &str) -> Result<(), ObjectError> {
        self.answer(None)?;
        if let Err(error) = self.check() {
            self.refused_deletions.fetch_add(1, Ordering::AcqRel);
            return Err(error);
        }
        self.objects.lock().unwrap().remove(path);
        Ok(())
    }

    fn stop(&self) {}
}

/// Bytes of batches on all disks.
fn on_disks(cluster: &Cluster) -> u64 {
    (0..NODES).map(|at| cluster.disk_bytes(at)).sum()
}

/// All disks fill until the shuffle is in the object store: what is left are receipts.
fn offload(cluster: &Cluster, bucket: &Bucket, before: u64) {
    until("the disks have room", || {
        (0..NODES).for_each(|at| cluster.make_room(at, true));
        pause(200);
        bucket.indexes() > 0 && on_disks(cluster) < before / 10
    });
    (0..NODES).for_each(|at| cluster.make_room(at, false));
}

#[test]
fn d6_a_sealed_shuffle_goes_to_the_object_store_is_read_from_there_and_leaves_nothing() {
    let bucket = Arc::new(Bucket::default());
    let cluster = Cluster::start_with_objects(bucket.clone());
    let job = Job::start(&cluster, 6, 20_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    let before = on_disks(&cluster);
    // The store refuses: nothing goes, and the nodes say so.
    bucket.set_refuses(true);
    until("the nodes say that it refuses", || {
        (0..NODES).for_each(|at| cluster.make_room(at, true));
        (0..NODES).any(|at| cluster.status(at).object_store_refuses.is_some_and(|why| why.contains("403")))
    });
    job.read(&cluster, &plan, 7);
    assert!(bucket.count() == 0 && on_disks(&cluster) > before / 2, "the copies stay");
    bucket.set_refuses(false);
    offload(&cluster, &bucket, before);
    for n in [1, 7] {
        job.read(&cluster, &plan, n);
    }
    job.read_keys(&cluster, &plan);
    // A node that starts again finds its receipts, and other nodes go on without it.
    cluster.kill(1);
    job.read(&cluster, &plan, 5);
    cluster.start_node(1);
    job.read(&cluster, &plan, 6);
    bucket.set_refuses(true);
    job.delete(&cluster);
    until("a deletion is refused", || bucket.refused_deletions.load(Ordering::Acquire) > 0);
    assert!(bucket.count() > 0);
    bucket.set_refuses(false);
    until("no object is left", || bucket.count() == 0);
    cluster.has_nothing();
}

/// Whether a read was refused by name, and may be asked for again. False: the nodes of a slow machine have not answered in time.
fn is_refused(failed: Result<(), ReadError>) -> bool {
    match failed {
        Err(ReadError::Failed(why @ Failed::NoHolder(_, Some(NotRead::ObjectStore)))) => {
            let refusal = Refusal::from(why);
            assert_eq!((refusal.word.as_str(), refusal.again), ("object-store", Again::Request));
            true
        }
        Err(ReadError::Failed(Failed::NoHolder(_, None | Some(NotRead::Busy)))) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn r3_a_store_that_never_answers_holds_up_nothing_that_is_on_disks_and_is_used_again_when_it_does() {
    let bucket = Arc::new(Bucket::default());
    // Enough rounds for a machine that is slow to answer, and few enough that the reads of the store fail soon.
    let cluster = Cluster::start_with_objects_and_budget(bucket.clone(), 6);
    let job = |records| {
        let job = Job::start(&cluster, 4, records);
        job.write(&cluster);
        let plan = job.seal(&cluster);
        (job, plan)
    };
    let (away, plan_of_away) = job(10_000);
    offload(&cluster, &bucket, on_disks(&cluster));
    let (here, plan_of_here) = job(10_000);
    // Some of it may go between two of the looks below: the disks are compared with what they have now.
    let before = on_disks(&cluster);
    bucket.set_hangs(true);
    let failed = std::thread::scope(|scope| {
        let gives_up = GivesUp(&bucket);
        let read = |i| {
            let (away, plan, cluster) = (&away, &plan_of_away, &cluster);
            scope.spawn(move || away.read_part(cluster, plan, (i, 4)))
        };
        let reads: Vec<_> = (0..4).map(read).collect();
        (0..NODES).for_each(|at| cluster.make_room(at, true));
        until("reads wait for the store", || bucket.reads_waiting.load(Ordering::Acquire) > 0);
        until("puts wait for the store", || {
            (0..NODES).for_each(|at| cluster.make_room(at, true));
            bucket.puts_waiting.load(Ordering::Acquire) > 0
        });
        // Meanwhile all goes on that needs no object.
        for n in [3, 8] {
            here.read(&cluster, &plan_of_here, n);
        }
        let (other, plan_of_other) = job(4_000);
        other.read(&cluster, &plan_of_other, 5);
        other.delete(&cluster);
        assert!(bucket.reads_waiting.load(Ordering::Acquire) > 0, "none has had an answer so far");
        drop(gives_up);
        reads.into_iter().map(|read| read.join().unwrap()).collect::<Vec<_>>()
    });
    // They are refused by name, and may be asked for again.
    for (i, failed) in (0..).zip(failed) {
        let mut is_so = is_refused(failed);
        until("the read is refused by name", || {
            is_so = is_so || is_refused(away.read_part(&cluster, &plan_of_away, (i, 4)));
            is_so
        });
    }
    let says = |at| cluster.status(at).object_store_refuses.is_some_and(|why| why.contains("no answer"));
    until("a node says that the store does not answer", || (0..NODES).any(says));
    bucket.set_hangs(false);
    until("what the store has is read", || {
        (0..4).all(|i| away.read_part(&cluster, &plan_of_away, (i, 4)).is_ok())
    });
    // Receipts of two shuffles stay.
    offload(&cluster, &bucket, 2 * before);
    here.read(&cluster, &plan_of_here, 3);
    away.delete(&cluster);
    here.delete(&cluster);
    until("no object is left", || bucket.count() == 0);
    cluster.has_nothing();
}

#[test]
fn r3_a_store_that_is_slow_costs_readers_time_and_no_retries() {
    let bucket = Arc::new(Bucket::default());
    // As many rounds as a slow machine may need, and fewer than the ranges that are read: each would cost one.
    let cluster = Cluster::start_with_objects_and_budget(bucket.clone(), 3);
    let job = Job::start(&cluster, 4, 10_000);
    job.write(&cluster);
    let plan = job.seal(&cluster);
    offload(&cluster, &bucket, on_disks(&cluster));
    // Longer than a reader waits for the answer of a holder.
    bucket.slow_ms.store(1_300, Ordering::Release);
    job.read_part(&cluster, &plan, (5, 12)).unwrap();
    bucket.slow_ms.store(0, Ordering::Release);
    job.read(&cluster, &plan, 5);
    job.delete(&cluster);
    until("no object is left", || bucket.count() == 0);
    cluster.has_nothing();
}

#[test]
fn d6_a_shuffle_in_memory_goes_to_the_object_store_and_is_read_from_there_after_all_nodes_were_killed() {
    let bucket = Arc::new(Bucket::default());
    let cluster = Cluster::start_with_objects(bucket.clone());
    (0..NODES).for_each(|node| cluster.disk(node).outlives_the_process());
    let terms = Terms { durability: Durability::Memory, ..Terms::new(30, 48) };
    let job = Job::start_as(&cluster, terms, Keys::Mixed, (4, 10_000));
    job.write(&cluster);
    let plan = job.seal(&cluster);
    let before = on_disks(&cluster);
    bucket.set_refuses(true);
    until("a put is refused", || {
        (0..NODES).for_each(|at| cluster.make_room(at, true));
        bucket.refused.load(Ordering::Acquire) > 0
    });
    assert!(bucket.count() == 0 && on_disks(&cluster) > before / 2, "the copies stay");
    bucket.set_refuses(false);
    offload(&cluster, &bucket, before);
    job.read(&cluster, &plan, 7);
    (0..NODES).for_each(|node| cluster.kill(node));
    (0..NODES).for_each(|node| cluster.start_node(node));
    assert_eq!(cluster.client(1).plan(job.shuffle.id).unwrap(), plan);
    job.read(&cluster, &plan, 5);
    job.delete(&cluster);
    until("no object is left", || bucket.count() == 0);
    cluster.has_nothing();
}

#[test]
fn an_open_shuffle_stays_on_the_disks() {
    let bucket = Arc::new(Bucket::default());
    let cluster = Cluster::start_with_objects(bucket.clone());
    let job = Job::start(&cluster, 2, 2_000);
    job.write(&cluster);
    for _ in 0..10 {
        (0..NODES).for_each(|at| cluster.make_room(at, true));
        pause(100);
    }
    assert_eq!(bucket.count(), 0);
    (0..NODES).for_each(|at| cluster.make_room(at, false));
    let plan = job.seal(&cluster);
    job.read(&cluster, &plan, 3);
    job.delete(&cluster);
    cluster.has_nothing();
}
