//! How long one durable write takes, one after the other: ours on three disks, Redis on one, and one synced write of the log.

use crate::cluster::Cluster;
use crate::peers::redis;
use crate::rows::{VALUE_BYTES, key, value};
use crate::{Done, Run, resp};
use bench_gauge::client::{self, Draw, Pressure};
use bench_gauge::{Durations, now, say};
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_core::service::table::replication::{Entry, EntryKind, LogPosition, LogWrite};
use partage_journal::RealDisk;
use partage_log::{Log, LogSettings, Record};
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Keys that are written.
const KEYS: u64 = 100_000;
/// Bytes around a value in an entry of a table: its key, version, time, lengths.
const AROUND_BYTES: usize = 45;

/// Prints the medians of the rounds.
pub fn bench(run: &Run) -> Done {
    let time = Duration::from_secs(run.number("--seconds", 3, 1));
    let ours = Cluster::start(run, "partage", run.number("--shards", 12, 12))?;
    let numbers = ours.layout()?.numbers(KEYS);
    let redis = redis::start(&run.folder("redis")?, true)?;
    let mut log = Alone::open(run)?;
    let mut medians = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..run.number("--rounds", 5, 1) {
        let ask = |out: &mut Vec<u8>, draw: &mut Draw, _| {
            let number = numbers[0][draw.below(numbers[0].len() as u64) as usize];
            resp::set(out, &key(number), &value(number));
        };
        let mut seen = [Some(depth_1(ours.resp[0], &ask, time)?), None, Some(log.run(time)?)];
        if let Some(redis) = &redis {
            seen[1] = Some(depth_1(redis.at, &ask, time)?);
        }
        let names = ["partage", "redis", "the log alone"];
        for ((name, mut latency), medians) in names.into_iter().zip(seen).zip(&mut medians) {
            let Some(latency) = &mut latency else { continue };
            say(&format!("{name:14} {:>7} writes, {}", latency.len(), latency.line()));
            medians.push(latency.quantile_ms(0.5));
        }
    }
    let [ours, redis, log] = medians.map(|mut medians: Vec<f64>| {
        medians.sort_by(f64::total_cmp);
        medians.get(medians.len() / 2).copied().unwrap_or(f64::NAN)
    });
    say(&format!("median of p50: partage {ours:.3} ms, redis {redis:.3} ms, the log alone {log:.3} ms"));
    say(&format!("ours is {:.2} of redis (goal 0.25), {:.2} of the log (goal 3)", ours / redis, ours / log));
    Ok(())
}

fn depth_1(
    at: SocketAddr,
    ask: &dyn Fn(&mut Vec<u8>, &mut Draw, usize),
    time: Duration,
) -> Result<Durations> {
    let pressure = Pressure { lines: vec![vec![at]], depth: 1, time };
    client::run(&resp::sets(ask), &pressure, &|| 0.0).map(|seen| seen.latency)
}

/// A log with nothing before it and behind it.
struct Alone {
    log: Log,
    replica: ReplicaKey,
    index: u64,
}

impl Alone {
    fn open(run: &Run) -> Result<Alone> {
        let opened = Log::open(Arc::new(RealDisk), &run.folder("log")?, LogSettings::default());
        let (log, _) = opened.map_err(Error::other)?;
        let keyspace = KeyspaceName::new("bench").map_err(Error::other)?;
        Ok(Alone {
            log,
            replica: ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(1) },
            index: 0,
        })
    }

    fn run(&mut self, time: Duration) -> Result<Durations> {
        let (begin, mut latency) = (now(), Durations::default());
        while now() - begin < time {
            self.index += 1;
            let position = LogPosition { epoch: Epoch(1), index: self.index };
            let kind = EntryKind::Write(vec![7; VALUE_BYTES + AROUND_BYTES].into());
            let append = Record::Write(LogWrite::Append(vec![Entry { position, kind }]));
            let sent = now();
            self.log.write(&[(self.replica.clone(), append)]).map_err(Error::other)?;
            latency.push(now() - sent);
        }
        Ok(latency)
    }
}
