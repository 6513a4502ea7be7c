use super::layout::{Layout, Spot, batch_of, put_batch};
use super::*;
use crate::store::BatchError;
use crate::store::tests::{batch, buffer, key, open};
use partage_core::base::id::Epoch;
use partage_journal::faulty_disk::FaultyDisk;
use partage_service::shuffle::pool::SlotPlace;
use partage_service::shuffle::record::{Batch, BatchKey, Body, Stream, Tagged};
use partage_service::shuffle::{Durability, Writer};
use std::collections::BTreeSet;

/// Objects in memory, of a store that may take nothing.
#[derive(Debug, Default)]
struct InMemory(Mutex<BTreeMap<String, Bytes>>, AtomicBool);

fn none(path: &str) -> ObjectError {
    ObjectError { is_lost: true, why: format!("{path} is not there") }
}

impl ObjectPlace for InMemory {
    fn url(&self) -> &str {
        "memory"
    }

    fn put(&self, path: &str, bytes: Bytes) -> Result<(), ObjectError> {
        if self.1.load(Ordering::Relaxed) {
            return Err(ObjectError { is_lost: false, why: "403".to_owned() });
        }
        lock(&self.0).insert(path.to_owned(), bytes);
        Ok(())
    }

    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError> {
        let all = lock(&self.0).get(path).cloned().ok_or_else(|| none(path))?;
        let (from, to) = (from as usize, (from + bytes) as usize);
        if to <= all.len() { Ok(all.slice(from..to)) } else { Err(none(path)) }
    }

    fn get_all(&self, path: &str, _: u64) -> Result<Bytes, ObjectError> {
        lock(&self.0).get(path).cloned().ok_or_else(|| none(path))
    }

    fn list(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        let below = format!("{path}/");
        Ok(lock(&self.0).keys().filter(|known| known.starts_with(&below)).cloned().collect())
    }

    fn folders(&self, path: &str) -> Result<Vec<String>, ObjectError> {
        let below = format!("{path}/");
        let objects = lock(&self.0);
        let names = objects.keys().filter_map(|known| Some(known.strip_prefix(&below)?.split_once('/')?.0));
        let names: BTreeSet<&str> = names.collect();
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    fn delete(&self, path: &str) -> Result<(), ObjectError> {
        lock(&self.0).remove(path);
        Ok(())
    }

    fn stop(&self) {}
}

fn objects(place: &Arc<InMemory>) -> Arc<Objects> {
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

fn receipt() -> Arc<Batch> {
    let stream = Stream { writer: Writer::Objects(buffer()), ..key(1, 1, 1).stream };
    Arc::new(Batch {
        key: BatchKey { stream, number: 1 },
        durability: Durability::Disk,
        body: Body::Records(Tagged::new()),
    })
}

/// Puts these batches as one object, and its index.
fn put(objects: &Objects, batches: &[Arc<Batch>]) -> String {
    let folder = objects.folder(ShuffleId(1), PoolSlot(1), &buffer()).unwrap();
    let (mut layout, mut bytes) = (Layout::default(), Vec::new());
    for batch in batches {
        let from = bytes.len() as u64;
        let spot = Spot { object: 1, from, bytes: put_batch(batch, &mut bytes) };
        layout.push(&batch.key.stream.writer, spot);
    }
    objects.place().put(&Objects::object(&folder, 1), bytes.into()).unwrap();
    objects.place().put(&Objects::index(&folder), layout.encode().into()).unwrap();
    folder
}

#[test]
fn the_index_comes_back_and_no_byte_of_it_or_of_a_batch_may_differ() {
    let mut bytes = Vec::new();
    let all: Vec<Arc<Batch>> = (1..=3).map(|number| batch(1, 1, number, 40)).collect();
    let mut layout = Layout::default();
    for (object, batch) in (1..).zip(&all) {
        let from = bytes.len() as u64;
        let spot = Spot { object, from, bytes: put_batch(batch, &mut bytes) };
        layout.push(&batch.key.stream.writer, spot);
        let own = &bytes[from as usize..];
        assert_eq!(batch_of(own).as_ref(), Some(batch.as_ref()));
        for at in 0..own.len() {
            let mut damaged = own.to_vec();
            damaged[at] ^= 1;
            assert_eq!(batch_of(&damaged), None, "byte {at}");
        }
    }
    let form = layout.encode();
    assert_eq!(Layout::decode(&form).as_ref(), Some(&layout));
    assert_eq!(layout.find(&Writer::Buffer(buffer()), 2).map(|(spot, _)| spot.object), Some(2));
    assert_eq!(layout.find(&Writer::Buffer(buffer()), 4), None);
    assert_eq!(layout.find(&Writer::Buffer(buffer()), 0), None);
    for at in 0..form.len() {
        let mut damaged = form.clone();
        damaged[at] ^= 1;
        assert_eq!(Layout::decode(&damaged), None, "byte {at}");
        assert_eq!(Layout::decode(&form[..at]), None, "{at} bytes");
    }
}

#[test]
fn d6_batches_that_have_gone_from_the_disk_are_read_by_their_receipt_and_a_damaged_object_is_no_batch() {
    let (mut store, _) = open(&FaultyDisk::default()).unwrap();
    let (place, all) = (Arc::new(InMemory::default()), [1, 2, 3].map(|number| batch(1, 1, number, 2_000)));
    let objects = objects(&place);
    let reader = store.reader().with_objects(Some(Arc::clone(&objects)));
    store.store(&all).unwrap();
    let folder = put(&objects, &all);
    assert!(reader.permit((ShuffleId(1), PoolSlot(1)), 0).is_some(), "it lies on the disk");
    store.store(&[receipt()]).unwrap();
    store.drop_copies(ShuffleId(1), PoolSlot(1)).unwrap();
    assert!(reader.sizes().is_empty());
    assert!(reader.place(&all[0].key).is_none() && reader.place(&receipt().key).is_some());
    assert!(reader.permit((ShuffleId(1), PoolSlot(1)), 0).is_none());
    let writer = Writer::Buffer(buffer());
    let mut read = Vec::new();
    let part = (ShuffleId(1), PoolSlot(1));
    reader.read_all(part, [(&writer, 0, 3)], |batch| read.push(Arc::clone(batch))).unwrap();
    assert_eq!(read, all);
    assert_eq!(reader.read(&all[1].key), Ok(Arc::clone(&all[1])));
    let beyond = reader.read(&key(1, 1, 4));
    assert!(matches!(beyond, Err(BatchError::Object { is_lost: true, .. })), "{beyond:?}");
    let path = Objects::object(&folder, 1);
    let mut damaged = lock(&place.0).get(&path).unwrap().to_vec();
    damaged[100] ^= 1;
    place.put(&path, damaged.into()).unwrap();
    let read = reader.read(&all[0].key);
    assert!(matches!(read, Err(BatchError::Object { is_lost: true, .. })), "{read:?}");
    assert_eq!(reader.read(&all[2].key), Ok(Arc::clone(&all[2])), "others are as they were");
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
    assert_eq!(lock(&place.0).keys().collect::<Vec<_>>(), ["other/pool/1/x/1/n-1/index"]);
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
    place.1.store(true, Ordering::Relaxed);
    let puts = || objects.noted("put", objects.place().put("x", Bytes::new()));
    assert!(puts().is_err());
    assert!(objects.layout(&folder).is_ok());
    assert!(objects.failing().is_some_and(|why| why.contains("403")));
    // That something is not there says nothing of the store.
    assert!(objects.layout("none").is_err_and(|error| error.is_lost));
    place.1.store(false, Ordering::Relaxed);
    assert!(puts().is_ok());
    assert_eq!((objects.failing(), objects.counts.failures.load(Ordering::Relaxed)), (None, 2));
    assert!(objects.layout("none").is_err_and(|error| error.is_lost));
    assert_eq!(objects.failing(), None);
}

#[test]
fn d6_a_receipt_is_good_where_the_objects_are_seen_and_an_empty_folder_has_lost_nothing() {
    let place = Arc::new(InMemory::default());
    let objects = objects(&place);
    let part = (ShuffleId(1), PoolSlot(1));
    assert!(!objects.sees(part.0, part.1, &buffer()));
    let error = objects.layout("none").unwrap_err();
    assert!(!error.is_lost, "nothing is there at all: it may not be mounted");
    put(&objects, &[batch(1, 1, 1, 10)]);
    assert!(objects.sees(part.0, part.1, &buffer()));
    assert!(!objects.sees(part.0, PoolSlot(2), &buffer()));
    assert!(objects.layout("none").unwrap_err().is_lost);
}

#[test]
fn what_an_index_takes_is_known_before_anything_is_put() {
    let mut layout = Layout::default();
    let writers = [Writer::Buffer(buffer()), Writer::Objects(buffer())];
    for writer in &writers {
        (0..100).for_each(|_| layout.push(writer, Spot { object: 1, from: 0, bytes: 1 }));
    }
    let (form, most) = (layout.encode().len() as u64, Layout::most_bytes([100, 100].into_iter()));
    assert!(form <= most && most < 2 * form, "{form} of {most}");
    assert_eq!(Layout::most_bytes([u64::MAX].into_iter()), u64::MAX);
}
