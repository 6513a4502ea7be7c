//! Key ranges: our index, binary search over a sorted list, and an ordered map.

use crate::measure::{self, Cost};
use comfy_table::Table;
use partage_core::keyspace::lookup::RangeIndex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

const RANGES: usize = 1_000_000;
const LOOKUPS: usize = 1 << 16;

type Draw = fn(u64) -> Vec<u8>;

/// Kinds of keys, each with the way to make one of a random number.
const KINDS: [(&str, Draw); 4] = [
    ("16 random bytes", |n| [n.to_be_bytes(), n.rotate_left(7).to_be_bytes()].concat()),
    ("user%012d", |n| format!("user{:012}", n % 1_000_000_000_000).into_bytes()),
    ("package names (python3-…)", package),
    ("https URLs", |n| format!("https://example.org/{:02x}/{:x}.html", n >> 56, n % (1 << 40)).into_bytes()),
];

/// Names with few, unevenly popular starts, as in a package index.
fn package(n: u64) -> Vec<u8> {
    const STARTS: [&str; 8] =
        ["lib", "python3-", "golang-github-", "node-", "r-cran-", "haskell-", "ruby-", "fonts-"];
    let start = STARTS[((n & 63).trailing_ones() as usize).min(7)];
    let letters = |n: u64| (0..8).map(move |i| b"etaoinsrhldcumfp"[(n >> (8 + 4 * i)) as usize & 15]);
    start.bytes().chain(letters(n)).chain(*b"-dev").collect()
}

pub fn run() -> Table {
    let mut table = measure::table(&[
        "1,000,000 ranges of",
        "way",
        "ns",
        "ns, chained",
        "ours is faster by",
        "bytes a range",
        "build, ms",
        "allocations",
    ]);
    for (kind, draw) in KINDS {
        let mut begins: Vec<Vec<u8>> = measure::random(1, RANGES - 1).map(draw).collect();
        begins.push(Vec::new());
        begins.sort();
        begins.dedup();
        let keys: Vec<Vec<u8>> = measure::random(2, LOOKUPS).map(draw).collect();
        let (index, build_ms) = built(&begins);
        // The node that has each range, as a map says it: one number for each.
        let owners: Vec<u16> = measure::random(3, begins.len()).map(|n| n as u16 % 1_000).collect();
        let search = |key: &[u8]| begins.partition_point(|begin| begin.as_slice() <= key) - 1;
        let map: BTreeMap<&[u8], usize> = begins.iter().map(Vec::as_slice).zip(0..).collect();
        let below = |key: &[u8]| {
            let range = (Bound::Unbounded, Bound::Included(key));
            map.range::<[u8], _>(range).next_back().map_or(0, |(_, at)| *at)
        };
        assert!(keys.iter().all(|key| index.find(key) == search(key) && below(key) == search(key)), "{kind}");
        let keys = packed(&keys);
        let ours = measure::cost(&keys, |key| index.find(key.bytes()));
        let mut row = |way: &str, cost: Cost, bytes: Option<usize>| {
            table.add_row([
                kind.to_owned(),
                way.to_owned(),
                format!("{:.1}", cost.free),
                format!("{:.1}", cost.chained),
                format!("{:.1} ×", cost.free / ours.free),
                bytes.map_or_else(String::new, |bytes| format!("{:.1}", bytes as f64 / begins.len() as f64)),
                bytes.map_or_else(String::new, |_| format!("{build_ms:.0}")),
                cost.allocations.to_string(),
            ]);
        };
        row("RangeIndex", ours, Some(index.memory_bytes()));
        let owner = measure::cost(&keys, |key| owners[index.find(key.bytes())].into());
        row("RangeIndex, and who owns the range", owner, None);
        row("binary search", measure::cost(&keys, |key| search(key.bytes())), None);
        row("BTreeMap", measure::cost(&keys, |key| below(key.bytes())), None);
    }
    table
}

/// The index, and how many milliseconds it took.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn built(begins: &[Vec<u8>]) -> (RangeIndex, f64) {
    let start = Instant::now();
    match RangeIndex::build(begins.iter().map(Vec::as_slice)) {
        Ok(index) => (index, start.elapsed().as_secs_f64() * 1e3),
        Err(error) => panic!("sorted and starting with the empty key: {error}"),
    }
}

/// A key without a pointer, so that fetching the keys is not what is measured.
struct Packed {
    bytes: [u8; 47],
    length: u8,
}

impl Packed {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length.into()]
    }
}

fn packed(keys: &[Vec<u8>]) -> Vec<Packed> {
    let pack = |key: &Vec<u8>| {
        let mut bytes = [0; 47];
        bytes[..key.len()].copy_from_slice(key);
        Packed { bytes, length: key.len() as u8 }
    };
    keys.iter().map(pack).collect()
}
