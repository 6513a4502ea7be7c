//! The figures of datasets, with the peer beside us in the same run: see the README for what each command measures.

mod cluster;
mod crowd;
mod data;
mod floor;
mod killed;
mod loading;
mod memory;
mod node;
mod nodes;
mod question;
mod reads;
mod servers;
mod switch;

use bench_gauge::{check_flags, ended, option, word};
use data::Data;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

const USAGE: &str = "bench-dataset [reads | nodes | switch | killed | loading | memory] \
    [--keys N] [--seconds N] [--rounds N] [--only partage] [--sequins PROGRAM] [--index FILE] [--folder FOLDER]";

/// What a command gives back.
pub type Done = Result<(), Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a bench is a program of its own")]
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = words.first().map(String::as_str).filter(|word| !word.starts_with("--"));
    let done = match command.unwrap_or("reads") {
        "reads" => Run::new(&words).and_then(|run| reads::bench(&run)),
        "nodes" => Run::new(&words).and_then(|run| nodes::bench(&run)),
        "switch" => Run::new(&words).and_then(|run| switch::bench(&run)),
        "killed" => Run::new(&words).and_then(|run| killed::bench(&run)),
        "loading" => Run::new(&words).and_then(|run| loading::bench(&run)),
        "memory" => Run::new(&words).and_then(|run| memory::bench(&run)),
        "serve" => serve(&words),
        "node" => node::run(&words),
        "floor" => floor::serve(&words),
        other => Err(format!("there is no command {other:?}: {USAGE}").into()),
    };
    ended(done)
}

fn serve(words: &[String]) -> Done {
    match words {
        [_, folder, at, threads] => servers::serve(Path::new(folder), at.parse()?, threads.parse()?),
        _ => Err("serve FOLDER ADDRESS THREADS".into()),
    }
}

/// What all commands are told, and where they work.
pub struct Run {
    words: Vec<String>,
    /// The keys and values that every server gets.
    pub data: Data,
    /// Sequins, if it is measured.
    pub sequins: Option<PathBuf>,
    /// Gone at the end.
    temporary: TempDir,
}

impl Run {
    fn new(words: &[String]) -> Result<Run, Box<dyn std::error::Error>> {
        check_flags(words, USAGE)?;
        let data = match word(words, "--index") {
            Some(file) => Data::read(Path::new(file))?,
            None => Data::Made(option(words, "--keys", 4_000_000)),
        };
        let temporary = match word(words, "--folder") {
            Some(folder) => TempDir::new_in(folder)?,
            None => TempDir::new()?,
        };
        let sequins = word(words, "--sequins").map(PathBuf::from);
        Ok(Run { words: words.to_vec(), data, sequins, temporary })
    }

    /// A number that it was told.
    pub fn number(&self, name: &str, default: u64) -> u64 {
        option(&self.words, name, default)
    }

    /// Whether no peer is measured.
    pub fn is_alone(&self) -> bool {
        word(&self.words, "--only") == Some("partage")
    }

    /// A folder of that name, empty at first.
    pub fn folder(&self, name: &str) -> std::io::Result<PathBuf> {
        let folder = self.temporary.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Writes a version of the dataset as a batch job would, into the source that all servers get; its length.
    pub fn write_version(&self, version: u32) -> std::io::Result<u64> {
        let folder = self.source()?.join("bench").join(data::version_name(version));
        if folder.exists() {
            return data::folder_bytes(&folder);
        }
        self.data.sequence_files(&folder, version)
    }

    /// The folder with the dataset `bench`.
    pub fn source(&self) -> std::io::Result<PathBuf> {
        self.folder("source")
    }
}
