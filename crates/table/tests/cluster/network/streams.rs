//! Streams themselves: what is accepted, what is dropped, and when they end.

use super::{ANYWHERE, Listening};
use crate::support::{node_id, replica, until};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use partage_core::base::id::{Epoch, Incarnation, PlacementId};
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_door::TowerService;
use partage_service::table::replication::message::Append;
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Message};
use partage_table::limits::{PEER_CHUNK_BYTES, PEER_PACKET_BYTES, PEER_PACKETS, STREAMS};
use partage_table::{NetworkTransport, Packet, PacketService, PacketSink, Transport};
use partage_wire::proto;
use partage_wire::proto::packets_client::PacketsClient;
use partage_wire::proto::packets_server::{Packets, PacketsServer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status, Streaming};

/// A sink that keeps the packets, for a test to compare.
#[derive(Default)]
struct Kept(Mutex<Vec<(ReplicaKey, PlacementId, Packet)>>);

impl PacketSink for Kept {
    fn receive(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>) {
        self.0.lock().unwrap().extend(packets);
    }
}

fn transport(node: u64) -> NetworkTransport {
    NetworkTransport::new(node_id(node), Some(Incarnation(5)), Handle::current())
}

fn at(addresses: &[(u64, &str)]) -> BTreeMap<partage_core::base::name::NodeId, String> {
    addresses.iter().map(|(node, address)| (node_id(*node), (*address).to_owned())).collect()
}

fn let_go(number: u64) -> Packet {
    Packet::Message(Message::LetGo(Epoch(number)))
}

fn append(bytes: usize) -> Packet {
    let position = LogPosition { epoch: Epoch(1), index: 1 };
    Packet::Message(Message::Append(Append {
        epoch: Epoch(1),
        before: LogPosition::default(),
        entries: vec![Entry { position, kind: EntryKind::Write(vec![7; bytes].into()) }],
        committed: 0,
        is_enough: false,
        sent: Millis(0),
        echo: None,
    }))
}

#[tokio::test]
async fn packets_arrive_in_their_order_and_streams_end_with_their_address() {
    let kept = Arc::new(Kept::default());
    let service = PacketService::new(node_id(2), kept.clone());
    let first = Listening::start(&service, ANYWHERE).await;
    let second = Listening::start(&service, ANYWHERE).await;
    let transport = transport(1);
    let send = |number| {
        transport.send(&node_id(2), &replica(1, 2), PlacementId(11), let_go(number));
    };
    send(0);
    assert_eq!(transport.counts().dropped_no_address, 1);
    transport.set_addresses(&at(&[(1, "127.0.0.1:1"), (2, &first.address)]));
    (1..=3).for_each(send);
    let has = async |count: usize| {
        until("packets arrive", async || (kept.0.lock().unwrap().len() >= count).then_some(())).await;
    };
    has(3).await;
    assert_eq!(service.counts().streams_open, 1);
    // Elsewhere: the first stream ends, and the next packet opens another one.
    transport.set_addresses(&at(&[(2, &second.address)]));
    until("the stream ends", async || (service.counts().streams_open == 0).then_some(())).await;
    send(4);
    has(4).await;
    let expected = (1..=4).map(|number| (replica(1, 2), PlacementId(11), let_go(number)));
    assert_eq!(*kept.0.lock().unwrap(), expected.collect::<Vec<_>>());
    let counts = transport.counts();
    assert_eq!((counts.streams_opened, counts.streams_failed, counts.sent), (2, 0, 4), "{counts:?}");
    // Not named any more.
    transport.set_addresses(&at(&[]));
    until("the stream ends", async || (service.counts().streams_open == 0).then_some(())).await;
    send(5);
    assert_eq!(transport.counts().dropped_no_address, 2);
    assert_eq!(transport.waiting(&node_id(2)), None);
}

/// Accepts streams, and reads no further than the opening until `reads`.
struct Stalled {
    reads: watch::Receiver<bool>,
    packets: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl Packets for Stalled {
    type DeliverStream = BoxStream<'static, Result<proto::DeliveryAnswer, Status>>;

    async fn deliver(
        &self,
        request: Request<Streaming<proto::PacketBatch>>,
    ) -> Result<Response<Self::DeliverStream>, Status> {
        let (mut batches, mut reads, packets) =
            (request.into_inner(), self.reads.clone(), self.packets.clone());
        batches.message().await?;
        let read = async move {
            reads.wait_for(|reads| *reads).await.unwrap();
            while let Ok(Some(batch)) = batches.message().await {
                packets.fetch_add(batch.packets.len() as u64, Ordering::Relaxed);
            }
            Err(Status::unavailable("it is over"))
        };
        Ok(Response::new(read.into_stream().boxed()))
    }
}

#[tokio::test]
async fn a_node_that_does_not_read_costs_no_more_than_the_queue_has_and_recovers() {
    let (read, reads) = watch::channel(false);
    let packets = Arc::new(AtomicU64::new(0));
    let stalled = PacketsServer::new(Stalled { reads, packets: packets.clone() });
    let listening = Listening::start_with(TowerService::new(stalled), ANYWHERE).await;
    let transport = transport(1);
    transport.set_addresses(&at(&[(2, &listening.address)]));
    let send = |packet| transport.send(&node_id(2), &replica(1, 2), PlacementId(11), packet);
    // Until nothing moves: what is dropped is as much as is added.
    until("the queue is full", async || {
        let before = transport.counts();
        (0..1_000).for_each(|_| send(append(64 << 10)));
        let after = transport.counts();
        (after.streams_opened == 1 && after.dropped_full - before.dropped_full == 1_000).then_some(())
    })
    .await;
    let (waiting, bytes) = transport.waiting(&node_id(2)).unwrap();
    assert!(bytes <= PEER_PACKET_BYTES + PEER_CHUNK_BYTES, "{bytes}");
    // What is on its way beside the queue is a window and what was encoded for it, not all that was sent.
    let under_way = transport.counts().sent * (64 << 10);
    assert!(under_way <= 4 << 20, "{under_way}");
    // Many small ones are bounded by their number.
    (0..2 * PEER_PACKETS as u64).for_each(|number| send(let_go(number)));
    assert!(transport.waiting(&node_id(2)).unwrap().0 <= PEER_PACKETS);
    read.send(true).unwrap();
    until("the queue is empty", async || (transport.waiting(&node_id(2)) == Some((0, 0))).then_some(()))
        .await;
    let dropped = transport.counts().dropped_full;
    send(let_go(0));
    until("all that was sent arrives", async || {
        (packets.load(Ordering::Relaxed) == transport.counts().sent).then_some(())
    })
    .await;
    let counts = transport.counts();
    assert_eq!((counts.dropped_full, counts.streams_opened), (dropped, 1), "{counts:?}");
    assert!(counts.sent > waiting as u64, "{counts:?}");
}

/// Its connection would stay open for ever, as a node that reads nothing takes no end of a stream either.
#[tokio::test]
async fn a_node_that_does_not_read_loses_its_connection_when_it_is_not_named_any_more() {
    let (_read, reads) = watch::channel(false);
    let stalled = PacketsServer::new(Stalled { reads, packets: Arc::default() });
    let door = partage_door::Door::new(partage_door::Role::default(), partage_door::Settings::default());
    let listener = tokio::net::TcpListener::bind(ANYWHERE).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(door.listen(listener, TowerService::new(stalled), stopped));
    let transport = transport(1);
    transport.set_addresses(&at(&[(2, &address)]));
    let send = |packet| transport.send(&node_id(2), &replica(1, 2), PlacementId(11), packet);
    until("the queue is full", async || {
        (0..100).for_each(|_| send(append(64 << 10)));
        let counts = transport.counts();
        (counts.streams_opened == 1 && counts.dropped_full > 0).then_some(())
    })
    .await;
    assert_eq!(door.connections(), 1);
    transport.set_addresses(&at(&[]));
    until("the connection ends", async || (door.connections() == 0).then_some(())).await;
}

fn opening(to: &str) -> proto::PacketBatch {
    let opening = proto::DeliveryOpening { from: "n1".into(), incarnation: 0, to: to.into() };
    proto::PacketBatch { opening: Some(opening), packets: vec![] }
}

#[tokio::test]
async fn what_is_refused_is_refused_with_a_reason() {
    let kept = Arc::new(Kept::default());
    let service = PacketService::new(node_id(2), kept.clone());
    let listening = Listening::start(&service, ANYWHERE).await;
    let client = PacketsClient::connect(format!("http://{}", listening.address)).await.unwrap();
    let refused = async |batches: Vec<proto::PacketBatch>| {
        client.clone().deliver(stream::iter(batches)).await.unwrap_err()
    };
    let other = refused(vec![opening("n3")]).await;
    assert_eq!(other.code(), Code::FailedPrecondition);
    assert!(["node n2", "node n1", "node n3"].iter().all(|node| other.message().contains(node)), "{other}");
    for (batches, field) in [
        (vec![], "opening: is missing"),
        (vec![proto::PacketBatch::default()], "opening: is missing"),
        (vec![opening("")], "to: "),
    ] {
        let status = refused(batches).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(field), "{status}");
    }
    assert_eq!(service.counts().streams_refused, 4);
    // A packet that this version cannot read takes nothing else with it.
    let good = proto::Packet {
        to: Some((&replica(1, 2)).into()),
        from: 11,
        content: Some(proto::packet::Content::LetGo(proto::LetGo { epoch: 4 })),
    };
    let unknown = proto::Packet { content: None, ..good.clone() };
    let batch = proto::PacketBatch { opening: None, packets: vec![unknown, good] };
    let mut answers =
        client.clone().deliver(stream::iter(vec![opening("n2"), batch])).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap(), None);
    assert_eq!(*kept.0.lock().unwrap(), [(replica(1, 2), PlacementId(11), let_go(4))]);
    assert_eq!((service.counts().received, service.counts().malformed), (1, 1));
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused_until_others_end() {
    let service = PacketService::new(node_id(2), Arc::new(Kept::default()));
    let listening = Listening::start(&service, ANYWHERE).await;
    // The door lets 200 requests in at a time on one connection.
    let mut clients = Vec::new();
    for _ in 0..STREAMS.div_ceil(200) {
        clients.push(PacketsClient::connect(format!("http://{}", listening.address)).await.unwrap());
    }
    let (end, ended) = watch::channel(usize::MAX);
    let open = async |number: usize| {
        let mut ended = ended.clone();
        let end = async move { ended.wait_for(|end| *end == number).await.map(drop) };
        let rest = end.into_stream().filter_map(|_| std::future::ready(None));
        clients[number / 200].clone().deliver(stream::iter([opening("n2")]).chain(rest.boxed())).await
    };
    let mut streams = Vec::new();
    for number in 0..STREAMS {
        streams.push(open(number).await.unwrap());
    }
    let status = open(STREAMS).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    end.send(7).unwrap();
    until("a stream ends", async || (service.counts().streams_open < STREAMS as u64).then_some(())).await;
    open(STREAMS).await.unwrap();
}
