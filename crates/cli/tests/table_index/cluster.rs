//! A coordinator and three nodes of tables as processes of their own, and commands against them.

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
pub struct Process(Child);

impl Process {
    /// Starts a role and waits for the line that says where it listens.
    fn role(arguments: &[&str], name: &str, log: &Path) -> (Process, String) {
        let log = std::fs::File::create(log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
        let command = command.args(arguments).arg("--json").stdout(Stdio::piped()).stderr(log);
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{arguments:?}: {line:?}"));
        (process, said[name].as_str().unwrap().to_owned())
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

/// What a command has said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{self:?}"))
    }

    #[track_caller]
    pub fn refused(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(part), "{part:?} is not in {self:?}");
    }
}

/// The status and the JSON of an answer over HTTP; none if there was none.
pub fn ask(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
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

/// A coordinator and three nodes.
pub struct Cluster {
    pub nodes: Vec<(Process, String)>,
    _coordinator: Process,
    coordinator: String,
    dir: TempDir,
}

impl Cluster {
    pub fn start() -> Cluster {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("coordinator.toml");
        std::fs::write(&file, SETTINGS).unwrap();
        let state = dir.path().join("state");
        let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", state.to_str().unwrap()];
        let arguments = [&arguments[..], &["--config", file.to_str().unwrap()]].concat();
        let (process, coordinator) =
            Process::role(&arguments, "coordinator", &dir.path().join("coordinator.log"));
        let mut cluster = Cluster { nodes: Vec::new(), _coordinator: process, coordinator, dir };
        cluster.nodes = (1..=3).map(|number| cluster.node(number, "127.0.0.1:0")).collect();
        cluster
    }

    fn node(&self, number: usize, listen: &str) -> (Process, String) {
        let (id, folder) = (format!("t{number}"), self.dir.path().join(format!("t{number}")));
        let arguments = ["table", "serve", "--id", &id, "--listen", listen, "--join", &self.coordinator];
        let arguments = [&arguments[..], &["--data-dir", folder.to_str().unwrap()]].concat();
        Process::role(&arguments, "address", &self.dir.path().join(format!("{id}.log")))
    }

    /// Starts a node again that was killed, with what it has stored.
    pub fn start_again(&mut self, number: usize) {
        let address = self.nodes[number].1.clone();
        self.nodes[number] = self.node(number + 1, &address);
    }

    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|(_, address)| address.clone()).collect()
    }

    /// A command; any node may be asked.
    pub fn run(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
        command.args(arguments).env("PARTAGE_COORDINATOR", &self.coordinator);
        let ended = command.env("PARTAGE_TABLE_NODE", self.addresses().join(",")).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: ended.status.code(), out: text(&ended.stdout), err: text(&ended.stderr) }
    }

    /// `partage table …` with `--json`.
    pub fn table(&self, arguments: &[&str]) -> Said {
        self.run(&[&["table"], arguments, &["--json"]].concat())
    }

    pub fn shards(&self, table: &str) -> Vec<Value> {
        let path = format!("/v1/keyspaces/{table}/shards");
        let page = ask(&self.coordinator, "GET", &path, "").unwrap().1;
        page["shards"].as_array().unwrap().clone()
    }

    /// The number of the node that leads a shard.
    pub fn leader(&self, shard: &Value) -> usize {
        let leads = |replica: &&Value| replica["role"] == "leader";
        let leader = shard["replicas"].as_array().unwrap().iter().find(leads).unwrap();
        let number: usize = leader["node"].as_str().unwrap()[1..].parse().unwrap();
        number - 1
    }
}
