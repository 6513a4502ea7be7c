//! Golden cases in `vectors/table_backup.json`: files of a backup, byte for byte. Python reads them too (`vectors/check.py`).

use super::ContentDigest;
use super::chunk::{self, ChunkFile, Codec};
use super::manifest::Manifest;
use super::rows::{BackupRow, RowReader};
use super::tests::{manifest, second_form};
use crate::json::{from_hex, to_hex};
use serde_json::Value;

const GOLDEN: &str = include_str!("../../../../../vectors/table_backup.json");

fn golden() -> Value {
    serde_json::from_str(GOLDEN).unwrap()
}

fn bytes(of: &Value) -> Vec<u8> {
    from_hex(of.as_str().unwrap()).unwrap()
}

#[test]
fn chunks_are_written_as_the_vectors_say() {
    let golden = golden();
    let mut content = Vec::new();
    for row in golden["rows"].as_array().unwrap() {
        let (key, value) = (bytes(&row["key"]), bytes(&row["value"]));
        BackupRow { key: &key, value: &value, expires_ms: row["expires_ms"].as_u64() }.put(&mut content);
    }
    assert_eq!(to_hex(&content), golden["content"]);
    assert_eq!(ContentDigest::of(&content).to_string(), golden["name"]);
    let count = u32::try_from(RowReader::new(&content).count()).unwrap();
    let file = ChunkFile {
        codec: Codec::Plain,
        rows: count,
        content_bytes: u32::try_from(content.len()).unwrap(),
        payload: &content,
    };
    assert_eq!(to_hex(&file.encode()), golden["chunk"]);
    assert_eq!(chunk::open(&bytes(&golden["chunk"])), Ok(file));
}

#[test]
fn a_manifest_of_the_first_form_is_read() {
    let golden = golden();
    let whole = manifest();
    let stored = golden["manifest"].as_str().unwrap().as_bytes();
    let read = Manifest::open(stored, &whole.table, &whole.id);
    assert_eq!(read, Ok(whole), "now: {:?}", String::from_utf8(manifest().encode().unwrap()));
}

#[test]
fn a_manifest_of_the_second_form_is_read() {
    let golden = golden();
    let whole = second_form();
    let stored = golden["second_manifest"].as_str().unwrap();
    assert_eq!(Manifest::open(stored.as_bytes(), &whole.table, &whole.id), Ok(whole));
}
