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

/// What was measured at one size, by event.
type Figures = BTreeMap<&'static str, Cost>;

fn main() -> ExitCode {
    #[expect(clippy::disallowed_methods, reason = "a program of its own, which reads its command line")]
    let words: Vec<String> = std::env::args().collect();
    match every_size(option(&words, "--nodes", 1_000), option(&words, "--replicas", 3)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn every_size(nodes: u64, replicas: u64) -> Result<(), String> {
    let sizes = [nodes / 8, nodes / 4, nodes / 2, nodes].map(|nodes| nodes.max(8));
    let mut all: Vec<(u64, Figures)> = Vec::new();
    for nodes in sizes {
        let figures = measure(nodes, replicas)?;
        for (event, cost) in &figures {
            say(&format!(
                "{nodes} nodes, {} shards x {replicas}, {event}: {:.1} ms the dearest call, {:.1} ms in all {} calls",
                nodes * SHARDS_A_NODE,
                cost.most_ms,
                cost.sum_ms,
                cost.calls
            ));
        }
        all.push((nodes, figures));
    }
    judge(&all)
}

/// Fails when a call costs more than it may at the largest size, or grew by more than n log n from the smallest.
fn judge(all: &[(u64, Figures)]) -> Result<(), String> {
    let (Some((small, before)), Some((large, after))) = (all.first(), all.last()) else { return Ok(()) };
    let n_log_n = |nodes: u64| (nodes * SHARDS_A_NODE) as f64 * ((nodes * SHARDS_A_NODE) as f64).log2();
    let may_grow = n_log_n(*large) / n_log_n(*small);
    let mut wrong = Vec::new();
    for (event, cost) in after {
        let first = before.get(event).copied().unwrap_or_default();
        let grew = cost.sum_ms / first.sum_ms.max(NOISE_MS);
        let exponent = grew.ln() / (*large as f64 / *small as f64).ln();
        say(&format!("{event}: grows as n^{exponent:.2} from {small} to {large} nodes"));
        if grew > may_grow * SLACK {
            wrong.push(format!("{event} grew {grew:.1}-fold, n log n is {may_grow:.1}-fold"));
        }
        if cost.most_ms > MOST_MS {
            wrong.push(format!("{event}: one call cost {:.0} ms, more than {MOST_MS:.0} ms", cost.most_ms));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Every event, one after the other, on one cluster.
fn measure(nodes: u64, replicas: u64) -> Result<Figures, String> {
    let mut figures = Figures::new();
    let mut town = Town::new(nodes)?;
    town.create((nodes * SHARDS_A_NODE) as u32, replicas as u32)?;
    town.take_costs();
    town.settle()?;
    note(&mut figures, &mut town, ["first placement", "beats: first placement"]);
    town.pass(60_000)?;
    town.take_costs();
    town.pass(250)?;
    note(&mut figures, &mut town, ["nothing happens", "beats: nothing happens"]);
    let floor = (0..3).map(|_| town.floor_ms()).fold(f64::MAX, f64::min);
    figures.insert("floor: one pass", Cost { most_ms: floor, sum_ms: floor, calls: 1 });
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
