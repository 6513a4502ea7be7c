//! A coordinator and nodes of shuffles: processes of the program `partage`, with default settings but those that a bench names.

use crate::floor::Way;
use crate::{Got, Run};
use bench_gauge::{PATIENCE, Running, core_seconds_ever_of, free, http, memory_bytes_of, now, rest};
use partage_core::node::Health;
use partage_shuffle_client::{Address, ShuffleId};
use partage_wire::json::{ReplicaPhase, Shard, Shards};
use partage_wire::shuffle::ShuffleList;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Nodes that a cluster begins with.
pub const NODES: usize = 3;
/// Nodes that have each record: the default of `partage shuffle serve`.
pub const REPLICAS: usize = 2;
/// What a node is allowed to take in memory: the default, too.
pub const MEMORY: &str = "1GiB";
/// The pool of the nodes.
const POOL: &str = "default";
/// The folder of the files of records, and how their names end.
const BATCHES: &str = "batches";
/// How long slots may be spread unevenly before a bench begins all the same.
const EVEN: Duration = Duration::from_secs(30);
/// How long a shuffle that is deleted may leave something behind.
const GONE_S: u64 = 180;

/// All processes, ended with their handle.
pub struct Cluster {
    program: PathBuf,
    folder: PathBuf,
    memory: String,
    /// The process of the only coordinator.
    pub coordinator: Running,
    /// In their order. The process of one may have ended.
    pub nodes: Vec<Running>,
}

impl Cluster {
    /// Starts all processes, and waits until each slot of the pool is served.
    pub fn start(run: &Run, name: &str) -> Got<Cluster> {
        Cluster::start_with(run, name, MEMORY)
    }

    /// The same with nodes that may take so much memory.
    pub fn start_with(run: &Run, name: &str, memory: &str) -> Got<Cluster> {
        let program = std::env::current_exe()?.with_file_name("partage");
        if !program.exists() {
            let program = program.display();
            return Err(format!("{program} is not there: cargo build --release --bin partage").into());
        }
        let folder = run.of.folder(name)?;
        let at = free()?;
        let coordinator = Running::start(&mut coordinator(&program, &folder, at), at)?;
        let memory = memory.to_owned();
        let mut cluster = Cluster { program, folder, memory, coordinator, nodes: Vec::new() };
        for _ in 0..NODES {
            cluster.add_node()?;
        }
        cluster.settles()?;
        Ok(cluster)
    }

    /// Starts one node more, and does not wait.
    pub fn add_node(&mut self) -> Got<()> {
        let node = self.start_node(self.nodes.len(), free()?)?;
        self.nodes.push(node);
        Ok(())
    }

    fn start_node(&self, number: usize, at: SocketAddr) -> Got<Running> {
        let mut command = Command::new(&self.program);
        command.args(["shuffle", "serve", "--id", &format!("s{number}"), "--listen", &at.to_string()]);
        command.args(["--join", &self.coordinator.at.to_string(), "--memory", &self.memory]);
        command.arg("--data-dir").arg(self.data(number)).arg("--unix-listen").arg(self.socket(number));
        // What is measured does not hang on how full the disk of the machine is.
        command.args(["--disk-nearly-full", "1", "--disk-full", "1"]);
        Ok(Running::spawn(&mut command, at)?)
    }

    /// Starts a node again whose process has ended.
    pub fn restart_node(&mut self, number: usize) -> Got<()> {
        self.nodes[number] = self.start_node(number, self.nodes[number].at)?;
        Ok(())
    }

    /// Starts the coordinator again, whose process has ended.
    pub fn restart_coordinator(&mut self) -> Got<()> {
        let at = self.coordinator.at;
        self.coordinator = Running::spawn(&mut coordinator(&self.program, &self.folder, at), at)?;
        Ok(())
    }

    fn data(&self, number: usize) -> PathBuf {
        self.folder.join(format!("s{number}"))
    }

    fn socket(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{number}.sock"))
    }

    /// Where clients reach the nodes.
    pub fn addresses(&self, way: Way) -> Vec<Address> {
        let address = |(number, node): (usize, &Running)| match way {
            Way::Tcp => Address::Tcp(node.at.to_string()),
            Way::Unix => Address::Unix(self.socket(number)),
        };
        self.nodes.iter().enumerate().map(address).collect()
    }

    /// The same as an argument of a process.
    pub fn addresses_word(&self, way: Way) -> String {
        let addresses: Vec<String> = self.addresses(way).iter().map(ToString::to_string).collect();
        addresses.join(",")
    }

    fn shards(&self) -> Got<Vec<Shard>> {
        let (mut all, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/keyspaces/{POOL}/shards{after}");
            let answer = http::ask(self.coordinator.at, "GET", &path)?;
            let page: Shards = serde_json::from_slice(http::body(&answer))?;
            all.extend(page.shards);
            match page.next {
                Some(next) => after = format!("?after={next}"),
                None => return Ok(all),
            }
        }
    }

    /// Waits until each slot is served by as many nodes as it should, and for a while until each node serves about as many.
    pub fn settles(&mut self) -> Got<()> {
        let (begin, end) = (now(), now() + PATIENCE);
        loop {
            let unsettled = match self.shards() {
                Ok(shards) => match unsettled(&shards, self.nodes.len()) {
                    None if is_even(&shards) || now() > begin + EVEN => return Ok(()),
                    None => "nodes serve more slots than others".to_owned(),
                    Some(why) => why,
                },
                Err(error) => error.to_string(),
            };
            self.coordinator.lives()?;
            self.nodes.iter_mut().try_for_each(Running::lives)?;
            if now() > end {
                return Err(format!("not within {} s: {unsettled}", PATIENCE.as_secs()).into());
            }
            rest(200);
        }
    }

    /// The shuffles that a node leads, as it says; none: it does not answer.
    fn led(&self, number: usize) -> Option<ShuffleList> {
        let answer = http::ask(self.nodes[number].at, "GET", "/v1/shuffles?of=node").ok()?;
        serde_json::from_slice(http::body(&answer)).ok()
    }

    /// Whether a node answers.
    pub fn is_up(&self, number: usize) -> bool {
        self.led(number).is_some()
    }

    /// The node that leads a shuffle.
    pub fn leader(&self, shuffle: ShuffleId) -> Got<usize> {
        let end = now() + PATIENCE;
        let id = shuffle.to_string();
        while now() < end {
            let leads = |number: &usize| {
                let list = self.led(*number).unwrap_or_default();
                list.shuffles.iter().any(|one| one.shuffle == id)
            };
            if let Some(leader) = (0..self.nodes.len()).find(leads) {
                return Ok(leader);
            }
            rest(50);
        }
        Err(format!("no node leads the shuffle {id}").into())
    }

    /// Seconds on a core that all processes have used, and this one.
    pub fn core_seconds(&self) -> f64 {
        let nodes = self.nodes.iter().map(Running::core_seconds_ever).sum::<f64>();
        nodes + self.coordinator.core_seconds_ever() + core_seconds_ever_of(std::process::id())
    }

    /// The most memory that a node has taken.
    pub fn memory_bytes(&self, number: usize) -> u64 {
        memory_bytes_of(self.nodes[number].pid(), "VmHWM")
    }

    /// Bytes that the process of a node has had written to a disk, as the kernel counts them: 0 where the file system does not.
    pub fn written_bytes(&self, number: usize) -> u64 {
        let path = format!("/proc/{}/io", self.nodes[number].pid());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"));
        line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or_default()
    }

    /// Bytes of all files of all nodes.
    pub fn disk_bytes(&self) -> u64 {
        (0..self.nodes.len()).map(|number| bytes_below(&self.data(number))).sum()
    }

    fn files_of_records(&self) -> usize {
        let of_node = |number| {
            let files = std::fs::read_dir(self.data(number).join(BATCHES)).into_iter().flatten().flatten();
            files.filter(|file| file.path().extension().is_some_and(|end| end == BATCHES)).count()
        };
        (0..self.nodes.len()).map(of_node).sum()
    }

    /// Waits until nothing is left of any shuffle: no file of records, none in a list. Gives how long that took, in seconds.
    pub fn is_empty(&self) -> Got<f64> {
        let begin = now();
        loop {
            let lists = (0..self.nodes.len()).map(|number| self.led(number));
            let left: usize = lists.map(|list| list.map_or(1, |list| list.shuffles.len())).sum();
            let files = self.files_of_records();
            let seconds = (now() - begin).as_secs_f64();
            if (left, files) == (0, 0) {
                return Ok(seconds);
            }
            if seconds > GONE_S as f64 {
                let what = format!("{left} shuffles and {files} files of records are left after {GONE_S} s");
                return Err(format!("{what}, and all were deleted").into());
            }
            rest(20);
        }
    }
}

fn coordinator(program: &Path, folder: &Path, at: SocketAddr) -> Command {
    let mut command = Command::new(program);
    command.args(["coordinator", "--listen", &at.to_string()]).arg("--data-dir").arg(folder.join("state"));
    command
}

/// Why the slots of a pool are not served as they should be.
fn unsettled(shards: &[Shard], nodes: usize) -> Option<String> {
    let serves = |replica: &&partage_wire::json::Replica| {
        replica.phase == Some(ReplicaPhase::Serving.into()) && replica.health.is(Health::Up)
    };
    let short = shards.iter().filter(|shard| shard.replicas.iter().filter(serves).count() != REPLICAS);
    let short = short.count();
    let replicas = shards.iter().flat_map(|shard| &shard.replicas);
    let having: BTreeSet<&str> = replicas.map(|replica| replica.node.as_str()).collect();
    let is_settled = !shards.is_empty() && short == 0 && having.len() == nodes;
    (!is_settled).then(|| {
        format!(
            "{short} of {} slots lack a replica, and {} of {nodes} nodes have one",
            shards.len(),
            having.len()
        )
    })
}

/// Whether no node has many more replicas than another one.
fn is_even(shards: &[Shard]) -> bool {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let replicas = shards.iter().flat_map(|shard| &shard.replicas);
    replicas.for_each(|replica| *counts.entry(replica.node.as_str()).or_default() += 1);
    let (least, most) = (counts.values().min(), counts.values().max());
    least.zip(most).is_some_and(|(least, most)| most - least <= most / 10)
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}
