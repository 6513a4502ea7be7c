//! More than fits in memory: core-seconds beside those of less, the most memory that each node takes, and
//! what is written to disk.

use super::cluster::{Cluster, MEMORY, NODES, REPLICAS};
use super::job::Job;
use super::shuffle;
use crate::{Done, Run};
use bench_gauge::say;
use rustix::fs::statvfs;

/// What it is compared with, in 10^9 bytes; a quick run has a tenth of what it measures.
const SMALL_GB: f64 = 2.0;
/// Goals: times the core-seconds of the small one, times the limit of memory, bytes written for each byte and replica.
const GOALS: (f64, f64, f64) = (1.3, 1.1, 1.3);
/// Bytes of disk for each byte of input: two replicas, and what is divided lies twice for a while.
const DISK: f64 = 3.0;

/// Prints what the smaller and the larger shuffle take, beside the goals.
pub fn bench(run: &Run) -> Done {
    let memory = run.memory.as_deref().unwrap_or(MEMORY);
    let limit =
        bytes_of(memory).ok_or_else(|| format!("--memory {memory}: give a number of MiB or GiB, as 1GiB"))?;
    let disk = statvfs(run.of.place())?;
    let (free, wanted) = ((disk.f_bavail * disk.f_frsize) as f64 / 1e9, run.gb * DISK);
    if free < wanted {
        let what =
            format!("{free:.0} GB are free at {}, and {wanted:.0} are needed", run.of.place().display());
        return Err(format!("{what}: give --folder, or a smaller --gb").into());
    }
    let small_gb = if run.of.is_quick() { run.gb / 10.0 } else { SMALL_GB };
    for way in run.ways() {
        let name = way.name();
        let mut figures = Vec::new();
        for gb in [small_gb, run.gb] {
            // Records are made as they are written, in both: the larger ones have no room in memory.
            let job = Job { is_made: false, ..Job::usual(gb) };
            let mut cluster = Cluster::start_with(run, &format!("memory-{name}-{gb}"), memory)?;
            let before: u64 = (0..NODES).map(|node| cluster.written_bytes(node)).sum();
            let took = shuffle::one(&mut cluster, way, &job, job.expected()?)?;
            let written = (0..NODES).map(|node| cluster.written_bytes(node)).sum::<u64>() - before;
            let a_byte = written as f64 / (job.bytes() as f64 * REPLICAS as f64);
            let most = (0..NODES).map(|node| cluster.memory_bytes(node)).max().unwrap_or_default();
            say(&format!("{name:4} {gb} GB: {}", super::line(&took)));
            for node in 0..NODES {
                let mib = cluster.memory_bytes(node) >> 20;
                say(&format!("    node {node} has taken {mib} MiB at most, of {memory}"));
            }
            say(&format!(
                "    {a_byte:.2} bytes were written for each byte and replica{}",
                uncounted(written)
            ));
            figures.push((took.all(), most as f64 / limit as f64, a_byte));
        }
        if let [small, large] = figures.as_slice() {
            let (cores, rss, writes) = GOALS;
            say(&format!(
                "{name:4} {} GB: {:.2} times the core-seconds per GB of {small_gb} GB (goal {cores}), memory {:.2} times the limit (goal {rss}), \
                 {:.2} bytes written for each byte and replica (goal {writes})",
                run.gb,
                large.0 / small.0,
                large.1,
                large.2
            ));
        }
    }
    Ok(())
}

fn uncounted(written: u64) -> &'static str {
    if written == 0 { ": the kernel does not count them at this folder, give --folder on a disk" } else { "" }
}

/// The bytes of a size as `--memory` takes it.
fn bytes_of(size: &str) -> Option<u64> {
    let units = [("GiB", 30), ("MiB", 20)];
    let (number, shift) = units.iter().find_map(|(unit, shift)| Some((size.strip_suffix(unit)?, *shift)))?;
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes_of("1GiB"), Some(1 << 30));
        assert_eq!(bytes_of("128MiB"), Some(128 << 20));
        assert_eq!(bytes_of("5"), None);
    }
}
