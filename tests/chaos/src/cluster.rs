//! A coordinator, nodes, and the links between them, in a directory and on addresses of their own.

use crate::admin::Admin;
use crate::binary::binary;
use crate::engine::Engine;
use crate::fleet;
use crate::http::Http;
use crate::subnet::Subnet;
use crate::until;
use backends::link::Link;
use backends::process::{Process, outlives_its_limits};
use partage_wire::json::Summary;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// What the coordinator runs by: leases that a loaded machine keeps, and a brake that does not stop a test
/// that takes every node away.
const SETTINGS: &str = "heartbeat_ms = 200\nlease_ms = 2500\ndead_after_ms = 3000\ncheck_back_ms = 1000\n\
                        settle_ms = 500\nrebalance_ms = 3600000\nbrake_share = 1.0\nload_attempts = 2\n\
                        poison_window_ms = 2000\nhandover_ms = 3000\n";

/// A node that lives longer than this with what it has taken on can live with it.
pub const POISON_WINDOW: Duration = Duration::from_millis(2_000);

/// Shards of every keyspace.
pub const SHARDS: u32 = 12;

/// A cluster that a test may ill-treat. Everything goes with its handle.
pub struct Cluster {
    data_dir: PathBuf,
    coordinator: Option<Process>,
    /// Asks and commands the coordinator of this cluster.
    pub admin: Admin,
    nodes: BTreeMap<String, Node>,
    /// Where the coordinator keeps its state; without one, in its folder.
    engine: Option<Engine>,
    subnet: Subnet,
    /// Goes last: the processes write their logs into it.
    dir: TempDir,
}

/// A node and its link to the coordinator.
pub struct Node {
    /// The process, which a test may kill, pause or end.
    pub process: Process,
    /// Where its service listens.
    pub address: String,
    /// What it reaches the coordinator by.
    pub link: Link,
    program: Program,
}

/// What runs on a node.
#[derive(Debug, Clone)]
enum Program {
    /// The service that keeps nothing, with these flags.
    KeyValue(Vec<String>),
    /// Tables, stored in that folder.
    Tables(PathBuf),
    /// Shuffles, stored in that folder, with these flags and this environment.
    Shuffles(PathBuf, Vec<String>, BTreeMap<String, String>),
}

impl Cluster {
    /// A coordinator, and `nodes` nodes called `n1`, `n2` and so on.
    pub async fn start(nodes: usize) -> Cluster {
        Cluster::start_in(None, nodes).await
    }

    /// The same, with the coordinator's state in `data_dir`.
    pub async fn start_in(data_dir: Option<PathBuf>, nodes: usize) -> Cluster {
        let mut cluster = Cluster::begin(data_dir, None, SETTINGS).await;
        for number in 1..=nodes {
            cluster.add_node(&format!("n{number}"), &[]).await;
        }
        cluster
    }

    /// The coordinator alone, which moves replicas to nodes that join.
    pub async fn balanced() -> Cluster {
        let settings = SETTINGS.replace("rebalance_ms = 3600000", "rebalance_ms = 1000");
        Cluster::begin(None, None, &settings).await
    }

    /// The coordinator alone, with its state on a server that others could share, and leases as sessions there need them.
    pub async fn on(engine: Engine) -> Cluster {
        Cluster::begin(None, Some(engine), fleet::SETTINGS).await
    }

    async fn begin(data_dir: Option<PathBuf>, engine: Option<Engine>, settings: &str) -> Cluster {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("coordinator.toml"), settings).unwrap();
        let subnet = Subnet::take();
        let data_dir = data_dir.unwrap_or_else(|| dir.path().join("state"));
        let admin = Admin::new(&format!("{subnet}.1:7400"));
        let nodes = BTreeMap::new();
        let mut cluster = Cluster { data_dir, coordinator: None, admin, nodes, engine, subnet, dir };
        cluster.start_coordinator().await;
        cluster
    }

    /// Where the coordinator listens.
    pub fn address(&self) -> String {
        format!("{}.1:7400", self.subnet)
    }

    /// Where its state is.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A path for what a test wants to keep.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command that runs the coordinator.
    pub fn coordinator_command(&self) -> std::process::Command {
        self.coordinator_command_at(&self.address())
    }

    /// The same on another address.
    pub fn coordinator_command_at(&self, listen: &str) -> std::process::Command {
        let mut command = std::process::Command::new(binary("partage"));
        command.arg("coordinator").args(["--listen", listen]);
        command.arg("--data-dir").arg(&self.data_dir).arg("--config").arg(self.path("coordinator.toml"));
        if let Some(engine) = &self.engine {
            let target = engine.target_through(&engine.address());
            command.args(["--id", "c1", "--coordination", &target.to_string()]);
            if let Some(password) = &target.password {
                command.env("PARTAGE_COORDINATION_PASSWORD", password.reveal());
            }
        }
        command
    }

    /// Starts the coordinator and waits until it answers.
    pub async fn start_coordinator(&mut self) {
        let command = outlives_its_limits(&self.coordinator_command());
        let process = Process::start("coordinator", command, &self.path("coordinator.log"));
        self.coordinator = Some(process);
        until("the coordinator answers", || async {
            self.admin.try_get::<Summary>("/v1/status").await.map(drop)
        })
        .await;
    }

    /// Where the coordinator keeps its state, if not in its folder.
    pub fn engine(&mut self) -> Option<&mut Engine> {
        self.engine.as_mut()
    }

    /// The process of the coordinator, to be killed or paused.
    pub fn coordinator(&mut self) -> &mut Process {
        self.coordinator.as_mut().unwrap()
    }

    /// What the coordinator has written since it was first started.
    pub fn coordinator_log(&self) -> String {
        self.coordinator.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Starts a node, with flags of `chaos-node`, and waits until the coordinator has it.
    pub async fn add_node(&mut self, id: &str, flags: &[&str]) {
        let flags = flags.iter().map(ToString::to_string).collect();
        self.add(id, Program::KeyValue(flags)).await;
    }

    /// Starts a node of tables, called `t1` or so, and waits until the coordinator has it.
    pub async fn add_table_node(&mut self, id: &str) {
        let folder = self.path(id);
        self.add(id, Program::Tables(folder)).await;
    }

    /// Starts a node of shuffles, called `s1` or so, and waits until the coordinator has it.
    pub async fn add_shuffle_node(&mut self, id: &str) {
        let folder = self.path(id);
        // The disk of a machine that tests is as full as it is.
        let flags = ["--disk-nearly-full", "1", "--disk-full", "1"].map(str::to_owned).to_vec();
        self.add(id, Program::Shuffles(folder, flags, BTreeMap::new())).await;
    }

    /// A node of shuffles has other flags and another environment from its next start on.
    pub fn set_shuffle_node(&mut self, id: &str, flags: &[&str], environment: &BTreeMap<String, String>) {
        let program = &mut self.nodes.get_mut(id).unwrap().program;
        let Program::Shuffles(_, known_flags, known_environment) = program else {
            panic!("{id} is no node of shuffles")
        };
        *known_flags = flags.iter().map(ToString::to_string).collect();
        known_environment.clone_from(environment);
    }

    async fn add(&mut self, id: &str, program: Program) {
        let number: u32 = id.trim_start_matches(['n', 't', 's']).parse().unwrap();
        let address = format!("{}.1:{}", self.subnet, 7500 + number);
        let link = Link::open(&format!("{}.1:{}", self.subnet, 7600 + number), &self.address()).await;
        let process = self.start_node(id, &address, link.address(), &program);
        self.nodes.insert(id.to_owned(), Node { process, address, link, program });
        self.node_is_up(id).await;
    }

    /// Starts a node again whose process has ended: same name, same address. Its link is mended.
    pub async fn restart_node(&mut self, id: &str) {
        let node = &self.nodes[id];
        node.link.mend();
        let process = self.start_node(id, &node.address, node.link.address(), &node.program);
        self.nodes.get_mut(id).unwrap().process = process;
        self.node_is_up(id).await;
    }

    /// Starts several again at once, as after a power cut.
    pub async fn restart_nodes(&mut self, ids: &[&str]) {
        for id in ids {
            let node = &self.nodes[*id];
            let process = self.start_node(id, &node.address, node.link.address(), &node.program);
            self.nodes.get_mut(*id).unwrap().process = process;
        }
        for id in ids {
            self.node_is_up(id).await;
        }
    }

    fn start_node(&self, id: &str, address: &str, coordinator: &str, program: &Program) -> Process {
        match program {
            Program::KeyValue(flags) => start_node(self.dir.path(), id, address, coordinator, flags),
            Program::Tables(folder) => {
                let mut command = std::process::Command::new(binary("partage"));
                command.args(["table", "serve", "--id", id, "--listen", address, "--join", coordinator]);
                command.arg("--data-dir").arg(folder);
                // The disk of a machine that tests is as full as it is.
                command.args(["--disk-nearly-full", "1", "--disk-full", "1"]);
                Process::start(id, outlives_its_limits(&command), &self.path(&format!("{id}.log")))
            }
            Program::Shuffles(folder, flags, environment) => {
                let mut command = std::process::Command::new(binary("partage"));
                command.args(["shuffle", "serve", "--id", id, "--listen", address, "--join", coordinator]);
                command.arg("--data-dir").arg(folder);
                command.args(["--slots", "24", "--memory", "128MiB"]).args(flags).envs(environment);
                Process::start(id, outlives_its_limits(&command), &self.path(&format!("{id}.log")))
            }
        }
    }

    async fn node_is_up(&self, id: &str) {
        node_is_up(&self.node(id).address).await;
    }

    /// The node of that name, which the test has added.
    pub fn node(&self, id: &str) -> &Node {
        &self.nodes[id]
    }

    /// A node, to be killed.
    pub fn node_mut(&mut self, id: &str) -> &mut Node {
        self.nodes.get_mut(id).unwrap()
    }

    /// Name and address of every node.
    pub fn addresses(&self) -> BTreeMap<String, String> {
        self.nodes.iter().map(|(id, node)| (id.clone(), node.address.clone())).collect()
    }

    /// Makes a keyspace as [`Admin::keyspace`] does.
    pub async fn keyspace(&self, name: &str, ownership: &str, mode: &str) {
        self.admin.keyspace(name, ownership, mode).await;
    }
}

/// Starts a `chaos-node` that registers with `coordinators`, with commas between them.
pub(crate) fn start_node(
    dir: &Path,
    id: &str,
    address: &str,
    coordinators: &str,
    flags: &[String],
) -> Process {
    let mut command = std::process::Command::new(binary("chaos-node"));
    command.args(["--id", id, "--listen", address, "--coordinator", coordinators]).args(flags);
    Process::start(id, command, &dir.join(format!("{id}.log")))
}

/// Waits until the node at `address` has registered.
pub(crate) async fn node_is_up(address: &str) {
    let http = Http::default();
    until("the node has registered", || async {
        let reply = http.get(address, "/partage/worker").await?;
        if reply.text().contains("\"health\":\"up\"") { Ok(()) } else { Err(reply.text()) }
    })
    .await;
}
