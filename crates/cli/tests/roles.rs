//! The roles as processes of their own, from files.
//!
//! `partage router` stands before an HTTP service that knows nothing of shards, as the book's page on the router
//! has it: a coordinator, two `python3 -m http.server`, each with `worker.sh` beside it, and the sample file.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process and its children, which are gone when this is.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.process_group(0).spawn().unwrap())
    }

    /// Starts a role and waits for the line that says where it listens.
    fn role(command: &mut Command, name: &str) -> (Process, String) {
        let mut process = Process::start(command.arg("--json").stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        (process, said[name].as_str().unwrap().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

fn partage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    command.args(arguments);
    command
}

/// What cannot be meant is refused before anything begins, with the way out.
#[test]
fn what_is_said_about_an_engine_must_make_sense() {
    let engine = "etcd://127.0.0.1:1/r";
    for (arguments, code, why) in [
        (&["--coordination", "host:2379"][..], 2, "there is no `://` in it"),
        (&["--coordination", "gossip://h/r"], 2, "coordinators need etcd, zookeeper or mysql"),
        (&["--coordination", "etcd://me:word@h/r"], 2, "give the password in a file"),
        (&["--coordination", engine, "--session-ms", "10"], 2, "give 1000 to 60000"),
        (&["--coordination", engine, "--session-ms", "9000"], 2, "raise lease_ms"),
        (&["--coordination", engine, "--coordination-key", "k.pem"], 2, "belong together"),
        (&["--coordination-ca", "ca.pem"], 2, "name it with --coordination"),
        (
            &["--coordination", engine, "--coordination-password-file", "/nowhere"],
            2,
            "cannot read the password file",
        ),
        (&["--coordination", engine, "--listen", "0.0.0.0:0"], 2, "say --insecure"),
        (&["--coordination", engine, "--listen", "0.0.0.0:0", "--insecure"], 1, "say at which of them"),
    ] {
        let ended = partage(&["coordinator"]).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(why) && !said.contains("word@"), "{arguments:?}: {said}");
    }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn get(address: &str, path: &str, header: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// The existing service: answers every key, and says in each file who it is.
fn service(dir: &Path, name: &str) -> (Process, String) {
    std::fs::create_dir_all(dir.join("users")).unwrap();
    std::fs::write(dir.join("search"), name).unwrap();
    std::fs::write(dir.join("else"), name).unwrap();
    (0..24).for_each(|user| std::fs::write(dir.join(format!("users/{user}")), name).unwrap());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"]).arg(dir).arg(&port);
    (Process::start(command.stdout(Stdio::null()).stderr(Stdio::null())), format!("127.0.0.1:{port}"))
}

fn worker(coordinator: &str, name: &str, address: &str, dir: &Path) -> Process {
    let mut command = Command::new("bash");
    command.arg(root("examples/worker-shell/worker.sh"));
    command.args([&format!("http://{coordinator}"), name, address]).arg(dir);
    Process::start(&mut command)
}

#[test]
fn an_existing_http_service_is_sharded_without_a_line_of_code() {
    let dir = tempfile::tempdir().unwrap();
    let (_coordinator, coordinator) =
        Process::role(&mut partage(&["coordinator", "--listen", "127.0.0.1:0"]), "coordinator");
    let created = partage(&["keyspace", "create", "users", "--ownership", "eventual", "--shards", "8"])
        .args(["--coordinator", &coordinator])
        .output()
        .unwrap();
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let mut running = Vec::new();
    for name in ["a", "b"] {
        let (service, address) = service(&dir.path().join(name), name);
        running.push(worker(&coordinator, name, &address, &dir.path().join(format!("shards-{name}"))));
        running.push(service);
    }

    // The sample file as it is; what differs on this machine is said by a flag and by the environment.
    let config = root("examples/reverse-proxy/router.toml");
    let mut command = partage(&["router", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(config).env("PARTAGE_COORDINATORS", &coordinator);
    let (_router, router) = Process::role(&mut command, "router");

    let answers = || -> Vec<String> {
        (0..24)
            .map(|user| get(&router, &format!("/users/{user}"), ""))
            .filter(|it| it.0 == 200)
            .map(|it| it.1)
            .collect()
    };
    let end = Instant::now() + Duration::from_secs(60);
    let owners = loop {
        let owners = answers();
        if owners.len() == 24 && owners.iter().collect::<BTreeSet<_>>().len() == 2 {
            break owners;
        }
        assert!(Instant::now() < end, "not served by both: {owners:?}");
    };
    for (user, owner) in owners.iter().enumerate() {
        let by_query = get(&router, &format!("/search?q=x&user={user}"), "");
        let by_header = get(&router, "/else", &format!("x-user: {user}\r\n"));
        assert_eq!(by_query, (200, owner.clone()), "the key in a parameter is the key in the path");
        assert_eq!(by_header, (200, owner.clone()), "and so is the key in a header");
    }
    let (status, said) = get(&router, "/else", "");
    assert!(status == 400 && said.contains("the header x-user"), "{status} {said}");
}

#[test]
fn a_file_that_cannot_be_is_wrong_usage_and_names_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("router.toml");
    let refused = |text: &str, arguments: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let output = partage(&["router", "--config"]).arg(&file).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused("\nlissen = \"127.0.0.1:0\"", &[]);
    assert!(said.contains("line 2") && said.contains("did you mean \"listen\"?"), "{said}");
    let said = refused("[[rules]]\nkeyspace = \"a/b\"", &[]);
    assert!(said.contains("router.toml") && said.contains("a/b"), "{said}");
    let said = refused("[[rules]]\nkey_header = \"x y\"", &[]);
    assert!(said.contains("no name of a header"), "{said}");
    assert!(
        refused("listen = \"nowhere\"", &[]).contains("127.0.0.1:7440"),
        "it says what an address looks like"
    );
    assert!(refused("hedge = \"never\"", &[]).contains("\"off\""));
    // A flag is a rule in place of those of the file, and is checked as they are.
    assert!(refused("", &["--key-segment", "0"]).contains("the flags"));
}

#[test]
fn the_sample_files_start_a_coordinator_and_a_node_and_what_they_say_is_so() {
    let dir = tempfile::tempdir().unwrap();
    // The samples as they are; what differs on this machine is said by flags and by the environment.
    let mut command = partage(&["coordinator", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(root("examples/config/coordinator.toml")).arg("--data-dir").arg(dir.path().join("state"));
    let (_coordinator, coordinator) = Process::role(&mut command, "coordinator");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut command = partage(&["node", "--listen", &address, "--address", &address, "--config"]);
    command.arg(root("examples/config/node.toml")).env("PARTAGE_COORDINATORS", &coordinator);
    let (_node, said) = Process::role(&mut command, "address");
    assert_eq!(said, address);
    let listed = partage(&["node", "list", "--json", "--coordinator", &coordinator]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for told in ["n1", "north", "r7", "ssd", "large", &address] {
        assert!(listed.contains(told), "{told} is not in {listed}");
    }
    assert!(dir.path().join("state").is_dir(), "the state is kept where it was told");
}

#[test]
fn what_a_node_is_told_in_its_file_reaches_the_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let (_coordinator, coordinator) =
        Process::role(&mut partage(&["coordinator", "--listen", "127.0.0.1:0"]), "coordinator");
    let file = dir.path().join("node.toml");
    let text = "id = \"n1\"\ncapacity = 2.5\nzone = \"north\"\nrack = \"r7\"\nlabels = [\"ssd\"]\n";
    std::fs::write(&file, format!("{text}coordinators = [\"{coordinator}\"]\n")).unwrap();
    let (_node, _) = Process::role(partage(&["node", "--config"]).arg(&file), "address");
    let listed = partage(&["node", "list", "--json", "--coordinator", &coordinator]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for told in ["n1", "2.5", "north", "r7", "ssd"] {
        assert!(listed.contains(told), "{told} is not in {listed}");
    }
}
