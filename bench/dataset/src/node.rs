//! What the process of one of our nodes does: `bench-dataset node ...`.

use crate::Done;
use bench_gauge::word;
use partage_coordination::embedded::Embedded;
use partage_coordination::{Coordination, Late, Target};
use partage_dataset::node::{Node, NodeOptions};
use partage_dataset::source::Source;
use partage_service::dataset::DatasetName;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Seconds until nodes take each other for all there are, ours and Sequins.
pub const STABLE_S: u64 = 2;

/// What a node is told.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// The ZooKeeper at which it meets others.
    pub zookeeper: Option<SocketAddr>,
    /// Memory for loading, in MiB.
    pub memory_mib: Option<usize>,
    /// Threads that answer; 0 for one a core.
    pub threads: u64,
    /// Whether it links store files.
    pub is_linking: bool,
    /// The group of processes that it joins before anything else: a file that takes its number.
    pub group: Option<PathBuf>,
}

/// The command that starts a process which runs such a node.
pub fn command(source: &Path, folder: &Path, at: SocketAddr, told: &Told) -> std::io::Result<Command> {
    let mut command = bench_gauge::myself()?;
    command.arg("node").arg("--source").arg(source).arg("--folder").arg(folder);
    command.arg("--at").arg(at.to_string());
    if let Some(zookeeper) = told.zookeeper {
        command.arg("--zookeeper").arg(zookeeper.to_string());
    }
    command.arg("--threads").arg(told.threads.to_string());
    if let Some(mib) = told.memory_mib {
        command.arg("--memory").arg(mib.to_string());
    }
    if told.is_linking {
        command.arg("--linking");
    }
    if let Some(group) = &told.group {
        command.arg("--group").arg(group);
    }
    Ok(command)
}

/// Runs one until it is killed.
pub fn run(words: &[String]) -> Done {
    if let Some(group) = word(words, "--group") {
        std::fs::write(group, std::process::id().to_string())?;
    }
    let needed = |name| word(words, name).ok_or_else(|| format!("node needs {name}"));
    let at: SocketAddr = needed("--at")?.parse()?;
    let mut options = NodeOptions::new(DatasetName::new("bench")?, at, needed("--folder")?.into());
    options.stable = Duration::from_secs(STABLE_S);
    // It looks when it is told to, and keeps versions for as long as a measurement takes.
    options.refresh = Duration::from_secs(3_600);
    options.load_by_link = words.iter().any(|word| word == "--linking");
    options.serve.threads = bench_gauge::option(words, "--threads", 0) as usize;
    if let Some(mib) = word(words, "--memory") {
        options.load_memory_bytes = mib.parse::<usize>()? << 20;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _inside = runtime.enter();
    let coordination: Arc<dyn Coordination> = match word(words, "--zookeeper") {
        Some(at) => Arc::new(Late::new(Target::parse(&format!("zookeeper://{at}/partage"))?)),
        None => Embedded::in_memory(),
    };
    let source = Source::open(needed("--source")?, &BTreeMap::new())?;
    runtime.block_on(serve(options, coordination, source))
}

#[expect(clippy::disallowed_methods, reason = "a process of its own, which is told by a signal")]
async fn serve(options: NodeOptions, coordination: Arc<dyn Coordination>, source: Source) -> Done {
    let mut hangups = signal(SignalKind::hangup())?;
    let node = Node::start(options, coordination, source).await?;
    while hangups.recv().await.is_some() {
        node.refresh();
    }
    Ok(())
}
