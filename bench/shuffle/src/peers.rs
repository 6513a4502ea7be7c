//! Polars, DuckDB and Spark, which order the same records on this machine, each by its own program: `peers.py` beside this crate.

use crate::{Done, Run, SEED};
use bench_gauge::{complain, say};
use bench_shuffle::generate::{Generator, Input, Shape};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The peers, and the goals: ours over TCP is at most that part of each.
const PEERS: [(&str, &str); 3] =
    [("polars", "1/2"), ("duckdb", "1/2"), ("spark", "1/6 (1/8 over Unix sockets)")];
const SCRIPT: &str = include_str!("../peers.py");
/// Records that are made at once.
const STRIDE: u64 = 10_000;

/// Core-seconds per 10^9 bytes, by the way between processes.
type ByWay = [(&'static str, f64)];

/// Runs the peers that are there, and prints their figures beside those of the floor and of ours.
pub fn bench(run: &Run, floor: &ByWay, ours: &ByWay) -> Done {
    let wanted: Vec<&str> =
        PEERS.iter().map(|(name, _)| *name).filter(|name| run.of.measures(name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let input = run.of.place().join("records");
    write_input(run, &input)?;
    let script = run.of.place().join("peers.py");
    std::fs::write(&script, SCRIPT)?;
    let mut child = Command::new("python3")
        .arg(&script)
        .arg(run.of.place().join("venv"))
        .arg(&input)
        .arg(run.of.place())
        .args(&wanted)
        .stdout(Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(child.stdout.take().ok_or("the script has no output")?).lines();
    for line in lines {
        let line = line?;
        match serde_json::from_str::<Value>(&line) {
            Ok(figures) => tell(&figures, run, floor, ours),
            // What a library of a peer prints.
            Err(_) => complain(&line),
        }
    }
    match child.wait()?.success() {
        true => Ok(()),
        false => Err("the script of the peers has failed, and said why".into()),
    }
}

fn write_input(run: &Run, path: &Path) -> Done {
    let records = run.records();
    let generator = Generator::new(Input::Uniform, Shape::USUAL, records, SEED).ok_or("no room")?;
    let mut out = BufWriter::new(File::create(path)?);
    let mut some = vec![0; STRIDE as usize * Shape::USUAL.record];
    for first in (0..records).step_by(STRIDE as usize) {
        let count = STRIDE.min(records - first) as usize;
        let room = &mut some[..count * Shape::USUAL.record];
        generator.write_all(first, room);
        out.write_all(room)?;
    }
    Ok(out.flush()?)
}

/// A line for a peer: what it took, how many times the floor that is, and what part of it ours is.
fn tell(figures: &Value, run: &Run, floor: &ByWay, ours: &ByWay) {
    let text = |name: &str| figures[name].as_str().unwrap_or("?");
    if let Some(why) = figures["left_out"].as_str() {
        return say(&format!("{:6} is left out: {why}", text("name")));
    }
    let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    let gb = run.records() as f64 * Shape::USUAL.record as f64 / 1e9;
    let core_seconds = number("core_seconds") / gb;
    let of_floor =
        floor.iter().map(|(way, floor)| format!("{:.2} times the floor over {way}", core_seconds / floor));
    let of_ours =
        ours.iter().map(|(way, ours)| format!("ours over {way} is {:.3} of it", ours / core_seconds));
    let times: Vec<String> = of_floor.chain(of_ours).collect();
    let goal = PEERS.iter().find(|(name, _)| *name == text("name")).map_or("", |(_, goal)| *goal);
    say(&format!(
        "{:6} {:10} {core_seconds:.2} core-s/GB, {:.2} s by the clock; {}{}ours is to be {goal} of it",
        text("name"),
        text("version"),
        number("wall_seconds"),
        times.join(", "),
        if times.is_empty() { "" } else { "; " },
    ));
}
