//! Changes on a store: they are what became of the rows, they go in time, and replicas agree on them after a crash.

use super::*;
use crate::limits;
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::KeyRange;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_engine::replica::{Engine, SimulatedEngine};
use partage_service::table::feed::{ChangeKind, Progress, Since};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Write};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const SETTINGS: FeedSettings =
    FeedSettings { kept_ms: 500, sharding: Sharding::KeyRange, partition_key: PartitionKey::Whole };

fn open(engine: &SimulatedEngine, folder: &str) -> StoredRows<impl Store + use<>> {
    StoredRows::open(Arc::new(engine.open(Path::new(folder)).unwrap()), Some(SETTINGS)).unwrap()
}

fn entry(index: u64, write: &Write) -> Entry {
    let kind = EntryKind::Write(write::encode(write).into());
    Entry { position: LogPosition { epoch: Epoch(1), index }, kind }
}

fn whole(since: &Since) -> Progress {
    Progress::begin([Bounds::Keys(KeyRange::all())], since)
}

fn all<S: Store>(rows: &StoredRows<S>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let snapshot = rows.store().snapshot().unwrap();
    let found = snapshot.range(None, None, Direction::Forward).map(Result::unwrap);
    found.map(|row| (row.key.to_vec(), row.value.to_vec())).collect()
}

/// All changes that a reader lacks, page by page, and how far it then is.
fn read<S: Store>(rows: &StoredRows<S>, mut progress: Progress, most: usize) -> (Vec<FoundChange>, Progress) {
    let mut found = Vec::new();
    loop {
        let page = rows.pin().unwrap().changes(progress.clone(), most, limits::SCAN_BYTES).unwrap().unwrap();
        assert!(page.changes.len() <= most);
        if page.changes.is_empty() {
            return (found, page.progress);
        }
        found.extend(page.changes);
        progress = page.progress;
    }
}

fn write() -> impl Strategy<Value = (u64, Write)> {
    let expiry = prop_oneof![Just(Expiry::Never), (0u64..6_000).prop_map(Expiry::At)];
    let action = prop_oneof![
        3 => (any::<u8>(), expiry).prop_map(|(value, expiry)| Action::Put(vec![value].into(), expiry)),
        1 => Just(Action::Delete),
        1 => Just(Action::Read),
        1 => Just(Action::Append(b"1"[..].into())),
    ];
    let operation = (0u8..6, action).prop_map(|(key, action)| Operation {
        key: Key::new(&[key]).unwrap(),
        condition: Condition::Always,
        action,
        wants_former: false,
    });
    (0u64..200, proptest::collection::vec(operation, 0..4))
        .prop_map(|(after, operations)| (after, Write { at_ms: 0, request: None, operations }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn changes_are_what_became_of_rows_until_their_time_is_over_and_replicas_agree_on_them(
        writes in proptest::collection::vec(write(), 1..60),
        crash in any::<prop::sample::Index>(),
        flush in any::<prop::sample::Index>(),
        most in 1usize..7,
    ) {
        let (engine, steady) = (SimulatedEngine::default(), SimulatedEngine::default());
        let (mut rows, mut other) = (open(&engine, "a"), open(&steady, "b"));
        let (crash, flush) = (crash.index(writes.len()), flush.index(writes.len()));
        let (mut clock, mut made, mut entries) = (0, Vec::new(), Vec::new());
        let mut reader = (Vec::new(), whole(&Since::Oldest));
        for (number, (after, write)) in writes.iter().enumerate() {
            clock += after;
            let entry = entry(number as u64 + 1, &Write { at_ms: clock, ..write.clone() });
            entries.push(entry.clone());
            let before: BTreeMap<_, _> = (0..6).map(|key| (key, rows.row(&Key::new(&[key]).unwrap()).unwrap())).collect();
            rows.apply(&entry).unwrap();
            other.apply(&entry).unwrap();
            for (byte, before) in before {
                let key = Key::new(&[byte]).unwrap();
                let now = rows.row(&key).unwrap();
                if now != before {
                    made.push((entry.position, key, now, clock));
                }
            }
            if number == flush {
                rows.store().flush().unwrap();
            }
            if number == crash {
                engine.crash();
                rows = open(&engine, "a");
                for entry in &entries[rows.applied().index as usize..=number] {
                    rows.apply(entry).unwrap();
                }
            }
            prop_assert_eq!(all(&rows), all(&other), "replicas have the same");
            let (found, to) = read(&rows, reader.1, most);
            reader = (reader.0.into_iter().chain(found).collect(), to);
        }
        let kept = read(&rows, whole(&Since::Oldest), most).0;
        prop_assert!(kept.len() <= made.len());
        for (found, (position, key, now, at_ms)) in reader.0.iter().zip(&made) {
            prop_assert_eq!((&found.version, &found.key, &found.change.at_ms), (position, key, at_ms));
            prop_assert_eq!(found.change.value.as_deref(), now.as_ref().map(|row| &row.value[..]));
            prop_assert_eq!(found.change.kind == ChangeKind::Put, now.is_some());
        }
        prop_assert_eq!(reader.0.len(), made.len(), "a reader that keeps up gets each change");
        // The last entry may have had more to remove than one entry does, but not here.
        let in_time = made.iter().filter(|(_, _, _, at_ms)| at_ms + SETTINGS.kept_ms > clock).count();
        prop_assert_eq!(kept.len(), in_time);
        prop_assert_eq!(&kept[..], &reader.0[made.len() - in_time..]);
    }
}

#[test]
fn a_page_may_end_within_an_entry_and_a_reader_that_is_late_is_told() {
    let engine = SimulatedEngine::default();
    let mut rows = open(&engine, "a");
    let put = |key: u32, bytes: usize| Operation {
        key: Key::new(&key.to_be_bytes()).unwrap(),
        condition: Condition::Always,
        action: Action::Put(vec![1; bytes].into(), Expiry::Never),
        wants_former: false,
    };
    let mut index = 0;
    let mut apply = |rows: &mut StoredRows<_>, at_ms, operations| {
        index += 1;
        rows.apply(&entry(index, &Write { at_ms, request: None, operations })).unwrap();
    };
    apply(&mut rows, 1, (0..1_000).map(|key| put(key, 10)).collect());
    let page = |rows: &StoredRows<_>, progress: &Progress, most, bytes| {
        rows.pin().unwrap().changes(progress.clone(), most, bytes).unwrap()
    };
    let first = page(&rows, &whole(&Since::Oldest), 7, 1 << 20).unwrap();
    assert_eq!(first.changes.len(), 7);
    let second = page(&rows, &first.progress, 9_999, 1_000).unwrap();
    assert!((2..100).contains(&second.changes.len()), "it has a bound of bytes");
    assert!(second.changes[0].key > first.changes[6].key);
    let (rest, caught_up) = read(&rows, second.progress.clone(), 300);
    assert_eq!(first.changes.len() + second.changes.len() + rest.len(), 1_000);
    // Each entry removes a bounded number.
    let mut entries = 0;
    while rows.next_removal().is_some() {
        apply(&mut rows, 1_000, Vec::new());
        entries += 1;
    }
    assert_eq!(entries, 4);
    assert!(read(&rows, whole(&Since::Oldest), 9).0.is_empty());
    assert!(page(&rows, &second.progress, 9, 1_000).is_err());
    apply(&mut rows, 1_000, vec![put(7, 2 << 10), put(8, 2 << 10)]);
    let next = page(&rows, &caught_up, 9, 1_000).unwrap();
    assert_eq!(next.changes.len(), 1, "one is given, whatever it has");
    assert_eq!(rows.next_removal(), Some(1_500));
    let now = page(&rows, &whole(&Since::Now), 0, 1_000).unwrap();
    assert!(read(&rows, now.progress, 9).0.is_empty());
}

#[test]
fn a_table_without_a_feed_keeps_no_changes() {
    let engine = SimulatedEngine::default();
    let mut rows = StoredRows::open(Arc::new(engine.open(Path::new("a")).unwrap()), None).unwrap();
    let operation = Operation {
        key: Key::empty(),
        condition: Condition::Always,
        action: Action::Put(b"v"[..].into(), Expiry::Never),
        wants_former: false,
    };
    rows.apply(&entry(1, &Write { at_ms: 1, request: None, operations: vec![operation] })).unwrap();
    assert_eq!(all(&rows).len(), 2, "the row, and how the shard stands");
    assert_eq!(rows.next_removal(), None);
}
