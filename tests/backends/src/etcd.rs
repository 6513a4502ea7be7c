//! An etcd of one member, or several.

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
    place: Place,
    options: Vec<String>,
    process: Process,
    secured: Option<Secured>,
}

/// Which member of what it is.
#[derive(Debug)]
struct Place {
    name: String,
    client_port: u16,
    peer_port: u16,
    /// All members, as `--initial-cluster` takes them.
    members: String,
}

impl Place {
    /// The members of a new cluster.
    fn of(members: usize) -> Vec<Place> {
        let ports: Vec<_> = (0..members).map(|_| (free_port(), free_port())).collect();
        let name = |member: usize| format!("m{member}");
        let member = |(at, (_, peer)): (usize, &(u16, u16))| format!("{}={}", name(at), peer_url(*peer));
        let members = ports.iter().enumerate().map(member).collect::<Vec<_>>().join(",");
        let place = |(at, (client_port, peer_port))| Place {
            name: name(at),
            client_port,
            peer_port,
            members: members.clone(),
        };
        ports.into_iter().enumerate().map(place).collect()
    }
}

fn peer_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
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

    /// Starts three that are one etcd.
    pub async fn start_three() -> Vec<Etcd> {
        let members = Place::of(3).into_iter();
        let members: Vec<_> =
            members.map(|place| Self::at(place, tempfile::tempdir().unwrap(), &[], None)).collect();
        for member in &members {
            member.ready().await;
        }
        members
    }

    async fn begin(folder: TempDir, options: &[&str], secured: Option<Secured>) -> Etcd {
        let place = Place::of(1).pop().unwrap();
        let etcd = Self::at(place, folder, options, secured);
        etcd.ready().await;
        etcd
    }

    fn at(place: Place, folder: TempDir, options: &[&str], secured: Option<Secured>) -> Etcd {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let scheme = if secured.is_some() { "https" } else { "http" };
        let process = launch(folder.path(), scheme, &place, &options);
        Etcd { folder, place, options, process, secured }
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

    /// Where clients reach the server, `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.place.client_port)
    }

    /// The root `/partage/ROOT/` of the server, with the user, password and certificates that it wants.
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

    /// Runs `etcdctl` without a user; gives what it printed.
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

    /// Whether it leads the others, by its own word.
    pub fn leads(&self) -> bool {
        // Address, id, version, size, whether it leads, ….
        self.control(&["endpoint", "status"]).split(", ").nth(4) == Some("true")
    }

    async fn ready(&self) {
        until("etcd answers", async || self.try_control(&["endpoint", "health"])).await;
    }

    /// Starts it again after [`kill`](Self::kill), with the same options.
    pub async fn revive(&mut self) {
        self.relaunch();
        self.ready().await;
    }

    /// The same, without waiting until it serves: it may need another for that.
    pub fn relaunch(&mut self) {
        self.process = launch(self.folder.path(), self.scheme(), &self.place, &self.options);
    }

    /// Stops it in order and starts it again.
    pub async fn restart(&mut self) {
        self.process.terminate();
        self.process.end().await;
        self.revive().await;
    }

    /// Deletes the keys below `/partage/JUNK/`, and gives their room back, as the page on etcd says.
    pub fn make_room(&self, junk: &str) {
        self.control(&["del", "--prefix", &format!("/partage/{junk}/")]);
        let status = self.control(&["endpoint", "status", "--write-out=fields"]);
        let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        self.control(&["compact", revision.unwrap()]);
        self.control(&["defrag"]);
        self.control(&["alarm", "disarm"]);
    }

    /// Saves a snapshot of it, under a name: `etcdctl snapshot save`.
    pub fn save(&self, name: &str) {
        let file = self.folder.path().join(name);
        self.control(&["snapshot", "save", &file.display().to_string()]);
    }

    /// Stops it, and starts it on what `etcdctl snapshot restore` makes of the snapshot of that name.
    pub async fn set_back(&mut self, name: &str) {
        let (file, restored) = (self.folder.path().join(name), self.folder.path().join("restored"));
        let Place { name, peer_port, members, .. } = &self.place;
        self.control(&[
            "snapshot",
            "restore",
            &file.display().to_string(),
            &format!("--data-dir={}", restored.display()),
            &format!("--name={name}"),
            &format!("--initial-cluster={members}"),
            &format!("--initial-advertise-peer-urls={}", peer_url(*peer_port)),
        ]);
        self.process.terminate();
        self.process.end().await;
        let data = self.folder.path().join("data");
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&restored, &data).unwrap();
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

fn launch(folder: &Path, scheme: &str, place: &Place, options: &[String]) -> Process {
    let client = format!("{scheme}://127.0.0.1:{}", place.client_port);
    let peer = peer_url(place.peer_port);
    let mut command = Command::new(program("etcd", "etcd-server"));
    command
        .arg(format!("--data-dir={}", folder.join("data").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster={}", place.members))
        .arg(format!("--name={}", place.name))
        .args(["--logger=zap", "--log-level=warn"])
        .args(options);
    Process::start("etcd", command, &folder.join("log"))
}
