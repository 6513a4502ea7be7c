//! How long one durable write takes, one after the other: ours on three disks, the floor on the same, Redis on one, and one
//! synced write of the log.

use crate::cluster::Cluster;
use crate::peers::redis;
use crate::rows::{VALUE_BYTES, key, value};
use crate::{Done, Run, floor, median, resp};
use bench_gauge::client::{self, Draw, Pressure, Protocol};
use bench_gauge::{Durations, now, say};
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::node::exchange::ReplicaKey;
use partage_journal::RealDisk;
use partage_log::{Log, LogSettings, Record};
use partage_service::table::replication::{Entry, EntryKind, LogPosition, LogWrite};
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
    let floor = floor::start_chain(run)?;
    let mut log = Alone::open(run)?;
    let ask_ours = |out: &mut Vec<u8>, draw: &mut Draw, _: usize| {
        let number = numbers[0][draw.below(numbers[0].len() as u64) as usize];
        resp::set(out, &key(number), &value(number));
    };
    let ask_floor = |out: &mut Vec<u8>, draw: &mut Draw, _: usize| {
        let number = draw.below(KEYS);
        out.extend_from_slice(&key(number));
        out.extend_from_slice(&value(number));
    };
    let names = ["partage", "the floor", "redis", "the log alone"];
    let mut medians = [const { Vec::new() }; 4];
    for _ in 0..run.number("--rounds", 5, 1) {
        let redis = redis.as_ref().map(|redis| depth_1(redis.at, &resp::sets(&ask_ours), time));
        let seen = [
            Some(depth_1(ours.resp[0], &resp::sets(&ask_ours), time)?),
            Some(depth_1(floor[0].at, &floor::rows(&ask_floor), time)?),
            redis.transpose()?,
            Some(log.run(time)?),
        ];
        for ((name, mut latency), medians) in names.into_iter().zip(seen).zip(&mut medians) {
            let Some(latency) = &mut latency else { continue };
            say(&format!("{name:14} {:>7} writes, {}", latency.len(), latency.line()));
            medians.push(latency.quantile_ms(0.5));
        }
    }
    let [ours, floor, redis, log] = medians.map(median);
    say(&format!(
        "median of p50: partage {ours:.3} ms, the floor {floor:.3} ms, redis {redis:.3} ms, the log alone {log:.3} ms"
    ));
    let of_floor = ours / floor;
    say(&format!(
        "ours is {:.2} of redis (goal 0.25), {:.2} of the log (goal 3), {of_floor:.2} of the floor",
        ours / redis,
        ours / log
    ));
    say(&format!("the floor is {:.2} of redis, {:.2} of the log", floor / redis, floor / log));
    Ok(())
}

fn depth_1(at: SocketAddr, protocol: &Protocol<'_>, time: Duration) -> Result<Durations> {
    let pressure = Pressure { lines: vec![vec![at]], depth: 1, time };
    client::run(protocol, &pressure, &|| 0.0).map(|seen| seen.latency)
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
