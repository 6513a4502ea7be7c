use super::*;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal128Type, Decimal256Type, DurationMillisecondType,
    Float16Type, Float32Type, Int8Type, Int32Type, IntervalDayTimeType, IntervalMonthDayNanoType,
    IntervalYearMonthType, Time32SecondType, Time64NanosecondType, TimestampMicrosecondType, UInt64Type,
};
use arrow_array::{
    BinaryArray, BinaryViewArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
    Float64Array, Int16Array, Int32Array, Int64Array, LargeBinaryArray, LargeListArray, LargeStringArray,
    ListArray, ListViewArray, NullArray, PrimitiveArray, RunArray, StringArray, StringViewArray, StructArray,
};
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano, NullBuffer, i256};
use arrow_schema::{DataType, Field, FieldRef, Fields, UnionFields, UnionMode};
use proptest::prelude::*;
use std::cmp::Ordering;

fn column(column: u32, descends: bool, nulls_first: bool) -> SortColumn {
    SortColumn { column, descends, nulls_first }
}

fn pairs(records: &[Record]) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
    records.iter().map(|record| (record.key.as_ref(), record.value.as_ref()))
}

/// A batch of columns that may have nulls, named a, b and so on.
fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let field = |(at, column): (usize, &ArrayRef)| {
        let name = char::from(b'a' + at as u8).to_string();
        Field::new(name, column.data_type().clone(), true)
    };
    let fields: Vec<Field> = columns.iter().enumerate().map(field).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn rows(batch: &RecordBatch, order: &[SortColumn]) -> Rows {
    Rows::new(batch.schema_ref(), order).unwrap()
}

/// A row of the property: a number, a float, a text, a truth value, a list, bytes.
type Cells =
    (Option<i64>, Option<f64>, Option<String>, Option<bool>, Option<Vec<Option<i32>>>, Option<Vec<u8>>);

fn cells() -> impl Strategy<Value = Cells> {
    let number = prop_oneof![-2_i64..3, any::<i64>()];
    let float = prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        prop::sample::select(vec![f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5]),
    ];
    let list = prop::collection::vec(prop::option::of(-1_i32..2), 0..3);
    let bytes = prop::collection::vec(any::<u8>(), 0..80);
    (
        prop::option::of(number),
        prop::option::of(float),
        prop::option::of("[ab\u{0}é]{0,4}|[a-c]{30,40}"),
        any::<Option<bool>>(),
        prop::option::of(list),
        prop::option::of(bytes),
    )
}

fn batch_of(cells: &[Cells]) -> RecordBatch {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(cells.iter().map(|row| row.4.clone()));
    batch(vec![
        Arc::new(cells.iter().map(|row| row.0).collect::<Int64Array>()),
        Arc::new(cells.iter().map(|row| row.1).collect::<Float64Array>()),
        Arc::new(cells.iter().map(|row| row.2.as_deref()).collect::<StringArray>()),
        Arc::new(cells.iter().map(|row| row.3).collect::<BooleanArray>()),
        Arc::new(list),
        Arc::new(cells.iter().map(|row| row.5.as_deref()).collect::<LargeBinaryArray>()),
    ])
}

fn floats(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.total_cmp(&right),
        (left, right) => left.cmp(&right),
    }
}

/// The order of two values of a column, by what they are, not by their bytes.
fn by_value<T>(
    left: Option<&T>,
    right: Option<&T>,
    column: &SortColumn,
    order: impl Fn(&T, &T) -> Ordering,
) -> Ordering {
    match (left, right) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) if column.nulls_first => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) if column.nulls_first => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(left), Some(right)) if column.descends => order(left, right).reverse(),
        (Some(left), Some(right)) => order(left, right),
    }
}

fn in_order(left: &Cells, right: &Cells, order: &[SortColumn]) -> Ordering {
    let one = |sorted: &SortColumn| match sorted.column {
        0 => by_value(left.0.as_ref(), right.0.as_ref(), sorted, Ord::cmp),
        1 => by_value(left.1.as_ref(), right.1.as_ref(), sorted, |left, right| floats(*left, *right)),
        2 => by_value(left.2.as_ref(), right.2.as_ref(), sorted, Ord::cmp),
        3 => by_value(left.3.as_ref(), right.3.as_ref(), sorted, Ord::cmp),
        _ => by_value(left.5.as_ref(), right.5.as_ref(), sorted, Ord::cmp),
    };
    order.iter().map(one).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Some of the columns but the list, in any order.
fn order() -> impl Strategy<Value = Vec<SortColumn>> {
    let places = prop::sample::subsequence(vec![0_u32, 1, 2, 3, 5], 1..=4).prop_shuffle();
    let directions = prop::collection::vec(any::<(bool, bool)>(), 4);
    (places, directions).prop_map(|(places, directions)| {
        let columns = places.into_iter().zip(directions);
        columns.map(|(place, (descends, nulls_first))| column(place, descends, nulls_first)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn rows_come_back_and_keys_have_their_order(
        mut cells in prop::collection::vec(cells(), 0..24), order in order()
    ) {
        let written = batch_of(&cells);
        let rows = rows(&written, &order);
        let records = rows.records(&written).unwrap();
        for (left, left_record) in cells.iter().zip(&records) {
            for (right, right_record) in cells.iter().zip(&records) {
                let by_key = left_record.key.cmp(&right_record.key);
                prop_assert_eq!(by_key, in_order(left, right, &order), "{:?} {:?}", left, right);
            }
        }
        // One NaN stands for all in a column that is sorted by; all others keep their bits.
        if order.iter().any(|sorted| sorted.column == 1) {
            for float in cells.iter_mut().filter_map(|row| row.1.as_mut()).filter(|float| float.is_nan()) {
                *float = f64::from_bits(0x7ff8_0000_0000_0000);
            }
        }
        prop_assert_eq!(rows.batch(pairs(&records)).unwrap(), batch_of(&cells));
    }
}

/// Four values of a type, the second of which is null.
fn numbers<T: ArrowPrimitiveType>(values: [T::Native; 4]) -> PrimitiveArray<T> {
    PrimitiveArray::new(values.to_vec().into(), Some(NullBuffer::from(vec![true, false, true, true])))
}

fn four_of_each_type() -> Vec<ArrayRef> {
    let days = |days| IntervalDayTime::new(days, -7);
    let months = |months| IntervalMonthDayNano::new(months, -2, 3);
    let wide = |value| i256::from_i128(value);
    let text = [Some("a text longer than twelve"), None, Some(""), Some("é")];
    let child = |name: &str, column: ArrayRef| -> (FieldRef, ArrayRef) {
        (Arc::new(Field::new(name, column.data_type().clone(), true)), column)
    };
    let struct_of = StructArray::from(vec![
        child("x", Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)]))),
        child("y", Arc::new(StringArray::from(text.to_vec()))),
    ]);
    let items =
        [Some(vec![Some(1.5), None]), None, Some(vec![Some(-0.0), Some(2.0)]), Some(vec![None, None])];
    let lists = [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(-1)])];
    let views = ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone());
    let fixed = [Some([1_u8, 2, 3]), None, Some([0; 3]), Some([255; 3])];
    let bytes: [Option<&[u8]>; 4] = [Some(&[0, 255]), None, Some(&[]), Some(&[7; 40])];
    let half = |value: u16| <Float16Type as ArrowPrimitiveType>::Native::from_bits(value);
    vec![
        Arc::new(numbers::<Int8Type>([i8::MIN, 0, -1, i8::MAX])),
        Arc::new(numbers::<UInt64Type>([0, 0, 1, u64::MAX])),
        Arc::new(numbers::<Float16Type>([0x3c00, 0, 0x8000, 0xfc00].map(half))),
        Arc::new(numbers::<Decimal128Type>([1, 0, -10, i128::MAX]).with_precision_and_scale(20, 3).unwrap()),
        Arc::new(numbers::<Decimal256Type>([1, 0, -1, i128::MIN].map(wide))),
        Arc::new(numbers::<Date32Type>([0, 0, -1, 19_000])),
        Arc::new(numbers::<Date64Type>([0, 0, -1, i64::MAX])),
        Arc::new(numbers::<Time32SecondType>([0, 0, 1, 86_399])),
        Arc::new(numbers::<Time64NanosecondType>([0, 0, 1, 2])),
        Arc::new(numbers::<TimestampMicrosecondType>([0, 0, -1, i64::MAX]).with_timezone("Europe/Paris")),
        Arc::new(numbers::<DurationMillisecondType>([0, 0, -1, 5])),
        Arc::new(numbers::<IntervalYearMonthType>([0, 0, -1, 5])),
        Arc::new(numbers::<IntervalDayTimeType>([0, 0, -1, 5].map(days))),
        Arc::new(numbers::<IntervalMonthDayNanoType>([0, 0, -1, 5].map(months))),
        Arc::new(LargeStringArray::from(text.to_vec())),
        Arc::new(StringViewArray::from(text.to_vec())),
        Arc::new(bytes.iter().copied().collect::<BinaryArray>()),
        Arc::new(bytes.iter().copied().collect::<BinaryViewArray>()),
        Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 3).unwrap()),
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(items, 2)),
        Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists)),
        Arc::new(ListViewArray::from(views)),
        Arc::new(struct_of),
        Arc::new(NullArray::new(4)),
    ]
}

#[test]
fn each_type_comes_back_as_a_sort_column_and_as_another() {
    let columns = four_of_each_type();
    for (place, sorted) in columns.iter().enumerate() {
        let written = batch(columns.clone());
        for (descends, nulls_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let rows = rows(&written, &[column(place as u32, descends, nulls_first)]);
            let records = rows.records(&written).unwrap();
            let read = rows.batch(pairs(&records)).unwrap();
            assert_eq!(read, written, "sorted by {}", sorted.data_type());
            // A part of a batch is encoded as in the whole.
            assert_eq!(rows.records(&written.slice(1, 2)).unwrap(), records[1..3]);
        }
    }
}

#[test]
fn dictionaries_and_runs_are_read_as_their_values() {
    let text = [Some("b"), None, Some("a"), Some("b")];
    let dictionary: DictionaryArray<Int8Type> = text.into_iter().collect();
    let ends = Int32Array::from(vec![1, 3, 4]);
    let runs = RunArray::<Int32Type>::try_new(&ends, &StringArray::from(vec!["x", "y", "z"])).unwrap();
    let item = Arc::new(Field::new("item", dictionary.data_type().clone(), true));
    let lists = arrow_buffer::OffsetBuffer::<i32>::from_lengths([0, 2, 0, 2]);
    let lists = ListArray::try_new(item, lists, Arc::new(dictionary.clone()), None).unwrap();
    let packed = batch(vec![Arc::new(dictionary), Arc::new(runs), Arc::new(lists)]);

    let item = Arc::new(Field::new("item", DataType::Utf8, true));
    let lists = arrow_buffer::OffsetBuffer::<i32>::from_lengths([0, 2, 0, 2]);
    let plain = StringArray::from(text.to_vec());
    let lists = ListArray::try_new(item, lists, Arc::new(plain.clone()), None).unwrap();
    let runs = StringArray::from(vec!["x", "y", "y", "z"]);
    let plain = batch(vec![Arc::new(plain), Arc::new(runs), Arc::new(lists)]);

    let order = [column(0, false, true), column(1, true, false)];
    let rows = rows(&packed, &order);
    assert_eq!(rows.schema(), plain.schema_ref());
    let records = rows.records(&packed).unwrap();
    assert_eq!(rows.records(&plain).unwrap(), records, "values have one form");
    assert_eq!(rows.batch(pairs(&records)).unwrap(), plain);
    for at in 0..3 {
        assert_eq!(rows.records(&packed.slice(at, 2)).unwrap(), records[at..at + 2]);
    }
}

#[test]
fn a_nan_within_a_list_is_one_nan_where_it_is_sorted_by() {
    let lists = [Some(vec![Some(-f64::NAN)]), Some(vec![Some(f64::INFINITY)]), Some(vec![Some(f64::NAN)])];
    let lists = ListArray::from_iter_primitive::<arrow_array::types::Float64Type, _, _>(lists);
    let written = batch(vec![Arc::new(lists)]);
    let records = rows(&written, &[column(0, false, false)]).records(&written).unwrap();
    assert_eq!(records[0].key, records[2].key);
    assert!(records[1].key < records[0].key);
    assert!(records.iter().all(|record| record.value.is_empty()), "there is no other column");
}

#[test]
fn the_encoding_is_that_of_version_1() {
    let written = batch(vec![
        Arc::new(Int16Array::from(vec![Some(1), None])),
        Arc::new(StringArray::from(vec![Some("a"), None])),
        Arc::new(BooleanArray::from(vec![Some(true), None])),
    ]);
    let ascending = rows(&written, &[column(0, false, true), column(1, false, false)]);
    let records = ascending.records(&written).unwrap();
    assert_eq!(records[0].key[..], [1, 128, 1, 2, b'a', 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(records[1].key[..], [0, 0, 0, 255]);
    assert_eq!(records[0].value[..], [1, 1]);
    assert_eq!(records[1].value[..], [0, 0]);
    let descending = rows(&written, &[column(0, true, false)]);
    assert_eq!(descending.records(&written).unwrap()[0].key[..], [1, 127, 254]);
    assert_eq!(descending.records(&written).unwrap()[1].key[..], [255, 0, 0]);
}

#[test]
fn a_shuffle_keeps_its_schema_and_order() {
    let metadata = [("pandas", "{}")];
    let fields = vec![
        Field::new("n", DataType::Int64, false),
        Field::new("t", DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)), true),
    ];
    let schema = Schema::new_with_metadata(fields, metadata);
    let rows = Rows::new(&schema, &[column(1, true, true)]).unwrap();
    let again = Rows::of_kind(&rows.kind()).unwrap();
    assert_eq!(again.kind(), rows.kind());
    assert_eq!(again.schema(), rows.schema());
    assert_eq!(rows.schema().field(1).data_type(), &DataType::Utf8);
    assert_eq!(rows.schema().metadata(), schema.metadata());
    // The encapsulated form of pyarrow.
    assert_eq!(rows.kind().schema[..4], [255; 4]);
    assert_eq!(rows.kind().schema.len() % 8, 0);

    let next = ArrowKind { encoding: 2, ..rows.kind() };
    assert_eq!(Rows::of_kind(&next).unwrap_err(), RowsError::Encoding(2));
    let cut = ArrowKind { schema: Arc::from(&rows.kind().schema[..20]), ..rows.kind() };
    assert!(matches!(Rows::of_kind(&cut).unwrap_err(), RowsError::Schema(_)));
    assert_eq!(again.batch(pairs(&[])).unwrap(), RecordBatch::new_empty(Arc::clone(rows.schema())));
}

#[test]
fn what_cannot_be_encoded_is_refused_by_column() {
    let entries = Fields::from(vec![
        Field::new("keys", DataType::Utf8, false),
        Field::new("values", DataType::Int32, true),
    ]);
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false);
    let union = DataType::Union(UnionFields::empty(), UnionMode::Sparse);
    let in_list = DataType::List(Arc::new(Field::new("item", map.clone(), true)));
    let floats = Arc::new(Field::new("item", DataType::Float64, true));
    let negative = DataType::FixedSizeList(floats, -1);
    let key = Field::new("key", DataType::Int64, true);
    for refused in [map, union, in_list, negative] {
        let schema = Schema::new(vec![key.clone(), Field::new("bad", refused.clone(), true)]);
        let error = Rows::new(&schema, &[column(0, false, false)]).unwrap_err();
        assert!(matches!(&error, RowsError::Type { column, .. } if column == "bad"), "{refused}: {error}");
    }
    let schema = Schema::new(vec![key]);
    assert_eq!(Rows::new(&schema, &[]).unwrap_err(), RowsError::NoOrder);
    let none = RowsError::NoColumn { column: 1, columns: 1 };
    assert_eq!(Rows::new(&schema, &[column(1, false, false)]).unwrap_err(), none);
    let twice = [column(0, false, false), column(0, true, false)];
    assert_eq!(Rows::new(&schema, &twice).unwrap_err(), RowsError::Twice { column: "key".to_owned() });
}

#[test]
fn a_writer_has_the_schema_of_the_shuffle() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let list = |name: &str, item: DataType| DataType::List(Arc::new(Field::new(name, item, true)));
    let schema = |texts: DataType, nullable: bool| {
        let lists = Field::new("lists", texts, true);
        Schema::new(vec![Field::new("key", DataType::Int64, nullable), lists])
    };
    let ours = schema(list("item", DataType::Utf8), false);
    let rows = Rows::new(&ours, &[column(0, false, false)]).unwrap();
    rows.accepts(&ours).unwrap();
    rows.accepts(&schema(list("element", dictionary), false)).unwrap();
    let differs = |schema: &Schema, name: &str, part: &str| {
        let error = rows.accepts(schema).unwrap_err();
        assert!(matches!(&error, RowsError::Differs { column, .. } if column == name), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    differs(&schema(list("item", DataType::Utf8), true), "key", "it may have nulls");
    differs(&schema(list("item", DataType::Int32), false), "lists", "Int32");
    differs(&Schema::new(vec![ours.field(0).clone()]), "lists", "it is missing");
    let more = vec![ours.field(0).clone(), ours.field(1).clone(), Field::new("more", DataType::Utf8, true)];
    differs(&Schema::new(more), "more", "there was none");
    let other = vec![Field::new("kee", DataType::Int64, false), ours.field(1).clone()];
    differs(&Schema::new(other), "key", "\"kee\"");

    // A null behind a number of a dictionary.
    let values = Arc::new(StringArray::from(vec![Some("a"), None]));
    let keys = arrow_array::Int8Array::from(vec![0, 1]);
    let hidden = Arc::new(DictionaryArray::<Int8Type>::new(keys, values));
    let schema = Schema::new(vec![Field::new("t", hidden.data_type().clone(), false)]);
    let written = RecordBatch::try_new(Arc::new(schema), vec![hidden]).unwrap();
    let rows = Rows::new(written.schema_ref(), &[column(0, false, false)]).unwrap();
    let null = RowsError::Null { column: "t".to_owned(), row: 1 };
    assert_eq!(rows.records(&written).unwrap_err(), null);
}

#[test]
fn long_keys_and_records_are_refused_with_their_row() {
    let texts = |length: usize| {
        let mut texts = vec!["short".to_owned(); 100];
        texts[70] = "x".repeat(length);
        batch(vec![Arc::new(StringArray::from(texts.clone())), Arc::new(StringArray::from(texts))])
    };
    // 33 bytes for each 32 of a text, and 4.
    let (longest, too_long) = (texts(1_985 * 32), texts(1_986 * 32));
    let by_text = rows(&longest, &[column(0, false, false)]);
    assert_eq!(by_text.records(&longest).unwrap()[70].key.len(), 4 + 1_985 * 33);
    let refused = by_text.records(&too_long).unwrap_err();
    assert_eq!(refused, RowsError::LongKey { row: 70, bytes: 4 + 1_986 * 33 });

    let number = || Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef;
    let bytes =
        |length: usize| batch(vec![number(), Arc::new(BinaryArray::from(vec![&[][..], &vec![0; length]]))]);
    let by_number = rows(&bytes(1), &[column(0, false, false)]);
    assert_eq!(by_number.records(&bytes(60 << 20)).unwrap().len(), 2);
    let refused = by_number.records(&bytes(66 << 20)).unwrap_err();
    assert!(matches!(refused, RowsError::LongRecord { row: 1, bytes } if bytes > 66 << 20), "{refused}");
}

#[test]
fn r1_a_batch_is_encoded_piece_by_piece() {
    let lengths = (0..2_000).map(|at| if at % 100 == 0 { 300_000 } else { at % 7 });
    let texts: Vec<String> = lengths.map(|length| "x".repeat(length)).collect();
    let numbers: Vec<i32> = (0..2_000).collect();
    let written = batch(vec![Arc::new(Int32Array::from(numbers)), Arc::new(StringArray::from(texts))]);
    let rows = rows(&written, &[column(0, false, false)]);
    let whole = rows.records(&written).unwrap();
    let (mut pieces, mut count) = (Vec::new(), 0);
    while pieces.len() < written.num_rows() {
        let some = rows.some_records(&written, pieces.len()).unwrap();
        let bytes: u64 = some.iter().map(Record::memory).sum();
        assert!(!some.is_empty() && bytes < 4 * PIECE_BYTES, "{bytes}");
        pieces.extend(some);
        count += 1;
    }
    assert_eq!(pieces, whole);
    assert!(count > 1, "{count}");
    assert!(rows.some_records(&written, 2_000).unwrap().is_empty());

    // A billion rows, of which the batch has no byte.
    let nothing = batch(vec![Arc::new(NullArray::new(1 << 30))]);
    let rows = Rows::new(nothing.schema_ref(), &[column(0, false, false)]).unwrap();
    assert!(rows.some_records(&nothing, 1 << 29).unwrap().len() < 100_000);
    assert_eq!(rows.records_within(&nothing, 1 << 20).unwrap_err(), RowsError::LongBatch { rows: 1 << 30 });
}

#[test]
fn records_that_are_no_rows_are_damage() {
    let number = || Arc::new(Int32Array::from(vec![1])) as ArrayRef;
    let texts = batch(vec![number(), Arc::new(StringArray::from(vec!["é"]))]);
    let rows = rows(&texts, &[column(0, false, false)]);
    let mut record = rows.records(&texts).unwrap().remove(0);
    let refused = |key: &[u8], value: &[u8]| {
        let refused = rows.batch([(key, value)].into_iter()).unwrap_err();
        assert!(matches!(refused, RowsError::Damaged(_)), "{refused}");
    };
    refused(&record.key[..3], &record.value);
    refused(&record.key, b"");
    // The first byte of the letter alone is no UTF-8.
    let mut value = record.value.to_vec();
    value[2] = b'e';
    refused(&record.key, &value);
    record.value = vec![1_u8].into();
    let number = batch(vec![number()]);
    let alone = Rows::new(number.schema_ref(), &[column(0, false, false)]).unwrap();
    let refused = alone.batch(pairs(&[record])).unwrap_err();
    assert!(matches!(refused, RowsError::Damaged(_)), "{refused}");
}

#[test]
fn r1_a_schema_is_refused_whose_nulls_are_large() {
    let refused = |fields: Vec<Field>| {
        let key = Field::new("key", DataType::Int64, true);
        let schema = Schema::new([vec![key], fields].concat());
        let error = Rows::new(&schema, &[column(0, false, false)]).unwrap_err();
        assert!(matches!(error, RowsError::Wide { .. }), "{error}");
    };
    let item = |of: DataType| Arc::new(Field::new("item", of, true));
    refused(vec![Field::new("wide", DataType::FixedSizeBinary(i32::MAX), true)]);
    refused(vec![Field::new("long", DataType::FixedSizeList(item(DataType::Float64), i32::MAX), true)]);
    // Items without bytes have a place each.
    let nothing = DataType::FixedSizeList(item(DataType::FixedSizeBinary(0)), i32::MAX);
    refused(vec![Field::new("nothing", nothing, true)]);
    // Each column is small, and all together are not.
    let many = |at: usize| Field::new(format!("c{at}"), DataType::FixedSizeBinary(2_000), true);
    refused((0..1_000).map(many).collect());
    // Each struct keeps a null of all that is within.
    let mut deep = DataType::FixedSizeBinary(100_000);
    for _ in 0..20 {
        deep = DataType::Struct(Fields::from(vec![Field::new("x", deep, true)]));
    }
    refused(vec![Field::new("deep", deep, true)]);
}

/// What is encoded of each row alone has at least the bytes of its record, and little more.
#[test]
fn r1_the_size_of_rows_is_counted_before_they_are_encoded() {
    let columns = four_of_each_type();
    for of in &columns {
        let written = batch(vec![Arc::clone(of)]);
        let records = rows(&written, &[column(0, false, false)]).records(&written).unwrap();
        for (row, record) in records.iter().enumerate() {
            let counted = size::bytes(written.columns(), row..row + 1);
            let bytes = record.bytes();
            assert!(counted >= bytes && counted <= 4 * bytes + 64, "{}: {counted}, {bytes}", of.data_type());
        }
    }
}

#[test]
fn r1_a_batch_that_says_much_in_few_bytes_is_encoded_little_by_little() {
    // One long value, in each of many rows: as a number, as a run, as a view.
    let long = "x".repeat(3 << 20);
    let values = Arc::new(StringArray::from(vec![long.as_str()]));
    let keys = arrow_array::Int8Array::from(vec![0; 4_096]);
    let dictionary = DictionaryArray::<Int8Type>::new(keys, values.clone());
    let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(vec![4_096]), &*values).unwrap();
    let view = StringViewArray::from(vec![long.as_str()]);
    let views = vec![view.views()[0]; 4_096].into();
    let views = StringViewArray::try_new(views, Arc::clone(view.data_buffers()), None).unwrap();
    let numbers = || Arc::new(Int32Array::from_iter_values(0..4_096)) as ArrayRef;
    for column_of in [Arc::new(dictionary) as ArrayRef, Arc::new(runs), Arc::new(views)] {
        let written = batch(vec![numbers(), column_of]);
        let records = rows(&written, &[column(0, false, false)]).some_records(&written, 0).unwrap();
        assert!(records.len() <= 2, "{} records of {}", records.len(), written.column(1).data_type());
    }
}

#[test]
fn r1_a_row_of_a_billion_items_is_too_long() {
    let size = 1 << 30;
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let nulls = || Arc::new(NullArray::new(size)) as ArrayRef;
    let one = arrow_buffer::OffsetBuffer::<i64>::from_lengths([size]);
    let lists = LargeListArray::try_new(Arc::clone(&item), one, nulls(), None).unwrap();
    // A hundred lists of the same items.
    let (begins, sizes) = (vec![0_i32; 100].into(), vec![1_i32 << 20; 100].into());
    let views = ListViewArray::try_new(item, begins, sizes, nulls(), None).unwrap();
    // So many numbers of a dictionary within one list.
    let values = Arc::new(StringArray::from(vec!["x".repeat(1 << 20)]));
    let within = DictionaryArray::<Int8Type>::new(vec![0_i8; 1_000].into(), values);
    let of = Arc::new(Field::new("item", within.data_type().clone(), true));
    let offsets = arrow_buffer::OffsetBuffer::<i32>::from_lengths([1_000]);
    let packed = ListArray::try_new(of, offsets, Arc::new(within), None).unwrap();
    for column_of in [Arc::new(lists) as ArrayRef, Arc::new(packed)] {
        let written = batch(vec![Arc::new(Int32Array::from(vec![7])), column_of]);
        let refused = rows(&written, &[column(0, false, false)]).some_records(&written, 0).unwrap_err();
        assert!(matches!(refused, RowsError::LongRecord { row: 0, .. }), "{refused}");
    }
    let written = batch(vec![Arc::new(Int32Array::from(vec![7; 100])), Arc::new(views)]);
    let some = rows(&written, &[column(0, false, false)]).some_records(&written, 0).unwrap();
    assert_eq!(some.len(), 1, "each has ten mebibytes");
}
