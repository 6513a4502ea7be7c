//! Rows of ten columns through Flight, as pyarrow writes and reads them: beside raw records of as many bytes through our own
//! client, and beside a server that only takes such rows, encodes them, and gives them back.

use super::cluster::Cluster;
use super::job::Job;
use super::pyarrow::{Pyarrow, RowsJob, RowsTook};
use super::shuffle;
use crate::floor::Way;
use crate::{Done, Run};
use bench_gauge::{Running, core_seconds_ever_of, free, median, myself, say};
use bench_shuffle::generate::Shape;

/// What ours over Flight is at most, in times raw records and in times the floor.
const GOALS: (f64, f64) = (2.0, 1.5);
/// Bytes of a row as Arrow has it in memory, about.
const ROW_BYTES: f64 = 124.0;
/// Of the key of a raw record: about what two sort columns have in it.
const KEY_BYTES: usize = 16;

/// Prints what each takes, and both ratios.
pub fn bench(run: &Run) -> Done {
    let usual = Job::usual(run.gb);
    let rows = ((run.gb * 1e9 / ROW_BYTES) as u64).max(u64::from(usual.inputs));
    let (inputs, partitions) = (u64::from(usual.inputs), usual.partitions);
    let job = RowsJob { input: "mixed", rows, inputs, partitions, is_made: true };
    let pyarrow = Pyarrow::install(run)?;
    let at = free()?;
    let server = Running::start(myself()?.args(["flight-floor", &at.to_string()]), at)?;
    let of_floor = || server.core_seconds_ever() + core_seconds_ever_of(std::process::id());
    let mut cluster = Cluster::start(run, "flight")?;
    // Each side has done its work once before it is measured, and each value of each row was compared then.
    let bytes = pyarrow.floor(at, &job, true, &of_floor)?.bytes;
    pyarrow.shuffle(&cluster, &job, true)?;
    let raw_job = raw(&usual, rows, bytes);
    let expected = raw_job.expected()?;
    shuffle::one(&mut cluster, Way::Tcp, &raw_job, expected)?;
    let (mut floor, mut flight, mut raw) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..run.of.number("--rounds", 3, 1) {
        let took = pyarrow.floor(at, &job, false, &of_floor)?;
        floor.push(tell("floor", &took));
        let took = pyarrow.shuffle(&cluster, &job, false)?;
        flight.push(tell("flight", &took));
        let took = shuffle::one(&mut cluster, Way::Tcp, &raw_job, expected)?;
        say(&format!("raw    {}", super::line(&took)));
        raw.push(took.all());
    }
    let (floor, flight, raw) = (median(floor), median(flight), median(raw));
    let (of_raw, of_floor) = GOALS;
    say(&format!(
        "median  {rows} rows of ten columns, {bytes} bytes, over Flight: {flight:.2} core-s/GB; {:.2} times raw records of {} bytes \
         (goal {of_raw}), {:.2} times bare Flight in and out and the row encoding (goal {of_floor})",
        flight / raw,
        raw_job.shape.record,
        flight / floor,
    ));
    Ok(())
}

/// Raw records, as many and of as many bytes.
fn raw(usual: &Job, rows: u64, bytes: u64) -> Job {
    let record = (bytes / rows.max(1)) as usize;
    let shape = Shape { key: KEY_BYTES, record: record.max(Shape::USUAL.record) };
    Job { shape, records: rows, ..*usual }
}

/// Says what a run took; gives core-seconds for 10^9 bytes of rows.
fn tell(name: &str, took: &RowsTook) -> f64 {
    let gb = took.bytes as f64 / 1e9;
    let RowsTook { writing, reading, wall_seconds, .. } = took;
    say(&format!(
        "{name:6} {:.2} core-s/GB ({:.2} to write, {:.2} to seal and read), {wall_seconds:.2} s by the clock",
        took.all() / gb,
        writing / gb,
        reading / gb,
    ));
    took.all() / gb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_records_are_as_many_and_as_long_as_rows() {
        let job = raw(&Job::usual(1.0), 1_000, 124_400);
        assert_eq!((job.records, job.shape.record, job.bytes()), (1_000, 124, 124_000));
        assert!(job.generator().is_ok());
    }
}
