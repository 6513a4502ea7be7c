//! What the tests share: three nodes, a network that can be cut, and the little of a coordinator that they need.

use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{Order, Peer, ReplicaKey, ReplicationReport};
use partage_journal::{Disk, RealDisk};
use partage_log::{LogSettings, WriterSettings};
use partage_service::table::replication::{self, Consistency, LogPosition, Status};
use partage_service::table::rows::{
    Action, Condition, Expiry, Operation, Outcome, Request, RequestId, Write,
};
use partage_table::{
    Identity, Node, NodeSettings, Notice, NoticeSink, Packet, ReadAnswer, ReadError, ReplicaSettings,
    StoredReplica, Transport, WriteError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tempfile::TempDir;

const POLL: Duration = Duration::from_millis(10);
const POLLS: u32 = 6_000;

/// Polls until something is so; a test that waits for that long has failed.
pub async fn until<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..POLLS {
        if let Some(found) = poll().await {
            return found;
        }
        tokio::time::sleep(POLL).await;
    }
    panic!("not within a minute: {what}");
}

pub fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

pub fn operation(of: &str, action: Action) -> Operation {
    Operation { key: key(of), condition: Condition::Always, action, wants_former: false }
}

pub fn put(of: &str, value: impl AsRef<[u8]>) -> Write {
    let action = Action::Put(value.as_ref().into(), Expiry::Never);
    Write { at_ms: 0, request: None, operations: vec![operation(of, action)] }
}

/// A counter grows, under a name.
pub fn add(of: &str, id: u64) -> Write {
    let mut name = [0; 16];
    name[..8].copy_from_slice(&id.to_be_bytes());
    let request = Some(Request { id: RequestId(name), fingerprint: id });
    Write { at_ms: 0, request, operations: vec![operation(of, Action::Add(1))] }
}

pub fn node_id(number: u64) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

/// The replica of a shard on a node.
pub fn replica(shard: u64, node: u64) -> ReplicaKey {
    let keyspace = KeyspaceName::new("orders").unwrap();
    ReplicaKey { keyspace, shard: ShardId(shard), placement: PlacementId(shard * 10 + node) }
}

/// What the network does to packets.
#[derive(Debug, Default)]
pub struct Faults {
    /// Nothing comes from these nodes, or gets there.
    pub cut: BTreeSet<NodeId>,
    /// Packets are held up until later ones have overtaken them, doubled, and lost.
    pub is_bad: bool,
    /// Chunks of snapshots that were sent.
    pub chunks: usize,
    /// The position of the last of these.
    pub snapshot: Option<LogPosition>,
    /// Every other chunk is lost.
    pub loses_chunks: bool,
    drawn: u64,
    held_up: Vec<(NodeId, ReplicaKey, PlacementId, Packet)>,
}

impl Faults {
    fn draw(&mut self, of: u64) -> bool {
        self.drawn =
            self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.drawn >> 33).is_multiple_of(of)
    }
}

/// How the coordinator has a shard.
#[derive(Debug, Clone)]
pub struct Shard {
    pub epoch: u64,
    pub configuration: u64,
    /// The number of the node that leads.
    pub leader: u64,
    pub in_sync: BTreeSet<u64>,
    pub had_data: bool,
    /// The number of the node to which the leader is to hand over.
    pub hand_over_to: Option<u64>,
}

/// All that the nodes have in common.
#[derive(Default)]
pub struct World {
    nodes: RwLock<BTreeMap<NodeId, (Arc<Node>, Incarnation)>>,
    pub faults: Mutex<Faults>,
    pub shards: Mutex<BTreeMap<u64, Shard>>,
    pub notices: Mutex<Vec<(NodeId, Notice)>>,
    /// What each replica has said last of its replication.
    pub reports: Mutex<BTreeMap<ReplicaKey, ReplicationReport>>,
}

impl World {
    /// A node, if it runs.
    pub fn running(&self, node: &NodeId) -> Option<Arc<Node>> {
        self.nodes.read().unwrap().get(node).map(|(node, _)| Arc::clone(node))
    }

    /// Tells all nodes how a shard is.
    pub fn announce(&self, number: u64) {
        let shard = self.shards.lock().unwrap()[&number].clone();
        let nodes = self.nodes.read().unwrap();
        let incarnation =
            |node| nodes.get(&node_id(node)).map_or(Incarnation(0), |(_, incarnation)| *incarnation);
        let role = |node| if node == shard.leader { Role::Leader } else { Role::Follower };
        let bounds = Bounds::Keys(KeyRange::all());
        for me in 1..=3 {
            let others = (1..=3).filter(|node| *node != me);
            let peers = others.map(|node| Peer {
                shard: ShardId(number),
                placement: replica(number, node).placement,
                bounds: bounds.clone(),
                node: node_id(node),
                incarnation: incarnation(node),
                address: None,
                role: role(node),
                state: ReplicaState::Live,
                in_sync: shard.in_sync.contains(&node),
            });
            let order = Order {
                replica: replica(number, me),
                bounds: bounds.clone(),
                role: role(me),
                state: ReplicaState::Live,
                epoch: Epoch(shard.epoch),
                configuration: Configuration(shard.configuration),
                in_sync: shard.in_sync.contains(&me),
                granted: true,
                peers: peers.collect(),
                had_data: shard.had_data,
                drop: None,
                hand_over_to: shard
                    .hand_over_to
                    .filter(|_| me == shard.leader)
                    .map(|heir| replica(number, heir).placement),
            };
            if let Some((node, _)) = nodes.get(&node_id(me)) {
                node.order(&order);
            }
        }
    }

    /// The coordinator changes a shard.
    pub fn change(&self, number: u64, change: impl FnOnce(&mut Shard)) {
        {
            let mut shards = self.shards.lock().unwrap();
            let shard = shards.get_mut(&number).unwrap();
            shard.configuration += 1;
            change(shard);
        }
        self.announce(number);
    }

    /// Takes a wish, if it is of the present configuration and leader.
    fn grant(&self, from: &ReplicaKey, configuration: Configuration, wish: &[PlacementId]) {
        let number = from.shard.0;
        let in_sync: BTreeSet<u64> = wish.iter().map(|placement| placement.0 - number * 10).collect();
        {
            let mut shards = self.shards.lock().unwrap();
            let Some(shard) = shards.get_mut(&number) else { return };
            let is_leader = replica(number, shard.leader) == *from;
            if !is_leader || shard.configuration != configuration.0 {
                return;
            }
            if shard.in_sync == in_sync {
                shard.epoch += 1;
            }
            shard.configuration += 1;
            shard.in_sync = in_sync;
        }
        self.announce(number);
    }

    pub fn shard(&self, number: u64) -> Shard {
        self.shards.lock().unwrap()[&number].clone()
    }

    /// The replica that a leader has said last that it is ready to hand over to.
    pub fn ready_heir(&self, of: &ReplicaKey) -> Option<PlacementId> {
        self.reports.lock().unwrap().get(of).and_then(|report| report.heir_ready)
    }

    pub fn has_heard(&self, is_it: impl Fn(&NodeId, &Notice) -> bool) -> bool {
        self.notices.lock().unwrap().iter().any(|(node, notice)| is_it(node, notice))
    }
}

/// The end of a node that others see.
struct Link(Arc<World>, NodeId);

impl Transport for Link {
    fn send(&self, node: &NodeId, to: &ReplicaKey, from: PlacementId, packet: Packet) {
        let sent = (node.clone(), to.clone(), from, packet);
        let mut arrive = Vec::new();
        {
            let mut faults = self.0.faults.lock().unwrap();
            if faults.cut.contains(&self.1) || faults.cut.contains(node) {
                return;
            }
            if let Packet::Chunk(chunk) = &sent.3 {
                faults.chunks += 1;
                faults.snapshot = Some(chunk.position);
                if faults.loses_chunks && faults.chunks.is_multiple_of(2) {
                    return;
                }
            }
            if !faults.is_bad {
                arrive.append(&mut faults.held_up);
                arrive.push(sent);
            } else if faults.draw(4) {
                faults.held_up.push(sent);
            } else if !faults.draw(16) {
                if faults.draw(8) {
                    arrive.push(sent.clone());
                }
                arrive.push(sent);
                if faults.draw(3) {
                    arrive.append(&mut faults.held_up);
                }
            }
        }
        for (node, to, from, packet) in arrive {
            // A replica is being served that sends this: another one is not served within that.
            if let Some(node) = self.0.running(&node) {
                node.receive(&to, from, packet);
            }
        }
    }
}

impl NoticeSink for Link {
    fn notify(&self, notice: Notice) {
        if let Notice::Report(from, report) = &notice {
            self.0.reports.lock().unwrap().insert(from.clone(), report.clone());
            let is_cut = self.0.faults.lock().unwrap().cut.contains(&self.1);
            if let Some(wish) = report.wish.as_ref().filter(|_| !is_cut) {
                self.0.grant(from, report.configuration, wish);
            }
            return;
        }
        self.0.notices.lock().unwrap().push((self.1.clone(), notice));
    }
}

/// Three nodes in one process, with what stands for the network and the coordinator.
pub struct Cluster {
    pub world: Arc<World>,
    pub settings: NodeSettings,
    pub replica: ReplicaSettings,
    folders: Vec<TempDir>,
    disks: Vec<Arc<dyn Disk>>,
    starts: u64,
}

/// Times that are short, so that tests do not wait, and patience that a loaded machine does not use up.
pub fn quick() -> replication::Settings {
    replication::Settings {
        promise_ms: 400,
        append_ms: 20,
        resend_ms: 60,
        follower_patience_ms: 400,
        wish_repeat_ms: 100,
        snapshot_repeat_ms: 500,
        read_wait_ms: 20_000,
        write_wait_ms: 50_000,
        min_in_sync: 2,
        ..replication::Settings::default()
    }
}

impl Cluster {
    /// Three nodes that are not started.
    pub fn new() -> Cluster {
        let log = LogSettings {
            segment_bytes: 1 << 20,
            entry_bytes: 400 << 10,
            try_direct: false,
            prepare_ahead: false,
            ..LogSettings::default()
        };
        let writer = WriterSettings { retry: Duration::from_millis(20), ..WriterSettings::default() };
        Cluster {
            world: Arc::default(),
            settings: NodeSettings { log, writer, ..NodeSettings::default() },
            replica: ReplicaSettings { replication: quick(), ..ReplicaSettings::default() },
            folders: (0..3).map(|_| TempDir::new().unwrap()).collect(),
            disks: (0..3).map(|_| Arc::new(RealDisk) as Arc<dyn Disk>).collect(),
            starts: 0,
        }
    }

    /// Three nodes with one shard, which the first one leads.
    pub async fn started() -> Cluster {
        let mut cluster = Cluster::new();
        cluster.start_all().await;
        cluster.add_shard(1).await;
        cluster
    }

    pub fn set_disk(&mut self, node: u64, disk: Arc<dyn Disk>) {
        self.disks[node as usize - 1] = disk;
    }

    pub fn folder(&self, node: u64) -> &Path {
        self.folders[node as usize - 1].path()
    }

    /// Starts the process of a node, with another incarnation than before. Opens nothing.
    pub fn start(&mut self, node: u64) -> Vec<StoredReplica> {
        self.start_over(node, Arc::new(Link(Arc::clone(&self.world), node_id(node))))
    }

    /// The same, over that network.
    pub fn start_over(&mut self, node: u64, network: Arc<dyn Transport>) -> Vec<StoredReplica> {
        self.starts += 1;
        let incarnation = Incarnation(self.starts);
        let identity = Identity { node: node_id(node), incarnation, folder: self.folder(node).to_owned() };
        let link = Arc::new(Link(Arc::clone(&self.world), node_id(node)));
        let disk = Arc::clone(&self.disks[node as usize - 1]);
        let (started, stored) = Node::open(self.settings, identity, disk, network, link).unwrap();
        self.world.nodes.write().unwrap().insert(node_id(node), (Arc::new(started), incarnation));
        stored
    }

    pub async fn start_all(&mut self) {
        (1..=3).for_each(|node| drop(self.start(node)));
    }

    /// Ends the process of a node, which has no time for anything.
    pub fn kill(&self, node: u64) {
        let ended = self.world.nodes.write().unwrap().remove(&node_id(node));
        let (mut ended, _) = ended.unwrap();
        // A packet may be on its way in; the test itself has no other handle.
        let ended = loop {
            match Arc::try_unwrap(ended) {
                Ok(ended) => break ended,
                Err(held) => ended = held,
            }
            std::thread::yield_now();
        };
        drop(ended);
    }

    pub fn node(&self, node: u64) -> Arc<Node> {
        Arc::clone(&self.world.nodes.read().unwrap()[&node_id(node)].0)
    }

    /// A shard begins, with all three in sync.
    pub async fn add_shard(&self, number: u64) {
        let in_sync = (1..=3).collect();
        let (had_data, hand_over_to) = (false, None);
        let shard = Shard { epoch: 1, configuration: 1, leader: 1, in_sync, had_data, hand_over_to };
        self.world.shards.lock().unwrap().insert(number, shard);
        for node in 1..=3 {
            self.node(node).open_replica(&replica(number, node), self.replica, true).await.unwrap();
        }
        self.world.announce(number);
    }

    /// Opens what a node that was started has of a shard.
    pub async fn open(&self, number: u64, node: u64) {
        self.node(node).open_replica(&replica(number, node), self.replica, false).await.unwrap();
    }

    /// Another replica leads, under a later epoch.
    pub fn lead(&self, number: u64, node: u64) {
        self.world.change(number, |shard| {
            (shard.leader, shard.had_data, shard.hand_over_to) = (node, true, None);
            shard.epoch += 1;
        });
    }

    pub async fn write_once(&self, number: u64, write: &Write) -> Result<Outcome, WriteError> {
        let leader = self.world.shard(number).leader;
        self.node(leader).write(&replica(number, leader), write).await
    }

    /// Writes, again and again until it is done: of a write without a request id that may be twice.
    pub async fn write(&self, number: u64, write: &Write) -> Outcome {
        for _ in 0..POLLS {
            if let Ok(outcome) = self.write_once(number, write).await {
                return outcome;
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("not within a minute: {write:?}");
    }

    pub async fn read_once(
        &self,
        number: u64,
        node: u64,
        of: &str,
        consistency: Consistency,
    ) -> Result<ReadAnswer, ReadError> {
        self.node(node).read(&replica(number, node), &key(of), consistency, 0).await
    }

    /// Reads at the leader what was acknowledged before.
    pub async fn read(&self, number: u64, of: &str) -> Option<Vec<u8>> {
        let mut refused = None;
        for _ in 0..POLLS {
            let leader = self.world.shard(number).leader;
            match self.read_once(number, leader, of, Consistency::Linearizable).await {
                Ok(answer) => return answer.row.map(|row| row.value.to_vec()),
                Err(error) => refused = Some(error),
            }
            tokio::time::sleep(POLL).await;
        }
        let shard = self.world.shard(number);
        let at_leader = self.node(shard.leader).status(&replica(number, shard.leader)).await;
        panic!("not within a minute: the leader reads {of}: {refused:?}; {shard:?}; {at_leader:?}");
    }

    /// Waits until a replica that need not lead has a value.
    pub async fn comes_to(&self, number: u64, node: u64, of: &str, value: &[u8]) {
        until("a replica has a value", async || {
            let answer = self.read_once(number, node, of, Consistency::Any).await.ok()?;
            answer.row.filter(|row| *row.value == *value)
        })
        .await;
    }

    pub async fn status(&self, number: u64, node: u64) -> Status {
        self.node(node).status(&replica(number, node)).await.unwrap()
    }

    /// Waits until the set is that.
    pub async fn in_sync(&self, number: u64, nodes: &[u64]) {
        let wanted: BTreeSet<u64> = nodes.iter().copied().collect();
        until("the in-sync set", async || (self.world.shard(number).in_sync == wanted).then_some(())).await;
    }

    pub fn cut(&self, node: u64, is_cut: bool) {
        let mut faults = self.world.faults.lock().unwrap();
        if is_cut {
            faults.cut.insert(node_id(node))
        } else {
            faults.cut.remove(&node_id(node))
        };
    }
}
