use super::*;
use crate::node::storing::{Groups, Order, Storing};
use crate::objects::tests as of_objects;
use crate::store::Store;
use crate::store::tests::{batch, buffer, key, open};
use partage_journal::faulty_disk::FaultyDisk;
use partage_service::shuffle::bounds::{Bounds, Tag};
use partage_service::shuffle::plan::{Placed, Winner};
use partage_service::shuffle::record::{MEMORY_OF_RECORD, MEMORY_OF_SEGMENT};
use partage_service::shuffle::{AttemptKey, Durability, Writer};
use std::time::Duration;
use tempfile::TempDir;

const SLOT: PoolSlot = PoolSlot(1);

/// The plan of the first three batches, each of a record of 50 bytes and a key of 8.
fn plan() -> Arc<Plan> {
    let winner = |number| {
        let attempt = AttemptKey { buffer: buffer(), number };
        (attempt, Winner { partition: 0, records: 1, bytes: 58 })
    };
    let (id, begins) = (RangeId(1), Vec::new().into());
    let range = PlanRange { id, since: 0, begins, slot: SLOT, records: 3, bytes: 3 * 58 };
    Arc::new(Plan {
        shuffle: ShuffleId(1),
        winners: Arc::new((1..=3).map(winner).collect()),
        needed: [(SLOT, [(Writer::Buffer(buffer()), 3)].into())].into(),
        ranges: vec![range],
    })
}

fn division(shuffle: u128) -> Arc<Division> {
    Arc::new(Division {
        task: TaskId { epoch: Epoch(1), number: 1 },
        shuffle: ShuffleId(shuffle),
        slot: SLOT,
        tags: [(Tag { version: 0, range: RangeId(1) }, BTreeMap::new())].into(),
        upto: [(Writer::Buffer(buffer()), 3)].into(),
        to: Arc::new(Bounds::stashes(2)),
        durability: Durability::Disk,
    })
}

fn start(store: &Store, inbox: &Arc<Inbox>, range_bytes: u64) -> (Reading, TempDir) {
    start_with(&store.reader(), inbox, range_bytes, 20_000)
}

fn start_with(
    reader: &BatchReader,
    inbox: &Arc<Inbox>,
    range_bytes: u64,
    wait_ms: u64,
) -> (Reading, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, threads, file_bytes, idle_ms) = (16, 1, 1 << 20, 60_000);
    let (answer_bytes, path) = (1 << 20, folder.path().to_owned());
    let settings = ReadingSettings {
        jobs,
        threads,
        range_bytes,
        answer_bytes,
        file_bytes,
        wait_ms,
        idle_ms,
        folder: path,
    };
    (Reading::start(reader, inbox, Clock::start(), &settings).unwrap(), folder)
}

/// What comes of a count, a division and a read, in this order.
fn answers(reading: &Reading, inbox: &Inbox, number: u64) -> Vec<Done> {
    let leader = buffer().node;
    let slice = Slice { plan: plan(), range: 0, keys: None, from: 0, to: 3 };
    reading.job(Job::Count(leader.clone(), Epoch(1), plan(), SLOT)).unwrap();
    reading.job(Job::Divide(leader, division(1))).unwrap();
    reading.job(Job::Read(number, slice, Millis(0))).unwrap();
    let mut all = Vec::new();
    while !matches!(all.last(), Some(Done::Read(..))) {
        all.extend(inbox.take(Duration::from_secs(20)).unwrap().done);
    }
    all
}

#[test]
fn x8_a_batch_that_has_gone_meanwhile_makes_no_answer() {
    let (mut store, _) = open(&FaultyDisk::default()).unwrap();
    let all: Vec<Arc<Batch>> = (1..=4).map(|number| batch(1, 1, number, 50)).collect();
    store.store(&all).unwrap();
    let inbox = Arc::new(Inbox::new(16, 1 << 20));
    let (reading, _folder) = start(&store, &inbox, 1 << 20);
    match &answers(&reading, &inbox, 1)[..] {
        [Done::Counted(_, counted), Done::Divided(_, _, segments, _), Done::Read(1, Ok(read))] => {
            let counts = [(RangeId(1), (3, 3 * 58))].into();
            assert_eq!(*counted, Message::Counted(ShuffleId(1), Epoch(1), SLOT, counts));
            assert_eq!((segments.len(), read.len()), (3, 3), "the fourth batch is not wanted");
        }
        other => panic!("{other:?}"),
    }
    reading.ranges().remove_shuffle(ShuffleId(1));
    store.forget(&key(1, 1, 2), reading.place(&key(1, 1, 2)).unwrap()).unwrap();
    match &answers(&reading, &inbox, 2)[..] {
        [Done::Read(2, Err(NotRead::Lacks))] => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn divisions_of_two_shuffles_with_one_number_are_two_jobs() {
    let leader = buffer().node;
    let name = |shuffle| Job::Divide(leader.clone(), division(shuffle)).name();
    assert_ne!(name(1), name(2));
    assert_eq!(name(1), name(1));
}

/// The answer to a read that is asked again while the node sorts.
fn read(reading: &Reading, inbox: &Inbox, number: u64) -> (Result<OrderedRecords, NotRead>, u64) {
    read_by(&plan(), reading, inbox, number)
}

fn read_by(
    plan: &Arc<Plan>,
    reading: &Reading,
    inbox: &Inbox,
    number: u64,
) -> (Result<OrderedRecords, NotRead>, u64) {
    let slice = Slice { plan: Arc::clone(plan), range: 0, keys: None, from: 0, to: 3 };
    for sorts in 0..2_000 {
        reading.job(Job::Read(number + sorts, slice.clone(), Millis::NEVER)).unwrap();
        let answer = loop {
            let done = inbox.take(Duration::from_secs(20)).unwrap().done.pop_front();
            if let Some(Done::Read(_, answer)) = done {
                break answer;
            }
        };
        if answer != Err(NotRead::Sorts) {
            return (answer, sorts);
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("it was never sorted");
}

#[test]
fn r1_a_range_that_is_larger_than_the_memory_is_sorted_on_disk_once() {
    let (mut store, _) = open(&FaultyDisk::default()).unwrap();
    let all: Vec<Arc<Batch>> = (1..=4).map(|number| batch(1, 1, number, 50)).collect();
    store.store(&all).unwrap();
    let inbox = Arc::new(Inbox::new(16, 1 << 20));
    let (in_memory, _other) = start(&store, &inbox, 1 << 20);
    let (expected, none) = read(&in_memory, &inbox, 1);
    assert_eq!((expected.as_ref().unwrap().len(), none, in_memory.uses().files), (3, 0, 0));
    let (reading, folder) = start(&store, &inbox, 400);
    let (found, sorts) = read(&reading, &inbox, 1);
    assert!(sorts > 0);
    assert_eq!(found, expected);
    let uses = reading.uses();
    assert!(uses.memory == 0 && uses.peak <= 400 && uses.files > 3 * 58, "{uses:?}");
    // Further pieces come from the file: the batches may even have gone.
    store.forget(&key(1, 1, 2), reading.place(&key(1, 1, 2)).unwrap()).unwrap();
    assert_eq!(read(&reading, &inbox, 5_000), (expected, 0));
    reading.ranges().remove_shuffle(ShuffleId(1));
    assert_eq!(reading.uses().files, 0);
    assert_eq!(read(&reading, &inbox, 9_000).0, Err(NotRead::Lacks));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // Without room for it the range is not sorted, and the next one hears so.
    store.store(&all[1..2]).unwrap();
    drop(folder);
    assert_eq!(read(&reading, &inbox, 20_000).0, Err(NotRead::Busy));
}

#[test]
fn r1_an_answer_of_records_of_length_zero_has_an_end() {
    let nothing =
        Placed { key: Vec::new().into(), partition: 0, frame: 1, index: 0, value: Vec::new().into() };
    let all = OrderedRecords::of(&vec![nothing; 200_000]).unwrap();
    let answer = all.within(1 << 20);
    assert!((1_000..200_000).contains(&answer.len()), "{} records", answer.len());
    assert_eq!(answer.within(1).len(), 1);
}

/// A node with three batches on its disk.
fn three() -> (Store, Arc<Inbox>) {
    let (mut store, _) = open(&FaultyDisk::default()).unwrap();
    let all: Vec<Arc<Batch>> = (1..=3).map(|number| batch(1, 1, number, 50)).collect();
    store.store(&all).unwrap();
    (store, Arc::new(Inbox::new(16, 1 << 20)))
}

#[test]
fn r1_what_a_division_takes_beyond_its_part_is_counted_until_the_buffer_has_it() {
    let (store, inbox) = three();
    let (reading, _folder) = start(&store, &inbox, 400);
    reading.job(Job::Divide(buffer().node, division(1))).unwrap();
    let done = inbox.take(Duration::from_secs(20)).unwrap().done.pop_front();
    assert!(matches!(&done, Some(Done::Divided(_, _, segments, _)) if segments.len() == 3), "{done:?}");
    assert_eq!(reading.uses().memory, 3 * (MEMORY_OF_SEGMENT + MEMORY_OF_RECORD + 58));
    drop(done);
    assert_eq!(reading.uses().memory, 0);
}

#[test]
fn a_read_for_which_nobody_waits_any_more_is_not_carried_out() {
    let (store, inbox) = three();
    let (reading, _folder) = start_with(&store.reader(), &inbox, 1 << 20, 0);
    let slice = Slice { plan: plan(), range: 0, keys: None, from: 0, to: 3 };
    reading.job(Job::Read(9, slice, Millis(0))).unwrap();
    let done = inbox.take(Duration::from_secs(20)).unwrap().done.pop_front();
    assert!(matches!(&done, Some(Done::Read(9, Err(NotRead::Busy)))), "{done:?}");
}

#[test]
fn d7_what_is_kept_of_a_shuffle_goes_behind_its_batches() {
    let (store, inbox) = three();
    let (reading, _folder) = start(&store, &inbox, 1 << 20);
    assert_eq!(read(&reading, &inbox, 1).0.map(|found| found.len()), Ok(3));
    assert!(reading.uses().memory > 0);
    let orders = (4, Groups::new(1 << 20, 1 << 20));
    let storing = Storing::start(store, reading.ranges(), Arc::clone(&inbox), orders).unwrap();
    storing.order(Order::DropShuffle(ShuffleId(1)));
    drop(storing);
    assert_eq!(reading.uses().memory, 0);
    assert_eq!(read(&reading, &inbox, 9).0, Err(NotRead::Lacks));
}

#[test]
fn r3_a_range_that_goes_to_the_object_store_while_it_is_read_holds_up_no_thread_that_reads_disks() {
    // In memory, and on disk.
    for range_bytes in [1 << 20, 400] {
        let place = Arc::new(of_objects::InMemory::default());
        let objects = of_objects::objects(&place);
        let all: Vec<Arc<Batch>> = (1..=3).map(|number| batch(1, 1, number, 50)).collect();
        of_objects::put(&objects, &all);
        let (mut store, _) = open(&FaultyDisk::default()).unwrap();
        // As many batches are here as are needed, though not the first one: that is seen when it is read.
        let mut stored = vec![batch(1, 1, 0, 50), of_objects::receipt()];
        stored.extend(all[1..].iter().cloned());
        stored.extend((1..=3).map(|number| batch(2, 1, number, 50)));
        store.store(&stored).unwrap();
        let reader = store.reader().with_objects(Some(objects));
        assert!(!reader.is_offloaded(&plan(), SLOT));
        let inbox = Arc::new(Inbox::new(16, 1 << 20));
        let (reading, _folder) = start_with(&reader, &inbox, range_bytes, 20_000);
        place.set_hangs(true);
        let slice = Slice { plan: plan(), range: 0, keys: None, from: 0, to: 3 };
        reading.job(Job::Read(1, slice, Millis::NEVER)).unwrap();
        let done = inbox.take(Duration::from_secs(20)).unwrap().done.pop_front();
        assert!(matches!(&done, Some(Done::Read(1, Err(NotRead::Sorts)))), "{done:?}");
        let other = Arc::new(Plan { shuffle: ShuffleId(2), ..plan().as_ref().clone() });
        let (found, _) = read_by(&other, &reading, &inbox, 10);
        assert_eq!(found.map(|found| found.len()), Ok(3), "it lies on the disk");
        place.set_hangs(false);
        let (found, _) = read(&reading, &inbox, 5_000);
        let keys = found.map(|found| found.iter().map(|one| one.key.to_vec()).collect::<Vec<_>>());
        assert_eq!(keys, Ok((1..=3_u64).map(|number| number.to_be_bytes().to_vec()).collect::<Vec<_>>()));
    }
}
