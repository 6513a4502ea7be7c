//! The figures of tables, with the peers beside us in the same run: see the README for what each command measures.

mod away;
mod cluster;
mod fill;
mod floor;
mod indexed;
mod killed;
mod latency;
mod load;
mod peers;
mod reads;
mod reshape;
mod resp;
mod restart;
mod rows;
mod writes;

use bench_gauge::{complain, option, say, word};
use std::path::PathBuf;
use std::process::ExitCode;
use tempfile::TempDir;

/// That of `partage`: the floor is no slower for its allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "bench-table [writes | indexed | latency | reads | killed | restart | away | reshape] [--quick] \
    [--seconds N] [--rounds N] [--shards N] [--keys N] [--times N] [--mib N] [--only NAME,NAME] [--folder FOLDER]";

/// What a command gives back.
pub type Done = Result<(), Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a bench is a program of its own")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = words.first().map(String::as_str).filter(|word| !word.starts_with("--"));
    let done = match command.unwrap_or("writes") {
        "writes" => Run::new(&words).and_then(|run| writes::bench(&run)),
        "indexed" => Run::new(&words).and_then(|run| indexed::bench(&run)),
        "latency" => Run::new(&words).and_then(|run| latency::bench(&run)),
        "reads" => Run::new(&words).and_then(|run| reads::bench(&run)),
        "killed" => Run::new(&words).and_then(|run| killed::bench(&run)),
        "restart" => Run::new(&words).and_then(|run| restart::bench(&run)),
        "away" => Run::new(&words).and_then(|run| away::bench(&run)),
        "reshape" => Run::new(&words).and_then(|run| reshape::bench(&run)),
        "floor-node" => floor::node(&words),
        "floor-leader" => floor::leader(&words),
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
    /// Gone at the end.
    temporary: TempDir,
}

impl Run {
    fn new(words: &[String]) -> Result<Run, Box<dyn std::error::Error>> {
        let temporary = match word(words, "--folder") {
            Some(folder) => TempDir::new_in(folder)?,
            None => TempDir::new()?,
        };
        let run = Run { words: words.to_vec(), temporary };
        if run.is_quick() {
            say("--quick: too short for figures");
        }
        Ok(run)
    }

    /// Whether it only tries whether everything works.
    pub fn is_quick(&self) -> bool {
        self.words.iter().any(|word| word == "--quick")
    }

    /// A number that it was told; else a usual one, and a smaller one for a quick run.
    pub fn number(&self, name: &str, usual: u64, quick: u64) -> u64 {
        option(&self.words, name, if self.is_quick() { quick } else { usual })
    }

    /// Whether a server is measured: without `--only` all are.
    pub fn measures(&self, name: &str) -> bool {
        word(&self.words, "--only").is_none_or(|only| only.split(',').any(|one| one == name))
    }

    /// A folder of that name, empty at first.
    pub fn folder(&self, name: &str) -> std::io::Result<PathBuf> {
        let folder = self.temporary.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}
