//! A coordinator and nodes of tables as processes of their own.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Heartbeats and deadlines with which a dead node is found in seconds.
const SETTINGS: &str = "heartbeat_ms = 200\nlease_ms = 2500\ndead_after_ms = 3000\ncheck_back_ms = 1000\nsettle_ms = 500\n\
                        brake_share = 1.0\n";

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process, killed when dropped.
pub struct Process(pub Child);

impl Process {
    /// Starts a role; gives the line that says where it listens.
    fn role(arguments: &[&str], log: &Path) -> (Process, Value) {
        let mut command = partage(arguments);
        let log = std::fs::File::create(log).unwrap();
        let command = command.arg("--json").stdout(Stdio::piped()).stderr(log);
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{arguments:?}: {line:?}"));
        (process, said)
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn partage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    command.args(arguments);
    command
}

#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) if Instant::now() >= until => panic!("{what}: {why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// A node of tables.
pub struct Node {
    pub process: Process,
    /// Over HTTP and gRPC.
    pub address: String,
    /// Over Redis' protocol, if it listens for that.
    pub resp: String,
}

/// A coordinator and some nodes.
pub struct Cluster {
    pub nodes: Vec<Node>,
    _coordinator: Process,
    address: String,
    _dir: TempDir,
}

impl Cluster {
    /// One node for each list of flags.
    pub fn start(nodes: &[&[&str]]) -> Cluster {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("coordinator.toml");
        std::fs::write(&file, SETTINGS).unwrap();
        let state = dir.path().join("state");
        let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", state.to_str().unwrap()];
        let arguments = [&arguments[..], &["--config", file.to_str().unwrap()]].concat();
        let (coordinator, said) = Process::role(&arguments, &dir.path().join("coordinator.log"));
        let address = said["coordinator"].as_str().unwrap().to_owned();
        let node = |(at, flags): (usize, &&[&str])| {
            let id = format!("t{}", at + 1);
            let folder = dir.path().join(&id);
            let arguments = ["table", "serve", "--id", &id, "--listen", "127.0.0.1:0", "--join", &address];
            let arguments = [&arguments[..], &["--data-dir", folder.to_str().unwrap()], flags].concat();
            let (process, said) = Process::role(&arguments, &dir.path().join(format!("{id}.log")));
            let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
            Node { process, address: text("address"), resp: text("resp") }
        };
        let nodes = nodes.iter().enumerate().map(node).collect();
        Cluster { nodes, _coordinator: coordinator, address, _dir: dir }
    }

    /// Creates a table, and waits until it is served.
    #[track_caller]
    pub fn create(&self, arguments: &[&str]) {
        let mut command = partage(&[&["table", "create"], arguments, &["--wait"]].concat());
        let ended = command.env("PARTAGE_COORDINATOR", &self.address).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }

    /// What a coordinator answers to a `GET`.
    pub fn told(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
    }
}
