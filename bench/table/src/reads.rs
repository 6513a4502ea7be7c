//! `GET` at the leader, with all rows in memory: how many for a core-second of the servers, ours beside Redis and a loop that
//! answers without looking.

use crate::cluster::{Cluster, NODES};
use crate::peers::redis;
use crate::rows::key;
use crate::{Done, Run, fill, floor, resp};
use bench_gauge::client::{self, Draw, Pressure, Seen};
use bench_gauge::{Running, say};
use std::collections::BTreeMap;
use std::io::Result;
use std::net::SocketAddr;
use std::time::Duration;

const CONNECTIONS: usize = 32;

/// Measures reads of each server in turn, and prints a table of the medians.
pub fn bench(run: &Run) -> Done {
    let time = Duration::from_secs(run.number("--seconds", 3, 1));
    let rows = run.number("--keys", 100_000, 20_000);
    let ours = Cluster::start(run, "partage", run.number("--shards", 12, 12))?;
    let layout = ours.layout()?;
    fill::write(&ours.resp, &layout, 0..rows)?;
    let numbers = layout.numbers(rows);
    let redis = redis::start(&run.folder("redis")?, false)?;
    redis.as_ref().map_or(Ok(()), |redis| redis::fill(redis, rows))?;
    let floor = floor::start_reader()?;
    let mut figures: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    let of_any = |out: &mut Vec<u8>, draw: &mut Draw, _| resp::get(out, &key(draw.below(rows)));
    let of_leader = |out: &mut Vec<u8>, draw: &mut Draw, line: usize| {
        let numbers = &numbers[line % NODES];
        resp::get(out, &key(numbers[draw.below(numbers.len() as u64) as usize]));
    };
    for _ in 0..run.number("--rounds", 5, 1) {
        for depth in [1, 16] {
            let press = |servers: Vec<SocketAddr>, ask, server: &dyn Fn() -> f64| -> Result<Seen> {
                let lines = (0..CONNECTIONS).map(|line| vec![servers[line % servers.len()]]).collect();
                client::run(&resp::gets(ask), &Pressure { lines, depth, time }, server)
            };
            let mut seen = vec![("partage", press(ours.resp.clone(), &of_leader, &|| ours.core_seconds())?)];
            seen.push(("floor", press(vec![floor.at], &of_any, &|| floor.core_seconds())?));
            if let Some(redis) = &redis {
                seen.push(("redis", press(vec![redis.at], &of_any, &|| Running::core_seconds(redis))?));
            }
            for (name, mut seen) in seen {
                let figure = seen.answers as f64 / seen.server_seconds;
                say(&format!(
                    "GET depth {depth:2} {name:8} {figure:>9.0} a core-second, {:>9.0} a second, {:.2} cores, {}",
                    seen.answers as f64 / seen.seconds,
                    seen.server_seconds / seen.seconds,
                    seen.latency.line()
                ));
                figures.entry((depth, name)).or_default().push(figure);
            }
        }
    }
    let medians: BTreeMap<_, _> = figures
        .into_iter()
        .map(|(of, mut figures)| {
            figures.sort_by(f64::total_cmp);
            (of, figures[figures.len() / 2])
        })
        .collect();
    for ((depth, name), figure) in &medians {
        let ours = medians[&(*depth, "partage")];
        say(&format!(
            "median  GET depth {depth:2} {name:8} {figure:>9.0} a core-second, ours is {:.2} times that",
            ours / figure
        ));
    }
    say("goal: 0.6 times redis at both depths");
    fill::none_is_lost(&fill::lost(&ours.resp, &layout, 0..rows)?)
}
