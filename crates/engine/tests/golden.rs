//! Store files as they have always been: `vectors/store.json` holds whole files, byte for byte.
#![allow(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::fs;
use std::path::Path;

use partage_engine::readonly::{Builder, Compression, Layout, Options, Reader, VERSION};
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn options(case: &Value) -> Options {
    let layout = if case["layout"] == "hashed" { Layout::Hashed } else { Layout::Ordered };
    let compression = match case["compression"].as_str().unwrap() {
        "none" => Compression::None,
        "lz4" => Compression::Lz4,
        _ => Compression::Zstd { level: 3 },
    };
    Options { layout, compression, ..Options::default() }
}

#[test]
fn files_are_read_and_written_as_ever() {
    let golden: Value = serde_json::from_str(include_str!("../../../vectors/store.json")).unwrap();
    assert_eq!(golden["format"], VERSION);
    let cases = golden["files"].as_array().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut compressed = 0;
    for case in cases {
        let name = format!("{}-{}", case["layout"].as_str().unwrap(), case["compression"].as_str().unwrap());
        let stored = folder.path().join(&name);
        fs::write(&stored, bytes(&case["file"])).unwrap();
        reads(&stored, &golden["entries"], case);
        let built = folder.path().join(format!("{name}-built"));
        let mut builder = Builder::new(&built, options(case)).unwrap();
        for entry in golden["entries"].as_array().unwrap() {
            builder.add(&bytes(&entry[0]), &bytes(&entry[1])).unwrap();
        }
        builder.finish().unwrap();
        // A later version of a compressor may find another form of the same bytes; without one all is ours.
        if case["compression"] == "none" {
            assert_eq!(hex(&fs::read(&built).unwrap()), case["file"].as_str().unwrap(), "{name}");
        } else {
            compressed += 1;
            reads(&built, &golden["entries"], case);
        }
    }
    assert_eq!((cases.len(), compressed), (6, 4));
}

fn reads(path: &Path, entries: &Value, case: &Value) {
    let reader = Reader::open(path).unwrap();
    reader.verify().unwrap();
    let is = reader.describe();
    assert_eq!((is.layout, is.compression), (options(case).layout, case["compression"].as_str().unwrap()));
    let entries = entries.as_array().unwrap();
    for (number, entry) in entries.iter().enumerate() {
        let replaced = entries[number + 1..].iter().any(|later| later[0] == entry[0]);
        let value = reader.get(&bytes(&entry[0])).unwrap().unwrap();
        assert_eq!(value == bytes(&entry[1]), !replaced, "{entry}");
    }
    assert_eq!(reader.get(b"absent").unwrap(), None);
}
