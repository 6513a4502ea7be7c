//! The servers that are measured, each a process of its own, on loopback.

use crate::data::{self, PARTITIONS};
use partage_core::dataset::name::{DatasetName, VersionName};
use partage_core::dataset::partition::Partitioner;
use partage_dataset::catalogue::{Catalogue, Dataset, NodeCard, Options, Version};
use partage_dataset::serve::{Server, Settings};
use partage_engine::readonly::{self, Builder, Reader};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A server that is ended when it is dropped.
pub struct Running {
    child: Child,
    /// Where it listens.
    pub at: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Seconds on a core that it has used.
    pub fn core_seconds(&self) -> f64 {
        bench_gauge::core_seconds_of(self.child.id())
    }

    fn start(command: &mut Command, at: SocketAddr, patience: Duration) -> std::io::Result<Running> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut running = Running { child, at };
        let end = bench_gauge::now() + patience;
        while TcpStream::connect(at).is_err() {
            if bench_gauge::now() > end || running.child.try_wait()?.is_some() {
                return Err(std::io::Error::other(format!("{command:?} does not listen at {at}")));
            }
            rest();
        }
        Ok(running)
    }
}

#[expect(clippy::disallowed_methods, reason = "a bench waits for other programs to start")]
fn rest() {
    std::thread::sleep(Duration::from_millis(20));
}

fn free() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Ours: this program again, as a server on the store files in `folder`.
pub fn ours(folder: &Path, threads: usize) -> std::io::Result<Running> {
    let at = free()?;
    let program = std::fs::read_link("/proc/self/exe")?;
    let mut command = Command::new(program);
    command.arg("serve").arg(folder).arg(at.to_string()).arg(threads.to_string());
    Running::start(&mut command, at, Duration::from_secs(20))
}

/// What the process that [`ours`] starts does.
pub fn serve(folder: &Path, at: SocketAddr, threads: usize) -> Result<(), Box<dyn std::error::Error>> {
    let me = NodeCard { shard_id: "1".to_owned(), address: at.to_string().into() };
    let catalogue = Arc::new(Catalogue::new(me));
    let dataset = catalogue.add(Dataset::new(DatasetName::new("bench")?, Options::default())?);
    let version = Version::new(VersionName::new("1")?, "", PARTITIONS, Partitioner::JavaBytes, 0)?;
    let version = dataset.prepare(version)?;
    for partition in 0..PARTITIONS {
        let reader = Reader::open(&folder.join(format!("{partition}.partage")))?;
        // Like the memory of the others, it is there before anybody asks.
        reader.verify()?;
        version.hold(partition, Arc::new(reader));
    }
    dataset.upgrade("1")?;
    let settings = Settings { threads, ..Settings::default() };
    let _server = Server::start(TcpListener::bind(at)?, catalogue, settings)?;
    loop {
        std::thread::park();
    }
}

/// Builds the store files, unless they are there.
pub fn build(folder: &Path, keys: u64) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    let path = |partition: u32| folder.join(format!("{partition}.partage"));
    if (0..PARTITIONS).all(|partition| path(partition).exists()) {
        return Ok(());
    }
    let mut builders = Vec::new();
    for partition in 0..PARTITIONS {
        let _ = std::fs::remove_file(path(partition));
        let compression = readonly::Compression::None;
        builders
            .push(Builder::new(&path(partition), readonly::Options { compression, ..Default::default() })?);
    }
    for number in 0..keys {
        let key = data::key(number);
        let partition = Partitioner::JavaBytes.partition(&key, PARTITIONS);
        builders[partition as usize].add(&key, &data::value(number))?;
    }
    for builder in builders {
        builder.finish()?;
    }
    Ok(())
}

/// Redis, with all keys in it, without saving.
pub fn redis(keys: u64) -> std::io::Result<Running> {
    let at = free()?;
    let port = at.port().to_string();
    let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let running = Running::start(Command::new("redis-server").args(arguments), at, Duration::from_secs(10))?;
    let mut stream = TcpStream::connect(at)?;
    let mut answers = stream.try_clone()?;
    let reading = std::thread::spawn(move || {
        let (mut left, mut buffer) = (5 * keys as usize, vec![0; 1 << 16]);
        while left > 0 {
            match answers.read(&mut buffer) {
                Ok(read) if read > 0 => left = left.saturating_sub(read),
                _ => return false,
            }
        }
        true
    });
    let mut out = Vec::new();
    for number in 0..keys {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
        out.extend_from_slice(&data::key(number));
        out.extend_from_slice(b"\r\n$100\r\n");
        out.extend_from_slice(&data::value(number));
        out.extend_from_slice(b"\r\n");
        if out.len() > 1 << 16 {
            stream.write_all(&out)?;
            out.clear();
        }
    }
    stream.write_all(&out)?;
    match reading.join() {
        Ok(true) => Ok(running),
        _ => Err(std::io::Error::other("redis did not take the keys")),
    }
}

/// nginx with one worker, which answers every request with the same 100 bytes.
pub fn nginx(folder: &Path) -> std::io::Result<Running> {
    let at = free()?;
    let value = String::from_utf8_lossy(&data::value(0)).into_owned();
    let text = format!(
        "daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log /dev/null;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {0}; proxy_temp_path {0};\n\
         fastcgi_temp_path {0}; uwsgi_temp_path {0}; scgi_temp_path {0};\n\
         server {{ listen {at}; location / {{ return 200 \"{value}\"; }} }} }}\n",
        folder.display()
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, text)?;
    Running::start(Command::new("nginx").arg("-c").arg(&file), at, Duration::from_secs(10))
}

/// Sequins with the same keys, from SequenceFiles.
pub fn sequins(program: &Path, folder: &Path, keys: u64) -> std::io::Result<Running> {
    let at = free()?;
    let source = folder.join("source");
    data::sequence_files(&source.join("bench").join("1"), keys)?;
    let store = folder.join("store");
    std::fs::create_dir_all(&store)?;
    let text = format!("source = {source:?}\nbind = \"{at}\"\nlocal_store = {store:?}\n");
    let file = folder.join("sequins.conf");
    std::fs::write(&file, text)?;
    let running =
        Running::start(Command::new(program).arg("--config").arg(&file), at, Duration::from_secs(120))?;
    // It listens before it has loaded.
    let end = bench_gauge::now() + Duration::from_secs(120);
    while !answers(at, &data::key(keys - 1)) {
        if bench_gauge::now() > end {
            return Err(std::io::Error::other("sequins did not load the keys"));
        }
        rest();
    }
    Ok(running)
}

fn answers(at: SocketAddr, key: &[u8]) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(at)?;
        let key = String::from_utf8_lossy(key).into_owned();
        stream.write_all(
            format!("GET /bench/{key} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes(),
        )?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer.starts_with(b"HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}
