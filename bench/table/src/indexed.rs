//! Writes of JSON values of 100 bytes, to a table without an index and to one with an index of a field of them, in turn: what
//! part of the writes is left.

use crate::cluster::{Cluster, NODES};
use crate::rows::{VALUE_BYTES, key};
use crate::{Done, Run, median, resp};
use bench_gauge::client::{self, Draw, Pressure, Seen};
use bench_gauge::say;
use std::collections::BTreeMap;
use std::io::Result;
use std::time::Duration;

/// Connections, and requests at a time on each.
const SHAPES: [(usize, usize); 2] = [(32, 16), (1, 1)];

/// The field that the index is of. It has so many different values.
const FIELD: &str = "size";
const SIZES: u64 = 10_000;

/// The tables: each in a cluster of its own.
const TABLES: [&str; 2] = ["plain", "indexed"];

/// A value: a field that differs from write to write, and letters.
fn value(size: u64) -> [u8; VALUE_BYTES] {
    let mut value = [b'x'; VALUE_BYTES];
    let head = format!("{{\"{FIELD}\":{size:5},\"rest\":\"");
    value[..head.len()].copy_from_slice(head.as_bytes());
    value[VALUE_BYTES - 2..].copy_from_slice(b"\"}");
    value
}

struct Measured {
    cluster: Cluster,
    /// The numbers of the keys that each node leads.
    numbers: Vec<Vec<u64>>,
}

impl Measured {
    fn start(run: &Run, name: &str) -> Result<Measured> {
        let cluster = Cluster::start(run, name, run.number("--shards", 12, 12))?;
        if name == TABLES[1] {
            cluster.create_index("by-size", FIELD)?;
        }
        let numbers = cluster.layout()?.numbers(run.number("--keys", 1_000_000, 100_000));
        Ok(Measured { cluster, numbers })
    }

    fn write(&self, connections: usize, depth: usize, time: Duration) -> Result<Seen> {
        let ask = |out: &mut Vec<u8>, draw: &mut Draw, line: usize| {
            let numbers = &self.numbers[line % NODES];
            let number = numbers[draw.below(numbers.len() as u64) as usize];
            resp::set(out, &key(number), &value(draw.below(SIZES)));
        };
        let lines = (0..connections).map(|line| vec![self.cluster.resp[line % NODES]]).collect();
        let server = || self.cluster.core_seconds();
        client::run(&resp::sets(&ask), &Pressure { lines, depth, time }, &server)
    }
}

/// Prints each run, and what part of the writes an index leaves.
pub fn bench(run: &Run) -> Done {
    let time = Duration::from_secs(run.number("--seconds", 5, 1));
    let [plain, indexed] = TABLES;
    let tables = [(plain, Measured::start(run, plain)?), (indexed, Measured::start(run, indexed)?)];
    let mut figures: BTreeMap<(usize, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..run.number("--rounds", 5, 1) {
        for (shape, (connections, depth)) in SHAPES.into_iter().enumerate() {
            for (name, measured) in &tables {
                let mut seen = measured.write(connections, depth, time)?;
                let a_second = seen.answers as f64 / seen.seconds;
                let a_core_second = seen.answers as f64 / seen.server_seconds;
                say(&format!(
                    "{connections:>2} connections, {depth:>2} deep  {name:8} {a_second:>8.0} a second, \
                     {a_core_second:>8.0} a core-second, {}",
                    seen.latency.line()
                ));
                figures.entry((shape, *name)).or_default().push((a_second, a_core_second));
            }
        }
    }
    for (shape, (connections, depth)) in SHAPES.into_iter().enumerate() {
        let medians = TABLES.map(|name| {
            let (seconds, cores) =
                figures.get(&(shape, name)).cloned().unwrap_or_default().into_iter().unzip();
            (median(seconds), median(cores))
        });
        let [plain, indexed] = medians;
        say(&format!(
            "median  {connections:>2} connections, {depth:>2} deep  with an index {:.2} of the writes a second, {:.2} of those a core-second (goal: 0.6)",
            indexed.0 / plain.0,
            indexed.1 / plain.1
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_json_with_the_field() {
        for size in [0, 7, SIZES - 1] {
            let value = value(size);
            let parsed: serde_json::Value = serde_json::from_slice(&value).unwrap();
            assert_eq!(parsed[FIELD], size);
        }
    }
}
