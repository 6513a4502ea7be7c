//! A client of Sequins at a dataset node: it asks what its own tests and its manual ask, and reads the answers as Go does,
//! with the types of Sequins' status pages. What differs is listed in the book, in `dataset-http.md`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use backends::until;
use chaos::dataset::source::{self, keys, value};
use chaos::dataset::{Ground, Nodes};
use partage_coordination::Backend;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The page at `/`.
#[derive(Debug, Deserialize)]
struct Status {
    dbs: BTreeMap<String, DbStatus>,
    shard_id: String,
}

/// The page of a database.
#[derive(Debug, Deserialize)]
struct DbStatus {
    versions: BTreeMap<String, VersionStatus>,
}

#[derive(Debug, Deserialize)]
struct VersionStatus {
    path: String,
    num_partitions: usize,
    target_replication: usize,
    replication_histogram: BTreeMap<usize, usize>,
    average_replication: f32,
    missing_partitions: usize,
    underreplicated_partitions: usize,
    overreplicated_partitions: usize,
    nodes: BTreeMap<String, NodeVersionStatus>,
}

/// A version at a node.
#[derive(Debug, Deserialize)]
struct NodeVersionStatus {
    name: String,
    created_at: String,
    #[serde(default)]
    active_at: String,
    current: bool,
    state: String,
    partitions: Vec<usize>,
    shard_id: String,
}

/// An answer, as it came over the line.
#[derive(Debug)]
struct Answer {
    status: u16,
    /// By their names in small letters.
    headers: BTreeMap<String, String>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    fn json<T: DeserializeOwned>(&self) -> T {
        assert_eq!((self.status, self.header("Content-Type")), (200, Some("application/json")));
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// What curl sends, with one header more if it is told so.
async fn ask(address: &str, path: &str, header: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: curl/7.88.1\r\n{header}Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap().parse().unwrap();
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Answer { status, headers, body: body.to_owned() }
}

async fn get(address: &str, path: &str) -> Answer {
    ask(address, path, "").await
}

async fn get_json<T: DeserializeOwned>(address: &str, path: &str) -> T {
    ask(address, path, "Accept: application/json\r\n").await.json()
}

/// Two nodes, of which each has about half of the partitions, and a dataset with names as in Sequins' own tests.
async fn two_nodes() -> Nodes {
    let settings = [("replication", "1"), ("dealing", "'ring_index'"), ("proxy_ms", "2000")];
    let mut nodes = Nodes::new(Ground::of(Backend::Gossip).await, 0, &[]);
    for seat in ["1", "2"] {
        let node = nodes.add(&[settings[0], settings[1], settings[2], ("shard_id", seat)]);
        let babies = nodes.source(node).folder().join("baby-names/1");
        std::fs::create_dir_all(&babies).unwrap();
        std::fs::write(babies.join("part-00000"), BABIES).unwrap();
        std::fs::write(
            babies.parent().unwrap().join("_dataset.toml"),
            "format = 'tsv'\nheader = false\nkey = '1'\nvalues = ['2']\n",
        )
        .unwrap();
    }
    nodes.start_with("v0").await;
    nodes.are_acquainted("v0").await;
    nodes.upgrade("v1").await;
    nodes.hold("v1", &[(1, [0, 2, 4].into()), (2, [1, 3].into())]).await;
    for node in nodes.numbers() {
        until("the names are there", async || match get(nodes.address(node), "/baby-names/1880/boy").await {
            answer if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
    nodes
}

const BABIES: &str = "1880/boy\tJohn\n1880/girl\tMary\n1881/boy\tJohn\nwith blank\tà\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s17_values_headers_and_what_is_not_there() {
    let nodes = two_nodes().await;
    let peers = [nodes.address(2), nodes.address(1)];
    let mut proxied = [0, 0];
    for (place, node) in [(0, 1), (1, 2)] {
        let address = nodes.address(node);
        for key in keys() {
            let answer = get(address, &format!("/{}/{key}", source::DATASET)).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, value("v1", &key).as_str()));
            assert_eq!(answer.header("X-Sequins-Version"), Some("v1"));
            assert_eq!(answer.header("Content-Length"), Some(answer.body.len().to_string().as_str()));
            assert!(answer.header("Last-Modified").unwrap().ends_with(" GMT"), "{answer:?}");
            if let Some(peer) = answer.header("X-Sequins-Proxied-To") {
                assert_eq!(peer, peers[place]);
                proxied[place] += 1;
            }
        }
        for (key, expected) in [("1880/girl", "Mary"), ("with%20blank", "à")] {
            let answer = get(address, &format!("/baby-names/{key}")).await;
            assert_eq!((answer.status, answer.body.as_str()), (200, expected));
        }
        let absent = get(address, "/baby-names/foo").await;
        assert_eq!((absent.status, absent.body.as_str()), (404, ""));
        assert_eq!(absent.header("X-Sequins-Version"), Some("1"));
        let other = get(address, "/otherdb/foo").await;
        assert_eq!((other.status, other.header("X-Sequins-Version")), (404, None));
    }
    // Node 1 has three partitions of five, and node 2 the two others: what the one asks for, the other has.
    assert_eq!(proxied.iter().sum::<usize>(), keys().count(), "{proxied:?}");
    assert!(proxied[0] > 0 && proxied[1] > proxied[0], "{proxied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s17_status_and_health() {
    let nodes = two_nodes().await;
    let (one, two) = (nodes.address(1), nodes.address(2));
    let status: Status = get_json(one, "/").await;
    assert_eq!(status.shard_id, "1");
    assert_eq!(status.dbs.keys().collect::<Vec<_>>(), ["baby-names", source::DATASET]);
    let alone: DbStatus = get_json(one, &format!("/{}/", source::DATASET)).await;
    for db in [&status.dbs[source::DATASET], &alone] {
        let version = &db.versions["v1"];
        assert!(version.path.ends_with(&format!("/{}/v1", source::DATASET)), "{}", version.path);
        assert_eq!((version.num_partitions, version.target_replication), (5, 1));
        assert_eq!(version.replication_histogram, BTreeMap::from([(1, 5)]));
        assert!((version.average_replication - 1.0).abs() < 1e-6);
        let counts = [
            version.missing_partitions,
            version.underreplicated_partitions,
            version.overreplicated_partitions,
        ];
        assert_eq!(counts, [0, 0, 0]);
        assert_eq!(
            version.nodes.keys().collect::<BTreeSet<_>>(),
            BTreeSet::from([&one.to_owned(), &two.to_owned()])
        );
        for (name, node) in &version.nodes {
            assert!(node.current && node.name == *name && node.state == "ACTIVE", "{node:?}");
            assert!(node.created_at.ends_with('Z') && node.active_at.ends_with('Z'), "{node:?}");
        }
        let seats: Vec<&str> = version.nodes.values().map(|node| node.shard_id.as_str()).collect();
        let held: Vec<&[usize]> = version.nodes.values().map(|node| node.partitions.as_slice()).collect();
        assert_eq!((seats, held), (vec!["1", "2"], vec![&[0, 2, 4][..], &[1, 3][..]]));
        assert!(!db.versions["v0"].nodes[one].current, "{:?}", db.versions["v0"]);
    }
    // What peers of one another ask: of this node alone.
    let own: Status = get_json(one, "/?proxy=status").await;
    assert_eq!(own.dbs[source::DATASET].versions["v1"].nodes.keys().collect::<Vec<_>>(), [one]);

    let health = get(two, "/healthz").await;
    assert_eq!(health.header("X-Sequins-Shard-ID"), Some("2"));
    let all: BTreeMap<String, BTreeMap<String, NodeVersionStatus>> = health.json();
    let mine = &all[source::DATASET]["v1"];
    assert_eq!(
        (mine.name.as_str(), mine.state.as_str(), mine.partitions.as_slice()),
        (two, "ACTIVE", &[1, 3][..])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s16_a_peer_asks_and_peers_are_away() {
    let mut nodes = two_nodes().await;
    let (one, two) = (nodes.address(1).to_owned(), nodes.address(2).to_owned());
    let mut there = None;
    for key in keys() {
        let path = format!("/{}/{key}", source::DATASET);
        if get(&one, &path).await.header("X-Sequins-Proxied-To").is_some() {
            there = Some(path);
            break;
        }
    }
    let path = there.expect("node 2 has some partition that node 1 has not");

    let asked = get(&two, &format!("{path}?proxy=v0")).await;
    assert_eq!((asked.status, asked.header("X-Sequins-Version")), (200, Some("v0")));
    let asked = get(&two, &format!("{path}?proxy=v1")).await;
    assert_eq!((asked.status, asked.header("X-Sequins-Version")), (200, Some("v1")));
    assert_eq!(asked.header("X-Sequins-Proxied-To"), None);
    let wrong = get(&one, &format!("{path}?proxy=v1")).await;
    assert!(
        wrong.status != 200 && wrong.status != 404,
        "it is not sent on, and not taken for absent: {wrong:?}"
    );

    nodes.process(2).pause();
    let late = get(&one, &path).await;
    assert_eq!((late.status, late.header("X-Sequins-Version")), (504, None), "{late:?}");
    nodes.process(2).wake();
    nodes.kill(2).await;
    let away = get(&one, &path).await;
    assert_eq!((away.status, away.header("X-Sequins-Version")), (502, None), "{away:?}");
}

/// Nothing is there, and that is no reason to fail; a load balancer of Sequins' waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s17_a_node_with_nothing() {
    let mut nodes = Nodes::new(Ground::of(Backend::Gossip).await, 1, &[]);
    nodes.start(1);
    let address = nodes.address(1).to_owned();
    until("the node has found that it is alone", async || {
        TcpStream::connect(&address).await.map_err(|error| error.to_string())?;
        match get(&address, "/baby-names/foo").await {
            answer if answer.status == 404 => Ok(()),
            answer if answer.status == 503 => Err(answer.body),
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(get(&address, "/healthz").await.status, 404);
    assert_eq!(get(&address, "/-/health").await.status, 200);
    let status: Status = get_json(&address, "/").await;
    assert!(status.dbs.values().all(|db| db.versions.is_empty()), "{status:?}");
}
