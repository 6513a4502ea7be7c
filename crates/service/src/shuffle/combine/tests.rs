//! That combining loses nothing, whatever meets.

use super::*;
use crate::shuffle::record::Record;
use crate::shuffle::{AttemptKey, BufferId, Bytes};
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use proptest::prelude::*;

fn whole(number: i64) -> [u8; 8] {
    number.to_le_bytes()
}

fn float(number: f64) -> [u8; 8] {
    number.to_le_bytes()
}

fn record(key: u8, value: &[u8]) -> Record {
    Record { key: [key].as_slice().into(), value: value.into() }
}

fn segment(number: u64, frame: u64, records: Vec<Record>) -> Segment {
    let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
    Segment { attempt: AttemptKey { buffer, number }, partition: 1, frame, records: records.into() }
}

/// What each attempt has of each key.
fn totals(how: Combine, segments: &[Segment]) -> BTreeMap<(u64, Bytes), Result<[u8; 8], TotalTooLarge>> {
    let mut totals: BTreeMap<(u64, Bytes), Total> = BTreeMap::new();
    for segment in segments {
        for (key, value) in &segment.records {
            let of = (segment.attempt.number, key.into());
            match totals.entry(of) {
                Entry::Vacant(place) => drop(place.insert(Total::new(how, value).unwrap())),
                Entry::Occupied(mut place) => place.get_mut().add(value).unwrap(),
            }
        }
    }
    totals.into_iter().map(|(of, total)| (of, total.value())).collect()
}

fn sizes(segments: &[Segment], number: u64) -> (u64, u64) {
    let own = segments.iter().filter(|segment| segment.attempt.number == number);
    own.fold((0, 0), |sum, segment| (sum.0 + segment.records.count(), sum.1 + segment.bytes()))
}

/// Whole numbers, some of which do not fit together; as floats all sums of them are exact.
fn numbers(how: Combine) -> BoxedStrategy<[u8; 8]> {
    match how {
        Combine::SumF64 | Combine::MinF64 | Combine::MaxF64 => {
            prop_oneof![(-1_000..1_000_i32).prop_map(|number| float(number.into())), Just(float(-0.0))]
                .boxed()
        }
        Combine::Count => Just(1_u64.to_le_bytes()).boxed(),
        _ => prop_oneof![any::<i64>(), -9..9_i64, Just(i64::MAX), Just(i64::MIN)].prop_map(whole).boxed(),
    }
}

fn input() -> impl Strategy<Value = (Combine, Vec<Segment>)> {
    proptest::sample::select(Combine::ALL.to_vec()).prop_flat_map(|how| {
        let records = proptest::collection::vec((0..5_u8, numbers(how)), 0..20);
        let one = (1..4_u64, records);
        proptest::collection::vec(one, 0..8).prop_map(move |all| {
            let segments = (1..).zip(all).map(|(frame, (number, records))| {
                segment(number, frame, records.iter().map(|(key, value)| record(*key, value)).collect())
            });
            (how, segments.collect())
        })
    })
}

proptest! {
    #[test]
    fn each_attempt_has_the_same_of_each_key_as_before(
        (how, before) in input(), most_keys in prop_oneof![0_u64..6, Just(100)],
    ) {
        let mut after = before.clone();
        let less = segments(how, &mut after, most_keys * MEMORY_OF_KEY);
        prop_assert_eq!(totals(how, &after), totals(how, &before));
        for number in 1..4 {
            let (gone, bytes) = less.get(&number).copied().unwrap_or_default();
            let (records, size) = sizes(&after, number);
            prop_assert_eq!((records + gone, size + bytes), sizes(&before, number));
        }
        for (new, old) in after.iter().zip(&before) {
            let mut rest = old.records.iter().map(|(key, _)| key);
            prop_assert!(new.records.iter().all(|(key, _)| rest.any(|before| before == key)), "their order");
        }
        if most_keys == 100 && !matches!(how, Combine::SumI64) {
            let left: u64 = (1..4).map(|number| sizes(&after, number).0).sum();
            prop_assert_eq!(left as usize, totals(how, &before).len(), "one of each key");
        }
    }

    #[test]
    fn a_frame_becomes_what_its_segment_would((how, before) in input()) {
        for segment in before {
            // They are as they are stored already, but for those that are counted, and floats that have other bytes.
            let stored = segment.records.iter().map(|(key, value)| (key, how.stored(value).unwrap()));
            let stored: Vec<(&[u8], [u8; 8])> = stored.collect();
            let stored = PackedRecords::pack(stored.iter().map(|(key, value)| (*key, &value[..])));
            let frame = frame(how, &segment.records).unwrap();
            let mut expected = [Segment { records: stored, ..segment }];
            segments(how, &mut expected, u64::MAX);
            prop_assert_eq!(&frame, &expected[0].records);
        }
    }

    #[test]
    fn it_does_not_matter_which_records_meet_first(
        how in proptest::sample::select(Combine::ALL.to_vec()), bits in proptest::collection::vec(any::<u64>(), 3),
    ) {
        let is_sum = how == Combine::SumF64;
        let number = |bits: &u64| {
            // Small whole numbers have exact sums, in any order.
            let value = if is_sum { float((bits % 1_000) as f64) } else { bits.to_le_bytes() };
            how.stored(&value).unwrap()
        };
        let [a, b, c] = [number(&bits[0]), number(&bits[1]), number(&bits[2])];
        let of = |values: &[[u8; 8]]| {
            let mut total = Total::new(how, &values[0]).unwrap();
            values[1..].iter().for_each(|value| total.add(value).unwrap());
            total.value()
        };
        prop_assert_eq!(how.merged(a, b), how.merged(b, a));
        for order in [[a, c, b], [b, a, c], [c, b, a]] {
            prop_assert_eq!(of(&order), of(&[a, b, c]));
        }
        // Two that have met before, and fit.
        if let Some(met) = how.merged(b, c) {
            prop_assert_eq!(of(&[a, met]), of(&[a, b, c]));
        }
    }
}

#[test]
fn numbers_are_combined_by_what_they_mean() {
    let cases = [
        (Combine::Count, 2_u64.to_le_bytes(), 3_u64.to_le_bytes(), 5_u64.to_le_bytes()),
        (Combine::SumI64, whole(-7), whole(9), whole(2)),
        (Combine::MinI64, whole(-7), whole(9), whole(-7)),
        (Combine::MaxI64, whole(-7), whole(9), whole(9)),
        (Combine::SumF64, float(0.5), float(-2.0), float(-1.5)),
        (Combine::MinF64, float(0.0), float(-0.0), float(-0.0)),
        (Combine::MaxF64, float(-0.0), float(0.0), float(0.0)),
        (Combine::MinF64, float(f64::NAN), float(f64::INFINITY), float(f64::INFINITY)),
        (Combine::MaxF64, float(f64::INFINITY), float(-f64::NAN), float(f64::NAN)),
        (Combine::SumF64, float(f64::INFINITY), float(f64::NEG_INFINITY), float(f64::NAN)),
    ];
    for (how, first, second, both) in cases {
        assert_eq!(how.merged(first, second), Some(both), "{how} of {first:?} and {second:?}");
        assert_eq!(how.to_string().parse(), Ok(how));
    }
    assert_eq!(Combine::ALL.len(), Combine::ALL.iter().collect::<std::collections::BTreeSet<_>>().len());
    assert!("sum".parse::<Combine>().is_err());
}

#[test]
fn a_sum_that_does_not_fit_stays_in_two_records_and_only_the_total_is_refused() {
    let (most, one) = (whole(i64::MAX), whole(1));
    assert_eq!(Combine::SumI64.merged(most, one), None);
    let mut chunk = [segment(1, 1, vec![record(1, &most), record(1, &one), record(1, &whole(-3))])];
    let less = segments(Combine::SumI64, &mut chunk, u64::MAX);
    assert_eq!(less, Less::from([(1, (1, 9))]), "the third one fits to the first one");
    assert_eq!(chunk[0].records, vec![record(1, &whole(i64::MAX - 3)), record(1, &one)].into());
    let mut total = Total::new(Combine::SumI64, &most).unwrap();
    total.add(&one).unwrap();
    assert_eq!(total.value(), Err(TotalTooLarge(Combine::SumI64)));
    total.add(&whole(-3)).unwrap();
    assert_eq!(total.value(), Ok(whole(i64::MAX - 2)));
}

#[test]
fn nothing_is_combined_across_attempts() {
    let one = whole(1);
    let mut chunk =
        [segment(1, 1, vec![record(1, &one)]), segment(2, 1, vec![record(1, &one), record(1, &one)])];
    assert_eq!(segments(Combine::SumI64, &mut chunk, u64::MAX), Less::from([(2, (1, 9))]));
    assert_eq!(chunk[0].records, vec![record(1, &one)].into());
    assert_eq!(chunk[1].records, vec![record(1, &whole(2))].into());
}

#[test]
fn what_is_no_number_is_refused_unless_it_is_counted() {
    assert_eq!(Combine::Count.stored(b"any"), Ok(1_u64.to_le_bytes()));
    for how in Combine::ALL.into_iter().filter(|how| *how != Combine::Count) {
        assert_eq!(how.stored(b"1234567"), Err(NoNumber { how, bytes: 7 }));
        assert!(how.stored(b"12345678").is_ok());
    }
    assert_eq!(Combine::SumF64.stored(&float(-f64::NAN)), Ok(float(f64::NAN)));
    assert!(Total::new(Combine::Count, b"").is_err(), "it is not as it is stored");
    let records = PackedRecords::pack([(&b"k"[..], &b"12345678"[..]), (&b"k"[..], &b"1234567"[..])]);
    assert_eq!(frame(Combine::MinI64, &records), Err(NoNumber { how: Combine::MinI64, bytes: 7 }));
    let counted = PackedRecords::pack([(&b"k"[..], &2_u64.to_le_bytes()[..])]);
    assert_eq!(frame(Combine::Count, &records), Ok(counted));
}

#[test]
fn r1_what_is_left_keeps_nothing_else_in_memory() {
    let whole = segment(1, 1, vec![record(1, &whole(1)), record(2, &whole(2))]).records;
    let (first, second) = whole.bytes().split_at(whole.bytes().len() / 2);
    let part = |bytes: &[u8]| PackedRecords::new(1, whole.bytes().slice_ref(bytes)).unwrap();
    let of = |frame, records| Segment { records, ..segment(1, frame, Vec::new()) };
    // Nothing of these two is combined, and both are parts of one frame.
    let mut all = [of(1, part(first)), of(2, part(second))];
    drop(whole);
    assert!(segments(Combine::SumI64, &mut all, 1 << 20).is_empty());
    assert!(all.iter().all(|segment| segment.records.count() == 1 && segment.records.bytes().is_unique()));
}
