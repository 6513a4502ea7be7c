//! The package index as a dataset: a source with two versions, and nodes that serve it, without a coordinator.

use crate::output::Failure;
use flate2::read::GzDecoder;
use partage_coordination::embedded::Embedded;
use partage_core::dataset::DatasetName;
use partage_dataset::node::{Node, NodeOptions};
use partage_dataset::serve::Settings;
use partage_dataset::source::{self, Source};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Its name, and that of the field that is the key.
pub const DATASET: &str = "packages";

/// The versions, and how many packages each lacks: yesterday's index has not the last ones.
pub const VERSIONS: [(&str, usize); 2] = [("day-1", 1_000), ("day-2", 0)];

/// Partitions: enough that three nodes differ.
const FILES: usize = 6;

/// All in one process: nobody is on his way still.
const STABLE: Duration = Duration::from_millis(300);

/// How often nodes look at the source: one who writes a version there sees it soon.
const REFRESH: Duration = Duration::from_secs(2);

/// The nodes, and what they read.
pub struct Library {
    nodes: Vec<Node>,
    source: PathBuf,
    /// Removed in the end.
    _dir: Option<TempDir>,
}

impl Library {
    /// Writes the source, unless it is there from last time, and starts nodes at `listen`.
    pub async fn open(
        data_dir: Option<&Path>,
        packages: &'static [u8],
        listen: Vec<SocketAddr>,
    ) -> Result<Library, Failure> {
        let cannot =
            |error: std::io::Error| Failure::failed(format!("cannot write the sample dataset: {error}"));
        let temporary = data_dir.is_none().then(tempfile::tempdir).transpose().map_err(cannot)?;
        let dir = data_dir.or(temporary.as_ref().map(TempDir::path)).map(Path::to_owned).unwrap_or_default();
        let folder = dir.join("source");
        let written = {
            let folder = folder.clone();
            tokio::task::spawn_blocking(move || write(&folder, packages)).await
        };
        written.map_err(Failure::failed)?.map_err(cannot)?;
        let url = folder.to_string_lossy().into_owned();
        let source = Source::open(&url, &source::Settings::new()).map_err(Failure::failed)?;
        let coordination = Embedded::in_memory();
        let mut nodes = Vec::new();
        for (number, listen) in (1..).zip(listen) {
            let cluster = DatasetName::new("up").map_err(Failure::failed)?;
            let mut options = NodeOptions::new(cluster, listen, dir.join(format!("dataset-node-{number}")));
            options.stable = STABLE;
            options.refresh = REFRESH;
            options.serve = Settings { threads: 1, ..Settings::default() };
            let node = Node::start(options, coordination.clone(), source.clone()).await;
            nodes.push(
                node.map_err(|error| Failure::failed(error).help("choose a free --port, or 0 for any"))?,
            );
        }
        Ok(Library { nodes, source: folder, _dir: temporary })
    }

    /// Where its nodes listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Node::address).collect()
    }

    /// The folder with the datasets.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Ends the nodes.
    pub async fn close(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

/// The versions, each with its packages in some files.
fn write(folder: &Path, packages: &'static [u8]) -> std::io::Result<()> {
    let dataset = folder.join(DATASET);
    if dataset.join(VERSIONS[VERSIONS.len() - 1].0).exists() {
        return Ok(());
    }
    fs::create_dir_all(&dataset)?;
    let settings = "format = \"jsonl\"\nkey = \"package\"\nlayout = \"ordered\"\ncompression = \"zstd\"\n\
                    content_type = \"application/json\"\n";
    fs::write(dataset.join(partage_dataset::settings::FILE), settings)?;
    let lines: Vec<String> = BufReader::new(GzDecoder::new(packages)).lines().collect::<Result<_, _>>()?;
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
