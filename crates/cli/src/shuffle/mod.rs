//! `partage shuffle …`: shuffles, and the sort that is made of one.
//!
//! `serve` is a node of a pool. The other verbs ask nodes ([`nodes`]): by the client of shuffles, and [`list`] over HTTP on the
//! same ports.

mod bounds;
mod control;
pub mod flight;
mod list;
mod nodes;
mod objects;
mod serve;
mod sort;

#[cfg(test)]
pub use nodes::NODES;

use crate::output::{Failure, Output};
use clap::Subcommand;

/// `partage shuffle …`
#[derive(Debug, Subcommand)]
pub enum ShuffleCommand {
    /// Run a node that buffers and stores the records of shuffles
    Serve(Box<serve::Serve>),
    /// Start a shuffle, and print its handle
    Start(control::StartArgs),
    /// Seal a shuffle: it takes no more records, and can be read
    Seal(control::SealArgs),
    /// Delete a shuffle with all its records
    Delete(control::DeleteArgs),
    /// List all shuffles
    List(list::ListArgs),
    /// Show how far one shuffle is, and what it waits for
    Show(list::ShowArgs),
    /// Print the keys at which the partitions of a sealed shuffle begin
    Bounds(bounds::BoundsArgs),
    /// Sort files into equal parts
    Sort(Box<sort::SortArgs>),
}

impl ShuffleCommand {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            ShuffleCommand::Serve(args) => args.run(output).await,
            ShuffleCommand::Start(args) => args.run(output).await,
            ShuffleCommand::Seal(args) => args.run(output).await,
            ShuffleCommand::Delete(args) => args.run(output).await,
            ShuffleCommand::List(args) => args.run(output).await,
            ShuffleCommand::Show(args) => args.run(output).await,
            ShuffleCommand::Bounds(args) => args.run(output).await,
            ShuffleCommand::Sort(args) => args.run(output).await,
        }
    }
}
