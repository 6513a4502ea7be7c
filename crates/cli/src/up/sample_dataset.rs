//! The package index as a dataset: a source with two versions, and what the nodes that serve it under `up`'s coordinator
//! have in common.

use crate::output::Failure;
use flate2::read::GzDecoder;
use partage_coordination::Coordination;
use partage_coordination::embedded::Embedded;
use partage_dataset::node::{Membership, Node, NodeOptions};
use partage_dataset::serve::Settings;
use partage_dataset::source::{self, Source};
use partage_service::dataset::DatasetName;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Its name, and that of the field that is the key.
pub const DATASET: &str = "packages";

/// The versions, and how many packages each lacks: yesterday's index has not the last ones.
pub const VERSIONS: [(&str, usize); 2] = [("day-1", 1_000), ("day-2", 0)];

/// Partitions: enough that three nodes differ.
const FILES: usize = 6;

/// 63,436 packages of Debian 12, one JSON object a line; see `samples/README.md`.
pub static PACKAGES: &[u8] = include_bytes!("../../../../samples/debian-bookworm-packages.jsonl.gz");

/// How many that are.
pub const ROWS: usize = 63_436;

/// Short, as all nodes are in one process, and none is still on its way.
const STABLE: Duration = Duration::from_millis(300);

/// How long the others wait before they miss a node that was killed.
const SESSION: Duration = Duration::from_secs(2);

/// All hear of a partition that moved within the time in which a session ends.
const LET_GO: Duration = Duration::from_secs(4);

/// How often nodes look at the source: one who writes a version there sees it soon.
const REFRESH: Duration = Duration::from_secs(2);

/// Where the dataset is, and where its nodes see each other.
pub struct SampleDataset {
    folder: PathBuf,
    source: Source,
    coordination: Arc<dyn Coordination>,
    dir: PathBuf,
    /// Removed in the end.
    _temporary: Option<TempDir>,
}

impl SampleDataset {
    /// Writes the source, unless it is there from last time.
    pub async fn open(data_dir: Option<&Path>) -> Result<SampleDataset, Failure> {
        let cannot = |folder: &Path| {
            let folder = folder.display().to_string();
            move |error: std::io::Error| {
                Failure::failed(format!("cannot write the sample dataset into {folder}: {error}"))
            }
        };
        let temporary = data_dir.is_none().then(tempfile::tempdir).transpose();
        let temporary = temporary.map_err(cannot(&std::env::temp_dir()))?;
        let dir = data_dir.or(temporary.as_ref().map(TempDir::path)).map(Path::to_owned).unwrap_or_default();
        let folder = dir.join("source");
        let written = {
            let folder = folder.clone();
            tokio::task::spawn_blocking(move || write(&folder)).await
        };
        written.map_err(Failure::failed)?.map_err(cannot(&folder))?;
        let url = folder.to_string_lossy().into_owned();
        let source = Source::open(&url, &source::Settings::new()).map_err(Failure::failed)?;
        Ok(SampleDataset { folder, source, coordination: Embedded::in_memory(), dir, _temporary: temporary })
    }

    /// The folder with the datasets.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a node of that name.
    pub async fn node(
        &self,
        id: &str,
        listen: SocketAddr,
        coordinator: &str,
        door: partage_door::Settings,
    ) -> Result<Node, String> {
        let cluster = DatasetName::new("up").map_err(|error| error.to_string())?;
        let mut options = NodeOptions::new(cluster, listen, self.dir.join(format!("node-{id}")));
        options.stable = STABLE;
        options.session_ttl = SESSION;
        options.let_go = LET_GO;
        options.refresh = REFRESH;
        options.serve = Settings { threads: 1, door, ..Settings::default() };
        options.coordinator = Some(Membership {
            coordinators: vec![coordinator.to_owned()],
            id: id.to_owned(),
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: Vec::new(),
        });
        let started = Node::start(options, self.coordination.clone(), self.source.clone()).await;
        started.map_err(|error| error.to_string())
    }
}

/// The versions, each with its packages in some files.
fn write(folder: &Path) -> std::io::Result<()> {
    let dataset = folder.join(DATASET);
    if dataset.join(VERSIONS[VERSIONS.len() - 1].0).exists() {
        return Ok(());
    }
    fs::create_dir_all(&dataset)?;
    let settings = "format = \"jsonl\"\nkey = \"package\"\nlayout = \"ordered\"\n\
                    content_type = \"application/json\"\n";
    fs::write(dataset.join(partage_dataset::settings::FILE), settings)?;
    let lines: Vec<String> = BufReader::new(GzDecoder::new(PACKAGES)).lines().collect::<Result<_, _>>()?;
    for (version, lacks) in VERSIONS {
        let unfinished = dataset.join(format!("_{version}"));
        fs::create_dir_all(&unfinished)?;
        let there = &lines[..lines.len().saturating_sub(lacks)];
        for (number, some) in there.chunks(there.len().div_ceil(FILES).max(1)).enumerate() {
            let mut file = BufWriter::new(File::create(unfinished.join(format!("part-{number:05}.jsonl")))?);
            some.iter().try_for_each(|line| writeln!(file, "{line}"))?;
            file.flush()?;
        }
        fs::rename(&unfinished, dataset.join(version))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_as_many_rows_as_the_welcome_says() {
        assert_eq!(BufReader::new(GzDecoder::new(PACKAGES)).lines().count(), ROWS);
    }
}
