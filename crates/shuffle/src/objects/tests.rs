use super::layout::{Layout, Spot, batch_of, put_batch};
use super::*;
use crate::store::BatchError;
use crate::store::tests::{batch, buffer, key, open};
use partage_core::base::id::Epoch;
use partage_journal::faulty_disk::FaultyDisk;
use partage_service::shuffle::pool::SlotPlace;
use partage_service::shuffle::record::{Batch, BatchKey, Body, Stream, Tagged};
use partage_service::shuffle::{Durability, Writer};

/// Objects in memory.
#[derive(Debug, Default)]
struct InMemory(Mutex<BTreeMap<String, Bytes>>);

fn none(path: &str) -> ObjectError {
    ObjectError { is_lost: true, why: format!("{path} is not there") }
}

impl ObjectPlace for InMemory {
    fn url(&self) -> &str {
        "memory"
    }

    fn put(&self, path: &str, bytes: Bytes) -> Result<(), ObjectError> {
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
    assert_eq!(objects.found(home).unwrap(), [(ShuffleId(1), PoolSlot(1))]);
    assert!(objects.found(PoolSlot((home.0 + 1) % 4)).unwrap().is_empty());
    objects.delete(ShuffleId(1), PoolSlot(11)).unwrap();
    assert_eq!(objects.found(home).unwrap().len(), 1);
    objects.delete(ShuffleId(1), PoolSlot(1)).unwrap();
    assert_eq!(lock(&place.0).keys().collect::<Vec<_>>(), ["other/pool/1/x/1/n-1/index"]);
    assert_eq!(objects.counts.deleted.load(Ordering::Relaxed), 2);
}
