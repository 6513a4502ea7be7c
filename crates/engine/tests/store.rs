//! Store files against a map in memory: what went in comes out, and nothing else.
#![allow(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::Path;

use partage_engine::limits::{
    BLOCK_BYTES, KEY_BYTES, LEAST_MEMORY_BYTES, PAGE_KEYS, VALUE_BYTES, ZSTD_MOST_LEVEL,
};
use partage_engine::readonly::{
    BuildError, Builder, Compression, Layout, Options, ReadError, Reader, Summary,
};
use proptest::prelude::*;

const LAYOUTS: [Layout; 2] = [Layout::Hashed, Layout::Ordered];
const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd { level: 3 }];

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

fn options(layout: Layout, compression: Compression) -> Options {
    Options { layout, compression, memory_bytes: LEAST_MEMORY_BYTES, temporary: None }
}

fn build(path: &Path, options: Options, entries: &Entries) -> Summary {
    let mut builder = Builder::new(path, options).unwrap();
    for (key, value) in entries {
        builder.add(key, value).unwrap();
    }
    builder.finish().unwrap()
}

/// Builds in every way and compares with the map.
fn same_as_a_map(entries: &Entries) {
    let map: BTreeMap<&[u8], &[u8]> = entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        for compression in COMPRESSIONS {
            let path = folder.path().join("store");
            let summary = build(&path, options(layout, compression), entries);
            assert_eq!(summary.keys, map.len() as u64);
            assert_eq!(summary.replaced, (entries.len() - map.len()) as u64);
            assert_eq!(summary.bytes, fs::metadata(&path).unwrap().len());
            let reader = Reader::open(&path).unwrap();
            reader.verify().unwrap();
            assert_eq!((reader.len(), reader.is_empty()), (map.len() as u64, map.is_empty()));
            compare(&reader, &map);
            if layout == Layout::Ordered {
                let all = reader.scan(..).unwrap().map(Result::unwrap);
                assert!(all.eq(map.iter().map(|(k, v)| (k.to_vec(), v.to_vec()))));
            }
            fs::remove_file(&path).unwrap();
        }
    }
}

fn compare(reader: &Reader, map: &BTreeMap<&[u8], &[u8]>) {
    let mut keys: Vec<Vec<u8>> = map.keys().map(|k| k.to_vec()).collect();
    // Neighbours that are not there: longer, shorter, other.
    for key in map.keys() {
        keys.push([key, b"\0".as_slice()].concat());
        keys.push(key.iter().copied().take(key.len().saturating_sub(1)).collect());
    }
    keys.extend([Vec::new(), vec![0xff; 40], b"absent".to_vec()]);
    let wanted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let many = reader.get_many(&wanted).unwrap();
    for (key, value) in wanted.iter().zip(many) {
        assert_eq!(value.as_deref(), map.get(key).copied(), "{key:?}");
        assert_eq!(reader.get(key).unwrap().as_deref(), map.get(key).copied(), "{key:?}");
    }
}

fn numbered(count: u32) -> Entries {
    let entry = |n: u32| {
        let key = format!("key {:08}", n.wrapping_mul(2_654_435_761) % 100_000_000).into_bytes();
        (key, format!("value {n} of a record that has much in common with the others").into_bytes())
    };
    (0..count).map(entry).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_entries_come_out_as_from_a_map(
        entries in prop::collection::vec(
            (prop::collection::vec(0_u8..3, 0..6), prop::collection::vec(any::<u8>(), 0..80)),
            0..120,
        )
    ) {
        same_as_a_map(&entries);
    }

    #[test]
    fn any_range_is_what_a_map_gives(
        keys in prop::collection::btree_map(prop::collection::vec(0_u8..4, 0..5), 0_usize..700, 0..150),
        from in bound(), to in bound(), prefix in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(0xff)], 0..3),
    ) {
        let entries: Entries = keys.iter().map(|(k, n)| (k.clone(), vec![7; *n])).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        build(&path, options(Layout::Ordered, Compression::Lz4), &entries);
        let reader = Reader::open(&path).unwrap();
        let within = |key: &[u8]| {
            let after = match &from {
                Bound::Included(b) => key >= b.as_slice(),
                Bound::Excluded(b) => key > b.as_slice(),
                Bound::Unbounded => true,
            };
            after && match &to {
                Bound::Included(b) => key <= b.as_slice(),
                Bound::Excluded(b) => key < b.as_slice(),
                Bound::Unbounded => true,
            }
        };
        let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        let have: Entries = reader.scan(range).unwrap().map(Result::unwrap).collect();
        let want: Entries = entries.iter().filter(|(k, _)| within(k)).cloned().collect();
        prop_assert_eq!(have, want);
        let have: Entries = reader.prefix(&prefix).unwrap().map(Result::unwrap).collect();
        let want: Entries = entries.iter().filter(|(k, _)| k.starts_with(&prefix)).cloned().collect();
        prop_assert_eq!(have, want);
    }
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    let key = || prop::collection::vec(0_u8..4, 0..5);
    prop_oneof![key().prop_map(Bound::Included), key().prop_map(Bound::Excluded), Just(Bound::Unbounded)]
}

#[test]
fn nothing_one_key_and_the_empty_key() {
    same_as_a_map(&vec![]);
    same_as_a_map(&vec![(b"a".to_vec(), b"b".to_vec())]);
    same_as_a_map(&vec![(vec![], vec![])]);
    same_as_a_map(&vec![(vec![], b"x".to_vec()), (b"a".to_vec(), vec![]), (vec![0], vec![0])]);
}

#[test]
fn thousands_of_keys_and_of_the_same_the_last() {
    let mut entries = numbered(5_000);
    for n in (0..5_000).step_by(7) {
        entries.push((entries[n].0.clone(), b"later".to_vec()));
    }
    same_as_a_map(&entries);
}

#[test]
fn large_keys_and_values_up_to_the_limit_and_no_further() {
    let pattern: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    same_as_a_map(&vec![
        (vec![b'k'; KEY_BYTES], b"of the longest key".to_vec()),
        ([vec![b'k'; KEY_BYTES - 1], vec![b'l']].concat(), pattern[..70_000].to_vec()),
        (b"exactly a block".to_vec(), vec![1; BLOCK_BYTES]),
        (b"larger than the memory".to_vec(), pattern),
        (b"small".to_vec(), b"v".to_vec()),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut builder = Builder::new(&path, options(Layout::Ordered, Compression::Lz4)).unwrap();
    let longest = vec![3; VALUE_BYTES];
    builder.add(b"longest", &longest).unwrap();
    let refused = builder.add(&vec![0; KEY_BYTES + 1], b"").unwrap_err().to_string();
    assert!(refused.contains("entry 1: a key of 65537 bytes"), "{refused}");
    let refused = builder.add(b"", &vec![0; VALUE_BYTES + 1]).unwrap_err().to_string();
    assert!(refused.contains("a value of 67108865 bytes"), "{refused}");
    assert_eq!(builder.finish().unwrap().keys, 1, "a refused entry is not there, the others are");
    let reader = Reader::open(&path).unwrap();
    assert!(reader.get(b"longest").unwrap().as_deref() == Some(longest.as_slice()));
    assert_eq!(reader.get(&vec![0; KEY_BYTES + 1]).unwrap(), None);
}

#[test]
fn what_does_not_fit_is_spilled_and_the_file_is_the_same() {
    // 12 times the memory: more runs than are merged at a time, and every key four times, in different runs.
    let entries: Entries = (0..4_u8)
        .flat_map(|round| numbered(30_000).into_iter().map(move |(k, v)| (k, [v, vec![round; 20]].concat())))
        .collect();
    let bytes: usize = entries.iter().map(|(k, v)| k.len() + v.len()).sum();
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        let (small, large) = (folder.path().join("small"), folder.path().join("large"));
        let spilled = build(&small, options(layout, Compression::None), &entries);
        let enough = Options { memory_bytes: 256 << 20, ..options(layout, Compression::None) };
        let at_once = build(&large, enough, &entries);
        assert!(bytes > 10 * LEAST_MEMORY_BYTES);
        assert!(spilled.spilled_bytes > (bytes + bytes / 4) as u64, "{spilled:?}: two passes over {bytes}");
        assert_eq!(at_once.spilled_bytes, 0);
        assert_eq!((spilled.keys, spilled.replaced), (30_000, 90_000));
        assert!(fs::read(&small).unwrap() == fs::read(&large).unwrap());
        let reader = Reader::open(&small).unwrap();
        reader.verify().unwrap();
        let map: BTreeMap<&[u8], &[u8]> = entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect();
        compare(&reader, &map);
        fs::remove_file(small).unwrap();
        fs::remove_file(large).unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing of what was spilled is left");
}

#[test]
fn the_index_stays_below_four_bytes_a_key() {
    let folder = tempfile::tempdir().unwrap();
    for layout in LAYOUTS {
        let path = folder.path().join(format!("{layout:?}"));
        let entries: Entries =
            (0..40_000_u64).map(|n| (format!("{n:016}").into_bytes(), vec![n as u8; 100])).collect();
        build(&path, options(layout, Compression::None), &entries);
        let reader = Reader::open(&path).unwrap().describe();
        assert!(reader.index_bytes < 4 * 40_000, "{reader:?}");
        assert!(reader.file_bytes < reader.key_bytes + reader.value_bytes + 20 * 40_000, "{reader:?}");
    }
    assert_eq!(PAGE_KEYS, 4, "the text of the format says 2 bytes a key");
}

#[test]
fn a_dictionary_makes_small_values_smaller() {
    let folder = tempfile::tempdir().unwrap();
    let entries = numbered(3_000);
    let of = |compression| {
        let path = folder.path().join(format!("{compression:?}"));
        build(&path, options(Layout::Hashed, compression), &entries);
        Reader::open(&path).unwrap().describe()
    };
    let (plain, zstd) = (of(Compression::None), of(Compression::Zstd { level: 9 }));
    assert_eq!((plain.compression, zstd.compression), ("none", "zstd"));
    assert!(zstd.dictionary_bytes > 0);
    assert!(zstd.file_bytes + zstd.value_bytes / 2 < plain.file_bytes, "{zstd:?} {plain:?}");
}

#[test]
fn wrong_use_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let few = Options { memory_bytes: LEAST_MEMORY_BYTES - 1, ..Options::default() };
    assert!(matches!(Builder::new(&path, few), Err(BuildError::TooLittleMemory(_))));
    for level in [0, ZSTD_MOST_LEVEL + 1] {
        let options = options(Layout::Hashed, Compression::Zstd { level });
        assert!(matches!(Builder::new(&path, options), Err(BuildError::Level(l)) if l == level));
    }
    let nowhere = folder.path().join("no/folder");
    let refused = Builder::new(&nowhere, Options::default()).unwrap().finish().unwrap_err();
    assert!(matches!(&refused, BuildError::Io { path, .. } if *path == nowhere), "{refused}");
    let elsewhere = Options { temporary: Some(nowhere.clone()), ..Options::default() };
    let refused = Builder::new(&path, elsewhere).unwrap().finish().unwrap_err();
    assert!(matches!(&refused, BuildError::Io { path, .. } if *path == nowhere), "{refused}");
    let first = Builder::new(&path, Options::default()).unwrap();
    let second = Builder::new(&path, Options::default()).unwrap();
    first.finish().unwrap();
    assert!(matches!(second.finish(), Err(BuildError::Exists(_))), "never written over");
    assert!(matches!(Builder::new(&path, Options::default()), Err(BuildError::Exists(_))));
    let reader = Reader::open(&path).unwrap();
    assert!(matches!(reader.scan(..), Err(ReadError::NotOrdered(_))));
    assert!(matches!(reader.prefix(b""), Err(ReadError::NotOrdered(_))));
    assert!(matches!(Reader::open(&nowhere), Err(ReadError::Io { .. })));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "only the one that was finished");
}
