//! Round trips of all forms, and bytes that are none.

use super::keys;
use super::values::{
    decode_answered, decode_row, decode_shard_state, encode_answered, encode_row, encode_shard_state,
};
use super::write::{decode, encode, encode_at};
use partage_core::base::id::Epoch;
use partage_core::keyspace::key::Key;
use partage_core::limits::{BATCH_OPERATIONS, KEY_BYTES, VALUE_BYTES};
use partage_engine::replica::limits as engine_limits;
use partage_service::table::replication::LogPosition;
use partage_service::table::rows::{
    Action, Condition, Done, Expiry, KeptOutcome, Now, Operation, Outcome, Refusal, Request, RequestId, Row,
    ShardState, Write,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn position() -> impl Strategy<Value = LogPosition> {
    (any::<u64>(), any::<u64>()).prop_map(|(epoch, index)| LogPosition { epoch: Epoch(epoch), index })
}

fn key() -> impl Strategy<Value = Key> {
    vec(any::<u8>(), 0..9).prop_map(|bytes| Key::new(&bytes).unwrap())
}

fn value() -> impl Strategy<Value = std::sync::Arc<[u8]>> {
    vec(any::<u8>(), 0..20).prop_map(Into::into)
}

fn expiry() -> impl Strategy<Value = Expiry> {
    prop_oneof![
        Just(Expiry::AsBefore),
        Just(Expiry::Never),
        any::<u64>().prop_map(Expiry::At),
        any::<u64>().prop_map(Expiry::After),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let condition = prop_oneof![
        Just(Condition::Always),
        Just(Condition::Absent),
        Just(Condition::Present),
        position().prop_map(Condition::Version),
    ];
    let action = prop_oneof![
        Just(Action::Read),
        (value(), expiry()).prop_map(|(value, expiry)| Action::Put(value, expiry)),
        Just(Action::Delete),
        expiry().prop_map(Action::Expire),
        any::<i64>().prop_map(Action::Add),
        value().prop_map(Action::Append),
        value().prop_map(Action::Overwrite),
    ];
    (key(), condition, action, any::<bool>()).prop_map(|(key, condition, action, wants_former)| Operation {
        key,
        condition,
        action,
        wants_former,
    })
}

fn write() -> impl Strategy<Value = Write> {
    let request = option::of((any::<[u8; 16]>(), any::<u64>()));
    (any::<u64>(), request, vec(operation(), 0..5)).prop_map(|(at_ms, request, operations)| Write {
        at_ms,
        request: request.map(|(id, fingerprint)| Request { id: RequestId(id), fingerprint }),
        operations,
    })
}

fn row() -> impl Strategy<Value = Row> {
    (value(), position(), option::of(any::<u64>())).prop_map(|(value, version, expires_ms)| Row {
        value,
        version,
        expires_ms,
    })
}

fn done() -> impl Strategy<Value = Done> {
    let now = (0..VALUE_BYTES, option::of(any::<i64>()), option::of(any::<u64>()))
        .prop_map(|(bytes, number, expires_ms)| Now { bytes, number, expires_ms });
    (any::<bool>(), option::of(row()), option::of(now)).prop_map(|(existed, former, now)| Done {
        existed,
        former,
        now,
    })
}

fn answered() -> impl Strategy<Value = KeptOutcome> {
    let refusal = prop_oneof![Just(Refusal::NotANumber), Just(Refusal::Overflow), Just(Refusal::TooLong)];
    let operation = 0..BATCH_OPERATIONS;
    let outcome = prop_oneof![
        (position(), vec(done(), 0..4)).prop_map(|(version, results)| Outcome::Done { version, results }),
        (operation.clone(), option::of(position()))
            .prop_map(|(operation, current)| Outcome::NotMet { operation, current }),
        (operation, refusal).prop_map(|(operation, refusal)| Outcome::Refused { operation, refusal }),
        Just(Outcome::RequestIdTaken),
    ];
    (any::<u64>(), any::<u64>(), outcome).prop_map(|(at_ms, fingerprint, outcome)| KeptOutcome {
        at_ms,
        fingerprint,
        outcome,
    })
}

proptest! {
    #[test]
    fn writes_come_back(write in write()) {
        let bytes = encode(&write);
        prop_assert_eq!(decode(&bytes), Ok(write));
        for end in 0..bytes.len() {
            prop_assert!(decode(&bytes[..end]).is_err(), "{} of {} bytes", end, bytes.len());
        }
        prop_assert!(decode(&[&bytes[..], &[0]].concat()).unwrap_err().to_string().contains("the end"));
    }

    #[test]
    fn values_come_back(row in row(), answered in answered(), clock_ms: u64, answers: u64) {
        prop_assert_eq!(decode_row(&encode_row(&row)), Ok(row));
        let shard_state = ShardState { clock_ms, outcomes: answers };
        prop_assert_eq!(decode_shard_state(&encode_shard_state(&shard_state)), Ok(shard_state));
        let bytes = encode_answered(&answered);
        prop_assert_eq!(decode_answered(&bytes), Ok(answered));
        for end in 0..bytes.len() {
            prop_assert!(decode_answered(&bytes[..end]).is_err(), "{} of {} bytes", end, bytes.len());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in vec(any::<u8>(), 0..80), is_of_version: bool) {
        if is_of_version && let Some(version) = bytes.first_mut() {
            *version = 1;
        }
        if let Ok(write) = decode(&bytes) {
            prop_assert_eq!(encode(&write), bytes.clone());
        }
        if let Ok(row) = decode_row(&bytes) {
            prop_assert_eq!(encode_row(&row), bytes.clone());
        }
        if let Ok(answered) = decode_answered(&bytes) {
            prop_assert_eq!(encode_answered(&answered), bytes.clone());
        }
        if let Ok(shard_state) = decode_shard_state(&bytes) {
            prop_assert_eq!(encode_shard_state(&shard_state), bytes);
        }
    }

    #[test]
    fn a_changed_byte_is_read_or_refused(write in write(), at: prop::sample::Index, by in 1u8..) {
        let mut bytes = encode(&write);
        let at = at.index(bytes.len());
        bytes[at] ^= by;
        if let Ok(other) = decode(&bytes) {
            prop_assert_ne!(other, write);
        }
    }

    #[test]
    fn keys_keep_the_order_of_times_and_of_keys(a in (any::<u64>(), key()), b in (any::<u64>(), key())) {
        prop_assert_eq!(a.cmp(&b), keys::ends(a.0, &a.1).cmp(&keys::ends(b.0, &b.1)));
        prop_assert_eq!(a.1.cmp(&b.1), keys::row(&a.1).cmp(&keys::row(&b.1)));
        prop_assert_eq!(keys::parse_ends(&keys::ends(a.0, &a.1)), Some(a));
    }

    #[test]
    fn keys_of_outcomes_come_back(at: u64, id: [u8; 16], bytes in vec(any::<u8>(), 0..30)) {
        prop_assert_eq!(keys::parse_answer_of(&keys::answer_of(at, &RequestId(id))), Some((at, RequestId(id))));
        drop((keys::parse_answer_of(&bytes), keys::parse_ends(&bytes)));
    }
}

#[test]
fn the_leader_makes_a_time_of_a_time_to_live_before_it_logs_the_write() {
    let operation = |expiry| Operation {
        key: Key::empty(),
        condition: Condition::Always,
        action: Action::Put(b"v".as_slice().into(), expiry),
        wants_former: false,
    };
    let write = |at_ms, expiry| Write {
        at_ms,
        request: None,
        operations: vec![operation(expiry), operation(Expiry::At(3))],
    };
    let sent = write(0, Expiry::After(100));
    assert_eq!(decode(&encode(&sent)).unwrap(), sent, "nodes send it to each other as it is");
    // Two leaders, whose clocks differ.
    for at_ms in [1_000, 900_000] {
        let logged = encode_at(&sent, at_ms);
        assert_eq!(logged, encode(&write(at_ms, Expiry::At(at_ms + 100))));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let write = Write { at_ms: 7, request: None, operations: Vec::new() };
    let mut bytes = encode(&write);
    bytes[0] = 9;
    let error = decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("a write in the log") && error.contains("the version at byte 0 is 9"), "{error}");
    let many = [&[1][..], &[0; 9], &u16::MAX.to_be_bytes()].concat();
    let error = decode(&many).unwrap_err().to_string();
    assert!(error.contains("the count of operations at byte 10 is 65535"), "{error}");
    let read = Operation {
        key: Key::empty(),
        condition: Condition::Always,
        action: Action::Read,
        wants_former: false,
    };
    let mut bytes = encode(&Write { operations: vec![read], ..write });
    let last = bytes.len() - 1;
    bytes[last] = 77;
    let error = decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("an action") && error.contains("unknown kind 77"), "{error}");
    bytes[last - 1] = 8;
    assert!(decode(&bytes).unwrap_err().to_string().contains("a condition"));
}

#[test]
fn the_largest_write_fits_an_entry_and_the_largest_row_fits_a_store() {
    let operation = |value: usize| Operation {
        key: Key::new(&vec![0; KEY_BYTES]).unwrap(),
        condition: Condition::Version(LogPosition::default()),
        action: Action::Put(vec![0; value].into(), Expiry::At(1)),
        wants_former: true,
    };
    let around =
        encode(&Write { at_ms: 0, request: None, operations: vec![operation(0)] }).len() - KEY_BYTES - 12;
    let largest = partage_core::limits::BATCH_BYTES + around * BATCH_OPERATIONS + 36;
    assert!(largest <= partage_log::LogSettings::default().entry_bytes, "{largest}");
    let row =
        Row { value: vec![0; VALUE_BYTES].into(), version: LogPosition::default(), expires_ms: Some(1) };
    assert!(encode_row(&row).len() <= engine_limits::VALUE_BYTES);
    const { assert!(crate::limits::ANSWER_PART_BYTES + 2 <= engine_limits::VALUE_BYTES) };
}
