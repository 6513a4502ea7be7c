//! A coordinator and nodes of shuffles as processes of their own, and commands against them: for all test programs of shuffles.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../process/mod.rs"]
pub mod process;
pub mod records;

pub use process::{Said, partage};

use process::{PATIENCE, Process, SETTINGS};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A coordinator and nodes `s1`, `s2` and so on.
pub struct Pool {
    nodes: Vec<Process>,
    addresses: Vec<String>,
    coordinator: String,
    _coordinator: Process,
    folder: TempDir,
}

impl Pool {
    /// Starts them, and waits until each node has slots: a node that has none stores little.
    pub fn start(count: usize) -> Pool {
        Pool::start_with(&vec![&[] as &[&str]; count])
    }

    /// The same, each node with arguments of its own, and waits for those that store.
    pub fn start_with(nodes: &[&[&str]]) -> Pool {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("coordinator.toml"), SETTINGS).unwrap();
        let (state, settings) = (path("state"), path("coordinator.toml"));
        let arguments =
            ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &state, "--config", &settings];
        let (process, said) = Process::start(partage(&arguments), Path::new(&path("coordinator.log")));
        let coordinator = said["coordinator"].as_str().unwrap().to_owned();
        let (started, addresses) = (Vec::new(), Vec::new());
        let mut pool = Pool { nodes: started, addresses, coordinator, _coordinator: process, folder };
        let mut storing = 0;
        for arguments in nodes {
            storing += usize::from(pool.add(arguments));
        }
        pool.eventually("each node has slots", || {
            let having = pool.having(|replica| replica["state"] == "live");
            if having.len() == storing { Ok(()) } else { Err(format!("{having:?}")) }
        });
        pool
    }

    /// Starts one more node, and waits until it takes calls. Whether it stores.
    pub fn add(&mut self, arguments: &[&str]) -> bool {
        let id = format!("s{}", self.nodes.len() + 1);
        let (data, log) = (self.path(&id), self.path(&format!("{id}.log")));
        let mut command = partage(&[
            "shuffle",
            "serve",
            "--id",
            &id,
            "--listen",
            "127.0.0.1:0",
            "--join",
            &self.coordinator,
        ]);
        command.arg("--data-dir").arg(data).args(arguments);
        let (process, said) = Process::start(command, &log);
        self.nodes.push(process);
        self.addresses.push(said["address"].as_str().unwrap().to_owned());
        said["roles"].as_array().unwrap().iter().any(|role| role == "storage")
    }

    /// Starts a node that was killed once more, with other arguments.
    pub fn restart(&mut self, number: usize, arguments: &[&str]) {
        let id = format!("s{}", number + 1);
        let (data, log) = (self.path(&id), self.path(&format!("{id}.log")));
        let serve = ["shuffle", "serve", "--id", &id, "--listen", "127.0.0.1:0", "--join", &self.coordinator];
        let mut command = partage(&serve);
        command.arg("--data-dir").arg(data).args(arguments);
        let (process, said) = Process::start(command, &log);
        self.nodes[number] = process;
        said["address"].as_str().unwrap().clone_into(&mut self.addresses[number]);
    }

    /// The nodes that have such a replica of a slot.
    pub fn having(&self, is_one: impl Fn(&Value) -> bool) -> BTreeSet<String> {
        let shards =
            self.run(&["shard", "list", "default", "--coordinator", &self.coordinator, "--json"]).json();
        let shards = shards["shards"].as_array().unwrap().iter();
        let replicas = shards.flat_map(|shard| shard["replicas"].as_array().unwrap());
        let such = replicas.filter(|replica| is_one(replica));
        such.map(|replica| replica["node"].as_str().unwrap().to_owned()).collect()
    }

    /// Where the coordinator listens.
    pub fn coordinator(&self) -> &str {
        &self.coordinator
    }

    /// Where the nodes listen, those that were killed too.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Ends a node as `kill -9` does.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].kill();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = partage(arguments);
        command.env("PARTAGE_SHUFFLE_NODE", self.addresses.join(","));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        Said::of(self.command(arguments))
    }

    fn sort_command(&self, file: &Path, out: &Path, parts: usize, arguments: &[&str]) -> Command {
        let (file, out, parts) = (file.to_str().unwrap(), out.to_str().unwrap(), parts.to_string());
        let sort = ["shuffle", "sort", file, "-o", out, "--partitions", &parts, "--json"];
        self.command(&[&sort[..], arguments].concat())
    }

    pub fn sort(&self, file: &Path, out: &Path, parts: usize, arguments: &[&str]) -> Said {
        Said::of(self.sort_command(file, out, parts, arguments))
    }

    /// The same, while it goes on.
    pub fn begin_sort(&self, file: &Path, out: &Path, parts: usize, arguments: &[&str]) -> Child {
        let mut command = self.sort_command(file, out, parts, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    #[track_caller]
    pub fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            match look() {
                Ok(found) => return found,
                Err(why) if Instant::now() >= until => panic!("{what}: {why}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// A metric of a node.
pub fn metric(node: &str, name: &str) -> u64 {
    let mut stream = TcpStream::connect(node).unwrap();
    let request =
        format!("GET /partage/worker/metrics HTTP/1.1\r\nHost: {node}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
}
