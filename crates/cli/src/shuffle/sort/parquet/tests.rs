//! What is read of a file is written as it was, and keys have the order of the columns.

use super::*;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::schema::parser::parse_message_type;

const SCHEMA: &str = "message rows {
    required int64 id;
    optional binary name (STRING);
    optional group tags (LIST) { repeated group list { optional int32 element; } }
    optional int32 small (INTEGER(32,false));
}";

/// Three rows: one with all, one with nulls, one with an empty list.
fn write(file: &Path) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(file).unwrap(), schema, Arc::default()).unwrap();
    for base in [0, 10] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&[base + 3, base + 1, base - 2], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let names = ["b", "a\0"].map(|name| ByteArray::from(name.as_bytes()));
        column.typed::<ByteArrayType>().write_batch(&names, Some(&[1, 0, 1]), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let (definitions, repetitions) = ([3, 2, 3, 0, 1], [0, 1, 1, 0, 0]);
        column.typed::<Int32Type>().write_batch(&[7, 8], Some(&definitions), Some(&repetitions)).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[-1, 1], Some(&[1, 0, 1]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn rows_of(file: &Path) -> Vec<String> {
    let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().to_json_value().to_string()).collect()
}

/// The rows of a file, sorted, through a part.
fn sorted(by: &[&str]) -> Result<Vec<String>, Failure> {
    let folder = tempfile::tempdir().unwrap();
    let (file, part) = (folder.path().join("in.parquet"), folder.path().join("part"));
    write(&file);
    let by: Vec<By> = by.iter().map(|by| by.parse().unwrap()).collect();
    let (parquet, pieces) = Parquet::of(&[file], &by)?;
    assert_eq!(pieces.len(), 2);
    let mut rows = Vec::new();
    for piece in &pieces {
        parquet.read(piece, &mut |key, row, _| {
            rows.push((key.to_vec(), row.to_vec()));
            true
        })?;
    }
    rows.sort_by(|left, right| left.0.cmp(&right.0));
    let mut writer = parquet.writer(File::create(&part).unwrap())?;
    for (key, row) in &rows {
        writer.put(key, row)?;
    }
    writer.end()?;
    Ok(rows_of(&part))
}

#[test]
fn rows_are_written_as_they_were_whatever_is_nested_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.parquet");
    write(&file);
    let mut before = rows_of(&file);
    before.sort();
    let mut after = sorted(&["id"]).unwrap();
    assert!(after[0].contains("-2") && after[5].contains("13"), "{after:?}");
    after.sort();
    assert_eq!(after, before);
}

#[test]
fn texts_nulls_and_numbers_without_a_sign_have_their_order() {
    let ids = |by: &[&str]| -> Vec<i64> {
        let id =
            |row: &String| serde_json::from_str::<serde_json::Value>(row).unwrap()["id"].as_i64().unwrap();
        sorted(by).unwrap().iter().map(id).collect()
    };
    assert_eq!(ids(&["name", "id:desc"]), [8, -2, 13, 3, 11, 1]);
    assert_eq!(ids(&["name:desc:nulls-first", "id"]), [1, 11, 3, 13, -2, 8]);
    assert_eq!(ids(&["small", "id"]), [-2, 8, 3, 13, 1, 11], "-1 is the largest without a sign");
}

#[test]
fn a_column_that_cannot_be_sorted_by_is_named() {
    let what = |by: &str| sorted(&[by]).unwrap_err().to_string();
    assert!(what("nme").contains("no column \"nme\": it has id, name, tags.list.element, small"));
    assert!(what("tags.list.element").contains("in a list or map"));
    assert!(what("id:number").contains("has its type from the file"));
}
