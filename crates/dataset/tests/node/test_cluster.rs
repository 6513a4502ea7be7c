//! A cluster, its source, and a reader at every node.

use super::service::Service;
use partage_dataset::node::{Node, NodeOptions};
use partage_dataset::serve;
use partage_dataset::source::Source;
use partage_service::dataset::assign::Replication;
use partage_service::dataset::{DatasetName, Seat, VersionName};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Files of a version, and so partitions.
pub const FILES: u32 = 5;
/// Keys of a version.
pub const KEYS: u32 = 40;
/// How long anything is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a node answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub version: String,
    pub body: String,
}

pub struct TestCluster {
    pub service: Arc<Service>,
    folder: TempDir,
    pub nodes: BTreeMap<u32, Node>,
    readers: BTreeMap<u32, Reader>,
}

/// Reads at one node until it is stopped.
struct Reader {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<()>,
    /// The versions that it saw, one after the other.
    seen: Arc<Mutex<Vec<String>>>,
}

pub fn dataset() -> DatasetName {
    DatasetName::new("names").unwrap()
}

pub fn version(name: &str) -> VersionName {
    VersionName::new(name).unwrap()
}

impl TestCluster {
    pub fn new() -> TestCluster {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source/names");
        fs::create_dir_all(&source).unwrap();
        let settings = "format = 'tsv'\nheader = false\nkey = '1'\nvalues = ['2']\n";
        fs::write(source.join("_dataset.toml"), settings).unwrap();
        TestCluster { service: Service::new(), folder, nodes: BTreeMap::new(), readers: BTreeMap::new() }
    }

    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    pub fn data_dir(&self, node: u32) -> PathBuf {
        self.folder.path().join(format!("node-{node}"))
    }

    /// A version of which every value says which key and version it is of; nobody sees it half written.
    pub fn write(&self, version: &str) {
        self.write_values(version, version);
    }

    /// A version of which every value begins so.
    pub fn write_values(&self, version: &str, value: &str) {
        let names = self.source().join("names");
        let folder = names.join("_writing");
        fs::create_dir_all(&folder).unwrap();
        for file in 0..FILES {
            let keys = (0..KEYS).filter(|key| key % FILES == file);
            let lines: String = keys.map(|key| format!("key-{key}\t{value} {key}\n")).collect();
            fs::write(folder.join(format!("part-{file:05}.tsv")), lines).unwrap();
        }
        fs::rename(folder, names.join(version)).unwrap();
    }

    pub fn options(&self, node: u32) -> NodeOptions {
        let cluster = DatasetName::new("test").unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut options = NodeOptions::new(cluster, listen, self.data_dir(node));
        options.seat = Some(Seat(node));
        options.stable = Duration::from_millis(300);
        options.keep = Duration::from_secs(3);
        options.resume = Duration::from_secs(1);
        options.refresh = Duration::from_millis(500);
        options.session_ttl = Duration::from_secs(2);
        options.load_at_once = 1;
        options.load_memory_bytes = 32 << 20;
        // A peer of this very process may wait for a core of two.
        let fetch = partage_service::dataset::FetchSettings { stage_ms: 1_000, total_ms: 20_000 };
        options.serve = serve::Settings { threads: 1, fetch, ..serve::Settings::default() };
        options
    }

    pub async fn start(&mut self, node: u32) {
        let options = self.options(node);
        self.start_with(node, options).await;
    }

    pub async fn start_with(&mut self, node: u32, options: NodeOptions) {
        let source = Source::open(&self.source().display().to_string(), &BTreeMap::new()).unwrap();
        self.start_from(node, options, source).await;
    }

    pub async fn start_from(&mut self, node: u32, options: NodeOptions, source: Source) {
        self.start_silent(node, options, source).await;
        self.readers.insert(node, Reader::start(node, self.nodes[&node].address()));
    }

    /// A node that nobody reads from all the time.
    pub async fn start_silent(&mut self, node: u32, options: NodeOptions, source: Source) {
        let started = Node::start(options, self.service.clone(), source).await.unwrap();
        self.nodes.insert(node, started);
    }

    pub async fn start_many(&mut self, nodes: u32, min: u32) {
        for node in 1..=nodes {
            let mut options = self.options(node);
            options.spread.replication = Replication { wanted: 2, min, max: None };
            self.start_with(node, options).await;
        }
    }

    /// The node is stopped; what its reader saw.
    pub async fn stop(&mut self, node: u32) -> Vec<String> {
        let seen = match self.readers.remove(&node) {
            Some(reader) => reader.stop().await,
            None => Vec::new(),
        };
        self.nodes.remove(&node).unwrap().stop().await;
        seen
    }

    /// All of them; what each reader saw.
    pub async fn end(mut self) -> Vec<Vec<String>> {
        let mut seen = Vec::new();
        for reader in std::mem::take(&mut self.readers).into_values() {
            seen.push(reader.stop().await);
        }
        for node in std::mem::take(&mut self.nodes).into_values() {
            node.stop().await;
        }
        seen
    }

    pub async fn get(&self, node: u32, path: &str) -> Answer {
        get(self.nodes[&node].address(), path).await.unwrap()
    }

    /// The head of an answer, as it came.
    pub async fn head(&self, node: u32, path: &str) -> String {
        ask(self.nodes[&node].address(), path).await.unwrap().0
    }

    /// What `GET <path>` tells as JSON.
    pub async fn json(&self, node: u32, path: &str) -> Value {
        serde_json::from_str(&self.get(node, path).await.body).unwrap()
    }

    /// How a version stands at a node, as its page tells.
    pub async fn told(&self, node: u32, dataset: &str, version: &str) -> Value {
        let me = self.nodes[&node].address().to_string();
        self.json(node, &format!("/{dataset}")).await["versions"][version]["nodes"][me].take()
    }

    /// Waits until a version is an error at a node, and returns what its page says of it.
    pub async fn is_an_error(&self, node: u32, dataset: &str, version: &str) -> String {
        let mut error = String::new();
        until(&format!("{dataset} {version} is an error"), async || {
            let told = self.told(node, dataset, version).await;
            error = told["error"].as_str().unwrap_or_default().to_owned();
            told["state"] == "ERROR"
        })
        .await;
        error
    }

    /// A number of the metrics, by its name and labels as they are written.
    pub async fn metric(&self, node: u32, name: &str) -> f64 {
        let text = self.get(node, "/-/metrics").await.body;
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|end| end.starts_with(' ')));
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until every node gives its clients that version, and every key of it.
    pub async fn all_serve(&self, expected: &str) {
        for node in self.nodes.keys() {
            self.serves(*node, expected).await;
        }
    }

    pub async fn serves(&self, node: u32, expected: &str) {
        let address = self.nodes[&node].address();
        until(&format!("node {node} serves {expected}"), async || {
            for key in 0..KEYS {
                let body = format!("{expected} {key}");
                let answer = get(address, &format!("/names/key-{key}")).await;
                if answer.is_none_or(|answer| (answer.status, &answer.body) != (200, &body)) {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Waits until every node knows of so many copies of every partition.
    pub async fn all_know_copies(&self, name: &str, expected: usize) {
        for (number, node) in &self.nodes {
            until(&format!("node {number} knows {expected} copies of all of {name}"), async || {
                let dataset = node.catalogue().dataset("names");
                let Some(version) = dataset.and_then(|dataset| dataset.version(name)) else { return false };
                let places = version.places();
                places.iter().all(|place| usize::from(place.here.is_some()) + place.peers.len() >= expected)
            })
            .await;
        }
    }

    /// The partitions of a version that are here, as the catalogue shows them.
    pub fn here(&self, node: u32, name: &str) -> Vec<u32> {
        let dataset = self.nodes[&node].catalogue().dataset("names");
        let Some(version) = dataset.and_then(|dataset| dataset.version(name)) else { return Vec::new() };
        let places = version.places();
        (0u32..).zip(places.iter()).filter(|(_, place)| place.here.is_some()).map(|(p, _)| p).collect()
    }

    /// Whether the local store of a node has any file of a version.
    pub fn is_stored(&self, node: u32, name: &str) -> bool {
        Path::exists(&self.data_dir(node).join("datasets/names").join(name))
    }
}

/// Waits until it is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("not so after half a minute: {what}"));
}

/// One request on a connection of its own; nothing if there is no whole answer.
pub async fn get(address: SocketAddr, path: &str) -> Option<Answer> {
    let (head, body) = ask(address, path).await?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let header = head.lines().find_map(|line| line.strip_prefix("partage-version: "));
    Some(Answer { status, version: header.unwrap_or_default().to_owned(), body })
}

/// Head and body of the answer.
async fn ask(address: SocketAddr, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.ok()?;
    let text = String::from_utf8(text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((format!("{head}\r\n"), body.to_owned()))
}

impl Reader {
    fn start(node: u32, address: SocketAddr) -> Reader {
        let (is_over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let task = tokio::spawn(read(node, address, is_over.clone(), seen.clone()));
        Reader { is_over, task, seen }
    }

    async fn stop(self) -> Vec<String> {
        self.is_over.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
        self.seen.lock().unwrap().clone()
    }
}

/// D5: from the first answer on every read succeeds, and is of the version that it says.
async fn read(node: u32, address: SocketAddr, is_over: Arc<AtomicBool>, seen: Arc<Mutex<Vec<String>>>) {
    for key in (0..KEYS).cycle() {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let mut answer = get(address, &format!("/names/key-{key}")).await;
        // Another test of this process cuts a store file off: what is read in that moment is to be asked again.
        if answer.as_ref().is_some_and(|answer| answer.status == 503 && answer.body.contains("store_lost")) {
            answer = get(address, &format!("/names/key-{key}")).await;
        }
        let is_serving = !seen.lock().unwrap().is_empty();
        match answer {
            Some(Answer { status: 200, version, body }) => {
                assert_eq!(body, format!("{version} {key}"), "a mixed read at node {node}");
                let mut seen = seen.lock().unwrap();
                if seen.last() != Some(&version) {
                    seen.push(version);
                }
            }
            answer => assert!(!is_serving, "a failed read at node {node} of key-{key}: {answer:?}"),
        }
        sleep(Duration::from_millis(2)).await;
    }
}
