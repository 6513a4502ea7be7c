//! Redis: one process, without replicas.

use super::program;
use crate::resp;
use crate::rows::{key, value};
use bench_gauge::{Running, free};
use std::io::{Error, Result};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Starts one in a folder, that syncs its file of appended commands at each write, or keeps everything in memory only.
pub fn start(folder: &Path, is_durable: bool) -> Result<Option<Running>> {
    let Some(program) = program("redis-server", "redis-server") else { return Ok(None) };
    let at = free()?;
    let port = at.port().to_string();
    let append = if is_durable { "yes" } else { "no" };
    let mut command = Command::new(program);
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", append]);
    command.args(["--appendfsync", "always", "--dir"]).arg(folder);
    Running::start(&mut command, at).map(Some)
}

/// Puts so many rows into it.
pub fn fill(redis: &Running, rows: u64) -> Result<()> {
    let mut connection = resp::Connection::open(redis.at, Duration::from_secs(20))?;
    let numbers: Vec<u64> = (0..rows).collect();
    for group in numbers.chunks(500) {
        let mut out = Vec::new();
        group.iter().for_each(|number| resp::set(&mut out, &key(*number), &value(*number)));
        connection.send(&out)?;
        for _ in group {
            match connection.answer()? {
                resp::Answer::Done => {}
                other => return Err(Error::other(format!("redis: {other:?}"))),
            }
        }
    }
    Ok(())
}
