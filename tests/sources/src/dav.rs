//! WsgiDAV, which shows a folder by WebDAV.

use crate::tool;
use backends::process::Process;
use backends::{free_port, until};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tokio::net::TcpStream;

/// A server that dies with its handle.
#[derive(Debug)]
pub struct Dav {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

impl Dav {
    /// Starts a server that shows `shown` to every client, without a password.
    pub async fn start(shown: &Path) -> Dav {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut command = Command::new(tool("python/bin/wsgidav"));
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--auth", "anonymous", "--root"]);
        command.arg(shown);
        let process = Process::start("wsgidav", command, &folder.path().join("log"));
        until("wsgidav listens", || async move {
            TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())
        })
        .await;
        Dav { port, _process: process, _folder: folder }
    }

    /// The URL of a folder in what is shown.
    pub fn url(&self, prefix: &str) -> String {
        format!("http://127.0.0.1:{}/{prefix}", self.port)
    }
}
