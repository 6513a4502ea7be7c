//! `partage table restore`: a new table with the rows of a backup.
//!
//! ```text
//!  verify all files ─► create NEW.restore, take the lock in it ─► create NEW, register its named partitions
//!                   ─► load chunks, note each ─► create its indexes, wait until they are ready ─► drop NEW.restore
//! ```
//!
//! The coordinator gives the new table numbers that nothing had before (M5): it is a table like any other, with as many shards
//! and replicas as one likes. Rows come in through the normal write path, several thousand at a time, so they are replicated
//! before they count, and have new versions; expiry times stay. Request ids that the table kept are not in a backup: they are of
//! writes to the table that was.
//!
//! While rows are loaded there is a second table, `NEW.restore`, with one shard: it says which backup is restored, which chunks
//! are loaded, and who does it. A restore that is interrupted leaves it, so that `partage table list` and `show` say that the
//! table is not whole, and the same command goes on where it was. `partage table drop NEW` drops both.

mod loading;
mod plan;
mod progress;

use super::backup::cluster;
use super::backup::location::{Listed, Location};
use super::backup::verify;
use super::index;
use super::nodes::{TableNodes, UNKNOWN_OUTCOME};
use crate::client::{ApiClient, DryRun};
use crate::output::{Failure, Output, say};
use crate::role::StopSignals;
use clap::Args;
use indicatif::HumanBytes;
use loading::Loading;
use partage_core::base::count::counted;
use partage_wire::json::{Command, Keyspace, Sharding};
use partage_wire::table::PlaceForm;
use partage_wire::table::backup::manifest::Manifest;
use plan::table;
use progress::{Begun, Progress};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

pub use progress::{is_progress, progress_table};

/// Named partitions that one command registers.
const PARTITIONS: usize = 1_000;

/// How long the shards of the new table may take until each has a leader that an index can be created at.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long an index may take to be built. A restore that is interrupted meanwhile waits for it when it goes on.
const BUILDING: Duration = Duration::from_secs(24 * 3_600);

/// Rest between two tries.
const REST: Duration = Duration::from_millis(300);

/// The arguments of `partage table restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Folder, or a URL such as s3://bucket/prefix, with the backup
    location: String,
    /// Name of the table to create
    table: String,
    /// Backup to restore [default: the latest, if all backups there are of one table]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// Number of shards of the new table [default: as many as the backup has, whose named partitions stay as they are]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    shards: Option<u32>,
    /// Number of replicas of each shard [default: that of the table that was backed up]
    #[arg(long, value_name = "COUNT")]
    replicas: Option<u32>,
    /// Number of replicas that must have a write on their disks before it is acknowledged [default: that of the table that
    /// was backed up, or all replicas if there are fewer]
    #[arg(long, value_name = "COUNT")]
    min_in_sync: Option<u32>,
    /// Do not read all files before the table is created; each is verified when it is loaded
    #[arg(long)]
    skip_verify: bool,
    /// Number of chunks to load at once
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    #[command(flatten)]
    client: ApiClient,
    /// Verify the backup, and create nothing
    #[command(flatten)]
    dry: DryRun,
}

/// What is there of the table already.
enum Found {
    Nothing,
    /// A restore of this table has begun.
    Progress,
}

impl RestoreArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let mut signals = StopSignals::listen()?;
        let ended = signals.unless_asked(self.verified(output)).await;
        let Some(verified) = ended else {
            return Err(Failure::interrupted("interrupted: nothing was changed"));
        };
        let Some((location, listed, manifest)) = verified? else { return Ok(()) };
        let work = self.restore(&location, &listed, &manifest, output);
        match signals.unless_asked(work).await {
            Some(ended) => ended,
            None => Err(self.unfinished(Failure::interrupted("interrupted"))),
        }
    }

    fn unfinished(&self, failure: Failure) -> Failure {
        let table = &self.table;
        failure.help(format!(
            "table {table} is not whole if it is there: run the same command again to go on, or `partage table drop {table}`"
        ))
    }

    /// Verifies the backup, and the place for it. None: that was all.
    async fn verified(&self, output: &mut Output) -> Result<Option<(Location, Listed, Manifest)>, Failure> {
        let location = Location::open(&self.location)?;
        let listed = location.choose(self.backup.as_deref()).await?;
        let manifest = location.manifest(&listed).await.map_err(|error| error.failure())?;
        if self.shards.is_some() && matches!(manifest.settings.sharding, Sharding::Named {}) {
            let what = format!("backup {} has named partitions: their number cannot be chosen", manifest.id);
            return Err(Failure::usage(what).help("leave --shards out"));
        }
        self.found(&cluster::keyspaces(&self.client).await?)?;
        let wanted = self.wanted(&manifest);
        if !self.skip_verify {
            let chunks = manifest.chunks().map(|entry| (entry.digest.0, entry.clone())).collect();
            let mut damaged = verify::all(&location, chunks, output.is_json()).await?;
            let more = damaged.len().saturating_sub(1);
            if let Some(first) = damaged.drain(..).next() {
                if more > 0 {
                    say(&format!(
                        "{} damaged too: `partage table backup verify` names all",
                        counted(more, "other file")
                    ));
                }
                return Err(first.failure());
            }
        }
        if !self.dry.dry_run {
            return Ok(Some((location, listed, manifest)));
        }
        let command =
            Command::CreateKeyspace { keyspace: wanted.settings, presplit: wanted.presplit, ahead: false };
        let foreseen = self.client.command(command, true).await?;
        foreseen.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
        let (rows, bytes) = (manifest.rows(), manifest.content_bytes());
        if output.is_json() {
            output.json(&json!({
                "dry_run": true, "backup": manifest.id, "of_table": manifest.table, "table": self.table, "rows": rows,
                "content_bytes": bytes, "verified": !self.skip_verify, "summary": foreseen.summary,
                "partitions": manifest.partitions(), "indexes": manifest.indexes,
            }))?;
            return Ok(None);
        }
        let rows = counted(usize::try_from(rows).unwrap_or(usize::MAX), "row");
        let sound = if self.skip_verify { "not verified" } else { "whole and sound" };
        output.text(&format!(
            "backup {} of table {} is {sound}: {rows}, {}",
            manifest.id,
            manifest.table,
            HumanBytes(bytes)
        ));
        output.text(&format!("would: {}", foreseen.summary));
        if let Some(partitions) = Some(manifest.partitions().len()).filter(|count| *count > 0) {
            output.text(&format!("would: register {}", counted(partitions, "partition")));
        }
        for index in &manifest.indexes {
            output.text(&format!("would: create index {} of field {}", index.name, index.field));
        }
        Ok(None)
    }

    fn wanted(&self, manifest: &Manifest) -> plan::Wanted {
        table(manifest, &self.table, self.shards, self.replicas, self.min_in_sync)
    }

    /// Refuses a table that is there, unless its restore has begun.
    fn found(&self, keyspaces: &[Keyspace]) -> Result<Found, Failure> {
        let is_there = |name: &str| keyspaces.iter().any(|keyspace| keyspace.name == name);
        let name = progress_table(&self.table);
        if keyspaces.iter().any(|keyspace| is_progress(keyspace, &self.table)) {
            return Ok(Found::Progress);
        }
        match (is_there(&self.table), is_there(&name)) {
            (_, true) => Err(Failure::refused(format!(
                "there is a keyspace {name}, which a restore needs to note its progress, and no restore has made it"
            ))
            .kind("exists")
            .help("choose another name for the restored table")),
            (false, false) => Ok(Found::Nothing),
            (true, false) => Err(Failure::refused(format!("there is a keyspace {} already", self.table))
                .kind("exists")
                .help("a backup is restored to a new table: choose another name")),
        }
    }

    async fn restore(
        &self,
        location: &Location,
        listed: &Listed,
        manifest: &Manifest,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let keyspaces = cluster::keyspaces(&self.client).await?;
        let found = self.found(&keyspaces)?;
        let progress = Progress::new(&self.client, &self.table);
        let wanted = self.wanted(manifest);
        if matches!(found, Found::Nothing) {
            progress.create(&wanted.settings).await?;
        }
        let begun = progress.begin(listed, manifest).await?;
        let loaded =
            progress.while_locked(self.fill(location, manifest, wanted, begun, &progress, output)).await;
        let (rows, is_new) = match loaded {
            Ok(loaded) => loaded,
            Err(failure) => {
                progress.let_go().await;
                let is_there = |all: Vec<Keyspace>| all.iter().any(|keyspace| keyspace.name == self.table);
                if cluster::keyspaces(&self.client).await.is_ok_and(|all| !is_there(all)) {
                    // Nothing was created, so there is nothing to go on with.
                    progress.drop_table().await?;
                    return Err(failure);
                }
                return Err(self.unfinished(failure));
            }
        };
        progress.drop_table().await?;
        self.told(manifest, rows, is_new, output)
    }

    /// Creates the table and fills it. Says what became of the rows, and whether none was loaded before.
    async fn fill(
        &self,
        location: &Location,
        manifest: &Manifest,
        wanted: plan::Wanted,
        begun: Begun,
        progress: &Progress,
        output: &Output,
    ) -> Result<(loading::Loaded, bool), Failure> {
        let is_new = !begun.has_table;
        if wanted.drops_constraint {
            say(
                "the nodes that the table was bound to are not taken over: `partage keyspace update` binds it to others",
            );
        }
        if is_new {
            let command = Command::CreateKeyspace {
                keyspace: wanted.settings,
                presplit: wanted.presplit,
                ahead: false,
            };
            let answer = self.client.command(command, false).await?;
            answer.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
            progress.has_created().await?;
        } else {
            say(&format!("table {} is there in parts: the restore goes on", self.table));
        }
        self.register(manifest.partitions()).await?;
        let nodes: Vec<String> = cluster::nodes(&self.client).await?.into_values().collect();
        let all = TableNodes::at(nodes.clone());
        let loading = Loading::new(location.clone(), self.table.clone(), nodes, self.parallel.into());
        let loaded = loading.all(manifest, &begun.done, progress, output.is_json()).await?;
        for index in &manifest.indexes {
            self.index(&all, &index.name, &index.field).await?;
        }
        Ok((loaded, is_new))
    }

    /// Registers those named partitions that the table has not got yet.
    async fn register(&self, mut partitions: Vec<String>) -> Result<(), Failure> {
        if partitions.is_empty() {
            return Ok(());
        }
        let there: BTreeSet<PlaceForm> =
            cluster::shards(&self.client, &self.table).await?.into_iter().map(|shard| shard.begin).collect();
        partitions.retain(|name| !there.contains(&PlaceForm::Name(name.clone())));
        for some in partitions.chunks(PARTITIONS) {
            let command = Command::RegisterPartitions {
                keyspace: self.table.clone(),
                partitions: some.to_vec(),
                replicas: None,
                ahead: false,
            };
            self.client.command(command, false).await?;
        }
        Ok(())
    }

    /// Creates an index, or goes on with one that an earlier try has created, and waits until it is ready.
    async fn index(&self, nodes: &TableNodes, name: &str, field: &str) -> Result<(), Failure> {
        say(&format!("building index {name} of field {field}"));
        let until = Instant::now() + PATIENCE;
        loop {
            match index::create_whole(nodes, &self.table, name, field, BUILDING).await {
                // To create an index again changes nothing that is done.
                Err(error)
                    if (error.is_not_reachable() || error.is_kind(UNKNOWN_OUTCOME))
                        && Instant::now() < until =>
                {
                    sleep(REST).await;
                }
                ended => return ended.map(drop),
            }
        }
    }

    fn told(
        &self,
        manifest: &Manifest,
        rows: loading::Loaded,
        is_new: bool,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let loading::Loaded { written, there, ended, before } = rows;
        if output.is_json() {
            return output.json(&json!({
                "backup": manifest.id, "of_table": manifest.table, "table": self.table, "rows": manifest.rows(),
                "written": written, "there": there, "ended": ended, "loaded_before": before, "resumed": !is_new,
                "partitions": manifest.partitions().len(), "indexes": manifest.indexes,
            }));
        }
        let mut text =
            format!("table {} has the rows of backup {}: {written} written", self.table, manifest.id);
        let others = [(before, "loaded before"), (there, "there already"), (ended, "whose time has passed")];
        for (rows, what) in others.into_iter().filter(|(rows, _)| *rows > 0) {
            text += &format!(", {rows} {what}");
        }
        for index in &manifest.indexes {
            text += &format!(", index {} is ready", index.name);
        }
        output.text(&text);
        Ok(())
    }
}
