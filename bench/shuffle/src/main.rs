//! The figures that a shuffle is measured by: the floor, and the peers beside it in the same run. See the README for what is
//! measured.

mod floor;
mod peers;

use bench_gauge::{complain, option, say, word};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

/// That of `partage`: the floor is no slower for its allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// The median of figures; not a number if there is none.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What all commands are told, and where they work.
pub struct Run {
    words: Vec<String>,
    gb: f64,
    /// Gone at the end.
    temporary: TempDir,
}

impl Run {
    fn new(words: &[String]) -> Result<Run, Box<dyn std::error::Error>> {
        let temporary = match word(words, "--folder") {
            Some(folder) => TempDir::new_in(folder)?,
            None => TempDir::new()?,
        };
        let is_quick = words.iter().any(|word| word == "--quick");
        let usual = if is_quick { 0.1 } else { 2.0 };
        let gb = word(words, "--gb").map_or(Ok(usual), str::parse::<f64>)?;
        // Places of records in a range have 24 bits.
        if !(0.000_1..=100.0).contains(&gb) {
            return Err(format!("--gb {gb}: give 0.0001 to 100").into());
        }
        if is_quick || gb < 1.0 {
            say(&format!("{gb} GB: too little for figures"));
        }
        Ok(Run { words: words.to_vec(), gb, temporary })
    }

    /// How many records there are.
    pub fn records(&self) -> u64 {
        (self.gb * 1e9 / 100.0) as u64
    }

    /// A number that it was told; else a usual one, and a smaller one for a quick run.
    pub fn number(&self, name: &str, usual: u64, quick: u64) -> u64 {
        let is_quick = self.words.iter().any(|word| word == "--quick");
        option(&self.words, name, if is_quick { quick } else { usual })
    }

    /// Whether something is measured: without `--only` all is.
    pub fn measures(&self, name: &str) -> bool {
        word(&self.words, "--only").is_none_or(|only| only.split(',').any(|one| one == name))
    }

    /// A folder of that name, empty at first.
    pub fn folder(&self, name: &str) -> std::io::Result<PathBuf> {
        let folder = self.temporary.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Where all files lie that the run makes.
    pub fn place(&self) -> &Path {
        self.temporary.path()
    }
}
