//! Three nodes go from one version to the next while all of them are asked as much as they can answer.

use crate::cluster::{Cluster, NODES, zookeeper};
use crate::crowd::{Asker, Question, Seen, run};
use crate::question::{Get, Post};
use crate::servers::rest;
use crate::{Done, Run};
use bench_gauge::{now, say};
use std::io::Result;
use std::sync::atomic::{AtomicBool, Ordering};

const CONNECTIONS: usize = 30;
/// Of which ask for several keys at a time, where the server can be asked so.
const ASK_MANY: usize = 6;
/// Keys of such a request: they are on all nodes, and answered by one version or the read is mixed.
const KEYS: usize = 10;

/// Failed and mixed reads, and how long answers take before, while the version is loaded, and in the switch.
pub fn bench(told: &Run) -> Done {
    let zookeeper = zookeeper(&told.folder("zookeeper")?)?;
    told.write_version(1)?;
    let (folder, source) = (told.folder("nodes")?, told.source()?);
    let mut clusters = vec![Cluster::ours(&folder, &source, zookeeper.at, told.number("--threads", 0))?];
    if let Some(program) = &told.sequins {
        clusters.push(Cluster::sequins(program, &folder, &source, zookeeper.at)?);
    }
    for cluster in &mut clusters {
        cluster.serves(&told.data, 1)?;
    }
    for round in 1..=told.number("--rounds", 2) as u32 {
        // Nobody looks before he is told to.
        told.write_version(round + 1)?;
        for cluster in &mut clusters {
            one(cluster, told, round)?;
        }
    }
    Ok(())
}

fn one(cluster: &mut Cluster, told: &Run, version: u32) -> Result<()> {
    let (get, post) = (Get(&told.data), Post(&told.data, KEYS));
    let at = cluster.at();
    let asker = |number: usize| {
        let is_many = cluster.name == "partage" && number < ASK_MANY;
        let question: &dyn Question = if is_many { &post } else { &get };
        Asker { question, servers: vec![at[number % NODES]], depth: 1, asks_again: false }
    };
    let askers: Vec<Asker<'_>> = (0..CONNECTIONS).map(asker).collect();
    let (began, is_over) = (now(), AtomicBool::new(false));
    let micros = || (now() - began).as_micros() as u32;
    let (seen, told_at) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| run(askers, began, &|| is_over.load(Ordering::Relaxed)));
        rest(4_000);
        let told_at = micros();
        let switched = cluster.hang_up().and_then(|()| {
            cluster.nodes.iter_mut().try_for_each(|node| node.serves(&told.data, version + 1))
        });
        rest(3_000);
        is_over.store(true, Ordering::Relaxed);
        let seen = asking.join().map_err(|_| std::io::Error::other("who asks has panicked"))?;
        switched.map(|()| (seen, told_at))
    })?;
    tell(cluster.name, &seen?, told_at, version);
    Ok(())
}

fn tell(name: &str, seen: &Seen, told_at: u32, version: u32) {
    let answers = &seen.answers;
    let first = answers.iter().find(|one| one.version > version).map_or(told_at, |one| one.at);
    let last = answers.iter().rev().find(|one| one.version == version).map_or(first, |one| one.at);
    let mixed = seen.failed.iter().filter(|(_, _, what)| what.starts_with("mixed")).count();
    say(&format!(
        "switch {name:8} {} answers, failed {}, mixed {mixed}, back to an earlier version {}; the nodes changed within {:.0} ms",
        answers.len(),
        seen.failed.len() - mixed,
        seen.backward(),
        f64::from(last.saturating_sub(first)) / 1e3
    ));
    if let Some((at, _, what)) = seen.failed.first() {
        say(&format!(
            "       the first that failed, {} ms after the nodes were told: {what}",
            at.wrapping_sub(told_at) / 1_000
        ));
    }
    let mut steady = seen.between(1_000_000, told_at);
    let base = steady.quantile_ms(0.99);
    let switch_end = last.max(first + 1_000_000);
    for (what, mut took) in [
        ("steady", steady),
        ("while it is loaded", seen.between(told_at, first)),
        ("in the switch", seen.between(first, switch_end)),
        ("from the order to its end", seen.between(told_at, switch_end)),
    ] {
        let p99 = took.quantile_ms(0.99);
        say(&format!(
            "       {what:25} p99 is {:.2} times that of steady; {} answers, {}",
            p99 / base,
            took.len(),
            took.line()
        ));
    }
}
