//! The example workers as processes.

#![allow(dead_code, reason = "each test file uses its part")]

use super::door::PATIENCE;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// A process with all its children, which are gone when this is.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Process {
        Process(command.process_group(0).spawn().unwrap())
    }

    pub fn signal(&self, name: &str) {
        let group = format!("-{}", self.0.id());
        // A group that has ended cannot be signalled, and need not be.
        let _ = Command::new("kill")
            .args(["-s", name, "--", &group])
            .stderr(std::process::Stdio::null())
            .status();
    }

    /// Waits until it has ended by itself, and says whether it ended well.
    pub async fn ended(&mut self) -> bool {
        let wait = async {
            loop {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status.success();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("it does not end")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal("KILL");
        let _ = self.0.wait();
    }
}

pub fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path)
}

/// A port that was free a moment ago, below those that the system gives to others meanwhile.
pub fn port() -> u16 {
    let mut ports = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    let low = |port: u16| 10_000 + port % 20_000;
    ports.find(|port| TcpListener::bind(("127.0.0.1", low(*port))).is_ok()).map(low).unwrap()
}
