//! Processes of the program, what its commands say, and what `./test setup` has installed: for all test programs of clusters.

#![allow(dead_code, reason = "each test program uses a part")]

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Settings of a coordinator: heartbeats and deadlines with which a dead node is found in seconds.
pub const SETTINGS: &str = "heartbeat_ms = 200\nlease_ms = 2500\ndead_after_ms = 3000\ncheck_back_ms = 1000\n\
                            settle_ms = 500\nbrake_share = 1.0\n";

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A process, killed when dropped.
pub struct Process(pub Child);

impl Process {
    /// Starts a command and waits for the line, of JSON, that says where it listens.
    pub fn start(mut command: Command, log: &Path) -> (Process, Value) {
        let log = std::fs::File::options().append(true).create(true).open(log).unwrap();
        let command = command.arg("--json").stdout(Stdio::piped()).stderr(log);
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{command:?}: {line:?}"));
        (process, said)
    }

    /// Sends it a signal, such as `-STOP`.
    pub fn signal(&self, name: &str) {
        signal(&self.0, name);
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

/// Stops a process with `-STOP`, and lets it go on with `-CONT`.
pub fn signal(process: &Child, signal: &str) {
    let done = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(done.success(), "{signal}");
}

pub fn partage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    command.args(arguments);
    // The disk of a machine that tests is as full as it is. A flag says otherwise where a limit is tested.
    command.envs([("PARTAGE_DISK_NEARLY_FULL", "1"), ("PARTAGE_DISK_FULL", "1")]);
    command
}

/// What a command has said.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
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

/// A file of what `./test setup` has installed for itself.
pub fn tool(path: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    cache.or_else(home).unwrap_or_default().join("partage/tools").join(path)
}
