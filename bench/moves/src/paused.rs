//! A worker that is stopped beyond its lease, as by a long collection of garbage or a moved virtual machine,
//! and then goes on: does it believe to own what another was given meanwhile?
//!
//! Workers are processes of their own. Each asks for all its shards in an endless loop, and notes when each was
//! believed to be its own, by the clock of the machine, which they share.

use crate::beliefs::{Beliefs, Owner};
use crate::cluster::{self, Copies, UnderWay};
use bench_gauge::{Admin, option, say};
use partage_worker::{Access, Admission};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

/// Between two rounds of a worker over its shards.
const PERIOD: Duration = Duration::from_millis(1);

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}

/// Nanoseconds of Unix time: the same clock for all processes of the machine.
#[expect(clippy::disallowed_methods, reason = "the one wall clock of this program")]
fn wall_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// `bench-moves worker NUMBER COORDINATOR --shards N`: works until a line comes in, then says what it
/// believed.
pub fn worker(words: &[String]) -> Result<(), String> {
    let usage = || "usage: bench-moves worker NUMBER COORDINATOR --shards N".to_owned();
    let number: usize = words.get(2).and_then(|word| word.parse().ok()).ok_or_else(usage)?;
    let coordinator: SocketAddr = words.get(3).and_then(|word| word.parse().ok()).ok_or_else(usage)?;
    let slots = option(words, "--shards", 300) as u32;
    runtime()?.block_on(async move {
        let worker = cluster::worker(number, coordinator, Arc::new(UnderWay::default())).await?;
        let (keyspace, keys) = (cluster::keyspace()?, cluster::keys(slots));
        let mut beliefs = Beliefs::default();
        let mut line = String::new();
        let mut input = BufReader::new(tokio::io::stdin());
        let mut ended = std::pin::pin!(input.read_line(&mut line));
        loop {
            for key in &keys {
                if let Admission::Serve(guard) = worker.enter(&keyspace, key, Access::Write) {
                    // A pause between this and the question makes the answer no, so the moment is one of belief.
                    let at = wall_nanos();
                    if guard.mine_all_along() {
                        let owner = Owner { shard: guard.shard().0, epoch: guard.epoch().0, node: number };
                        beliefs.served(owner, at, at);
                    }
                }
            }
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
        for (owner, (first, last)) in beliefs.iter() {
            say(&format!("{} {} {first} {last}", owner.shard, owner.epoch));
        }
        worker.shutdown().await;
        Ok(())
    })
}

/// Stops one of three workers for `--pause-ms` milliseconds, and fails if a shard had two owners at once.
pub fn run(words: &[String]) -> Result<(), String> {
    let slots = option(words, "--shards", 300) as u32;
    let pause = Duration::from_millis(option(words, "--pause-ms", 8_000));
    let program = words.first().ok_or("this program has no name")?.clone();
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    runtime()?.block_on(async move {
        let coordinator = cluster::coordinator(dir.path()).await?;
        let admin = Admin::new(coordinator.address());
        cluster::create(&admin, slots, Copies { replicas: 1, durable: false }).await?;
        let mut workers = Vec::new();
        for number in 0..3 {
            workers.push(start(&program, number, coordinator.address(), slots)?);
        }
        tokio::time::sleep(Duration::from_secs(4)).await;
        let paused_at = wall_nanos();
        signal(&workers[0], "-STOP").await?;
        tokio::time::sleep(pause).await;
        signal(&workers[0], "-CONT").await?;
        let woken_at = wall_nanos();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let mut beliefs = Beliefs::default();
        for (node, worker) in workers.into_iter().enumerate() {
            beliefs.append(&heard(worker, node).await?);
        }
        coordinator.stop().await;
        tell(&beliefs, slots, paused_at, woken_at)
    })
}

fn start(program: &str, number: usize, coordinator: SocketAddr, slots: u32) -> Result<Child, String> {
    Command::new(program)
        .args(["worker", &number.to_string(), &coordinator.to_string(), "--shards", &slots.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())
}

async fn signal(child: &Child, signal: &str) -> Result<(), String> {
    let id = child.id().ok_or("a worker has ended by itself")?;
    let status = Command::new("kill").args([signal, &id.to_string()]).status().await;
    match status.map_err(|error| error.to_string())?.success() {
        true => Ok(()),
        false => Err(format!("kill {signal} {id} failed")),
    }
}

/// Tells a worker to end and takes down what it believed.
async fn heard(mut child: Child, node: usize) -> Result<Beliefs, String> {
    let mut input = child.stdin.take().ok_or("a worker without input")?;
    input.write_all(b"\n").await.map_err(|error| error.to_string())?;
    let mut text = String::new();
    let mut output = child.stdout.take().ok_or("a worker without output")?;
    output.read_to_string(&mut text).await.map_err(|error| error.to_string())?;
    // How it ended is no matter: it has said everything.
    let _ = child.wait().await;
    let mut beliefs = Beliefs::default();
    for line in text.lines() {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [shard, epoch, first, last] = numbers[..] else { return Err(format!("not understood: {line}")) };
        beliefs.served(Owner { shard, epoch, node }, first, last);
    }
    Ok(beliefs)
}

fn tell(beliefs: &Beliefs, slots: u32, paused_at: u64, woken_at: u64) -> Result<(), String> {
    let owned_then = |(owner, (first, last)): &(&Owner, &(u64, u64))| {
        owner.node == 0 && *first < paused_at && last + 50_000_000 > paused_at
    };
    let owned: BTreeMap<u64, u64> =
        beliefs.iter().filter(owned_then).map(|(o, (_, l))| (o.shard, *l)).collect();
    let taken = |shard: &&u64| {
        beliefs.iter().any(|(o, (first, _))| {
            o.shard == **shard && o.node != 0 && *first > paused_at && *first < woken_at
        })
    };
    let taken_over: Vec<u64> = owned.keys().filter(taken).copied().collect();
    let gaps = taken_over.iter().filter_map(|shard| {
        let next =
            beliefs.iter().filter(|(o, _)| o.shard == *shard && o.node != 0).map(|(_, (f, _))| *f).min()?;
        Some((next.saturating_sub(owned[shard])) / 1_000_000)
    });
    let gap = gaps.max().unwrap_or(0);
    let overlaps = beliefs.overlaps();
    let worst = overlaps.iter().map(|(_, _, nanos)| *nanos).max().unwrap_or(0);
    say(&format!(
        "{slots} shards on 3 workers; one was stopped for {} ms and owned {} shards then, {} of which others \
         led when it went on (after {gap} ms at most)",
        (woken_at - paused_at) / 1_000_000,
        owned.len(),
        taken_over.len(),
    ));
    say(&format!(
        "believed to be owned twice: {} shards, {:.3} ms at most",
        overlaps.len(),
        worst as f64 / 1e6
    ));
    match (overlaps.is_empty(), taken_over.is_empty()) {
        (true, false) => Ok(()),
        (_, true) => {
            Err("nothing was taken over while the worker was stopped: stop it for longer".to_owned())
        }
        (false, false) => Err("a shard had two owners at once".to_owned()),
    }
}
