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

use bench_gauge::{Run, check_flags, ended, median, say};
use std::process::ExitCode;

/// That of `partage`: the floor is no slower for its allocator.
#[global_allocator]
static ALLOCATOR: partage_allocator::Allocator = partage_allocator::Allocator;

const USAGE: &str = "bench-table [writes | indexed | latency | reads | killed | restart | away | reshape] [--quick] \
    [--seconds N] [--rounds N] [--shards N] [--keys N] [--times N] [--mib N] [--only NAME,NAME] [--folder FOLDER]";

/// What a command gives back.
pub type Done = Result<(), Box<dyn std::error::Error>>;

#[expect(clippy::disallowed_methods, reason = "a bench is a program of its own")]
fn main() -> ExitCode {
    partage_allocator::keep_freed_memory();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let command = words.first().map(String::as_str).filter(|word| !word.starts_with("--"));
    let done = match command.unwrap_or("writes") {
        "writes" => begin(&words).and_then(|run| writes::bench(&run)),
        "indexed" => begin(&words).and_then(|run| indexed::bench(&run)),
        "latency" => begin(&words).and_then(|run| latency::bench(&run)),
        "reads" => begin(&words).and_then(|run| reads::bench(&run)),
        "killed" => begin(&words).and_then(|run| killed::bench(&run)),
        "restart" => begin(&words).and_then(|run| restart::bench(&run)),
        "away" => begin(&words).and_then(|run| away::bench(&run)),
        "reshape" => begin(&words).and_then(|run| reshape::bench(&run)),
        "floor-node" => floor::node(&words),
        "floor-leader" => floor::leader(&words),
        "floor-reader" => floor::reader(&words),
        other => Err(format!("there is no command {other:?}: {USAGE}").into()),
    };
    ended(done)
}

/// A run of a command. One that is quick says so.
fn begin(words: &[String]) -> Result<Run, Box<dyn std::error::Error>> {
    check_flags(words, USAGE)?;
    let run = Run::new(words)?;
    if run.is_quick() {
        say("--quick: too short for figures");
    }
    Ok(run)
}
