//! `partage backup`: everything durable of a running cluster, in one file from which it can begin again.
//!
//! The file is written under another name, read back and checked, and only then has its own: whatever is there under
//! the name is a whole backup, now or an earlier one.

use crate::client::ApiClient;
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_clock::unix_ms;
use partage_core::base::count::counted;
use partage_core::cluster::Records;
use partage_wire::backup::{self, BackupWriter, Label};
use partage_wire::json::Reading;
use serde::Serialize;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// The arguments of `partage backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The file to write [default: partage-SECONDS.backup in this directory, with the Unix time]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    client: ApiClient,
}

/// What `partage backup` and `partage restore` report of a backup.
#[derive(Debug, Serialize)]
pub struct Contents {
    /// The path of the backup file.
    pub backup: String,
    bytes: usize,
    taken_ms: u64,
    /// The version of the program that wrote it.
    by: String,
    keyspaces: usize,
    shards: usize,
    nodes: usize,
    plans: usize,
}

impl Contents {
    /// When it was taken; 0 when it does not say.
    pub fn taken_ms(&self) -> u64 {
        self.taken_ms
    }
}

impl BackupArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let taken_ms = unix_ms();
        let to = self.to.unwrap_or_else(|| format!("partage-{}.backup", taken_ms / 1_000).into());
        let cannot =
            |error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", to.display()));
        let taken = || {
            Failure::refused(format!("{} is there already", to.display()))
                .help("name another file with --to, or replace it with --force")
        };
        if !self.force && to.try_exists().map_err(cannot)? {
            return Err(taken());
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(cannot)?;
        let (mut writer, head) =
            BackupWriter::begin(&Label { taken_ms, by: env!("CARGO_PKG_VERSION").to_owned() });
        file.write_all(&head).map_err(cannot)?;
        let take = |piece: &[u8]| file.write_all(&writer.add(piece)).map_err(cannot);
        self.client.download("/v1/dump", take).await?;
        file.write_all(&writer.end()).map_err(cannot)?;
        file.as_file().sync_all().map_err(cannot)?;
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(cannot)?;
        let (_, contents) = read(&to, &bytes)?;
        let kept = if self.force { file.persist(&to) } else { file.persist_noclobber(&to) };
        kept.map_err(|error| match error.error.kind() {
            std::io::ErrorKind::AlreadyExists => taken(),
            _ => cannot(error.error),
        })?;
        std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)?;
        show(&contents, output)
    }
}

/// The records of a backup, all of them sound, and what they are at a glance. A dump is taken, too.
///
/// # Errors
/// For anything else, with the place of what is wrong.
pub fn read(path: &Path, bytes: &[u8]) -> Result<(Records, Contents), Failure> {
    let unfit = |what: &dyn std::fmt::Display| {
        Failure::refused(format!("{} cannot be restored: {what}", path.display()))
    };
    let (label, document) = if bytes.first() == Some(&b'{') {
        say("this is a dump, not a backup: nothing tells whether a byte of it was changed");
        (Label { taken_ms: 0, by: String::new() }, bytes.to_vec())
    } else {
        backup::open(bytes).map_err(|error| {
            let save = format!("`partage check {} --save-to DIR` saves all but that part", path.display());
            unfit(&error).help(format!("take an earlier backup; or {save}"))
        })?
    };
    let Reading { records, problems, .. } = Reading::of(&document);
    if let Some(first) = problems.first() {
        let more = problems.len() - 1;
        let more = if more == 0 { String::new() } else { format!(", and {more} more") };
        let check = format!("`partage check {}` shows all, and --save-to saves what can be", path.display());
        return Err(unfit(&format!("{first}{more}")).help(check));
    }
    let contents = Contents {
        backup: path.display().to_string(),
        bytes: bytes.len(),
        taken_ms: label.taken_ms,
        by: label.by,
        keyspaces: records.keyspaces.len(),
        shards: records.keyspaces.iter().map(|(_, map)| map.len()).sum(),
        nodes: records.nodes.len(),
        plans: records.plans.len(),
    };
    Ok((records, contents))
}

/// Prints what is in the backup.
pub fn show(contents: &Contents, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(contents);
    }
    let Contents { backup, bytes, keyspaces, shards, nodes, plans, .. } = contents;
    output.text(&format!(
        "{backup}: {bytes} bytes, {} with {}, {}, {}",
        counted(*keyspaces, "keyspace"),
        counted(*shards, "shard"),
        counted(*nodes, "node"),
        counted(*plans, "plan"),
    ));
    Ok(())
}
