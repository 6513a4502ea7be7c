//! Three nodes that each have two thirds of the keys; any of them is asked for any key.

use crate::cluster::{Cluster, Clusters, NODES};
use crate::crowd::{Asker, run};
use crate::question::Get;
use crate::{Done, Run};
use bench_gauge::{now, say};
use std::time::Duration;

const CONNECTIONS: usize = 30;

/// Requests per core-second of all three processes, and how long answers take, of ours and of Sequins.
pub fn bench(told: &Run) -> Done {
    let (time, rounds) = (Duration::from_secs(told.number("--seconds", 3)), told.number("--rounds", 3));
    let Clusters { clusters, .. } = &Clusters::start(told)?;
    // Of each cluster and round: a core-second's requests, and the 99th of a hundred answers in milliseconds.
    let mut figures = vec![Vec::new(); clusters.len()];
    for _ in 0..rounds {
        for (cluster, figures) in clusters.iter().zip(&mut figures) {
            figures.push(one(cluster, told, time)?);
        }
    }
    let medians: Vec<[f64; 2]> =
        figures.iter().map(|figures| [0, 1].map(|which| median(figures, which))).collect();
    for (cluster, [rate, p99]) in clusters.iter().zip(&medians) {
        let [ours, our_p99] = medians[0];
        say(&format!(
            "median  {:8} {rate:>9.0} a core-second, ours is {:.2} times that; p99 {p99:.2} ms, ours is {:.2} times that",
            cluster.name,
            ours / rate,
            our_p99 / p99
        ));
    }
    Ok(())
}

fn median(figures: &[[f64; 2]], which: usize) -> f64 {
    let mut all: Vec<f64> = figures.iter().map(|figures| figures[which]).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn one(cluster: &Cluster, told: &Run, time: Duration) -> std::io::Result<[f64; 2]> {
    let question = Get(&told.data);
    let at = cluster.at();
    let asker = |number: usize| {
        let servers = vec![at[number % NODES]];
        Asker { question: &question, servers, depth: 1, asks_again: false }
    };
    let warm = now();
    run((0..CONNECTIONS).map(asker).collect(), warm, &|| now() - warm > Duration::from_millis(500))?;
    let (began, before) = (now(), cluster.core_seconds());
    let seen = run((0..CONNECTIONS).map(asker).collect(), began, &|| now() - began > time)?;
    let (used, seconds) = (cluster.core_seconds() - before, (now() - began).as_secs_f64());
    let mut took = seen.of(|_| true);
    let rate = seen.answers.len() as f64 / used;
    say(&format!(
        "any node {:8} {rate:>9.0} a core-second {:>9.0} a second, servers busy {:.2}, failed {}, {}",
        cluster.name,
        seen.answers.len() as f64 / seconds,
        used / seconds,
        seen.failed.len(),
        took.line()
    ));
    if let Some((_, _, what)) = seen.failed.first() {
        say(&format!("         the first that failed: {what}"));
    }
    Ok([rate, took.quantile_ms(0.99)])
}
