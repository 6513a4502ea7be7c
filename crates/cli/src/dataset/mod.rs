//! `partage dataset …`: batch data served by key.
//!
//! Some verbs ask a running node ([`door`]), some write to the source ([`origin`]), some work on files alone
//! ([`offline`]); `serve` is a node.

mod ask;
mod door;
mod neighbours;
mod offline;
mod origin;
mod progress;
mod release;
mod remove;
mod serve;
mod settings;
mod told;
mod wait;

use crate::output::{Failure, Output};
use clap::Subcommand;

/// `partage dataset …`
#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Run a node that serves the datasets of a source
    Serve(Box<serve::ServeArgs>),
    /// Say how a dataset's files are read and served
    Add(origin::AddArgs),
    /// Stop to serve a dataset, and delete its keyspace; its files stay where they are
    Remove(remove::RemoveArgs),
    /// All datasets, with the version that clients get
    List(ask::ListArgs),
    /// One dataset: its versions, where they are, what is lacking, how far loading is
    Status(ask::StatusArgs),
    /// The versions of a dataset
    Versions(ask::VersionsArgs),
    /// Have the nodes look at the source now
    Refresh(ask::RefreshArgs),
    /// Give clients an earlier version again, or the latest
    Rollback(ask::RollbackArgs),
    /// Give clients a version that is held, for want of keys mostly
    Release(release::ReleaseArgs),
    /// The value of a key
    Get(ask::GetArgs),
    /// Entries in the order of their keys, of datasets with `layout = "ordered"`
    Scan(ask::ScanArgs),
    /// Make store files of a version, for nodes to download as they are
    Build(offline::BuildArgs),
    /// What is in a store file
    Inspect(offline::FileArgs),
    /// Read a store file wholly, and check every checksum
    Verify(offline::FileArgs),
}

impl DatasetCommand {
    /// Runs it.
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
