//! Files that other tools wrote: `vectors/datasets`.
//!
//! The SequenceFiles come from Hadoop's own classes; the versions that Hadoop no longer writes are made of them by what
//! its reader leaves out of the header.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::Cursor;

use partage_dataset::format::{FormatError, Options, Place, Reason, records};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../vectors/datasets/", $name)) as &[u8])),*]
    };
}

/// Files of 60 records: one for each compression, by record and by block.
const WHOLE: [(&str, &[u8]); 13] = files!(
    "none.seq",
    "record-deflate.seq",
    "record-gzip.seq",
    "record-bzip2.seq",
    "record-snappy.seq",
    "record-lz4.seq",
    "record-zstd.seq",
    "block-deflate.seq",
    "block-gzip.seq",
    "block-bzip2.seq",
    "block-snappy.seq",
    "block-lz4.seq",
    "block-zstd.seq",
);

/// Files of 3 records: short enough to be cut and changed at every byte.
const SMALL: [(&str, &[u8]); 12] = files!(
    "small-record-deflate.seq",
    "small-record-gzip.seq",
    "small-record-bzip2.seq",
    "small-record-snappy.seq",
    "small-record-lz4.seq",
    "small-record-zstd.seq",
    "small-block-deflate.seq",
    "small-block-gzip.seq",
    "small-block-bzip2.seq",
    "small-block-snappy.seq",
    "small-block-lz4.seq",
    "small-block-zstd.seq",
);

/// Of other classes, and without a record.
const OTHERS: [(&str, &[u8]); 4] = files!("text.seq", "raw.seq", "empty.seq", "empty-block.seq");

fn read(file: &str, bytes: &[u8]) -> Result<Pairs, FormatError> {
    let mut records = records(file, Cursor::new(bytes.to_vec()), &Options::default())?;
    let mut pairs = Vec::new();
    while let Some((key, value)) = records.next()? {
        pairs.push((key.to_vec(), value.to_vec()));
    }
    Ok(pairs)
}

fn expected(count: usize) -> Pairs {
    let pair =
        |i: usize| (format!("key-{i}").into_bytes(), format!("value {i}, ").repeat(i * i % 97).into_bytes());
    (0..count).map(pair).collect()
}

fn other(name: &str) -> &'static [u8] {
    OTHERS.iter().find(|(other, _)| *other == name).unwrap().1
}

#[test]
fn hadoops_files_are_read_in_every_compression() {
    for (file, bytes) in WHOLE {
        assert_eq!(read(file, bytes).unwrap(), expected(60), "{file}");
    }
    for (file, bytes) in SMALL {
        assert_eq!(read(file, bytes).unwrap(), expected(3), "{file}");
    }
}

#[test]
fn texts_are_unwrapped_and_other_classes_are_not() {
    let texts = read("text.seq", other("text.seq")).unwrap();
    let expected = ["", "é", "日本", "🜁"].map(|key| (key.as_bytes().to_vec(), key.repeat(100).into_bytes()));
    assert_eq!(texts, expected);
    let raw = read("raw.seq", other("raw.seq")).unwrap();
    assert_eq!(raw, [-1i32, 0, 1].map(|number| (number.to_be_bytes().to_vec(), Vec::new())));
    assert_eq!(read("empty.seq", other("empty.seq")).unwrap(), []);
    assert_eq!(read("empty-block.seq", other("empty-block.seq")).unwrap(), []);
}

/// The metadata of the header: one pair.
const METADATA: &[u8] = b"\0\0\0\x01\x0awritten by\x0eSequences.java";

fn without(bytes: &[u8], part: &[u8]) -> Vec<u8> {
    let at = bytes.windows(part.len()).position(|window| window == part).unwrap();
    [&bytes[..at], &bytes[at + part.len()..]].concat()
}

#[test]
fn versions_4_and_5_are_read() {
    let class = [b"\x2a", &b"org.apache.hadoop.io.compress.DefaultCodec"[..]].concat();
    for (file, bytes) in WHOLE {
        let mut five = without(bytes, METADATA);
        five[3] = 5;
        assert_eq!(read(file, &five).unwrap(), expected(60), "{file}");
        if file.contains("deflate") || file == "none.seq" {
            let mut four = if file == "none.seq" { five } else { without(&five, &class) };
            four[3] = 4;
            assert_eq!(read(file, &four).unwrap(), expected(60), "{file}");
        }
    }
    for version in [0, 3, 7] {
        let mut bytes = other("raw.seq").to_vec();
        bytes[3] = version;
        let failure = read("f", &bytes).unwrap_err();
        assert_eq!(failure.place, Place::Offset(3));
        assert!(matches!(failure.reason, Reason::Version { version: v } if v == version), "{failure}");
    }
}

#[test]
fn an_unknown_codec_is_named() {
    let (_, bytes) = SMALL[0];
    let at = bytes.windows(12).position(|window| window == b"DefaultCodec").unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at] = b'X';
    assert_eq!(
        read("part-7", &bytes).unwrap_err().to_string(),
        "part-7: offset 76: compressed with org.apache.hadoop.io.compress.XefaultCodec, which cannot be read here; write it \
         with gzip, deflate, snappy, lz4, zstd, bzip2, or uncompressed"
    );
}

#[test]
fn a_file_that_is_cut_off_never_gives_more_than_its_beginning() {
    for (file, bytes) in SMALL.iter().chain(&OTHERS).chain(&WHOLE[..1]) {
        let whole = read(file, bytes).unwrap();
        for length in 0..bytes.len() {
            match read(file, &bytes[..length]) {
                Ok(pairs) => assert!(whole.starts_with(&pairs), "{file} cut at {length}"),
                Err(failure) => {
                    assert!(failure.to_string().starts_with(&format!("{file}: offset ")), "{failure}")
                }
            }
        }
        // Within a record it is noticed.
        let failure = read(file, &bytes[..bytes.len() - 1]).unwrap_err();
        assert!(matches!(failure.reason, Reason::CutOff { .. }), "{failure}");
    }
}

#[test]
fn a_flipped_bit_never_stops_the_reader() {
    for (file, bytes) in SMALL.iter().chain(&OTHERS) {
        let whole = read(file, bytes).unwrap();
        let mut noticed = 0;
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match read(file, &damaged) {
                // Hadoop has no checksum of its own over what is not compressed, nor over the names of raw classes.
                Ok(pairs) => assert!(pairs.len() <= whole.len() + 1, "{file}, bit {bit}"),
                Err(failure) => {
                    noticed += 1;
                    assert!(failure.to_string().starts_with(&format!("{file}: offset ")), "{failure}");
                }
            }
        }
        assert!(noticed > 0, "{file}");
    }
}

#[test]
fn two_files_that_were_mixed_are_noticed_at_the_sync_marker() {
    let (_, none) = WHOLE[0];
    let (_, blocks) = WHOLE[7];
    let sync_of = |bytes: &[u8]| {
        let at =
            bytes.windows(METADATA.len()).position(|window| window == METADATA).unwrap() + METADATA.len();
        (at, bytes[at..at + 16].to_vec())
    };
    for bytes in [none, blocks] {
        let (header, sync) = sync_of(bytes);
        let second =
            bytes[header + 16..].windows(16).position(|window| window == sync).unwrap() + header + 16;
        let mut mixed = bytes.to_vec();
        mixed[second + 3] ^= 0x10;
        let failure = read("f", &mixed).unwrap_err();
        assert_eq!(failure.place, Place::Offset(second as u64 - 4));
        assert!(matches!(failure.reason, Reason::Sync), "{failure}");
    }
}
