//! The rows by which Hail measures its own order: integers, and rows of 4,096 bytes, each in 100 partitions. Ours takes them from
//! pyarrow over Flight; Hail orders them by its own program, `hail_peer.py` beside this crate.

use super::cluster::Cluster;
use super::pyarrow::{Pyarrow, RowsJob};
use crate::{Done, Got, Run};
use bench_gauge::{complain, median, say};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// What ours is at most, in parts of what Hail takes by the better one of its two ways.
const GOAL: f64 = 0.2;
/// Partitions that are written, and that are read.
const PARTITIONS: u64 = 100;
/// More of the wide rows would not fit into the numbers of 32 bits of which they consist.
const MOST_WIDE: u64 = 2_000_000;
/// It takes the installer of `peers.py`, which [`Pyarrow::install`] has put beside it.
const SCRIPT: &str = include_str!("../../hail_peer.py");

/// Prints what ours and Hail take for each input, and the ratio.
pub fn bench(run: &Run) -> Done {
    let wide = run.of.number("--rows", 100_000, 1_000);
    if wide > MOST_WIDE {
        return Err(format!("--rows {wide}: give {MOST_WIDE} at most").into());
    }
    let job =
        |input, rows| RowsJob { input, rows, inputs: PARTITIONS, partitions: PARTITIONS, is_made: false };
    let integers = run.of.number("--integers", 10_000_000, 100_000);
    let jobs = [job("integers", integers.max(1)), job("rows", wide.max(1))];
    let jobs: Vec<RowsJob> = jobs.into_iter().filter(|job| run.of.measures(job.input)).collect();
    if jobs.is_empty() {
        return Err("--only of hail takes integers, rows, or both with a comma between".into());
    }
    let (pyarrow, mut medians) = (Pyarrow::install(run)?, Vec::new());
    for job in &jobs {
        medians.push((*job, ours(run, &pyarrow, job)?));
    }
    hails(run, &medians)
}

/// The median of core-seconds of ours. Its cluster is gone before Hail begins.
fn ours(run: &Run, pyarrow: &Pyarrow, job: &RowsJob) -> Got<f64> {
    let cluster = Cluster::start(run, &format!("hail-{}", job.input))?;
    pyarrow.shuffle(&cluster, job, true)?;
    let mut figures = Vec::new();
    for _ in 0..run.of.number("--rounds", 3, 1) {
        let took = pyarrow.shuffle(&cluster, job, false)?;
        say(&format!(
            "ours  {:8} {} rows: {:.2} core-s ({:.2} to write, {:.2} to seal and read), {:.2} s by the clock",
            job.input,
            job.rows,
            took.all(),
            took.writing,
            took.reading,
            took.wall_seconds
        ));
        figures.push(took.all());
    }
    Ok(median(figures))
}

/// Runs Hail, and says for each input what part of it ours is.
fn hails(run: &Run, medians: &[(RowsJob, f64)]) -> Done {
    let script = run.of.place().join("hail_peer.py");
    std::fs::write(&script, SCRIPT)?;
    let mut child = Command::new("python3")
        .arg(&script)
        .arg(run.of.place().join("venv-hail"))
        .arg(run.of.place())
        .args(medians.iter().map(|(job, _)| format!("{}={}", job.input, job.rows)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().ok_or("the script has no output")?).lines() {
        let line = line?;
        match serde_json::from_str::<Value>(&line) {
            Ok(figures) => {
                say(&told(&figures));
                said.push(figures);
            }
            // What Spark prints.
            Err(_) => complain(&line),
        }
    }
    if !child.wait()?.success() {
        return Err("the script of Hail has failed, and said why".into());
    }
    for (job, ours) in medians {
        if let Some(better) = better(&said, job.input) {
            say(&format!(
                "median  ours {:8} {ours:.2} core-s is {:.3} of the better time of Hail, {better:.2} (goal {GOAL})",
                job.input,
                ours / better
            ));
        }
    }
    Ok(())
}

/// The line of one way of Hail.
fn told(figures: &Value) -> String {
    let text = |name: &str| figures[name].as_str().unwrap_or("?");
    let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    match figures["left_out"].as_str() {
        Some(why) => format!("hail  {:8} is left out: {why}", text("name")),
        None => format!(
            "hail  {:8} {} {:5}: {:.2} core-s, {:.2} s by the clock",
            text("name"),
            text("version"),
            text("way"),
            number("core_seconds"),
            number("wall_seconds")
        ),
    }
}

/// The core-seconds of the better way; none: Hail was left out.
fn better(said: &[Value], input: &str) -> Option<f64> {
    let of_input = said.iter().filter(|figures| figures["name"] == input);
    of_input.filter_map(|figures| figures["core_seconds"].as_f64()).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_better_way_of_an_input_counts() {
        let way = |name: &str, way: &str, core_seconds: f64| json!({ "name": name, "way": way, "version": "0.2.139", "core_seconds": core_seconds, "wall_seconds": 1.0 });
        let said = [
            way("integers", "spark", 15.7),
            way("integers", "own", 8.0),
            way("rows", "spark", 1.0),
            json!({ "name": "other", "left_out": "no Java" }),
        ];
        assert_eq!(better(&said, "integers"), Some(8.0));
        assert_eq!(better(&said, "rows"), Some(1.0));
        assert_eq!(better(&said, "other"), None);
        assert!(told(&said[1]).contains("own"), "{}", told(&said[1]));
        assert!(told(&said[3]).ends_with("is left out: no Java"), "{}", told(&said[3]));
    }
}
