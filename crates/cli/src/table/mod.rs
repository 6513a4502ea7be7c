//! `partage table …`: replicated tables.
//!
//! Some verbs ask a coordinator ([`create`]), some a node of tables ([`rows`], [`scan`], [`feed`], [`load`]), some both
//! ([`backup`], [`restore`]). [`nodes`] says what the answers of nodes mean; `serve` is such a node.

mod backup;
mod check;
mod create;
mod feed;
mod index;
mod load;
mod nodes;
mod restore;
mod rows;
mod scan;
mod serve;

pub use index::{WAIT as INDEX_WAIT, create_whole as create_index, is_there as has_index};
pub use load::{Bounded, ROW_BYTES, load_absent};
pub use nodes::TableNodes;
pub use serve::LISTEN;

use crate::output::{Failure, Output};
use clap::Subcommand;

/// The commands of `partage table`.
#[derive(Debug, Subcommand)]
pub enum TableCommand {
    /// Run a node that stores and serves replicas of tables
    Serve(Box<serve::ServeArgs>),
    /// Create a table: a keyspace whose shards are replicated
    Create(Box<create::CreateArgs>),
    /// List all tables
    List(create::ListArgs),
    /// Show one table with every setting
    Show(create::ShowArgs),
    /// Print the value of a key
    Get(rows::GetArgs),
    /// List rows, in order
    Scan(scan::ScanArgs),
    /// List what became of the rows of a table that keeps changes
    Feed(feed::FeedArgs),
    /// Write the rows of a file
    Load(load::LoadArgs),
    /// Write the value of a key
    Put(rows::PutArgs),
    /// Delete a key
    Delete(rows::DeleteArgs),
    /// Back up the rows of a table to a folder or object store, list backups, verify them
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Create a table with the rows of a backup
    Restore(Box<restore::RestoreArgs>),
    /// Create, list, ask and drop secondary indexes of JSON values
    #[command(subcommand)]
    Index(index::IndexCommand),
    /// Compare the replicas of a table, and its rows with its indexes
    Check(check::CheckArgs),
    /// Delete a table with all its rows
    Drop(create::DropArgs),
}

impl TableCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            TableCommand::Serve(args) => args.run(output).await,
            TableCommand::Create(args) => args.run(output).await,
            TableCommand::List(args) => args.run(output).await,
            TableCommand::Show(args) => args.run(output).await,
            TableCommand::Get(args) => args.run(output).await,
            TableCommand::Scan(args) => args.run(output).await,
            TableCommand::Feed(args) => args.run(output).await,
            TableCommand::Load(args) => args.run(output).await,
            TableCommand::Put(args) => args.run(output).await,
            TableCommand::Delete(args) => args.run(output).await,
            TableCommand::Backup(command) => command.run(output).await,
            TableCommand::Restore(args) => args.run(output).await,
            TableCommand::Index(command) => command.run(output).await,
            TableCommand::Check(args) => args.run(output).await,
            TableCommand::Drop(args) => args.run(output).await,
        }
    }
}
