//! `bench-decisions` measures what single decisions of a coordinator cost and how that grows: see the README.

mod town;

use bench_gauge::{complain, option, say};
use std::collections::BTreeMap;
use std::process::ExitCode;
use town::{Cost, Town};

/// What one call may cost, in milliseconds on a core.
const MOST_MS: f64 = 100.0;

/// Below this a figure is noise, and its growth says nothing.
const NOISE_MS: f64 = 5.0;

/// How far above n log n a figure may be measured: caches and the machine's other work.
const SLACK: f64 = 1.5;

/// Shards of each node.
const SHARDS_A_NODE: u64 = 100;

/// One look at every replica.
const FLOOR: &str = "floor: one pass";

/// What was measured at one size, by event.
type Figures = BTreeMap<&'static str, Cost>;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    let (nodes, replicas) = (option(&words, "--nodes", 1_000), option(&words, "--replicas", 3));
    let plain = every_size([nodes / 8, nodes / 4, nodes / 2, nodes], replicas, false);
    let loaded = every_size([nodes / 8, nodes], replicas, true);
    let wrong: Vec<String> = [plain, loaded].into_iter().filter_map(Result::err).collect();
    wrong.iter().for_each(|error| complain(error));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn every_size<const N: usize>(sizes: [u64; N], replicas: u64, loads: bool) -> Result<(), String> {
    let mut all: Vec<(u64, Figures)> = Vec::new();
    let with = if loads { ", with loads" } else { "" };
    for nodes in sizes.map(|nodes| nodes.max(8)) {
        let figures = measure(nodes, replicas, loads)?;
        for (event, cost) in &figures {
            say(&format!(
                "{nodes} nodes, {} shards x {replicas}{with}, {event}: {:.1} ms the dearest call, {:.1} ms in all {} calls",
                nodes * SHARDS_A_NODE,
                cost.most_ms,
                cost.sum_ms,
                cost.calls
            ));
        }
        all.push((nodes, figures));
    }
    judge(&all)
        .map_err(|wrong| wrong.iter().map(|what| format!("{what}{with}")).collect::<Vec<_>>().join("\n"))
}

/// What is wrong when a call costs more than it may at the largest size, or an event grew faster from the smallest than
/// n log n and than one look at every replica did: that grows with the misses of the machine's caches.
fn judge(all: &[(u64, Figures)]) -> Result<(), Vec<String>> {
    let (Some((small, before)), Some((large, after))) = (all.first(), all.last()) else { return Ok(()) };
    let n_log_n = |nodes: u64| (nodes * SHARDS_A_NODE) as f64 * ((nodes * SHARDS_A_NODE) as f64).log2();
    let n_log_n = n_log_n(*large) / n_log_n(*small);
    let floor = |figures: &Figures| figures.get(FLOOR).map_or(f64::MAX, |cost| cost.sum_ms);
    let floor = floor(after) / floor(before);
    say(&format!("from {small} to {large} nodes n log n grows {n_log_n:.1}-fold, the floor {floor:.1}-fold"));
    let mut wrong = Vec::new();
    for (event, cost) in after {
        let first = before.get(event).copied().unwrap_or_default();
        let grew = cost.sum_ms / first.sum_ms.max(NOISE_MS);
        say(&format!("{event}: grows {grew:.1}-fold from {small} to {large} nodes"));
        if grew > n_log_n.max(floor) * SLACK {
            wrong.push(format!(
                "{event} grew {grew:.1}-fold, n log n {n_log_n:.1}-fold, the floor {floor:.1}-fold"
            ));
        }
        if cost.most_ms > MOST_MS {
            wrong.push(format!("{event}: one call cost {:.0} ms, more than {MOST_MS:.0} ms", cost.most_ms));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Every event, one after the other, on one cluster.
fn measure(nodes: u64, replicas: u64, loads: bool) -> Result<Figures, String> {
    let mut figures = Figures::new();
    let mut town = Town::new(nodes, loads)?;
    town.create((nodes * SHARDS_A_NODE) as u32, replicas as u32)?;
    town.take_costs();
    town.settle()?;
    note(&mut figures, &mut town, ["first placement", "beats: first placement"]);
    town.pass(60_000)?;
    town.take_costs();
    town.pass(250)?;
    note(&mut figures, &mut town, ["nothing happens", "beats: nothing happens"]);
    let floor = (0..5).map(|_| town.floor_ms()).fold(f64::MAX, f64::min);
    figures.insert(FLOOR, Cost { most_ms: floor, sum_ms: floor, calls: 1 });
    let recovery = town.fail_over()?;
    figures.insert("failover: recover", Cost { most_ms: recovery, sum_ms: recovery, calls: 1 });
    note(&mut figures, &mut town, ["failover: first decision", "beats: none"]);
    town.come_back()?;
    town.pass(2_000)?;
    note(&mut figures, &mut town, ["failover: all come back", "beats: all come back"]);
    town.pass(30_000)?;
    town.take_costs();
    town.join(nodes)?;
    town.pass(10_000)?;
    note(&mut figures, &mut town, ["one node joins", "beats: one node joins"]);
    town.settle()?;
    town.silence(true, |index| index == 3);
    town.take_costs();
    town.pass(20_000)?;
    note(&mut figures, &mut town, ["one node dies", "beats: one node dies"]);
    town.settle()?;
    town.silence(true, |index| index % 2 == 0);
    town.take_costs();
    town.pass(20_000)?;
    note(&mut figures, &mut town, ["half fall silent", "beats: half fall silent"]);
    town.silence(true, |_| true);
    town.pass(20_000)?;
    note(&mut figures, &mut town, ["all fall silent", "beats: all fall silent"]);
    Ok(figures)
}

fn note(figures: &mut Figures, town: &mut Town, [decisions, beats]: [&'static str; 2]) {
    let costs = town.take_costs();
    figures.insert(decisions, costs.decisions);
    if costs.beats.calls > 0 {
        figures.insert(beats, costs.beats);
    }
}
