//! `partage table backup create`.

use super::cluster::{self, ShardView};
use super::coverage::missing;
use super::location::{Listed, Location};
use super::marker::{Marker, Work};
use super::shard::{Backup, Base, Interrupted};
use crate::client::{ApiClient, DryRun};
use crate::output::{Failure, Output, say};
use crate::redrawn::drawn;
use crate::role::StopSignals;
use clap::Args;
use indicatif::{HumanBytes, ProgressBar};
use partage_clock::unix_ms;
use partage_core::base::count::counted;
use partage_wire::json::Keyspace;
use partage_wire::json::Sharding;
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::manifest::{ChunkEntry, IndexEntry, Manifest, ShardBackup, gap};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// How long no shard may be read before the command gives up: longer than a coordinator takes to replace a dead leader.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often shards may break off half-read, none of them being read to its end meanwhile.
const BREAKS: u32 = 10;

/// Rest before shards are looked for anew.
const REST: Duration = Duration::from_millis(500);

/// `partage table backup create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name of the table
    table: String,
    /// Folder, or a URL such as s3://bucket/prefix; it may hold backups of several tables
    location: String,
    /// Earlier backup in the location, whose chunks the nodes need not send [default: the latest of the table]
    #[arg(long, value_name = "ID", conflicts_with = "full")]
    base: Option<String>,
    /// Send and write all chunks anew, whatever the location has
    #[arg(long)]
    full: bool,
    /// Number of shards to read at once
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    #[command(flatten)]
    client: ApiClient,
    /// Write nothing; print what would be read
    #[command(flatten)]
    dry: DryRun,
}

impl CreateArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let settings = cluster::settings(&self.client, &self.table).await?;
        let shards = cluster::shards(&self.client, &self.table).await?;
        if self.dry.dry_run {
            return self.foresee(&shards, output).await;
        }
        let mut signals = StopSignals::listen()?;
        let location = Location::create(&self.location)?;
        let id = id(unix_ms());
        let marker = Marker::put(&location, Work::Write, &id).await?;
        let work = self.take((id, settings), &shards, (&location, &marker), output);
        let ended = signals.unless_asked(marker.during(work)).await;
        marker.remove().await;
        let Some(ended) = ended else {
            return Err(Failure::interrupted("interrupted: the location has no new backup")
                .help("run the same command again: chunks that are written are not written again"));
        };
        ended
    }

    /// The earlier backup, and the chunks that are there.
    async fn base(
        &self,
        location: &Location,
    ) -> Result<(Option<Manifest>, BTreeMap<ContentDigest, u64>), Failure> {
        if self.full {
            return Ok((None, BTreeMap::new()));
        }
        let mut there = location.chunks().await?;
        let listed = match &self.base {
            Some(id) => vec![location.choose(Some(id)).await?],
            None => location.backups().await?,
        };
        let is_candidate = |listed: &Listed| self.base.is_some() || listed.table == self.table;
        for listed in listed.into_iter().rev().filter(is_candidate) {
            match location.manifest(&listed).await {
                Ok(manifest) => {
                    // A file of another length is damaged: it is written anew.
                    let is_cut = |entry: &&ChunkEntry| {
                        there.get(&entry.digest.0).is_some_and(|bytes| *bytes != entry.file_bytes)
                    };
                    let cut: Vec<_> = manifest.chunks().filter(is_cut).map(|entry| entry.digest.0).collect();
                    there.retain(|digest, _| !cut.contains(digest));
                    return Ok((Some(manifest), there));
                }
                Err(error) if self.base.is_none() && error.is_of_file() => say(&format!("warning: {error}")),
                Err(error) => return Err(error.failure()),
            }
        }
        Ok((None, there))
    }

    async fn foresee(&self, shards: &[ShardView], output: &mut Output) -> Result<(), Failure> {
        let base = match Location::open(&self.location) {
            Ok(location) => self.base(&location).await?.0.map(|manifest| manifest.id),
            // The folder would be made.
            Err(error) if error.what().starts_with("there is no folder") => None,
            Err(error) => return Err(error),
        };
        let size_bytes: u64 = shards.iter().map(|shard| shard.size_bytes).sum();
        let (table, location) = (&self.table, &self.location);
        if output.is_json() {
            return output.json(&json!({
                "dry_run": true, "table": table, "location": location, "shards": shards.len(),
                "size_bytes": size_bytes, "base": base,
            }));
        }
        let base =
            base.map_or("no earlier backup".to_owned(), |base| format!("what has changed since {base}"));
        output.text(&format!(
            "would: back up {} of table {table}, {} on disk, to {location}: {base}",
            counted(shards.len(), "shard"),
            HumanBytes(size_bytes),
        ));
        Ok(())
    }

    async fn take(
        &self,
        (id, settings): (String, Keyspace),
        shards: &[ShardView],
        (location, marker): (&Location, &Marker),
        output: &mut Output,
    ) -> Result<(), Failure> {
        marker.alone_with_writers().await?;
        let began_ms = unix_ms();
        let indexes = self.indexes(&settings, shards).await?;
        let (base, there) = self.base(location).await?;
        let bar = drawn(
            ProgressBar::new(shards.iter().map(|shard| shard.size_bytes).sum())
                .with_message(self.table.clone()),
            "{msg} {wide_bar} {bytes} read, {bytes_per_sec}",
            output.is_json(),
        );
        let backup = Arc::new(Backup {
            location: location.clone(),
            table: self.table.clone(),
            base: base.as_ref().map(|manifest| Base::of(manifest, &there)).unwrap_or_default(),
            there: Mutex::new(there),
            written: Mutex::default(),
            bar,
        });
        let mut shards = self.read(&backup, &settings.sharding).await?;
        shards.sort_by(|one, other| one.begin.cmp(&other.begin));
        backup.bar.finish_and_clear();
        let written = *backup.written.lock().unwrap_or_else(PoisonError::into_inner);
        let manifest = Manifest {
            id,
            table: self.table.clone(),
            began_ms,
            ended_ms: unix_ms(),
            by: env!("CARGO_PKG_VERSION").to_owned(),
            settings,
            indexes,
            base: base.map(|base| base.id),
            shards,
            chunks_written: written.chunks,
            bytes_written: written.bytes,
        };
        marker.put_manifest(&manifest).await?;
        told(&manifest, location, output)
    }

    /// The indexes of the table. One without a partition has none.
    async fn indexes(&self, settings: &Keyspace, shards: &[ShardView]) -> Result<Vec<IndexEntry>, Failure> {
        if matches!(settings.sharding, Sharding::Named {}) && shards.is_empty() {
            return Ok(Vec::new());
        }
        let until = Instant::now() + PATIENCE;
        loop {
            match cluster::indexes(&self.client, &self.table).await {
                Err(error) if error.is_not_reachable() && Instant::now() < until => sleep(REST).await,
                other => return other,
            }
        }
    }

    /// Reads all shards, and those anew that are split, merged or moved meanwhile.
    async fn read(&self, backup: &Arc<Backup>, sharding: &Sharding) -> Result<Vec<ShardBackup>, Failure> {
        let mut read: Vec<ShardBackup> = Vec::new();
        let (mut until, mut broken) = (Instant::now() + PATIENCE, 0);
        let mut last = "its shards do not hold every key".to_owned();
        loop {
            match cluster::shards(&self.client, &self.table).await {
                Ok(now) => {
                    let wanted = missing(now, &mut read);
                    read.sort_by(|one, other| one.begin.cmp(&other.begin));
                    if wanted.is_empty() && gap(sharding, &read).is_none() {
                        return Ok(read);
                    }
                    let before = (read.len(), backup.bar.position());
                    let why = self.read_each(backup, wanted, &mut read).await?;
                    // A shard that breaks off after hours has not used up the patience, unless it does so always.
                    broken = if read.len() > before.0 { 0 } else { broken + 1 };
                    if read.len() > before.0 || (backup.bar.position() > before.1 && broken < BREAKS) {
                        until = Instant::now() + PATIENCE;
                    }
                    last = why.unwrap_or(last);
                }
                Err(error) if error.is_not_reachable() => error.what().clone_into(&mut last),
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                let what = format!("table {} is not backed up: {last}", self.table);
                return Err(Failure::not_done(what)
                    .help("`partage status` says what is wrong; run the same command again afterwards: what is written is not written again"));
            }
            sleep(REST).await;
        }
    }

    /// Reads these shards, some at a time; says why one was not read.
    async fn read_each(
        &self,
        backup: &Arc<Backup>,
        wanted: Vec<ShardView>,
        read: &mut Vec<ShardBackup>,
    ) -> Result<Option<String>, Failure> {
        let at_once = Arc::new(Semaphore::new(self.parallel.into()));
        let mut reading = JoinSet::new();
        for shard in wanted {
            let (backup, at_once) = (Arc::clone(backup), Arc::clone(&at_once));
            reading.spawn(async move {
                let _one = at_once.acquire_owned().await.map_err(Failure::failed)?;
                backup.shard(&shard).await
            });
        }
        let mut why = None;
        while let Some(ended) = reading.join_next().await {
            match ended.map_err(Failure::failed)? {
                Ok(shard) => read.push(shard),
                Err(Interrupted::Again(reason)) => why = Some(reason),
                Err(Interrupted::Failed(failure)) => return Err(failure),
            }
        }
        Ok(why)
    }
}

fn told(manifest: &Manifest, location: &Location, output: &mut Output) -> Result<(), Failure> {
    let Manifest { id, table, shards, chunks_written, bytes_written, base, indexes, .. } = manifest;
    let (rows, chunks) = (manifest.rows(), manifest.chunks().count());
    if output.is_json() {
        return output.json(&json!({
            "backup": id, "table": table, "location": location.to_string(), "shards": shards.len(), "rows": rows,
            "content_bytes": manifest.content_bytes(), "chunks": chunks, "chunks_written": chunks_written,
            "bytes_written": bytes_written, "base": base, "indexes": indexes,
        }));
    }
    output.text(&format!(
        "backup {id} of table {table}: {} in {}, {}; {} written, {}",
        counted(usize::try_from(rows).unwrap_or(usize::MAX), "row"),
        counted(shards.len(), "shard"),
        HumanBytes(manifest.content_bytes()),
        counted(usize::try_from(*chunks_written).unwrap_or(usize::MAX), "chunk"),
        HumanBytes(*bytes_written),
    ));
    Ok(())
}

/// An id: the time, so that later backups come later in a listing, and what tells two of one moment apart.
pub(super) fn id(at_ms: u64) -> String {
    let random = partage_random::bytes::<4>().map(|byte| format!("{byte:02x}")).concat();
    format!("{}-{random}", stamp(at_ms))
}

/// A moment of Unix time in UTC, as 20261128T065456.789Z.
fn stamp(at_ms: u64) -> String {
    let (days, seconds, ms) = (at_ms / 86_400_000, at_ms / 1_000 % 86_400, at_ms % 1_000);
    // Days since the first of March of the year 0 make months that end where the leap day is.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_the_time_in_utc() {
        // As `date -u -d @… +%Y%m%dT%H%M%S` has them.
        for (seconds, text) in [
            (0, "19700101T000000.007Z"),
            (951_782_400, "20000229T000000.007Z"),
            (1_709_164_799, "20240228T235959.007Z"),
            (1_709_251_200, "20240301T000000.007Z"),
            (1_795_848_896, "20261128T065456.007Z"),
            (4_107_542_400, "21000301T000000.007Z"),
        ] {
            assert_eq!(stamp(seconds * 1_000 + 7), text);
        }
    }
}
