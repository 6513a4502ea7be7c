//! `partage table backup prune`: removes all but the newest backups of each table, and the chunks that no backup names then.
//!
//! In which order, and why no backup loses a chunk while others are written: `marker.rs`.

use super::location::{Listed, Location};
use super::marker::{self, Marker, Work};
use crate::client::DryRun;
use crate::output::{Failure, Output, say};
use crate::role::StopSignals;
use clap::Args;
use indicatif::HumanBytes;
use partage_clock::unix_ms;
use partage_core::base::count::counted;
use partage_wire::table::backup::ContentDigest;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// `partage table backup prune`
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// Folder, or a URL such as s3://bucket/prefix
    location: String,
    /// Number of backups of each table to keep: the newest
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Remove only backups of this table
    #[arg(long)]
    table: Option<String>,
    /// Remove nothing; print what would be removed
    #[command(flatten)]
    dry: DryRun,
}

/// What a prune removes, or has removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    pub backups: Vec<Listed>,
    /// How many backups stay.
    pub kept: usize,
    /// How many chunks no backup names any more.
    pub chunks: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

/// Which backups a prune removes.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The number of backups of each table that stay, the newest.
    pub keep: usize,
    /// The table whose backups go; none: those of all tables.
    pub table: Option<String>,
}

impl Wanted {
    /// The backups that go, and those that stay.
    fn parted(&self, listed: Vec<Listed>) -> (Vec<Listed>, Vec<Listed>) {
        let mut newer: BTreeMap<String, usize> = BTreeMap::new();
        // Later backups of a table come later.
        let (mut goes, mut stays): (Vec<_>, Vec<_>) = listed.into_iter().rev().partition(|listed| {
            let newer = newer.entry(listed.table.clone()).or_default();
            *newer += 1;
            *newer > self.keep && self.table.as_ref().is_none_or(|table| *table == listed.table)
        });
        goes.reverse();
        stays.reverse();
        (goes, stays)
    }
}

/// Adds the chunks of backups. One that cannot be read could name any.
async fn named(
    location: &Location,
    backups: &[Listed],
    chunks: &mut BTreeSet<ContentDigest>,
) -> Result<(), Failure> {
    for listed in backups {
        let manifest = location.manifest(listed).await.map_err(|error| match error.is_of_file() {
            true => Failure::refused(format!("{error}: which chunks it needs is not known"))
                .kind("damaged")
                .help("bring the file back from a copy, or remove it, and run the same command again"),
            false => error.failure(),
        })?;
        chunks.extend(manifest.chunks().map(|entry| entry.digest.0));
    }
    Ok(())
}

/// What would be removed at this moment.
///
/// # Errors
/// A backup that stays is damaged, or the store does not answer.
pub async fn foresee(location: &Location, wanted: &Wanted) -> Result<Pruned, Failure> {
    let there = location.chunks().await?;
    let (goes, stays) = wanted.parted(location.backups().await?);
    let mut needed = BTreeSet::new();
    named(location, &stays, &mut needed).await?;
    let bytes: Vec<u64> =
        there.iter().filter(|(digest, _)| !needed.contains(digest)).map(|(_, bytes)| *bytes).collect();
    let (chunks, bytes) = (bytes.len() as u64, bytes.iter().sum());
    Ok(Pruned { backups: goes, kept: stays.len(), chunks, bytes })
}

/// Removes backups and chunks, under its marker.
///
/// # Errors
/// Another command is at work, a backup that stays is damaged, or the store refuses. Each backup that is there then is whole.
pub async fn prune(location: &Location, wanted: &Wanted, marker: &Marker) -> Result<Pruned, Failure> {
    for old in marker::seen(location).await?.into_iter().filter(|marker| !marker.is_young) {
        location.remove_marker(&old.name).await?;
    }
    alone(marker).await?;
    let there = location.chunks().await?;
    let (goes, stays) = wanted.parted(location.backups().await?);
    let mut needed = BTreeSet::new();
    named(location, &stays, &mut needed).await?;
    for listed in &goes {
        marker.check()?;
        location.remove_manifest(&listed.table, &listed.id).await?;
    }
    // Markers before manifests: a writer removes its marker when its manifest is there.
    alone(marker).await?;
    let mut now = location.backups().await?;
    let kept = now.len();
    now.retain(|listed| !stays.contains(listed));
    named(location, &now, &mut needed).await?;
    let mut pruned = Pruned { backups: goes, kept, chunks: 0, bytes: 0 };
    for (digest, bytes) in there.into_iter().filter(|(digest, _)| !needed.contains(digest)) {
        marker.check()?;
        location.remove_chunk(digest).await?;
        (pruned.chunks, pruned.bytes) = (pruned.chunks + 1, pruned.bytes + bytes);
    }
    Ok(pruned)
}

async fn alone(marker: &Marker) -> Result<(), Failure> {
    match marker.others().await?.first() {
        Some(other) => Err(marker.occupied(other)),
        None => Ok(()),
    }
}

impl PruneArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let location = Location::open(&self.location)?;
        let wanted = Wanted { keep: self.keep as usize, table: self.table.clone() };
        if self.dry.dry_run {
            for marker in marker::seen(&location).await?.into_iter().filter(|marker| marker.is_young) {
                say(&format!("warning: another command is at work: markers/{}", marker.name));
            }
            return self.told(&location, &foresee(&location, &wanted).await?, output);
        }
        let mut signals = StopSignals::listen()?;
        let id = super::create::id(unix_ms());
        let marker = Marker::put(&location, Work::Prune, &id).await?;
        let ended = signals.unless_asked(marker.during(prune(&location, &wanted, &marker))).await;
        marker.remove().await;
        let Some(ended) = ended else {
            return Err(Failure::interrupted("interrupted: the backups that are there are whole")
                .help("run the same command again: it removes the rest"));
        };
        self.told(&location, &ended?, output)
    }

    fn told(&self, location: &Location, pruned: &Pruned, output: &mut Output) -> Result<(), Failure> {
        let Pruned { backups, kept, chunks, bytes } = pruned;
        if output.is_json() {
            let backup = |listed: &Listed| json!({ "table": listed.table, "backup": listed.id });
            return output.json(&json!({
                "location": location.to_string(), "dry_run": self.dry.dry_run, "removed": backups.iter().map(backup).collect::<Vec<_>>(),
                "kept": kept, "chunks_removed": chunks, "bytes_removed": bytes,
            }));
        }
        let would = if self.dry.dry_run { "would remove" } else { "removed" };
        backups.iter().for_each(|listed| {
            output.text(&format!("{would} backup {} of table {}", listed.id, listed.table))
        });
        let chunks = counted(usize::try_from(*chunks).unwrap_or(usize::MAX), "chunk");
        let (removed, kept) = (counted(backups.len(), "backup"), counted(*kept, "backup"));
        output.text(&format!("{would} {removed} and {chunks}, {}; {kept} stay", HumanBytes(*bytes)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
