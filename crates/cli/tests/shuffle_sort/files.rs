//! Files of each format: written, read and checked without any code of the sort.

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RowAccessor;
use parquet::schema::parser::parse_message_type;
use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

/// What a row is sorted by, as something that is compared.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    Bytes(Vec<u8>),
    /// Numbers in descending order, nulls first; then a text.
    DownThenText(Option<f64>, String),
    /// Numbers in ascending order, nulls last.
    Up(Option<f64>),
    /// Numbers in descending order, nulls last.
    Down(Option<f64>),
}

/// A row: its key, its place in the input, and all of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: Key,
    pub place: u64,
    pub all: Vec<u8>,
}

fn numbers(left: Option<f64>, right: Option<f64>, descends: bool, nulls_first: bool) -> Ordering {
    match (left, right) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) if nulls_first => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => numbers(right, left, descends, nulls_first).reverse(),
        (Some(left), Some(right)) if descends => right.total_cmp(&left),
        (Some(left), Some(right)) => left.total_cmp(&right),
    }
}

fn compare(left: &Key, right: &Key) -> Ordering {
    match (left, right) {
        (Key::Bytes(left), Key::Bytes(right)) => left.cmp(right),
        (Key::DownThenText(left, left_text), Key::DownThenText(right, right_text)) => {
            numbers(*left, *right, true, true).then_with(|| left_text.cmp(right_text))
        }
        (Key::Up(left), Key::Up(right)) => numbers(*left, *right, false, false),
        (Key::Down(left), Key::Down(right)) => numbers(*left, *right, true, false),
        _ => panic!("keys of different files"),
    }
}

/// A sum over all rows that does not depend on their order.
pub fn sums(rows: &[Row]) -> u128 {
    let hash = |row: &Row| {
        let mut state = 0xcbf2_9ce4_8422_2325_cbf2_9ce4_8422_2325_u128;
        for byte in &row.all {
            state = (state ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        state ^ (state >> 64)
    };
    rows.iter().map(hash).fold(0, u128::wrapping_add)
}

/// The parts have the rows of the input, each once, in order, those of one key in the order of the input, and sizes that differ
/// by one at most.
pub fn check(input: &[Row], parts: &[Vec<Row>], count: usize) {
    assert_eq!(parts.len(), count);
    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
    let all = parts.concat();
    assert_eq!(all.len(), input.len());
    assert_eq!(sums(&all), sums(input));
    for pair in all.windows(2) {
        let order = compare(&pair[0].key, &pair[1].key).then(pair[0].place.cmp(&pair[1].place));
        assert_eq!(order, Ordering::Less, "{pair:?}");
    }
}

/// Numbers that look like any, the same at each run.
fn noise(place: u64) -> u64 {
    let mut state = place.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^= state >> 29;
    state = state.wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 32)
}

/// Records of 100 bytes: a key of 10, of which each has two records or so, the place, and what fills them.
pub fn write_binary(file: &Path, count: u64) {
    let mut file = BufWriter::new(File::create(file).unwrap());
    for place in 0..count {
        let key = noise(noise(place) % (count / 2 + 1));
        let mut record = [b'.'; 100];
        record[..8].copy_from_slice(&key.to_be_bytes());
        record[10..18].copy_from_slice(&place.to_be_bytes());
        file.write_all(&record).unwrap();
    }
    file.flush().unwrap();
}

pub fn read_binary(file: &Path) -> Vec<Row> {
    let bytes = std::fs::read(file).unwrap();
    assert_eq!(bytes.len() % 100, 0);
    let row = |record: &[u8]| Row {
        key: Key::Bytes(record[..10].to_vec()),
        place: u64::from_be_bytes(record[10..18].try_into().unwrap()),
        all: record.to_vec(),
    };
    bytes.chunks(100).map(row).collect()
}

/// Sizes are numbers, some of them none; names have quotes, commas and line breaks.
pub fn write_csv(file: &Path, count: u64) {
    let mut file = BufWriter::new(File::create(file).unwrap());
    writeln!(file, "place,name,size").unwrap();
    for place in 0..count {
        let size = noise(place) % 200;
        let size = if size == 0 { String::new() } else { format!("{}.5", size as i64 - 100) };
        writeln!(file, "{place},\"n \"\"{}\"\",\n\",{size}", noise(place) % 3).unwrap();
    }
    file.flush().unwrap();
}

pub fn read_csv(file: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    for record in csv::Reader::from_path(file).unwrap().records() {
        let record = record.unwrap();
        assert_eq!(record.len(), 3);
        let key = Key::DownThenText(record[2].parse().ok(), record[1].to_owned());
        let all = format!("{}|{}|{}", &record[0], &record[1], &record[2]).into_bytes();
        rows.push(Row { key, place: record[0].parse().unwrap(), all });
    }
    rows
}

/// Ages are integers and floats, some of them null or absent.
pub fn write_json_lines(file: &Path, count: u64) {
    let mut file = BufWriter::new(File::create(file).unwrap());
    for place in 0..count {
        let user = match noise(place) % 100 {
            0 => "{}".to_owned(),
            1 => r#"{"age":null}"#.to_owned(),
            age if age % 2 == 0 => format!("{{\"age\":{}}}", age as i64 - 50),
            age => format!("{{\"age\":{age}.25, \"name\":\"é\"}}"),
        };
        writeln!(file, "{{\"place\":{place}, \"user\":{user}}}").unwrap();
    }
    file.flush().unwrap();
}

pub fn read_json_lines(file: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(file).unwrap();
    let row = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let place = value["place"].as_u64().unwrap();
        Row { key: Key::Up(value["user"]["age"].as_f64()), place, all: line.as_bytes().to_vec() }
    };
    text.lines().map(row).collect()
}

/// Three row groups; prices are floats, some of them null.
pub fn write_parquet(file: &Path, count: u64) {
    let schema =
        "message rows { required int64 place; optional double price; optional binary name (STRING); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(file).unwrap(), schema, Arc::default()).unwrap();
    let places: Vec<u64> = (0..count).collect();
    for group in places.chunks((count as usize).div_ceil(3).max(1)) {
        let prices: Vec<Option<f64>> = group
            .iter()
            .map(|place| Some(noise(*place) % 500).filter(|price| *price > 9).map(|price| price as f64 / 4.0))
            .collect();
        let names: Vec<ByteArray> =
            group.iter().map(|place| format!("name {}", noise(*place)).as_str().into()).collect();
        let mut writer = writer.next_row_group().unwrap();
        let mut column = writer.next_column().unwrap().unwrap();
        let ids: Vec<i64> = group.iter().map(|place| *place as i64).collect();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let mut column = writer.next_column().unwrap().unwrap();
        let levels: Vec<i16> = prices.iter().map(|price| i16::from(price.is_some())).collect();
        let values: Vec<f64> = prices.into_iter().flatten().collect();
        column.typed::<DoubleType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        let mut column = writer.next_column().unwrap().unwrap();
        let levels = vec![1; names.len()];
        column.typed::<ByteArrayType>().write_batch(&names, Some(&levels), None).unwrap();
        column.close().unwrap();
        writer.close().unwrap();
    }
    writer.close().unwrap();
}

pub fn read_parquet(file: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let row = |row: parquet::errors::Result<parquet::record::Row>| {
        let row = row.unwrap();
        let place = row.get_long(0).unwrap() as u64;
        Row { key: Key::Down(row.get_double(1).ok()), place, all: row.to_string().into_bytes() }
    };
    reader.get_row_iter(None).unwrap().map(row).collect()
}
