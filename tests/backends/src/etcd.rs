//! An etcd of one member.

use crate::certs::{Authority, Identity};
use crate::process::Process;
use crate::{free_port, program, until};
use partage_coordination::{Secret, Target, Tls};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The password of the user `partage`, who may use what is below `/partage/`.
pub const PASSWORD: &str = "a password";

/// A server in a folder and on ports of its own. It dies with its handle.
#[derive(Debug)]
pub struct Etcd {
    folder: TempDir,
    client_port: u16,
    peer_port: u16,
    options: Vec<String>,
    process: Process,
    secured: Option<Secured>,
}

#[derive(Debug)]
struct Secured {
    authority: Authority,
    client: Identity,
}

impl Etcd {
    /// Starts one with `options` beside ours, such as `--quota-backend-bytes=4194304`.
    pub async fn start(options: &[&str]) -> Etcd {
        Self::begin(tempfile::tempdir().unwrap(), options, None).await
    }

    /// Starts one that wants TLS, a certificate of our own, and the password of the user `partage`.
    pub async fn start_secured(options: &[&str]) -> Etcd {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "authority");
        let server = authority.sign("server", &["127.0.0.1", "localhost"]);
        let client = authority.sign("client", &[]);
        let ours = [
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", authority.ca.display()),
            format!("--cert-file={}", server.certificate.display()),
            format!("--key-file={}", server.key.display()),
        ];
        let options: Vec<&str> = ours.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let etcd = Self::begin(folder, &options, Some(Secured { authority, client })).await;
        etcd.turn_authentication_on();
        etcd
    }

    async fn begin(folder: TempDir, options: &[&str], secured: Option<Secured>) -> Etcd {
        let (client_port, peer_port) = (free_port(), free_port());
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let scheme = if secured.is_some() { "https" } else { "http" };
        let process = launch(folder.path(), scheme, client_port, peer_port, &options);
        let etcd = Etcd { folder, client_port, peer_port, options, process, secured };
        etcd.ready().await;
        etcd
    }

    fn turn_authentication_on(&self) {
        self.control(&["user", "add", &format!("root:{PASSWORD}")]);
        self.control(&["user", "grant-role", "root", "root"]);
        self.control(&["role", "add", "partage"]);
        self.control(&["role", "grant-permission", "--prefix", "partage", "readwrite", "/partage/"]);
        self.control(&["user", "add", &format!("partage:{PASSWORD}")]);
        self.control(&["user", "grant-role", "partage", "partage"]);
        self.control(&["auth", "enable"]);
    }

    fn scheme(&self) -> &'static str {
        if self.secured.is_some() { "https" } else { "http" }
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// The root `/partage/ROOT/`.
    pub fn target(&self, root: &str) -> Target {
        self.target_through(&self.address(), root)
    }

    /// The same through something that listens at `addresses`.
    pub fn target_through(&self, addresses: &str, root: &str) -> Target {
        let user = if self.secured.is_some() { "partage@" } else { "" };
        let mut target = Target::parse(&format!("etcd://{user}{addresses}/partage/{root}")).unwrap();
        if let Some(secured) = &self.secured {
            let Identity { certificate, key } = secured.client.clone();
            target.password = Some(Secret::new(PASSWORD));
            target.tls = Some(Tls { ca: secured.authority.ca.clone(), identity: Some((certificate, key)) });
        }
        target
    }

    /// Runs `etcdctl` without asking who we are; what it printed.
    pub fn control(&self, arguments: &[&str]) -> String {
        self.try_control(arguments).unwrap_or_else(|error| panic!("etcdctl {arguments:?}: {error}"))
    }

    /// Runs `etcdctl` as the administrator of a server whose authentication is on.
    pub fn control_as_root(&self, arguments: &[&str]) -> String {
        let user = format!("--user=root:{PASSWORD}");
        self.control(&[&[user.as_str()], arguments].concat())
    }

    fn try_control(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program("etcdctl", "etcd-client"));
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}://{}", self.scheme(), self.address()));
        if let Some(secured) = &self.secured {
            command
                .arg(format!("--cacert={}", secured.authority.ca.display()))
                .arg(format!("--cert={}", secured.client.certificate.display()))
                .arg(format!("--key={}", secured.client.key.display()));
        }
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    async fn ready(&self) {
        until("etcd answers", async || self.try_control(&["endpoint", "health"])).await;
    }

    /// Starts it again after [`kill`](Self::kill), with the same options.
    pub async fn revive(&mut self) {
        self.process =
            launch(self.folder.path(), self.scheme(), self.client_port, self.peer_port, &self.options);
        self.ready().await;
    }

    /// Stops it in order and starts it again.
    pub async fn restart(&mut self) {
        self.process.terminate();
        self.process.end().await;
        self.revive().await;
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The process, to pause it.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

fn launch(folder: &Path, scheme: &str, client_port: u16, peer_port: u16, options: &[String]) -> Process {
    let client = format!("{scheme}://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    let mut command = Command::new(program("etcd", "etcd-server"));
    command
        .arg(format!("--data-dir={}", folder.join("data").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        .args(["--name=default", "--logger=zap", "--log-level=warn"])
        .args(options);
    Process::start("etcd", command, &folder.join("log"))
}
