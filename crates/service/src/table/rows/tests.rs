use super::*;
use partage_core::base::id::Epoch;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// What is stored, in memory.
#[derive(Debug, Clone, Default, PartialEq)]
struct Memory {
    rows: BTreeMap<Key, Row>,
    ends: BTreeSet<(u64, Key)>,
    answers: BTreeMap<RequestId, KeptOutcome>,
    answers_of: BTreeSet<(u64, RequestId)>,
    shard_state: ShardState,
}

impl Records for Memory {
    type Error = Infallible;

    fn has_ends(&self) -> bool {
        !self.ends.is_empty()
    }

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

impl Memory {
    fn store(&mut self, records: Vec<Record>) {
        for record in records {
            match record {
                Record::Row(key, Some(row)) => drop(self.rows.insert(key, row)),
                Record::Row(key, None) => assert!(self.rows.remove(&key).is_some(), "{key} is not there"),
                Record::Ends(at, key, true) => assert!(self.ends.insert((at, key))),
                Record::Ends(at, key, false) => assert!(self.ends.remove(&(at, key))),
                Record::Outcome(id, Some(answered)) => assert!(self.answers.insert(id, answered).is_none()),
                Record::Outcome(id, None) => assert!(self.answers.remove(&id).is_some()),
                Record::OutcomeTime(at, id, true) => assert!(self.answers_of.insert((at, id))),
                Record::OutcomeTime(at, id, false) => assert!(self.answers_of.remove(&(at, id))),
                Record::ShardState(shard_state) => self.shard_state = shard_state,
                Record::Change(..) | Record::Removed(_) => panic!("it has no feed"),
            }
        }
        let ends = self.rows.iter().filter_map(|(key, row)| Some((row.expires_ms?, key.clone()))).collect();
        assert_eq!(self.ends, ends, "the times when rows end are not those of the rows");
        assert_eq!(self.answers.len() as u64, self.shard_state.outcomes);
        assert_eq!(self.answers_of.len(), self.answers.len());
    }

    /// The rows that a reader sees.
    fn seen(&self) -> BTreeMap<Key, Row> {
        let there = |(_, row): &(&Key, &Row)| row.is_there(self.shard_state.clock_ms);
        self.rows.iter().filter(there).map(|(key, row)| (key.clone(), row.clone())).collect()
    }
}

/// A shard whose entries are applied one after the other.
#[derive(Default)]
struct Shard {
    memory: Memory,
    index: u64,
}

impl Shard {
    fn write(&mut self, write: &Write) -> Outcome {
        self.index += 1;
        let Ok(applied) = apply(&self.memory, at(self.index), write);
        self.memory.store(applied.records);
        applied.outcome
    }

    fn one(&mut self, at_ms: u64, name: &str, action: Action) -> Outcome {
        self.write(&Write {
            at_ms,
            request: None,
            operations: vec![operation(name, Condition::Always, action)],
        })
    }

    fn get(&self, name: &str) -> Option<String> {
        let Ok(row) = read(&self.memory, &key(name));
        row.map(|row| String::from_utf8(row.value.to_vec()).unwrap())
    }
}

fn at(index: u64) -> LogPosition {
    LogPosition { epoch: Epoch(1), index }
}

fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

fn put(text: &str) -> Action {
    Action::Put(text.as_bytes().into(), Expiry::Never)
}

fn operation(name: &str, condition: Condition, action: Action) -> Operation {
    Operation { key: key(name), condition, action, wants_former: false }
}

fn request(id: u8, fingerprint: u64) -> Option<Request> {
    Some(Request { id: RequestId([id; 16]), fingerprint })
}

fn results(outcome: Outcome) -> Vec<Done> {
    match outcome {
        Outcome::Done { results, .. } => results,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_batch_is_done_as_one_or_not_at_all() {
    let mut shard = Shard::default();
    shard.one(1, "a", put("1"));
    let batch = |condition| Write {
        at_ms: 1,
        request: None,
        operations: vec![
            operation("b", Condition::Absent, put("2")),
            operation("b", Condition::Present, Action::Append((*b"3").into())),
            operation("a", condition, Action::Delete),
        ],
    };
    let refused = shard.write(&batch(Condition::Version(at(9))));
    assert_eq!(refused, Outcome::NotMet { operation: 2, current: Some(at(1)) });
    assert_eq!((shard.get("a"), shard.get("b")), (Some("1".into()), None));
    let done = results(shard.write(&batch(Condition::Version(at(1)))));
    assert_eq!(done.iter().map(|done| done.existed).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!((shard.get("a"), shard.get("b")), (None, Some("23".into())));
}

#[test]
fn a_version_never_comes_back() {
    let mut shard = Shard::default();
    shard.one(1, "a", put("x"));
    shard.one(1, "a", Action::Delete);
    shard.one(1, "a", put("x"));
    let operations = vec![operation("a", Condition::Version(at(1)), put("y"))];
    let outcome = shard.write(&Write { at_ms: 1, request: None, operations });
    assert_eq!(outcome, Outcome::NotMet { operation: 0, current: Some(at(3)) });
}

#[test]
fn numbers_and_appends_are_refused_where_they_do_not_fit() {
    let mut shard = Shard::default();
    let sum = results(shard.one(1, "n", Action::Add(-5)));
    assert_eq!(sum[0].now, Some(Now { bytes: 2, number: Some(-5), expires_ms: None }));
    shard.one(1, "n", put(&i64::MAX.to_string()));
    let refused = |outcome| match outcome {
        Outcome::Refused { refusal, .. } => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(shard.one(1, "n", Action::Add(1))), Refusal::Overflow);
    for text in ["", "+1", "01", " 1", "1.0", "9223372036854775808"] {
        shard.one(1, "n", put(text));
        assert_eq!(refused(shard.one(1, "n", Action::Add(1))), Refusal::NotANumber, "'{text}'");
    }
    shard.one(1, "v", Action::Put(vec![0; limits::VALUE_BYTES].into(), Expiry::Never));
    assert_eq!(refused(shard.one(1, "v", Action::Append((*b"x").into()))), Refusal::TooLong);
}

#[test]
fn a_row_ends_by_the_clock_of_the_shard_and_never_comes_back() {
    let mut shard = Shard::default();
    shard.one(100, "a", Action::Put((*b"x").into(), Expiry::At(200)));
    shard.one(199, "b", put("y"));
    assert_eq!(shard.get("a"), Some("x".into()));
    shard.one(200, "b", put("y"));
    assert_eq!(shard.get("a"), None);
    // A leader whose clock is behind.
    let again = results(shard.one(50, "a", Action::Append((*b"z").into())));
    assert_eq!((again[0].existed, shard.get("a")), (false, Some("z".into())));
    assert_eq!(shard.memory.ends.len(), 0);
}

#[test]
fn a_time_to_live_counts_by_the_clock_of_the_leader_and_not_of_the_node_that_took_the_request_in() {
    // The clock of the node that took it in shows an hour more than the leader's; the write does not carry that time on.
    let (at_door, at_leader) = (3_600_000, 1_000);
    let taken_in = Write {
        at_ms: at_door,
        request: None,
        operations: vec![operation("a", Condition::Always, Action::Put((*b"x").into(), Expiry::After(100)))],
    };
    let led = Write { at_ms: at_leader, ..taken_in };
    let mut shard = Shard::default();
    let done = results(shard.write(&led));
    assert_eq!(done[0].now.and_then(|now| now.expires_ms), Some(1_100));
    shard.one(1_099, "b", put("y"));
    assert_eq!(shard.get("a"), Some("x".into()));
    shard.one(1_100, "b", put("y"));
    assert_eq!(shard.get("a"), None);
    assert_eq!(Expiry::After(100).resolved(at_leader), Expiry::At(1_100));
    assert_eq!(Expiry::After(u64::MAX).resolved(at_leader), Expiry::At(u64::MAX));
    for absolute in [Expiry::AsBefore, Expiry::Never, Expiry::At(7)] {
        assert_eq!(absolute.resolved(at_leader), absolute);
    }
}

#[test]
fn an_entry_without_operations_removes_what_has_ended() {
    let mut shard = Shard::default();
    for number in 0..40 {
        shard.one(1, &number.to_string(), Action::Put((*b"x").into(), Expiry::At(10)));
    }
    for left in [24, 8, 0] {
        shard.write(&Write { at_ms: 11, request: None, operations: Vec::new() });
        assert_eq!(shard.memory.rows.len(), left);
    }
}

#[test]
fn a_request_that_comes_twice_gets_the_first_outcome() {
    let mut shard = Shard::default();
    let write = |id, fingerprint, at_ms| Write {
        at_ms,
        request: request(id, fingerprint),
        operations: vec![operation("n", Condition::Always, Action::Add(1))],
    };
    let first = shard.write(&write(1, 7, 1));
    assert_eq!(shard.write(&write(1, 7, 2)), first);
    assert_eq!(shard.write(&write(1, 8, 2)), Outcome::RequestIdTaken);
    assert_eq!(shard.get("n"), Some("1".into()));
    let mut split_off = Shard { memory: shard.memory.clone(), index: shard.index };
    assert_eq!(split_off.write(&write(1, 7, 3)), first);
    // Its time has come, and some other entry has removed it.
    let later = Write {
        at_ms: 1 + limits::ANSWER_KEPT_MS,
        request: None,
        operations: vec![operation("o", Condition::Always, put(""))],
    };
    let Ok(applied) = apply(&shard.memory, at(shard.index + 1), &later);
    assert!(
        applied.forgotten_early == 0 && applied.records.contains(&Record::Outcome(RequestId([1; 16]), None))
    );
    shard.write(&later);
    assert_ne!(shard.write(&write(1, 7, 2)), first);
    assert_eq!(shard.get("n"), Some("2".into()));
}

#[test]
fn only_the_latest_outcomes_are_kept() {
    let mut shard = Shard::default();
    shard.memory.shard_state.outcomes = limits::ANSWERS_KEPT - 2;
    let write = |id: u8| Write { at_ms: id.into(), request: request(id, 1), operations: Vec::new() };
    for id in 1..6 {
        let Ok(applied) = apply(&shard.memory, at(id.into()), &write(id));
        let forgot = applied.records.iter().find_map(|record| match record {
            Record::Outcome(id, None) => Some(id.0[0]),
            _ => None,
        });
        assert_eq!(forgot, (id > 2).then(|| id - 2));
        assert_eq!(applied.forgotten_early, u64::from(id > 2), "a client may still count on it");
        for record in applied.records {
            match record {
                Record::OutcomeTime(at, id, true) => drop(shard.memory.answers_of.insert((at, id))),
                Record::OutcomeTime(at, id, false) => drop(shard.memory.answers_of.remove(&(at, id))),
                Record::ShardState(shard_state) => shard.memory.shard_state = shard_state,
                _ => (),
            }
        }
    }
    assert_eq!(shard.memory.shard_state.outcomes, limits::ANSWERS_KEPT);
}

#[test]
fn writes_beyond_the_limits_are_refused_with_the_way_out() {
    let write = |operations| Write { at_ms: 1, request: None, operations };
    let many = |count: usize, bytes: usize| {
        let value: Value = vec![0; bytes].into();
        (0..count)
            .map(|_| operation("a", Condition::Always, Action::Put(value.clone(), Expiry::Never)))
            .collect()
    };
    let refused = |operations| write(operations).check(PartitionKey::Prefix { bytes: 1 }).unwrap_err();
    assert_eq!(refused(Vec::new()), Invalid::Empty);
    assert_eq!(refused(many(1_001, 0)), Invalid::TooMany(1_001));
    let long = Invalid::ValueTooLong { key: key("a"), bytes: limits::VALUE_BYTES + 1 };
    assert_eq!(refused(many(1, limits::VALUE_BYTES + 1)), long);
    assert!(matches!(refused(many(2, limits::VALUE_BYTES)), Invalid::TooLong(_)));
    let ends =
        |ttl_ms| [Action::Put((*b"x").into(), Expiry::After(ttl_ms)), Action::Expire(Expiry::After(ttl_ms))];
    for (most, beyond) in ends(limits::TTL_MS).into_iter().zip(ends(limits::TTL_MS + 1)) {
        let check =
            |action| write(vec![operation("a", Condition::Always, action)]).check(PartitionKey::Whole);
        assert_eq!(check(most), Ok(()));
        assert_eq!(check(beyond), Err(Invalid::TtlTooLong { key: key("a"), ttl_ms: limits::TTL_MS + 1 }));
    }
    let both = vec![
        operation("ab", Condition::Always, Action::Read),
        operation("b\0", Condition::Always, Action::Read),
    ];
    assert!(refused(both).to_string().contains("'ab' and 'b\\x00'"));
    assert_eq!(write(many(1_000, 10)).check(PartitionKey::Whole), Ok(()));
}

fn action() -> impl Strategy<Value = Action> {
    let expiry = prop_oneof![
        Just(Expiry::AsBefore),
        Just(Expiry::Never),
        (0u64..60).prop_map(Expiry::At),
        (0u64..20).prop_map(Expiry::After),
    ];
    let value = prop_oneof![Just("1"), Just("22"), Just("x")].prop_map(|text| Value::from(text.as_bytes()));
    prop_oneof![
        Just(Action::Read),
        (value.clone(), expiry.clone()).prop_map(|(value, expiry)| Action::Put(value, expiry)),
        value.clone().prop_map(Action::Overwrite),
        Just(Action::Delete),
        expiry.prop_map(Action::Expire),
        (-3i64..3).prop_map(Action::Add),
        value.prop_map(Action::Append),
    ]
}

fn any_write() -> impl Strategy<Value = Write> {
    let condition = prop_oneof![
        4 => Just(Condition::Always),
        1 => Just(Condition::Absent),
        1 => Just(Condition::Present),
        1 => (1u64..20).prop_map(|index| Condition::Version(at(index))),
    ];
    let operation =
        ("[a-d]", condition, action(), any::<bool>()).prop_map(|(name, condition, action, wants_former)| {
            Operation { key: key(&name), condition, action, wants_former }
        });
    let request = proptest::option::of(
        (0u8..6, 0u64..2).prop_map(|(id, print)| Request { id: RequestId([id; 16]), fingerprint: print }),
    );
    (0u64..50, request, proptest::collection::vec(operation, 0..4))
        .prop_map(|(at_ms, request, operations)| Write { at_ms, request, operations })
}

proptest! {
    /// Each write has the same outcome, and leaves the same rows, as its operations done one after the other on a map
    /// that is thrown away if one of them fails.
    #[test]
    fn writes_do_to_rows_what_they_do_to_a_map(writes in proptest::collection::vec(any_write(), 1..25)) {
        let mut shard = Shard::default();
        let mut model: BTreeMap<Key, Row> = BTreeMap::new();
        let mut answered: BTreeMap<RequestId, (u64, Outcome)> = BTreeMap::new();
        for write in &writes {
            let outcome = shard.write(write);
            model.retain(|_, row| row.is_there(shard.memory.shard_state.clock_ms));
            match write.request.and_then(|request| Some((request, answered.get(&request.id)?))) {
                Some((request, (print, first))) => {
                    let same = request.fingerprint == *print;
                    prop_assert_eq!(&outcome, if same { first } else { &Outcome::RequestIdTaken });
                }
                None => {
                    let mut tried = model.clone();
                    let clock_ms = shard.memory.shard_state.clock_ms;
                    let fails = write.operations.iter().position(|one| {
                        let fits = fits(&mut tried, one, write.at_ms, at(shard.index));
                        tried.retain(|_, row| row.is_there(clock_ms));
                        !fits
                    });
                    let failed = match &outcome {
                        Outcome::Done { results, .. } => {
                            prop_assert_eq!(results.len(), write.operations.len());
                            None
                        }
                        Outcome::NotMet { operation, .. } | Outcome::Refused { operation, .. } => Some(*operation),
                        Outcome::RequestIdTaken => panic!("{outcome:?}"),
                    };
                    prop_assert_eq!(failed, fails);
                    if fails.is_none() {
                        model = tried;
                    }
                    if let Some(request) = write.request {
                        answered.insert(request.id, (request.fingerprint, outcome));
                    }
                }
            }
            model.retain(|_, row| row.is_there(shard.memory.shard_state.clock_ms));
            prop_assert_eq!(shard.memory.seen(), model.clone());
        }
    }
}

/// Does the operation on a map; false if it cannot be done.
fn fits(rows: &mut BTreeMap<Key, Row>, one: &Operation, at_ms: u64, version: LogPosition) -> bool {
    let former = rows.get(&one.key).cloned();
    let met = match one.condition {
        Condition::Always => true,
        Condition::Absent => former.is_none(),
        Condition::Present => former.is_some(),
        Condition::Version(wanted) => former.as_ref().is_some_and(|row| row.version == wanted),
    };
    let before = former.as_ref().and_then(|row| row.expires_ms);
    let text = former.as_ref().map(|row| String::from_utf8(row.value.to_vec()).unwrap());
    let (text, expires_ms) = match &one.action {
        _ if !met => return false,
        Action::Read => return true,
        Action::Delete => (None, None),
        Action::Put(value, expiry) => {
            (Some(String::from_utf8(value.to_vec()).unwrap()), ending(*expiry, before, at_ms))
        }
        Action::Overwrite(value) => (Some(String::from_utf8(value.to_vec()).unwrap()), None),
        Action::Expire(expiry) => (text, ending(*expiry, before, at_ms)),
        Action::Add(by) => match text.unwrap_or("0".to_owned()) {
            text if text.parse().is_ok_and(|number: i64| number.to_string() == text) => {
                (Some((text.parse::<i64>().unwrap() + by).to_string()), before)
            }
            _ => return false,
        },
        Action::Append(more) => (Some(text.unwrap_or_default() + std::str::from_utf8(more).unwrap()), before),
    };
    match text {
        Some(text) => {
            drop(rows.insert(one.key.clone(), Row { value: text.into_bytes().into(), version, expires_ms }))
        }
        None => drop(rows.remove(&one.key)),
    }
    true
}

fn ending(expiry: Expiry, before: Option<u64>, at_ms: u64) -> Option<u64> {
    match expiry {
        Expiry::AsBefore => before,
        Expiry::Never => None,
        Expiry::At(end) => Some(end),
        Expiry::After(ttl_ms) => Some(at_ms + ttl_ms),
    }
}
