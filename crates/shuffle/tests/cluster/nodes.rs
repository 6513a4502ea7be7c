//! Three nodes, their disks, a network in memory or of sockets, and a coordinator that makes maps.

use crate::disk::PowerDisk;
use crate::sockets::{Socket, Sockets};
use partage_clock::Instant;
use partage_core::base::id::{ClusterId, Epoch, Incarnation};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_log::{LogSettings, WriterSettings};
use partage_service::shuffle::leader::OwnerQuota;
use partage_service::shuffle::pool::{PoolMap, SlotPlace};
use partage_service::shuffle::settings::Settings;
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId};
use partage_shuffle::log::{DecisionLog, DecisionSettings};
use partage_shuffle::node::{
    Client, Delivery, Node, NodeConfig, NodeSettings, NodeStatus, Packet, Transport,
};
use partage_shuffle::objects::{ObjectPlace, ObjectStoreConfig};
use partage_shuffle::store::StoreSettings;
use partage_shuffle_wire::node::Peer;
use partage_shuffle_wire::transport::Address;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

pub const NODES: usize = 3;
const SLOTS: u32 = 36;

/// Waits so long. A test that waits for something looks again and again.
pub fn pause(ms: u64) {
    std::thread::park_timeout(Duration::from_millis(ms));
}

/// Waits until it is so, and fails when it is not so for long, whatever one look takes.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(120), "it was never so: {what}");
        pause(20);
    }
}

#[derive(Debug, Default)]
struct Network(Mutex<BTreeMap<NodeId, Delivery>>);

/// The network, as one node has it.
struct Link(Arc<Network>, NodeId);

impl Transport for Link {
    fn send(&self, to: &NodeId, packet: Packet) {
        let delivery = self.0.0.lock().unwrap().get(to).cloned();
        if let Some(delivery) = delivery {
            delivery.deliver(self.1.clone(), packet);
        }
    }

    fn ready(&self, slot: PoolSlot, epoch: Epoch) {
        panic!("{slot:?} under {epoch:?}: no replica loads in these tests");
    }
}

struct Place {
    name: NodeId,
    incarnation: Incarnation,
    disk: PowerDisk,
    node: Option<Node>,
    /// Its connections, where the network is of sockets.
    socket: Option<Socket>,
}

struct State {
    map: PoolMap,
    places: Vec<Place>,
}

pub struct Cluster {
    folder: TempDir,
    network: Arc<Network>,
    state: Mutex<State>,
    sockets: Option<Sockets>,
    objects: Option<Arc<dyn ObjectPlace>>,
    settings: NodeSettings,
}

/// Shuffles that an owner may have.
pub const OWNER_SHUFFLES: u64 = 6;

pub fn settings() -> NodeSettings {
    let machines = Settings {
        stand_in_ms: 200,
        resend_ms: 100,
        give_up_ms: 30_000,
        buffer_bytes: 2 << 20,
        chunk_bytes: 256 << 10,
        sample_ms: 50,
        inventory_ms: 300,
        grace_ms: 1_500,
        first_sample: 2_000,
        small_sample: u64::MAX,
        division_batches: 64,
        divide_ms: 200,
        gather_ms: 1_000,
        read_wait_ms: 1_000,
        ..Settings::default()
    };
    let log = LogSettings { segment_bytes: 4 << 20, entry_bytes: 64 << 10, ..LogSettings::default() };
    let decisions =
        DecisionSettings { log, writer: WriterSettings::default(), ..DecisionSettings::default() };
    let store = StoreSettings { file_bytes: 2 << 20, open_files: 4 };
    NodeSettings {
        machines,
        decisions,
        store,
        range_bytes: 2 << 20,
        owner_quota: OwnerQuota { shuffles: Some(OWNER_SHUFFLES), bytes: None },
        question_ms: 1_000,
        ..NodeSettings::default()
    }
}

impl Cluster {
    pub fn start() -> Cluster {
        Cluster::start_on(None, None, settings())
    }

    /// The same with an object store.
    pub fn start_with_objects(objects: Arc<dyn ObjectPlace>) -> Cluster {
        Cluster::start_with_objects_and_budget(objects, settings().machines.retry_budget)
    }

    /// The same with readers that retry so often.
    pub fn start_with_objects_and_budget(objects: Arc<dyn ObjectPlace>, retry_budget: u64) -> Cluster {
        let settings = settings();
        let machines = Settings {
            objects_rest_ms: 100,
            longest_objects_rest_ms: 500,
            sweep_ms: 3_000,
            retry_budget,
            ..settings.machines
        };
        Cluster::start_on(None, Some(objects), NodeSettings { machines, ..settings })
    }

    /// The same with other numbers.
    pub fn start_with(settings: NodeSettings) -> Cluster {
        Cluster::start_on(None, None, settings)
    }

    /// The same with nodes that reach each other over TCP.
    pub fn start_over_sockets() -> Cluster {
        Cluster::start_on(Some(Sockets::default()), None, settings())
    }

    fn start_on(
        sockets: Option<Sockets>,
        objects: Option<Arc<dyn ObjectPlace>>,
        settings: NodeSettings,
    ) -> Cluster {
        let names: Vec<NodeId> = (0..NODES).map(|at| NodeId::new(&format!("n{at}")).unwrap()).collect();
        let place = |slot: usize| {
            let live = (0..2).map(|at| names[(slot + at) % NODES].clone()).collect();
            SlotPlace { epoch: Epoch(1), live, loading: Vec::new() }
        };
        let places = (0..SLOTS as usize).map(place).collect();
        let map = PoolMap {
            generation: 1,
            replicas: 2,
            places,
            nodes: names.clone(),
            no_stand_ins: Default::default(),
        };
        let place = |name| Place {
            name,
            incarnation: Incarnation(0),
            disk: PowerDisk::default(),
            node: None,
            socket: None,
        };
        let state = State { map, places: names.into_iter().map(place).collect() };
        let folder = tempfile::tempdir().unwrap();
        let (network, state) = (Arc::default(), Mutex::new(state));
        let cluster = Cluster { folder, network, state, sockets, objects, settings };
        (0..NODES).for_each(|node| cluster.start_node(node));
        cluster
    }

    pub fn folder(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("n{node}"))
    }

    /// A process of the node starts: what it led before, another replica leads now.
    pub fn start_node(&self, at: usize) {
        self.start_process(at, true);
    }

    /// The same before the coordinator has named other leaders.
    pub fn start_node_under_the_same_map(&self, at: usize) {
        self.start_process(at, false);
    }

    fn start_process(&self, at: usize, has_next_map: bool) {
        let mut state = self.state.lock().unwrap();
        let State { map, places } = &mut *state;
        let place = &mut places[at];
        place.incarnation = place.incarnation.next();
        if place.incarnation > Incarnation(1) && has_next_map {
            map.generation += 1;
            for slot in map.places.iter_mut().filter(|slot| slot.live[0] == place.name) {
                slot.live.rotate_left(1);
                slot.epoch = slot.epoch.next();
            }
        }
        let shared = Arc::new(map.clone());
        let config = NodeConfig {
            id: BufferId { node: place.name.clone(), incarnation: place.incarnation },
            pool: KeyspaceName::new("pool").unwrap(),
            folder: self.folder(at),
            disk: Arc::new(place.disk.clone()),
            settings: self.settings.clone(),
        };
        let objects = self
            .objects
            .clone()
            .map(|place| ObjectStoreConfig { place, cluster: Arc::new(|| Some(ClusterId(1))) });
        let own = Peer { node: place.name.clone(), incarnation: place.incarnation };
        if let Some(sockets) = &self.sockets {
            let transport = sockets.transport(own.clone());
            let link = transport.clone();
            let node = Node::start_with_objects(config, Arc::clone(&shared), link, objects).unwrap();
            place.socket = Some(sockets.serve(own, &node, transport));
            place.node = Some(node);
            Socket::introduce(places.iter().filter_map(|place| place.socket.as_ref()));
        } else {
            let link = Arc::new(Link(Arc::clone(&self.network), place.name.clone()));
            let node = Node::start_with_objects(config, Arc::clone(&shared), link, objects).unwrap();
            self.network.0.lock().unwrap().insert(place.name.clone(), node.delivery());
            place.node = Some(node);
        }
        for node in places.iter().filter_map(|place| place.node.as_ref()) {
            node.set_map(Arc::clone(&shared));
        }
    }

    /// The process of a node ends, and what it had not synced is lost, unless its machine lives on.
    pub fn kill(&self, at: usize) {
        let mut state = self.state.lock().unwrap();
        let place = &mut state.places[at];
        place.disk.kill();
        self.network.0.lock().unwrap().remove(&place.name);
        drop(place.socket.take());
        let node = place.node.take();
        place.disk = place.disk.of_next_process();
        drop(state);
        drop(node.unwrap());
    }

    /// The node that leads a shuffle.
    pub fn leader(&self, shuffle: ShuffleId) -> usize {
        let state = self.state.lock().unwrap();
        let leader = &state.map.live(state.map.home(shuffle))[0];
        state.places.iter().position(|place| place.name == *leader).unwrap()
    }

    /// A client of the node, or of the next one that is up.
    pub fn client(&self, from: usize) -> Client {
        let state = self.state.lock().unwrap();
        let mut up = (0..NODES).filter_map(|at| state.places[(from + at) % NODES].node.as_ref());
        up.next().unwrap().client()
    }

    /// Where a node is reached over the network.
    pub fn address(&self, at: usize) -> Address {
        self.state.lock().unwrap().places[at].socket.as_ref().unwrap().address()
    }

    pub fn disk(&self, at: usize) -> PowerDisk {
        self.state.lock().unwrap().places[at].disk.clone()
    }

    pub fn status(&self, at: usize) -> NodeStatus {
        self.state.lock().unwrap().places[at].node.as_ref().unwrap().status()
    }

    /// The disk of a node fills, or has room again.
    pub fn make_room(&self, at: usize, fills: bool) {
        self.state.lock().unwrap().places[at].node.as_ref().unwrap().make_room(fills);
    }

    /// Bytes of batches on the disk of a node.
    pub fn disk_bytes(&self, at: usize) -> u64 {
        self.state.lock().unwrap().places[at].node.as_ref().unwrap().disk_bytes()
    }

    /// The files of batches of a node.
    pub fn files(&self, at: usize) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.folder(at).join("batches")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|ending| ending == "batches")).collect()
    }

    /// Nothing of any shuffle is left on a disk, in memory, or in a log.
    pub fn has_nothing(self) {
        until("no file of batches is left", || (0..NODES).all(|at| self.files(at).is_empty()));
        until("nothing is left in memory", || {
            let mut all = (0..NODES).map(|at| self.status(at));
            all.all(|status| (status.buffered_bytes, status.storing_bytes, status.ended) == (0, 0, None))
        });
        until("nothing is left of what was read", || {
            let mut all = (0..NODES).map(|at| self.status(at));
            all.all(|status| (status.reading_bytes, status.sorted_file_bytes) == (0, 0))
        });
        for at in 0..NODES {
            assert_eq!(std::fs::read_dir(self.folder(at).join("sorting")).unwrap().count(), 0);
        }
        let mut state = self.state.lock().unwrap();
        let nodes: Vec<Node> = state.places.iter_mut().filter_map(|place| place.node.take()).collect();
        state.places.iter_mut().for_each(|place| drop(place.socket.take()));
        drop(state);
        drop(nodes);
        for at in 0..NODES {
            let pool = KeyspaceName::new("pool").unwrap();
            let (disk, dir) = (Arc::new(PowerDisk::default()), self.folder(at).join("decisions"));
            let (log, places) = DecisionLog::open(disk, &dir, pool, settings().decisions, |_| {}).unwrap();
            assert!(places.is_empty(), "{places:?}");
            let living = log.replicas().copies.values().flat_map(|copy| copy.living.keys());
            assert_eq!(living.count(), 0, "decisions on living shuffles on node {at}");
        }
    }
}
