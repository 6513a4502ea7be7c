//! Datasets under a coordinator, as processes of their own: a coordinator, nodes that were told of nothing but it and of
//! the source, and a router. Reads go on while a version switches, a node is drained, one is killed and one joins; none
//! fails, and none sees two versions (K19, S18, D5).

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../ending/mod.rs"]
mod ending;
mod routed;

use ending::{PROMPT, terminate};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const KEYS: usize = 120;
const FILES: usize = 6;

/// A process, killed when dropped.
struct Process(Child);

impl Process {
    /// Starts a role and waits for the line that says where it listens.
    fn role(arguments: &[&str], name: &str) -> (Process, String) {
        Process::logging(arguments, name, Stdio::null())
    }

    fn logging(arguments: &[&str], name: &str, log: Stdio) -> (Process, String) {
        let mut command = partage(arguments);
        let command = command.arg("--json").stdout(Stdio::piped()).stderr(log);
        let mut process = Process(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{arguments:?}: {line:?}"));
        (process, said[name].as_str().unwrap().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn partage(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
    command.args(arguments);
    command
}

/// Status, headers and body; an error when no process answers.
fn ask(address: &str, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         accept: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Ok((status, head.to_lowercase(), body.to_owned()))
}

/// The cluster, and what it needs to go on.
struct TestCluster {
    dir: PathBuf,
    coordinator: String,
    router: String,
    processes: Vec<Process>,
}

impl TestCluster {
    fn start(dir: &Path) -> TestCluster {
        let config = TestCluster::configure(dir);
        let coordinator = ["coordinator", "--listen", "127.0.0.1:0", "--config", &config];
        let (coordinating, coordinator) = Process::role(&coordinator, "coordinator");
        let router = ["router", "--listen", "127.0.0.1:0", "--join", &coordinator];
        let (routing, router) = Process::role(&router, "router");
        TestCluster { dir: dir.to_owned(), coordinator, router, processes: vec![coordinating, routing] }
    }

    /// Writes the settings of all, and returns where those of the coordinator are.
    fn configure(dir: &Path) -> String {
        let settings = "heartbeat_ms = 200\nlease_ms = 2000\ndead_after_ms = 3000\nsettle_ms = 300\n\
                        rebalance_ms = 1000\nbrake_share = 1.0\n";
        fs::write(dir.join("coordinator.toml"), settings).unwrap();
        let node =
            "refresh_s = 1\nstable_s = 1\nlet_go_s = 3\nthreads = 1\nproxy_stage_ms = 200\nproxy_ms = 5000\n";
        fs::write(dir.join("node.toml"), node).unwrap();
        dir.join("coordinator.toml").to_str().unwrap().to_owned()
    }

    fn node(&self, id: &str) -> (Process, String) {
        self.node_at(id, "127.0.0.1:0")
    }

    fn node_at(&self, id: &str, listen: &str) -> (Process, String) {
        let of = |name: &str| self.dir.join(name).to_str().unwrap().to_owned();
        let (config, source, data) = (of("node.toml"), of("source"), of(id));
        let mut arguments = vec!["dataset", "serve", "--listen", listen, "--id", id];
        arguments.extend(["--coordinator", &self.coordinator, "--config", &config]);
        arguments.extend(["--source", &source, "--data-dir", &data]);
        let log = fs::File::options().create(true).append(true).open(self.log(id)).unwrap();
        Process::logging(&arguments, "address", log.into())
    }

    fn log(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.log"))
    }

    /// A version appears in the source, all of it at once.
    fn write(&self, version: &str) {
        let dataset = self.dir.join("source/names");
        let unfinished = dataset.join(format!("_{version}"));
        fs::create_dir_all(&unfinished).unwrap();
        fs::write(dataset.join("_dataset.toml"), "format = \"csv\"\nkey = \"key\"\nvalues = [\"value\"]\n")
            .unwrap();
        for file in 0..FILES {
            let rows = (0..KEYS).filter(|key| key % FILES == file);
            let rows: String = rows.map(|key| format!("k{key},{version} of k{key}\n")).collect();
            fs::write(unfinished.join(format!("part-{file:05}.csv")), format!("key,value\n{rows}")).unwrap();
        }
        fs::rename(&unfinished, dataset.join(version)).unwrap();
    }

    fn cli(&self, arguments: &[&str]) -> (i32, String) {
        let output = partage(arguments).args(["--coordinator", &self.coordinator]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.cli(&[arguments, &["--json"]].concat()).1).unwrap_or_default()
    }

    /// Everything is placed, and nothing is on its way.
    fn is_whole(&self) -> bool {
        let status = self.json(&["status"]);
        status["short"] == 0
            && status["moves"] == 0
            && status["loads"] == 0
            && status["shards"]["led"] == FILES
    }

    fn held(&self, node: &str) -> u64 {
        let nodes = self.json(&["node", "list"]);
        let rows = nodes["nodes"].as_array().cloned().unwrap_or_default();
        let row = rows.into_iter().find(|row| row["id"] == node);
        row.and_then(|row| row["replicas"]["names"].as_u64()).unwrap_or(0)
    }
}

/// What it waits for must come; the time only bounds how long a failure takes.
fn eventually(what: &str, mut state: impl FnMut() -> (bool, String)) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let (is_so, told) = state();
        if is_so {
            return;
        }
        assert!(Instant::now() < deadline, "it never came to be that {what}: {told}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Clients: one that asks the router for a key, one that asks a node for many.
struct Readers {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    wrong: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    fn start(router: &str, node: &str) -> Readers {
        let (stop, reads, wrong) = (Arc::default(), Arc::default(), Arc::default());
        let mut readers = Readers { stop, reads, wrong, threads: Vec::new() };
        let (one, many) = (router.to_owned(), node.to_owned());
        readers.run(move |turn| one_key(&one, turn));
        readers.run(move |_| many_keys(&many));
        readers
    }

    fn run(&mut self, mut read: impl FnMut(usize) -> Result<(), String> + Send + 'static) {
        let (stop, reads, wrong) = (self.stop.clone(), self.reads.clone(), self.wrong.clone());
        self.threads.push(std::thread::spawn(move || {
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                match read(turn) {
                    Ok(()) => drop(reads.fetch_add(1, Ordering::Relaxed)),
                    Err(why) => wrong.lock().unwrap().push(why),
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        }));
    }

    fn so_far(&self) -> u64 {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{} reads went wrong: {:?}", wrong.len(), &wrong[..wrong.len().min(3)]);
        self.reads.load(Ordering::Relaxed)
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let (reads, wrong) = (self.reads, self.wrong);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new());
        reads.load(Ordering::Relaxed)
    }
}

/// The value says which version it is of, and so does the header.
fn one_key(router: &str, turn: usize) -> Result<(), String> {
    let key = format!("k{}", turn * 7 % KEYS);
    let (status, head, body) =
        ask(router, "GET", &format!("/names/{key}"), "").map_err(|error| format!("{key}: {error}"))?;
    let version = head.lines().find_map(|line| line.strip_prefix("partage-version: ")).unwrap_or("none");
    match status == 200 && body == format!("{version} of {key}") {
        true => Ok(()),
        false => Err(format!("{key}: {status} {body:?} by {head:?}")),
    }
}

/// All keys of one request are of one version.
fn many_keys(node: &str) -> Result<(), String> {
    let keys: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let asked = json!({ "keys": keys }).to_string();
    let (status, _, body) = ask(node, "POST", "/names", &asked).map_err(|error| format!("many: {error}"))?;
    // The answer may come in chunks; each value names its key and version.
    let versions: Vec<&str> =
        ["v1", "v2", "v3"].into_iter().filter(|v| body.contains(&format!("{v} of "))).collect();
    let all = keys.iter().all(|key| versions.iter().any(|v| body.contains(&format!("\"{v} of {key}\""))));
    match status == 200 && versions.len() == 1 && all {
        true => Ok(()),
        false => Err(format!("many: {status}, {versions:?}, all {all}: {}", &body[..body.len().min(300)])),
    }
}

fn serves(address: &str, version: &str) -> (bool, String) {
    let told =
        ask(address, "GET", "/names/k1", "").map_or_else(|error| error.to_string(), |(_, _, body)| body);
    (told == format!("{version} of k1"), told)
}

#[test]
fn no_read_fails_while_versions_switch_and_nodes_are_drained_killed_and_join() {
    let dir = tempfile::tempdir().unwrap();
    let test_cluster = TestCluster::start(dir.path());
    test_cluster.write("v1");
    let (_a, at_a) = test_cluster.node("a");
    let (b, at_b) = test_cluster.node("b");
    let (_c, at_c) = test_cluster.node("c");
    eventually("the dataset is served through the router", || serves(&test_cluster.router, "v1"));
    eventually("all shards are placed", || (test_cluster.is_whole(), test_cluster.cli(&["status"]).1));
    for node in [&at_a, &at_b, &at_c] {
        eventually("every node gives all keys", || {
            (many_keys(node).is_ok(), format!("{:?}", many_keys(node)))
        });
    }
    // The keyspace is as the first version has made it, and the router needs nobody in between.
    let keyspace = test_cluster.json(&["keyspace", "show", "names"]);
    assert_eq!((&keyspace["kind"], &keyspace["replicas"]), (&json!("dataset"), &json!(2)), "{keyspace}");
    assert_eq!(keyspace["sharding"]["shards"], FILES, "{keyspace}");
    let (_, head, _) = ask(&test_cluster.router, "GET", "/names/k1", "").unwrap();
    assert!(!head.contains("x-sequins-proxied-to"), "{head}");
    let (code, told) = test_cluster.cli(&["explain", "names", "k1"]);
    assert!(code == 0 && told.contains("k1 of names is in shard"), "{told}");
    assert_eq!(ask(&test_cluster.router, "PUT", "/names/k1", "x").unwrap().0, 405);

    let readers = Readers::start(&test_cluster.router, &at_a);
    test_cluster.write("v2");
    for node in [&at_a, &at_b, &at_c] {
        eventually("clients of every node get v2", || serves(node, "v2"));
    }
    readers.so_far();

    assert_eq!(test_cluster.cli(&["node", "drain", "c"]).0, 0);
    eventually("c is empty", || {
        (test_cluster.held("c") == 0 && test_cluster.is_whole(), test_cluster.cli(&["status"]).1)
    });
    let here = |node: &str| ask(node, "GET", "/names", "").map(|(_, _, body)| body).unwrap_or_default();
    eventually("c has let go of what others have", || {
        let files =
            fs::read_dir(test_cluster.dir.join("c/datasets/names/v2")).map(Iterator::count).unwrap_or(0);
        (files <= 1, here(&at_c))
    });
    readers.so_far();
    assert_eq!(test_cluster.cli(&["node", "undrain", "c"]).0, 0);

    drop(b);
    eventually("what b had has two replicas again", || {
        let nodes = test_cluster.json(&["status"])["nodes"]["down"].clone();
        (nodes == 1 && test_cluster.is_whole() && test_cluster.held("c") > 0, test_cluster.cli(&["status"]).1)
    });
    readers.so_far();

    let (_d, at_d) = test_cluster.node("d");
    eventually("d has its share", || {
        (test_cluster.held("d") > 0 && test_cluster.is_whole(), test_cluster.cli(&["node", "list"]).1)
    });
    test_cluster.write("v3");
    for node in [&at_a, &at_c, &at_d] {
        eventually("clients of every node get v3", || serves(node, "v3"));
    }
    let reads = readers.stop();
    assert!(reads > 200, "only {reads} reads: nothing is proved");
}

/// The number after the name of a metric.
fn metric(node: &str, name: &str) -> f64 {
    let (_, _, page) = ask(node, "GET", "/-/metrics", "").unwrap();
    let line =
        page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_keyspace_follows_the_settings_of_its_dataset_and_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let test_cluster = TestCluster::start(dir.path());
    test_cluster.write("v1");
    let (_a, at_a) = test_cluster.node("a");
    let (_b, at_b) = test_cluster.node("b");
    let source = dir.path().join("source").to_str().unwrap().to_owned();
    let add = |replication: &str| {
        let mut added = partage(&["dataset", "add", "names", "--source", &source, "--replace"]);
        added.args(["--format", "csv", "--key", "key", "--value", "value", "--replication", replication]);
        assert!(added.output().unwrap().status.success());
    };
    let keyspace = || test_cluster.json(&["keyspace", "show", "names"]);
    let is = |replicas: u32, said: u32| {
        let now = keyspace();
        (now["replicas"] == replicas && now["dataset_replication"] == said, now.to_string())
    };
    eventually("the nodes have created it", || is(2, 2));
    add("1");
    eventually("it follows the settings", || is(1, 1));
    eventually("nodes say so, too", || {
        let (_, _, told) = ask(&at_a, "GET", "/names", "").unwrap();
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        (told["versions"]["v1"]["target_replication"] == 1, told.to_string())
    });
    assert_eq!(test_cluster.cli(&["keyspace", "update", "names", "--replicas", "2"]).0, 0);
    add("3");
    eventually("what was set by hand stays", || is(2, 3));

    // Shards are split while they serve.
    eventually("all shards are placed", || (test_cluster.is_whole(), test_cluster.cli(&["status"]).1));
    let readers = Readers::start(&test_cluster.router, &at_a);
    let shards = (2 * FILES).to_string();
    assert_eq!(test_cluster.cli(&["keyspace", "update", "names", "--shards", &shards]).0, 0);
    eventually("there are twice as many", || {
        let status = test_cluster.json(&["status"]);
        (status["shards"]["led"] == 2 * FILES && status["moves"] == 0, status.to_string())
    });
    readers.stop();

    // Nobody there: nothing is written.
    let removed = |coordinator: &str| {
        let remove =
            ["dataset", "remove", "names", "--source", &source, "--coordinator", coordinator, "--yes"];
        let ended = partage(&remove).output().unwrap();
        let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        (ended.status.code().unwrap(), said)
    };
    let (code, said) = removed("127.0.0.1:1");
    assert!(code == 3 && said.contains("nothing was written"), "{code}: {said}");
    assert!(!fs::read_to_string(dir.path().join("source/names/_dataset.toml")).unwrap().contains("served"));
    let (code, said) = removed(&test_cluster.coordinator);
    assert!(code == 0 && said.contains("keyspace names"), "{code}: {said}");
    let looks = || [&at_a, &at_b].map(|node| metric(node, "partage_dataset_refreshes_total"));
    let before = looks();
    // Nodes look on, and none creates it again.
    eventually("each node has looked twice more", || {
        let now = looks();
        (now[0] >= before[0] + 2.0 && now[1] >= before[1] + 2.0, format!("{now:?}"))
    });
    assert_eq!(test_cluster.cli(&["keyspace", "show", "names"]).0, 4);
    assert_eq!(test_cluster.json(&["status"])["shards"]["led"], 0);
    for node in [&at_a, &at_b] {
        assert_eq!(ask(node, "GET", "/names/k1", "").unwrap().0, 404);
    }
    add("2");
    eventually("it is served again", || serves(&test_cluster.router, "v1"));
    eventually("with a keyspace of its own", || is(2, 2));
}

/// How a node stands with what it needs, as it says itself.
fn standing(node: &str) -> Value {
    let (_, _, told) = ask(node, "GET", "/", "").unwrap_or_default();
    let told: Value = serde_json::from_str(&told).unwrap_or_default();
    told["nodes"][node].clone()
}

#[test]
fn without_its_coordinator_a_node_says_so_and_one_that_starts_goes_on_with_its_orders() {
    let dir = tempfile::tempdir().unwrap();
    let (config, data) = (TestCluster::configure(dir.path()), dir.path().join("coordinator"));
    let coordinate = |listen: &str| {
        let data = data.to_str().unwrap();
        let role = ["coordinator", "--listen", listen, "--config", &config, "--data-dir", data];
        Process::role(&role, "coordinator")
    };
    let (coordinating, coordinator) = coordinate("127.0.0.1:0");
    let (router, none) = (String::new(), Vec::new());
    let test_cluster = TestCluster { dir: dir.path().to_owned(), coordinator, router, processes: none };
    test_cluster.write("v1");
    let (_a, at_a) = test_cluster.node("a");
    let (b, at_b) = test_cluster.node("b");
    for node in [&at_a, &at_b] {
        eventually("the first version is served", || serves(node, "v1"));
    }
    eventually("all shards are placed", || (test_cluster.is_whole(), test_cluster.cli(&["status"]).1));
    let is = |node: &str, word: &'static str| {
        let told = standing(node);
        let connected = metric(node, "partage_dataset_coordinator_connected");
        let gossip = metric(node, "partage_dataset_coordination_connected");
        let is_so = told["coordinator"] == word && told["coordination"] == "connected";
        (is_so && gossip == 1.0 && (connected == 1.0) == (word == "connected"), told.to_string())
    };
    eventually("the coordinator is there", || is(&at_a, "connected"));
    for id in ["a", "b"] {
        let log = fs::read_to_string(test_cluster.log(id)).unwrap();
        assert!(log.contains("registered at") && !log.contains("WARN"), "all went well: {log}");
    }

    drop(coordinating);
    eventually("a says that it is away", || is(&at_a, "away"));
    let shown = partage(&["dataset", "status", "names", "--node", &at_a]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("the coordinator is away at {at_a}")), "{shown}");

    drop(b);
    test_cluster.write("v2");
    let (_b, at_b) = test_cluster.node_at("b", &at_b);
    for node in [&at_a, &at_b] {
        eventually("the next version is served", || serves(node, "v2"));
    }
    let files = fs::read_dir(dir.path().join("b/datasets/names/v2")).unwrap();
    let here = files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "partage"));
    assert_eq!(here.count(), FILES, "b has loaded what goes with the shards that it had");
    eventually("b sees the other one", || {
        let (_, _, told) = ask(&at_b, "GET", "/names", "").unwrap();
        let told: Value = serde_json::from_str(&told).unwrap_or_default();
        (told["nodes"][&at_a].is_object() && told["unreachable"] == json!([]), told.to_string())
    });

    let (_coordinating, _) = coordinate(&test_cluster.coordinator);
    for node in [&at_a, &at_b] {
        eventually("the coordinator is there again", || is(node, "connected"));
    }
    eventually("all is as ordered", || {
        (test_cluster.is_whole() && test_cluster.held("b") > 0, test_cluster.cli(&["status"]).1)
    });
}

/// Asked to stop, a node waits for those who take over: but not for a coordinator that is gone, or never was there.
#[test]
fn a_node_without_its_coordinator_ends_when_its_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut test_cluster = TestCluster::start(dir.path());
    test_cluster.write("v1");
    let (mut a, _) = test_cluster.node("a");
    eventually("all shards are placed", || {
        (test_cluster.held("a") == FILES as u64, test_cluster.cli(&["status"]).1)
    });
    test_cluster.processes.clear();
    let (code, took) = terminate(&mut a.0);
    let log = fs::read_to_string(test_cluster.log("a")).unwrap();
    assert!(code == Some(0) && took < PROMPT, "{code:?} after {took:?}: {log}");
    assert!(log.contains("warning: no coordinator answers, and the lease is over"), "{log}");

    // Port 1 of the loopback: no process listens there.
    test_cluster.coordinator = "127.0.0.1:1".to_owned();
    let (mut b, _) = test_cluster.node("b");
    let (code, took) = terminate(&mut b.0);
    let log = fs::read_to_string(test_cluster.log("b")).unwrap();
    assert!(code == Some(0) && took < PROMPT, "{code:?} after {took:?}: {log}");
}

#[test]
fn what_makes_no_sense_under_a_coordinator_is_refused() {
    let source = tempfile::tempdir().unwrap();
    let told = |more: &[&str]| {
        let source = source.path().to_str().unwrap();
        let start = ["dataset", "serve", "--source", source, "--coordinator", "127.0.0.1:9"];
        let ended = partage(&start).args(more).output().unwrap();
        assert_eq!(ended.status.code(), Some(2));
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    assert!(told(&[]).contains("give --id NAME"));
    let says = "--seat is for a node that computes";
    for flag in ["--seat", "--shard-id"] {
        assert!(told(&["--id", "a", flag, "3"]).contains(says), "{flag}");
    }
    for key in ["seat", "shard_id"] {
        let file = source.path().join(format!("{key}.toml"));
        std::fs::write(&file, format!("{key} = 3\n")).unwrap();
        assert!(told(&["--id", "a", "--config", file.to_str().unwrap()]).contains(says), "{key}");
    }
    assert!(told(&["--id", "a b"]).contains("a b"));
}
