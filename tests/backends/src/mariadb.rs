//! A MariaDB server, with a database `partage` and a user `partage` who may use it over TCP.

use crate::certs::{Authority, Identity};
use crate::process::Process;
use crate::{copy_folder, free_port, program, until};
use partage_coordination::{Secret, Target, Tls};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The password of the user `partage`.
pub const PASSWORD: &str = "a password";

/// A server in a folder and on a port of its own. It dies with its handle.
#[derive(Debug)]
pub struct MariaDb {
    folder: TempDir,
    port: u16,
    options: Vec<String>,
    process: Process,
    secured: Option<Secured>,
}

#[derive(Debug)]
struct Secured {
    authority: Authority,
    client: Identity,
}

impl MariaDb {
    /// Starts one with `options` beside ours, such as `--max-allowed-packet=2M`.
    pub async fn start(options: &[&str]) -> MariaDb {
        Self::begin(tempfile::tempdir().unwrap(), options, None).await
    }

    /// Starts one whose user `partage` must come over TLS, with a certificate of our own.
    pub async fn start_with_tls() -> MariaDb {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "authority");
        let server = authority.sign("server", &["127.0.0.1", "localhost"]);
        let client = authority.sign("client", &[]);
        let options = [
            format!("--ssl-ca={}", authority.ca.display()),
            format!("--ssl-cert={}", server.certificate.display()),
            format!("--ssl-key={}", server.key.display()),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Self::begin(folder, &options, Some(Secured { authority, client })).await
    }

    async fn begin(folder: TempDir, options: &[&str], secured: Option<Secured>) -> MariaDb {
        install(folder.path());
        let port = free_port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = launch(folder.path(), port, &options);
        let server = MariaDb { folder, port, options, process, secured };
        server.ready().await;
        let require = if server.secured.is_some() { "X509" } else { "NONE" };
        server.sql(&format!(
            "CREATE DATABASE partage; CREATE USER partage@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE {require}; \
             GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON partage.* TO partage@'%'"
        ));
        server
    }

    /// Where clients reach the server, `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The root `root` in the database `partage`, for the user `partage`.
    pub fn target(&self, root: &str) -> Target {
        self.target_through(&self.address(), root)
    }

    /// The same through something that listens at `address`.
    pub fn target_through(&self, address: &str, root: &str) -> Target {
        let mut target = Target::parse(&format!("mysql://partage@{address}/partage/{root}")).unwrap();
        target.password = Some(Secret::new(PASSWORD));
        target.tls = self.secured.as_ref().map(|secured| {
            let Identity { certificate, key } = secured.client.clone();
            Tls { ca: secured.authority.ca.clone(), identity: Some((certificate, key)) }
        });
        target
    }

    /// Runs `sql` as the server's own administrator; the rows it printed, columns between tabs.
    pub fn sql(&self, sql: &str) -> Vec<String> {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs `sql` in a connection that stays open, until what is returned is dropped. Returns once `sql` is done.
    pub async fn hold(&self, sql: &str) -> Held<'_> {
        let mark = format!("SELECT SLEEP(600), {}", free_port());
        let command = self.client(&format!("{sql}; {mark}"));
        let process = Process::start("mariadb", command, &self.folder.path().join("held"));
        let look = format!("SELECT id FROM information_schema.processlist WHERE info = '{mark}'");
        let id = until("the statement is done", async || {
            self.sql(&look).first().cloned().ok_or_else(|| process.log())
        });
        Held { id: id.await, server: self, _process: process }
    }

    fn try_sql(&self, sql: &str) -> Result<Vec<String>, String> {
        let output = self.client(sql).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn client(&self, sql: &str) -> Command {
        let mut command = Command::new(program("mariadb", "mariadb-client"));
        command
            .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names", "--execute", sql])
            .arg(format!("--socket={}", socket(self.folder.path())));
        command
    }

    async fn ready(&self) {
        until("MariaDB answers", async || self.try_sql("SELECT 1")).await;
    }

    /// Starts it again after [`kill`](Self::kill), with the same options.
    pub async fn revive(&mut self) {
        self.process = launch(self.folder.path(), self.port, &self.options);
        self.ready().await;
    }

    /// Stops it in order and starts it again.
    pub async fn restart(&mut self) {
        self.process.terminate();
        self.process.end().await;
        self.revive().await;
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

    /// The process, to pause it.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// A connection of the administrator that holds something.
#[derive(Debug)]
pub struct Held<'a> {
    server: &'a MariaDb,
    id: String,
    _process: Process,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // It may be gone with the server.
        let _ = self.server.try_sql(&format!("KILL {}", self.id));
    }
}

fn socket(folder: &Path) -> String {
    folder.join("socket").display().to_string()
}

/// A server that is run by root has to be told that this is meant.
fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}

fn install(folder: &Path) {
    let output = Command::new(program("mariadb-install-db", "mariadb-server"))
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .arg(format!("--datadir={}", folder.join("data").display()))
        .args(user())
        // Two of them must not meet in the machine's own.
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn launch(folder: &Path, port: u16, options: &[String]) -> Process {
    let mut command = Command::new(program("mariadbd", "mariadb-server"));
    command
        .args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve", "--skip-log-bin"])
        .args(["--innodb-buffer-pool-size=32M", "--max-connections=300"])
        .arg(format!("--datadir={}", folder.join("data").display()))
        .arg(format!("--socket={}", socket(folder)))
        .arg(format!("--pid-file={}", folder.join("pid").display()))
        .arg(format!("--port={port}"))
        .args(user())
        .args(options)
        .env("TMPDIR", folder);
    Process::start("mariadbd", command, &folder.join("log"))
}
