//! Writes of 100 bytes to three disks: how many for a core-second of all server processes, ours beside etcd, PostgreSQL, Redis
//! and the floor.

use crate::cluster::{Cluster, NODES};
use crate::peers::etcd::Etcd;
use crate::peers::postgres::{self, Postgres};
use crate::peers::redis;
use crate::rows::{key, value};
use crate::{Done, Run, floor, median, resp};
use bench_gauge::client::{self, Draw, Pressure, Protocol, Seen};
use bench_gauge::{Running, say};
use std::collections::BTreeMap;
use std::io::Result;
use std::net::SocketAddr;
use std::time::Duration;

/// Connections, requests at a time on each, and how that is called.
const SHAPES: [(usize, usize, &str); 3] =
    [(32, 16, "32 connections, 16 deep"), (1, 1, "1 connection, 1 deep"), (64, 1, "64 connections, 1 deep")];

/// Ours, where each write goes to the node that leads its shard.
const OURS: &str = "partage";
/// The least that any server must do: see `floor.rs`.
const FLOOR: &str = "floor";

/// All servers that are there.
struct Servers {
    ours: Cluster,
    /// The numbers of the keys that each node leads.
    numbers: Vec<Vec<u64>>,
    floor: Vec<Running>,
    etcd: Option<Etcd>,
    postgres: Option<Postgres>,
    redis: Option<Running>,
    keys: u64,
    time: Duration,
}

/// Measures writes to each server in turn, and prints a table of the medians.
pub fn bench(run: &Run) -> Done {
    let servers = Servers::start(run)?;
    let mut figures: BTreeMap<(usize, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for _ in 0..run.number("--rounds", 5, 1) {
        for (shape, (connections, depth, what)) in SHAPES.into_iter().enumerate() {
            for name in [OURS, "any node", FLOOR, "etcd", "postgres", "redis"] {
                let Some(mut seen) = servers.one(name, connections, depth)? else { continue };
                let a_second = seen.answers as f64 / seen.seconds;
                let a_core_second = seen.answers as f64 / seen.server_seconds;
                say(&format!(
                    "{what:24} {name:9} {a_second:>8.0} a second, {a_core_second:>8.0} a core-second ({:>6.1} µs each), \
                     {:.2} cores, {}",
                    1e6 / a_core_second,
                    seen.server_seconds / seen.seconds,
                    seen.latency.line()
                ));
                figures.entry((shape, name)).or_default().push((a_core_second, a_second));
            }
        }
    }
    tell(figures);
    say("goals, 16 deep, a core-second: 10 times etcd, 0.5 times the floor");
    Ok(())
}

fn tell(figures: BTreeMap<(usize, &str), Vec<(f64, f64)>>) {
    let medians: BTreeMap<_, _> = figures
        .into_iter()
        .map(|(of, figures)| {
            let (cores, seconds) = figures.into_iter().unzip();
            (of, (median(cores), median(seconds)))
        })
        .collect();
    for ((shape, name), (a_core_second, a_second)) in &medians {
        let what = SHAPES[*shape].2;
        let (ours, ours_a_second) = medians.get(&(*shape, OURS)).copied().unwrap_or((f64::NAN, f64::NAN));
        say(&format!(
            "median  {what:24} {name:9} {a_core_second:>8.0} a core-second, ours is {:.2} times that; \
             {a_second:>8.0} a second, ours is {:.2} times that",
            ours / a_core_second,
            ours_a_second / a_second
        ));
    }
}

impl Servers {
    fn start(run: &Run) -> Result<Servers> {
        let keys = run.number("--keys", 1_000_000, 100_000);
        let ours = Cluster::start(run, "partage", run.number("--shards", 12, 12))?;
        let numbers = ours.layout()?.numbers(keys);
        let wants = |name: &str| run.measures(name);
        Ok(Servers {
            ours,
            numbers,
            floor: if wants(FLOOR) { floor::start(run)? } else { Vec::new() },
            etcd: if wants("etcd") { Etcd::start(run)? } else { None },
            postgres: if wants("postgres") { Postgres::start(run)? } else { None },
            redis: if wants("redis") { redis::start(&run.folder("redis")?, true)? } else { None },
            keys,
            time: Duration::from_secs(run.number("--seconds", 5, 1)),
        })
    }

    fn one(&self, name: &str, connections: usize, depth: usize) -> Result<Option<Seen>> {
        let of_any = |draw: &mut Draw| draw.below(self.keys);
        let resp = |number: u64, out: &mut Vec<u8>| resp::set(out, &key(number), &value(number));
        match name {
            OURS => {
                let ask = |out: &mut Vec<u8>, draw: &mut Draw, line: usize| {
                    let numbers = &self.numbers[line % NODES];
                    resp(numbers[draw.below(numbers.len() as u64) as usize], out);
                };
                let lines = self.lines_to_ours(connections);
                self.press(&resp::sets(&ask), lines, depth, &|| self.ours.core_seconds()).map(Some)
            }
            "any node" if depth > 1 => {
                let ask = |out: &mut Vec<u8>, draw: &mut Draw, _| resp(of_any(draw), out);
                let lines = self.lines_to_ours(connections);
                self.press(&resp::sets(&ask), lines, depth, &|| self.ours.core_seconds()).map(Some)
            }
            FLOOR if !self.floor.is_empty() => {
                let ask = |out: &mut Vec<u8>, draw: &mut Draw, _| {
                    let number = of_any(draw);
                    out.extend_from_slice(&key(number));
                    out.extend_from_slice(&value(number));
                };
                let lines = vec![self.floor.iter().map(|node| node.at).collect(); connections];
                let server = || self.floor.iter().map(Running::core_seconds).sum();
                self.press(&floor::rows(&ask), lines, depth, &server).map(Some)
            }
            "etcd" => {
                let Some(etcd) = &self.etcd else { return Ok(None) };
                etcd.run(connections, depth, self.keys, self.time).map(Some)
            }
            "postgres" => {
                let Some(servers) = &self.postgres else { return Ok(None) };
                let ask = |out: &mut Vec<u8>, draw: &mut Draw, _| {
                    let number = of_any(draw);
                    postgres::put(out, &key(number), &value(number));
                };
                let lines = vec![vec![servers.at()]; connections];
                self.press(&postgres::writes(&ask), lines, depth, &|| servers.core_seconds()).map(Some)
            }
            "redis" => {
                let Some(redis) = &self.redis else { return Ok(None) };
                let ask = |out: &mut Vec<u8>, draw: &mut Draw, _| resp(of_any(draw), out);
                let lines = vec![vec![redis.at]; connections];
                self.press(&resp::sets(&ask), lines, depth, &|| redis.core_seconds()).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn lines_to_ours(&self, connections: usize) -> Vec<Vec<SocketAddr>> {
        (0..connections).map(|line| vec![self.ours.resp[line % NODES]]).collect()
    }

    fn press(
        &self,
        protocol: &Protocol<'_>,
        lines: Vec<Vec<SocketAddr>>,
        depth: usize,
        server: &dyn Fn() -> f64,
    ) -> Result<Seen> {
        client::run(protocol, &Pressure { lines, depth, time: self.time }, server)
    }
}
