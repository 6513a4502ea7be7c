//! Parquet files that pyarrow wrote: `vectors/datasets`.

#![cfg(feature = "parquet")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::Cursor;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use partage_dataset::format::{Columns, FormatError, Options, Place, Reason, records};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../vectors/datasets/", $name)) as &[u8])
    };
}

const TABLES: [(&str, &[u8]); 5] = [
    file!("table-none.parquet"),
    file!("table-snappy.parquet"),
    file!("table-gzip.parquet"),
    file!("table-lz4.parquet"),
    file!("table-zstd.parquet"),
];

fn columns(key: &str, values: &[&str]) -> Options {
    let values = values.iter().map(|name| (*name).to_owned()).collect();
    let columns = Columns { key: vec![key.to_owned()], values, ..Columns::default() };
    Options { columns, ..Options::default() }
}

fn read((file, bytes): (&str, &[u8]), options: &Options) -> Result<Pairs, FormatError> {
    let mut records = records(file, Cursor::new(bytes.to_vec()), options)?;
    let mut pairs = Vec::new();
    while let Some((key, value)) = records.next()? {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    Ok(pairs)
}

fn of_60(pair: impl Fn(u8) -> (Vec<u8>, Vec<u8>)) -> Pairs {
    (0..60).map(pair).collect()
}

fn text_of(i: u8) -> String {
    if i.is_multiple_of(3) { String::new() } else { format!("value {i}, ").repeat(usize::from(i) % 7) }
}

#[test]
fn pyarrows_tables_are_read_in_every_compression() {
    for table in TABLES {
        let id = |i| format!("key-{i}").into_bytes();
        let texts = read(table, &columns("id", &["text"])).unwrap();
        assert_eq!(texts, of_60(|i| (id(i), text_of(i).into_bytes())), "{}", table.0);
        let bytes = read(table, &columns("id", &["bytes"])).unwrap();
        assert_eq!(bytes, of_60(|i| (id(i), vec![i, 255])), "{}", table.0);
        let by_bytes = read(table, &columns("bytes", &["number"])).unwrap();
        assert_eq!(by_bytes, of_60(|i| (vec![i, 255], i.to_string().into_bytes())), "{}", table.0);
        let several = read(table, &columns("number", &["text", "id"])).unwrap();
        let (key, value) = &several[2];
        assert_eq!(key, b"2");
        assert_eq!(value, br#"{"text":"value 2, value 2, ","id":"key-2"}"#);
        let rows = read(table, &columns("id", &[])).unwrap();
        assert_eq!(rows[3].1, br#"{"id":"key-3","number":3,"bytes":"A/8=","text":null}"#);
    }
}

#[test]
fn types_are_json_where_they_are_not_text_or_bytes() {
    let types = file!("types.parquet");
    let rows = read(types, &columns("k", &[])).unwrap();
    let json = r#"{"k":1,"yes":true,"real":0.1,"day":"2024-02-29","at":"2024-02-29T01:02:03.000Z","price":"-12.50","list":[1,null,3],"group":{"a":"x","b":[{"c":1}]},"map":{"p":1,"q":2},"nothing":null}"#;
    assert_eq!(String::from_utf8(rows[0].1.clone()).unwrap(), json);
    let one =
        |column| String::from_utf8(read(types, &columns("k", &[column])).unwrap()[0].1.clone()).unwrap();
    assert_eq!([one("day"), one("list"), one("nothing")], ["2024-02-29", "[1,null,3]", ""]);
    for (key, found) in
        [("nothing", "null"), ("list", "a list"), ("group", "an object"), ("map", "an object")]
    {
        let failure = read(types, &columns(key, &["k"])).unwrap_err();
        assert_eq!(failure.place, Place::Row(1));
        assert!(matches!(failure.reason, Reason::KeyValue { found: f, .. } if f == found), "{failure}");
    }
}

type Group<'a> = SerializedRowGroupWriter<'a, Vec<u8>>;

/// Writes the next column; of levels none where each row has a value.
fn write<T: DataType>(
    group: &mut Group<'_>,
    values: &[T::T],
    levels: Option<&[i16]>,
    repeats: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(values, levels, repeats).unwrap();
    column.close().unwrap();
}

/// Rows with `user`, a struct of a number and a struct of texts; the second row has no user, and the third no number.
fn of_users() -> Vec<u8> {
    let schema = "message m { required binary k (UTF8); optional group user { optional int64 id; required group name { \
                  required binary first (UTF8); optional binary last (UTF8); } } repeated group tags { required int64 n; } \
                  required binary user.name (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let texts = |texts: &[&str]| texts.iter().map(|text| ByteArray::from(*text)).collect::<Vec<_>>();
    write::<ByteArrayType>(&mut group, &texts(&["a", "b", "c"]), None, None);
    write::<Int64Type>(&mut group, &[7], Some(&[2, 0, 1]), None);
    write::<ByteArrayType>(&mut group, &texts(&["Ada", "Alan"]), Some(&[1, 0, 1]), None);
    write::<ByteArrayType>(&mut group, &texts(&["L."]), Some(&[2, 0, 1]), None);
    write::<Int64Type>(&mut group, &[1, 2], Some(&[1, 1, 0, 0]), Some(&[0, 1, 0, 0]));
    write::<ByteArrayType>(&mut group, &texts(&["x", "y", "z"]), None, None);
    group.close().unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn a_field_of_a_struct_is_named_by_its_path() {
    let users = of_users();
    let read = |key: &str, values: &[&str]| read(("users.parquet", &users), &columns(key, values));
    let values = |values: &[&str]| -> Vec<String> {
        let rows = read("k", values).unwrap();
        rows.into_iter().map(|(_, value)| String::from_utf8(value).unwrap()).collect()
    };
    assert_eq!(values(&["user.id"]), ["7", "", ""]);
    assert_eq!(values(&["user.name.last"]), ["L.", "", ""]);
    // Beside the whole of it, and in the order in which they were named.
    assert_eq!(
        values(&["user.name.first", "user.id", "k", "tags"]),
        [
            r#"{"user.name.first":"Ada","user.id":7,"k":"a","tags":[{"n":1},{"n":2}]}"#,
            r#"{"user.name.first":null,"user.id":null,"k":"b","tags":[]}"#,
            r#"{"user.name.first":"Alan","user.id":null,"k":"c","tags":[]}"#,
        ]
    );
    assert_eq!(
        values(&["user", "user.id"])[0],
        r#"{"user":{"id":7,"name":{"first":"Ada","last":"L."}},"user.id":7}"#
    );
    assert_eq!(values(&["user.name"]), ["x", "y", "z"], "a column of that very name goes before a field");
    let rows = values(&[]);
    assert!(
        rows[0].starts_with(r#"{"k":"a","user":{"#) && rows[0].ends_with(r#""user.name":"x"}"#),
        "{rows:?}"
    );
    // A key must be there in every row.
    let failure = read("user.id", &["k"]).unwrap_err();
    assert_eq!(failure.place, Place::Row(2));
    assert!(failure.to_string().contains("the key, \"user.id\", is null"), "{failure}");
    for several in ["tags.n", "user.none", "k.none"] {
        let failure = read(several, &["k"]).unwrap_err().to_string();
        assert!(failure.contains(&format!("no column {several:?}; there are k, user,")), "{failure}");
    }
}

#[test]
fn a_key_may_be_a_field_of_a_struct_and_lists_and_maps_have_no_fields() {
    let types = file!("types.parquet");
    assert_eq!(read(types, &columns("group.a", &["k"])).unwrap()[0], (b"x".to_vec(), b"1".to_vec()));
    assert_eq!(read(types, &columns("k", &["group.b"])).unwrap()[0].1, br#"[{"c":1}]"#);
    for inside in
        ["group.b.c", "group.b.list", "list.list", "list.element", "map.p", "map.key_value", "map.key"]
    {
        let failure = read(types, &columns("k", &[inside])).unwrap_err().to_string();
        assert!(failure.contains(&format!("no column {inside:?}; there are")), "{failure}");
    }
}

#[test]
fn a_column_that_is_not_there_is_named() {
    assert_eq!(
        read(TABLES[0], &columns("id", &["txt"])).unwrap_err().to_string(),
        "table-none.parquet: offset 0: no column \"txt\"; there are id, number, bytes, text"
    );
}

#[test]
fn damage_is_an_error_or_another_value_and_never_a_panic() {
    let (file, bytes) = file!("small.parquet");
    let options = columns("k", &["v"]);
    assert_eq!(read((file, bytes), &options).unwrap().len(), 2);
    for length in 0..bytes.len() {
        let failure = read((file, &bytes[..length]), &options).unwrap_err();
        // No longer than the mark at its beginning it may be anything.
        let is_said = length <= 4 || matches!(failure.reason, Reason::CutOff { .. });
        assert!(is_said, "{length} bytes: {failure}");
    }
    // What the library does over damage is its own; that it never takes us along is ours.
    std::panic::set_hook(Box::new(|_| {}));
    let mut noticed = Vec::new();
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        noticed.extend(read((file, &damaged), &options).err());
    }
    let _ = std::panic::take_hook();
    assert!(noticed.len() > 1_000, "{}", noticed.len());
    // As many bytes as ever are there: writing the file again from what was read would not help.
    let cut_off = noticed.iter().find(|failure| matches!(failure.reason, Reason::CutOff { .. }));
    assert!(cut_off.is_none(), "{cut_off:?}");
}

/// What is said of a flipped byte at `at`.
fn flipped(at: usize) -> String {
    let (file, bytes) = file!("small.parquet");
    let mut damaged = bytes.to_vec();
    damaged[at] ^= 0xff;
    read((file, &damaged), &columns("k", &["v"])).unwrap_err().to_string()
}

#[test]
fn a_flipped_byte_is_said_to_be_damage_and_not_that_the_file_is_cut_off() {
    let (_, bytes) = file!("small.parquet");
    // The header of the first page, the metadata at the end, their length, and the mark behind it.
    for at in [4, bytes.len() - 40, bytes.len() - 6, bytes.len() - 1] {
        let said = flipped(at);
        assert!(said.contains("the file is damaged: write it again"), "byte {at}: {said}");
        assert!(!said.contains("cut off"), "byte {at}: {said}");
    }
}

#[test]
fn a_compression_that_is_not_read_here_is_named_and_is_no_damage() {
    let (file, bytes) = file!("small.parquet");
    // The number of the codec is a byte of the metadata at the end: 4 for Brotli and 3 for LZO, doubled as Thrift has it.
    for (codec, number) in [("BROTLI", 8), ("LZO", 6)] {
        let changed = (bytes.len() / 2..bytes.len()).filter_map(|at| {
            let mut changed = bytes.to_vec();
            changed[at] = number;
            Some(read((file, &changed), &columns("k", &["v"])).err()?.to_string())
        });
        let told: Vec<String> = changed.filter(|said| said.contains("are compressed by")).collect();
        assert!(!told.is_empty(), "no byte is the codec");
        assert!(
            told.iter().all(|said| said.contains(codec) && said.ends_with("write it with zstd")),
            "{told:?}"
        );
    }
}
