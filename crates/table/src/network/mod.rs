//! The packets of replicas over gRPC: one stream from each node to each node that it sends to.
//!
//! ```text
//!  Node ── send ──► NetworkTransport ── queue of each peer ──► stream ═══► PacketService ── PacketSink ──► Node
//!                     never blocks        bounded, two lanes     gRPC       is it for this node?
//! ```
//!
//! | question | file |
//! |---|---|
//! | which peers there are, and where | here |
//! | what waits for a peer, what is dropped, what goes first | `peer_queue.rs` |
//! | when a stream is opened, ended and opened again | `peer_stream.rs` |
//! | what a node accepts | `service.rs` |
//! | what is counted | `counts.rs` |
//!
//! # Chunks of snapshots and everything else
//!
//! They share a stream, in two lanes of the queue that take turns: a batch of messages, then one chunk, as long as there are
//! both. So an append waits for one chunk at most (256 KiB, 2 ms on a line of 1 Gbit/s), and a snapshot goes on beside a leader
//! that is never idle. A second stream would share the window and the socket of the first one; only a second connection would
//! bring more, and that costs a socket for each pair of nodes.
//!
//! # The right node
//!
//! The first message of a stream says which node is meant. A node that took over the address of another one refuses the stream
//! and names both, so that no packet gets to a wrong node. The incarnation of the receiver is not asked for: its process
//! may have begun a moment ago, and the machines of replicas know to whose clock a reply belongs.
//!
//! # What was not done
//!
//! - No stream is closed because it is idle: the heartbeats of leaders keep those busy that are needed, and others cost a socket.
//! - Two clusters are not told apart where nodes of both have the same name and, one after the other, the same address.

mod counts;
mod packet;
mod peer_queue;
mod peer_stream;
mod service;
#[cfg(test)]
mod tests;

pub use counts::{ReceiveCounts, SendCounts};
pub use service::{PacketService, PacketSink};

use crate::network::counts::SendCounters;
use crate::network::peer_queue::{Outgoing, PeerQueue};
use crate::network::peer_stream::PeerStream;
use crate::transport::{Packet, Transport};
use partage_core::base::id::{Incarnation, PlacementId};
use partage_core::base::name::NodeId;
use partage_core::node::exchange::ReplicaKey;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The node that sends.
#[derive(Debug)]
pub(crate) struct Sender {
    node: NodeId,
    /// The incarnation that streams name from now on; 0 until the coordinator has given one.
    incarnation: AtomicU64,
}

/// Another node. Its streams end when it is dropped.
struct Peer {
    address: watch::Sender<String>,
    queue: Arc<PeerQueue>,
    task: AbortHandle,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends the packets of one node over gRPC.
///
/// The service says where the other nodes are ([`NetworkTransport::set_addresses`]); what is sent to a node without an address is
/// dropped. Dropping the transport ends all streams.
pub struct NetworkTransport {
    sender: Arc<Sender>,
    runtime: Handle,
    counters: Arc<SendCounters>,
    peers: RwLock<BTreeMap<NodeId, Peer>>,
}

impl fmt::Debug for NetworkTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkTransport").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl NetworkTransport {
    /// Of that node, and the present process of it if that has an incarnation yet. Its streams are tasks of `runtime`.
    pub fn new(node: NodeId, incarnation: Option<Incarnation>, runtime: Handle) -> NetworkTransport {
        let incarnation = AtomicU64::new(incarnation.map_or(0, |incarnation| incarnation.0));
        NetworkTransport {
            sender: Arc::new(Sender { node, incarnation }),
            runtime,
            counters: Arc::default(),
            peers: RwLock::default(),
        }
    }

    /// The coordinator has given the process another incarnation: streams that begin from now on name it.
    pub fn renamed(&self, incarnation: Incarnation) {
        self.sender.incarnation.store(incarnation.0, Ordering::Relaxed);
    }

    /// Where all other nodes are (`host:port`) to which a replica may send from now on. The stream to a node that is elsewhere
    /// now ends, and the next one goes there; that to a node that is not named ends.
    pub fn set_addresses(&self, addresses: &BTreeMap<NodeId, String>) {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|node, _| addresses.contains_key(node));
        for (node, address) in addresses.iter().filter(|(node, _)| **node != self.sender.node) {
            match peers.get(node) {
                Some(peer) => drop(peer.address.send_if_modified(|known| {
                    let is_other = known != address;
                    known.clone_from(address);
                    is_other
                })),
                None => drop(peers.insert(node.clone(), self.peer(node.clone(), address.clone()))),
            }
        }
    }

    fn peer(&self, node: NodeId, address: String) -> Peer {
        let (address, follows) = watch::channel(address);
        let queue = Arc::new(PeerQueue::default());
        let stream = PeerStream {
            sender: Arc::clone(&self.sender),
            node,
            queue: Arc::clone(&queue),
            counters: Arc::clone(&self.counters),
        };
        let task = self.runtime.spawn(stream.run(follows)).abort_handle();
        Peer { address, queue, task }
    }

    /// What was sent and what was dropped since the transport was made.
    pub fn counts(&self) -> SendCounts {
        self.counters.counts()
    }

    /// Packets that wait for a node, and what they count for, in bytes. None: the node has no address.
    pub fn waiting(&self, node: &NodeId) -> Option<(usize, usize)> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.get(node).map(|peer| peer.queue.waiting())
    }
}

impl Transport for NetworkTransport {
    fn send(&self, node: &NodeId, to: &ReplicaKey, from: PlacementId, packet: Packet) {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let added = match peers.get(node) {
            Some(peer) => peer.queue.add(Outgoing { to: to.clone(), from, packet }),
            None => return self.counters.has_no_address(),
        };
        if let Err(dropped) = added {
            self.counters.dropped(dropped);
        }
    }
}
