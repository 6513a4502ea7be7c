//! The long run: `cargo run --release -p sim -- --seeds 100`, or one seed again with `--seed N`.

use partage_core::planted::Planted;
use sim::world::{Shape, Verdict};
use std::time::Instant;

const USAGE: &str =
    "usage: sim [--seed N | --seeds N [--from N]] [--small] [--words N] [--plant O2|O4|O5|O8]";

struct Arguments {
    from: u64,
    seeds: u64,
    shape: Shape,
    words: usize,
    bug: Option<Planted>,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments { from: 1, seeds: 100, shape: Shape::FULL, words: 200, bug: None };
    #[expect(clippy::disallowed_methods, reason = "this is a command of its own, beside cli")]
    let mut given = std::env::args().skip(1);
    while let Some(flag) = given.next() {
        if flag == "--plant" {
            found.bug = Some(planted(&given.next().unwrap_or_default())?);
            continue;
        }
        let mut number = || {
            let value = given.next().ok_or(format!("{flag} wants a number\n{USAGE}"))?;
            value.parse::<u64>().map_err(|error| format!("{flag} {value}: {error}\n{USAGE}"))
        };
        match flag.as_str() {
            "--seed" => (found.from, found.seeds) = (number()?, 1),
            "--seeds" => found.seeds = number()?,
            "--from" => found.from = number()?,
            "--words" => found.words = number()? as usize,
            "--small" => found.shape = Shape::SMALL,
            _ => return Err(format!("{flag} is no flag of this command\n{USAGE}")),
        }
    }
    Ok(found)
}

fn planted(invariant: &str) -> Result<Planted, String> {
    let bugs = [("O2", Planted::O2), ("O4", Planted::O4), ("O5", Planted::O5), ("O8", Planted::O8)];
    let found = bugs.into_iter().find(|(name, _)| *name == invariant).map(|(_, bug)| bug);
    found.ok_or_else(|| format!("{invariant:?} is none of the planted bugs\n{USAGE}"))
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command of its own, beside cli")]
fn main() -> Result<(), String> {
    let Arguments { from, seeds, shape, words, bug } = arguments()?;
    #[expect(clippy::disallowed_methods, reason = "measures the simulator, decides nothing in a run")]
    let began = Instant::now();
    let (mut simulated, mut events, mut unknown, mut failed) = (0, 0, 0, 0u64);
    for seed in from..from + seeds {
        let report = sim::run(seed, shape, bug, None);
        simulated += report.simulated;
        events += report.events;
        match &report.verdict {
            Verdict::Passed if seeds > 1 => {}
            Verdict::Passed => println!("seed {seed} passed, trace {:016x}", report.hash),
            Verdict::Unknown => {
                unknown += 1;
                let (begun, done) = report.operations;
                println!("seed {seed} unknown: only {done} of {begun} operations were done");
            }
            Verdict::Failed(violation) => {
                failed += 1;
                println!(
                    "seed {seed} FAILED {} at {:.3} s: {}",
                    violation.invariant,
                    violation.at as f64 / 1e6,
                    violation.text
                );
                if failed == 1 && seeds == 1 {
                    let again = sim::run(seed, shape, bug, Some(words));
                    again.words.iter().rev().take(words).rev().for_each(|line| eprintln!("{line}"));
                }
                let small = if shape == Shape::SMALL { " --small" } else { "" };
                println!("  again: cargo run --release -p sim -- --seed {seed}{small}");
            }
        }
    }
    #[expect(clippy::disallowed_methods, reason = "measures the simulator, decides nothing in a run")]
    let took = began.elapsed().as_secs_f64();
    let seconds = simulated as f64 / 1e6;
    println!(
        "{seeds} seeds: {failed} failed, {unknown} unknown; {seconds:.0} simulated seconds, {events} events in {took:.1} s: {:.0} x real time",
        seconds / took
    );
    if failed > 0 { Err(format!("{failed} of {seeds} seeds failed")) } else { Ok(()) }
}
