//! Three nodes go from one version to the next while all of them are asked as much as they can answer.

use crate::cluster::{Cluster, Clusters, NODES};
use crate::crowd::{Asker, Question, Seen, asked_around, say_first};
use crate::question::{Get, Post};
use crate::servers;
use crate::{Done, Run};
use bench_gauge::say;
use std::io::Result;

const CONNECTIONS: usize = 30;
/// Of which ask for several keys at a time, where the server can be asked so.
const ASK_MANY: usize = 6;
/// Keys of such a request: they are on all nodes, and answered by one version or the read is mixed.
const KEYS: usize = 10;

/// Failed and mixed reads, and how long answers take before, while the version is loaded, and in the switch.
pub fn bench(told: &Run) -> Done {
    let mut clusters = Clusters::start(told)?;
    for round in 1..=told.number("--rounds", 2) as u32 {
        // Nodes look for new versions only when they are told to.
        told.write_version(round + 1)?;
        for cluster in &mut clusters.clusters {
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
    let (seen, told_at) = asked_around(askers, 4, 3, || {
        cluster.hang_up()?;
        cluster.nodes.iter_mut().try_for_each(|node| servers::serves(node, &told.data, version + 1))
    })?;
    tell(cluster.name, &seen, told_at, version);
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
    say_first(seen.failed.first(), told_at, "the nodes were told");
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
