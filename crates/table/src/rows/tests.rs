//! Rows on a store against rows in a map, and after a crash.

use super::*;
use partage_core::base::id::Epoch;
use partage_engine::replica::{Engine, SimulatedEngine};
use partage_service::table::rows::{Action, Condition, Expiry, Operation, Request, Write};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;

/// What is stored, in memory.
#[derive(Default)]
struct Model {
    rows: BTreeMap<Key, Row>,
    ends: BTreeSet<(u64, Key)>,
    answers: BTreeMap<RequestId, KeptOutcome>,
    answers_of: BTreeSet<(u64, RequestId)>,
    shard_state: ShardState,
}

impl Records for Model {
    type Error = Infallible;

    fn row(&self, key: &Key) -> Result<Option<Row>, Infallible> {
        Ok(self.rows.get(key).cloned())
    }

    fn ended(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, Key)>, Infallible> {
        Ok(self.ends.iter().take_while(|(at, _)| *at <= until_ms).take(most).cloned().collect())
    }

    fn answer(&self, request: &RequestId) -> Result<Option<KeptOutcome>, Infallible> {
        Ok(self.answers.get(request).cloned())
    }

    fn answers(&self, until_ms: u64, most: usize) -> Result<Vec<(u64, RequestId)>, Infallible> {
        Ok(self.answers_of.iter().take_while(|(at, _)| *at <= until_ms).take(most).copied().collect())
    }

    fn shard_state(&self) -> Result<ShardState, Infallible> {
        Ok(self.shard_state)
    }
}

impl Model {
    fn apply(&mut self, entry: &Entry) -> Option<Outcome> {
        let EntryKind::Write(payload) = &entry.kind else { return None };
        let write = write::decode(payload).unwrap();
        let Ok(Applied { outcome, records, .. }) = rows::apply(self, entry.position, &write);
        for record in records {
            match record {
                Record::Row(key, Some(row)) => drop(self.rows.insert(key, row)),
                Record::Row(key, None) => drop(self.rows.remove(&key)),
                Record::Ends(at, key, true) => drop(self.ends.insert((at, key))),
                Record::Ends(at, key, false) => drop(self.ends.remove(&(at, key))),
                Record::Outcome(id, Some(answered)) => drop(self.answers.insert(id, answered)),
                Record::Outcome(id, None) => drop(self.answers.remove(&id)),
                Record::OutcomeTime(at, id, true) => drop(self.answers_of.insert((at, id))),
                Record::OutcomeTime(at, id, false) => drop(self.answers_of.remove(&(at, id))),
                Record::ShardState(shard_state) => self.shard_state = shard_state,
                Record::Change(..) | Record::Removed(_) => panic!("it has no feed"),
            }
        }
        Some(outcome)
    }
}

fn key(number: u8) -> Key {
    Key::new(&[b'k', number]).unwrap()
}

fn write() -> impl Strategy<Value = Write> {
    let expiry =
        prop_oneof![Just(Expiry::AsBefore), Just(Expiry::Never), (0u64..900_000).prop_map(Expiry::At)];
    let action = prop_oneof![
        Just(Action::Read),
        (any::<u8>(), expiry).prop_map(|(value, expiry)| Action::Put(vec![b'0' + value % 10].into(), expiry)),
        Just(Action::Delete),
        (-5i64..5).prop_map(Action::Add),
        Just(Action::Append(vec![b'1'].into())),
    ];
    let condition = prop_oneof![4 => Just(Condition::Always), 1 => Just(Condition::Absent), 1 => Just(Condition::Present)];
    let operation =
        (0u8..6, condition, action, any::<bool>()).prop_map(|(number, condition, action, wants_former)| {
            Operation { key: key(number), condition, action, wants_former }
        });
    let request = proptest::option::of((0u8..20, 0u64..2));
    (0u64..900_000, request, proptest::collection::vec(operation, 0..4)).prop_map(
        |(at_ms, request, operations)| Write {
            at_ms,
            request: request.map(|(id, fingerprint)| Request { id: RequestId([id; 16]), fingerprint }),
            operations,
        },
    )
}

fn entry(index: u64, write: Option<&Write>) -> Entry {
    let kind = write.map_or(EntryKind::Begin, |write| EntryKind::Write(write::encode(write).into()));
    Entry { position: LogPosition { epoch: Epoch(1), index }, kind }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn rows_on_a_store_are_as_rows_in_a_map_also_after_a_crash(
        writes in proptest::collection::vec(proptest::option::weighted(0.9, write()), 1..60),
        flush in any::<prop::sample::Index>(),
        crash in any::<prop::sample::Index>(),
    ) {
        let engine = SimulatedEngine::default();
        let folder = Path::new("a");
        let mut rows = StoredRows::open(Arc::new(engine.open(folder).unwrap()), None).unwrap();
        let mut model = Model::default();
        let (flush, crash) = (flush.index(writes.len()), crash.index(writes.len()));
        let entries: Vec<_> = (1..).zip(&writes).map(|(index, write)| entry(index, write.as_ref())).collect();
        for (number, entry) in entries.iter().enumerate() {
            prop_assert_eq!(rows.apply(entry).unwrap(), model.apply(entry));
            if number == flush {
                rows.store().flush().unwrap();
            }
            if number == crash {
                engine.crash();
                rows = StoredRows::open(Arc::new(engine.open(folder).unwrap()), None).unwrap();
                for entry in &entries[rows.applied().index as usize..=number] {
                    rows.apply(entry).unwrap();
                }
            }
            for number in 0..6 {
                prop_assert_eq!(rows.row(&key(number)).unwrap(), model.row(&key(number)).unwrap());
            }
            prop_assert_eq!(rows.ended(u64::MAX, 10).unwrap(), model.ended(u64::MAX, 10).unwrap());
            prop_assert_eq!(rows.answers(u64::MAX, 10).unwrap(), model.answers(u64::MAX, 10).unwrap());
            prop_assert_eq!(rows.shard_state().unwrap(), model.shard_state);
            prop_assert_eq!(rows.applied(), entry.position);
        }
        for (id, answered) in &model.answers {
            prop_assert_eq!(rows.answer(id).unwrap(), Some(answered.clone()));
        }
    }
}

#[test]
fn an_outcome_of_many_rows_is_kept_in_parts_and_goes_as_a_whole() {
    let engine = SimulatedEngine::default();
    let mut rows = StoredRows::open(Arc::new(engine.open(Path::new("a")).unwrap()), None).unwrap();
    let put = |number| Operation {
        key: key(number),
        condition: Condition::Always,
        action: Action::Put(vec![number; 1 << 20].into(), Expiry::Never),
        wants_former: false,
    };
    for number in 0..3 {
        let put = Write { at_ms: 1, request: None, operations: vec![put(number)] };
        rows.apply(&entry(u64::from(number) + 1, Some(&put))).unwrap();
    }
    let read = |number| Operation { action: Action::Read, ..put(number) };
    let request = Some(Request { id: RequestId([7; 16]), fingerprint: 1 });
    let reads = Write { at_ms: 2, request, operations: (0..3).map(read).collect() };
    let first = rows.apply(&entry(4, Some(&reads))).unwrap();
    assert!(matches!(&first, Some(Outcome::Done { results, .. }) if results.len() == 3));
    assert_eq!(rows.apply(&entry(5, Some(&reads))).unwrap(), first, "the same request again");
    assert_eq!(rows.first_part(&RequestId([7; 16])).unwrap().unwrap().0, 4);
    let later = Write { at_ms: 10_000_000, request: None, operations: vec![read(0)] };
    rows.apply(&entry(6, Some(&later))).unwrap();
    for part in 0..4 {
        assert_eq!(rows.store().get(&keys::answer(&RequestId([7; 16]), part)).unwrap(), None);
    }
}

#[test]
fn what_is_stored_in_another_form_is_an_error() {
    let engine = SimulatedEngine::default();
    let mut rows = StoredRows::open(Arc::new(engine.open(Path::new("a")).unwrap()), None).unwrap();
    let bad = Entry { kind: EntryKind::Write(vec![9].into()), ..entry(1, None) };
    let error = rows.apply(&bad).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("the version"), "{error}");
    assert_eq!(rows.applied(), LogPosition::default());
    let stored = Change { key: &keys::row(&key(1)), value: Some(b"x") };
    rows.store().apply(rows.applied(), entry(1, None).position, &[stored]).unwrap();
    assert!(rows.read(&key(1)).unwrap_err().to_string().contains("a stored row"));
}

/// All pages of a scan, and how many there were.
fn pages<S: Store>(rows: &StoredRows<S>, range: &ScanRange) -> (Vec<ScannedRow>, usize) {
    let (mut found, mut range, mut count) = (Vec::new(), range.clone(), 0);
    loop {
        let page = rows.scan(&range).unwrap();
        assert!(page.rows.len() <= range.most);
        found.extend(page.rows);
        count += 1;
        match page.next {
            Some(next) => {
                assert!(next > range.from, "each page goes on");
                range.from = next;
            }
            None => return (found, count),
        }
    }
}

/// Short keys of few bytes, so that many are prefixes of others.
fn scan_key() -> impl Strategy<Value = Key> {
    let byte = prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(255u8)];
    proptest::collection::vec(byte, 0..4).prop_map(|bytes| Key::new(&bytes).unwrap())
}

fn scan_range() -> impl Strategy<Value = ScanRange> {
    let prefix = proptest::collection::vec(prop_oneof![Just(b'a'), Just(255u8)], 0..3);
    (scan_key(), proptest::option::of(scan_key()), prefix, 1usize..7, any::<bool>()).prop_map(
        |(from, to, prefix, most, with_values)| {
            let prefix = Key::new(&prefix).unwrap();
            ScanRange { from, to, prefix, most, with_values }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_scan_finds_what_a_map_has_in_the_range_page_by_page(
        puts in proptest::collection::vec((scan_key(), proptest::option::of(0u64..200)), 0..40),
        clock in 0u64..200,
        ranges in proptest::collection::vec(scan_range(), 1..8),
    ) {
        let engine = SimulatedEngine::default();
        let mut rows = StoredRows::open(Arc::new(engine.open(Path::new("a")).unwrap()), None).unwrap();
        let mut model = Model::default();
        let mut index = 0;
        let mut apply = |at_ms, key: &Key, action| {
            let operation = Operation { key: key.clone(), condition: Condition::Always, action, wants_former: false };
            index += 1;
            let entry = entry(index, Some(&Write { at_ms, request: None, operations: vec![operation] }));
            rows.apply(&entry).unwrap();
            model.apply(&entry);
        };
        for (key, end) in &puts {
            let expiry = end.map_or(Expiry::Never, Expiry::At);
            apply(0, key, Action::Put(key.as_bytes().into(), expiry));
        }
        apply(clock, &Key::empty(), Action::Read);
        for range in ranges {
            let in_range = |key: &Key| {
                *key >= range.from
                    && range.to.as_ref().is_none_or(|to| key < to)
                    && key.as_bytes().starts_with(range.prefix.as_bytes())
            };
            let there = |(key, row): &(&Key, &Row)| in_range(key) && row.is_there(model.shard_state.clock_ms);
            let expected: Vec<_> = model.rows.iter().filter(there).map(|(key, row)| ScannedRow {
                key: key.clone(),
                value: range.with_values.then(|| row.value.clone()),
                version: row.version,
                expires_ms: row.expires_ms,
            }).collect();
            prop_assert_eq!(pages(&rows, &range).0, expected);
        }
    }
}

#[test]
fn a_page_has_bounds_of_bytes_and_of_rows_that_are_looked_at() {
    let engine = SimulatedEngine::default();
    let mut rows = StoredRows::open(Arc::new(engine.open(Path::new("a")).unwrap()), None).unwrap();
    let put = |number: u32, bytes: usize, expiry| Operation {
        key: Key::new(&number.to_be_bytes()).unwrap(),
        condition: Condition::Always,
        action: Action::Put(vec![7; bytes].into(), expiry),
        wants_former: false,
    };
    let mut index = 0;
    let mut apply = |at_ms, operations| {
        index += 1;
        rows.apply(&entry(index, Some(&Write { at_ms, request: None, operations }))).unwrap();
    };
    for batch in 0..6 {
        apply(1, (0..1_000).map(|number| put(batch * 1_000 + number, 1, Expiry::At(9))).collect());
    }
    for number in 10_000..10_004 {
        apply(1, vec![put(number, 400 << 10, Expiry::Never)]);
    }
    apply(1, vec![put(10_004, 1 << 20, Expiry::Never)]);
    // The rows of the first batches end; this entry removes some of them.
    apply(10, vec![put(10_005, 1, Expiry::Never)]);
    let first = rows.scan(&ScanRange::default()).unwrap();
    assert_eq!(
        (first.rows.len(), first.next.is_some()),
        (0, true),
        "it has looked at rows that have ended only"
    );
    let mut sizes = Vec::new();
    let mut range = ScanRange { from: first.next.unwrap(), ..ScanRange::default() };
    loop {
        let page = rows.scan(&range).unwrap();
        sizes.push(page.rows.len());
        let Some(next) = page.next else { break };
        range.from = next;
    }
    assert_eq!(sizes, [2, 2, 1, 1], "two rows of 400 KiB fit on a page, one of 1 MiB stands alone");
    let (found, count) = pages(&rows, &ScanRange { with_values: false, ..ScanRange::default() });
    assert_eq!((found.len(), count), (6, 5), "what is read counts, not what is answered");
}
