//! `partage shuffle …`: shuffles.
//!
//! `serve` is a node of a pool.

mod serve;

use crate::output::{Failure, Output};
use clap::Subcommand;

/// `partage shuffle …`
#[derive(Debug, Subcommand)]
pub enum ShuffleCommand {
    /// Run a node that buffers and stores the records of shuffles
    Serve(Box<serve::Serve>),
}

impl ShuffleCommand {
    /// Runs it.
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            ShuffleCommand::Serve(args) => args.run(output).await,
        }
    }
}
