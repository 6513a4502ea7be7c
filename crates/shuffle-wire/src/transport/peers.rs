//! The other nodes: two queues and two connections for each, one for bulk and one for all other frames.
//!
//! So a short frame, as a decision that a replica is to sync, waits for no batches: neither for those that wait, nor for the
//! megabytes that lie in sockets, nor for the node to have room for them.

use super::Timing;
use super::address::Address;
use super::counts::{SendCounters, SendCounts, add};
use super::peer_connection::PeerConnection;
use super::peer_queue::{Dropped, PeerQueue};
use crate::frame::Frame;
use crate::limits::PEER_BULK_BYTES;
use crate::node::Peer;
use partage_core::base::name::NodeId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Another node. Its connections end when it is dropped.
struct Other {
    address: watch::Sender<Address>,
    short: Arc<PeerQueue>,
    bulk: Arc<PeerQueue>,
    tasks: [AbortHandle; 2],
}

impl Drop for Other {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        // Senders that wait for room wait no longer.
        self.short.set_away();
        self.bulk.set_away();
    }
}

/// Sends the frames of one node to others.
///
/// The owner says where the other nodes are ([`Peers::set_addresses`]). Dropping it ends all connections.
pub struct Peers {
    own: Peer,
    timing: Timing,
    runtime: Handle,
    counters: Arc<SendCounters>,
    /// Bytes of bulk that wait for all other nodes together, in equal parts.
    bulk_bytes: usize,
    others: RwLock<BTreeMap<NodeId, Other>>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Peers {
    /// The connections of the process `own` to other nodes, as tasks of `runtime`.
    pub fn new(own: Peer, timing: Timing, runtime: Handle) -> Peers {
        Peers::bounded(own, timing, runtime, usize::MAX)
    }

    /// The same, with at most so many bytes of bulk that wait for all other nodes together, and one frame for each. For one node
    /// no more wait than without this.
    pub fn bounded(own: Peer, timing: Timing, runtime: Handle, bulk_bytes: usize) -> Peers {
        Peers { own, timing, runtime, counters: Arc::default(), bulk_bytes, others: RwLock::default() }
    }

    /// Where all other nodes are that may be sent to from now on. The connections to a node that is elsewhere now end, and the
    /// next ones go there; those to a node that is not named end.
    pub fn set_addresses(&self, addresses: &BTreeMap<NodeId, Address>) {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        others.retain(|node, _| addresses.contains_key(node));
        for (node, address) in addresses.iter().filter(|(node, _)| **node != self.own.node) {
            match others.get(node) {
                Some(other) => drop(other.address.send_if_modified(|known| {
                    let is_other = known != address;
                    known.clone_from(address);
                    is_other
                })),
                None => drop(others.insert(node.clone(), self.other(node.clone(), address.clone()))),
            }
        }
        let part = (self.bulk_bytes / others.len().max(1)).min(PEER_BULK_BYTES);
        others.values().for_each(|other| other.bulk.set_bulk_bytes(part));
    }

    fn other(&self, to: NodeId, address: Address) -> Other {
        let (address, follows) = watch::channel(address);
        let (short, bulk) = (Arc::<PeerQueue>::default(), Arc::<PeerQueue>::default());
        let tasks = [&short, &bulk].map(|queue| {
            let connection = PeerConnection {
                own: self.own.clone(),
                to: to.clone(),
                timing: self.timing,
                queue: Arc::clone(queue),
                counters: Arc::clone(&self.counters),
            };
            self.runtime.spawn(connection.run(follows.clone())).abort_handle()
        });
        Other { address, short, bulk, tasks }
    }

    fn queue(&self, node: &NodeId, is_bulk: bool) -> Result<Arc<PeerQueue>, Dropped> {
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        let other = others.get(node).ok_or(Dropped::NoAddress)?;
        Ok(Arc::clone(if is_bulk { &other.bulk } else { &other.short }))
    }

    /// Sends a frame, and never waits.
    ///
    /// # Errors
    /// It was dropped. The machines need not be told: they send again what was not answered.
    pub fn send(&self, node: &NodeId, frame: Frame) -> Result<(), Dropped> {
        let added = self.queue(node, false).and_then(|queue| queue.add(frame));
        added.inspect_err(|why| self.counters.dropped(*why))
    }

    /// Sends a frame of bulk, when there is room for it.
    ///
    /// # Errors
    /// It was dropped, as the node is not reached.
    pub async fn send_bulk(&self, node: &NodeId, frame: Frame) -> Result<(), Dropped> {
        let added = match self.queue(node, true) {
            Ok(queue) => queue.add_bulk(frame).await,
            Err(why) => Err(why),
        };
        added.inspect_err(|why| self.counters.dropped(*why))
    }

    /// Whether short frames do not reach the node: its connection for them has ended, or none was opened when it was tried last.
    pub fn has_failed(&self, node: &NodeId) -> bool {
        self.queue(node, false).is_ok_and(|queue| queue.has_failed())
    }

    /// Tries again to reach a node that has failed, though nothing is sent to it.
    pub fn look_for(&self, node: &NodeId) {
        // A node without an address is not looked for.
        let _ = self.queue(node, false).map(|queue| queue.look_for());
    }

    /// Whether bulk does not reach the node, whatever else does.
    pub fn bulk_has_failed(&self, node: &NodeId) -> bool {
        self.queue(node, true).is_ok_and(|queue| queue.has_failed())
    }

    /// What was sent and what was dropped since they were made.
    pub fn counts(&self) -> SendCounts {
        self.counters.counts()
    }

    /// Frames that wait for a node, and their bytes. None: the node has no address.
    pub fn waiting(&self, node: &NodeId) -> Option<(usize, usize)> {
        let (short, bulk) = (self.queue(node, false).ok()?.waiting(), self.queue(node, true).ok()?.waiting());
        Some((short.0 + bulk.0, short.1 + bulk.1))
    }
}

impl SendCounters {
    /// A connection ended or failed, and so many frames that waited for it were dropped.
    pub(super) fn failed(&self, dropped: usize) {
        add(&self.failed, 1);
        add(&self.dropped_away, dropped);
    }

    pub(super) fn sent(&self, frames: &[Frame]) {
        add(&self.sent, frames.len());
        add(&self.sent_bytes, frames.iter().map(Frame::bytes).sum());
    }
}
