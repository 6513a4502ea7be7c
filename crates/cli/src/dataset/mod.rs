//! `partage dataset …`: batch data served by key.
//!
//! Some verbs ask a running node ([`node_client`]), some write to the source ([`origin`]), some work on files alone
//! ([`offline`]); `serve` is a node.

mod ask;
mod neighbours;
mod node_client;
mod offline;
mod origin;
mod progress;
mod release;
mod remove;
mod rollback;
mod serve;
mod settings;
mod wait;

pub use settings::{environment, make_folder};

use crate::output::{Failure, Output};
use clap::Subcommand;

/// The commands of `partage dataset`.
#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Run a node that serves the datasets of a source
    Serve(Box<serve::ServeArgs>),
    /// Add a dataset: write to the source how nodes read and serve its files
    Add(origin::AddArgs),
    /// Stop serving a dataset and delete its keyspace; its files stay in the source
    Remove(remove::RemoveArgs),
    /// List all datasets, with the version that clients get
    List(ask::ListArgs),
    /// Show one dataset: its versions, the nodes that have them, what is missing, and load progress
    Status(ask::StatusArgs),
    /// List the versions of a dataset
    Versions(ask::VersionsArgs),
    /// Make the nodes check the source for new versions now
    Refresh(ask::RefreshArgs),
    /// Give clients an earlier version again, or the latest
    Rollback(rollback::RollbackArgs),
    /// Give clients a version that the nodes hold back, mostly because it has too few keys
    Release(release::ReleaseArgs),
    /// Print the value of a key
    Get(ask::GetArgs),
    /// List entries in key order, from a dataset with `layout = "ordered"`
    Scan(ask::ScanArgs),
    /// Build the store files of a version, which nodes download as they are
    Build(offline::BuildArgs),
    /// Show what a store file contains
    Inspect(offline::FileArgs),
    /// Read a whole store file, and verify every checksum
    Verify(offline::FileArgs),
}

impl DatasetCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            DatasetCommand::Serve(args) => args.run(output).await,
            DatasetCommand::Add(args) => args.run(output).await,
            DatasetCommand::Remove(args) => args.run(output).await,
            DatasetCommand::List(args) => args.run(output).await,
            DatasetCommand::Status(args) => args.run(output).await,
            DatasetCommand::Versions(args) => args.run(output).await,
            DatasetCommand::Refresh(args) => args.run(output).await,
            DatasetCommand::Rollback(args) => args.run(output).await,
            DatasetCommand::Release(args) => args.run(output).await,
            DatasetCommand::Get(args) => args.run(output).await,
            DatasetCommand::Scan(args) => args.run(output).await,
            DatasetCommand::Build(args) => args.run(output).await,
            DatasetCommand::Inspect(args) => offline::inspect(&args, output),
            DatasetCommand::Verify(args) => offline::verify(&args, output),
        }
    }
}
