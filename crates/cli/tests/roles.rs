//! The roles as processes of their own, from files.
//!
//! `partage router` stands before an HTTP service that knows nothing of shards, as the book's page on the router
//! has it: a coordinator, two `python3 -m http.server`, each with `worker.sh` beside it, and the sample file.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

mod ending;

use ending::{PROMPT, terminate};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
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

/// One shell, one variable, for commands and for the node that is started from it.
#[test]
fn a_node_joins_the_coordinator_of_the_commands_where_nothing_else_names_one() {
    let (_coordinator, coordinator) =
        Process::role(&mut partage(&["coordinator", "--listen", "127.0.0.1:0"]), "coordinator");
    let mut command = partage(&["node", "--id", "n1", "--listen", "127.0.0.1:0"]);
    command.env_remove("PARTAGE_COORDINATORS").env("PARTAGE_COORDINATOR", &coordinator);
    let (_node, _) = Process::role(&mut command, "address");
    let end = Instant::now() + PROMPT;
    loop {
        let listed = partage(&["node", "list", "--json", "--coordinator", &coordinator]).output().unwrap();
        if String::from_utf8_lossy(&listed.stdout).contains("n1") {
            break;
        }
        assert!(Instant::now() < end, "{listed:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process that is given the address of a node in place of a coordinator's says so; a router says it once, however often
/// it tries.
#[test]
fn the_address_of_a_node_is_told_from_that_of_a_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let (_coordinator, coordinator) =
        Process::role(&mut partage(&["coordinator", "--listen", "127.0.0.1:0"]), "coordinator");
    let (_node, address) = Process::role(&mut node(dir.path(), "n1", &coordinator), "address");
    let mut router = partage(&["router", "--join", &address, "--listen", "127.0.0.1:0"]);
    router.stdout(Stdio::null()).stderr(File::create(dir.path().join("router")).unwrap());
    let _router = Process::start(&mut router);
    let _lost = Process::start(node(dir.path(), "n2", &address).stdout(Stdio::null()));
    let told = |name: &str| {
        let log = std::fs::read_to_string(dir.path().join(name)).unwrap();
        (log.matches("what listens there is no coordinator: it answers with plain HTTP").count(), log)
    };
    let end = Instant::now() + PROMPT;
    while told("router").0 == 0 || told("n2").0 == 0 {
        assert!(Instant::now() < end, "{:?} {:?}", told("router"), told("n2"));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Some ten tries more.
    std::thread::sleep(Duration::from_secs(1));
    let (times, log) = told("router");
    assert_eq!(times, 1, "{log}");
    let output = partage(&["status", "--coordinator", &address]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains(&format!("{address} is a node of a service, and this asks a coordinator")),
        "{said}"
    );
}

/// A worker in any language may answer unknown paths in the form of our own errors.
#[test]
fn another_program_is_not_taken_for_a_coordinator_by_the_form_of_its_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).unwrap();
            let body = r#"{"error":{"kind":"not_found","message":"no such path","help":""}}"#;
            let length = body.len();
            let head =
                format!("HTTP/1.1 404 Not Found\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    let output = partage(&["status", "--coordinator", &address]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("{address} is another program, and this asks a coordinator")), "{said}");
    assert_eq!(output.status.code(), Some(2), "{said}");
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

/// A coordinator with short leases, and the brake that every cluster has.
fn coordinator_with_short_leases(dir: &Path) -> (Process, String) {
    let settings = dir.join("coordinator.toml");
    let text =
        "heartbeat_ms = 200\nlease_ms = 2000\ndead_after_ms = 3000\ncheck_back_ms = 1000\nsettle_ms = 300\n";
    std::fs::write(&settings, text).unwrap();
    let mut command = partage(&["coordinator", "--listen", "127.0.0.1:0", "--config"]);
    Process::role(command.arg(settings), "coordinator")
}

/// A node that logs to `dir`.
fn node(dir: &Path, id: &str, coordinator: &str) -> Command {
    let mut command = partage(&["node", "--id", id, "--listen", "127.0.0.1:0", "--coordinator", coordinator]);
    command.stderr(File::create(dir.join(id)).unwrap());
    command
}

/// Exit code and words of `partage status`.
fn status(coordinator: &str) -> (Option<i32>, String) {
    let output = partage(&["status", "--coordinator", coordinator]).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until `partage status` ends with that exit code and says all of `words`; returns what it says.
fn until_status(coordinator: &str, code: i32, words: &[&str]) -> String {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let (ended, said) = status(coordinator);
        if ended == Some(code) && words.iter().all(|word| said.contains(word)) {
            return said;
        }
        assert!(Instant::now() < end, "not {code} with {words:?}, but {ended:?} with {said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `users`, of twelve exclusive shards with one replica each.
fn create_users(coordinator: &str) {
    let create = ["keyspace", "create", "users", "--shards", "12", "--coordinator", coordinator];
    assert!(partage(&create).output().unwrap().status.success());
}

#[test]
fn a_node_whose_coordinator_is_gone_ends_when_its_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let (coordinating, coordinator) = coordinator_with_short_leases(dir.path());
    let (mut node, _) = Process::role(&mut node(dir.path(), "n1", &coordinator), "address");
    create_users(&coordinator);
    until_status(&coordinator, 0, &["12 of 12 are served"]);
    drop(coordinating);
    let (code, took) = terminate(&mut node.0);
    let log = std::fs::read_to_string(dir.path().join("n1")).unwrap();
    assert!(code == Some(0) && took < PROMPT, "{code:?} after {took:?}: {log}");
    assert!(log.contains("warning: no coordinator answers, and the lease is over: 12 replicas"), "{log}");
}

#[test]
fn a_node_that_never_had_a_coordinator_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // Port 1 of the loopback: no process listens there.
    let mut node = Process::start(node(dir.path(), "n1", "127.0.0.1:1").stdout(Stdio::null()));
    let log = || std::fs::read_to_string(dir.path().join("n1")).unwrap();
    let end = Instant::now() + PROMPT;
    while !log().contains("no connection to a coordinator") {
        assert!(Instant::now() < end, "{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let (code, took) = terminate(&mut node.0);
    assert!(code == Some(0) && took < Duration::from_secs(2), "{code:?} after {took:?}: {}", log());
}

/// C13, R4: three of four nodes die at once. A script sees by the exit code that a person has to look, from the first
/// silent second on, and the first line says what holds the shards; when the nodes are back nobody has to release anything.
#[test]
fn status_says_which_shards_silent_nodes_lead_and_then_that_the_brake_holds_them() {
    let dir = tempfile::tempdir().unwrap();
    let (_coordinating, coordinator) = coordinator_with_short_leases(dir.path());
    let start = |id: &str| Process::role(&mut node(dir.path(), id, &coordinator), "address").0;
    let _stays = start("n1");
    let lost = ["n2", "n3", "n4"].map(start);
    create_users(&coordinator);
    let sound = until_status(&coordinator, 0, &["12 of 12 are served"]);
    assert!(sound.starts_with("keyspaces  1\nnodes      4 up\n"), "{sound}");

    drop(lost);
    let silent = until_status(&coordinator, 1, &["9 led by nodes that do not answer"]);
    assert!(silent.starts_with("WRONG      9 of 12 shards are not served"), "{silent}");
    assert!(silent.contains("→ `partage shard list KEYSPACE --unserved` lists them"), "{silent}");

    let braked = until_status(&coordinator, 1, &["9 held by the brake"]);
    let lines: Vec<&str> = braked.lines().collect();
    assert!(
        lines[0]
            .starts_with("WRONG      the brake is on, so the coordinator moves nothing by itself: 3 of 4"),
        "{braked}"
    );
    assert!(
        lines[1].contains("→ look at the nodes and the network, then `partage brake release`"),
        "{braked}"
    );
    assert!(lines[2].starts_with("WRONG      9 of 12 shards are not served"), "{braked}");
    assert!(braked.contains("WRONG      nodes that do not answer: n2, n3, n4 are down"), "{braked}");
    assert!(braked.contains("shards     3 of 12 are served"), "{braked}");
    let json = partage(&["status", "--json", "--coordinator", &coordinator]).output().unwrap();
    let told: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((json.status.code(), &told["shards"]["braked"]), (Some(1), &json!(9)), "{told}");

    // The brake is released by itself. For the rest of the window it is told that the nodes came and went.
    let _back = ["n2", "n3", "n4"].map(start);
    let unrest = "3 of 4 nodes died or were started anew within 60 s";
    let served = until_status(&coordinator, 1, &["12 of 12 are served", unrest, "4 up"]);
    assert!(served.contains("go on by themselves") && !served.contains("brake"), "{served}");
    let shown = |more: &[&str]| {
        let args = [&["brake", "show", "--coordinator", &coordinator], more].concat();
        String::from_utf8(partage(&args).output().unwrap().stdout).unwrap()
    };
    let text = shown(&[]);
    assert!(text.starts_with(&format!("off\n{unrest}: nothing but repairs")), "{text}");
    let told: Value = serde_json::from_str(&shown(&["--json"])).unwrap();
    assert_eq!(told, json!({ "brake": null, "unrest": unrest }));
    let (_, metrics) = get(&coordinator, "/metrics", "");
    for line in ["partage_coordinator_brake 0", "partage_coordinator_unrest 1"] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let refused = partage(&["brake", "release", "--yes", "--coordinator", &coordinator]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(4) && error.contains("there is nothing to release"), "{error}");
}
