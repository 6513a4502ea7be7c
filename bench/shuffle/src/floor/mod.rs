//! The floor: what any shuffle costs that has two replicas on disk, orders, and checks what it moves; and nothing else.
//!
//! ```text
//!  client ═════► three nodes: divide ═════► two of the three: disk ─── read back, sort ═════► reader: count, order, sum
//!   a hop, with checksums      1⅓ hops: one of the two is often the node itself        a hop
//! ```
//!
//! There are no attempts, no bounds to find (uniform keys are divided evenly beforehand), no numbers of batches, no answers but
//! one at the end, no memory limit, no retry.

mod disk;
mod ends;
mod flood;
mod node;
mod wire;

pub use ends::{client, reader};
pub use flood::{Flood, bench as bench_flood, flood, trickle};
pub use node::node;
pub use wire::Way;

use crate::client_process::{ClientProcess, tally_of};
use crate::{Got, Run};
use bench_gauge::{Running, core_seconds_ever_of, free, median, myself, now, say};
use bench_shuffle::check::Tally;
use std::io::{Error, Result};
use std::path::Path;

/// The nodes that the floor has.
pub const NODES: usize = 3;
/// Of them so many have each range.
pub const REPLICAS: usize = 2;
/// Bytes of a key.
pub const KEY_BYTES: usize = 10;
/// Partitions that are read: each is a range.
const RANGES: u64 = 256;
const GB: f64 = 1e9;

/// The range of a record: keys are uniform, so their first two bytes divide them evenly.
pub fn range_of(record: &[u8], ranges: usize) -> usize {
    let top = record.first_chunk().map_or(0, |top| u16::from_be_bytes(*top));
    (usize::from(top) * ranges) >> 16
}

/// What one run took.
#[derive(Debug, Clone, Copy)]
struct Took {
    /// Core-seconds per GB until all is stored, and until all is read.
    writing: f64,
    reading: f64,
    wall_seconds: f64,
}

/// Prints the figures of the floor; gives the median of core-seconds per GB by the name of the way.
pub fn bench(run: &Run) -> Got<Vec<(&'static str, f64)>> {
    let mut medians = Vec::new();
    for way in run.ways() {
        let name = way.name();
        let mut figures = Vec::new();
        for round in 0..run.of.number("--rounds", 3, 1) {
            let took = one(run, way, &run.of.folder(&format!("{name}-{round}"))?)?;
            let Took { writing, reading, wall_seconds } = took;
            say(&format!(
                "floor {name:4} {:.2} core-s/GB ({writing:.2} to write, {reading:.2} to read), {wall_seconds:.2} s by the clock",
                writing + reading
            ));
            figures.push(writing + reading);
        }
        medians.push((name, median(figures)));
    }
    for (name, median) in &medians {
        say(&format!("median  floor {name:4} {median:.2} core-s/GB"));
    }
    Ok(medians)
}

fn one(run: &Run, way: Way, folder: &Path) -> Result<Took> {
    let (records, ranges) = (run.records(), run.of.number("--ranges", RANGES, RANGES));
    let addresses: Vec<_> = (0..NODES).map(|_| free()).collect::<Result<_>>()?;
    let mut nodes = Vec::new();
    for (number, at) in addresses.iter().enumerate() {
        let mut command = myself()?;
        command.arg("floor-node").args([number as u64, ranges, records].map(|number| number.to_string()));
        command.arg(way.name()).arg(folder).args(addresses.iter().map(ToString::to_string));
        nodes.push(Running::start(&mut command, *at)?);
    }
    let end = |role: &str| {
        let mut command = myself()?;
        command.arg(role).args([records, ranges].map(|number| number.to_string()));
        command.arg(way.name()).arg(folder).args(addresses.iter().map(ToString::to_string));
        ClientProcess::start(&mut command)
    };
    let (mut client, sent) = end("floor-client")?;
    let (mut reader, _) = end("floor-reader")?;
    let pids: Vec<u32> = nodes.iter().map(Running::pid).chain([client.pid(), reader.pid()]).collect();
    let core_seconds = || pids.iter().map(|pid| core_seconds_ever_of(*pid)).sum::<f64>();
    let (begun, at) = (core_seconds(), now());
    client.go()?;
    client.line()?;
    let stored = core_seconds();
    reader.go()?;
    let read = reader.line()?;
    let (done, wall_seconds) = (core_seconds(), now().duration_since(at).as_secs_f64());
    let tallies: Option<(Tally, Tally)> = tally_of(&sent).zip(tally_of(&read));
    if tallies.is_none_or(|(sent, read)| sent != read) {
        return Err(Error::other(format!("what was read ({read}) is not what was sent ({sent})")));
    }
    let gb = (records * wire::RECORD_BYTES as u64) as f64 / GB;
    Ok(Took { writing: (stored - begun) / gb, reading: (done - stored) / gb, wall_seconds })
}
