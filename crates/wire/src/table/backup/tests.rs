//! Of each form: what is written is read, each flipped bit and each cut is refused.

use super::chunk::{self, ChunkError, ChunkFile, Codec};
use super::manifest::{ChunkEntry, DigestText, IndexEntry, Manifest, ManifestError, ShardBackup};
use super::rows::{BackupRow, RowReader};
use super::*;
use crate::json::{Keyspace, Sharding};
use crate::table::{KeyBytes, PlaceForm};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::{KeyspaceKind, Ownership};
use partage_core::limits::{KEY_BYTES, VALUE_BYTES};

fn row<'a>(key: &'a [u8], value: &'a [u8], expires_ms: Option<u64>) -> BackupRow<'a> {
    BackupRow { key, value, expires_ms }
}

fn content() -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in [row(b"", b"", None), row(b"a\0", b"v\xff", Some(7)), row(b"a\x01", b"w", None)] {
        row.put(&mut bytes);
    }
    bytes
}

pub(super) fn manifest() -> Manifest {
    let key = |bytes: &[u8]| KeyBytes(Key::new(bytes).unwrap());
    let digest = DigestText(ContentDigest::of(&content()));
    let chunk = ChunkEntry { first: key(b""), digest, rows: 3, content_bytes: 35, file_bytes: 64 };
    let shard = |shard, begin, end, chunks| ShardBackup {
        shard,
        begin,
        end,
        position: "2-7".into(),
        clock_ms: 5,
        chunks,
    };
    let middle = PlaceForm::Key(key(b"m\xff"));
    Manifest {
        id: "20261128T065456.789Z-3f0c9a11".into(),
        table: "stock".into(),
        began_ms: 1,
        ended_ms: 2,
        by: "0.1.0".into(),
        settings: Keyspace {
            kind: Some(KeyspaceKind::Table.into()),
            ownership: Some(Ownership::Replicated.into()),
            replicas: Some(3),
            durable: true,
            min_in_sync: 2,
            ..Keyspace::new("stock", Sharding::KeyRange {})
        },
        indexes: vec![],
        base: None,
        shards: vec![
            shard(1, PlaceForm::Key(key(b"")), Some(middle.clone()), vec![chunk]),
            shard(2, middle, None, vec![]),
        ],
        chunks_written: 1,
        bytes_written: 64,
    }
}

/// The manifest of a table with named partitions and indexes.
pub(super) fn second_form() -> Manifest {
    let mut manifest = manifest();
    manifest.settings.sharding = Sharding::Named {};
    for (shard, name) in manifest.shards.iter_mut().zip(["a", "b"]) {
        (shard.begin, shard.end) = (PlaceForm::Name(name.to_owned()), None);
    }
    manifest.indexes = vec![IndexEntry { name: "by-size".into(), field: "size".into() }];
    manifest
}

fn flipped(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..bytes.len() * 8).map(|bit| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        (bit, bytes)
    })
}

#[test]
fn rows_are_read_as_they_were_written() {
    let bytes = content();
    let rows: Vec<_> = RowReader::new(&bytes).map(Result::unwrap).collect();
    assert_eq!(rows, [row(b"", b"", None), row(b"a\0", b"v\xff", Some(7)), row(b"a\x01", b"w", None)]);
    assert_eq!(bytes.len(), rows.iter().map(BackupRow::size).sum::<usize>());
    for end in 1..bytes.len() {
        let last = RowReader::new(&bytes[..end]).last().unwrap();
        assert!(last.is_ok() == (end == 7 || end == 26), "{end}");
    }
    let mut twice = bytes.clone();
    twice.extend_from_slice(&bytes);
    assert!(RowReader::new(&twice).last().unwrap().unwrap_err().what.contains("order"));
    let (key, value) = (vec![1; KEY_BYTES], vec![2; VALUE_BYTES]);
    let mut largest = Vec::new();
    row(&key, &value, Some(u64::MAX)).put(&mut largest);
    assert_eq!(largest.len(), rows::ROW_BYTES);
    assert_eq!(RowReader::new(&largest).next(), Some(Ok(row(&key, &value, Some(u64::MAX)))));
    let mut above = Vec::new();
    row(&[1; KEY_BYTES + 1], b"", None).put(&mut above);
    assert!(RowReader::new(&above).next().unwrap().is_err());
}

#[test]
fn d8_each_flipped_bit_and_each_cut_of_a_chunk_is_refused() {
    let payload = content();
    let file = ChunkFile { codec: Codec::Plain, rows: 3, content_bytes: 35, payload: &payload };
    let bytes = file.encode();
    assert_eq!(chunk::open(&bytes), Ok(file));
    for (bit, bytes) in flipped(&bytes) {
        assert!(chunk::open(&bytes).is_err(), "bit {bit}");
    }
    for end in 0..bytes.len() {
        assert!(chunk::open(&bytes[..end]).is_err(), "cut at {end}");
    }
    let long = ChunkFile { content_bytes: u32::MAX, ..file }.encode();
    assert!(matches!(chunk::open(&long), Err(ChunkError::Head(_))));
}

#[test]
fn d8_each_flipped_bit_and_each_cut_of_a_manifest_is_refused() {
    let first = manifest();
    let open = |bytes: &[u8]| Manifest::open(bytes, "stock", &first.id);
    for manifest in [first.clone(), second_form()] {
        let bytes = manifest.encode().unwrap();
        assert_eq!(open(&bytes).as_ref(), Ok(&manifest));
        for (bit, bytes) in flipped(&bytes) {
            assert!(open(&bytes).is_err(), "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert!(open(&bytes[..end]).is_err(), "cut at {end}");
        }
    }
    let bytes = first.encode().unwrap();
    assert!(matches!(Manifest::open(&bytes, "other", &first.id), Err(ManifestError::Moved { .. })));
    assert!(matches!(open(b"partage table backup 3\n"), Err(ManifestError::Form(_))));
}

#[test]
fn shards_of_a_manifest_hold_every_key_once() {
    let whole = manifest();
    let broken = |change: fn(&mut Vec<ShardBackup>)| {
        let mut manifest = whole.clone();
        change(&mut manifest.shards);
        Manifest::open(&manifest.encode().unwrap(), "stock", &whole.id)
    };
    for (change, shard) in [
        ((|shards| shards.clear()) as fn(&mut Vec<ShardBackup>), 0),
        (|shards| drop(shards.remove(0)), 0),
        (|shards| drop(shards.pop()), 1),
        (|shards| shards[0].end = Some(PlaceForm::Key(KeyBytes(Key::new(b"l").unwrap()))), 1),
        (|shards| shards[1].end = Some(PlaceForm::Key(KeyBytes(Key::new(b"z").unwrap()))), 2),
    ] {
        assert_eq!(broken(change), Err(ManifestError::Gap(shard)));
    }
}

#[test]
fn named_partitions_of_a_manifest_come_once() {
    let whole = second_form();
    assert_eq!(whole.partitions(), ["a", "b"]);
    let opened = |change: fn(&mut Vec<ShardBackup>)| {
        let mut manifest = whole.clone();
        change(&mut manifest.shards);
        Manifest::open(&manifest.encode().unwrap(), "stock", &whole.id).map(|read| read.shards.len())
    };
    assert_eq!((opened(|_| ()), opened(Vec::clear)), (Ok(2), Ok(0)));
    assert_eq!(opened(|shards| shards[1].begin = shards[0].begin.clone()), Err(ManifestError::Gap(1)));
    assert_eq!(opened(|shards| shards[1].begin = PlaceForm::Slot(3)), Err(ManifestError::Gap(2)));
    assert_eq!(opened(|shards| shards.swap(0, 1)), Err(ManifestError::Gap(2)));
}

#[test]
fn only_what_readers_of_the_first_form_would_lose_makes_the_second_one() {
    let line = |manifest: &Manifest| manifest.encode().unwrap()[..22].to_vec();
    let indexed = Manifest { indexes: second_form().indexes, ..manifest() };
    assert_eq!(line(&manifest()), b"partage table backup 1");
    assert_eq!((line(&indexed), line(&second_form())), (b"partage table backup 2".to_vec(), line(&indexed)));
}

#[test]
fn a_digest_has_one_text() {
    let digest = ContentDigest::of(b"");
    let text = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(digest.to_string(), text);
    assert_eq!(text.parse(), Ok(digest));
    for bad in [&text.to_uppercase(), &text[1..], "", &format!("{text}0"), &text.replace('e', "g")] {
        assert_eq!(bad.parse::<ContentDigest>(), Err(NoDigest), "{bad}");
    }
}
