//! Verbs that write to the source: what a dataset is lies beside its versions, where all nodes find it.

use super::ask::warn;
use super::node_client::NodeClient;
use super::settings::{SettingsArgs, checked, kept, named, open, there};
use super::wait::{Wait, everyone};
use crate::output::{Failure, Output, say};
use clap::Args;
use partage_core::base::count::counted;
use partage_dataset::build;
use partage_dataset::settings::{DatasetSettings, FILE};
use partage_dataset::source::{Source, Throttle};
use partage_service::dataset::{DatasetName, VersionName};
use partage_wire::config::DatasetFile;
use partage_wire::dataset::status::Datasets;
use serde_json::json;

/// The arguments of `partage dataset add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// Name of the dataset: the folder in the source that has its versions
    dataset: String,
    #[command(flatten)]
    from: From,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Content type of the values [default: application/octet-stream]
    #[arg(long)]
    content_type: Option<String>,
    /// Use a version only when it has a _SUCCESS file
    #[arg(long)]
    success: bool,
    /// Number of nodes that have each partition [default: the setting of the nodes]
    #[arg(long)]
    replication: Option<u32>,
    /// Number of nodes that must have each partition before clients get a version [default: the setting of the nodes]
    #[arg(long)]
    min_replication: Option<u32>,
    /// Maximum number of nodes with a partition; a node does not take a partition that this many others have
    /// [default: the setting of the nodes]
    #[arg(long)]
    max_replication: Option<u32>,
    /// Method that deals partitions to nodes: interleaved, ring_index, rendezvous, ring or jump
    /// [default: the setting of the nodes]
    #[arg(long)]
    dealing: Option<String>,
    /// Hold a version with fewer keys until `partage dataset release` [default: 1, where clients get another version]
    #[arg(long)]
    min_keys: Option<u64>,
    /// Hold a version that has lost more than this percentage of the keys [default: 50; 100 holds none]
    #[arg(long)]
    max_shrink_percent: Option<u32>,
    /// Replace settings that the dataset already has
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    node: NodeClient,
    #[command(flatten)]
    wait: Wait,
    /// Print the settings, and whether the latest version can be read with them; write nothing
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
}

/// The source that versions come from.
#[derive(Debug, Clone, Args)]
pub struct From {
    /// A folder or URL with datasets: /data, s3://bucket/prefix?endpoint=http://host:9000 and others
    #[arg(long, env = "PARTAGE_DATASET_SOURCE", value_name = "URL")]
    pub source: String,
}

/// The latest version of a dataset, and what can be said of it.
struct Latest {
    version: Option<VersionName>,
    told: String,
}

impl AddArgs {
    pub async fn run(self, output: &mut Output) -> Result<(), Failure> {
        let dataset = named(&self.dataset)?;
        let source = open(&self.from.source)?;
        let file = self.file();
        let latest = self.check(&source, &dataset, &file).await?;
        // Before anything is written: the command refuses to wait for a node that is away while nothing has changed.
        let awaited = match self.wait.wait {
            true => Some(self.awaited(&source, &dataset, latest.version.as_ref()).await?),
            false => None,
        };
        let text = toml(&file)?;
        if !self.dry_run {
            source.write(&dataset, FILE, text.clone().into()).await.map_err(Failure::failed)?;
        }
        if output.is_json() {
            output
                .json(&json!({ "dataset": dataset.as_str(), "settings": file, "dry_run": self.dry_run }))?;
        } else {
            let would = if self.dry_run { "would write" } else { "wrote" };
            output.text(&format!("{would} {}/{dataset}/{FILE}", source.url()));
            text.lines().for_each(|line| output.text(&format!("  {line}")));
            output.text(&latest.told);
        }
        if let Some((version, before)) = awaited {
            output.flush();
            let which = (dataset.as_str(), version.as_str());
            self.wait.until_added(&self.node, which, &before, output.is_json()).await?;
            if !output.is_json() {
                let nodes = Vec::from_iter(before.nodes.into_keys());
                output.text(&format!("clients of {} get version {version}", everyone(&nodes)));
            }
        } else if !self.dry_run && !output.is_json() {
            output.text(&format!(
                "nodes take it up within their refresh, or at once: partage dataset refresh {dataset} --wait"
            ));
        }
        Ok(())
    }

    /// The settings to write.
    fn file(&self) -> DatasetFile {
        self.settings.clone().over(DatasetFile {
            content_type: self.content_type.clone(),
            success: self.success.then_some(true),
            replication: self.replication,
            min_replication: self.min_replication,
            max_replication: self.max_replication,
            dealing: self.dealing.clone(),
            min_keys: self.min_keys,
            max_shrink_percent: self.max_shrink_percent,
            ..DatasetFile::default()
        })
    }

    /// Refuses what cannot be, or would take the place of other settings.
    async fn check(
        &self,
        source: &Source,
        dataset: &DatasetName,
        file: &DatasetFile,
    ) -> Result<Latest, Failure> {
        let before = if self.replace { None } else { kept(source, dataset).await? };
        let settings = checked(file.clone())?;
        if let Some(before) = before.filter(|before| before != file && before.served != Some(false)) {
            let what = format!(
                "dataset {dataset} has other settings already: {}",
                toml(&before)?.replace('\n', "; ")
            );
            return Err(Failure::refused(what).help("give --replace to put these in their place"));
        }
        if !source.url().contains("://") {
            // In a file system a person has made the folder; in a bucket a folder is there only with its first file.
            let make = |failure: Failure| failure.help(format!("make {}/{dataset} first", source.url()));
            there(source, dataset).await.map_err(make)?;
        }
        let latest = look(source, dataset, &settings).await?;
        for refused in source.versions(dataset).await.map_err(Failure::failed)?.refused {
            say(&format!("warning: a folder is no version, and is passed over: {refused}"));
        }
        Ok(latest)
    }

    /// What --wait waits for: a version, and the nodes that are to serve it, with what they tell before it is added.
    async fn awaited(
        &self,
        source: &Source,
        dataset: &DatasetName,
        version: Option<&VersionName>,
    ) -> Result<(VersionName, Datasets), Failure> {
        let Some(version) = version else {
            let needs = if self.success { " with a _SUCCESS file" } else { "" };
            let what = format!(
                "dataset {dataset} has no version{needs}, so no node could serve it: nothing was written, as --wait would wait \
                 for ever"
            );
            let folder = format!("{}/{dataset}/VERSION/", source.url());
            return Err(
                Failure::refused(what).help(format!("leave out --wait, or write files to {folder} first"))
            );
        };
        let before: Datasets = self.node.json("/").await.map_err(|failure| {
            failure.help(
                "nothing was written: --wait asks a node, named by --node HOST:PORT; without --wait, `dataset add` needs no node",
            )
        })?;
        warn(before.unreachable.as_deref());
        Ok((version.clone(), before))
    }
}

/// The settings in the form of the file in the source.
pub fn toml(file: &DatasetFile) -> Result<String, Failure> {
    toml::to_string(file).map_err(Failure::failed)
}

/// Whether the latest version can be read so.
async fn look(source: &Source, dataset: &DatasetName, settings: &DatasetSettings) -> Result<Latest, Failure> {
    let latest = source.latest(dataset, settings.needs_success).await.map_err(Failure::failed)?;
    let Some(version) = latest else {
        let told = format!("it has no version yet: write files to {}/{dataset}/VERSION/", source.url());
        return Ok(Latest { version: None, told });
    };
    let options = build::Options::from(settings);
    let throttle = Throttle::new(0);
    let files = source.files(dataset, &version).await.map_err(Failure::failed)?;
    let found = build::inspect(source, (dataset, &version), &files, &options, &throttle).await;
    let found = found.map_err(|error| {
        Failure::failed(error).help("nothing was written; give other settings, or mend the file")
    })?;
    let (layout, count) = (found.layout, files.files.len());
    let how =
        if found.is_followed { "as its files are" } else { "its files are divided otherwise, or not at all" };
    let told = format!(
        "version {version}: {}, {} by {} ({how})",
        counted(count, "file"),
        counted(layout.partitions, "partition"),
        layout.partitioner
    );
    Ok(Latest { version: Some(version), told })
}
