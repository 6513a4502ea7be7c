//! The figures that a shuffle is measured by: the floor, and the peers beside it in the same run. See the README for what is
//! measured.

mod floor;
mod peers;

use bench_gauge::{ended, say, word};
use std::process::ExitCode;

/// That of `partage`: the floor is no slower for its allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "bench-shuffle [all | floor | peers] [--gb GB] [--rounds N] [--ranges N] [--only NAME,NAME] [--folder FOLDER] [--quick]";

/// What a command gives back.
pub type Done = Result<(), Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a bench is a program of its own")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = words.first().map(String::as_str).filter(|word| !word.starts_with("--"));
    let done = match command.unwrap_or("all") {
        "all" => Run::new(&words).and_then(|run| peers::bench(&run, floor::bench(&run)?)),
        "floor" => Run::new(&words).and_then(|run| floor::command(&run)),
        "peers" => Run::new(&words).and_then(|run| peers::bench(&run, Vec::new())),
        "floor-node" => floor::node(&words),
        "floor-client" => floor::client(&words),
        "floor-reader" => floor::reader(&words),
        other => Err(format!("there is no command {other:?}: {USAGE}").into()),
    };
    ended(done)
}

/// What all commands are told, and where they work.
pub struct Run {
    /// What every bench is told.
    pub of: bench_gauge::Run,
    gb: f64,
}

impl Run {
    fn new(words: &[String]) -> Result<Run, Box<dyn std::error::Error>> {
        let of = bench_gauge::Run::new(words)?;
        let usual = if of.is_quick() { 0.1 } else { 2.0 };
        let gb = word(words, "--gb").map_or(Ok(usual), str::parse::<f64>)?;
        // Places of records in a range have 24 bits.
        if !(0.000_1..=100.0).contains(&gb) {
            return Err(format!("--gb {gb}: give 0.0001 to 100").into());
        }
        if of.is_quick() || gb < 1.0 {
            say(&format!("{gb} GB: too little for figures"));
        }
        Ok(Run { of, gb })
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        (self.gb * 1e9 / 100.0) as u64
    }
}
