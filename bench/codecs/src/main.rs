//! What compression of store files saves and costs: the size of the same data, and lookups, by layout, codec and kind of
//! value, in one run on one core.
//!
//! `cargo run --release -p bench-codecs` prints a table for each kind of value in about two minutes.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints its table")]

use comfy_table::{CellAlignment, Table, presets};
use partage_engine::readonly::{Builder, Compression, Layout, Options, Reader};
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Keys of one store file: one partition of a middling dataset, some times the third cache of the processor.
const KEYS: u64 = 200_000;

/// Lookups in each of the rounds.
const LOOKUPS: usize = 100_000;

/// Rounds in which each way is measured, in turn with the others; medians are told.
const ROUNDS: usize = 5;

type Done<T> = Result<T, Box<dyn std::error::Error>>;

/// What the values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Records as services write them: the names are always the same, the values differ.
    Json,
    /// The same, a fifth as long: less than a cache line of names.
    ShortJson,
    /// As random as an image or something that is encrypted.
    Noise,
}

const KINDS: [(Kind, &str); 3] = [
    (Kind::Json, "JSON records of 430 bytes"),
    (Kind::ShortJson, "JSON records of 90 bytes"),
    (Kind::Noise, "430 bytes that nothing makes shorter"),
];

const CODECS: [(Compression, &str); 3] =
    [(Compression::None, "none"), (Compression::Lz4, "lz4"), (Compression::Zstd { level: 3 }, "zstd 3")];

/// Seconds on a core that this thread, the only one, has used.
fn core_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Numbers that look random, the same in every run.
fn mix(number: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes())
}

fn key(number: u64) -> Vec<u8> {
    format!("{:016x}", mix(number)).into_bytes()
}

fn value(kind: Kind, number: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll",
        "larch", "maple", "north", "ochre", "pines",
    ];
    let random = |salt: u64| mix(number ^ mix(salt));
    let words = |salt: u64, count: u64| -> String {
        let word = |at: u64| WORDS[(random(salt + at) % 16) as usize];
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    };
    match kind {
        Kind::Json => format!(
            "{{\"id\":{number},\"uuid\":\"{:016x}{:016x}\",\"name\":\"{}\",\"email\":\"{}{}@example.org\",\
             \"created_at\":\"2024-{:02}-{:02}T{:02}:{:02}:{:02}Z\",\"country\":\"{}\",\"is_active\":{},\
             \"balance\":{}.{:02},\"tags\":[\"{}\",\"{}\"],\"address\":{{\"street\":\"{}\",\"number\":{},\
             \"postal_code\":\"{:05}\"}},\"last_seen\":{},\"description\":\"{}\"}}",
            random(1),
            random(2),
            words(10, 2),
            words(20, 1),
            random(3) % 1_000,
            1 + random(4) % 12,
            1 + random(5) % 28,
            random(6) % 24,
            random(7) % 60,
            random(8) % 60,
            ["de", "fr", "us", "jp", "br"][(random(9) % 5) as usize],
            number.is_multiple_of(2),
            random(30) % 10_000,
            random(31) % 100,
            words(40, 1),
            words(41, 1),
            words(50, 1),
            random(51) % 200,
            random(52) % 100_000,
            1_700_000_000 + random(53) % 50_000_000,
            words(60, 9)
        )
        .into_bytes(),
        Kind::ShortJson => format!(
            "{{\"user\":{},\"score\":0.{:04},\"country\":\"{}\",\"updated\":{},\"model\":\"v7\"}}",
            random(1) % 100_000_000,
            random(2) % 10_000,
            ["de", "fr", "us", "jp", "br"][(random(3) % 5) as usize],
            1_700_000_000 + random(4) % 50_000_000
        )
        .into_bytes(),
        Kind::Noise => (0..54).flat_map(|at| random(100 + at).to_le_bytes()).take(430).collect(),
    }
}

/// One store file, and what was measured of it.
struct Way {
    name: String,
    reader: Reader,
    build_seconds: f64,
    /// One figure for each round: how many lookups were answered in a second.
    per_second: Vec<f64>,
    p99_us: Vec<f64>,
}

fn build(folder: &Path, kind: Kind, layout: Layout, codec: (Compression, &str)) -> Done<Way> {
    let name = format!("{layout:?}, {}", codec.1).to_lowercase();
    let path = folder.join(&name);
    let options = Options { layout, compression: codec.0, ..Options::default() };
    let before = core_seconds();
    let mut builder = Builder::new(&path, options)?;
    for number in 0..KEYS {
        builder.add(&key(number), &value(kind, number))?;
    }
    builder.finish()?;
    let build_seconds = core_seconds() - before;
    Ok(Way { name, reader: Reader::open(&path)?, build_seconds, per_second: Vec::new(), p99_us: Vec::new() })
}

/// Looks keys up one by one, and copies each value as a server does.
fn look_up(find: &mut dyn FnMut(u64, &mut Vec<u8>) -> Done<()>, round: usize) -> Done<(f64, f64)> {
    let mut out = Vec::with_capacity(1 << 20);
    let mut times = Vec::with_capacity(LOOKUPS);
    let before = core_seconds();
    for at in 0..LOOKUPS as u64 {
        let number = mix(at + (round * LOOKUPS) as u64) % KEYS;
        let began = now();
        find(number, &mut out)?;
        times.push(now().duration_since(began).as_nanos() as u64);
        if out.len() > 1 << 19 {
            out.clear();
        }
    }
    black_box(&out);
    let seconds = core_seconds() - before;
    times.sort_unstable();
    Ok((LOOKUPS as f64 / seconds, times[LOOKUPS * 99 / 100] as f64 / 1_000.0))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn run(kind: Kind) -> Done<Table> {
    let folder = tempfile::tempdir()?;
    let mut ways = Vec::new();
    for layout in [Layout::Hashed, Layout::Ordered] {
        for codec in CODECS {
            ways.push(build(folder.path(), kind, layout, codec)?);
        }
    }
    // The floor: the value is where its number says, in memory, and is only copied.
    let flat: Vec<Vec<u8>> = (0..KEYS).map(|number| value(kind, number)).collect();
    let raw: usize = flat.iter().map(|value| value.len() + 16).sum();
    let mut floor = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut copy = |number: u64, out: &mut Vec<u8>| {
            black_box(key(number));
            out.extend_from_slice(&flat[number as usize]);
            Ok(())
        };
        let (per_second, p99) = look_up(&mut copy, round)?;
        floor.0.push(per_second);
        floor.1.push(p99);
        for way in &mut ways {
            let reader = &way.reader;
            let mut find = |number: u64, out: &mut Vec<u8>| {
                let found = reader.get(&key(number))?.ok_or("a key is missing")?;
                out.extend_from_slice(&found);
                Ok(())
            };
            let (per_second, p99) = look_up(&mut find, round)?;
            way.per_second.push(per_second);
            way.p99_us.push(p99);
        }
    }
    let mut table = Table::new();
    let columns =
        ["store file", "bytes", "of the data", "to build, core-s", "lookups a core-s", "of none", "p99, us"];
    table.load_style(presets::ASCII_MARKDOWN).set_header(columns);
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let row = |name: &str, bytes: u64, build: String, per_second: f64, none: f64, p99: f64| {
        [
            name.to_owned(),
            bytes.to_string(),
            format!("{:.2}", bytes as f64 / raw as f64),
            build,
            format!("{per_second:.0}"),
            format!("{:.2}", per_second / none),
            format!("{p99:.1}"),
        ]
    };
    let (rate, p99) = (median(&floor.0), median(&floor.1));
    table.add_row(row(
        "floor: a copy from memory",
        raw as u64,
        "-".to_owned(),
        rate,
        median(&ways[0].per_second),
        p99,
    ));
    for (number, way) in ways.iter().enumerate() {
        let none = median(&ways[number / CODECS.len() * CODECS.len()].per_second);
        let bytes = way.reader.describe().file_bytes;
        let build = format!("{:.2}", way.build_seconds);
        table.add_row(row(&way.name, bytes, build, median(&way.per_second), none, median(&way.p99_us)));
    }
    Ok(table)
}

fn main() -> ExitCode {
    for (kind, title) in KINDS {
        match run(kind) {
            Ok(table) => println!("{KEYS} keys of 16 bytes, {title}\n\n{table}\n"),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
