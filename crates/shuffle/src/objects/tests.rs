use super::layout::{Layout, Run, next_piece, put_piece};
use super::packing::Packing;
use super::*;
use crate::store::tests::{batch, buffer, key, open};
use crate::store::{BatchError, RangeSource};
use partage_core::base::id::Epoch;
use partage_journal::faulty_disk::FaultyDisk;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::plan::{Plan, PlanRange, Winner};
use partage_service::shuffle::pool::SlotPlace;
use partage_service::shuffle::record::{Batch, BatchKey, Body, Segment, Stream, Tagged};
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{AttemptKey, Durability, RangeId, Writer};
use std::cell::Cell;
use std::collections::BTreeSet;

/// Objects in memory, of a store that may take nothing, and answer no read.
#[derive(Debug, Default)]
pub(crate) struct InMemory {
    objects: Mutex<BTreeMap<String, Bytes>>,
    refuses: AtomicBool,
    hangs: AtomicBool,
    /// What each read takes.
    read_ms: AtomicU64,
    /// Indexes that were read, reads that are under way, and the most that were at a time.
    indexes: AtomicU64,
    reads: AtomicU64,
    most_reads: AtomicU64,
}

impl InMemory {
    pub(crate) fn set_hangs(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    fn answer(&self) {
        pause(self.read_ms.load(Ordering::Relaxed));
        // A test that fails ends all the same.
        for _ in 0..30_000 {
            if !self.hangs.load(Ordering::SeqCst) {
                return;
            }
            pause(1);
        }
    }
}

fn pause(ms: u64) {
    std::thread::park_timeout(std::time::Duration::from_millis(ms));
}

fn none(path: &str) -> ObjectError {
    ObjectError { is_lost: true, why: format!("{path} is not there") }
}

impl ObjectPlace for InMemory {
    fn url(&self) -> &str {
        "memory"
    }

    fn put(&self, path: &str, bytes: Bytes) -> Result<(), ObjectError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(ObjectError { is_lost: false, why: "403".to_owned() });
        }
        lock(&self.objects).insert(path.to_owned(), bytes);
        Ok(())
    }

    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError> {
        self.most_reads.fetch_max(self.reads.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.answer();
        self.reads.fetch_sub(1, Ordering::SeqCst);
        let all = lock(&self.objects).get(path).cloned().ok_or_else(|| none(path))?;
        let (from, to) = (from as usize, (from + bytes) as usize);
        if to <= all.len() { Ok(all.slice(from..to)) } else { Err(none(path)) }
    }

    fn get_all(&self, path: &str, _: u64) -> Result<Bytes, ObjectError> {
        self.indexes.fetch_add(1, Ordering::SeqCst);
        self.answer();
        lock(&self.objects).get(path).cloned().ok_or_else(|| none(path))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        let below = format!("{path}/");
        Ok(lock(&self.objects).keys().filter(|known| known.starts_with(&below)).cloned().collect())
    }

    fn folders(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        let below = format!("{path}/");
        let objects = lock(&self.objects);
        let names = objects.keys().filter_map(|known| Some(known.strip_prefix(&below)?.split_once('/')?.0));
        let names: BTreeSet<&str> = names.collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn delete(&self, path: &str) -> Result<(), ObjectError> {
        lock(&self.objects).remove(path);
        Ok(())
    }

    fn stop(&self) {}
}

pub(crate) fn objects(place: &Arc<InMemory>) -> Arc<Objects> {
    let slot = SlotPlace { epoch: Epoch(1), live: Vec::new(), loading: Vec::new() };
    let map = PoolMap {
        generation: 1,
        replicas: 1,
        places: vec![slot; 4],
        nodes: Vec::new(),
        no_stand_ins: Default::default(),
    };
    let place: Arc<dyn ObjectPlace> = Arc::clone(place) as Arc<dyn ObjectPlace>;
    let config = ObjectStoreConfig { place, cluster: Arc::new(|| Some(ClusterId(7))) };
    Arc::new(Objects::new(config, "pool".parse().unwrap(), &map))
}

pub(crate) fn receipt() -> Arc<Batch> {
    let stream = Stream { writer: Writer::Objects(buffer()), ..key(1, 1, 1).stream };
    Arc::new(Batch {
        key: BatchKey { stream, number: 1 },
        durability: Durability::Disk,
        body: Body::Records(Tagged::new()),
    })
}

/// A range of a plan. The tests look at no counts.
fn range(id: u64, since: u32) -> PlanRange {
    let (id, begins, slot) = (RangeId(id), Vec::new().into(), PoolSlot(1));
    PlanRange { id, since, begins, slot, records: 1, bytes: 1 }
}

/// What is read of shuffle 1 in slot 1: the batches of the buffer up to that number, of the attempts 1 to 3.
fn plan(ranges: Vec<PlanRange>, upto: u64) -> Plan {
    let winner =
        |number| (AttemptKey { buffer: buffer(), number }, Winner { partition: 0, records: 1, bytes: 1 });
    Plan {
        shuffle: ShuffleId(1),
        winners: Arc::new((1..=3).map(winner).collect()),
        needed: [(PoolSlot(1), [(Writer::Buffer(buffer()), upto)].into())].into(),
        ranges,
    }
}

/// Puts what a plan reads of these batches, each so many of them as an object, and the index.
fn put_by(objects: &Objects, plan: &Plan, batches: &[Arc<Batch>], each: usize) -> String {
    let folder = objects.folder(ShuffleId(1), PoolSlot(1), &buffer()).unwrap();
    let mut packing = Packing::new(plan, PoolSlot(1));
    for some in batches.chunks(each) {
        some.iter().for_each(|batch| packing.add(batch));
        if let Some((number, bytes)) = packing.object() {
            objects.place().put(&Objects::object(&folder, number), bytes.into()).unwrap();
        }
    }
    objects.place().put(&Objects::index(&folder), packing.layout().encode().into()).unwrap();
    folder
}

/// Puts these batches as one object, and its index.
pub(crate) fn put(objects: &Objects, batches: &[Arc<Batch>]) -> String {
    put_by(objects, &plan(vec![range(1, 0)], batches.len() as u64), batches, batches.len())
}

#[test]
fn the_index_comes_back_and_no_byte_of_it_or_of_a_run_may_differ() {
    let all: Vec<Arc<Batch>> = (1..=3).map(|number| batch(1, 1, number, 40)).collect();
    let mut bytes = Vec::new();
    all.iter().for_each(|batch| put_piece(batch, &mut bytes));
    let read = |bytes: &[u8]| {
        let mut bytes = Bytes::copy_from_slice(bytes);
        let pieces: Option<Vec<Batch>> = (0..3).map(|_| next_piece(&mut bytes)).collect();
        pieces.filter(|_| bytes.is_empty())
    };
    let whole = read(&bytes).unwrap();
    assert!(whole.iter().eq(all.iter().map(Arc::as_ref)));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(read(&damaged), None, "byte {at}");
        assert_eq!(read(&bytes[..at]), None, "{at} bytes");
    }
    let mut layout = Layout::default();
    let writer = Writer::Buffer(buffer());
    (1..=3).for_each(|number| layout.took(&writer, number));
    let run = |object, from| Run { object, from, bytes: 10, pieces: 2 };
    for (id, run) in [(1, run(1, 0)), (2, run(1, 10)), (1, run(2, 0))] {
        layout.push(RangeId(id), run);
    }
    let form = layout.encode();
    assert_eq!(Layout::decode(&form).as_ref(), Some(&layout));
    assert_eq!(layout.runs(RangeId(1)), [run(1, 0), run(2, 0)]);
    assert_eq!((layout.runs(RangeId(2)).len(), layout.runs(RangeId(3)).len()), (1, 0));
    assert!(layout.has([(&writer, &3)]) && !layout.has([(&writer, &4)]));
    assert!(
        layout.has([(&Writer::Objects(buffer()), &0)]) && !layout.has([(&Writer::Objects(buffer()), &1)])
    );
    for at in 0..form.len() {
        let mut damaged = form.clone();
        damaged[at] ^= 1;
        assert_eq!(Layout::decode(&damaged), None, "byte {at}");
        assert_eq!(Layout::decode(&form[..at]), None, "{at} bytes");
    }
}

/// A batch with a segment under each of these tags: its version, range and attempt.
fn tagged(number: u64, tags: &[(u32, u64, u64)]) -> Arc<Batch> {
    let mut body = Tagged::new();
    for (version, range, attempt) in tags {
        let value = format!("{number}/{version}/{range}/{attempt}");
        let records = PackedRecords::pack([(&b"k"[..], value.as_bytes())]);
        let attempt = AttemptKey { buffer: buffer(), number: *attempt };
        let segment = Segment { attempt, partition: 0, frame: number, records };
        body.entry(Tag { version: *version, range: RangeId(*range) }).or_default().push(segment);
    }
    Arc::new(Batch { key: key(1, 1, number), durability: Durability::Disk, body: Body::Records(body) })
}

#[test]
fn a_range_reads_its_own_bytes_and_nothing_is_put_that_is_not_read() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    // Range 1 is read from version 1 on; attempt 9 has lost.
    let plan = plan(vec![range(1, 1), range(2, 0)], 4);
    let all = [
        tagged(1, &[(0, 1, 1), (0, 2, 1), (1, 1, 1)]),
        tagged(2, &[(1, 2, 2), (1, 2, 9)]),
        tagged(3, &[(1, 1, 9), (0, 7, 1)]),
        tagged(4, &[(1, 1, 3), (1, 2, 3)]),
    ];
    let folder = put_by(&objects, &plan, &all, 2);
    let read = |at: usize, after: Option<BatchKey>| {
        let (range, before) = (&plan.ranges[at], objects.counts.read_bytes.load(Ordering::Relaxed));
        let (mut after, mut records) = (after, Vec::new());
        let read = objects.read_range((&plan, range), &buffer(), &mut after, |batch| {
            let placed = plan.collect(range, [batch]);
            records.extend(placed.placed().map(|one| String::from_utf8(one.value.to_vec()).unwrap()));
            true
        });
        read.unwrap();
        records.sort();
        (records, objects.counts.read_bytes.load(Ordering::Relaxed) - before)
    };
    let (one, of_one) = read(0, None);
    assert_eq!(one, ["1/1/1/1", "4/1/1/3"]);
    let (two, of_two) = read(1, None);
    assert_eq!(two, ["1/0/2/1", "2/1/2/2", "4/1/2/3"]);
    assert_eq!(read(1, Some(key(1, 1, 1))).0, ["2/1/2/2", "4/1/2/3"], "it goes on behind a batch");
    let put: usize = lock(&place.objects)
        .iter()
        .filter(|(path, _)| !path.ends_with("index"))
        .map(|(_, all)| all.len())
        .sum();
    assert_eq!(of_one + of_two, put as u64, "each byte is of one range");
    assert!(of_one < of_two);
    // An index of fewer batches than are needed has not all.
    let more =
        Plan { needed: [(PoolSlot(1), [(Writer::Buffer(buffer()), 5)].into())].into(), ..plan.clone() };
    let error = objects.read_range((&more, &more.ranges[0]), &buffer(), &mut None, |_| true).unwrap_err();
    assert!(error.is_lost && error.why.contains(&folder), "{error}");
}

#[test]
fn r1_an_object_and_a_run_end_when_they_have_their_bytes() {
    let plan = plan(vec![range(1, 0), range(2, 0)], 9);
    let mut packing = Packing::new(&plan, PoolSlot(1));
    let mut objects = Vec::new();
    for number in 1..=3 {
        packing.add(&batch(1, 1, number, 3 << 20));
        if packing.is_full() {
            objects.extend(packing.object());
        }
    }
    assert_eq!(objects.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1]);
    assert!(objects[0].1.len() > 9 << 20 && packing.object().is_none());
    // Of an attempt that has lost nothing is put.
    packing.add(&batch(1, 1, 4, 10));
    assert!(packing.object().is_none() && !packing.is_full());
    let layout = packing.layout();
    let pieces: Vec<u32> = layout.runs(RangeId(1)).iter().map(|run| run.pieces).collect();
    assert_eq!(pieces, [2, 1], "a run of four megabytes has an end");
    assert!(layout.runs(RangeId(2)).is_empty() && layout.has([(&Writer::Buffer(buffer()), &4)]));
}

#[test]
fn d6_a_run_with_a_piece_twice_or_in_another_order_is_refused() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let plan = plan(vec![range(1, 0)], 3);
    let all: Vec<Arc<Batch>> = (1..=3).map(|number| batch(1, 1, number, 40)).collect();
    let read = || {
        let range = &plan.ranges[0];
        let mut numbers = Vec::new();
        let read = objects.read_range((&plan, range), &buffer(), &mut None, |batch| {
            numbers.push(batch.key.number);
            true
        });
        read.map(|()| numbers)
    };
    let folder = put_by(&objects, &plan, &all, 1);
    assert_eq!(read(), Ok(vec![1, 2, 3]));
    let second = lock(&place.objects).get(&Objects::object(&folder, 2)).cloned().unwrap();
    for at in [1, 3] {
        let path = Objects::object(&folder, at);
        let own = lock(&place.objects).insert(path.clone(), second.clone()).unwrap();
        let refused = read().unwrap_err();
        assert!(refused.is_lost && refused.why.contains("differs"), "{refused}");
        lock(&place.objects).insert(path, own);
    }
    assert_eq!(read(), Ok(vec![1, 2, 3]));
}

#[test]
fn d6_ranges_that_have_gone_from_the_disk_are_read_by_their_receipt_and_a_damaged_object_is_no_range() {
    let (mut store, _) = open(&FaultyDisk::default()).unwrap();
    let (place, all) = (Arc::new(InMemory::default()), [1, 2, 3].map(|number| batch(1, 1, number, 2_000)));
    let objects = objects(&place);
    let reader = store.reader().with_objects(Some(Arc::clone(&objects)));
    let (plan, source) = (plan(vec![range(1, 0)], 3), Cell::new(RangeSource::DiskAndObjects));
    let read = || {
        let mut read = Vec::new();
        let done = reader.read_range(source.get(), (&plan, &plan.ranges[0]), |batch| {
            read.push(Arc::clone(batch));
            true
        });
        done.map(|()| read)
    };
    store.store(&all).unwrap();
    let folder = put(&objects, &all);
    assert!(!reader.is_offloaded(&plan, PoolSlot(1)), "it lies on the disk");
    assert_eq!(read(), Ok(all.to_vec()));
    store.store(&[receipt()]).unwrap();
    assert!(!reader.is_offloaded(&plan, PoolSlot(1)), "it still does");
    // One batch has gone, and then all.
    store.forget(&all[1].key, reader.place(&all[1].key).unwrap()).unwrap();
    assert_eq!(read(), Ok(all.to_vec()), "the first from the disk, the others from there");
    // A thread that may not ask the store hears where the range is.
    let before = objects.counts.read_bytes.load(Ordering::Relaxed);
    source.set(RangeSource::Disk);
    assert_eq!(read(), Err(BatchError::Moved(all[1].key.clone())));
    assert_eq!(objects.counts.read_bytes.load(Ordering::Relaxed), before);
    source.set(RangeSource::DiskAndObjects);
    store.drop_copies(ShuffleId(1), PoolSlot(1)).unwrap();
    assert!(reader.sizes().is_empty());
    assert!(reader.place(&all[0].key).is_none() && reader.place(&receipt().key).is_some());
    assert!(reader.is_offloaded(&plan, PoolSlot(1)) && !reader.is_offloaded(&plan, PoolSlot(2)));
    assert_eq!(read(), Ok(all.to_vec()));
    assert!(matches!(reader.read(&all[1].key), Err(BatchError::Absent(_))));
    let path = Objects::object(&folder, 1);
    let whole = lock(&place.objects).get(&path).cloned().unwrap();
    let mut damaged = whole.to_vec();
    damaged[100] ^= 1;
    place.put(&path, damaged.into()).unwrap();
    let refused = read();
    assert!(matches!(refused, Err(BatchError::Object { is_lost: true, .. })), "{refused:?}");
    place.put(&path, whole).unwrap();
    assert_eq!(read(), Ok(all.to_vec()));
}

#[test]
fn x13_what_is_found_of_a_home_is_deleted_by_its_slot_and_nothing_else() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    put(&objects, &[batch(1, 1, 1, 10)]);
    place.put("other/pool/1/x/1/n-1/index", Bytes::new()).unwrap();
    let home = PoolMap::home_among(ShuffleId(1), 4);
    assert_eq!(objects.found(home, 9).unwrap(), [(ShuffleId(1), PoolSlot(1))]);
    assert!(objects.found(PoolSlot((home.0 + 1) % 4), 9).unwrap().is_empty());
    objects.delete(ShuffleId(1), PoolSlot(11)).unwrap();
    assert_eq!(objects.found(home, 9).unwrap().len(), 1);
    objects.delete(ShuffleId(1), PoolSlot(1)).unwrap();
    assert_eq!(lock(&place.objects).keys().collect::<Vec<_>>(), ["other/pool/1/x/1/n-1/index"]);
    assert_eq!(objects.counts.deleted.load(Ordering::Relaxed), 2);
}

#[test]
fn x13_what_is_found_is_bounded_and_the_next_look_goes_on() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let home = objects.home(PoolSlot(0)).unwrap();
    for shuffle in 1..=5 {
        for slot in [1, 2] {
            let path = format!("{home}/{}/{slot}/n-1/index", ShuffleId(shuffle));
            place.put(&path, Bytes::new()).unwrap();
        }
    }
    let mut looks = Vec::new();
    for _ in 0..3 {
        looks.push(objects.found(PoolSlot(0), 4).unwrap());
        assert_eq!(looks.last().map(Vec::len), Some(4));
    }
    let all: BTreeSet<(ShuffleId, PoolSlot)> = looks.into_iter().flatten().collect();
    assert_eq!(all.len(), 10);
}

#[test]
fn a_store_that_gives_and_takes_nothing_is_said_to_refuse() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let folder = put(&objects, &[batch(1, 1, 1, 10)]);
    place.refuses.store(true, Ordering::Relaxed);
    let puts = || objects.noted("put", objects.place().put("x", Bytes::new()));
    assert!(puts().is_err());
    assert!(objects.has_index(&folder).is_ok());
    assert!(objects.failing().is_some_and(|why| why.contains("403")));
    // That something is not there says nothing of the store.
    assert!(objects.has_index("none").is_err_and(|error| error.is_lost));
    place.refuses.store(false, Ordering::Relaxed);
    assert!(puts().is_ok());
    assert_eq!((objects.failing(), objects.counts.failures.load(Ordering::Relaxed)), (None, 2));
    assert!(objects.has_index("none").is_err_and(|error| error.is_lost));
    assert_eq!(objects.failing(), None);
}

#[test]
fn d6_a_receipt_is_good_where_the_objects_are_seen_and_an_empty_folder_has_lost_nothing() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let part = (ShuffleId(1), PoolSlot(1));
    assert!(!objects.sees(part.0, part.1, &buffer()));
    let error = objects.has_index("none").unwrap_err();
    assert!(!error.is_lost, "nothing is there at all: it may not be mounted");
    put(&objects, &[batch(1, 1, 1, 10)]);
    assert!(objects.sees(part.0, part.1, &buffer()));
    assert!(!objects.sees(part.0, PoolSlot(2), &buffer()));
    assert!(objects.has_index("none").unwrap_err().is_lost);
}

#[test]
fn d6_what_is_kept_of_an_index_says_nothing_of_objects_that_have_gone() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let (plan, sees) = (plan(vec![range(1, 0)], 1), || objects.sees(ShuffleId(1), PoolSlot(1), &buffer()));
    let read = || objects.read_range((&plan, &plan.ranges[0]), &buffer(), &mut None, |_| true);
    let all = [batch(1, 1, 1, 40)];
    let folder = put_by(&objects, &plan, &all, 1);
    assert_eq!(read(), Ok(()));
    assert!(objects.memory_bytes() > 0 && sees());
    // Others have deleted the index, and this node reads by what it keeps: only a look says so.
    place.delete(&Objects::index(&folder)).unwrap();
    assert_eq!(read(), Ok(()));
    assert!(!sees() && read().unwrap_err().is_lost);
    assert_eq!(objects.memory_bytes(), 0);
    // An object that has gone ends what is kept, too.
    put_by(&objects, &plan, &all, 1);
    assert_eq!(read(), Ok(()));
    place.delete(&Objects::object(&folder, 1)).unwrap();
    assert!(read().unwrap_err().is_lost);
    assert_eq!(objects.memory_bytes(), 0);
}

#[test]
fn r1_of_a_shuffle_that_has_ended_no_index_is_kept() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    put(&objects, &[batch(1, 1, 1, 10)]);
    let sees = || objects.sees(ShuffleId(1), PoolSlot(1), &buffer()) && objects.memory_bytes() > 0;
    assert!(sees());
    objects.forget(ShuffleId(2));
    assert!(objects.memory_bytes() > 0);
    objects.forget(ShuffleId(1));
    assert_eq!(objects.memory_bytes(), 0);
    assert!(sees());
    objects.delete(ShuffleId(1), PoolSlot(1)).unwrap();
    assert_eq!(objects.memory_bytes(), 0);
}

#[test]
fn r3_the_first_read_after_a_rest_is_alone_and_the_others_of_its_range_are_not() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let plan = plan(vec![range(1, 0)], 6);
    let all: Vec<Arc<Batch>> = (1..=6).map(|number| batch(1, 1, number, 40)).collect();
    let folder = put_by(&objects, &plan, &all, 1);
    objects.has_index(&folder).unwrap();
    // Each read takes long enough that others would begin meanwhile.
    place.read_ms.store(200, Ordering::Relaxed);
    for _ in 0..2 {
        *lock(&objects.rest) = ReadRest::over();
        place.most_reads.store(0, Ordering::SeqCst);
        let (mut numbers, mut most_before) = (Vec::new(), u64::MAX);
        let read = objects.read_range((&plan, &plan.ranges[0]), &buffer(), &mut None, |batch| {
            most_before = most_before.min(place.most_reads.load(Ordering::SeqCst));
            numbers.push(batch.key.number);
            true
        });
        assert_eq!(
            (most_before, place.most_reads.load(Ordering::SeqCst)),
            (1, 2),
            "two runs behind the first one"
        );
        // Attempts 4 to 6 have not won.
        assert_eq!(read.map(|()| numbers), Ok(vec![1, 2, 3]));
        assert!(!lock(&objects.rest).waits_for_trial());
    }
}

#[test]
fn an_index_that_several_readers_miss_is_read_once() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let plan = plan(vec![range(1, 0)], 3);
    let all: Vec<Arc<Batch>> = (1..=3).map(|number| batch(1, 1, number, 40)).collect();
    put_by(&objects, &plan, &all, 1);
    place.read_ms.store(50, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                objects.read_range((&plan, &plan.ranges[0]), &buffer(), &mut None, |_| true).unwrap();
            });
        }
    });
    assert_eq!(place.indexes.load(Ordering::SeqCst), 1);
}

#[test]
fn r1_a_look_at_what_another_node_has_put_waits_for_no_reads() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    put(&objects, &[batch(1, 1, 1, 10)]);
    let all = objects.memory.take(u64::MAX / 2);
    assert!(objects.sees(ShuffleId(1), PoolSlot(1), &buffer()));
    assert_eq!(objects.memory.bytes(), u64::MAX / 2);
    drop(all);
}

#[test]
fn what_an_index_takes_is_known_before_anything_is_put() {
    let mut layout = Layout::default();
    [Writer::Buffer(buffer()), Writer::Objects(buffer())].iter().for_each(|writer| layout.took(writer, 7));
    for (range, object) in (0..100).flat_map(|range| (1..=50).map(move |object| (range, object))) {
        layout.push(RangeId(range), Run { object, from: 0, bytes: 1, pieces: 1 });
    }
    let (form, most) = (layout.encode().len() as u64, Layout::most_bytes(2, 100, 50));
    assert!(form <= most && most < 2 * form, "{form} of {most}");
    assert_eq!(Layout::most_bytes(1, 2, u64::MAX), u64::MAX);
}
