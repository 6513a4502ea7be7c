//! A ZooKeeper of one server, or several, as Debian packages it.
//!
//! The JVM is started directly: Debian's `zkServer.sh` looks for a file that its package does not have. The class path
//! that `zookeeper.jar` names itself lacks two jars of Netty, which TLS needs; they are in `libnetty-java`, which the
//! package `zookeeper` brings along.

use crate::certs::{Authority, Identity};
use crate::process::Process;
use crate::{copy_folder, free_port, program, until};
use partage_coordination::{Secret, Target, Tls};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zookeeper_client::{Acls, CreateMode};

/// The password that [`ZooKeeper::secured_target`] gives.
pub const PASSWORD: &str = "a password";

/// ZooKeeper's unit of time, in milliseconds: sessions of twice that are possible, and end that much late at most.
pub const TICK_MS: u64 = 100;

/// A server in a folder and on ports of its own. It dies with its handle.
#[derive(Debug)]
pub struct ZooKeeper {
    folder: TempDir,
    port: u16,
    secure_port: u16,
    authority: Authority,
    client: Identity,
    process: Process,
}

impl ZooKeeper {
    /// Starts one with `settings` beside ours, as lines of `zoo.cfg`. It listens in the clear, and on another port with
    /// TLS, where it wants a certificate.
    pub async fn start(settings: &[&str]) -> ZooKeeper {
        let zookeeper = Self::begin(1, settings);
        zookeeper.ready().await;
        zookeeper
    }

    /// Starts three that are one ensemble.
    pub async fn start_three() -> Vec<ZooKeeper> {
        let servers = (1..=3).map(|id| format!("server.{id}=127.0.0.1:{}:{}", free_port(), free_port()));
        let servers: Vec<String> = servers.collect();
        let mut settings: Vec<&str> = servers.iter().map(String::as_str).collect();
        // In ticks: to join an ensemble, and to be behind in it.
        settings.extend(["initLimit=100", "syncLimit=20"]);
        let ensemble: Vec<_> = (1..=3).map(|id| Self::begin(id, &settings)).collect();
        for server in &ensemble {
            server.ready().await;
        }
        ensemble
    }

    fn begin(id: usize, settings: &[&str]) -> ZooKeeper {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "authority");
        let server = authority.sign("server", &["127.0.0.1", "localhost"]);
        let client = authority.sign("client", &[]);
        let (port, secure_port) = (free_port(), free_port());
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::fs::write(folder.path().join("data/myid"), id.to_string()).unwrap();
        let settings = configuration(folder.path(), port, secure_port, &authority, &server, settings);
        std::fs::write(folder.path().join("zoo.cfg"), settings).unwrap();
        let process = launch(folder.path());
        ZooKeeper { folder, port, secure_port, authority, client, process }
    }

    /// Whether it leads the others, by its own word.
    pub async fn leads(&self) -> bool {
        self.ask("srvr").await.is_ok_and(|said| said.contains("Mode: leader"))
    }

    /// Where it listens in the clear.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The target for `root`, in the clear, without a user.
    pub fn target(&self, root: &str) -> Target {
        self.target_through(&self.address(), root)
    }

    /// The same through something that listens at `address`.
    pub fn target_through(&self, address: &str, root: &str) -> Target {
        Target::parse(&format!("zookeeper://{address}/{root}")).unwrap()
    }

    /// The target for `root` with TLS, a certificate, user and password.
    pub fn secured_target(&self, root: &str) -> Target {
        let mut target =
            Target::parse(&format!("zookeeper://127.0.0.1:{}/{root}", self.secure_port)).unwrap();
        let identity = (self.client.certificate.clone(), self.client.key.clone());
        target.tls = Some(Tls { ca: self.authority.ca.clone(), identity: Some(identity) });
        target.user = Some("partage".to_owned());
        target.password = Some(Secret::new(PASSWORD));
        target
    }

    /// `kill -9`, and a new start on the same data.
    pub async fn restart(&mut self) {
        self.kill();
        self.revive().await;
    }

    /// Starts it again after [`kill`](Self::kill).
    pub async fn revive(&mut self) {
        self.relaunch();
        self.ready().await;
    }

    /// The same, without waiting until it serves: it may need another for that.
    pub fn relaunch(&mut self) {
        self.process = launch(self.folder.path());
    }

    /// Keeps its files as they are at this moment, under a name, as a snapshot of the disk does.
    pub fn keep_files(&self, name: &str) {
        self.process.pause();
        copy_folder(&self.folder.path().join("data"), &self.folder.path().join(name));
        self.process.wake();
    }

    /// Stops it, and starts it on the files of that name.
    pub async fn set_files_back(&mut self, name: &str) {
        self.process.terminate();
        self.process.end().await;
        copy_folder(&self.folder.path().join(name), &self.folder.path().join("data"));
        self.revive().await;
    }

    /// Kills the server at once, as `kill -9` does; its folder stays.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// It sleeps, wherever it is.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// It goes on as if nothing had happened.
    pub fn wake(&self) {
        self.process.wake();
    }

    /// Deletes a znode, as `zkCli.sh` does.
    pub async fn delete(&self, path: &str) {
        let client = zookeeper_client::Client::connect(&self.address()).await.unwrap();
        client.delete(path, None).await.unwrap();
    }

    /// What is in a znode.
    pub async fn data(&self, path: &str) -> Vec<u8> {
        let client = zookeeper_client::Client::connect(&self.address()).await.unwrap();
        client.get_data(path).await.unwrap().0
    }

    /// Writes to a znode that is there, as `zkCli.sh` does.
    pub async fn set(&self, path: &str, data: &[u8]) {
        let client = zookeeper_client::Client::connect(&self.address()).await.unwrap();
        client.set_data(path, data, None).await.unwrap();
    }

    /// Sets a hard quota for what is at and below `path`, as `setquota -B` does: so many bytes more than there are now, or
    /// any number. A server with `enforceQuota=true` refuses what goes beyond.
    pub async fn limit_bytes(&self, path: &str, more: Option<u64>) {
        let client = zookeeper_client::Client::connect(&self.address()).await.unwrap();
        let quota = format!("/zookeeper/quota{path}");
        let anyone = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let (stats, limits) = (format!("{quota}/zookeeper_stats"), format!("{quota}/zookeeper_limits"));
        let form = |bytes: i64| format!("count=-1,bytes=-1=;byteHardLimit={bytes};countHardLimit=-1");
        if client.check_stat(&quota).await.unwrap().is_none() {
            client.create(&quota, b"", &anyone).await.unwrap();
            client.create(&limits, form(-1).as_bytes(), &anyone).await.unwrap();
            // The server counts when it sees this one.
            client.create(&stats, b"count=0,bytes=0", &anyone).await.unwrap();
        }
        let limit = match more {
            None => -1,
            Some(more) => {
                let stats = client.get_data(&stats).await.unwrap().0;
                let stats = String::from_utf8(stats).unwrap();
                let bytes = stats.split("bytes=").nth(1).unwrap();
                let digits = bytes.split(|char: char| !char.is_ascii_digit()).next().unwrap();
                digits.parse::<i64>().unwrap() + i64::try_from(more).unwrap()
            }
        };
        client.set_data(&limits, form(limit).as_bytes(), None).await.unwrap();
    }

    async fn ready(&self) {
        let answers = || async {
            let said = self.ask("srvr").await.map_err(|error| error.to_string())?;
            if said.contains("Mode: ") { Ok(()) } else { Err(said) }
        };
        until("ZooKeeper serves", answers).await;
    }

    /// One of its four-letter commands.
    async fn ask(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address()).await?;
        stream.write_all(command.as_bytes()).await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        Ok(said)
    }
}

fn configuration(
    folder: &Path,
    port: u16,
    secure_port: u16,
    authority: &Authority,
    server: &Identity,
    settings: &[&str],
) -> String {
    // Java reads the certificate and its key from one file.
    let both = [&server.certificate, &server.key].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    let key_store = folder.join("key-store.pem");
    std::fs::write(&key_store, both).unwrap();
    let lines = [
        format!("tickTime={TICK_MS}"),
        "maxSessionTimeout=100000".to_owned(),
        format!("dataDir={}", folder.join("data").display()),
        "clientPortAddress=127.0.0.1".to_owned(),
        format!("clientPort={port}"),
        "secureClientPortAddress=127.0.0.1".to_owned(),
        format!("secureClientPort={secure_port}"),
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        format!("ssl.keyStore.location={}", key_store.display()),
        "ssl.keyStore.type=PEM".to_owned(),
        format!("ssl.trustStore.location={}", authority.ca.display()),
        "ssl.trustStore.type=PEM".to_owned(),
        "maxClientCnxns=0".to_owned(),
        "admin.enableServer=false".to_owned(),
        "4lw.commands.whitelist=srvr".to_owned(),
    ];
    let all = lines.iter().map(String::as_str).chain(settings.iter().copied());
    all.map(|line| format!("{line}\n")).collect()
}

fn launch(folder: &Path) -> Process {
    let jars = ["zookeeper", "slf4j-simple", "netty-codec", "netty-resolver"].map(|name| {
        let jar = PathBuf::from(format!("/usr/share/java/{name}.jar"));
        assert!(
            jar.is_file(),
            "{} is missing: `./test setup`, or install the Debian package zookeeper",
            jar.display()
        );
        jar.display().to_string()
    });
    let mut command = Command::new(program("java", "default-jre-headless"));
    command
        // It starts in a second, and shares two cores with all other tests.
        .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"])
        .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        // Kilobytes that a new log of transactions is made of, instead of 64 MiB.
        .arg("-Dzookeeper.preAllocSize=1024")
        .args(["-cp", &jars.join(":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
        .arg(folder.join("zoo.cfg"));
    Process::start("ZooKeeper", command, &folder.join("log"))
}
