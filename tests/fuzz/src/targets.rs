//! The parsers, as those call them that use them.

use partage_core::base::id::TransactionId;
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::Beat;
use partage_core::node::exchange::Registration;
use partage_dataset::format::{Columns, Format, Options, records};
use partage_engine::readonly::Reader;
use partage_wire::config::{CoordinatorFile, DatasetNodeFile, NodeFile, RouterFile};
use partage_wire::dataset::{manifest, presence};
use partage_wire::stored::map_file::MapFileReader;
use partage_wire::{backup, config, json, stored};
use std::io::{Cursor, Write};

/// The number of the file in `vectors/metadata.json`.
const FILE_NUMBER: u64 = 0x0101_0101_0101_0101;

fn records_of(format: Format, key: &str, data: &[u8]) -> bool {
    let columns = Columns { key: vec![key.to_owned()], ..Columns::default() };
    let options = Options { format: Some(format), columns, ..Options::default() };
    let Ok(mut records) = records("part-0", Cursor::new(data.to_vec()), &options) else { return false };
    loop {
        match records.next() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => {
                let _said = error.to_string();
                return false;
            }
        }
    }
}

pub fn sequence_file(data: &[u8]) -> bool {
    records_of(Format::SequenceFile, "key", data)
}

pub fn parquet(data: &[u8]) -> bool {
    // The columns that the files in vectors/ have.
    ["k", "id"].into_iter().filter(|key| records_of(Format::Parquet, key, data)).count() > 0
}

pub fn csv(data: &[u8]) -> bool {
    records_of(Format::Csv, "key", data)
}

pub fn json_lines(data: &[u8]) -> bool {
    records_of(Format::JsonLines, "key", data)
}

pub fn store_file(data: &[u8]) -> bool {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return false };
    if file.write_all(data).is_err() {
        return false;
    }
    let Ok(reader) = Reader::open(file.path()) else { return false };
    let _described = reader.describe();
    let _found = reader.get(b"key").map(|found| found.is_some());
    if let Ok(scan) = reader.scan(..) {
        // A scan that goes wrong ends.
        scan.take_while(Result::is_ok).for_each(drop);
    }
    reader.verify().is_ok()
}

pub fn journal(data: &[u8]) -> bool {
    partage_journal::read(data, FILE_NUMBER, |_, _| Ok(())).is_ok()
}

pub fn metadata(data: &[u8]) -> bool {
    // What a metadata server sends is such a record, without the file around it.
    let _taken = map_file_reader().take(data);
    let mut reader = map_file_reader();
    let read = partage_journal::read(data, FILE_NUMBER, |_, record| reader.take(&record));
    read.is_ok() && reader.finish().is_ok()
}

/// Of the keyspace and the file in `vectors/metadata.json`.
fn map_file_reader() -> MapFileReader {
    let keyspace = KeyspaceName::new("ks").expect("a plain word is a name");
    MapFileReader::new(keyspace, TransactionId([1; 20]))
}

/// Keys and values as lines: the key, a blank, the value in hexadecimal digits.
pub fn coordination_state(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let entries: Vec<(String, Vec<u8>)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(key, value)| Some((key.to_owned(), hex::decode(value).ok()?)))
        .collect();
    for (key, value) in &entries {
        let _described = stored::describe(key, value).is_ok();
    }
    let _leader = stored::Presence::from_bytes("election/leader", data).is_ok();
    let (_, wrong) = stored::inspect(entries.iter().map(|(key, value)| (key, value)));
    !entries.is_empty() && wrong.is_empty()
}

pub fn manifest(data: &[u8]) -> bool {
    let Ok(read) = manifest::Manifest::decode(data) else { return false };
    manifest::Manifest::decode(&read.encode()).is_ok_and(|again| again == read)
}

/// A key, a line break, a value; and the file of what a node remembers.
pub fn presence(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let remembered = presence::Remembered::decode(&text).is_ok();
    let (key, value) = text.split_once('\n').unwrap_or((&text, ""));
    let _gone = presence::Presence::decode(key, None).is_ok();
    let said = presence::Presence::decode(key, Some(value.as_bytes()));
    if let Ok(said) = &said {
        let (key, value) = said.encode();
        assert_eq!(presence::Presence::decode(&key, value.as_ref().map(String::as_bytes)).as_ref(), Ok(said));
    }
    remembered || said.is_ok()
}

pub fn config(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let read = [
        config::parse::<CoordinatorFile>("c.toml", &text).is_ok(),
        config::parse::<NodeFile>("c.toml", &text).is_ok(),
        config::parse::<DatasetNodeFile>("c.toml", &text).is_ok(),
        config::parse::<RouterFile>("c.toml", &text).is_ok(),
    ];
    read.contains(&true)
}

pub fn worker_json(data: &[u8]) -> bool {
    let register = serde_json::from_slice::<json::Register>(data);
    let beat = serde_json::from_slice::<json::Beat>(data);
    let leave = serde_json::from_slice::<json::Leave>(data).is_ok();
    let registers = register.is_ok_and(|form| Registration::try_from(form).is_ok());
    registers || beat.is_ok_and(|form| Beat::try_from(form).is_ok()) || leave
}

pub fn backup(data: &[u8]) -> bool {
    let _salvaged = backup::salvage(data).is_ok();
    backup::is_backup(data) && backup::open(data).is_ok()
}
