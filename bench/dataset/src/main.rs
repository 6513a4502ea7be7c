//! Requests per core-second of the server's process: ours, Redis, nginx with a fixed reply, and Sequins.
//!
//! `bench-dataset [--keys N] [--seconds N] [--rounds N] [--only WORD] [--sequins PROGRAM] [--data FOLDER]`

mod data;
mod load;
mod servers;

use bench_gauge::{complain, option, say};
use data::{Draw, key};
use load::{Pressure, Protocol, Seen, http_length, run};
use servers::Running;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const MANY: usize = 100;

#[expect(clippy::disallowed_methods, reason = "a bench is a program of its own")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("serve") => serve(&words),
        _ => bench(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

type Done = Result<(), Box<dyn std::error::Error>>;

fn serve(words: &[String]) -> Done {
    match words {
        [_, folder, at, threads] => servers::serve(Path::new(folder), at.parse()?, threads.parse()?),
        _ => Err("serve FOLDER ADDRESS THREADS".into()),
    }
}

fn word<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

fn bench(words: &[String]) -> Done {
    let keys = option(words, "--keys", 4_000_000);
    let time = Duration::from_secs(option(words, "--seconds", 2));
    let rounds = option(words, "--rounds", 3);
    let only = word(words, "--only").unwrap_or("");
    let temporary = tempfile::tempdir()?;
    let folder = word(words, "--data").map_or_else(|| temporary.path().join("data"), PathBuf::from);
    servers::build(&folder, keys)?;
    let mut running: Vec<(&str, Running)> = vec![("partage", servers::ours(&folder, 1)?)];
    if only != "partage" {
        running.push(("nginx", servers::nginx(temporary.path())?));
        running.push(("redis", servers::redis(keys)?));
        if let Some(program) = word(words, "--sequins") {
            running.push(("sequins", servers::sequins(Path::new(program), temporary.path(), keys)?));
        }
    }
    let mut figures: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for what in ["GET depth 1", "GET depth 16", "multi-get of 100"] {
            for (name, server) in &running {
                let Some(seen) = one(what, name, server, keys, time)? else { continue };
                figures.entry((what, name)).or_default().push(told(what, name, seen));
            }
        }
    }
    for ((what, name), mut figures) in figures {
        figures.sort_by(f64::total_cmp);
        say(&format!("median  {what:17} {name:8} {:>12.0} a core-second", figures[figures.len() / 2]));
    }
    Ok(())
}

fn told(what: &str, name: &str, mut seen: Seen) -> f64 {
    let keys = if what.starts_with("multi") { MANY as u64 } else { 1 };
    let asked = (seen.answers * keys) as f64;
    let figure = asked / seen.server_seconds;
    say(&format!(
        "{what:17} {name:8} {figure:>12.0} a core-second {:>12.0} a second, server busy {:.2}, {}",
        asked / seen.seconds,
        seen.server_seconds / seen.seconds,
        seen.latency.line()
    ));
    figure
}

fn one(what: &str, name: &str, server: &Running, keys: u64, time: Duration) -> std::io::Result<Option<Seen>> {
    let get = |out: &mut Vec<u8>, draw: &mut Draw| {
        out.extend_from_slice(b"GET /bench/");
        out.extend_from_slice(&key(draw.below(keys)));
        out.extend_from_slice(b" HTTP/1.1\r\nhost: localhost\r\n\r\n");
    };
    let redis_get = |out: &mut Vec<u8>, draw: &mut Draw| {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
        out.extend_from_slice(&key(draw.below(keys)));
        out.extend_from_slice(b"\r\n");
    };
    let post = |out: &mut Vec<u8>, draw: &mut Draw| {
        out.extend_from_slice(
            b"POST /bench HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-partage-keys\r\n",
        );
        out.extend_from_slice(format!("content-length: {}\r\n\r\n", 20 * MANY).as_bytes());
        for _ in 0..MANY {
            out.extend_from_slice(&16_u32.to_le_bytes());
            out.extend_from_slice(&key(draw.below(keys)));
        }
    };
    let mget = |out: &mut Vec<u8>, draw: &mut Draw| {
        out.extend_from_slice(format!("*{}\r\n$4\r\nMGET\r\n", MANY + 1).as_bytes());
        for _ in 0..MANY {
            out.extend_from_slice(b"$16\r\n");
            out.extend_from_slice(&key(draw.below(keys)));
            out.extend_from_slice(b"\r\n");
        }
    };
    let http = |ask| Protocol { ask, begins: b"HTTP/1.1 200", length: &http_length };
    let fixed = |length: usize| move |bytes: &[u8]| (bytes.len() >= length).then_some(length);
    let (one_long, many_long) = (fixed(6 + 102), fixed(6 + MANY * 108));
    let protocol = match (name, what.starts_with("multi")) {
        ("redis", false) => Protocol { ask: &redis_get, begins: b"$100", length: &one_long },
        ("redis", true) => Protocol { ask: &mget, begins: b"*100", length: &many_long },
        (_, false) => http(&get),
        ("partage", true) => http(&post),
        _ => return Ok(None),
    };
    let depth = if what.ends_with("16") { 16 } else { 1 };
    let pressure = Pressure { connections: 32, depth, time };
    run(server.at, &protocol, pressure, &|| server.core_seconds()).map(Some)
}
