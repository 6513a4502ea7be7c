//! D8, exhaustively on a small METADATA file: no flipped bit, cut, torn or misplaced write is ever served.

use super::*;
use partage_core::base::id::{Generation, Incarnation};
use partage_core::base::name::NodeId;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_journal::faulty_disk::{Fault, FaultyDisk};

fn keyspace() -> KeyspaceName {
    KeyspaceName::new("ks").unwrap()
}

fn empty() -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    ShardMap::empty(keyspace(), sharding, PartitionKey::default())
}

fn next(map: &ShardMap, number: u8) -> MapDiff {
    let mut edit = map.edit();
    match map.shards().next().map(|shard| shard.id) {
        None => drop(edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap().next()),
        Some(shard) => {
            let node = NodeId::new(&format!("node-{number}")).unwrap();
            edit.add_replica(shard, &node, Incarnation(1), None).unwrap();
        }
    }
    edit.commit(TransactionId([number; 20]))
}

/// A map at sequence 1, and operations on it.
fn history(operations: u8) -> (ShardMap, Vec<MapDiff>) {
    let mut map = empty();
    map.apply(&next(&empty(), 1)).unwrap();
    let (first, mut diffs) = (map.clone(), Vec::new());
    for number in 0..operations {
        let diff = next(&map, 2 + number);
        map.apply(&diff).unwrap();
        diffs.push(diff);
    }
    (first, diffs)
}

const NAME: TransactionId = TransactionId([1; 20]);

fn open(disk: &FaultyDisk) -> Opened {
    MapFiles::open(Arc::new(disk.clone()), Path::new("/d"), &keyspace(), 0).unwrap()
}

/// A file with so many operations, and what it says after each: by where its record ends.
fn sample(operations: u8) -> (Vec<u8>, Vec<(usize, StoredMapFile)>) {
    let disk = FaultyDisk::default();
    let (mut files, ..) = open(&disk);
    let (map, diffs) = history(operations);
    files.write(NAME, &map, std::iter::empty()).unwrap();
    let mut states = vec![(files.files[&NAME].log.end() as usize, StoredMapFile { map, operations: vec![] })];
    for diff in diffs {
        files.append(NAME, &diff).unwrap();
        let mut stored = states.last().unwrap().1.clone();
        stored.operations.push(diff);
        states.push((files.files[&NAME].log.end() as usize, stored));
    }
    (disk.read(&files.path(NAME)).unwrap(), states)
}

#[test]
fn what_was_written_is_read_back_and_goes_on() {
    let disk = FaultyDisk::default();
    let (map, diffs) = history(5);
    {
        let (mut files, ..) = open(&disk);
        files.write(NAME, &map, diffs[..2].iter()).unwrap();
        files.append(NAME, &diffs[2]).unwrap();
    }
    let (mut files, found, damaged) = open(&disk);
    assert_eq!((found, damaged), (vec![(NAME, map.clone(), diffs[..3].to_vec())], vec![]));
    files.append(NAME, &diffs[3]).unwrap();
    files.drop_operation(NAME, diffs[3].to.transaction).unwrap();
    let (mut files, found, _) = open(&disk);
    assert_eq!(found, [(NAME, map, diffs[..3].to_vec())]);
    files.remove(NAME).unwrap();
    assert!(open(&disk).1.is_empty());
}

#[test]
fn d8_every_flipped_bit_is_found() {
    let (bytes, states) = sample(4);
    let (end, full) = states.last().unwrap();
    for byte in (0..end + 96).chain((end + 96..bytes.len()).step_by(509)) {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[byte] ^= 1 << bit;
            match read(&flipped, &keyspace(), NAME) {
                Err(damage) => {
                    assert!(damage.offset as usize <= byte, "bit {bit} of byte {byte}: {damage:?}")
                }
                Ok((contents, _, stored)) => {
                    assert!(byte >= *end, "bit {bit} of byte {byte} went unnoticed");
                    assert!(contents.torn);
                    assert_eq!(stored, *full);
                }
            }
        }
    }
}

#[test]
fn d8_every_cut_is_found_and_an_unfinished_write_is_dropped() {
    let (bytes, states) = sample(3);
    for length in (0..states.last().unwrap().0 + 64).chain((0..bytes.len()).step_by(4096)) {
        assert!(read(&bytes[..length], &keyspace(), NAME).is_err(), "a cut at {length} went unnoticed");
    }
    let (start, before) = &states[states.len() - 2];
    for stopped in *start..states.last().unwrap().0 {
        let mut torn = bytes.clone();
        torn[stopped..].fill(0);
        let (contents, _, stored) = read(&torn, &keyspace(), NAME).unwrap();
        assert_eq!((contents.end, &stored), (*start, before), "stopped at {stopped}");
    }
}

#[test]
fn d8_a_misplaced_sector_or_a_file_of_another_is_found() {
    let (bytes, states) = sample(12);
    let end = states.last().unwrap().0;
    let sectors = end / 512 + 2;
    for from in 0..sectors {
        for to in 0..sectors {
            let mut moved = bytes.clone();
            moved.copy_within(from * 512..(from + 1) * 512, to * 512);
            if moved == bytes {
                continue;
            }
            match read(&moved, &keyspace(), NAME) {
                Err(_) => {}
                Ok((.., stored)) => {
                    // Zeros over the very last sectors cannot be told from a write that never happened.
                    let last = states[states.len() - 2].0;
                    assert!((to + 1) * 512 > last, "sector {from} over {to} went unnoticed");
                    assert!(states.iter().any(|(_, state)| *state == stored));
                }
            }
        }
    }
    let other = KeyspaceName::new("other").unwrap();
    assert!(read(&bytes, &other, NAME).is_err(), "the file of another keyspace");
    assert!(read(&bytes, &keyspace(), TransactionId([2; 20])).is_err(), "the file of another name");
}

#[test]
fn a_damaged_file_is_put_aside_and_named() {
    let disk = FaultyDisk::default();
    let (map, _) = history(0);
    open(&disk).0.write(NAME, &map, std::iter::empty()).unwrap();
    let path = Path::new("/d/ks").join(format!("{NAME}.metadata"));
    disk.open(&path).unwrap().write_at(80, &[1, 2, 3]).unwrap();
    let (_, found, damaged) = open(&disk);
    assert!(found.is_empty());
    assert_eq!(damaged[0].damage.offset, 64);
    assert!(damaged[0].path.to_str().unwrap().ends_with(".metadata.damaged"));
    assert_eq!(open(&disk).2, [], "it is put aside once");
}

#[test]
fn power_loss_at_every_operation_loses_nothing_that_was_acknowledged() {
    let (map, diffs) = history(6);
    for after in 0..40 {
        for draw in 0..8u32 {
            let disk = FaultyDisk::default();
            let (mut files, ..) = open(&disk);
            disk.arm(after, Fault::Power);
            let mut kept: Vec<MapDiff> = Vec::new();
            let mut begun = files.write(NAME, &map, std::iter::empty()).is_ok();
            if begun {
                for (at, diff) in diffs.iter().enumerate() {
                    if files.append(NAME, diff).is_err() {
                        break;
                    }
                    kept.push(diff.clone());
                    if at == 3 && files.write(NAME, &map, kept.clone().iter()).is_err() {
                        break;
                    }
                }
            }
            let mut state = draw.wrapping_mul(0x9e37_79b9) | 1;
            disk.lose_power(|| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state & 8 == 8
            });
            let (_, found, damaged) = open(&disk);
            assert_eq!(damaged, [], "power lost after {after}");
            begun |= !found.is_empty();
            if begun {
                let (_, read, operations) = &found[0];
                assert_eq!(*read, map);
                assert!(operations.starts_with(&kept), "power lost after {after}: {} kept", kept.len());
                assert!(diffs.starts_with(operations));
            }
        }
    }
}

#[test]
fn a_long_book_is_written_anew_and_costs_little_for_each_change() {
    let disk = FaultyDisk::default();
    let (mut files, ..) = open(&disk);
    let mut map = empty();
    map.apply(&next(&empty(), 1)).unwrap();
    files.write(NAME, &map, std::iter::empty()).unwrap();
    let mut rewritten = 0;
    for number in 0..6_000_u64 {
        let mut diff = map.edit().commit(TransactionId([7; 20]));
        diff.to = Generation { sequence: map.generation().sequence + 1, ..diff.to };
        diff.to.transaction.0[..8].copy_from_slice(&number.to_le_bytes());
        files.append(NAME, &diff).unwrap();
        map.apply(&diff).unwrap();
        if files.is_long(NAME) {
            files.write(NAME, &map, std::iter::empty()).unwrap();
            rewritten += 1;
        }
    }
    assert!((2..40).contains(&rewritten), "{rewritten}");
    assert!(files.written_bytes() < 6_000 * 2_048, "{} bytes", files.written_bytes());
    assert_eq!(open(&disk).1[0].1.generation().sequence + open(&disk).1[0].2.len() as u64, 6_001);
}

/// The golden file: three operations, of which one was dropped.
fn golden() -> serde_json::Value {
    let disk = FaultyDisk::default();
    let (mut files, ..) = open(&disk);
    let (map, diffs) = history(3);
    files.write(NAME, &map, diffs[..1].iter()).unwrap();
    files.append(NAME, &diffs[1]).unwrap();
    files.append(NAME, &diffs[2]).unwrap();
    files.drop_operation(NAME, diffs[2].to.transaction).unwrap();
    let end = files.files[&NAME].log.end() as usize;
    let file = &disk.read(&files.path(NAME)).unwrap()[..end];
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let servers = ["m1", "m2", "m3"].map(|id| NodeId::new(id).unwrap()).to_vec();
    let head = partage_service::metadata::Head { at: diffs[1].to, servers };
    serde_json::json!({
        "keyspace": "ks",
        "book": NAME.to_string(),
        "file": hex(file),
        "head": { "key": map_file::head_key(&keyspace()), "value": hex(&map_file::seal_head(&keyspace(), &head)) },
    })
}

#[test]
fn the_file_is_that_of_the_vectors() {
    let mut held: serde_json::Value =
        serde_json::from_str(include_str!("../../../../vectors/metadata.json")).unwrap();
    // What the check in Python reads from the same bytes.
    held.as_object_mut().unwrap().remove("records");
    held["head"].as_object_mut().unwrap().remove("message");
    let made = golden();
    assert_eq!(made, held, "now: {}", serde_json::to_string(&made).unwrap());
}
