//! All processes are killed at once and started again: how long until each shard is written, and whether all rows are there.

use crate::cluster::{Cluster, NODES};
use crate::fill::FROM;
use crate::load::Load;
use crate::{Done, Run, fill};
use bench_gauge::{Durations, now, say};

/// Kills everything a few times.
pub fn bench(run: &Run) -> Done {
    let shards = run.number("--shards", 1_000, 60);
    let rows = FROM..FROM + run.number("--keys", 200_000, 10_000);
    let mut cluster = Cluster::start(run, "partage", shards)?;
    let layout = cluster.layout()?;
    fill::write(&cluster.resp, &layout, rows.clone())?;
    let (mut times, mut lies) = (Durations::default(), Vec::new());
    for _ in 0..run.number("--times", 5, 1) {
        let load = Load::start(&cluster.resp, &[layout.number_of_each()])?;
        load.rounds(4)?;
        cluster.nodes.iter_mut().for_each(bench_gauge::Running::kill);
        cluster.coordinator.kill();
        let started = now();
        cluster.restart_coordinator()?;
        (0..NODES).try_for_each(|number| cluster.restart_node(number))?;
        cluster.settles()?;
        let settled = now() - started;
        load.rounds(4)?;
        let told = load.finish()?;
        told.show_failures(started);
        told.lies.iter().take(2).for_each(|lie| say(&format!("    {lie}")));
        let until = told.until_all(started, &|_| true).ok_or("a shard is not written again")?;
        say(&format!(
            "{shards} shards on {NODES} nodes: each is written after {:.2} s, all replicas serve after {:.2} s",
            until.as_secs_f64(),
            settled.as_secs_f64()
        ));
        times.push(until);
        lies.extend(told.lies);
        lies.extend(fill::lost(&cluster.resp, &cluster.layout()?, rows.clone())?);
    }
    let [min, median, max] = [0.0, 0.5, 1.0].map(|share| times.quantile_ms(share) / 1e3);
    say(&format!(
        "each shard is written after, s, min / median / max: {min:.2} / {median:.2} / {max:.2} (goal: 10)"
    ));
    fill::none_is_lost(&lies)
}
