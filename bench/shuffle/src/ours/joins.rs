//! A fourth node joins while a shuffle is written: its share of what all nodes write to disk, from ten seconds after on.
//!
//! Before it joins little is written, and then much: so what it copies of slots that move to it is small beside what it is sent
//! anew, and is over when the counting begins.

use super::cluster::Cluster;
use super::control::Control;
use super::job::Job;
use super::shuffle::{compare, follow, read, start_reader, start_writer, written};
use super::writer::Part;
use crate::{Done, Run};
use bench_gauge::{now, rest, say};
use std::time::Duration;

/// Input partitions; those before are written before the node joins.
const INPUTS: u32 = 64;
const BEFORE: u32 = 3;
/// How long a node that has joined is waited for, in seconds.
const JOINED_S: u64 = 10;
/// How far from its even share it may be.
const GOAL: f64 = 0.1;
/// Bytes that clients write in a second when it has joined.
const BYTES_PER_S: u64 = 20_000_000;

/// Prints the share of each node.
pub fn bench(run: &Run) -> Done {
    // Before it joins, and after: then with the seconds that are not counted.
    let half_s = run.of.number("--seconds", 40, 16).max(JOINED_S + 2);
    let after = u64::from(INPUTS - BEFORE);
    let bytes = half_s * BYTES_PER_S * u64::from(INPUTS) / after;
    for way in run.ways() {
        let job = Job { inputs: INPUTS, is_made: false, ..Job::usual(bytes as f64 / 1e9) };
        let expected = job.expected()?;
        let mut cluster = Cluster::start(run, &format!("joins-{}", way.name()))?;
        let control = Control::new(cluster.addresses(way))?;
        let shuffle = control.start(&job)?;
        let slowly = job.bytes() * u64::from(BEFORE) / u64::from(INPUTS) / half_s;
        let first = Part { partitions: (0..BEFORE).collect(), bytes_per_s: slowly.max(1) };
        let mut writer = start_writer(&cluster.addresses_word(way), &shuffle, &job, &first)?;
        writer.go()?;
        let line = follow(&mut writer, "wrote ", &mut |_| Ok(()))?;
        let (mut again, _) = written(&line).ok_or("a writer says what is not understood")?;
        cluster.add_node()?;
        let joined = now();
        let number = cluster.nodes.len() - 1;
        cluster.nodes[number].listens()?;
        let part = Part { partitions: (BEFORE..INPUTS).collect(), bytes_per_s: BYTES_PER_S };
        let mut writer = start_writer(&cluster.addresses_word(way), &shuffle, &job, &part)?;
        writer.go()?;
        let counts = |cluster: &Cluster| {
            let nodes = 0..cluster.nodes.len();
            nodes.map(|node| cluster.written_bytes(node)).collect::<Vec<u64>>()
        };
        let mut before = None;
        let line = follow(&mut writer, "wrote ", &mut |_| {
            if before.is_none() && now() >= joined + Duration::from_secs(JOINED_S) {
                before = Some(counts(&cluster));
            }
            Ok(())
        })?;
        // What was acknowledged is on disk already; the kernel counts the rest of it a moment later.
        rest(200);
        let (more, _) = written(&line).ok_or("a writer says what is not understood")?;
        again += more;
        let before = before.ok_or("all was written within ten seconds: give more --seconds")?;
        let new: Vec<u64> = counts(&cluster).iter().zip(&before).map(|(now, before)| now - before).collect();
        let all = new.iter().sum::<u64>().max(1) as f64;
        control.seal(shuffle.id, &job)?;
        let mut reader = start_reader(&cluster.addresses_word(way), &shuffle, &job)?;
        reader.go()?;
        let line = follow(&mut reader, "read ", &mut |_| Ok(()))?;
        let (tally, _) = read(&line).ok_or("a reader says what is not understood")?;
        compare(tally, expected)?;
        control.delete(shuffle.id)?;
        cluster.is_empty()?;
        let shares: Vec<String> = new.iter().map(|new| format!("{:.3}", *new as f64 / all)).collect();
        let even = 1.0 / new.len() as f64;
        let of_last = new.last().copied().unwrap_or_default() as f64 / all / even;
        say(&format!(
            "{:4} a fourth node joined: from {JOINED_S} s later on the nodes have written {} of {:.2} GB; the fourth {of_last:.2} of its even share \
             (goal 1 ± {GOAL}); {again} attempts run again",
            way.name(),
            shares.join(", "),
            all / 1e9
        ));
    }
    Ok(())
}
