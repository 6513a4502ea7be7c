//! moto, which speaks S3, with a bucket.

use crate::{files_below, settings, tool};
use backends::process::Process;
use backends::{free_port, until};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use partage_dataset::source::Settings;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A server that dies with its handle.
#[derive(Debug)]
pub struct Moto {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

impl Moto {
    /// Starts one, with an empty bucket named `bucket`.
    pub async fn start() -> Moto {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let mut command = Command::new(tool("python/bin/moto_server"));
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        let process = Process::start("moto", command, &folder.path().join("log"));
        until("moto takes a bucket", || put_nothing(port, "/bucket")).await;
        Moto { port, _process: process, _folder: folder }
    }

    /// The settings of an account that may read the bucket.
    pub fn settings() -> Settings {
        settings([("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("PATH", "/bin")])
    }

    /// The URL of what begins with `prefix`.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://bucket/{prefix}?endpoint=http://127.0.0.1:{}&region=us-east-1", self.port)
    }

    fn store(&self) -> AmazonS3 {
        crate::have_cryptography();
        AmazonS3Builder::new()
            .with_endpoint(format!("http://127.0.0.1:{}", self.port))
            .with_allow_http(true)
            .with_bucket_name("bucket")
            .with_region("us-east-1")
            .with_access_key_id("id")
            .with_secret_access_key("secret")
            .build()
            .unwrap()
    }

    /// Puts one object into the bucket.
    pub async fn put(&self, key: &str, bytes: Vec<u8>) {
        self.store().put(&Key::parse(key).unwrap(), PutPayload::from(bytes)).await.unwrap();
    }

    /// Puts an object without bytes whose key ends in a slash, as tools that know folders do to mark one.
    pub async fn put_marker(&self, key: &str) {
        let path = format!("/bucket/{key}/");
        until("moto takes a marker", || put_nothing(self.port, &path)).await;
    }

    /// Whether it is listed beside what is in the folder.
    pub async fn has_marker(&self, key: &str) -> bool {
        let listed = self.store().list_with_delimiter(Some(&Key::parse(key).unwrap())).await.unwrap();
        listed.objects.iter().any(|object| object.location.as_ref() == key)
    }

    /// Whether there is any object below `prefix`.
    pub async fn has_any(&self, prefix: &str) -> bool {
        let listed = self.store().list_with_delimiter(Some(&Key::parse(prefix).unwrap())).await.unwrap();
        !(listed.objects.is_empty() && listed.common_prefixes.is_empty())
    }

    /// Puts all files of a folder below `prefix`.
    pub async fn put_all(&self, folder: &Path, prefix: &str) {
        for file in files_below(folder) {
            self.put(&format!("{prefix}/{file}"), std::fs::read(folder.join(&file)).unwrap()).await;
        }
    }
}

/// Puts an object by a request written here: the client of the object store takes the slash at the end away.
async fn put_nothing(port: u16, path: &str) -> Result<(), String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(|error| error.to_string())?;
    let request =
        format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    stream.read_to_string(&mut answer).await.map_err(|error| error.to_string())?;
    if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
}
