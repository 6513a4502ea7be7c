//! A coordinator and nodes of shuffles as processes of their own, and commands against them: for all test programs of shuffles.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../process/mod.rs"]
pub mod process;

pub use process::{Said, partage, signal};

use process::{PATIENCE, Process, SETTINGS};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A coordinator and nodes `s1`, `s2` and so on.
pub struct Pool {
    nodes: Vec<Process>,
    addresses: Vec<String>,
    _coordinator: Process,
    folder: TempDir,
}

impl Pool {
    /// Starts them, and waits until each node has slots: a node that has none knows of no records.
    pub fn start(count: usize) -> Pool {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("coordinator.toml"), SETTINGS).unwrap();
        let (state, settings) = (path("state"), path("coordinator.toml"));
        let arguments =
            ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &state, "--config", &settings];
        let (coordinator, said) = Process::start(partage(&arguments), Path::new(&path("coordinator.log")));
        let joined = said["coordinator"].as_str().unwrap().to_owned();
        let node = |number: usize| {
            let id = format!("s{}", number + 1);
            let (data, log) = (path(&id), path(&format!("{id}.log")));
            let serve = ["shuffle", "serve", "--id", &id, "--listen", "127.0.0.1:0", "--join", &joined];
            let command = partage(&[&serve[..], &["--data-dir", &data]].concat());
            let (process, said) = Process::start(command, Path::new(&log));
            (process, said["address"].as_str().unwrap().to_owned())
        };
        let (nodes, addresses) = (0..count).map(node).unzip();
        let pool = Pool { nodes, addresses, _coordinator: coordinator, folder };
        pool.eventually("each node has slots", || {
            let shards = pool.run(&["shard", "list", "default", "--coordinator", &joined, "--json"]).json();
            let shards = shards["shards"].as_array().unwrap().iter();
            let replicas = shards.flat_map(|shard| shard["replicas"].as_array().unwrap());
            let live = replicas.filter(|replica| replica["state"] == "live");
            let having: BTreeSet<&str> = live.map(|replica| replica["node"].as_str().unwrap()).collect();
            if having.len() == count { Ok(()) } else { Err(format!("{having:?}")) }
        });
        pool
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
