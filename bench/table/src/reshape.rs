//! A shard is given another leader, split, merged, and one of its replicas is moved to another node, under full write load: the
//! longest stalls of writes, refusals, and the rate beside that before.

use crate::cluster::{Cluster, NODES, Place};
use crate::resp::{self, Answer, Connection};
use crate::rows::{key, value};
use crate::{Done, Run, fill};
use bench_gauge::{Durations, now, rest, say};
use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Clients, each with one write at a time.
const CLIENTS: u64 = 32;

/// Numbers that one client writes, over and over: the shard does not grow while it is measured.
const OF_A_CLIENT: u64 = 1_000;

/// How long a write may take at most; then the run fails.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How a stretch of writes went.
#[derive(Debug, Default)]
struct Stretch {
    took: Durations,
    refused: Vec<String>,
}

/// The writes of all clients in the present stretch, and how many each client has had answered since the start.
#[derive(Debug, Default)]
struct Record {
    stretch: Mutex<Stretch>,
    answered: [AtomicU64; CLIENTS as usize],
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Stretch> {
        self.stretch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Stretch {
        std::mem::take(&mut *self.lock())
    }

    fn note(&self, client: u64, took: Duration, refused: Option<String>) {
        let mut stretch = self.lock();
        stretch.took.push(took);
        stretch.refused.extend(refused);
        self.answered[client as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until each client has had two more answers: one to a write that it may be waiting for, one to a write that it sends
    /// afterwards. Without that a write that stalls beyond the stretch is missing in it.
    fn all_have_answers(&self) -> Result<()> {
        let count =
            || self.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = count();
        let until = now() + ANSWER_WITHIN;
        while before.iter().zip(count()).any(|(before, now)| now < before + 2) {
            if now() > until {
                return Err(Error::other(format!("a client has no answer within {ANSWER_WITHIN:?}")));
            }
            rest(5);
        }
        Ok(())
    }
}

/// What is done to the shards.
#[derive(Debug, Clone, Copy)]
enum Step {
    Lead,
    Split,
    Merge,
    /// A follower goes to the node that has no replica.
    Move,
}

/// Prints a line for each step.
pub fn bench(run: &Run) -> Done {
    let mib = run.number("--mib", 512, 16);
    let rows = (mib << 20) / 116;
    let time = Duration::from_secs(run.number("--seconds", 5, 2));
    let mut cluster = Cluster::start(run, "partage", 1)?;
    cluster.add_node()?;
    let layout = cluster.layout()?;
    let filled = fill::FROM..fill::FROM + rows;
    fill::write(&cluster.resp, &layout, filled.clone())?;
    say(&format!(
        "one shard with {rows} rows, {mib} MiB of keys and values, on {NODES} of {} nodes",
        cluster.nodes.len()
    ));
    let (record, ended) = (Record::default(), AtomicBool::new(false));
    let addresses = cluster.resp.clone();
    let (done, written) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (at, record, ended) = (addresses[client as usize % NODES], &record, &ended);
                scope.spawn(move || writes(at, client, record, ended))
            })
            .collect();
        let done = steps(&mut cluster, &record, time, run.number("--times", 3, 1));
        ended.store(true, Ordering::Release);
        let written = clients.into_iter().flat_map(|client| client.join().unwrap_or_default());
        (done, written.collect::<BTreeSet<u64>>())
    });
    done?;
    let layout = cluster.layout()?;
    let mut lost = fill::lost(&cluster.resp, &layout, filled)?;
    // Each number is written with one value only.
    for number in &written {
        lost.extend(fill::lost(&cluster.resp, &layout, *number..number + 1)?);
    }
    say(&format!("{} rows that the clients wrote are read back", written.len()));
    fill::none_is_lost(&lost)
}

fn steps(cluster: &mut Cluster, record: &Record, time: Duration, times: u64) -> Result<()> {
    for _ in 0..times {
        for step in [Step::Lead, Step::Split, Step::Merge, Step::Move] {
            record.take();
            let before = stretch(record, time);
            let begin = now();
            one(cluster, step)?;
            let took = now() - begin;
            rest(500);
            record.all_have_answers()?;
            let (during, seconds) = (record.take(), (now() - begin).as_secs_f64());
            tell(step, took, before, (during, seconds));
            cluster.settles()?;
        }
    }
    say("goals: no refused write, p99.9 at most 50 ms, rate at least 0.6 times that before");
    Ok(())
}

fn one(cluster: &Cluster, step: Step) -> Result<()> {
    let place = cluster.first_place()?;
    let first = place.shard.to_string();
    let name = |node: usize| format!("t{node}");
    match step {
        Step::Lead => cluster.change_shard(&["lead", &first, "--to", &name(follower(&place)?)]),
        Step::Split => cluster.change_shard(&["split", &first]),
        Step::Merge => match &cluster.numbers_of_shards()?[..] {
            [left, right, ..] => cluster.change_shard(&["merge", &left.to_string(), &right.to_string()]),
            _ => Err(Error::other("there are no two shards to merge")),
        },
        Step::Move => {
            let from = follower(&place)?;
            let has = |node: &usize| place.leader == Some(*node) || place.followers.contains(node);
            let to = (0..cluster.nodes.len()).find(|node| !has(node));
            let to = to.ok_or_else(|| Error::other("each node has a replica"))?;
            cluster.change_shard(&["move", &first, "--from", &name(from), "--to", &name(to)])
        }
    }
}

/// A node that follows.
fn follower(place: &Place) -> Result<usize> {
    place.followers.first().copied().ok_or_else(|| Error::other(format!("no node follows: {place:?}")))
}

/// The writes of so long a time, and how long it was.
fn stretch(record: &Record, time: Duration) -> (Stretch, f64) {
    let begin = now();
    rest(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    (record.take(), (now() - begin).as_secs_f64())
}

fn tell(step: Step, took: Duration, before: (Stretch, f64), during: (Stretch, f64)) {
    let rate = |(stretch, seconds): &(Stretch, f64)| stretch.took.len() as f64 / seconds;
    let ratio = rate(&during) / rate(&before);
    let line = |stretch: &mut Stretch| {
        let [p50, p999, max] = [0.5, 0.999, 1.0].map(|share| stretch.took.quantile_ms(share));
        format!("p50 {p50:.1}, p99.9 {p999:.1}, max {max:.1} ms")
    };
    let ((mut before, _), (mut during, _)) = (before, during);
    say(&format!(
        "{step:?} took {:.0} ms: {}, {} refused, rate {ratio:.2} times that before; before: {}",
        took.as_secs_f64() * 1e3,
        line(&mut during),
        during.refused.len(),
        line(&mut before)
    ));
    during.refused.iter().take(2).for_each(|refused| say(&format!("    {refused}")));
}

/// Writes its rows one after the other until the end; those that were acknowledged.
fn writes(at: SocketAddr, client: u64, record: &Record, ended: &AtomicBool) -> BTreeSet<u64> {
    let numbers: Range<u64> = client * OF_A_CLIENT..(client + 1) * OF_A_CLIENT;
    let (mut connection, mut written) = (None, BTreeSet::new());
    for number in numbers.cycle() {
        if ended.load(Ordering::Acquire) {
            break;
        }
        let begin: Instant = now();
        let refused = match write(&mut connection, at, number) {
            Ok(Answer::Done) => {
                written.insert(number);
                None
            }
            Ok(other) => Some(format!("{other:?}")),
            Err(error) => {
                connection = None;
                Some(error.to_string())
            }
        };
        record.note(client, now() - begin, refused);
    }
    written
}

fn write(connection: &mut Option<Connection>, at: SocketAddr, number: u64) -> Result<Answer> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(at, Duration::from_secs(20))?),
    };
    let mut out = Vec::new();
    resp::set(&mut out, &key(number), &value(number));
    connection.send(&out)?;
    connection.answer()
}
