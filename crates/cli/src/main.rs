//! The `partage` command: reads the command line, runs one command, turns its outcome into an exit code.
//!
//! A command is a file (or a folder) of its own with two things: its `Args`, and `run`, which gets them and an
//! [`Output`]. To add one: a `mod` line, a variant of [`Command`], an arm of [`Command::run`]. Nothing else
//! in the project ends the process.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable, 4 refused (see [`output::Exit`]).

#[allow(dead_code, reason = "commands are added one by one, and not all words for an end are used yet")]
mod output;

use clap::{Parser, Subcommand};
use output::{Failure, Output};
use std::process::ExitCode;

/// Partage decides which node serves which part of a keyspace, moves parts safely, and routes to them.
#[derive(Debug, Parser)]
#[command(name = "partage", version, max_term_width = 100)]
struct Cli {
    /// Print data as JSON on stdout, and an error as JSON on stderr
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {}

impl Command {
    async fn run(self, _output: &mut Output) -> Result<(), Failure> {
        match self {}
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    let mut output = Output::new(cli.json);
    let outcome = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))
        .and_then(|runtime| runtime.block_on(cli.command.run(&mut output)));
    match outcome.and_then(|()| output.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.json),
    }
}
