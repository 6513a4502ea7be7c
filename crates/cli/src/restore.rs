//! `partage restore FILE`: a backup becomes the state from which coordinators start.
//!
//! Into an empty place only, so there is nothing it could destroy. What the file says is checked as a whole before
//! anything is written.

use crate::backup::{self, Contents};
use crate::clock::ago;
use crate::coordination::CoordinationArgs;
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_clock::unix_ms;
use partage_coordinator::coordination_state::restore::{Restore, RestoreError, can_restore};
use partage_coordinator::{Backing, StoreError};
use partage_core::base::time::Millis;
use partage_core::cluster::Records;
use partage_core::keyspace::Ownership;
use partage_core::node::lease::GrantedLease;
use std::path::PathBuf;
use std::time::Duration;

/// The arguments of `partage restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The file that `partage backup` wrote
    file: PathBuf,
    /// Restore into this new directory, as the state of one coordinator
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    coordination: CoordinationArgs,
    /// Check the file and the place to restore to, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not wait for the leases of the former coordinators to end; use it only when all of these coordinators stopped
    /// longer ago than a lease lasts
    #[arg(long)]
    no_wait: bool,
}

impl RestoreArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        crate::door::make_state_private();
        let backing = self.backing()?;
        let unreadable = |error| Failure::usage(format!("cannot read {}: {error}", self.file.display()));
        let bytes = std::fs::read(&self.file).map_err(unreadable)?;
        let (records, contents) = backup::read(&self.file, &bytes)?;
        drop(bytes);
        let place = backing.place();
        can_restore(&backing).await.map_err(failure)?;
        if self.dry_run {
            return told(&contents, &format!("would be restored into {place}"), output);
        }
        let wait = if self.no_wait { Duration::ZERO } else { leases(&records) };
        let restore = Restore::begin(&backing).await.map_err(failure)?;
        restore.write(records.after_loss(unix_ms())).await.map_err(failure)?;
        if !wait.is_zero() {
            say(&format!(
                "written; waiting {} s, until no lease of before can hold any more",
                wait.as_secs()
            ));
            tokio::time::sleep(wait).await;
        }
        let cluster = restore.cluster();
        restore.end().await.map_err(failure)?;
        told(
            &contents,
            &format!("restored into {place} as cluster {cluster}: start coordinators there"),
            output,
        )
    }

    fn backing(&self) -> Result<Backing, Failure> {
        let session = self.coordination.session()?;
        match (&self.data_dir, self.coordination.target()?) {
            (Some(dir), None) => Ok(Backing::Directory(dir.clone())),
            (None, Some(target)) => Ok(Backing::Shared { target: Box::new(target), data_dir: None, session }),
            (None, None) => {
                Err(Failure::usage("name where to restore it: --data-dir DIR, or --coordination ADDRESS"))
            }
            (Some(_), Some(_)) => Err(Failure::usage(
                "a backup is restored to one place: --data-dir or --coordination (PARTAGE_COORDINATION), not both",
            )),
        }
    }
}

/// Until the leases are over that were given last, where anybody relies on one.
fn leases(records: &Records) -> Duration {
    let exclusive = |ownership| ownership == Ownership::Exclusive;
    if !records.keyspaces.iter().any(|(record, _)| exclusive(record.keyspace.ownership)) {
        return Duration::ZERO;
    }
    Duration::from_millis(GrantedLease::assumed(Millis(0), records.cluster.longest_lease_ms).end().0)
}

fn told(contents: &Contents, what: &str, output: &mut Output) -> Result<(), Failure> {
    backup::show(contents, output)?;
    let age = ago(contents.taken_ms()).as_secs();
    if contents.taken_ms() > 0 {
        say(&format!("taken {age} s ago; what was changed since then is not in it"));
    }
    say(&format!("{} {what}", contents.backup));
    Ok(())
}

fn failure(error: RestoreError) -> Failure {
    use partage_coordination::Error;
    match &error {
        RestoreError::Store(StoreError::Coordination(Error::Unavailable { .. })) => {
            Failure::not_reachable(error)
        }
        RestoreError::Store(StoreError::Coordination(Error::Invalid { .. } | Error::Denied { .. }))
        | RestoreError::Directory { .. }
        | RestoreError::Busy(_) => Failure::refused(error),
        RestoreError::Nowhere => Failure::usage(error),
        RestoreError::Store(_) | RestoreError::Recover(_) => Failure::failed(error),
    }
}
