//! Our shuffles, as a user runs them: a coordinator, three nodes, a process that writes and one that reads.
//!
//! ```text
//!  writer ═════► three `partage shuffle serve` ═════► reader: count, order, stability, sum, size of each partition
//!     crate partage-shuffle-client          same crate
//! ```
//!
//! Nothing is used but the command line, HTTP, and the client that a user has: in `hail` and `mixed` pyarrow. What must hold is
//! an error if it does not; times are only printed.

mod balance;
mod chaos;
mod cluster;
mod control;
mod faults;
mod flood;
mod hail;
mod job;
mod joins;
mod many;
mod memory;
mod mixed;
mod pyarrow;
mod reader;
mod shapes;
mod shuffle;
mod trickle;
mod writer;

pub use balance::bench as balance;
pub use faults::bench as faults;
pub use flood::bench as flood;
pub use hail::bench as hail;
pub use joins::bench as joins;
pub use many::{bench as many, process as many_process};
pub use memory::bench as memory;
pub use mixed::bench as flight;
pub use reader::process as reader_process;
pub use shapes::bench as shapes;
pub use trickle::process as trickle_process;
pub use writer::process as writer_process;

use crate::floor::Way;
use crate::{Got, Run};
use bench_gauge::{median, say};
use cluster::Cluster;
use job::Job;
use shuffle::Took;

/// What ours is at most, in times the floor.
const GOAL: f64 = 1.3;
/// A shuffle that warms a cluster has this part of what is measured.
const WARM: f64 = 0.5;

/// A cluster that has done one shuffle of so many 10^9 bytes.
fn warm(run: &Run, name: &str, way: Way, gb: f64) -> Got<Cluster> {
    let mut cluster = Cluster::start(run, name)?;
    let job = Job::usual(gb);
    shuffle::one(&mut cluster, way, &job, job.expected()?)?;
    Ok(cluster)
}

/// Prints the figures of ours beside those of the floor; gives the median of core-seconds per 10^9 bytes by the name of the way.
pub fn bench(run: &Run, floor: &[(&'static str, f64)]) -> Got<Vec<(&'static str, f64)>> {
    let job = Job { durability: run.durability, ..Job::usual(run.gb) };
    let ways = run.ways();
    if ways.is_empty() {
        return Ok(Vec::new());
    }
    let expected = job.expected()?;
    let mut medians = Vec::new();
    for way in ways {
        let name = way.name();
        let mut cluster = warm(run, &format!("ours-{name}"), way, run.gb * WARM)?;
        let mut figures = Vec::new();
        for _ in 0..run.of.number("--rounds", 3, 1) {
            let took = shuffle::one(&mut cluster, way, &job, expected)?;
            say(&format!("ours  {name:4} {}", line(&took)));
            figures.push(took.all());
        }
        medians.push((name, median(figures)));
    }
    for (name, median) in &medians {
        let of_floor = floor.iter().find(|(way, _)| way == name).map(|(_, floor)| median / floor);
        let times = of_floor.map(|times| format!(", {times:.2} times the floor (goal {GOAL})"));
        say(&format!("median  ours {name:4} {median:.2} core-s/GB{}", times.unwrap_or_default()));
    }
    Ok(medians)
}

fn line(took: &Took) -> String {
    let Took { writing, reading, wall_seconds, again, .. } = took;
    format!(
        "{:.2} core-s/GB ({writing:.2} to write and seal, {reading:.2} to read), {wall_seconds:.2} s by the clock, {again} attempts run again",
        took.all()
    )
}
