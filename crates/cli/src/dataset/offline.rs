//! Verbs that need no node: store files, made and looked at.

use super::origin::From;
use super::progress;
use super::settings::{SettingsArgs, checked, kept, named, open, there};
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_core::base::count::{counted, counted_with};
use partage_dataset::build::{self, Progress};
use partage_dataset::source::Source;
use partage_engine::readonly::{ReadError, Reader};
use partage_service::dataset::{DatasetName, VersionName};
use partage_wire::dataset::manifest::Manifest;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// The arguments of `partage dataset build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// The dataset in the source
    dataset: String,
    /// The version to build [default: the latest]
    version: Option<String>,
    #[command(flatten)]
    from: From,
    /// Folder to write to, or a URL such as s3://bucket/prefix; the command creates OUT/DATASET/VERSION, a version that
    /// a source may hold
    #[arg(long)]
    out: String,
    /// Folder where the command builds store files before it uploads them to a URL
    /// [default: the system's temporary folder]
    #[arg(long, value_name = "FOLDER")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Memory for building, in MiB; what does not fit goes to the disk until the store files are built
    #[arg(long, default_value_t = 512)]
    memory_mib: usize,
    /// Number of files to read, and of store files to write, at once [default: 2]
    #[arg(long)]
    at_once: Option<usize>,
}

/// `partage dataset inspect` and `verify`
#[derive(Debug, Args)]
pub struct FileArgs {
    /// A store file, *.partage
    file: PathBuf,
}

impl BuildArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let dataset = named(&self.dataset)?;
        let source = open(&self.from.source)?;
        let target = self.out.contains("://").then(|| open(&self.out)).transpose()?;
        there(&source, &dataset).await?;
        let before = kept(&source, &dataset).await?.unwrap_or_default();
        let settings = checked(self.settings.over(before))?;
        let version = match &self.version {
            Some(version) => known_version(&source, &dataset, version).await?,
            None => {
                let latest =
                    source.latest(&dataset, settings.needs_success).await.map_err(Failure::failed)?;
                let none = || Failure::refused(format!("{}/{dataset} has no version", source.url()));
                latest.ok_or_else(none)?
            }
        };
        if let Some(target) = &target {
            build::may_publish(target, (&dataset, &version)).await.map_err(Failure::failed)?;
        }
        // Of a URL, what is built goes when it has been brought there.
        let (out, work) = match &target {
            None => (PathBuf::from(&self.out), None),
            Some(_) => {
                let work = work_dir(self.work_dir.as_deref())?;
                (work.path().to_owned(), Some(work))
            }
        };
        let mut options = build::Options::from(&settings);
        options.memory_bytes = self.memory_mib.saturating_mul(1 << 20);
        options.at_once = self.at_once.unwrap_or(options.at_once).max(1);
        let counters = Arc::new(Progress::default());
        let built = build_watched(&source, (&dataset, &version), &out, &options, &counters, output.is_json());
        let manifest = built.await;
        let built = out.join(dataset.as_str()).join(version.as_str());
        if manifest.is_err() && counters.snapshot().rejected > 0 {
            // The failure names the list of bad rows: it stays where it is.
            work.map(tempfile::TempDir::keep);
        }
        let manifest = manifest?;
        let (folder, lists) = match &target {
            None => (built.display().to_string(), built.clone()),
            Some(target) => {
                say(&format!("bringing {} to {}", counted(manifest.files.len(), "store file"), target.url()));
                build::publish(&built, &manifest, target).await.map_err(Failure::failed)?;
                (format!("{}/{dataset}/{version}", target.url()), PathBuf::from("."))
            }
        };
        let rejects = kept_rejects(&built, &lists, counters.snapshot().rejected)?;
        let (keys, bytes) =
            manifest.files.iter().fold((0, 0), |(keys, bytes), file| (keys + file.keys, bytes + file.bytes));
        if output.is_json() {
            return output.json(&json!({
                "folder": folder, "partitions": manifest.partitions, "keys": keys, "bytes": bytes,
                "records": counters.snapshot().records, "partitioner": manifest.partitioner.to_string(),
                "rejected": counters.snapshot().rejected,
            }));
        }
        output.text(&format!(
            "{folder}: {} in {}, {bytes} bytes, of {}; partitions by {}",
            counted(keys, "key"),
            counted(manifest.partitions, "store file"),
            counted(counters.snapshot().records, "record"),
            manifest.partitioner,
        ));
        if let Some(list) = rejects {
            let rejected = counters.snapshot().rejected;
            let rows = counted_with(rejected, "bad row", ("was", "were"));
            output.text(&format!("{rows} left out: see {}", list.display()));
        }
        Ok(())
    }
}

/// Builds, and shows how far it is.
async fn build_watched(
    source: &Source,
    which: (&DatasetName, &VersionName),
    out: &Path,
    options: &build::Options,
    counters: &Arc<Progress>,
    is_quiet: bool,
) -> Result<Manifest, Failure> {
    let bar = progress::bar(&format!("building {} {}", which.0, which.1), is_quiet);
    let watching = {
        let (counters, bar) = (counters.clone(), bar.clone());
        tokio::spawn(async move {
            loop {
                let seen = counters.snapshot();
                bar.set_length(seen.bytes_in_all);
                bar.set_position(seen.bytes);
                tokio::time::sleep(TICK).await;
            }
        })
    };
    let built = build::build_all(source, which, out, options, counters).await;
    watching.abort();
    bar.finish_and_clear();
    built.map_err(Failure::failed)
}

/// A folder to build in that goes with its handle.
fn work_dir(within: Option<&Path>) -> Result<tempfile::TempDir, Failure> {
    let made = match within {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let named =
        within.map_or_else(|| "the temporary folder".to_owned(), |folder| folder.display().to_string());
    made.map_err(|error| {
        Failure::failed(format!("{named}: no folder can be made in it: {error}"))
            .help("name one with room for the store files: --work-dir FOLDER")
    })
}

/// Where the list of rejected rows is, if there are any: it is kept where a person finds it.
fn kept_rejects(built: &Path, lists: &Path, rejected: u64) -> Result<Option<PathBuf>, Failure> {
    let (from, to) = (built.join(build::REJECTS), lists.join(build::REJECTS));
    if rejected == 0 {
        return Ok(None);
    }
    if from != to {
        std::fs::copy(&from, &to).map_err(|error| Failure::failed(format!("{}: {error}", to.display())))?;
    }
    Ok(Some(to))
}

/// A version that the source has.
async fn known_version(
    source: &Source,
    dataset: &DatasetName,
    version: &str,
) -> Result<VersionName, Failure> {
    let version = VersionName::new(version).map_err(Failure::usage)?;
    let known = source.versions(dataset).await.map_err(Failure::failed)?.names;
    if known.contains(&version) {
        return Ok(version);
    }
    let names: Vec<_> = known.iter().map(VersionName::as_str).collect();
    let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Err(Failure::refused(format!("{}/{dataset} has no version {version}: it has {has}", source.url())))
}

/// The store file that is named.
fn opened(file: &Path) -> Result<Reader, Failure> {
    if file.is_dir() {
        let what = format!("{} is a folder: name a store file in it, *.partage", file.display());
        return Err(Failure::usage(what));
    }
    Reader::open(file).map_err(unreadable)
}

fn unreadable(error: ReadError) -> Failure {
    Failure::failed(error)
}

/// Prints what a store file says of itself: its format, its keys, and the bytes of its parts.
pub fn inspect(args: &FileArgs, output: &mut Output) -> Result<(), Failure> {
    let reader = opened(&args.file)?;
    let told = reader.describe();
    if output.is_json() {
        return output.json(&json!({
            "file": args.file, "format": told.format, "layout": format!("{:?}", told.layout).to_lowercase(),
            "compression": told.compression, "keys": told.keys, "replaced": told.replaced,
            "key_bytes": told.key_bytes, "value_bytes": told.value_bytes, "file_bytes": told.file_bytes,
            "index_bytes": told.index_bytes, "dictionary_bytes": told.dictionary_bytes,
        }));
    }
    output.text(&format!("{}", args.file.display()));
    for (what, value) in [
        ("format", told.format.to_string()),
        ("layout", format!("{:?}", told.layout).to_lowercase()),
        ("compression", told.compression.to_owned()),
        ("keys", format!("{} ({} more were replaced by a later value)", told.keys, told.replaced)),
        ("keys, bytes", told.key_bytes.to_string()),
        ("values, bytes", told.value_bytes.to_string()),
        ("file, bytes", told.file_bytes.to_string()),
        ("index, bytes", told.index_bytes.to_string()),
        ("dictionary, bytes", told.dictionary_bytes.to_string()),
    ] {
        output.text(&format!("  {what:<18} {value}"));
    }
    Ok(())
}

/// Reads a whole store file, and fails if a part of it is damaged.
pub fn verify(args: &FileArgs, output: &mut Output) -> Result<(), Failure> {
    let reader = opened(&args.file)?;
    reader.verify().map_err(unreadable)?;
    if output.is_json() {
        return output.json(&json!({ "file": args.file, "sound": true, "keys": reader.len() }));
    }
    output.text(&format!("{}: sound, {}", args.file.display(), counted(reader.len(), "key")));
    Ok(())
}
