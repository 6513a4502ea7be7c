//! The example workers in Go and in Node, as processes behind a real coordinator and a real router: what was acknowledged
//! is there, however its shard moved.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A process and its children, which are gone when this is.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.process_group(0).spawn().unwrap())
    }

    /// Starts a role and waits for the line that says where it listens.
    fn role(arguments: &[&str], name: &str) -> (Process, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
        let mut process = Process::start(command.args(arguments).arg("--json").stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        (process, said[name].as_str().unwrap().to_owned())
    }

    fn signal(&self, name: &str) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-s", name, "--", &group]).stderr(Stdio::null()).status();
    }

    fn ends_well(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal("KILL");
        let _ = self.0.wait();
    }
}

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path)
}

/// The worker in Go, built once.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("worker-go");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&out).arg(".").current_dir(example("worker-go")).env("GOFLAGS", "");
        assert!(go.status().expect("go is needed: `./test setup` installs it").success());
        out
    })
}

#[derive(Clone, Copy)]
enum Language {
    Go,
    Node,
}

struct Worker {
    process: Process,
    address: String,
}

fn worker(language: Language, coordinator: &str, name: &str) -> Worker {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut command = match language {
        Language::Go => Command::new(built()),
        Language::Node => Command::new("node"),
    };
    if let Language::Node = language {
        command.arg(example("worker-node/worker.mjs"));
    }
    command.args(["--coordinator", &format!("http://{coordinator}"), "--id", name, "--port", &port]);
    Worker { process: Process::start(&mut command), address: format!("127.0.0.1:{port}") }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|it| it.0.eq_ignore_ascii_case(name))
            .map(|it| it.1)
    }

    fn error(&self) -> Value {
        serde_json::from_str::<Value>(&self.body).unwrap_or_else(|_| panic!("no error: {}", self.body))["error"].take()
    }
}

/// None: nothing is known of what became of it.
fn ask(address: &str, method: &str, path: &str, more: &str, body: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => body.split("\r\n").skip(1).step_by(2).collect(),
        false => body.to_owned(),
    };
    Some(Answer { status: head.split(' ').nth(1)?.parse().ok()?, head: head.to_owned(), body })
}

struct TestCluster {
    _coordinator: Process,
    coordinator: String,
    _router: Process,
    router: String,
}

impl TestCluster {
    fn new() -> TestCluster {
        let (_coordinator, coordinator) =
            Process::role(&["coordinator", "--listen", "127.0.0.1:0"], "coordinator");
        let (_router, router) =
            Process::role(&["router", "--listen", "127.0.0.1:0", "--join", &coordinator], "router");
        TestCluster { _coordinator, coordinator, _router, router }
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
        let ran = command.args(arguments).args(["--coordinator", &self.coordinator]).output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    }

    fn eventually(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "never: {what}; {}", self.cli(&["shard", "list", "kv", "--long"]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn nodes_up(&self, count: usize) {
        self.eventually("all nodes are up", || {
            let status: Value = serde_json::from_str(&self.cli(&["status", "--json"])).unwrap();
            status["nodes"]["up"] == count
        });
    }

    /// The shards, each with the node that serves it; none while one is not served by exactly one.
    fn owners(&self) -> Option<Vec<(u64, String)>> {
        let told: Value = serde_json::from_str(&self.cli(&["shard", "list", "kv", "--json"])).unwrap();
        let owner = |shard: &Value| match shard["replicas"].as_array().unwrap().as_slice() {
            [one] if one["phase"] == "serving" && one["state"] == "live" => {
                Some((shard["shard"].as_u64().unwrap(), one["node"].as_str().unwrap().to_owned()))
            }
            _ => None,
        };
        told["shards"].as_array().unwrap().iter().map(owner).collect()
    }

    fn served_by(&self, nodes: &[&str]) -> Vec<(u64, String)> {
        let mut owners = Vec::new();
        self.eventually("every shard is served, and each node serves one", || {
            owners = self.owners().unwrap_or_default();
            let are_all_served = nodes.iter().all(|node| owners.iter().any(|(_, owner)| owner == node));
            are_all_served && owners.iter().all(|(_, owner)| nodes.contains(&owner.as_str()))
        });
        owners
    }
}

/// What one client has written to its key: up to which number it was acknowledged, and which it sent last.
#[derive(Default, Debug)]
struct Written {
    acknowledged: u64,
    sent: u64,
    answers: [u64; 2],
}

/// Writes one number after the other, and reads each that was acknowledged back, until `stop` is set.
fn write(router: &str, key: &str, stop: &AtomicBool) -> Written {
    let (mut written, path) = (Written::default(), format!("/kv/{key}"));
    while !stop.load(Ordering::Relaxed) {
        written.sent += 1;
        let put = ask(router, "PUT", &path, "", &written.sent.to_string());
        let is_done = put.as_ref().is_some_and(|answer| answer.status == 200);
        written.answers[usize::from(is_done)] += 1;
        if is_done {
            written.acknowledged = written.sent;
        }
        check(router, key, &written);
    }
    written
}

/// A read that is answered gives what was acknowledged last, or what was sent after that.
fn check(router: &str, key: &str, written: &Written) -> bool {
    let Some(got) = ask(router, "GET", &format!("/kv/{key}"), "", "") else { return false };
    let number = match got.status {
        200 => got.body.parse::<u64>().unwrap(),
        404 => 0,
        _ => return false,
    };
    assert!((written.acknowledged..=written.sent).contains(&number), "{key} is {number}: {written:?}");
    true
}

/// Clients write while every shard moves twice, one is split, and a node is drained and leaves.
fn nothing_acknowledged_is_lost(first: Language, second: Language) {
    let test_cluster = TestCluster::new();
    let mut a = worker(first, &test_cluster.coordinator, "a");
    let b = worker(second, &test_cluster.coordinator, "b");
    test_cluster.nodes_up(2);
    // What is moved by hand stays where it was put.
    test_cluster.cli(&["keyspace", "create", "kv", "--hash", "md5", "--shards", "6", "--mode", "suggested"]);
    let owners = test_cluster.served_by(&["a", "b"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let (router, stop) = (&test_cluster.router, &stop);
        let keys = (0..6).map(|number| format!("key-{number}"));
        let writers: Vec<_> =
            keys.map(|key| (key.clone(), threads.spawn(move || write(router, &key, stop)))).collect();
        // So that clients end also when something here fails.
        let moved = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let other = |node: &str| if node == "a" { "b" } else { "a" };
            for (shard, owner) in &owners {
                let (shard, owner) = (format!("s{shard}"), owner.as_str());
                for (from, to) in [(owner, other(owner)), (other(owner), owner)] {
                    test_cluster.cli(&["shard", "move", "kv", &shard, "--from", from, "--to", to, "--wait"]);
                }
            }
            test_cluster.cli(&["shard", "split", "kv", &format!("s{}", owners[0].0), "--wait"]);
            test_cluster.cli(&["node", "drain", "a", "--wait"]);
            let shard = format!("s{}", test_cluster.served_by(&["b"])[0].0);
            test_cluster.cli(&["node", "undrain", "a"]);
            test_cluster.cli(&["shard", "move", "kv", &shard, "--from", "b", "--to", "a", "--wait"]);
            test_cluster.served_by(&["a", "b"]);
            a.process.signal("TERM");
            assert!(a.process.ends_well(), "all was handed over");
            test_cluster.served_by(&["b"]);
        }));
        stop.store(true, Ordering::Relaxed);
        let written: Vec<_> =
            writers.into_iter().map(|(key, writer)| (key, writer.join().unwrap())).collect();
        moved.unwrap();
        for (key, written) in &written {
            assert!(written.answers[1] > 20 && check(router, key, written), "{key}: {written:?}");
        }
    });
    headers_and_refusals(&test_cluster, &a, &b);
}

/// What the page on the protocol says of answers.
fn headers_and_refusals(test_cluster: &TestCluster, a: &Worker, b: &Worker) {
    let got = ask(&b.address, "GET", "/kv/key-0", "", "").unwrap();
    assert_eq!((got.status, got.header("partage-node")), (200, Some("b")));
    assert!(got.header("partage-epoch").unwrap().parse::<u64>().unwrap() > 0);
    let absent = ask(&b.address, "GET", "/kv/a%20key%00", "", "").unwrap();
    assert_eq!((absent.status, &absent.error()["kind"]), (404, &"not_found".into()));
    let unknown = ask(&b.address, "GET", "/other/key", "partage-generation: 7\r\n", "").unwrap();
    assert_eq!((unknown.status, &unknown.error()["kind"]), (421, &"misdirected".into()));
    assert_eq!(unknown.header("partage-owner-address"), None);
    assert_eq!(ask(&b.address, "GET", "/kv/%zz", "", "").unwrap().status, 400);
    assert!(ask(&a.address, "GET", "/kv/key-0", "", "").is_none(), "a is gone");

    // Without a coordinator the lease ends, and with it every answer; a router that asks hears whether anything was done.
    test_cluster._coordinator.signal("STOP");
    let end = Instant::now() + PATIENCE;
    let refused = loop {
        let answer = ask(&b.address, "PUT", "/kv/key-0", "", "late").unwrap();
        // Where the lease ends between the write and its answer, the answer is another one, once.
        if answer.status != 200 && answer.error()["kind"] != "lapsed_while_served" {
            break answer;
        }
        assert!(Instant::now() < end, "it goes on without a lease");
    };
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!((refused.header("partage-node"), &refused.error()["kind"]), (Some("b"), &"lapsed".into()));
    test_cluster._coordinator.signal("CONT");
    test_cluster.eventually("it goes on", || {
        ask(&b.address, "GET", "/kv/key-0", "", "")
            .is_some_and(|answer| answer.status == 200 && answer.body == "late")
    });
}

#[test]
fn workers_in_go_lose_nothing_that_was_acknowledged() {
    nothing_acknowledged_is_lost(Language::Go, Language::Go);
}

#[test]
fn workers_in_node_lose_nothing_that_was_acknowledged() {
    nothing_acknowledged_is_lost(Language::Node, Language::Node);
}

/// A worker that copied a shard from a former owner says who has it now.
#[test]
fn a_worker_in_go_hands_over_to_one_in_node_and_names_it() {
    let test_cluster = TestCluster::new();
    let a = worker(Language::Go, &test_cluster.coordinator, "a");
    let b = worker(Language::Node, &test_cluster.coordinator, "b");
    test_cluster.nodes_up(2);
    test_cluster.cli(&["keyspace", "create", "kv", "--hash", "md5", "--shards", "2", "--mode", "suggested"]);
    for (shard, owner) in test_cluster.served_by(&["a", "b"]) {
        let other = if owner == "a" { "b" } else { "a" };
        for key in ["x", "y", "z", "u", "v"] {
            assert_eq!(ask(&test_cluster.router, "PUT", &format!("/kv/{key}"), "", key).unwrap().status, 200);
        }
        test_cluster.cli(&[
            "shard",
            "move",
            "kv",
            &format!("s{shard}"),
            "--from",
            &owner,
            "--to",
            other,
            "--wait",
        ]);
        for key in ["x", "y", "z", "u", "v"] {
            let got = ask(&test_cluster.router, "GET", &format!("/kv/{key}"), "", "").unwrap();
            assert_eq!((got.status, got.body.as_str()), (200, key));
        }
    }
    let elsewhere = ["x", "y", "z", "u", "v"].iter().find_map(|key| {
        ask(&a.address, "GET", &format!("/kv/{key}"), "", "").filter(|answer| answer.status == 421)
    });
    let elsewhere = elsewhere.expect("one of them is at b");
    assert_eq!(elsewhere.error()["kind"], "misdirected");
    assert!(elsewhere.header("partage-generation").unwrap().parse::<u64>().unwrap() > 0);
    followers_name_the_leader(&test_cluster, &a, &b);
}

/// Of a shard with a replica on each node, each in turn leads, and the other one refuses a write with the leader's name and
/// address: its order has them.
fn followers_name_the_leader(test_cluster: &TestCluster, a: &Worker, b: &Worker) {
    let create = "keyspace create pair --hash md5 --shards 1 --replicas 2 --mode suggested";
    test_cluster.cli(&create.split(' ').collect::<Vec<_>>());
    let put = |at: &Worker| ask(&at.address, "PUT", "/pair/x", "", "x").unwrap();
    let of = |name: &str| if name == "a" { a } else { b };
    let mut first = None;
    test_cluster.eventually("both have it, and one leads", || {
        let told: Value =
            serde_json::from_str(&test_cluster.cli(&["shard", "list", "pair", "--json"])).unwrap();
        let shard = &told["shards"][0];
        let replicas = shard["replicas"].as_array().unwrap();
        let leader = replicas.iter().find(|replica| replica["role"] == "leader");
        first = leader.map(|leader| (leader["node"].as_str().unwrap().to_owned(), shard["shard"].clone()));
        replicas.len() == 2 && replicas.iter().all(|one| one["phase"] == "serving" && one["state"] == "live")
    });
    let (first, shard) = first.expect("one leads");
    let second = if first == "a" { "b" } else { "a" };
    for (leader, follower) in [(first.as_str(), second), (second, first.as_str())] {
        if leader == second {
            test_cluster.cli(&["shard", "lead", "pair", &format!("s{shard}"), "--to", leader, "--wait"]);
        }
        test_cluster.eventually("the leader takes writes", || put(of(leader)).status == 200);
        // A worker leaves out what it does not know, and hears of a new leader after that leader does.
        test_cluster.eventually("the follower names a node", || {
            put(of(follower)).header("partage-owner-node").is_some()
        });
        let refused = put(of(follower));
        assert_eq!((refused.status, &refused.error()["kind"]), (421, &"misdirected".into()), "{follower}");
        let address = of(leader).address.as_str();
        assert_eq!(refused.header("partage-owner-node"), Some(leader), "{follower}");
        assert_eq!(refused.header("partage-owner-address"), Some(address), "{follower}");
        assert_eq!(refused.error()["owner"], serde_json::json!({ "node": leader, "address": address }));
    }
}
