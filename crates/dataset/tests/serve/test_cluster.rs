//! Nodes in one process, and a client that shows every byte.

use partage_dataset::catalogue::{Catalogue, Dataset, NodeInfo, Options, State, Version};
use partage_dataset::serve::{Server, Settings};
use partage_engine::readonly::{self, Builder, Layout, Reader};
use partage_service::dataset::fetch::FetchSettings;
use partage_service::dataset::name::{DatasetName, VersionName};
use partage_service::dataset::partition::Partitioner;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// Long enough that no test depends on it, short enough to wait for.
pub const SETTINGS: FetchSettings = FetchSettings { stage_ms: 30, total_ms: 20_000 };

pub struct TestCluster {
    pub folder: TempDir,
    pub nodes: Vec<Node>,
}

pub struct Node {
    pub catalogue: Arc<Catalogue>,
    pub server: Server,
}

impl Node {
    pub fn at(&self) -> SocketAddr {
        self.server.address()
    }
}

impl TestCluster {
    pub fn new(nodes: usize) -> TestCluster {
        TestCluster::with(nodes, &Settings { threads: 2, fetch: SETTINGS, ..Settings::default() })
    }

    pub fn with(nodes: usize, settings: &Settings) -> TestCluster {
        let nodes = (0..nodes)
            .map(|number| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap().to_string().into();
                let me = NodeInfo { shard_id: number.to_string(), address };
                let catalogue = Arc::new(Catalogue::new(me));
                let server = Server::start(listener, catalogue.clone(), settings.clone()).unwrap();
                Node { catalogue, server }
            })
            .collect();
        TestCluster { folder: tempfile::tempdir().unwrap(), nodes }
    }

    pub fn address(&self, node: usize) -> Arc<str> {
        self.nodes[node].at().to_string().into()
    }

    /// A version whose partitions are on the nodes that `holders` tells for each, and known to be there by all.
    pub fn prepare(
        &self,
        name: &str,
        version: &str,
        layout: Layout,
        entries: &Entries,
        holders: &[&[usize]],
    ) {
        let count = holders.len() as u32;
        let readers: Vec<Arc<Reader>> = (0..count)
            .map(|partition| self.build(name, version, layout, entries, partition, count))
            .collect();
        for (number, node) in self.nodes.iter().enumerate() {
            let dataset = dataset(node, name);
            let new = Version::new(
                VersionName::new(version).unwrap(),
                "test",
                count,
                Partitioner::JavaBytes,
                784_111_777,
            );
            let new = dataset.prepare(new.unwrap()).unwrap();
            for (partition, holders) in holders.iter().enumerate() {
                let others = holders.iter().filter(|holder| **holder != number);
                new.found_at(partition as u32, others.map(|holder| self.address(*holder)).collect());
                if holders.contains(&number) {
                    new.hold(partition as u32, readers[partition].clone());
                }
            }
        }
    }

    fn build(
        &self,
        name: &str,
        version: &str,
        layout: Layout,
        entries: &Entries,
        partition: u32,
        count: u32,
    ) -> Arc<Reader> {
        let path = self.folder.path().join(format!("{name}-{version}-{partition}"));
        let mut builder =
            Builder::new(&path, readonly::Options { layout, ..readonly::Options::default() }).unwrap();
        for (key, value) in entries {
            if Partitioner::JavaBytes.partition(key, count) == partition {
                builder.add(key, value).unwrap();
            }
        }
        builder.finish().unwrap();
        Arc::new(Reader::open(&path).unwrap())
    }

    pub fn upgrade(&self, name: &str, version: &str) {
        for node in &self.nodes {
            let dataset = dataset(node, name);
            dataset.upgrade(version).unwrap();
            dataset.version(version).unwrap().set_state(State::Active);
        }
    }

    /// Prepared and upgraded to.
    pub fn serve(&self, name: &str, version: &str, entries: &Entries, holders: &[&[usize]]) {
        self.prepare(name, version, Layout::Hashed, entries, holders);
        self.upgrade(name, version);
    }

    pub fn get(&self, node: usize, path: &str) -> Answer {
        self.ask(node, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    pub fn ask(&self, node: usize, request: &str) -> Answer {
        ask(self.nodes[node].at(), request.as_bytes())
    }

    pub fn post(&self, node: usize, path: &str, kind: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        ask(self.nodes[node].at(), &[head.as_bytes(), body].concat())
    }
}

pub fn dataset(node: &Node, name: &str) -> Arc<Dataset> {
    node.catalogue.add(Dataset::new(DatasetName::new(name).unwrap(), Options::default()).unwrap())
}

pub fn entries(count: usize, value: &str) -> Entries {
    (0..count)
        .map(|number| (format!("key{number:05}").into_bytes(), format!("{value}{number}").into_bytes()))
        .collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// In lower case, without `date`.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

pub fn ask(at: SocketAddr, request: &[u8]) -> Answer {
    let mut line = Line::new(at);
    line.send(request);
    line.answer(request.starts_with(b"HEAD "))
}

/// A connection that keeps what it has read beyond an answer.
pub struct Line {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Line {
    pub fn new(at: SocketAddr) -> Line {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Line { stream, input: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Whether the server has closed it.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }

    /// Whether the server closes it, whatever it says before.
    pub fn ends(&mut self) -> bool {
        let read = std::io::copy(&mut self.stream, &mut std::io::sink());
        !read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    fn more(&mut self) {
        let mut part = [0; 65_536];
        let read = self.stream.read(&mut part).unwrap();
        assert!(read > 0, "closed within an answer: {:?}", String::from_utf8_lossy(&self.input));
        self.input.extend_from_slice(&part[..read]);
    }

    pub fn answer(&mut self, is_head: bool) -> Answer {
        let end = loop {
            match self.input.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.more(),
            }
        };
        let head = String::from_utf8(self.input.drain(..end).collect()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .filter(|(name, _)| name != "date")
            .collect();
        let length = headers.get("content-length").map(|length| length.parse::<usize>().unwrap());
        let body = match length {
            _ if is_head || status == 304 => Vec::new(),
            Some(length) => self.take(length),
            None if headers.contains_key("transfer-encoding") => self.chunks(),
            None => Vec::new(),
        };
        Answer { status, headers, body }
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        while self.input.len() < length {
            self.more();
        }
        self.input.drain(..length).collect()
    }

    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                match self.input.windows(2).position(|two| two == b"\r\n") {
                    Some(at) => break at,
                    None => self.more(),
                }
            };
            let size = String::from_utf8(self.take(end + 2)).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            body.extend(self.take(size));
            self.take(2);
            if size == 0 {
                return body;
            }
        }
    }
}

/// Keys as a question in bytes.
pub fn question(keys: &[Vec<u8>]) -> Vec<u8> {
    keys.iter().flat_map(|key| [&(key.len() as u32).to_le_bytes()[..], key].concat()).collect()
}

impl Line {
    /// The status of a request that is refused before it was all sent.
    pub fn refused(at: SocketAddr, request: &[u8]) -> u16 {
        let mut line = Line::new(at);
        let mut writer = line.stream.try_clone().unwrap();
        let request = request.to_vec();
        let sending = std::thread::spawn(move || {
            // The server may close before all is sent.
            let _ = writer.write_all(&request);
        });
        let status = line.answer(false).status;
        drop(line);
        sending.join().unwrap();
        status
    }
}
