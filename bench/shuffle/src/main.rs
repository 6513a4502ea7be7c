//! The figures that a shuffle is measured by: ours, the floor, and the peers beside them in the same run. See the README for what
//! is measured.

mod client_process;
mod flight_floor;
mod floor;
mod ours;
mod peers;

use bench_gauge::{check_flags, ended, say, word};
use floor::Way;
use partage_shuffle_client::Durability;
use std::process::ExitCode;

/// That of `partage`: the floor is no slower for its allocator.
#[global_allocator]
static ALLOCATOR: partage_allocator::Allocator = partage_allocator::Allocator;

const USAGE: &str = "bench-shuffle [all | floor | ours | peers | shapes | balance | memory | faults | joins | many | flood | flight | hail] \
    [--gb GB] [--rounds N] [--ranges N] [--unix] [--only NAME,NAME] [--folder FOLDER] [--quick] [--memory SIZE] [--times N] \
    [--seed N] [--seconds N] [--durability disk|memory] [--shuffles N] [--at-once N] [--lone N] [--mb N] \
    [--integers N] [--rows N]";

/// Of the records of the floor, of ours and of the peers.
const SEED: u64 = 18;

/// What a step of a bench gives back.
pub type Got<T> = Result<T, Box<dyn std::error::Error>>;

/// What a command gives back.
pub type Done = Got<()>;

#[expect(clippy::disallowed_methods, reason = "a bench is a program of its own")]
fn main() -> ExitCode {
    partage_allocator::keep_freed_memory();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = words.first().map(String::as_str).filter(|word| !word.starts_with("--"));
    let command = command.unwrap_or("all");
    let done = match command {
        "flight-floor" => flight_floor::process(&words),
        "floor-node" => floor::node(&words),
        "floor-client" => floor::client(&words),
        "floor-reader" => floor::reader(&words),
        "floor-flood" => floor::flood(&words),
        "floor-trickle" => floor::trickle(&words),
        "ours-writer" => ours::writer_process(&words),
        "ours-reader" => ours::reader_process(&words),
        "ours-many" => ours::many_process(&words),
        "ours-trickle" => ours::trickle_process(&words),
        _ => Run::new(&words, command).and_then(|run| bench(&run, command)),
    };
    ended(done)
}

fn bench(run: &Run, command: &str) -> Done {
    match command {
        "all" => {
            let floor = floor::bench(run)?;
            let ours = ours::bench(run, &floor)?;
            peers::bench(run, &floor, &ours)
        }
        "floor" => floor::bench(run).map(drop),
        "ours" => ours::bench(run, &floor::bench(run)?).map(drop),
        "peers" => peers::bench(run, &[], &[]),
        "shapes" => ours::shapes(run),
        "balance" => ours::balance(run),
        "memory" => ours::memory(run),
        "faults" => ours::faults(run),
        "joins" => ours::joins(run),
        "many" => ours::many(run),
        "flood" => ours::flood(run),
        "flight" => ours::flight(run),
        "hail" => ours::hail(run),
        other => Err(format!("there is no command {other:?}: {USAGE}").into()),
    }
}

/// What all commands are told, and where they work.
pub struct Run {
    /// What every bench is told.
    pub of: bench_gauge::Run,
    gb: f64,
    /// What a node may take, for the command that limits it.
    memory: Option<String>,
    /// Of the shuffles of `ours` and `many`.
    durability: Durability,
    ways: Vec<Way>,
}

/// 10^9 bytes that a command orders unless it is told, and in a quick run.
fn usual_gb(command: &str, words: &[String]) -> (f64, f64) {
    match command {
        "memory" => (10.0, 0.5),
        "balance" => (0.2, 0.02),
        "flight" => (1.0, 0.02),
        // Random ones are many shuffles.
        "faults" if words.iter().any(|word| word == "--times") => (0.1, 0.02),
        "faults" => (1.0, 0.1),
        _ => (2.0, 0.1),
    }
}

/// The ways between clients and nodes that a command measures.
fn ways(command: &str, words: &[String], measures: impl Fn(&str) -> bool) -> Vec<Way> {
    let both = matches!(command, "all" | "floor");
    let ways = match words.iter().any(|word| word == "--unix") {
        true => vec![Way::Unix],
        false if both => vec![Way::Tcp, Way::Unix],
        false => vec![Way::Tcp],
    };
    ways.into_iter().filter(|way| !both || measures(way.name())).collect()
}

impl Run {
    fn new(words: &[String], command: &str) -> Got<Run> {
        check_flags(words, USAGE)?;
        let of = bench_gauge::Run::new(words)?;
        let (whole, quick) = usual_gb(command, words);
        let usual = if of.is_quick() { quick } else { whole };
        let gb = word(words, "--gb").map_or(Ok(usual), str::parse::<f64>)?;
        // Places of records in a range of the floor have 24 bits.
        if !(0.000_1..=100.0).contains(&gb) {
            return Err(format!("--gb {gb}: give 0.0001 to 100").into());
        }
        if of.is_quick() || gb < whole.min(1.0) {
            say(&format!("{gb} GB: too little for figures"));
        }
        let memory = word(words, "--memory").map(str::to_owned);
        let durability =
            word(words, "--durability").map_or(Ok(Durability::Disk), str::parse::<Durability>)?;
        let ways = ways(command, words, |name| of.measures(name));
        Ok(Run { of, gb, memory, durability, ways })
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        (self.gb * 1e9 / 100.0) as u64
    }

    /// The ways between clients and nodes that are measured.
    pub fn ways(&self) -> Vec<Way> {
        self.ways.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_measures_the_ways_that_it_is_told() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
        let all = |_: &str| true;
        assert_eq!(ways("all", &words(&[]), all), [Way::Tcp, Way::Unix]);
        assert_eq!(ways("all", &words(&[]), |name| name == "unix"), [Way::Unix]);
        assert_eq!(ways("all", &words(&[]), |name| name == "spark"), []);
        assert_eq!(ways("ours", &words(&["ours"]), all), [Way::Tcp]);
        assert_eq!(ways("ours", &words(&["ours", "--unix"]), all), [Way::Unix]);
        assert_eq!(ways("shapes", &words(&["shapes"]), |name| name == "zipf"), [Way::Tcp]);
    }
}
