//! A node with one replica behind the RESP listener: what is written is there after a restart, and errors keep their meaning.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests wait for servers")]

use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::{Bounds, PartitionKey};
use partage_core::node::exchange::{Order, ReplicaKey};
use partage_journal::RealDisk;
use partage_log::LogSettings;
use partage_resp::{Listener, OneTable, Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table};
use partage_service::table::replication::{self, Consistency, Failed};
use partage_service::table::rows::{Outcome, Row, Write};
use partage_table::{
    Identity, Node, NodeSettings, Notice, NoticeSink, Packet, ReadError, ReplicaSettings, Transport,
    WriteError,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The transport and the owner of a node that is alone: nothing is sent, and notices are dropped.
struct Alone;

impl Transport for Alone {
    fn send(&self, _: &NodeId, _: &ReplicaKey, _: PlacementId, _: Packet) {}
}

impl NoticeSink for Alone {
    fn notify(&self, _: Notice) {}
}

fn replica() -> ReplicaKey {
    let keyspace = KeyspaceName::new("orders").unwrap();
    ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(1) }
}

/// The table of one replica.
struct OneReplica(Node);

impl OneReplica {
    async fn open(folder: &Path, start: u64) -> OneReplica {
        let log = LogSettings {
            segment_bytes: 16 << 20,
            entry_bytes: 2 << 20,
            try_direct: false,
            prepare_ahead: false,
            ..LogSettings::default()
        };
        let settings = NodeSettings { log, ..NodeSettings::default() };
        let node = NodeId::new("n1").unwrap();
        let identity = Identity { node, incarnation: Incarnation(start), folder: folder.to_owned() };
        let opened = tokio::task::spawn_blocking(move || {
            Node::open(settings, identity, Arc::new(RealDisk), Arc::new(Alone), Arc::new(Alone)).unwrap()
        });
        let (node, _) = opened.await.unwrap();
        let replication =
            replication::Settings { min_in_sync: 1, promise_ms: 100, ..replication::Settings::default() };
        let of_replica = ReplicaSettings {
            replication,
            partition_key: PartitionKey::HashTag,
            ..ReplicaSettings::default()
        };
        node.open_replica(&replica(), of_replica, start == 1).await.unwrap();
        node.order(&Order {
            replica: replica(),
            bounds: Bounds::Keys(KeyRange::all()),
            role: Role::Leader,
            state: ReplicaState::Live,
            epoch: Epoch(start),
            configuration: Configuration(start),
            in_sync: true,
            granted: true,
            peers: Vec::new(),
            had_data: start > 1,
            drop: None,
            hand_over_to: None,
        });
        OneReplica(node)
    }
}

/// What the failures of replication are to a client, where there is no other replica to ask.
fn refused(failed: &Failed) -> RequestError {
    let why = failed.to_string();
    match failed {
        Failed::TooFewInSync { .. } => RequestError::TooFewInSync(why),
        Failed::Full(_) => RequestError::Busy(why),
        Failed::Unknown(_) => RequestError::Unknown(why),
        _ => RequestError::NotServed(why),
    }
}

#[async_trait::async_trait]
impl Table for OneReplica {
    fn name(&self) -> &str {
        "orders"
    }

    fn partition_key(&self) -> PartitionKey {
        PartitionKey::HashTag
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        self.0.write(&replica(), &write).await.map_err(|error| match &error {
            WriteError::Invalid(_) | WriteError::TooLarge { .. } => RequestError::Invalid(error.to_string()),
            WriteError::NotOpen | WriteError::DiskIsStalled | WriteError::Stopped(_) => {
                RequestError::NotServed(error.to_string())
            }
            WriteError::Busy => RequestError::Busy(error.to_string()),
            WriteError::DiskIsFull => RequestError::DiskIsFull(error.to_string()),
            WriteError::Refused(failed) => refused(failed),
            WriteError::Unknown(why) => RequestError::Unknown(why.clone()),
        })
    }

    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError> {
        let read = self.0.read(&replica(), key, consistency, 0).await;
        read.map(|answer| answer.row).map_err(|error| match &error {
            ReadError::NotOpen | ReadError::Stopped(_) => RequestError::NotServed(error.to_string()),
            ReadError::Busy => RequestError::Busy(error.to_string()),
            ReadError::Refused(failed) => refused(failed),
        })
    }

    async fn scan(&self, _: ScanFrom, _: Consistency) -> Result<Page, RequestError> {
        Err(RequestError::Invalid("the node scans nothing yet".to_owned()))
    }

    async fn in_sync(&self, _: Option<&Key>) -> Result<usize, RequestError> {
        let status = self.0.status(&replica()).await;
        status.map(|_| 1).ok_or_else(|| RequestError::NotServed("the replica is not open".to_owned()))
    }

    fn has_slots(&self) -> bool {
        false
    }

    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError> {
        Ok(Vec::new())
    }

    fn own_node(&self) -> SlotNode {
        SlotNode { name: "n1".to_owned(), host: "127.0.0.1".to_owned(), port: 0 }
    }
}

/// A listener before that table.
async fn listen(table: Arc<OneReplica>) -> (SocketAddr, watch::Sender<bool>, tokio::task::JoinHandle<()>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    let listener = Listener::new(Arc::new(OneTable(table)), partage_door::Settings::default());
    let (stop, stopped) = watch::channel(false);
    (address, stop, tokio::spawn(listener.listen(socket, stopped)))
}

/// What lines of inline commands are answered, after which the connection is closed.
async fn said(address: SocketAddr, lines: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(lines.replace('\n', "\r\n").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    stream.read_to_string(&mut heard).await.unwrap();
    heard.replace("\r\n", "\n")
}

async fn begins(address: SocketAddr) {
    for _ in 0..6_000 {
        if said(address, "SET began yes\nGET began\n").await == "+OK\n$3\nyes\n" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the replica does not begin to lead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_clients_write_is_on_disk() {
    let folder = TempDir::new().unwrap();
    let table = Arc::new(OneReplica::open(folder.path(), 1).await);
    let (address, stop, listening) = listen(table.clone()).await;
    begins(address).await;
    assert_eq!(
        said(address, "SET a 1\nINCR a\nAPPEND a 0\nGET a\nINCR a\n").await,
        "+OK\n:2\n:2\n$2\n20\n:21\n"
    );
    let lines = "MULTI\nSET {t}a 1\nINCR {t}b\nGET {t}a\nEXEC\nMGET {t}a {t}b {t}c\n";
    let expected = "+OK\n+QUEUED\n+QUEUED\n+QUEUED\n*3\n+OK\n:1\n$1\n1\n*3\n$1\n1\n$1\n1\n$-1\n";
    assert_eq!(said(address, lines).await, expected);
    assert_eq!(
        said(address, "SET {t}word x\nMULTI\nINCR {t}word\nINCR {t}n\nSET {t}n 5 NX\nEXEC\n")
            .await
            .lines()
            .last(),
        Some("$-1")
    );
    assert_eq!(
        said(address, "WATCH a\nSET a 5\nMULTI\nSET a 6\nEXEC\nGET a\n").await,
        "+OK\n+OK\n+OK\n+QUEUED\n*-1\n$1\n5\n"
    );
    assert_eq!(
        said(address, "EXPIRE a 100\nEXPIRE a 50 GT\nEXPIRE a 200 GT\nPERSIST a\nTTL a\n").await,
        ":1\n:0\n:1\n:1\n:-1\n"
    );
    // Nothing is written here after a row has ended, and yet it is gone.
    assert_eq!(said(address, "SET soon x PX 30\nGET soon\n").await.lines().last(), Some("x"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(said(address, "GET soon\nEXISTS soon\nWAIT 0 0\n").await, "$-1\n:0\n:0\n");
    let many: String = (0..2_000).map(|n| format!("SET many:{n} {n}\n")).collect();
    assert_eq!(said(address, &many).await, "+OK\n".repeat(2_000));

    stop.send_replace(true);
    listening.await.unwrap();
    // A node waits for its threads when it is dropped.
    tokio::task::spawn_blocking(move || drop(Arc::into_inner(table).expect("no one has it"))).await.unwrap();
    let table = Arc::new(OneReplica::open(folder.path(), 2).await);
    let (address, stop, listening) = listen(table.clone()).await;
    begins(address).await;
    assert_eq!(
        said(address, "GET a\nGET {t}b\nGET many:1999\nGET soon\n").await,
        "$1\n5\n$1\n1\n$4\n1999\n$-1\n"
    );

    // The table goes away under the listener.
    table.0.close_replica(&replica()).await.unwrap();
    let refused = said(address, "SET a 7\nGET a\n").await;
    assert!(refused.lines().all(|line| line.starts_with("-CLUSTERDOWN Hash slot not served")), "{refused}");
    stop.send_replace(true);
    listening.await.unwrap();
    tokio::task::spawn_blocking(move || drop(table)).await.unwrap();
}
