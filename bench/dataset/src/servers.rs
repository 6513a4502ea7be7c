//! The servers that are measured, each a process of its own, on loopback.

use crate::data::{Data, PARTITIONS, version_name};
use bench_gauge::{PATIENCE, Running, free, http, myself, rest};
use partage_dataset::catalogue::{Catalogue, Dataset, NodeInfo, Options, Version};
use partage_dataset::serve::{Server, Settings};
use partage_engine::readonly::{self, Builder, Reader};
use partage_service::dataset::name::{DatasetName, VersionName};
use partage_service::dataset::partition::Partitioner;
use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Waits until a server answers from a version of a dataset of these data.
pub fn serves(server: &mut Running, data: &Data, version: u32) -> Result<()> {
    let (at, end, mut key) = (server.at, bench_gauge::now() + PATIENCE, Vec::new());
    data.put_key(&mut key, data.len() - 1);
    let path = format!("/bench/{}", String::from_utf8_lossy(&key).replace('+', "%2b"));
    let is_served = || {
        let answer = http::ask(at, "GET", &path).ok()?;
        let found = http::header(&answer, b"x-sequins-version")?;
        Some(answer.starts_with(b"HTTP/1.1 200") && found == version_name(version).as_bytes())
    };
    while is_served() != Some(true) {
        server.lives()?;
        if bench_gauge::now() > end {
            let name = version_name(version);
            return Err(Error::other(format!("{at} does not serve version {name}")));
        }
        rest(20);
    }
    Ok(())
}

/// Ours: this program again, as a server on the store files in `folder`.
pub fn ours(folder: &Path, threads: usize) -> Result<Running> {
    let at = free()?;
    let mut command = myself()?;
    command.arg("serve").arg(folder).arg(at.to_string()).arg(threads.to_string());
    Running::start(&mut command, at)
}

/// What the process that [`ours`] starts does.
pub fn serve(folder: &Path, at: SocketAddr, threads: usize) -> crate::Done {
    let me = NodeInfo { shard_id: "1".to_owned(), address: at.to_string().into() };
    let catalogue = Arc::new(Catalogue::new(me));
    let dataset = catalogue.add(Dataset::new(DatasetName::new("bench")?, Options::default())?);
    let version = VersionName::new(&version_name(1))?;
    let version = Version::new(version, "", PARTITIONS, Partitioner::JavaBytes, 0)?;
    let version = dataset.prepare(version)?;
    for partition in 0..PARTITIONS {
        let reader = Reader::open(&folder.join(format!("{partition}.partage")))?;
        // Like the data of the other servers, it is in memory before a client asks.
        reader.verify()?;
        version.hold(partition, Arc::new(reader));
    }
    dataset.upgrade(&version_name(1))?;
    let settings = Settings { threads, ..Settings::default() };
    let _server = Server::start(TcpListener::bind(at)?, catalogue, settings)?;
    loop {
        std::thread::park();
    }
}

/// Builds the store files, unless they are there.
pub fn build(folder: &Path, data: &Data) -> crate::Done {
    std::fs::create_dir_all(folder)?;
    let path = |partition: u32| folder.join(format!("{partition}.partage"));
    if (0..PARTITIONS).all(|partition| path(partition).exists()) {
        return Ok(());
    }
    let mut builders = Vec::new();
    for partition in 0..PARTITIONS {
        let _ = std::fs::remove_file(path(partition));
        builders.push(Builder::new(&path(partition), readonly::Options::default())?);
    }
    data.each(1, &mut |key, value| {
        let partition = Partitioner::JavaBytes.partition(key, PARTITIONS);
        builders[partition as usize].add(key, value).map_err(Error::other)
    })?;
    for builder in builders {
        builder.finish()?;
    }
    Ok(())
}

/// Redis, with all keys in it, without saving.
pub fn redis(data: &Data) -> Result<Running> {
    let at = free()?;
    let port = at.port().to_string();
    let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    let running = Running::start(Command::new("redis-server").args(arguments), at)?;
    let mut stream = TcpStream::connect(at)?;
    let (mut answers, mut left) = (stream.try_clone()?, 5 * data.len() as usize);
    let reading = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            match answers.read(&mut buffer) {
                Ok(read) if read > 0 => left = left.saturating_sub(read),
                _ => return false,
            }
        }
        true
    });
    let mut out = Vec::new();
    data.each(1, &mut |key, value| {
        out.extend_from_slice(format!("*3\r\n$3\r\nSET\r\n${}\r\n", key.len()).as_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(format!("\r\n${}\r\n", value.len()).as_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
        if out.len() > 1 << 16 {
            stream.write_all(&out)?;
            out.clear();
        }
        Ok(())
    })?;
    stream.write_all(&out)?;
    match reading.join() {
        Ok(true) => Ok(running),
        _ => Err(Error::other("redis did not take the keys")),
    }
}

/// nginx with one worker, which answers every request with the same 100 bytes.
pub fn nginx(folder: &Path) -> Result<Running> {
    let at = free()?;
    let value = String::from_utf8_lossy(&crate::data::value(0, 1)).into_owned();
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
    Running::start(Command::new("nginx").arg("-c").arg(&file), at)
}

/// Sequins alone, which loads what lies in a source.
pub fn sequins(program: &Path, folder: &Path, source: &Path) -> Result<Running> {
    let at = free()?;
    Running::start(&mut sequins_command(program, folder, (source, at), "")?, at)
}

/// Sequins with its defaults, and more lines of its configuration.
pub fn sequins_command(
    program: &Path,
    folder: &Path,
    (source, at): (&Path, SocketAddr),
    more: &str,
) -> Result<Command> {
    let store = folder.join("store");
    std::fs::create_dir_all(&store)?;
    let text = format!("source = {source:?}\nbind = \"{at}\"\nlocal_store = {store:?}\n{more}");
    let file = folder.join("sequins.conf");
    std::fs::write(&file, text)?;
    let mut command = Command::new(program);
    command.arg("--config").arg(&file);
    Ok(command)
}
