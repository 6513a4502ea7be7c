//! One shuffle is written as fast as it goes, and another one little by little: how long the small one's acknowledgements take,
//! beside the same alone.

use super::cluster::Cluster;
use super::control::Control;
use super::job::Job;
use super::shuffle::{compare, follow, number_of, read, start_reader, start_writer};
use super::trickle;
use super::writer::Part;
use crate::client_process::ClientProcess;
use crate::floor::{Flood, Way, bench_flood};
use crate::{Done, Got, Run};
use bench_gauge::{Durations, myself, now, rest, say};
use std::time::Duration;

/// What the 99th of a hundred acknowledgements may take, in times alone.
const GOAL: f64 = 3.0;
/// Records of an attempt that trickles.
const RECORDS: u64 = 100;
/// Milliseconds between the beginnings of two of its attempts.
const EVERY_MS: u64 = 50;
/// How long the flood flows before anything is counted.
const FLOWS_MS: u64 = 3_000;
/// The flood has so many 10^9 bytes, more than it can write meanwhile, and says that it has fewer: else it had too many ranges.
const FLOOD_GB: f64 = 200.0;
const SAID_GB: f64 = 10.0;
/// And so many input partitions: each is 50 MB.
const FLOOD_INPUTS: u32 = 4_000;
/// So many 10^6 bytes of the flood are acknowledged in a second, at least, else it was none.
const FLOODED_MB_S: f64 = 20.0;

/// Prints how long acknowledgements take, alone and beside the flood.
pub fn bench(run: &Run) -> Done {
    let attempts = (run.of.number("--seconds", 20, 5) * 1_000 / EVERY_MS).max(1) as u32;
    let records = u64::from(attempts) * RECORDS;
    let job = Job { records, inputs: attempts, partitions: 4, is_made: true, ..Job::usual(0.001) };
    for way in run.ways() {
        let name = way.name();
        let cluster = Cluster::start(run, &format!("flood-{name}"))?;
        let control = Control::new(cluster.addresses(way))?;
        // The first one warms the nodes.
        trickled(&cluster, way, &control, &Job { records: 20 * RECORDS, inputs: 20, ..job })?;
        let mut alone = trickled(&cluster, way, &control, &job)?;
        say(&format!("{name:4} alone: acknowledged after {}", alone.line()));
        let flood = Job { is_made: false, inputs: FLOOD_INPUTS, ..Job::usual(FLOOD_GB) };
        let shuffle = control.start(&Job::usual(SAID_GB))?;
        let part = Part::all(&flood);
        let mut flooding = start_writer(&cluster.addresses_word(way), &shuffle, &flood, &part)?;
        flooding.go()?;
        let begin = now();
        rest(FLOWS_MS);
        let mut beside = trickled(&cluster, way, &control, &job)?;
        // An error if it has ended meanwhile.
        let mut whole = 0;
        while let Some(line) = flooding.line_within(Duration::from_millis(10))? {
            whole += u64::from(number_of(&line, "whole ").is_some());
        }
        let flowed = (now() - begin).as_secs_f64();
        flooding.kill();
        control.delete(shuffle.id)?;
        cluster.is_empty()?;
        let flooded = whole * flood.records / u64::from(FLOOD_INPUTS);
        let gb = flooded as f64 * flood.shape.record as f64 / 1e9;
        let mb_s = gb * 1e3 / flowed;
        if mb_s < FLOODED_MB_S {
            return Err(format!("the flood has written {mb_s:.1} MB a second: it was none").into());
        }
        let times = beside.quantile_ms(0.99) / alone.quantile_ms(0.99);
        say(&format!(
            "{name:4} beside a flood ({gb:.1} GB were acknowledged): acknowledged after {}; the 99th of a hundred {times:.2} times alone (goal {GOAL})",
            beside.line()
        ));
        drop(cluster);
        floor(run, way, (u64::from(attempts), mb_s), beside.quantile_ms(0.99))?;
    }
    Ok(())
}

/// The same of the floor, beside a flood of as many 10^6 bytes a second.
fn floor(run: &Run, way: Way, (trickles, mb_s): (u64, f64), ours_ms: f64) -> Done {
    let (flows, every) = (Duration::from_millis(FLOWS_MS), Duration::from_millis(EVERY_MS));
    let flood = Flood { bytes_s: (mb_s * 1e6) as u64, flows, trickles, records: RECORDS, every };
    let (mut alone, mut beside) = bench_flood(run, way, &flood)?;
    let name = way.name();
    say(&format!("floor {name:4} alone: {}", alone.line()));
    let floor_ms = beside.quantile_ms(0.99);
    say(&format!(
        "floor {name:4} beside a flood of as many bytes a second ({mb_s:.0} MB): {}; {:.2} times alone; ours takes {:.2} times as long",
        beside.line(),
        floor_ms / alone.quantile_ms(0.99),
        ours_ms / floor_ms
    ));
    Ok(())
}

/// A shuffle that trickles, from its start to its end: what its acknowledgements took.
fn trickled(cluster: &Cluster, way: Way, control: &Control, job: &Job) -> Got<Durations> {
    let nodes = cluster.addresses_word(way);
    let shuffle = control.start(job)?;
    let mut command = myself()?;
    command.args(trickle::words(&shuffle, &nodes, EVERY_MS, job));
    let (mut process, _) = ClientProcess::start(&mut command)?;
    process.go()?;
    let mut took = Durations::default();
    follow(&mut process, "acked ", &mut |microseconds| {
        took.push(Duration::from_micros(microseconds));
        Ok(())
    })?;
    control.seal(shuffle.id, job)?;
    let mut reader = start_reader(&nodes, &shuffle, job)?;
    reader.go()?;
    let line = follow(&mut reader, "read ", &mut |_| Ok(()))?;
    let (tally, _) = read(&line).ok_or("a reader says what is not understood")?;
    compare(tally, job.expected()?)?;
    control.delete(shuffle.id)?;
    Ok(took)
}
