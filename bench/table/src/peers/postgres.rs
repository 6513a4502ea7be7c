//! PostgreSQL: a primary, and two standbys that must have each commit on their disks.

use super::program;
use crate::Run;
use crate::rows::VALUE_BYTES;
use bench_gauge::client::Protocol;
use bench_gauge::{PATIENCE, Running, free, now, rest};
use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The user of the system that the servers run as where we are root, which they refuse.
const USER: &str = "postgres";

/// The standbys, by the names that the primary knows them by.
const STANDBYS: [&str; 2] = ["a", "b"];

/// Version 3.0 of the protocol.
const VERSION: u32 = 0x0003_0000;

/// What every answer begins with: that the values are bound.
const BOUND: &[u8] = b"2\0\0\0\x04";
/// The bytes of an answer: bound, `INSERT 0 1`, ready.
const ANSWER_BYTES: usize = 5 + 16 + 6;

/// Where Debian puts its programs: of the newest version that is there.
pub fn folder() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max()?;
    Some(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
}

/// The primary and its standbys.
pub struct Postgres {
    primary: Running,
    standbys: Vec<Running>,
}

impl Postgres {
    /// Starts all three, with a table of rows; none if PostgreSQL is not there.
    pub fn start(run: &Run) -> Result<Option<Postgres>> {
        let programs = ["initdb", "pg_basebackup", "postgres"].map(|name| program(name, "postgresql"));
        let [Some(initdb), Some(backup), Some(server)] = programs else { return Ok(None) };
        let folder = run.folder("postgres")?;
        open_to_all(&folder)?;
        let data = folder.join("primary");
        call(as_user(&initdb).args(["--auth=trust", "-U", USER, "--locale=C", "-D"]).arg(&data))?;
        let at = free()?;
        let mut command = serve(&server, &data, at);
        command.args(["-c", "synchronous_commit=on", "-c", "synchronous_standby_names=2 (a, b)"]);
        let primary = Running::start(&mut command, at)?;
        let mut standbys = Vec::new();
        for name in STANDBYS {
            let data = folder.join(name);
            let port = primary.at.port();
            let from = format!("host=127.0.0.1 port={port} user={USER} application_name={name}");
            ready(&primary)?;
            call(
                as_user(&backup)
                    .args(["--write-recovery-conf", "--checkpoint=fast", "-d", &from, "-D"])
                    .arg(&data),
            )?;
            let at = free()?;
            standbys.push(Running::start(&mut serve(&server, &data, at), at)?);
        }
        let postgres = Postgres { primary, standbys };
        // It is committed when both standbys have it.
        let mut stream = connect(postgres.primary.at)?;
        query(&mut stream, "create table bench (k text primary key, v text not null)")?;
        Ok(Some(postgres))
    }

    /// Where it is written.
    pub fn at(&self) -> SocketAddr {
        self.primary.at
    }

    /// Seconds on a core that all of its processes have used.
    pub fn core_seconds(&self) -> f64 {
        self.primary.core_seconds_of_family()
            + self.standbys.iter().map(Running::core_seconds_of_family).sum::<f64>()
    }
}

/// Writes, made by `ask` with [`put`], each a transaction.
pub fn writes<'a>(ask: &'a dyn Fn(&mut Vec<u8>, &mut bench_gauge::client::Draw, usize)) -> Protocol<'a> {
    Protocol {
        ask,
        begins: BOUND,
        length: &|bytes| (bytes.len() >= ANSWER_BYTES).then_some(ANSWER_BYTES),
        greet: &|stream| {
            greet(stream)?;
            // A statement `w` that is parsed once.
            let text = "insert into bench values ($1, $2) on conflict (k) do update set v = excluded.v";
            let mut parse = b"w\0".to_vec();
            parse.extend_from_slice(text.as_bytes());
            parse.extend_from_slice(&[0, 0, 0]);
            let mut out = Vec::new();
            message(&mut out, b'P', &parse);
            message(&mut out, b'S', &[]);
            stream.write_all(&out)?;
            until_ready(stream)
        },
    }
}

/// Appends a write of one row, which is committed by itself: bind, execute, sync.
pub fn put(out: &mut Vec<u8>, key: &[u8], value: &[u8; VALUE_BYTES]) {
    let mut bind = b"\0w\0\0\0\0\x02".to_vec();
    for field in [key, value] {
        bind.extend_from_slice(&(field.len() as u32).to_be_bytes());
        bind.extend_from_slice(field);
    }
    bind.extend_from_slice(&[0, 0]);
    message(out, b'B', &bind);
    message(out, b'E', &[0; 5]);
    message(out, b'S', &[]);
}

fn message(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    out.extend_from_slice(body);
}

fn connect(at: SocketAddr) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    greet(&mut stream)?;
    Ok(stream)
}

/// Names the user and the database, and waits until the server is ready.
fn greet(stream: &mut TcpStream) -> Result<()> {
    let mut body = VERSION.to_be_bytes().to_vec();
    body.extend_from_slice(format!("user\0{USER}\0database\0postgres\0\0").as_bytes());
    stream.write_all(&(body.len() as u32 + 4).to_be_bytes())?;
    stream.write_all(&body)?;
    until_ready(stream)
}

fn query(stream: &mut TcpStream, text: &str) -> Result<()> {
    let mut out = Vec::new();
    message(&mut out, b'Q', &[text.as_bytes(), &[0]].concat());
    stream.write_all(&out)?;
    until_ready(stream)
}

fn until_ready(stream: &mut TcpStream) -> Result<()> {
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let mut body = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4)];
        stream.read_exact(&mut body)?;
        match kind {
            b'Z' => return Ok(()),
            b'E' => return Err(Error::other(String::from_utf8_lossy(&body).replace('\0', " "))),
            _ => {}
        }
    }
}

/// Waits until the server takes a client: it listens a little before that.
fn ready(server: &Running) -> Result<()> {
    let end = now() + PATIENCE;
    loop {
        match connect(server.at) {
            Ok(_) => return Ok(()),
            Err(error) if now() > end => return Err(error),
            Err(_) => rest(50),
        }
    }
}

fn serve(server: &Path, data: &Path, at: SocketAddr) -> Command {
    let mut command = as_user(server);
    let port = at.port();
    command.arg("-D").arg(data).args(["-c", "listen_addresses=127.0.0.1", "-c", &format!("port={port}")]);
    command.args(["-c", "unix_socket_directories="]);
    command
}

/// A command of [`USER`] if we are root.
fn as_user(program: &Path) -> Command {
    if !rustix::process::getuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(program);
    // The folder that we are in may not be one of the user's.
    command.current_dir("/");
    command
}

fn call(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// The user of the servers can make files in that folder, and reach it.
fn open_to_all(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let set = |folder: &Path, mode| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode));
    set(folder, 0o777)?;
    folder.parent().map_or(Ok(()), |above| set(above, 0o755))
}
