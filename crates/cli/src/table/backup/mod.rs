//! `partage table backup …`: rows of a table in a folder or an object store, from which a new table can be made.
//!
//! | question | file |
//! |---|---|
//! | where backups are, and how their files are read and written | [`location`] |
//! | which shards a table has now, and who leads them | [`cluster`] |
//! | how the rows of one shard are read | `shard.rs` |
//! | who writes and removes at this moment, and why no backup loses a chunk | `marker.rs` |
//! | which shards are still wanted while they are split, merged and moved | `coverage.rs` |
//!
//! Why the command writes the files and not the nodes, and why chunks are cut as they are: see `partage_table::backup`.

pub mod cluster;
mod coverage;
mod create;
mod list;
pub mod location;
mod marker;
mod prune;
mod shard;
pub mod verify;

use crate::output::{Failure, Output};
use clap::Subcommand;

/// `partage table backup …`
#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Back up a table while it is written to; chunks of rows that the location has already are not written again
    Create(Box<create::CreateArgs>),
    /// List the backups in a folder or object store
    List(list::ListArgs),
    /// Remove all but the newest backups of each table, and the chunks that no backup needs then
    Prune(prune::PruneArgs),
    /// Read all files of backups, and check each bit
    Verify(verify::VerifyArgs),
}

impl BackupCommand {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        match self {
            BackupCommand::Create(args) => args.run(output).await,
            BackupCommand::List(args) => args.run(output).await,
            BackupCommand::Prune(args) => args.run(output).await,
            BackupCommand::Verify(args) => args.run(output).await,
        }
    }
}
