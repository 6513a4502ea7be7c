//! A difference that is planted in the store of one replica is found where it is.

use super::*;
use crate::rows::StoredRows;
use crate::stored::{index as stored_index, keys, write};
use partage_core::base::id::Epoch;
use partage_core::base::name::{IndexName, NodeId};
use partage_core::keyspace::key::Key;
use partage_engine::replica::{Change, Engine, SimulatedEngine, SimulatedStore, Store};
use partage_service::table::check::{Difference, Kind, compare};
use partage_service::table::filter::Path;
use partage_service::table::index::{IndexChange, IndexId};
use partage_service::table::replication::{Entry, EntryKind};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Write};

type Rows = StoredRows<SimulatedStore>;

fn apply(rows: &mut Rows, payload: &[u8]) {
    let position = LogPosition { epoch: Epoch(1), index: rows.applied().index + 1 };
    rows.apply(&Entry { position, kind: EntryKind::Write(payload.into()) }).unwrap();
}

fn index_name() -> IndexName {
    IndexName::new("by-n").unwrap()
}

/// A replica with rows and an index.
fn replica(engine: &SimulatedEngine, folder: &str, rows_of: u32) -> Rows {
    let store = engine.open(std::path::Path::new(folder)).unwrap();
    let mut rows = StoredRows::open(Arc::new(store), None).unwrap();
    apply(
        &mut rows,
        &stored_index::encode_change(0, &IndexChange::Create(index_name(), Path::parse("n").unwrap())),
    );
    for number in 0..rows_of {
        let value = format!("{{\"n\": {}}}", number % 5).into_bytes();
        let expiry = if number % 3 == 0 { Expiry::At(1_000_000) } else { Expiry::Never };
        let operation = Operation {
            key: Key::new(format!("k{number:04}").as_bytes()).unwrap(),
            condition: Condition::Always,
            action: Action::Put(value.into(), expiry),
            wants_former: false,
        };
        apply(&mut rows, &write::encode(&Write { at_ms: 1, request: None, operations: vec![operation] }));
    }
    while let Some(next) = rows.next_index_change() {
        apply(&mut rows, &stored_index::encode_change(0, &next));
    }
    rows
}

fn digest(rows: &Rows) -> Digest {
    let mut digesting = Digesting::new(rows.store().snapshot().unwrap(), rows.indexes().to_vec(), 16);
    while digesting.step().unwrap() {}
    digesting.end()
}

/// What is found when the second of three replicas has something else under a key of its store.
fn planted(key: &[u8], value: Option<&[u8]>) -> Vec<Difference> {
    let engine = SimulatedEngine::default();
    let replicas: BTreeMap<NodeId, Digest> = (1..=3)
        .map(|number| {
            let rows = replica(&engine, &format!("n{number}"), 500);
            if number == 2 {
                let applied = rows.applied();
                let next = LogPosition { index: applied.index + 1, ..applied };
                rows.store().apply(applied, next, &[Change { key, value }]).unwrap();
            }
            (NodeId::new(&format!("n{number}")).unwrap(), digest(&rows))
        })
        .collect();
    assert!(replicas.values().all(|digest| digest.ranges.len() > 10), "several ranges");
    let ranges = replicas.values().next().unwrap();
    let of_row = keys::row_of(key).unwrap_or_default();
    let first = ranges.ranges.keys().rfind(|first| first.as_bytes() <= of_row).unwrap();
    let found = compare(&replicas);
    assert!(found.iter().all(|one| one.node.as_str() == "n2" && one.first == *first), "{found:?}");
    found
}

fn kinds(found: &[Difference]) -> Vec<(String, bool)> {
    found.iter().map(|one| (one.part.to_string(), matches!(one.kind, Kind::FromRows { .. }))).collect()
}

fn row(key: &str) -> Vec<u8> {
    keys::row(&Key::new(key.as_bytes()).unwrap())
}

fn entry(number: i128, key: &str) -> Vec<u8> {
    use partage_service::table::filter::Number;
    use partage_service::table::index::IndexedValue;
    let id = IndexId::of(&index_name(), &Path::parse("n").unwrap());
    keys::index_entry(id, &IndexedValue::Number(Number::Whole(number)).encode(), key.as_bytes())
}

#[test]
fn replicas_that_are_alike_do_not_differ() {
    let engine = SimulatedEngine::default();
    let one = digest(&replica(&engine, "a", 500));
    let other = digest(&replica(&engine, "b", 500));
    assert_eq!(one, other);
    let of = |name: &str| NodeId::new(name).unwrap();
    assert_eq!(compare(&BTreeMap::from([(of("a"), one), (of("b"), other)])), []);
}

#[test]
fn a_row_that_is_missing_is_found_with_what_follows_from_it() {
    let found = kinds(&planted(&row("k0101"), None));
    assert_eq!(found, [("rows".to_owned(), false), ("index by-n".to_owned(), true)]);
    let found = kinds(&planted(&row("k0102"), None));
    let expected = [("rows", false), ("times when rows end", true), ("index by-n", true)];
    assert_eq!(found, expected.map(|(part, of_rows)| (part.to_owned(), of_rows)));
}

#[test]
fn an_entry_that_is_missing_or_too_much_is_found_in_its_index() {
    let expected = [("index by-n".to_owned(), false), ("index by-n".to_owned(), true)];
    assert_eq!(kinds(&planted(&entry(1, "k0101"), None)), expected);
    assert_eq!(kinds(&planted(&entry(2, "k0101"), Some(b""))), expected);
    assert_eq!(kinds(&planted(&entry(1, "no such row"), Some(b""))), expected);
    let stray = kinds(&planted(&keys::index_entry(IndexId(7), &[1, 1], b"k0101"), Some(b"")));
    let part = "entries of an index that there is not".to_owned();
    assert_eq!(stray, [(part.clone(), false), (part, true)]);
}

#[test]
fn other_records_are_compared_too() {
    let ends = keys::ends(1_000_000, &Key::new(b"k0102").unwrap());
    let part = "times when rows end".to_owned();
    assert_eq!(kinds(&planted(&ends, None)), [(part.clone(), false), (part, true)]);
    assert_eq!(kinds(&planted(keys::SHARD_STATE, Some(b"x"))).len(), 1);
}

#[test]
fn a_value_that_is_another_one_is_found() {
    let engine = SimulatedEngine::default();
    let stored = replica(&engine, "a", 500).store().get(&row("k0101")).unwrap().unwrap().to_vec();
    let mut changed = stored.clone();
    // A space becomes a line feed: the same JSON.
    let at = changed.iter().position(|byte| *byte == b' ').unwrap();
    changed[at] = b'\n';
    assert_eq!(kinds(&planted(&row("k0101"), Some(&changed))), [("rows".to_owned(), false)]);
}

#[test]
fn results_are_kept_for_a_while_and_given_once() {
    let (checks, now) = (Checks::default(), Millis(1));
    let keyspace = partage_core::base::name::KeyspaceName::new("t").unwrap();
    let key = |shard| ReplicaKey {
        keyspace: keyspace.clone(),
        shard: partage_core::base::id::ShardId(shard),
        placement: partage_core::base::id::PlacementId(1),
    };
    for shard in 0..CHECKS_KEPT as u64 {
        assert!(checks.begin(now, &key(shard), 9));
    }
    assert!(!checks.begin(now, &key(1_000), 9), "there are enough");
    checks.end(&key(0), 9, CheckState::Done(LogPosition::default(), Arc::default()));
    assert!(
        matches!(checks.take(&key(0), 9), Some(CheckState::Done(..))) && checks.take(&key(0), 9).is_none()
    );
    assert!(
        matches!(checks.take(&key(1), 9), Some(CheckState::Working)) && checks.take(&key(1), 8).is_none()
    );
    assert!(checks.begin(now, &key(1_000), 9));
    assert!(checks.begin(now + CHECK_LIFE_MS, &key(2_000), 9) && checks.take(&key(1), 9).is_none());
}
