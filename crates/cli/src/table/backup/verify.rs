//! `partage table backup verify`: each file of backups is read, and each bit of it checked.

use super::location::{FileError, Listed, Location};
use crate::output::{Failure, Output};
use crate::redrawn::drawn;
use clap::Args;
use indicatif::{HumanBytes, ProgressBar};
use partage_core::base::count::counted;
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::manifest::ChunkEntry;
use serde_json::json;
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// Chunks that are read at once.
const AT_ONCE: usize = 8;

/// `partage table backup verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder, or a URL such as s3://bucket/prefix
    location: String,
    /// Backup to verify [default: all]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
}

impl VerifyArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let location = Location::open(&self.location)?;
        let listed = match &self.backup {
            Some(id) => vec![location.choose(Some(id)).await?],
            None => location.backups().await?,
        };
        let (mut chunks, mut damaged) = (BTreeMap::new(), Vec::new());
        for listed in &listed {
            match location.manifest(listed).await {
                Ok(manifest) => chunks.extend(manifest.chunks().map(|entry| (entry.digest.0, entry.clone()))),
                Err(error) if error.is_of_file() => damaged.push(error.to_string()),
                Err(error) => return Err(error.failure()),
            }
        }
        let bytes: u64 = chunks.values().map(|entry| entry.file_bytes).sum();
        let count = chunks.len();
        damaged.extend(all(&location, chunks, output.is_json()).await?.iter().map(ToString::to_string));
        told(&listed, count, bytes, &damaged, &location, output)
    }
}

fn told(
    listed: &[Listed],
    chunks: usize,
    bytes: u64,
    damaged: &[String],
    location: &Location,
    output: &mut Output,
) -> Result<(), Failure> {
    if output.is_json() {
        output.json(&json!({
            "location": location.to_string(), "backups": listed.len(), "chunks": chunks, "bytes": bytes, "damaged": damaged,
        }))?;
    } else {
        damaged.iter().for_each(|what| output.text(&format!("damaged: {what}")));
        let (backups, chunks) = (counted(listed.len(), "backup"), counted(chunks, "chunk"));
        output.text(&format!("{location}: {backups}, {chunks}, {} were read", HumanBytes(bytes)));
    }
    if damaged.is_empty() {
        return Ok(());
    }
    let what = format!("{location}: {} damaged or missing", counted(damaged.len(), "file"));
    Err(Failure::refused(what).kind("damaged").help(
        "bring the files back from a copy; or write them anew, while the table has these rows, with `partage table backup create --full`",
    ))
}

/// Reads chunks, each once, and checks each bit of them; says which are damaged.
///
/// # Errors
/// The store does not answer.
pub async fn all(
    location: &Location,
    chunks: BTreeMap<ContentDigest, ChunkEntry>,
    is_json: bool,
) -> Result<Vec<FileError>, Failure> {
    let bytes = chunks.values().map(|entry| entry.file_bytes).sum();
    let bar = ProgressBar::new(bytes).with_message("verifying");
    let bar = drawn(bar, "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go", is_json);
    let (mut left, mut reading, mut damaged) = (chunks.into_values(), JoinSet::new(), Vec::new());
    loop {
        while reading.len() < AT_ONCE
            && let Some(entry) = left.next()
        {
            let location = location.clone();
            reading.spawn(async move { (location.chunk(&entry).await.err(), entry.file_bytes) });
        }
        let Some(read) = reading.join_next().await else { break };
        let (error, file_bytes) = read.map_err(Failure::failed)?;
        bar.inc(file_bytes);
        match error {
            None => {}
            Some(error) if error.is_of_file() => damaged.push(error),
            Some(error) => return Err(error.failure()),
        }
    }
    bar.finish_and_clear();
    damaged.sort_by_key(ToString::to_string);
    Ok(damaged)
}
