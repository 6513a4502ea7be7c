//! The `partage` command: reads the command line, runs one command, turns its outcome into an exit code.
//!
//! A command is a file (or a folder) of its own with two things: its `Args`, and `run`, which gets them and an
//! [`Output`]. To add one: a `mod` line, a variant of [`Command`], an arm of [`Command::run`]. Nothing else
//! in the project ends the process.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not reachable, 4 refused, 5 not done yet, 130 ended by Ctrl-C (see
//! [`output::Exit`]).
//!
//! It is a library, of which `main.rs` is the program: cargo compiles a library beside the crates that it depends on, but a
//! program only after all of them.

mod admin;
mod backup;
mod check;
mod client;
mod clock;
mod coordination;
mod dataset;
mod door;
mod draw;
mod hints;
mod http;
mod keys;
#[allow(dead_code, reason = "commands are added one by one, and not all words for an end are used yet")]
mod output;
mod redrawn;
mod restore;
mod role;
mod shell;
mod shuffle;
mod simulate;
mod table;
mod terminal;
mod up;

use clap::{CommandFactory, Parser, Subcommand};
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
enum Command {
    /// Show a summary of the cluster: problems, moves, drains, and plans that wait for approval
    Status(admin::StatusArgs),
    /// List events: each change of the cluster with its time, reason and author
    Events(admin::EventsArgs),
    /// Manage nodes: list, show, drain, undrain, remove; with --id, run a node
    Node(NodeOrRole),
    /// Manage keyspaces: create, list, show, update, delete
    #[command(subcommand)]
    Keyspace(admin::KeyspaceCommand),
    /// Manage shards: list, show, move, split, merge and more
    #[command(subcommand)]
    Shard(admin::ShardCommand),
    /// Manage plans: list, show, approve, reject, edit
    #[command(subcommand)]
    Plan(admin::PlanCommand),
    /// Explain which shard a key is in, why the shard is on its nodes, and what would move it
    Explain(admin::ExplainArgs),
    /// Manage datasets: batch data that nodes serve by key
    #[command(subcommand)]
    Dataset(dataset::DatasetCommand),
    /// Manage tables: replicated rows that are read and written by key
    #[command(subcommand)]
    Table(table::TableCommand),
    /// Manage shuffles: records that are sorted by key and divided into equal parts; sort files
    #[command(subcommand)]
    Shuffle(shuffle::ShuffleCommand),
    /// Show or release the brake, which stops automatic moves
    #[command(subcommand)]
    Brake(admin::BrakeCommand),
    /// Write a backup of the durable state of the cluster to one file
    Backup(backup::BackupArgs),
    /// Restore a backup as the state that coordinators start from
    Restore(restore::RestoreArgs),
    /// Check whether the state of a coordinator is sound, and what can be saved
    Check(check::CheckArgs),
    /// Run a whole cluster on this machine, in one process: coordinator, nodes, router, sample data
    Up(up::UpArgs),
    /// Run a router: an HTTP reverse proxy that forwards each request to the node that has the key
    Router(role::RouterArgs),
    /// Manage coordinators: list; without a command, run a coordinator
    Coordinator(CoordinatorOrRole),
    /// Simulate sharding schemes on a sample of keys, and compare them
    Simulate(simulate::Args),
    /// Print the completion script of a shell
    ///
    /// bash: `partage completions bash > ~/.local/share/bash-completion/completions/partage`;
    /// zsh: save the script in a folder of $fpath as `_partage`; fish: save it as
    /// `~/.config/fish/completions/partage.fish`.
    Completions(shell::CompletionsArgs),
    /// Write the manual pages
    Man(shell::ManArgs),
}

/// `partage node list` asks about nodes; `partage node --id n4` is one.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct NodeOrRole {
    #[command(subcommand)]
    command: Option<admin::NodeCommand>,
    #[command(flatten)]
    role: role::NodeArgs,
}

/// `partage coordinator list` asks about coordinators; `partage coordinator` is one.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct CoordinatorOrRole {
    #[command(subcommand)]
    command: Option<admin::CoordinatorCommand>,
    #[command(flatten)]
    role: role::CoordinatorArgs,
}

impl Command {
    async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Status(args) => args.run(output).await,
            Command::Events(args) => args.run(output).await,
            Command::Node(NodeOrRole { command: Some(command), .. }) => command.run(output).await,
            Command::Node(NodeOrRole { command: None, role }) => role.run(output).await,
            Command::Up(args) => args.run(output).await,
            Command::Router(args) => args.run(output).await,
            Command::Keyspace(command) => command.run(output).await,
            Command::Shard(command) => command.run(output).await,
            Command::Plan(command) => command.run(output).await,
            Command::Explain(args) => args.run(output).await,
            Command::Dataset(command) => command.run(output).await,
            Command::Table(command) => command.run(output).await,
            Command::Shuffle(command) => command.run(output).await,
            Command::Brake(command) => command.run(output).await,
            Command::Backup(args) => args.run(output).await,
            Command::Restore(args) => args.run(output).await,
            Command::Check(args) => args.run(output).await,
            Command::Coordinator(CoordinatorOrRole { command: Some(command), .. }) => {
                command.run(output).await
            }
            Command::Coordinator(CoordinatorOrRole { command: None, role }) => role.run(output).await,
            Command::Simulate(args) => simulate::run(&args, output),
            Command::Completions(args) => {
                args.run(Cli::command(), output);
                Ok(())
            }
            Command::Man(args) => args.run(Cli::command(), output),
        }
    }
}

/// Whether `--json` is on a command line that makes no sense otherwise.
#[expect(clippy::disallowed_methods, reason = "the command line reads the command line")]
fn asks_for_json() -> bool {
    std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// Runs the command that the command line names.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&hints::with_hint(error), asks_for_json()),
    };
    let mut output = Output::new(cli.json);
    let outcome = tokio::runtime::Runtime::new()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))
        .and_then(|runtime| runtime.block_on(cli.command.run(&mut output)));
    // What was found out stands before what is wrong, also where both go to one file.
    if outcome.is_err() {
        output.flush();
    }
    match outcome.and_then(|()| output.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.json),
    }
}
