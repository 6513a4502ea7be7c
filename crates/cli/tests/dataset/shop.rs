//! A folder with a source, and nodes on it.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Shop {
    folder: TempDir,
}

/// A running node, stopped when dropped.
pub struct Node {
    process: Child,
    pub address: String,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How a command ended, and what it said.
#[derive(Debug)]
pub struct Told {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl From<Output> for Told {
    fn from(output: Output) -> Told {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Told { code: output.status.code().unwrap(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Told {
    /// The one JSON value on stdout, of a command that did what it was to do.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

/// The command, without settings from the environment.
pub fn partage() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    for name in ["PARTAGE_DATASET_SOURCE", "PARTAGE_DATASET_NODE", "PARTAGE_CONFIG", "PARTAGE_DATA_DIR"] {
        command.env_remove(name);
    }
    command
}

pub fn dataset(arguments: &[&str]) -> Told {
    partage().arg("dataset").args(arguments).output().unwrap().into()
}

impl Shop {
    pub fn new() -> Shop {
        let shop = Shop { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(shop.source().join("colours")).unwrap();
        shop
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn source(&self) -> PathBuf {
        self.path("source")
    }

    pub fn at(&self) -> String {
        self.source().display().to_string()
    }

    /// A version, whole from its first moment on.
    pub fn write(&self, version: &str, files: &[&str]) {
        let hidden = self.source().join("colours/_next");
        fs::create_dir_all(&hidden).unwrap();
        for (number, file) in files.iter().enumerate() {
            fs::write(hidden.join(format!("part-{number}.csv")), file).unwrap();
        }
        let version = self.source().join("colours").join(version);
        let _ = fs::remove_dir_all(&version);
        fs::rename(hidden, version).unwrap();
    }

    /// Adds the dataset `colours`: CSV, keyed by name.
    pub fn add(&self, more: &[&str]) -> Told {
        let at = self.at();
        let add = ["add", "colours", "--source", &at, "--format", "csv", "--key", "name", "--value", "hex"];
        dataset(&[&add[..], more].concat())
    }

    pub fn node(&self) -> Node {
        self.node_in(&self.path("node"), partage())
    }

    /// A node with that folder, by that command.
    pub fn node_in(&self, data_dir: &Path, command: Command) -> Node {
        self.node_logging(data_dir, command, Stdio::null())
    }

    /// The same, with its log there.
    pub fn node_logging(&self, data_dir: &Path, mut command: Command, log: Stdio) -> Node {
        let config = self.path("node.toml");
        // Alone, so there is nobody to wait for.
        fs::write(&config, "stable_s = 0\nrefresh_s = 1\nload_memory_mib = 2\nthreads = 1\n").unwrap();
        command.args(["dataset", "serve", "--listen", "127.0.0.1:0", "--json", "--source", &self.at()]);
        command.arg("--config").arg(config).arg("--data-dir").arg(data_dir);
        let mut process = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no node: {line:?}"));
        Node { process, address: told["address"].as_str().unwrap().to_owned() }
    }
}

impl Node {
    /// Asks it to stop, as a service manager does, and waits for its end; none if it goes on for half a minute.
    pub fn stop(mut self) -> Option<std::process::ExitStatus> {
        let asked = Command::new("kill").arg("-TERM").arg(self.process.id().to_string()).status();
        assert!(asked.unwrap().success());
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(ended) = self.process.try_wait().unwrap() {
                return Some(ended);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }

    /// A verb that asks this node.
    pub fn ask(&self, arguments: &[&str]) -> Told {
        dataset(&[arguments, &["--node", &self.address]].concat())
    }

    /// What it tells of a version.
    pub fn version(&self, version: &str) -> Value {
        let told = self.ask(&["status", "colours", "--json"]);
        if told.code != 0 {
            return Value::Null;
        }
        told.json()["versions"][version]["nodes"][&self.address].take()
    }
}

pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came to be that {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The address of what gives every request the answer that belongs to that address.
pub fn answering(answer: impl FnOnce(&str) -> Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let body = answer(&address).to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]);
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            );
        }
    });
    address
}
