//! The same nodes over gRPC on loopback: each with a listener of its own, which can be stopped, moved and taken over.

mod replicas;
mod streams;

use crate::support::{Cluster, World, node_id};
use partage_core::base::id::PlacementId;
use partage_core::base::name::NodeId;
use partage_core::node::exchange::ReplicaKey;
use partage_door::{Door, Role, Settings, TowerService};
use partage_table::{NetworkTransport, Packet, PacketService, PacketSink};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const ANYWHERE: &str = "127.0.0.1:0";

/// Hands in packets for one node of a cluster, and counts chunks.
struct ToNode {
    world: Arc<World>,
    node: NodeId,
    chunks: AtomicU64,
}

impl PacketSink for ToNode {
    fn receive(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>) {
        let chunks = packets.iter().filter(|(_, _, packet)| matches!(packet, Packet::Chunk(_))).count();
        self.chunks.fetch_add(chunks as u64, Ordering::Relaxed);
        // Not within the lock: a replica that is served may tell its owner something, who asks for nodes.
        if let Some(node) = self.world.running(&self.node) {
            node.receive_all(packets);
        }
    }
}

struct Listening {
    address: String,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Listening {
    async fn start(service: &PacketService, at: &str) -> Listening {
        Listening::start_with(TowerService::new(service.server()), at).await
    }

    async fn start_with(service: TowerService, at: &str) -> Listening {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let door =
            Door::new(Role { announced: vec![address.clone()], ..Role::default() }, Settings::default());
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(door.listen(listener, service, stopped));
        Listening { address, stop, task }
    }

    /// The listener and its connections end, without a word to those who send.
    async fn end(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap();
    }
}

/// Three nodes over gRPC.
struct Networked {
    cluster: Cluster,
    sinks: BTreeMap<u64, Arc<ToNode>>,
    services: BTreeMap<u64, PacketService>,
    transports: BTreeMap<u64, Arc<NetworkTransport>>,
    listening: BTreeMap<u64, Listening>,
}

impl Networked {
    /// One shard, which the first node leads.
    async fn started(cluster: Cluster) -> Networked {
        let mut networked = Networked {
            cluster,
            sinks: BTreeMap::new(),
            services: BTreeMap::new(),
            transports: BTreeMap::new(),
            listening: BTreeMap::new(),
        };
        for node in 1..=3 {
            let world = Arc::clone(&networked.cluster.world);
            let sink = Arc::new(ToNode { world, node: node_id(node), chunks: AtomicU64::new(0) });
            let service = PacketService::new(node_id(node), sink.clone());
            let transport = Arc::new(NetworkTransport::new(node_id(node), None, Handle::current()));
            networked.cluster.start_over(node, transport.clone());
            networked.sinks.insert(node, sink);
            networked.services.insert(node, service);
            networked.transports.insert(node, transport);
            networked.listen(node, ANYWHERE).await;
        }
        networked.announce();
        networked.cluster.add_shard(1).await;
        networked
    }

    /// A node listens there; it had no listener.
    async fn listen(&mut self, node: u64, at: &str) {
        let listening = Listening::start(&self.services[&node], at).await;
        assert!(self.listening.insert(node, listening).is_none());
    }

    /// A node listens no longer; gives the address.
    async fn deafen(&mut self, node: u64) -> String {
        let listening = self.listening.remove(&node).unwrap();
        let address = listening.address.clone();
        listening.end().await;
        address
    }

    /// All nodes hear where all others are.
    fn announce(&self) {
        let addresses = self.listening.iter().map(|(node, at)| (node_id(*node), at.address.clone()));
        let addresses: BTreeMap<_, _> = addresses.collect();
        self.transports.values().for_each(|transport| transport.set_addresses(&addresses));
    }
}
