//! The serving half: a gRPC service that hands in packets for one node. The process serves it at its listener.

use crate::limits::{MESSAGE_BYTES, OPENING_MS, STREAMS};
use crate::network::counts::{ReceiveCounters, ReceiveCounts};
use crate::network::packet;
use crate::node::Node;
use crate::transport::Packet;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_core::base::id::PlacementId;
use partage_core::base::name::NodeId;
use partage_core::node::exchange::ReplicaKey;
use partage_wire::proto::packets_server::{Packets, PacketsServer};
use partage_wire::replication::{Opening, Packet as WirePacket};
use partage_wire::{Malformed, proto};
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

/// Takes packets for the replicas of one node. The node may be opened anew under it; while there is none, packets are dropped.
pub trait PacketSink: Send + Sync + 'static {
    /// Packets have come, in one message. Must not block. The caller has no lock, as replicas may be served before the call ends.
    fn receive(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>);
}

impl PacketSink for Node {
    fn receive(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>) {
        self.receive_all(packets);
    }
}

/// Accepts streams of packets for one node. A copy is the same service.
#[derive(Clone)]
pub struct PacketService(Arc<Accepting>);

struct Accepting {
    node: NodeId,
    sink: Arc<dyn PacketSink>,
    streams: Arc<Semaphore>,
    counters: ReceiveCounters,
}

impl fmt::Debug for PacketService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketService").field("node", &self.0.node).finish_non_exhaustive()
    }
}

impl PacketService {
    /// For that node, whose replicas are behind `sink`.
    pub fn new(node: NodeId, sink: Arc<dyn PacketSink>) -> PacketService {
        let streams = Arc::new(Semaphore::new(STREAMS));
        PacketService(Arc::new(Accepting { node, sink, streams, counters: ReceiveCounters::default() }))
    }

    /// The service as a server of gRPC takes it, with the longest message that it reads.
    pub fn server(&self) -> PacketsServer<PacketService> {
        PacketsServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES)
    }

    /// What was received since the service was made.
    pub fn counts(&self) -> ReceiveCounts {
        self.0.counters.counts(STREAMS - self.0.streams.available_permits())
    }

    async fn accept(
        &self,
        batches: &mut Streaming<proto::PacketBatch>,
    ) -> Result<(Opening, OwnedSemaphorePermit), Status> {
        let node = &self.0.node;
        let permit = Arc::clone(&self.0.streams).try_acquire_owned().map_err(|_| {
            let why = format!(
                "node {node} has {STREAMS} streams of packets, and may have no more: try again later"
            );
            Status::resource_exhausted(why)
        })?;
        let late = |_| Status::deadline_exceeded(format!("no opening came within {OPENING_MS} ms"));
        let first = timeout(Duration::from_millis(OPENING_MS), batches.message()).await.map_err(late)??;
        let opening = first.and_then(|batch| batch.opening);
        let missing = || Malformed::new("opening", "is missing: the first message of a stream has it");
        let opening = opening.ok_or_else(missing).and_then(Opening::try_from);
        let opening = opening.map_err(|why| Status::invalid_argument(why.to_string()))?;
        if opening.to != *node {
            return Err(Status::failed_precondition(format!(
                "this is node {node}, and the stream of node {} is for node {}: ask the coordinator anew where that is",
                opening.from, opening.to
            )));
        }
        Ok((opening, permit))
    }

    /// Hands in what comes, to the end of the stream.
    async fn receive_all(
        self,
        opening: Opening,
        mut batches: Streaming<proto::PacketBatch>,
    ) -> Result<(), Status> {
        let Accepting { sink, counters, .. } = &*self.0;
        let mut is_told = false;
        while let Some(batch) = batches.message().await? {
            let mut received = Vec::with_capacity(batch.packets.len());
            for packet in batch.packets {
                match WirePacket::try_from(packet) {
                    Ok(WirePacket { to, from, content }) => {
                        counters.received();
                        received.push((to, from, packet::received(content)));
                    }
                    Err(why) => {
                        counters.malformed();
                        if !std::mem::replace(&mut is_told, true) {
                            let (node, incarnation) =
                                (&opening.from, opening.incarnation.map(|number| number.0));
                            tracing::warn!(%node, incarnation, %why, "a node sends packets that cannot be read");
                        }
                    }
                }
            }
            sink.receive(received);
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Packets for PacketService {
    type DeliverStream = BoxStream<'static, Result<proto::DeliveryAnswer, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<proto::PacketBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let mut batches = request.into_inner();
        let accepted = self.accept(&mut batches).await;
        let (opening, permit) = accepted.inspect_err(|_| self.0.counters.refused())?;
        self.0.counters.accepted();
        let (node, incarnation) = (&opening.from, opening.incarnation.map(|number| number.0));
        tracing::debug!(%node, incarnation, "a node sends packets of replicas");
        let service = self.clone();
        // The answer receives while it is written: when the client goes, both end.
        let received = stream::once(async move {
            let received = service.receive_all(opening, batches).await;
            drop(permit);
            received
        });
        Ok(Response::new(received.filter_map(|received| ready(received.err().map(Err))).boxed()))
    }
}
