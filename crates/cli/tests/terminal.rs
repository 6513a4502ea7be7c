//! What comes from outside does nothing to the terminal of the person who looks on: no control character that a worker, a
//! person or a server has sent leaves the real program, in answers, errors and logs.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails where it cannot go on")]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PARTAGE: &str = env!("CARGO_BIN_EXE_partage");

/// Hides what follows, clears the screen, rings, and turns the direction of writing.
const FOUL: &str = "gone\u{1b}[8m\u{1b}[2J\u{7}\u{9b}31m\u{202e}\u{7f}\rx";

/// [`FOUL`] as the command prints it.
const SHOWN: &str = "gone\\u{1b}[8m\\u{1b}[2J\\u{7}\\u{9b}31m\\u{202e}\\u{7f}\\rx";

/// A process that ends with the test, also where that fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A coordinator of its own, and what it logs.
struct Coordinator {
    _process: Process,
    address: String,
    log: tempfile::NamedTempFile,
}

impl Coordinator {
    fn start() -> Coordinator {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut process = Command::new(PARTAGE)
            .args(["coordinator", "--listen", "127.0.0.1:0"])
            .env("RUST_LOG", "debug")
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("coordinator at http://").unwrap().to_owned();
        Coordinator { _process: Process(process), address, log }
    }

    fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn done(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body);
        assert_eq!(status, 200, "{path}: {answer}");
        serde_json::from_str(&answer).unwrap()
    }
}

/// What a command prints, on stdout and stderr.
fn printed(arguments: &[&str]) -> String {
    let output = Command::new(PARTAGE).args(arguments).output().unwrap();
    [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat()
}

fn is_clean(text: &str) -> bool {
    !text.contains(|one: char| one.is_control() && one != '\n' && one != '\t' || one == '\u{202e}')
}

#[test]
fn control_characters_of_a_worker_reach_no_terminal() {
    let coordinator = Coordinator::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // What is a name or an address is refused; and the refusal does not have them either.
    for (id, address) in [(FOUL, address.as_str()), ("w", FOUL), ("w", "h\u{1b}:1")] {
        let (status, answer) =
            coordinator.post("/v1/worker/register", &json!({ "id": id, "address": address }));
        assert_eq!(status, 400, "{answer}");
        assert!(is_clean(&answer), "{answer:?}");
    }
    let welcome = coordinator.done("/v1/worker/register", &json!({ "id": "w", "address": address }));
    let keyspace = json!({ "name": "kv", "sharding": { "type": "hash_range", "hash": "xxh3-64" } });
    let create = json!({
        "command": "create_keyspace", "keyspace": keyspace, "presplit": { "type": "hash_ranges", "shards": 2 },
    });
    coordinator.done("/v1/commands", &json!({ "do": create }));
    // A reason is free text: it is kept as it is, and printed as text.
    let (mut sequence, mut orders) = (0, Vec::new());
    let mut beat = |orders: &[Value]| {
        sequence += 1;
        let report = |order: &Value| json!({ "replica": order["replica"], "epoch": order["epoch"], "phase": "failed", "attempts": 1, "reason": FOUL });
        let reports: Vec<_> = orders.iter().map(report).collect();
        coordinator.done(
            "/v1/worker/heartbeat",
            &json!({
                "node": "w", "incarnation": welcome["incarnation"], "token": welcome["token"], "sequence": sequence,
                "sent_at_ms": sequence, "applied": 0, "whole": true, "reports": reports,
            }),
        )
    };
    let until = Instant::now() + Duration::from_secs(60);
    let ask = |arguments: &[&str]| printed(&[arguments, &["--coordinator", &coordinator.address]].concat());
    let listed = loop {
        if let Some(changed) = beat(&orders)["changed"].as_array().filter(|changed| !changed.is_empty()) {
            orders.clone_from(changed);
        }
        let listed = ask(&["shard", "list", "kv"]) + &ask(&["status"]);
        if listed.contains(SHOWN) {
            break listed;
        }
        assert!(Instant::now() < until, "the reason is not shown: {listed:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(is_clean(&listed), "{listed:?}");
    ask(&["node", "drain", "w", "--reason", FOUL]);
    let mut seen = 0;
    let commands: [&[&str]; 9] = [
        &["status"],
        &["node", "list"],
        &["node", "show", "w"],
        &["shard", "list", "kv"],
        &["shard", "list", "kv", "--long"],
        &["keyspace", "show", "kv"],
        &["plan", "list"],
        &["events"],
        &["explain", "kv", FOUL],
    ];
    for command in commands {
        let printed = ask(command);
        assert!(is_clean(&printed), "{command:?}: {printed:?}");
        seen += usize::from(printed.contains(SHOWN));
    }
    assert!(seen >= 3, "the reasons are told, as text: {seen}");
    let log = std::fs::read_to_string(coordinator.log.path()).unwrap();
    assert!(log.contains("node w registered") && is_clean(&log), "{log:?}");
    let json = ask(&["node", "list", "--json"]);
    assert!(json.contains(r"\u001b[8m"), "JSON says it as it always did: {json}");
}

/// Answers everything with that.
fn server(answer: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = [0; 4096];
            // Who asks may be gone again.
            let _ = stream.read(&mut head);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn control_characters_of_a_server_reach_no_terminal() {
    let told = |status: &str, body: &str| {
        let length = body.len();
        server(format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"))
    };
    let error = json!({ "error": { "kind": "refused", "message": FOUL, "help": FOUL } }).to_string();
    for (status, body) in [("409 Conflict", error.as_str()), ("500 Oh", FOUL), ("200 OK", FOUL)] {
        let address = told(status, body);
        for command in [&["status"][..], &["node", "list"], &["dataset", "list"]] {
            let flag = if command[0] == "dataset" { "--node" } else { "--coordinator" };
            let printed = printed(&[command, &[flag, &address]].concat());
            assert!(is_clean(&printed), "{status} {command:?}: {printed:?}");
            assert!(!printed.is_empty());
        }
    }
}

/// How wide the terminal of [`runs`] is.
const COLUMNS: usize = 40;

/// The longest that a command may take there, in seconds.
const MOST_S: &str = "60";

/// Clears the terminal and goes to its corner.
const CLEAR: &str = "\u{1b}[2J\u{1b}[H";

/// What a command prints on a terminal on which a person types, and its exit code. They type `typed` when `after` has been
/// printed so often. `script` has the terminal; it is in every Debian.
fn runs(environment: &str, arguments: &[&str], (after, times): (&str, usize), typed: &str) -> (String, i32) {
    let quoted: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
    let command = format!(
        "stty rows 24 cols {COLUMNS}; exec env {environment} timeout --foreground {MOST_S} '{PARTAGE}' {}",
        quoted.join(" ")
    );
    let mut script = Process(
        Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env_remove("NO_COLOR")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut typing = script.0.stdin.take().unwrap();
    let mut output = script.0.stdout.take().unwrap();
    let (mut printed, mut piece, mut has_typed) = (Vec::new(), [0; 4096], false);
    loop {
        let seen = String::from_utf8_lossy(&printed);
        if !has_typed && seen.matches(after).count() >= times {
            // The command may have ended by itself.
            let _ = typing.write_all(typed.as_bytes());
            has_typed = true;
        }
        match output.read(&mut piece).unwrap() {
            0 => break,
            length => printed.extend_from_slice(&piece[..length]),
        }
    }
    let code = script.0.wait().unwrap().code().unwrap();
    (String::from_utf8(printed).unwrap(), code)
}

/// For tests in which no person types anything.
const QUIET: (&str, usize) = ("", 0);

/// A coordinator with a node that has the four shards of `kv`.
fn with_a_node() -> (Coordinator, Process) {
    let coordinator = Coordinator::start();
    let address = coordinator.address.as_str();
    let node = Command::new(PARTAGE)
        .args(["node", "--id", "n1", "--listen", "127.0.0.1:0", "--join", address])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let node = Process(node);
    let create = ["keyspace", "create", "kv", "--shards", "4", "--wait", "--coordinator", address];
    let created = printed(&create);
    assert!(created.contains("kv"), "{created}");
    (coordinator, node)
}

#[test]
fn on_a_terminal_a_person_is_asked_watches_and_sees_colours() {
    let (coordinator, _node) = with_a_node();
    let at = ["--coordinator", coordinator.address.as_str()];
    let runs = |environment: &str, arguments: &[&str], when: (&str, usize), typed: &str| {
        runs(environment, &[arguments, &at].concat(), when, typed)
    };

    // Colours are for people who want them.
    let draw = ["shard", "list", "kv"];
    assert!(runs("", &draw, QUIET, "").0.contains("\u{1b}[38;5;"));
    assert!(!runs("NO_COLOR=1", &draw, QUIET, "").0.contains('\u{1b}'));
    assert!(!printed(&[&draw[..], &at].concat()).contains('\u{1b}'));

    // Ctrl-C ends what is drawn again and again.
    let (watched, code) = runs("", &["status", "--watch"], (CLEAR, 2), "\u{3}");
    assert!(watched.matches(CLEAR).count() >= 2 && code != 124, "{code}: {watched:?}");

    // A line that is longer than the terminal is wide is drawn over on one row.
    let (waited, code) = runs("", &["node", "drain", "n1", "--wait", "--timeout", "2"], QUIET, "");
    assert_eq!(code, 5, "{waited:?}");
    let (_, whole) = waited.rsplit_once("not done within 2 s: ").unwrap();
    assert!(whole.split('\n').next().unwrap().chars().count() > COLUMNS, "{waited:?}");
    let rows = waited.split(['\r', '\n']).map(|row| row.replace("\u{1b}[2K", ""));
    let drawn: Vec<String> = rows.filter(|row| row.contains("s  n1 (maintenance)")).collect();
    assert!(!drawn.is_empty() && drawn.iter().all(|row| row.chars().count() <= COLUMNS), "{waited:?}");

    // A person is asked before something is lost.
    let (delete, question) = (["keyspace", "delete", "kv"], "Go on? [y/N]");
    let (asked, code) = runs("", &delete, (question, 1), "n\n");
    assert!(code == 4 && asked.contains("nothing was changed"), "{code}: {asked:?}");
    assert!(printed(&[&["keyspace", "list"], &at[..]].concat()).contains("kv"));
    let (asked, code) = runs("", &delete, (question, 1), "y\n");
    assert!(code == 0 && asked.contains(question), "{code}: {asked:?}");
    assert!(!printed(&[&["keyspace", "list"], &at[..]].concat()).contains("kv"));
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("colours")).unwrap();
    let remove = ["dataset", "remove", "colours", "--source", source.path().to_str().unwrap()];
    let (asked, code) = runs("", &remove, (question, 1), "n\n");
    assert!(code == 4 && asked.contains("its files stay in the source"), "{code}: {asked:?}");
    assert!(!source.path().join("colours/_dataset.toml").exists());
    assert_eq!(runs("", &remove, (question, 1), "y\n").1, 0);
    assert!(source.path().join("colours/_dataset.toml").exists());
    // What would be refused anyway is, without a question.
    let (refused, code) = runs("", &["brake", "release"], QUIET, "");
    assert!(
        code == 4 && refused.contains("the brake is not on") && !refused.contains("Go on"),
        "{refused:?}"
    );
}

#[test]
fn on_a_terminal_a_long_simulation_shows_how_far_it_is() {
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    (0..60_000).for_each(|key| writeln!(keys, "key-{key}").unwrap());
    let path = keys.path().to_str().unwrap();
    let simulate = ["simulate", "--keys", path, "--nodes", "20", "--no-timing"];
    let (seen, code) = runs("", &simulate, QUIET, "");
    assert!(code == 0 && seen.contains(" of ") && seen.contains("start, "), "{seen:?}");
    let piped = Command::new(PARTAGE).args(simulate).output().unwrap();
    assert!(piped.stderr.is_empty(), "{:?}", String::from_utf8_lossy(&piped.stderr));
}
