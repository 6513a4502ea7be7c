//! Files that are little and would take much memory: each is loaded, or refused by name, within what a load may take.
//!
//! Each is loaded in a process of its own, which says what it took at most.

#![cfg(all(feature = "parquet", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use partage_dataset::build::{Options, Progress, build_all};
use partage_dataset::format::{self, Columns};
use partage_dataset::source::{Settings, Source};

const MIB: usize = 1 << 20;
const LOAD_MEMORY: usize = 64 * MIB;
const MOST_KIB: u64 = 256 << 10;
/// Uncompressed, of what is too long.
const BOMB: usize = 400 * MIB;

fn bomb() -> impl Read {
    io::repeat(b'a').take(BOMB as u64)
}

fn gzip(mut stream: impl Read) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    io::copy(&mut stream, &mut writer).unwrap();
    writer.finish().unwrap()
}

fn bzip2(mut stream: impl Read) -> Vec<u8> {
    let mut writer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    io::copy(&mut stream, &mut writer).unwrap();
    writer.finish().unwrap()
}

fn zstd(stream: impl Read) -> Vec<u8> {
    zstd::encode_all(stream, 1).unwrap()
}

fn parquet(codec: Compression, rows: usize, value: usize) -> Vec<u8> {
    let schema =
        Arc::new(parse_message_type("message m { required binary k (UTF8); required binary v; }").unwrap());
    let properties = WriterProperties::builder().set_compression(codec).set_dictionary_enabled(false).build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let value = ByteArray::from(vec![b'a'; value]);
    let keys: Vec<ByteArray> = (0..rows).map(|row| format!("k{row}").into_bytes().into()).collect();
    for values in [keys, vec![value; rows]] {
        let mut column = group.next_column().unwrap().unwrap();
        // One at a time, so that each may have a page of its own.
        for value in values {
            column.typed::<ByteArrayType>().write_batch(&[value], None, None).unwrap();
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// A SequenceFile of one block with one record, whose values are these bytes.
fn sequence(codec: &str, lengths: &[u8], small: impl Fn(&[u8]) -> Vec<u8>, values: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    let sync = [7; 16];
    let mut file = b"SEQ\x06".to_vec();
    file.extend(text("org.apache.hadoop.io.Text"));
    file.extend(text("org.apache.hadoop.io.ByteWritable"));
    file.extend([1, 1]);
    file.extend(text(&format!("org.apache.hadoop.io.compress.{codec}")));
    file.extend([0; 4]);
    file.extend(sync);
    file.extend([0xff; 4]);
    file.extend(sync);
    file.push(1);
    for part in [&small(&[2]), &small(b"\x01k"), &small(lengths), values] {
        // A length of four bytes, in Hadoop's form of a number.
        file.push(0x8c);
        file.extend((part.len() as u32).to_be_bytes());
        file.extend(part);
    }
    file
}

/// Of Hadoop's frame: so long, uncompressed.
fn framed(chunk: &[u8], length: u32) -> Vec<u8> {
    [&length.to_be_bytes()[..], &(chunk.len() as u32).to_be_bytes(), chunk].concat()
}

fn columns() -> Columns {
    Columns { key: vec!["k".to_owned()], values: vec!["v".to_owned()], ..Columns::default() }
}

/// Loads what is in a folder, and says what came of it.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test's own process is told by its environment what to load")]
fn child() {
    let Ok(folder) = std::env::var("PARTAGE_TEST_BOMB") else { return };
    let folder = Path::new(&folder);
    let source = Source::open(folder.join("source").to_str().unwrap(), &Settings::new()).unwrap();
    let options = Options {
        format: format::Options { columns: columns(), ..format::Options::default() },
        memory_bytes: LOAD_MEMORY,
        ..Options::default()
    };
    let (dataset, version) = ("ds".parse().unwrap(), "1".parse().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let counters = Arc::new(Progress::default());
    let out = folder.join("out");
    let built = runtime.block_on(build_all(&source, (&dataset, &version), &out, &options, &counters));
    let told = built.map_or_else(|error| format!("refused: {error}"), |_| "loaded".to_owned());
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let most: u64 = most.split_whitespace().nth(1).unwrap().parse().unwrap();
    println!("\nRESULT {most} {told}");
}

/// Loads files in a process of its own: what it took at most, in KiB, and what it said.
fn load(files: &[(&str, Vec<u8>)]) -> (u64, String) {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("source/ds/1");
    std::fs::create_dir_all(&version).unwrap();
    for (name, bytes) in files {
        std::fs::File::create(version.join(name)).unwrap().write_all(bytes).unwrap();
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env("PARTAGE_TEST_BOMB", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let result =
        text.lines().find_map(|line| line.strip_prefix("RESULT ")).unwrap_or_else(|| panic!("{run:?}"));
    let (most, told) = result.split_once(' ').unwrap();
    (most.parse().unwrap(), told.to_owned())
}

fn check(name: &str, bytes: Vec<u8>, expected: &str) {
    // Two, since two are read at once.
    let (most, told) = load(&[(&format!("a-{name}"), bytes.clone()), (&format!("b-{name}"), bytes)]);
    assert!(told.contains(expected), "{name}: {told}");
    assert!(most <= MOST_KIB, "{name}: {} MiB, {told}", most >> 10);
}

#[test]
fn s19_a_long_line_or_row_is_refused() {
    let line = || b"{\"k\":1,\"v\":\"".chain(bomb());
    check("1.jsonl.gz", gzip(line()), "line 1: a record of");
    check("2.jsonl.zst", zstd(line()), "line 1: a record of");
    let quote = || b"k,v\n1,\"".chain(bomb());
    check("3.csv.gz", gzip(quote()), "a record of");
    check("4.csv.zst", zstd(quote()), "a record of");
    let commas = b"k,v\n".chain(io::repeat(b',').take(BOMB as u64));
    check("5.csv.gz", gzip(commas), "a record of");
    let tabs = io::repeat(b'\t').take(BOMB as u64);
    check("6.tsv.gz", gzip(tabs), "a record of");
}

#[test]
fn s19_a_window_beyond_the_memory_is_refused() {
    let mut writer = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    writer.window_log(27).unwrap();
    io::copy(&mut b"k,v\n1,2\n".chain(io::repeat(b'\n').take(BOMB as u64)), &mut writer).unwrap();
    check("1.csv.zst", writer.finish().unwrap(), "the zstd stream: ");
}

#[test]
fn s19_a_long_block_of_a_sequence_file_is_refused() {
    let lengths = [&[0x8c_u8][..], &(BOMB as u32).to_be_bytes()].concat();
    check("1", sequence("GzipCodec", &lengths, |b| gzip(b), &gzip(bomb())), "a block of");
    check("2", sequence("ZStandardCodec", &lengths, |b| zstd(b), &zstd(bomb())), "a block of");
    check("3", sequence("BZip2Codec", &lengths, |b| bzip2(b), &bzip2(bomb())), "a block of");
    let snappy =
        |bytes: &[u8]| framed(&snap::raw::Encoder::new().compress_vec(bytes).unwrap(), bytes.len() as u32);
    check(
        "4",
        sequence("SnappyCodec", &lengths, snappy, &framed(b"\x80\x80\x80\x80\x02a", BOMB as u32)),
        "a block of",
    );
    let lz4 = |bytes: &[u8]| framed(&lz4_flex::block::compress(bytes), bytes.len() as u32);
    let one = lz4_flex::block::compress(&vec![b'a'; MIB]);
    check("5", sequence("Lz4Codec", &lengths, lz4, &framed(&one, BOMB as u32)), "a block of");
}

#[test]
fn s19_a_long_value_of_a_parquet_file_is_refused() {
    for (name, codec) in [
        ("1.parquet", Compression::ZSTD(ZstdLevel::default())),
        ("2.parquet", Compression::GZIP(Default::default())),
        ("3.parquet", Compression::SNAPPY),
        ("4.parquet", Compression::LZ4_RAW),
        ("5.parquet", Compression::UNCOMPRESSED),
    ] {
        let value = if codec == Compression::UNCOMPRESSED { 100 * MIB } else { BOMB };
        check(name, parquet(codec, 1, value), "page of");
    }
}

/// The length that a page's header states is not what its bytes come to.
#[test]
fn s19_a_page_that_understates_its_length_is_refused() {
    let mut file = parquet(Compression::GZIP(Default::default()), 1, BOMB);
    let stated = |length: usize| {
        let mut number = (length as u64) << 1;
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    };
    // With the four bytes of the value's own length. As many bytes of header, so that nothing else moves.
    let (whole, mut less) = (stated(BOMB + 4), stated(MIB));
    *less.last_mut().unwrap() |= 0x80;
    while less.len() < whole.len() {
        less.push(if less.len() + 1 == whole.len() { 0 } else { 0x80 });
    }
    let at = file.windows(whole.len()).position(|bytes| bytes == whole).unwrap();
    file[at..at + whole.len()].copy_from_slice(&less);
    check("1.parquet", file, "a page of");
}

#[test]
fn s19_long_values_that_fit_are_loaded_within_the_memory() {
    check("1.parquet", parquet(Compression::SNAPPY, 40, 8 * MIB), "loaded");
    check("2.parquet", parquet(Compression::ZSTD(ZstdLevel::default()), 30, 10 * MIB), "loaded");
    let lines = |value: usize| {
        let line = |row: usize| format!("{{\"k\":{row},\"v\":\"{}\"}}\n", "a".repeat(value));
        (0..12).map(line).collect::<String>()
    };
    check("3.jsonl.gz", gzip(lines(15 * MIB).as_bytes()), "loaded");
    let rows: String = (0..12).map(|row| format!("{row},\"{}\"\n", "a".repeat(15 * MIB))).collect();
    check("4.csv.gz", gzip(format!("k,v\n{rows}").as_bytes()), "loaded");
}
