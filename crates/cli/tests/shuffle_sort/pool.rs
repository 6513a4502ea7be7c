//! A coordinator and nodes of shuffles as processes of their own, and commands against them.

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Heartbeats and deadlines with which a dead node is found in seconds.
const SETTINGS: &str = "heartbeat_ms = 200\nlease_ms = 2500\ndead_after_ms = 3000\ncheck_back_ms = 1000\nsettle_ms = 500\n\
                        brake_share = 1.0\n";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process, killed when dropped.
struct Process(Child);

impl Process {
    /// Starts a command and waits for the line, of JSON, that says where it listens.
    fn start(mut command: Command, log: &Path) -> (Process, Value) {
        let log = std::fs::File::options().append(true).create(true).open(log).unwrap();
        let command = command.arg("--json").stdout(Stdio::piped()).stderr(log);
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{command:?}: {line:?}"));
        (process, said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn partage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    // The disk of a machine that tests is as full as it is.
    command.args(arguments).envs([("PARTAGE_DISK_NEARLY_FULL", "1"), ("PARTAGE_DISK_FULL", "1")]);
    command
}

/// Stops a process with `-STOP`, and lets it go on with `-CONT`.
pub fn signal(process: &Child, signal: &str) {
    let done = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(done.success(), "{signal}");
}

/// What a command has said.
#[derive(Debug)]
pub struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    pub fn of(mut command: Command) -> Said {
        let ended = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: ended.status.code(), out: text(&ended.stdout), err: text(&ended.stderr) }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{self:?}"))
    }

    #[track_caller]
    pub fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {self:?}");
        }
    }
}

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

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Ends a node as `kill -9` does.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].0.kill().unwrap();
        self.nodes[number].0.wait().unwrap();
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
