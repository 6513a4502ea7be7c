//! What a write to a table of three replicas costs, beside its floor: three logs that take the same entries, in groups as large as
//! there are clients, and nothing else.
//!
//! `cargo run --release -p partage-table --example table_rate -- DIR [--network]`: DIR is made, and its disk is what counts.
//! Fifteen seconds; with `--network` half a minute.
//!
//! Three nodes are in one process, without a network between. With `--network` three others are measured beside them, which send
//! to each other over gRPC on loopback. Each client writes one row of 100 bytes after the other. Processor time is that of the
//! process, all nodes and clients together. Figures hold beside each other only.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example is a program: it has arguments, prints, and measures with the real clock"
)]

use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{Order, Peer, ReplicaKey};
use partage_core::service::table::replication::{
    Consistency, Entry, EntryKind, LogPosition, LogWrite, Settings,
};
use partage_core::service::table::rows::{Action, Condition, Expiry, Operation, Write};
use partage_door::{Door, TowerService};
use partage_journal::RealDisk;
use partage_log::{Log, LogSettings, Record};
use partage_table::{
    Identity, NetworkTransport, Node, NodeSettings, Notice, Owner, Packet, PacketService, PacketSink,
    ReplicaSettings, Transport,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;

const VALUE_BYTES: usize = 100;
const EACH: Duration = Duration::from_millis(2_000);
const NODES: u64 = 3;

type Failure = Box<dyn Error + Send + Sync>;

/// All nodes, once they are there.
#[derive(Default)]
struct Nodes(OnceLock<Vec<Node>>);

impl Nodes {
    fn at(&self, number: u64) -> Option<&Node> {
        self.0.get()?.get(number as usize - 1)
    }
}

struct Link(Arc<Nodes>);

impl Transport for Link {
    fn send(&self, _: &NodeId, to: &ReplicaKey, from: PlacementId, packet: Packet) {
        if let Some(node) = self.0.at(to.placement.0) {
            node.receive(to, from, packet);
        }
    }
}

/// Hands in what comes over the network for a node.
struct Arrivals(Arc<Nodes>, u64);

impl PacketSink for Arrivals {
    fn receive(&self, to: &ReplicaKey, from: PlacementId, packet: Packet) {
        if let Some(node) = self.0.at(self.1) {
            node.receive(to, from, packet);
        }
    }
}

impl Owner for Link {
    fn hears(&self, notice: Notice) {
        if matches!(notice, Notice::Failed(..) | Notice::Damaged(..) | Notice::Ended(_)) {
            println!("{notice:?}");
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let dir = std::env::args().nth(1).ok_or("name a directory")?;
    let dir = Path::new(&dir);
    let has_network = std::env::args().nth(2).is_some_and(|argument| argument == "--network");
    // The links have the nodes and the nodes the links: the end of the process is their end.
    let in_memory = (cluster(&dir.join("in-memory"), None).await?, "table");
    let mut clusters = vec![in_memory];
    let (_stop, stopped) = watch::channel(false);
    if has_network {
        clusters.push((cluster(&dir.join("network"), Some(&stopped)).await?, "network"));
    }
    for clients in [1, 16, 64] {
        for (nodes, what) in &clusters {
            measure(nodes, what, clients).await?;
        }
        floor(&dir.join(format!("floor-{clients}")), clients)?;
    }
    for (nodes, what) in &clusters {
        reads(nodes, what).await?;
    }
    Ok(())
}

/// Three nodes that serve a shard, which the first one leads; over gRPC until `stopped`, or in memory.
async fn cluster(dir: &Path, network: Option<&watch::Receiver<bool>>) -> Result<Arc<Nodes>, Failure> {
    let nodes = Arc::new(Nodes::default());
    let (mut started, mut transports, mut addresses) = (Vec::new(), Vec::new(), BTreeMap::new());
    for number in 1..=NODES {
        let folder = dir.join(format!("node-{number}"));
        let identity = Identity { node: node_id(number)?, incarnation: Incarnation(number), folder };
        let link = Arc::new(Link(Arc::clone(&nodes)));
        let transport: Arc<dyn Transport> = match network {
            None => link.clone(),
            Some(stopped) => {
                addresses.insert(node_id(number)?, listen(&nodes, number, stopped).await?);
                let incarnation = Some(Incarnation(number));
                let transport = NetworkTransport::new(node_id(number)?, incarnation, Handle::current());
                let transport = Arc::new(transport);
                transports.push(Arc::clone(&transport));
                transport
            }
        };
        let settings = NodeSettings::default();
        started.push(Node::open(settings, identity, Arc::new(RealDisk), transport, link)?.0);
    }
    nodes.0.set(started).map_err(|_| "the nodes are there already")?;
    transports.iter().for_each(|transport| transport.set_addresses(&addresses));
    let patient =
        Settings { follower_patience_ms: 60_000, follower_stall_ms: 120_000, ..Settings::default() };
    let settings = ReplicaSettings { replication: patient, ..ReplicaSettings::default() };
    for number in 1..=NODES {
        let node = nodes.at(number).ok_or("a node")?;
        node.open_replica(&replica(number)?, settings, true).await?;
    }
    for number in 1..=NODES {
        nodes.at(number).ok_or("a node")?.order(&order(number)?);
    }
    while write(&nodes, 0).await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(nodes)
}

/// A node listens for packets; gives its address.
async fn listen(nodes: &Arc<Nodes>, number: u64, stopped: &watch::Receiver<bool>) -> Result<String, Failure> {
    let service = PacketService::new(node_id(number)?, Arc::new(Arrivals(Arc::clone(nodes), number)));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let door = Door::new(partage_door::Role::default(), partage_door::Settings::default());
    tokio::spawn(door.listen(listener, TowerService::new(service.server()), stopped.clone()));
    Ok(address)
}

async fn write(nodes: &Nodes, number: u64) -> Result<(), Failure> {
    let value = vec![7; VALUE_BYTES].into();
    let operation = Operation {
        key: key(number)?,
        condition: Condition::Always,
        action: Action::Put(value, Expiry::Never),
        wants_former: false,
    };
    let write = Write { at_ms: 0, request: None, operations: vec![operation] };
    nodes.at(1).ok_or("a node")?.write(&replica(1)?, write).await?;
    Ok(())
}

async fn measure(nodes: &Arc<Nodes>, what: &str, clients: u64) -> Result<(), Failure> {
    let (start, cpu) = (Instant::now(), cpu_micros());
    let mut tasks = Vec::new();
    for client in 0..clients {
        let nodes = Arc::clone(nodes);
        tasks.push(tokio::spawn(async move {
            let mut took = Vec::new();
            while start.elapsed() < EACH {
                let before = Instant::now();
                write(&nodes, (client << 32) | took.len() as u64).await?;
                took.push(before.elapsed());
            }
            Ok::<_, Failure>(took)
        }));
    }
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    print(&format!("{what}, {clients:2} clients"), &mut took, 1, start.elapsed(), cpu_micros() - cpu);
    Ok(())
}

/// Linearizable reads, by 16 clients.
async fn reads(nodes: &Arc<Nodes>, what: &str) -> Result<(), Failure> {
    let (start, cpu) = (Instant::now(), cpu_micros());
    let mut tasks = Vec::new();
    for client in 0..16u64 {
        let nodes = Arc::clone(nodes);
        tasks.push(tokio::spawn(async move {
            let mut took = Vec::new();
            while start.elapsed() < EACH {
                let before = Instant::now();
                let node = nodes.at(1).ok_or("a node")?;
                let key = key((client << 32) | (took.len() as u64 % 1_000))?;
                node.read(&replica(1)?, &key, Consistency::Linearizable, 0).await?;
                took.push(before.elapsed());
            }
            Ok::<_, Failure>(took)
        }));
    }
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    print(&format!("{what}, 16 read"), &mut took, 1, start.elapsed(), cpu_micros() - cpu);
    Ok(())
}

/// Three logs, each on a thread, as three nodes are. Their first segments are there before the clock starts.
fn floor(dir: &Path, writes: u64) -> Result<(), Failure> {
    let mut logs = Vec::new();
    for number in 1..=NODES {
        let dir = dir.join(number.to_string());
        logs.push(Log::open(Arc::new(RealDisk), &dir, LogSettings::default())?.0);
    }
    let (start, cpu) = (Instant::now(), cpu_micros());
    let threads = logs.into_iter().map(|log| std::thread::spawn(move || floor_log(log, writes, start)));
    let threads: Vec<_> = threads.collect();
    let mut groups = Vec::new();
    for thread in threads {
        groups.push(thread.join().map_err(|_| "a log panicked")??);
    }
    groups.sort_by_key(Vec::len);
    let (took, cpu) = (start.elapsed(), cpu_micros() - cpu);
    print(&format!("floor, {writes:2} a group"), &mut groups[0], writes, took, cpu);
    Ok(())
}

fn floor_log(mut log: Log, writes: u64, start: Instant) -> Result<Vec<Duration>, Failure> {
    let (replica, mut took, mut index) = (replica(1)?, Vec::new(), 0);
    while start.elapsed() < EACH || took.is_empty() {
        let entry = |index| Entry {
            position: LogPosition { epoch: Epoch(1), index },
            kind: EntryKind::Write(vec![7; VALUE_BYTES + 60].into()),
        };
        let entries = (index + 1..=index + writes).map(entry).collect();
        index += writes;
        let group = [(replica.clone(), Record::Write(LogWrite::Append(entries)))];
        let before = Instant::now();
        log.write(&group)?;
        took.push(before.elapsed());
    }
    Ok(took)
}

fn print(what: &str, took: &mut [Duration], writes: u64, whole: Duration, cpu_micros: u64) {
    took.sort();
    let at = |permille: usize| took[(took.len() - 1) * permille / 1_000].as_secs_f64() * 1e3;
    let count = took.len() as u64 * writes;
    println!(
        "{what:20} {:8.0} /s, {:6.1} µs of processor each, p50 {:.2} ms, p99 {:.2} ms",
        count as f64 / whole.as_secs_f64(),
        cpu_micros as f64 / count as f64,
        at(500),
        at(990)
    );
}

fn cpu_micros() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

fn key(number: u64) -> Result<Key, Failure> {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Ok(Key::new(&[number.to_be_bytes(), (!number).to_be_bytes()].concat())?)
}

fn node_id(number: u64) -> Result<NodeId, Failure> {
    Ok(NodeId::new(&format!("node-{number}"))?)
}

fn replica(number: u64) -> Result<ReplicaKey, Failure> {
    let keyspace = KeyspaceName::new("orders")?;
    Ok(ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(number) })
}

fn order(me: u64) -> Result<Order, Failure> {
    let bounds = Bounds::Keys(KeyRange::all());
    let role = |number| if number == 1 { Role::Leader } else { Role::Follower };
    let mut peers = Vec::new();
    for number in (1..=NODES).filter(|number| *number != me) {
        peers.push(Peer {
            shard: ShardId(1),
            placement: PlacementId(number),
            bounds: bounds.clone(),
            node: node_id(number)?,
            incarnation: Incarnation(number),
            address: String::new(),
            role: role(number),
            state: ReplicaState::Live,
            in_sync: true,
        });
    }
    Ok(Order {
        replica: replica(me)?,
        bounds,
        role: role(me),
        state: ReplicaState::Live,
        epoch: Epoch(1),
        configuration: Configuration(1),
        in_sync: true,
        granted: true,
        peers,
        had_data: false,
        drop: None,
    })
}
