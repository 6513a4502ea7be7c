//! An index is what follows from the rows, whatever was written, and read page by page it is all of them, in their order.

use super::*;
use crate::rows::{ScannedRow, StoredRows};
use crate::settings::ReplicaSettings;
use crate::stored::write;
use partage_core::base::id::Epoch;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::sharding::{Bounds, PartitionKey};
use partage_core::limits::{INDEX_STEP_ROWS, INDEX_TEXT_BYTES};
use partage_engine::replica::{Change, Engine, SimulatedEngine, SimulatedStore};
use partage_service::table::filter::{Number, Path};
use partage_service::table::index::{IndexQuery, IndexState, IndexedValue};
use partage_service::table::replication::{Entry, EntryKind, LogPosition};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Write};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Rows = StoredRows<SimulatedStore>;

fn open(engine: &SimulatedEngine, folder: &str) -> Rows {
    StoredRows::open(Arc::new(engine.open(std::path::Path::new(folder)).unwrap()), None).unwrap()
}

fn name(of: &str) -> IndexName {
    IndexName::new(of).unwrap()
}

fn create(of: &str, path: &str) -> IndexChange {
    IndexChange::Create(name(of), Path::parse(path).unwrap())
}

fn apply(rows: &mut Rows, payload: Vec<u8>) -> Vec<StoredChange> {
    let position = LogPosition { epoch: Epoch(1), index: rows.applied().index + 1 };
    let entry = Entry { position, kind: EntryKind::Write(payload.into()) };
    rows.apply_entry(&entry).unwrap().1
}

fn change(rows: &mut Rows, change: &IndexChange) {
    apply(rows, stored_index::encode_change(0, change));
}

fn put(rows: &mut Rows, at_ms: u64, key: &[u8], value: Option<&[u8]>, expiry: Expiry) {
    let action = value.map_or(Action::Delete, |value| Action::Put(value.into(), expiry));
    let operation =
        Operation { key: Key::new(key).unwrap(), condition: Condition::Always, action, wants_former: false };
    apply(rows, write::encode(&Write { at_ms, request: None, operations: vec![operation] }));
}

/// Does what a leader would do until there is nothing more to do.
fn finish(rows: &mut Rows) -> usize {
    let mut steps = 0;
    while let Some(next) = rows.next_index_change() {
        change(rows, &next);
        steps += 1;
    }
    steps
}

fn stored(rows: &Rows, from: &[u8], to: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let snapshot = rows.store().snapshot().unwrap();
    let found = snapshot.range(Some(from), Some(to), Direction::Forward);
    found.map(|row| row.map(|row| (row.key.to_vec(), row.value.to_vec())).unwrap()).collect()
}

/// Each index has the entries that it should have, and there are no others.
fn check(rows: &Rows) {
    let all_rows = stored(rows, &[1], &[2]);
    let entries: BTreeSet<Vec<u8>> = stored(rows, &[6], &[7]).into_iter().map(|(key, _)| key).collect();
    let mut known = 0;
    for definition in rows.indexes() {
        let derived: BTreeMap<Vec<u8>, Vec<u8>> = all_rows
            .iter()
            .filter_map(|(key, value)| {
                let row = crate::stored::values::decode_row(value).unwrap();
                entry_of(definition, &key[1..], &row.value).map(|entry| (entry, key[1..].to_vec()))
            })
            .collect();
        let of_index = |entry: &&Vec<u8>| keys::parse_index_entry(entry).unwrap().index == definition.id;
        let found: BTreeSet<&Vec<u8>> = entries.iter().filter(of_index).collect();
        known += found.len();
        match &definition.state {
            IndexState::Ready => assert_eq!(found, derived.keys().collect()),
            IndexState::Building(from) => {
                assert!(found.iter().all(|entry| derived.contains_key(*entry)), "none that should not be");
                let below = derived.iter().filter(|(_, key)| key.as_slice() < from.as_bytes());
                assert!(below.into_iter().all(|(entry, _)| found.contains(entry)), "all below {from}");
            }
            IndexState::Dropping(_) => {}
        }
    }
    assert_eq!(known, entries.len(), "an entry of no index");
    assert_eq!(read_definitions(&rows.store().snapshot().unwrap()).unwrap(), rows.indexes());
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, usize, Option<u64>),
    Delete(u8),
    Create(usize),
    Drop(usize),
    Next,
    Stale(usize),
    Crash,
}

const VALUES: [&str; 12] = [
    "{\"a\": 1, \"b\": {\"c\": \"x\"}}",
    "{\"a\": 1.0}",
    "{\"a\": -7, \"x\": 1e999}",
    "{\"a\": true, \"b\": {\"c\": 2}}",
    "{\"a\": \"one\"}",
    "{\"a\": \"one\\u0000\"}",
    "{\"b\": {\"c\": null}}",
    "{\"a\": [1]}",
    "no JSON",
    "\"text\"",
    "5",
    "{\"a\": 9007199254740993}",
];

const INDEXES: [(&str, &str); 4] = [("a", "a"), ("c", "b.c"), ("whole", "$"), ("a", "b.c")];

fn step() -> impl Strategy<Value = Step> {
    let expiry = proptest::option::of(0u64..60);
    prop_oneof![
        12 => (any::<u8>(), 0..VALUES.len(), expiry).prop_map(|(key, value, end)| Step::Put(key % 24, value, end)),
        4 => any::<u8>().prop_map(|key| Step::Delete(key % 24)),
        2 => (0..INDEXES.len()).prop_map(Step::Create),
        1 => (0..INDEXES.len()).prop_map(Step::Drop),
        4 => Just(Step::Next),
        1 => (0..INDEXES.len()).prop_map(Step::Stale),
        1 => Just(Step::Crash),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn an_index_is_what_follows_from_the_rows(steps in proptest::collection::vec(step(), 1..80)) {
        let engine = SimulatedEngine::default();
        let mut rows = open(&engine, "a");
        for (at_ms, step) in (0u64..).zip(steps) {
            match step {
                Step::Put(key, value, end) => {
                    let expiry = end.map_or(Expiry::Never, Expiry::At);
                    put(&mut rows, at_ms, &[key], Some(VALUES[value].as_bytes()), expiry);
                }
                Step::Delete(key) => put(&mut rows, at_ms, &[key], None, Expiry::Never),
                Step::Create(which) => change(&mut rows, &create(INDEXES[which].0, INDEXES[which].1)),
                Step::Drop(which) => change(&mut rows, &IndexChange::Drop(name(INDEXES[which].0))),
                Step::Next => {
                    if let Some(next) = rows.next_index_change() {
                        change(&mut rows, &next);
                    }
                }
                Step::Stale(which) => {
                    let id = Definition::new(name(INDEXES[which].0), Path::parse(INDEXES[which].1).unwrap()).id;
                    change(&mut rows, &IndexChange::Build(id, Key::new(b"zz").unwrap()));
                    change(&mut rows, &IndexChange::Remove(id, vec![9]));
                }
                Step::Crash => {
                    rows.store().flush().unwrap();
                    engine.crash();
                    rows = open(&engine, "a");
                }
            }
            check(&rows);
        }
        finish(&mut rows);
        check(&rows);
        prop_assert!(rows.indexes().iter().all(|one| one.state == IndexState::Ready));
    }
}

/// What a child takes of its parent, as a snapshot does and as later changes do.
fn child_of(
    engine: &SimulatedEngine,
    parent: &Rows,
    folder: &str,
    range: &KeyRange,
    later: &[Vec<StoredChange>],
) -> Rows {
    let settings = ReplicaSettings::default();
    let bounds = Bounds::Keys(range.clone());
    let child = engine.open(std::path::Path::new(folder)).unwrap();
    let snapshot = parent.store().snapshot().unwrap();
    let taken: Vec<_> = snapshot
        .range(None, None, Direction::Forward)
        .map(|row| row.unwrap())
        .filter(|row| settings.inherits(&bounds, &row.key))
        .collect();
    let mut position = LogPosition { epoch: Epoch(0), index: parent.applied().index.max(1) };
    child.fill(position, &taken, true).unwrap();
    for changes in later {
        let of_child = changes.iter().filter(|change| settings.inherits(&bounds, &change.0));
        let of_child: Vec<Change<'_>> =
            of_child.map(|(key, value)| Change { key, value: value.as_deref() }).collect();
        let next = LogPosition { index: position.index + 1, ..position };
        child.apply(position, next, &of_child).unwrap();
        position = next;
    }
    StoredRows::open(Arc::new(child), None).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn children_of_a_split_have_their_part_of_an_index_and_go_on_building_it(
        before in proptest::collection::vec((any::<u8>(), 0..VALUES.len()), 0..40),
        after in proptest::collection::vec((any::<u8>(), 0..VALUES.len()), 0..20),
        steps in 0usize..3, cut in 1u8..255,
    ) {
        let engine = SimulatedEngine::default();
        let mut parent = open(&engine, "parent");
        for (key, value) in &before {
            put(&mut parent, 1, &[*key], Some(VALUES[*value].as_bytes()), Expiry::Never);
        }
        change(&mut parent, &create("a", "a"));
        for _ in 0..steps {
            if let Some(next) = parent.next_index_change() {
                change(&mut parent, &next);
            }
        }
        let cut = Key::new(&[cut]).unwrap();
        let low = KeyRange { begin: Key::empty(), end: cut.clone() };
        let high = KeyRange { begin: cut, end: Key::empty() };
        // Children take what the parent had, and then its later changes.
        let copy = child_of(&engine, &parent, "copy", &KeyRange::all(), &[]);
        let mut later = Vec::new();
        for (key, value) in &after {
            let operation = Operation {
                key: Key::new(&[*key]).unwrap(),
                condition: Condition::Always,
                action: Action::Put(VALUES[*value].as_bytes().into(), Expiry::Never),
                wants_former: false,
            };
            let payload = write::encode(&Write { at_ms: 2, request: None, operations: vec![operation] });
            later.push(apply(&mut parent, payload));
        }
        for (folder, range) in [("low", low), ("high", high)] {
            let mut child = child_of(&engine, &copy, folder, &range, &later);
            prop_assert_eq!(child.indexes(), parent.indexes());
            check(&child);
            finish(&mut child);
            check(&child);
            let rows = stored(&child, &[1], &[2]).len();
            let of_parent = stored(&parent, &[1], &[2]).into_iter();
            prop_assert_eq!(rows, of_parent.filter(|(key, _)| range.contains(&key[1..])).count());
        }
    }
}

/// All pages of a query.
fn pages(rows: &Rows, of: &str, query: &IndexQuery, most: usize) -> Vec<ScannedRow> {
    pages_of(rows, of, query, most, None)
}

/// The same of the rows of a partition.
fn pages_of(
    rows: &Rows,
    of: &str,
    query: &IndexQuery,
    most: usize,
    partition: Option<Partition>,
) -> Vec<ScannedRow> {
    let mut range = IndexRange {
        name: name(of),
        query: query.clone(),
        from: Vec::new(),
        most,
        with_values: true,
        partition,
    };
    let mut found = Vec::new();
    loop {
        let IndexRead::Page { rows: page, next, .. } = rows.index_page(&range).unwrap() else {
            panic!("no page")
        };
        assert!(page.len() <= most);
        assert!(page.windows(2).all(|two| two[0].place < two[1].place));
        assert!(page.iter().all(|row| row.place >= range.from));
        found.extend(page.into_iter().map(|row| row.row));
        let Some(next) = next else { return found };
        assert!(next >= range.from);
        range.from = next;
    }
}

fn keys_of(rows: &[ScannedRow]) -> Vec<String> {
    rows.iter().map(|row| String::from_utf8(row.key.as_bytes().to_vec()).unwrap()).collect()
}

#[test]
fn the_rows_of_a_partition_come_alone_in_pages_of_any_size() {
    let engine = SimulatedEngine::default();
    let mut rows = open(&engine, "a");
    change(&mut rows, &create("n", "n"));
    for (number, key) in ["a/1", "b/1", "a/2", "a", "c", "b/2", "a/3"].into_iter().enumerate() {
        let value = format!("{{\"n\": {}}}", 9 - number);
        put(&mut rows, 1, key.as_bytes(), Some(value.as_bytes()), Expiry::Never);
    }
    finish(&mut rows);
    let by = PartitionKey::UpTo { delimiter: b'/' };
    for (given, expected) in [
        ("a", vec!["a/3", "a", "a/2", "a/1"]),
        ("a/9", vec!["a/3", "a", "a/2", "a/1"]),
        ("b/", vec!["b/2", "b/1"]),
        ("d", vec![]),
    ] {
        let key = Key::new(given.as_bytes()).unwrap();
        for most in 1..5 {
            let partition = Some(Partition { by, key: key.clone() });
            let found = pages_of(&rows, "n", &IndexQuery::all(), most, partition);
            assert_eq!(keys_of(&found), expected, "{given}");
        }
    }
}

#[test]
fn rows_come_by_value_and_key_in_pages_of_any_size() {
    let engine = SimulatedEngine::default();
    let mut rows = open(&engine, "a");
    let long = "x".repeat(INDEX_TEXT_BYTES);
    change(&mut rows, &create("n", "n"));
    for (key, value) in [
        ("a", "{\"n\": 3}".to_owned()),
        ("b", "{\"n\": 1}".to_owned()),
        ("c", "{\"n\": 3.0}".to_owned()),
        ("d", "{\"n\": \"t\"}".to_owned()),
        ("e", "{\"n\": true}".to_owned()),
        ("f", "{}".to_owned()),
        ("g", format!("{{\"n\": \"{long}b\"}}")),
        ("h", format!("{{\"n\": \"{long}a\"}}")),
        ("i", format!("{{\"n\": \"{long}\"}}")),
    ] {
        put(&mut rows, 1, key.as_bytes(), Some(value.as_bytes()), Expiry::Never);
    }
    put(&mut rows, 1, b"gone", Some(b"{\"n\": 2}"), Expiry::At(5));
    assert!(matches!(
        rows.index_page(&IndexRange {
            name: name("n"),
            query: IndexQuery::all(),
            from: vec![],
            most: 1,
            with_values: true,
            partition: None,
        }),
        Ok(IndexRead::Unfinished(_))
    ));
    finish(&mut rows);
    let whole = |number| IndexedValue::Number(Number::Whole(number));
    let text = |text: &str| IndexedValue::Text(text.to_owned());
    let between =
        |from: Option<IndexedValue>, to: Option<IndexedValue>| IndexQuery::between(from, to).unwrap();
    let cases: Vec<(IndexQuery, Vec<&str>)> = vec![
        (IndexQuery::all(), vec!["e", "b", "gone", "a", "c", "d", "i", "g", "h"]),
        (IndexQuery::equals(whole(3)), vec!["a", "c"]),
        (IndexQuery::equals(text(&format!("{long}a"))), vec!["h"]),
        (IndexQuery::equals(text(&long)), vec!["i"]),
        (between(Some(whole(2)), None), vec!["gone", "a", "c"]),
        (between(None, Some(whole(3))), vec!["b", "gone"]),
        (between(Some(text("u")), Some(text(&format!("{long}b")))), vec!["i", "h"]),
        (between(Some(text(&format!("{long}b"))), None), vec!["g"]),
        (IndexQuery::equals(whole(9)), vec![]),
    ];
    for (query, expected) in cases {
        for most in 1..12 {
            assert_eq!(keys_of(&pages(&rows, "n", &query, most)), expected, "{query:?}");
        }
    }
    put(&mut rows, 6, b"z", Some(b"1"), Expiry::Never);
    assert_eq!(keys_of(&pages(&rows, "n", &IndexQuery::equals(whole(2)), 9)), Vec::<String>::new());
    let missing = IndexRange {
        name: name("m"),
        query: IndexQuery::all(),
        from: vec![],
        most: 1,
        with_values: true,
        partition: None,
    };
    assert_eq!(rows.index_page(&missing).unwrap(), IndexRead::Missing);
}

#[test]
fn building_and_dropping_go_in_steps_that_have_bounds() {
    let engine = SimulatedEngine::default();
    let mut rows = open(&engine, "a");
    let count = 2 * INDEX_STEP_ROWS + 10;
    for number in 0..count as u32 {
        put(
            &mut rows,
            1,
            &number.to_be_bytes(),
            Some(format!("{{\"n\": {}}}", number % 7).as_bytes()),
            Expiry::Never,
        );
    }
    for number in 0..3u32 {
        let large = format!("{{\"n\": 1, \"x\": \"{}\"}}", "x".repeat(400 << 10));
        put(&mut rows, 1, &(u32::MAX - number).to_be_bytes(), Some(large.as_bytes()), Expiry::Never);
    }
    change(&mut rows, &create("n", "n"));
    assert_eq!(finish(&mut rows), 5, "two of rows, and three of bytes");
    check(&rows);
    assert_eq!(stored(&rows, &[6], &[7]).len(), count + 3);
    change(&mut rows, &IndexChange::Drop(name("n")));
    assert_eq!(finish(&mut rows), 3);
    assert_eq!((stored(&rows, &[6], &[8]).len(), rows.indexes().len()), (0, 0));
}
