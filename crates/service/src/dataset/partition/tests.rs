//! Partitions of keys, and versions that batch jobs have written in several ways.

use super::*;
use proptest::prelude::*;

/// Sorts keys into files as a batch job does: by `file_of`.
fn files(keys: &[Vec<u8>], many: u32, file_of: impl Fn(&[u8]) -> u32) -> Vec<Vec<Vec<u8>>> {
    let mut files = vec![Vec::new(); many as usize];
    for key in keys {
        files[file_of(key) as usize].push(key.clone());
    }
    files
}

/// The first 300 keys of each file.
fn samples(files: &[Vec<Vec<u8>>]) -> Vec<Sample<'_, Vec<u8>>> {
    let mut taken = Vec::new();
    for (file, keys) in files.iter().enumerate() {
        let len = keys.len().min(300);
        taken.push(Sample { file: file as u32, keys: &keys[..len], is_whole: len == keys.len() });
    }
    taken
}

/// Keys of which some are not ASCII and some are not even text, so that the three hashes differ.
fn keys(count: u32) -> Vec<Vec<u8>> {
    let key = |i: u32| match i % 5 {
        0 => format!("clé-{i}").into_bytes(),
        1 => vec![0xff, 0xfe, i as u8, (i >> 8) as u8, (i >> 16) as u8],
        _ => format!("key-{i}").into_bytes(),
    };
    (0..count).map(key).collect()
}

/// As in Sequins' own test, which had them from Scala: in partition 19 of 20 by itself, with Cascading beside the keys
/// of partition 11.
const PATHOLOGICAL: [u8; 12] = [112, 23, 173, 120, 140, 94, 133, 241, 67, 39, 248, 103];

#[test]
fn pa_partitions_of_published_keys() {
    let java = Partitioner::JavaBytes;
    assert_eq!((java.partition(b"bar", 20), java.alternative(b"bar", 20)), (19, None));
    assert_eq!((java.partition(b"fol", 20), java.alternative(b"fol", 20)), (11, None));
    assert_eq!((java.partition(&PATHOLOGICAL, 20), java.alternative(&PATHOLOGICAL, 20)), (19, Some(11)));
    assert_eq!(java.places(&PATHOLOGICAL, 20).collect::<Vec<_>>(), [19, 11]);
    assert_eq!(java.partition(b"anything", 0), 0, "a version without files");
}

#[test]
fn pb_each_hash_is_recognised_and_every_file_is_whole() {
    let keys = keys(20_000);
    for partitioner in Partitioner::ALL {
        let files = files(&keys, 16, |key| partitioner.partition(key, 16));
        let found = recognise(16, &samples(&files));
        assert_eq!((found.partitioner, found.is_followed), (partitioner, true));
        assert_eq!(found.whole, (0..16).map(|file| (file, file)).collect(), "{partitioner}");
    }
}

#[test]
fn pb_keys_that_tell_nothing_give_the_default() {
    let ascii: Vec<_> = (0..5_000).map(|i| format!("key-{i}").into_bytes()).collect();
    let files = files(&ascii, 8, |key| Partitioner::JavaString.partition(key, 8));
    assert_eq!(recognise(8, &samples(&files)).partitioner, Partitioner::JavaBytes);
    let none: [Sample<'_, Vec<u8>>; 0] = [];
    let empty = recognise(0, &none);
    assert_eq!((empty.partitioner, empty.whole.len()), (Partitioner::JavaBytes, 0));
}

#[test]
fn pb_a_version_that_is_sorted_otherwise_is_mixed() {
    let files = files(&keys(20_000), 16, |key| HashFunction::Murmur3_32.slot(key, 16));
    let found = recognise(16, &samples(&files));
    assert_eq!((found.partitioner, found.is_followed), (Partitioner::JavaBytes, false));
    assert!(found.whole.is_empty());
}

#[test]
fn pc_one_mixed_file_is_not_whole_and_harms_no_other() {
    let mut files = files(&keys(20_000), 16, |key| Partitioner::HadoopBytes.partition(key, 16));
    let stray = files[3][7].clone();
    files[5].insert(200, stray);
    let found = recognise(16, &samples(&files));
    assert_eq!(found.partitioner, Partitioner::HadoopBytes);
    assert_eq!(found.whole, (0..16).filter(|file| *file != 5).map(|file| (file, file)).collect());
}

#[test]
fn pc_a_few_keys_prove_nothing_unless_they_are_all() {
    let alike = vec![b"same".to_vec(); 1_000];
    let one = |keys, is_whole| recognise(1_000, &[Sample { file: 4, keys, is_whole }]);
    let partition = Partitioner::JavaBytes.partition(b"same", 1_000);
    assert!(one(&alike, false).whole.is_empty(), "a thousand times the same key");
    assert_eq!(one(&alike, true).whole, [(4, partition)].into());
    assert_eq!(one(&alike[..1], true).whole, [(4, partition)].into());
    assert!(one(&alike[..0], true).whole.is_empty(), "an empty file is no partition's");
}

#[test]
fn pc_what_cascading_wrote_is_whole_under_other_numbers() {
    let mut keys = keys(20_000);
    keys.push(PATHOLOGICAL.to_vec());
    let cascading = |key: &[u8]| ((Partitioner::JavaBytes.hash(key) + 31) & 0x7fff_ffff) % 20;
    let mut files = files(&keys, 20, cascading);
    files.iter_mut().for_each(|keys| keys.reverse());
    let found = recognise(20, &samples(&files));
    assert_eq!(found.partitioner, Partitioner::JavaBytes);
    assert_eq!(found.whole, (0..20).map(|file| (file, (file + 9) % 20)).collect());
}

#[test]
fn rows_that_agree_on_the_column_are_in_one_partition() {
    use crate::dataset::columns;
    let by = Partitioner::Column { column: 1, of: 2 };
    let key = |day: u32, tenant: &str| {
        let mut key = Vec::new();
        columns::add(&mut key, true, format!("2024-01-{day:02}").as_bytes());
        columns::add(&mut key, false, tenant.as_bytes());
        key
    };
    let of =
        |tenant: &str| -> BTreeSet<u32> { (1..29).map(|day| by.partition(&key(day, tenant), 64)).collect() };
    let partitions: Vec<BTreeSet<u32>> = ["a", "b", "acme", "zoo"].into_iter().map(of).collect();
    assert!(partitions.iter().all(|one| one.len() == 1), "{partitions:?}");
    assert!(partitions.iter().collect::<BTreeSet<_>>().len() > 1, "{partitions:?}");
    assert_eq!(by.partition(&key(1, "acme"), 64), Partitioner::JavaBytes.partition(b"acme", 64));
    assert_eq!(by.alternative(&key(1, "acme"), 64), None);
    assert_eq!([by.lacks(b"acme"), by.lacks(&key(1, "acme"))], [Some(2), None]);
    assert_eq!(Partitioner::JavaBytes.lacks(b"acme"), None);
    // Of the first column, a prefix says it when the second has begun.
    let first = Partitioner::Column { column: 0, of: 2 };
    let whole = Some(Partitioner::JavaBytes.partition(b"acme", 64));
    assert_eq!(first.partition_of_prefix(b"acme\x00\x01", 64), whole);
    assert_eq!(first.partition_of_prefix(b"acme\x00\x01x", 64), whole);
    assert_eq!(first.partition_of_prefix(b"acme", 64), None);
    assert_eq!(Partitioner::JavaBytes.partition_of_prefix(b"acme\x00\x01", 64), None);
}

#[test]
fn names_lead_back() {
    for (column, of) in [(0, 2), (1, 2), (15, 16)] {
        let partitioner = Partitioner::Column { column, of };
        assert_eq!(partitioner.to_string(), format!("java-bytes:{}/{of}", column + 1));
        assert_eq!(partitioner.to_string().parse(), Ok(partitioner));
    }
    for bad in [
        "java-bytes:0/2",
        "java-bytes:3/2",
        "java-bytes:1/1",
        "java-bytes:1/17",
        "java-bytes:01/2",
        "java-bytes:1",
    ] {
        assert!(bad.parse::<Partitioner>().is_err(), "{bad}");
    }
    for partitioner in Partitioner::ALL {
        assert_eq!(partitioner.to_string().parse(), Ok(partitioner));
    }
    let told = "md5".parse::<Partitioner>().unwrap_err().to_string();
    assert!(Partitioner::ALL.iter().all(|p| told.contains(&p.to_string())), "{told}");
}

proptest! {
    #[test]
    fn pa_a_partition_is_the_slot_of_the_hash_of_that_name(key: Vec<u8>, many in 1u32..100_000) {
        for partitioner in Partitioner::ALL {
            prop_assert_eq!(partitioner.partition(&key, many), partitioner.hash_function().slot(&key, many));
        }
    }

    #[test]
    fn pa_an_alternative_is_where_cascading_has_the_key(near in 0u32..64, many in 1u32..1_000) {
        // A key of six bytes with any hash that is wanted: the digits of the number in base 31, as Java reads them.
        let hash = LIMIT - near;
        let mut key: Vec<u8> = (0..7).map(|place| (u64::from(hash) / 31u64.pow(place) % 31) as u8).collect();
        key.reverse();
        prop_assert_eq!(Partitioner::JavaBytes.hash(&key), hash);
        // Where the other keys of the file are that Cascading put it into.
        let file = u64::from((hash + 31) & LIMIT) % u64::from(many);
        let elsewhere = (file + 31 * u64::from(many) - 31) % u64::from(many);
        let places: Vec<_> = Partitioner::JavaBytes.places(&key, many).map(u64::from).collect();
        prop_assert!(places.contains(&elsewhere), "{} not in {:?}", elsewhere, places);
        prop_assert!(near < 32 || places.len() == 1);
    }

    #[test]
    fn pd_the_order_of_samples_counts_for_nothing(seed in 0usize..3, many in 2u32..9) {
        let partitioner = Partitioner::ALL[seed];
        let files = files(&keys(2_000), many, |key| partitioner.partition(key, many));
        let mut taken = samples(&files);
        let found = recognise(many, &taken);
        taken.reverse();
        prop_assert_eq!(recognise(many, &taken), found);
    }
}
