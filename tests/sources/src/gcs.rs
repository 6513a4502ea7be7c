//! fake-gcs-server, which speaks Google Cloud Storage, with the buckets that lie in a folder.

use crate::tool;
use backends::process::Process;
use backends::{free_port, until};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tokio::net::TcpStream;

/// A server that dies with its handle.
#[derive(Debug)]
pub struct FakeGcs {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

impl FakeGcs {
    /// Starts one whose buckets are the folders in `buckets`.
    pub async fn start(buckets: &Path) -> FakeGcs {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut command = Command::new(tool("go/bin/fake-gcs-server"));
        command.args(["-scheme", "http", "-host", "127.0.0.1", "-port", &port.to_string()]);
        command
            .args(["-public-host", &format!("127.0.0.1:{port}"), "-backend", "memory", "-data"])
            .arg(buckets);
        let process = Process::start("fake-gcs-server", command, &folder.path().join("log"));
        until("fake-gcs-server listens", || async move {
            TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())
        })
        .await;
        FakeGcs { port, _process: process, _folder: folder }
    }

    /// The URL of what begins with `prefix` in a bucket that may be read without a password.
    pub fn url(&self, bucket: &str, prefix: &str) -> String {
        format!("gs://{bucket}/{prefix}?endpoint=http://127.0.0.1:{}&anonymous=true", self.port)
    }
}
