//! Where what comes in goes: messages and questions of nodes to the inbox, clients to a session each.
//!
//! While the inbox has no room, nothing is read from the connection: so a node that is slow holds back who sends to it. What it
//! waits for is its own thread, which waits for its own disk at most.

use super::session::Session;
use crate::node::shared::Shared;
use crate::node::{Delivery, Node, Packet};
use partage_core::base::name::NodeId;
use partage_shuffle_wire::node::{Peer, Received};
use partage_shuffle_wire::relay::Relay;
use partage_shuffle_wire::transport::{Answers, Calls, Service};
use std::sync::Arc;

/// A node, as others reach it.
#[derive(Debug)]
pub struct PoolService {
    own: NodeId,
    shared: Arc<Shared>,
    delivery: Delivery,
}

impl PoolService {
    /// Of that node, by its name.
    pub fn new(own: NodeId, node: &Node) -> PoolService {
        PoolService { own, shared: node.shared(), delivery: node.delivery() }
    }

    async fn deliver(&self, from: &Peer, packet: Packet) {
        // A node that has ended takes nothing; its server ends with it.
        self.delivery.deliver_when_room(from.node.clone(), packet).await;
    }
}

impl Service for PoolService {
    async fn received(&self, from: &Peer, received: Received) {
        self.deliver(from, Packet::Message(received.message())).await;
    }

    async fn relayed(&self, from: &Peer, relay: Relay) {
        let packet = match relay {
            Relay::Request(number, shuffle, request) => Packet::Request(number, shuffle, request),
            Relay::Answered(number, answer) => Packet::Answered(number, answer),
            Relay::Read(number, slice) => Packet::Read(number, slice),
            Relay::Records(number, answer) => Packet::Records(number, answer),
            Relay::Seek(number, seek) => Packet::Seek(number, seek),
            Relay::Found(number, found) => Packet::Found(number, found),
        };
        self.deliver(from, packet).await;
    }

    async fn client(&self, calls: &mut Calls<'_>, answers: Answers) {
        let session = Session::new(Arc::clone(&self.shared), self.own.clone(), answers);
        session.run(calls).await;
    }
}
