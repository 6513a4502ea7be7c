//! `bench-decisions` measures what single decisions of a coordinator cost and how that grows: see the README.

mod bench_cluster;
mod runs;

use bench_cluster::{BenchCluster, Calls, Size};
use bench_gauge::{complain, option, say};
use runs::Runs;
use std::process::ExitCode;

/// What one call may cost, in milliseconds on a core.
const MOST_MS: f64 = 100.0;

/// An event of which all calls cost less than this says nothing about growth.
const NOISE_MS: f64 = 5.0;

/// How far above n log n a figure may be measured: caches and the machine's other work.
const SLACK: f64 = 1.5;

/// Shards of each node.
const SHARDS_A_NODE: u64 = 100;

/// Begins the names of what beats cost while something else happens.
const BEATS: &str = "beats: ";

/// One look at every replica.
const FLOOR: &str = "floor: one look";

/// What a dry run does after the copy, on a thread of its own: no beat waits for it.
const DRY_RUN: &str = "dry run: the plan";

/// The events that a run measures, and the kind of cluster on which they happen.
#[derive(Clone, Copy)]
enum Scenario {
    /// Everything that happens, with workers that report no loads.
    Plain,
    /// The same with loads.
    Loaded,
    /// A first placement through the throttle that keyspaces have by default, on a tenth of the nodes.
    Throttled,
}

impl Scenario {
    const ALL: [Scenario; 3] = [Scenario::Plain, Scenario::Loaded, Scenario::Throttled];

    fn name(self) -> &'static str {
        match self {
            Scenario::Plain => "plain",
            Scenario::Loaded => "with loads",
            Scenario::Throttled => "throttled",
        }
    }

    fn size(self, nodes: u64, replicas: u64) -> Size {
        let shards = nodes * SHARDS_A_NODE;
        match self {
            Scenario::Plain => Size { nodes, shards, replicas, loads: false, throttled: false },
            Scenario::Loaded => Size { nodes, shards, replicas, loads: true, throttled: false },
            Scenario::Throttled => {
                Size { nodes: (nodes / 10).max(8), shards, replicas, loads: false, throttled: true }
            }
        }
    }
}

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    let (nodes, replicas) = (option(&words, "--nodes", 1_000), option(&words, "--replicas", 3));
    let wrong: Vec<String> = match words.iter().position(|word| word == runs::CHILD) {
        Some(at) => {
            let scenario = Scenario::ALL
                .into_iter()
                .find(|one| Some(one.name()) == words.get(at + 1).map(String::as_str));
            let measured = scenario.ok_or("there is no such scenario".to_owned()).and_then(|scenario| {
                measure(scenario, scenario.size(nodes, replicas)).map(|calls| runs::tell(&calls))
            });
            measured.err().into_iter().collect()
        }
        None => {
            let times = option(&words, "--runs", 3);
            let all = Scenario::ALL.into_iter().map(|scenario| both_sizes(scenario, nodes, replicas, times));
            all.filter_map(Result::err).collect()
        }
    };
    wrong.iter().for_each(|error| complain(error));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One scenario at a quarter of the size and at the size, each so many times. A much smaller state fits into the machine's
/// caches, and the growth would be that of their misses.
fn both_sizes(scenario: Scenario, nodes: u64, replicas: u64, times: u64) -> Result<(), String> {
    let mut all = Vec::new();
    for nodes in [(nodes / 4).max(8), nodes] {
        let runs = Runs::of(scenario.name(), nodes, replicas, times)?;
        let Size { nodes, shards, replicas, .. } = scenario.size(nodes, replicas);
        for (event, cost) in runs.costs() {
            say(&format!(
                "{nodes} nodes, {shards} shards x {replicas}, {}, {event}: {:.1} ms the dearest call, {:.1} ms in all {} calls",
                scenario.name(),
                cost.most_ms,
                cost.sum_ms,
                cost.calls
            ));
        }
        all.push((shards, runs));
    }
    judge(&all).map_err(|wrong| {
        let wrong: Vec<String> = wrong.iter().map(|what| format!("{}: {what}", scenario.name())).collect();
        wrong.join("\n")
    })
}

/// What is wrong when a call costs more than it may at the largest size, or an event grew faster from the smallest than
/// n log n and than one look at every replica did: that grows with the misses of the machine's caches.
fn judge(all: &[(u64, Runs)]) -> Result<(), Vec<String>> {
    let (Some((small, before)), Some((large, after))) = (all.first(), all.last()) else { return Ok(()) };
    let n_log_n = |shards: u64| shards as f64 * (shards as f64).log2();
    let n_log_n = n_log_n(*large) / n_log_n(*small);
    let (before, after) = (before.costs(), after.costs());
    let floor =
        after.get(FLOOR).zip(before.get(FLOOR)).map_or(1.0, |(after, before)| after.sum_ms / before.sum_ms);
    say(&format!(
        "from {small} to {large} shards n log n grows {n_log_n:.1}-fold, the floor {floor:.1}-fold"
    ));
    let mut wrong = Vec::new();
    for (event, cost) in &after {
        // The floor is no decision.
        if cost.most_ms > MOST_MS && event != DRY_RUN && event != FLOOR {
            wrong.push(format!("{event}: one call cost {:.0} ms, more than {MOST_MS:.0} ms", cost.most_ms));
        }
        let Some(first) = before.get(event).filter(|_| cost.sum_ms > NOISE_MS) else { continue };
        let grew = match event.starts_with(BEATS) {
            // How long something takes, in beats, is the throttle's doing: one beat of every node.
            true => cost.mean_ms() * *large as f64 / (first.mean_ms() * *small as f64),
            false => cost.sum_ms / first.sum_ms,
        };
        say(&format!("{event}: grows {grew:.1}-fold from {small} to {large} shards"));
        if grew > n_log_n.max(floor) * SLACK {
            wrong.push(format!(
                "{event} grew {grew:.1}-fold, n log n {n_log_n:.1}-fold, the floor {floor:.1}-fold"
            ));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Every event, one after the other, on one cluster.
fn measure(scenario: Scenario, size: Size) -> Result<Calls, String> {
    let mut bench_cluster = BenchCluster::new(size)?;
    bench_cluster.create()?;
    bench_cluster.begin("");
    bench_cluster.begin("first placement");
    bench_cluster.settle()?;
    bench_cluster.begin("");
    bench_cluster.pass(60_000)?;
    bench_cluster.begin("nothing happens");
    bench_cluster.pass(250)?;
    bench_cluster.begin("one shard is split");
    bench_cluster.split_one("one shard is split: the command")?;
    bench_cluster.pass(5_000)?;
    bench_cluster.begin("");
    bench_cluster.settle()?;
    for _ in 0..5 {
        bench_cluster.look_once(FLOOR);
    }
    if !matches!(scenario, Scenario::Throttled) {
        bench_cluster.foresee(["dry run: the copy", DRY_RUN])?;
        failover(&mut bench_cluster)?;
        losses(&mut bench_cluster, size.nodes)?;
    }
    Ok(bench_cluster.into_calls())
}

fn failover(bench_cluster: &mut BenchCluster) -> Result<(), String> {
    bench_cluster.begin("failover: first decision");
    bench_cluster.fail_over("failover: recover")?;
    bench_cluster.begin("failover: all come back");
    bench_cluster.come_back()?;
    bench_cluster.pass(2_000)?;
    bench_cluster.begin("");
    bench_cluster.pass(30_000)
}

fn losses(bench_cluster: &mut BenchCluster, nodes: u64) -> Result<(), String> {
    bench_cluster.begin("one node joins");
    bench_cluster.join(nodes)?;
    bench_cluster.pass(10_000)?;
    bench_cluster.begin("");
    bench_cluster.settle()?;
    bench_cluster.begin("one node dies");
    bench_cluster.silence(true, |index| index == 3);
    bench_cluster.pass(20_000)?;
    bench_cluster.begin("");
    bench_cluster.settle()?;
    bench_cluster.begin("half fall silent");
    bench_cluster.silence(true, |index| index % 2 == 0);
    bench_cluster.pass(20_000)?;
    bench_cluster.begin("all fall silent");
    bench_cluster.silence(true, |_| true);
    bench_cluster.pass(20_000)?;
    bench_cluster.begin("the brake is released");
    bench_cluster.release_brake("the brake is released: the command")?;
    bench_cluster.pass(2_000)
}
