//! Kills and pauses at random, one at a time, while shuffle after shuffle is written, sealed and read: of nodes, of the
//! coordinator, and of clients. A client that was killed is replaced by one that writes what the first one had no answer for.
//!
//! The same `--seed` draws the same troubles; when they come depends on the machine.

use super::cluster::{Cluster, NODES};
use super::control::Control;
use super::job::Job;
use super::shuffle::{compare, number_of, read, start_reader, start_writer, written};
use super::writer::Part;
use crate::client_process::ClientProcess;
use crate::floor::Way;
use crate::{Done, Got, Run};
use bench_gauge::client::Draw;
use bench_gauge::{PATIENCE, now, rest, say};
use bench_shuffle::check::Tally;
use partage_shuffle_client::Shuffle;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Processes that write one shuffle.
const WRITERS: u32 = 2;
/// How long writing lasts if nothing disturbs it.
const WRITING_S: u64 = 6;
/// Input partitions of each shuffle.
const INPUTS: u32 = 24;
/// It is read in so many partitions, one after the other.
const READS: [u64; 3] = [64, 7, 256];
/// How long lines are waited for before the next look.
const LOOK: Duration = Duration::from_millis(10);
/// How long a shuffle may last: troubles come and go, so it must be over.
const MOST: Duration = Duration::from_secs(600);
/// Milliseconds between two troubles, from and to.
const BETWEEN_MS: (u64, u64) = (200, 1_000);

/// What happens, by the number of its kind.
const KINDS: [&str; 5] =
    ["nodes killed", "nodes paused", "coordinators killed", "clients killed", "clients paused"];
/// Kinds that are possible without clients.
const WITHOUT_CLIENTS: u64 = 3;

/// What ends a trouble.
#[derive(Debug, Clone, Copy)]
enum Relief {
    StartNode(usize),
    ContinueNode(usize),
    StartCoordinator,
    ContinueClient(u32),
}

struct Chaos {
    cluster: Cluster,
    way: Way,
    draw: Draw,
    times: u64,
    counts: [u64; KINDS.len()],
    relief: Option<(Instant, Relief)>,
    /// A node that was started again and does not answer yet.
    starting: Option<usize>,
    next: Instant,
    again: u64,
}

/// Disturbs shuffles so many times.
pub fn bench(run: &Run, times: u64) -> Done {
    let seed = run.of.number("--seed", 18, 18);
    for way in run.ways() {
        let cluster = Cluster::start(run, &format!("chaos-{}", way.name()))?;
        let mut chaos = Chaos {
            cluster,
            way,
            draw: Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            times,
            counts: [0; KINDS.len()],
            relief: None,
            starting: None,
            next: now(),
            again: 0,
        };
        let mut shuffles = 0;
        while chaos.count() < times {
            let job = Job { inputs: INPUTS, seed: seed.wrapping_add(shuffles), ..Job::usual(run.gb) };
            chaos.shuffle(&job).map_err(|error| {
                format!("shuffle {shuffles}, after {} troubles of --seed {seed}: {error}", chaos.count())
            })?;
            shuffles += 1;
            say(&format!(
                "{:4} shuffle {shuffles}: {} of {times} troubles so far",
                way.name(),
                chaos.count()
            ));
        }
        let gone = chaos.cluster.is_empty()?;
        let kinds = KINDS.iter().zip(chaos.counts).map(|(kind, count)| format!("{count} {kind}"));
        let kinds: Vec<String> = kinds.collect();
        say(&format!(
            "{:4} {shuffles} shuffles, {}: nothing lost, nothing doubled, {} attempts run again by clients that lived, nothing left {gone:.1} s after the last",
            way.name(),
            kinds.join(", "),
            chaos.again
        ));
    }
    Ok(())
}

/// A process that writes, and what it has no answer for.
struct Writing {
    process: ClientProcess,
    left: BTreeSet<u32>,
    /// Attempts that it has run again; none: it is not done.
    again: Option<u64>,
}

impl Writing {
    fn hear(&mut self, line: &str) {
        if let Some(partition) = number_of(line, "whole ").and_then(|number| u32::try_from(number).ok()) {
            self.left.remove(&partition);
        }
        self.again = self.again.or(written(line).map(|(again, _)| again));
    }
}

impl Chaos {
    fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn between(&mut self, (from, to): (u64, u64)) -> Duration {
        Duration::from_millis(from + self.draw.below(to - from))
    }

    fn shuffle(&mut self, job: &Job) -> Got<()> {
        let control = Control::new(self.cluster.addresses(self.way))?;
        let expected = job.expected()?;
        let shuffle = control.start(job)?;
        self.write(&shuffle, job)?;
        std::thread::scope(|scope| -> Got<()> {
            let sealing = scope.spawn(|| control.seal(shuffle.id, job).map_err(|error| error.to_string()));
            while !sealing.is_finished() {
                self.tick(&[])?;
                rest(LOOK.as_millis() as u64);
            }
            Ok(sealing.join().map_err(|_| "a thread has failed")??)
        })?;
        for partitions in READS {
            self.read(&shuffle, &Job { partitions, ..*job }, expected)?;
        }
        self.relieve()?;
        control.delete(shuffle.id)
    }

    fn writer(&self, shuffle: &Shuffle, job: &Job, left: BTreeSet<u32>) -> Got<Writing> {
        let bytes_per_s = job.bytes() / WRITING_S / u64::from(WRITERS);
        let part = Part { partitions: left.clone(), bytes_per_s };
        let nodes = self.cluster.addresses_word(self.way);
        let mut process = start_writer(&nodes, shuffle, job, &part)?;
        process.go()?;
        Ok(Writing { process, left, again: None })
    }

    fn write(&mut self, shuffle: &Shuffle, job: &Job) -> Got<()> {
        let mut writers = Vec::new();
        for first in 0..WRITERS {
            let left = (first..job.inputs).step_by(WRITERS as usize).collect();
            writers.push(self.writer(shuffle, job, left)?);
        }
        let end = now() + MOST;
        loop {
            for writer in writers.iter_mut().filter(|writer| writer.again.is_none()) {
                while let Some(line) = writer.process.line_within(LOOK)? {
                    writer.hear(&line);
                    if writer.again.is_some() {
                        break;
                    }
                }
            }
            self.again += writers.iter().filter_map(|writer| writer.again).sum::<u64>();
            writers.retain(|writer| writer.again.is_none());
            if writers.is_empty() {
                return Ok(());
            }
            if now() > end {
                return Err(format!("it was not written within {MOST:?}").into());
            }
            let clients: Vec<u32> = writers.iter().map(|writer| writer.process.pid()).collect();
            if let Some(victim) = self.tick(&clients)? {
                let Writing { process, mut left, .. } = writers.swap_remove(victim);
                for line in process.kill() {
                    if let Some(whole) = number_of(&line, "whole ") {
                        left.retain(|partition| u64::from(*partition) != whole);
                    }
                }
                if !left.is_empty() {
                    writers.push(self.writer(shuffle, job, left)?);
                }
            }
        }
    }

    fn read(&mut self, shuffle: &Shuffle, job: &Job, expected: Tally) -> Got<()> {
        let nodes = self.cluster.addresses_word(self.way);
        let start = || -> Got<ClientProcess> {
            let mut reader = start_reader(&nodes, shuffle, job)?;
            reader.go()?;
            Ok(reader)
        };
        let mut reader = start()?;
        let end = now() + MOST;
        while now() < end {
            if let Some(line) = reader.line_within(LOOK)?
                && let Some((tally, _)) = read(&line)
            {
                return compare(tally, expected);
            }
            if self.tick(&[reader.pid()])?.is_some() {
                reader.kill();
                reader = start()?;
            }
        }
        Err(format!("it was not read within {MOST:?}").into())
    }

    /// Ends a trouble whose time is over, or begins one. Gives the client that the caller is to kill.
    fn tick(&mut self, clients: &[u32]) -> Got<Option<usize>> {
        if let Some((at, relief)) = self.relief {
            if now() >= at {
                self.relief = None;
                self.end(relief)?;
            }
            return Ok(None);
        }
        if let Some(node) = self.starting {
            self.cluster.nodes[node].lives()?;
            if self.cluster.is_up(node) {
                self.starting = None;
                self.next = now() + self.between(BETWEEN_MS);
            }
            return Ok(None);
        }
        if now() < self.next || self.count() >= self.times {
            return Ok(None);
        }
        self.begin(clients)
    }

    fn begin(&mut self, clients: &[u32]) -> Got<Option<usize>> {
        let kinds = if clients.is_empty() { WITHOUT_CLIENTS } else { KINDS.len() as u64 };
        let kind = self.draw.below(kinds) as usize;
        self.counts[kind] += 1;
        let node = self.draw.below(NODES as u64) as usize;
        let client = self.draw.below(clients.len().max(1) as u64) as usize;
        let (relief, lasts) = match kind {
            0 => {
                self.cluster.nodes[node].kill();
                (Relief::StartNode(node), (100, 3_000))
            }
            1 => {
                self.cluster.nodes[node].signal(Signal::STOP)?;
                // Beyond the time after which a connection counts as silent, now and then.
                (
                    Relief::ContinueNode(node),
                    if self.draw.below(8) == 0 { (10_000, 14_000) } else { (200, 4_000) },
                )
            }
            2 => {
                self.cluster.coordinator.kill();
                (Relief::StartCoordinator, (100, 4_000))
            }
            3 => {
                self.next = now() + self.between(BETWEEN_MS);
                return Ok(Some(client));
            }
            _ => {
                let pid = clients.get(client).copied().unwrap_or_default();
                signal(pid, Signal::STOP);
                (Relief::ContinueClient(pid), (200, 4_000))
            }
        };
        self.relief = Some((now() + self.between(lasts), relief));
        Ok(None)
    }

    fn end(&mut self, relief: Relief) -> Got<()> {
        match relief {
            Relief::StartNode(node) => {
                self.cluster.restart_node(node)?;
                self.starting = Some(node);
            }
            Relief::ContinueNode(node) => {
                self.cluster.nodes[node].signal(Signal::CONT)?;
                self.starting = Some(node);
            }
            Relief::StartCoordinator => self.cluster.restart_coordinator()?,
            Relief::ContinueClient(pid) => signal(pid, Signal::CONT),
        }
        self.next = now() + self.between(BETWEEN_MS);
        Ok(())
    }

    /// Ends the trouble that there is, and waits until all nodes answer.
    fn relieve(&mut self) -> Got<()> {
        if let Some((_, relief)) = self.relief.take() {
            self.end(relief)?;
        }
        let end = now() + PATIENCE;
        while let Some(node) = self.starting {
            self.cluster.nodes[node].lives()?;
            if self.cluster.is_up(node) {
                self.starting = None;
            } else if now() > end {
                return Err(format!("node {node} does not answer {PATIENCE:?} after its start").into());
            }
        }
        Ok(())
    }
}

/// A client that has ended needs none.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
