//! One server with all keys: requests per core-second of ours, Redis, nginx with a fixed reply, Sequins, and a loop of
//! two system calls.

use crate::crowd::{self, Asker, Question};
use crate::data::Data;
use crate::question::{Get, MANY, Post, RedisGet, RedisMget};
use crate::servers;
use crate::{Done, Run};
use bench_gauge::client::{Draw, Pressure, Protocol, run};
use bench_gauge::{Durations, Running, now, say};
use std::collections::BTreeMap;
use std::io::Result;
use std::time::Duration;

const CONNECTIONS: usize = 32;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Depth1,
    Depth16,
    Many,
}

impl Row {
    const ALL: [(Row, &str); 3] =
        [(Row::Depth1, "GET depth 1"), (Row::Depth16, "GET depth 16"), (Row::Many, "multi-get of 100")];

    fn depth(self) -> usize {
        if self == Row::Depth16 { 16 } else { 1 }
    }

    fn keys(self) -> usize {
        if self == Row::Many { MANY } else { 1 }
    }
}

/// What one server did for a while.
struct Seen {
    answers: u64,
    server_seconds: f64,
    seconds: f64,
    latency: Durations,
}

/// Measures every server in turn, and prints a table of the medians.
pub fn bench(told: &Run) -> Done {
    let (time, rounds) = (Duration::from_secs(told.number("--seconds", 2)), told.number("--rounds", 3));
    let store = told.folder("store")?;
    servers::build(&store, &told.data)?;
    let mut running: Vec<(&str, Running)> = vec![("partage", servers::ours(&store, 1)?)];
    if !told.is_alone() {
        running.push(("floor", crate::floor::start()?));
        running.push(("nginx", servers::nginx(&told.folder("nginx")?)?));
        running.push(("redis", servers::redis(&told.data)?));
        if let Some(program) = &told.sequins {
            told.write_version(1)?;
            let mut sequins = servers::sequins(program, &told.folder("sequins")?, &told.source()?)?;
            servers::serves(&mut sequins, &told.data, 1)?;
            running.push(("sequins", sequins));
        }
    }
    let mut figures: BTreeMap<(Row, &str), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for (row, what) in Row::ALL {
            for (name, server) in &running {
                let Some(seen) = one(row, name, server, &told.data, time)? else { continue };
                figures.entry((row, name)).or_default().push(figure(row, what, name, seen));
            }
        }
    }
    tell(figures);
    Ok(())
}

fn figure(row: Row, what: &str, name: &str, mut seen: Seen) -> f64 {
    let asked = (seen.answers * row.keys() as u64) as f64;
    let figure = asked / seen.server_seconds;
    say(&format!(
        "{what:17} {name:8} {figure:>12.0} a core-second {:>12.0} a second, server busy {:.2}, {}",
        asked / seen.seconds,
        seen.server_seconds / seen.seconds,
        seen.latency.line()
    ));
    figure
}

fn tell(mut figures: BTreeMap<(Row, &str), Vec<f64>>) {
    for figures in figures.values_mut() {
        figures.sort_by(f64::total_cmp);
    }
    let median = |figures: &Vec<f64>| figures[figures.len() / 2];
    for (row, what) in Row::ALL {
        let ours = figures.get(&(row, "partage")).map_or(f64::NAN, median);
        for ((_, name), figures) in figures.iter().filter(|((of, _), _)| *of == row) {
            let figure = median(figures);
            say(&format!(
                "median  {what:17} {name:8} {figure:>12.0} a core-second, ours is {:.2} times that",
                ours / figure
            ));
        }
    }
}

fn one(row: Row, name: &str, server: &Running, data: &Data, time: Duration) -> Result<Option<Seen>> {
    let (get, post) = (Get(data), Post(data, MANY));
    let (redis_get, mget) = (RedisGet(data), RedisMget(data, MANY));
    let question: &dyn Question = match (name, row) {
        ("redis", Row::Many) => &mget,
        ("redis", _) => &redis_get,
        ("partage" | "floor", Row::Many) => &post,
        (_, Row::Many) => return Ok(None),
        _ => &get,
    };
    // Servers that answer all the same are asked as one that gives values of one length.
    let is_fixed = matches!(name, "nginx" | "floor");
    match data.is_alike() || is_fixed {
        true => alike(row, name, server, question, time).map(Some),
        false => each(row, server, question, time).map(Some),
    }
}

fn alike(row: Row, name: &str, server: &Running, question: &dyn Question, time: Duration) -> Result<Seen> {
    let ask = |out: &mut Vec<u8>, draw: &mut Draw, _| {
        question.ask(out, draw);
    };
    let begins: &[u8] = match (name, row) {
        ("redis", Row::Many) => b"*100",
        ("redis", _) => b"$100",
        _ => b"HTTP/1.1 200",
    };
    let length = |bytes: &[u8]| question.length(bytes);
    let protocol = Protocol { ask: &ask, begins, length: &length, greet: &|_| Ok(()) };
    let pressure = Pressure { lines: vec![vec![server.at]; CONNECTIONS], depth: row.depth(), time };
    let seen = run(&protocol, &pressure, &|| server.core_seconds())?;
    let bench_gauge::client::Seen { answers, latency, server_seconds, seconds } = seen;
    Ok(Seen { answers, server_seconds, seconds, latency })
}

/// Looks at every answer.
fn each(row: Row, server: &Running, question: &dyn Question, time: Duration) -> Result<Seen> {
    let asker = Asker { question, servers: vec![server.at], depth: row.depth(), asks_again: false };
    let (began, before) = (now(), server.core_seconds());
    let seen = crowd::run(vec![asker; CONNECTIONS], began, &|| now() - began >= time)?;
    let (server_seconds, seconds) = (server.core_seconds() - before, (now() - began).as_secs_f64());
    if let Some((_, _, what)) = seen.failed.first() {
        return Err(std::io::Error::other(what.clone()));
    }
    Ok(Seen { answers: seen.answers.len() as u64, server_seconds, seconds, latency: seen.of(|_| true) })
}
