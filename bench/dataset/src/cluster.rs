//! Three nodes of ours, or three of Sequins, that meet at a ZooKeeper.

use crate::Run;
use crate::data::Data;
use crate::node::{self, STABLE_S, Told};
use crate::servers::{self, sequins_command};
use bench_gauge::{PATIENCE, Running, free, now, rest};
use rustix::process::Signal;
use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Nodes of a cluster.
pub const NODES: usize = 3;

/// Nodes with each partition.
pub const REPLICATION: u32 = 2;

/// Where Debian puts what ZooKeeper is made of.
const JARS: [&str; 4] = ["zookeeper", "slf4j-simple", "netty-codec", "netty-resolver"];

/// Nodes of one kind.
pub struct Cluster {
    /// The name of the server program that the nodes run, `partage` or `sequins`.
    pub name: &'static str,
    /// The nodes, by their numbers from 0.
    pub nodes: Vec<Running>,
    starting: Box<dyn Fn(usize, SocketAddr) -> Result<Command>>,
}

/// Those that are compared, and where they meet.
pub struct Clusters {
    /// Ours, then Sequins' if its program was named.
    pub clusters: Vec<Cluster>,
    _zookeeper: Running,
}

impl Clusters {
    /// All on one source, of which they serve the first version, and at rest.
    pub fn start(told: &Run) -> Result<Clusters> {
        let zookeeper = zookeeper(&told.folder("zookeeper")?)?;
        told.write_version(1)?;
        let (folder, source) = (told.folder("nodes")?, told.source()?);
        let mut clusters = vec![Cluster::ours(&folder, &source, zookeeper.at, told.number("--threads", 0))?];
        clusters[0].serves(&told.data, 1)?;
        if let Some(program) = &told.sequins {
            let mut sequins = Cluster::sequins(program, &folder, &source, zookeeper.at)?;
            sequins.serves(&told.data, 1)?;
            clusters.push(sequins);
        }
        Ok(Clusters { clusters, _zookeeper: zookeeper })
    }
}

/// A ZooKeeper of one server, as Debian packages it.
fn zookeeper(folder: &Path) -> Result<Running> {
    let at = free()?;
    let folder = folder.join("zookeeper");
    std::fs::create_dir_all(folder.join("data"))?;
    let text = format!(
        "dataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\ntickTime=2000\nadmin.enableServer=false\n",
        folder.join("data").display(),
        at.port()
    );
    std::fs::write(folder.join("zoo.cfg"), text)?;
    let jars = JARS.map(|name| format!("/usr/share/java/{name}.jar"));
    if let Some(missing) = jars.iter().find(|jar| !Path::new(jar).is_file()) {
        return Err(Error::other(format!("{missing} is missing: install the Debian package zookeeper")));
    }
    let mut command = Command::new("java");
    command.args(["-Xmx256m", "-cp", &jars.join(":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
    let running = Running::start(command.arg(folder.join("zoo.cfg")), at)?;
    // It listens before it serves, and Sequins gives up at once.
    let end = now() + PATIENCE;
    while !is_serving(at).unwrap_or(false) {
        if now() > end {
            return Err(Error::other(format!("ZooKeeper does not serve at {at}")));
        }
        rest(50);
    }
    Ok(running)
}

fn is_serving(zookeeper: SocketAddr) -> Result<bool> {
    let (mut stream, mut said) = (TcpStream::connect(zookeeper)?, String::new());
    stream.write_all(b"srvr")?;
    stream.read_to_string(&mut said)?;
    Ok(said.contains("Mode: "))
}

impl Cluster {
    /// A cluster of ours, on a source.
    fn ours(folder: &Path, source: &Path, zookeeper: SocketAddr, threads: u64) -> Result<Cluster> {
        let (folder, source) = (folder.join("ours"), source.to_owned());
        let told = Told { zookeeper: Some(zookeeper), threads, ..Told::default() };
        Cluster::start("partage", move |number, at| node::command(&source, &own(&folder, number)?, at, &told))
    }

    /// A cluster of Sequins, on a source.
    fn sequins(program: &Path, folder: &Path, source: &Path, zookeeper: SocketAddr) -> Result<Cluster> {
        let [program, folder, source] = [program, &folder.join("sequins"), source].map(Path::to_owned);
        let more = format!(
            "[sharding]\nenabled = true\nreplication = {REPLICATION}\ntime_to_converge = \"{STABLE_S}s\"\n\
             advertised_hostname = \"127.0.0.1\"\n[zk]\nservers = [\"{zookeeper}\"]\n[test]\nallow_local_cluster = true\n"
        );
        Cluster::start("sequins", move |number, at| {
            sequins_command(&program, &own(&folder, number)?, (&source, at), &more)
        })
    }

    fn start(
        name: &'static str,
        starting: impl Fn(usize, SocketAddr) -> Result<Command> + 'static,
    ) -> Result<Cluster> {
        let mut nodes = Vec::new();
        for number in 0..NODES {
            let at = free()?;
            nodes.push(Running::spawn(&mut starting(number, at)?, at)?);
        }
        nodes.iter_mut().try_for_each(Running::listens)?;
        Ok(Cluster { name, nodes, starting: Box::new(starting) })
    }

    /// The addresses that the nodes listen on, by their numbers.
    pub fn at(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.at).collect()
    }

    /// Seconds on a core that all have used.
    pub fn core_seconds(&self) -> f64 {
        self.nodes.iter().map(Running::core_seconds_ever).sum()
    }

    /// Waits until all answer from a version, and have nothing more to do.
    pub fn serves(&mut self, data: &Data, version: u32) -> Result<()> {
        self.nodes.iter_mut().try_for_each(|node| servers::serves(node, data, version))?;
        let mut before = self.core_seconds();
        loop {
            rest(1_000);
            let used = self.core_seconds();
            if used - before < 0.06 {
                return Ok(());
            }
            before = used;
        }
    }

    /// Has all look at the source.
    pub fn hang_up(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.signal(Signal::HUP))
    }

    /// Starts a node again that was killed, where it was.
    pub fn revive(&mut self, number: usize) -> Result<()> {
        let at = self.nodes[number].at;
        self.nodes[number] = Running::start(&mut (self.starting)(number, at)?, at)?;
        Ok(())
    }
}

fn own(folder: &Path, number: usize) -> Result<PathBuf> {
    let own = folder.join(format!("node-{number}"));
    std::fs::create_dir_all(&own)?;
    Ok(own)
}
