//! The queue of a peer at its bounds, and what packets count for.

use super::packet::{received, sent_bytes};
use super::peer_queue::{Dropped, Outgoing, PeerQueue};
use crate::limits::{
    BATCH_BYTES, CHUNK_BYTES, MESSAGE_BYTES, PACKET_AROUND_BYTES, PEER_CHUNK_BYTES, PEER_CHUNKS,
    PEER_PACKET_BYTES, PEER_PACKETS,
};
use crate::transport::{Packet, SnapshotChunk};
use partage_core::base::id::{Epoch, PlacementId, ShardId};
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Row, limits};
use partage_log::LogSettings;
use partage_service::table::copy::deadline::Urgency;
use partage_service::table::replication::message::Append;
use partage_service::table::replication::{Entry, EntryKind, LogPosition, Message, Settings};
use partage_wire::replication as wire;
use partage_wire::{proto, testing};
use proptest::prelude::*;
use prost::Message as _;
use std::sync::Arc;

fn outgoing(packet: Packet) -> Outgoing {
    let keyspace = "orders".parse().unwrap();
    let to = ReplicaKey { keyspace, shard: ShardId(1), placement: PlacementId(12) };
    Outgoing { to, from: PlacementId(11), packet }
}

fn heartbeat(number: u64) -> Outgoing {
    outgoing(Packet::Message(Message::LetGo(Epoch(number))))
}

fn entries(bytes: usize, count: u64) -> Outgoing {
    let kind = EntryKind::Write(vec![7; bytes].into());
    let entry = |index| Entry { position: LogPosition { epoch: Epoch(u64::MAX), index }, kind: kind.clone() };
    let (before, first) = (u64::MAX - count - 1, u64::MAX - count);
    outgoing(Packet::Message(Message::Append(Append {
        epoch: Epoch(u64::MAX),
        before: LogPosition { epoch: Epoch(u64::MAX), index: before },
        entries: (first..first + count).map(entry).collect(),
        committed: u64::MAX,
        is_enough: true,
        sent: Millis(u64::MAX),
        echo: None,
    })))
}

fn chunk(number: u64, values: &[usize]) -> Outgoing {
    let row = |(at, bytes): (usize, &usize)| Row {
        key: at.to_be_bytes().as_slice().into(),
        value: vec![7; *bytes].into(),
    };
    let rows = Arc::new(values.iter().enumerate().map(row).collect());
    let (position, is_last, urgency) = (LogPosition::default(), false, Urgency::Urgent);
    outgoing(Packet::Chunk(SnapshotChunk { position, number, rows, is_last, urgency }))
}

fn encoded_bytes(outgoing: Outgoing) -> usize {
    let packets = vec![wire::Packet::from(outgoing).into()];
    proto::PacketBatch { opening: None, packets }.encoded_len()
}

async fn next(queue: &PeerQueue, stream: u64) -> Vec<Outgoing> {
    queue.next(stream).await.unwrap()
}

proptest! {
    #[test]
    fn packets_are_what_they_were_and_count_for_what_they_take(packet in testing::packets()) {
        let sent = Outgoing { to: packet.to.clone(), from: packet.from, packet: received(packet.content.clone()) };
        prop_assert!(encoded_bytes(sent.clone()) <= sent_bytes(&sent.packet));
        prop_assert_eq!(wire::Packet::from(sent), packet);
    }
}

#[test]
fn the_largest_packets_count_for_what_they_take_and_fit_a_message() {
    let settings = Settings::default();
    let small = settings.append_bytes / settings.append_entries - 48;
    let largest = [
        entries(LogSettings::default().entry_bytes, 1),
        entries(small, settings.append_entries as u64),
        entries(0, settings.append_entries as u64),
        chunk(u64::MAX, &[CHUNK_BYTES - 8 - 1, limits::VALUE_BYTES]),
        chunk(u64::MAX, &vec![1; CHUNK_BYTES / 9]),
    ];
    for packet in largest {
        let (counted, encoded) = (sent_bytes(&packet.packet), encoded_bytes(packet));
        assert!(encoded <= counted && counted <= MESSAGE_BYTES, "{encoded} {counted}");
    }
    // Beside the largest rows there is room for the largest key, and for all of the smallest batch.
    const { assert!(BATCH_BYTES + CHUNK_BYTES + limits::VALUE_BYTES + limits::KEY_BYTES <= MESSAGE_BYTES) };
}

#[test]
fn what_no_message_has_room_for_is_dropped() {
    let queue = PeerQueue::default();
    assert_eq!(queue.add(entries(MESSAGE_BYTES, 1)), Err(Dropped::TooLarge));
    assert_eq!(queue.waiting(), (0, 0));
}

#[test]
fn what_does_not_fit_is_dropped_by_count_and_by_bytes() {
    let queue = PeerQueue::default();
    (0..PEER_PACKETS as u64).for_each(|number| queue.add(heartbeat(number)).unwrap());
    assert_eq!(queue.add(heartbeat(0)), Err(Dropped::Full));
    (0..PEER_CHUNKS as u64).for_each(|number| queue.add(chunk(number, &[1])).unwrap());
    assert_eq!(queue.add(chunk(0, &[1])), Err(Dropped::Full), "each lane has its own bound");

    let queue = PeerQueue::default();
    let packet = entries(1 << 20, 1);
    let fits = PEER_PACKET_BYTES / sent_bytes(&packet.packet);
    (0..fits).for_each(|_| queue.add(packet.clone()).unwrap());
    assert_eq!(queue.add(packet), Err(Dropped::Full));
    let packet = chunk(0, &[CHUNK_BYTES, limits::VALUE_BYTES]);
    let fits = PEER_CHUNK_BYTES / sent_bytes(&packet.packet);
    assert!(fits < PEER_CHUNKS, "or this tests the wrong bound");
    (0..fits).for_each(|_| queue.add(packet.clone()).unwrap());
    assert_eq!(queue.add(packet), Err(Dropped::Full));
    assert!(queue.waiting().1 <= PEER_PACKET_BYTES + PEER_CHUNK_BYTES);
}

#[tokio::test]
async fn what_is_taken_makes_room_again() {
    let queue = PeerQueue::default();
    let stream = queue.begin_stream();
    for number in 0..2 * PEER_PACKETS as u64 {
        queue.add(heartbeat(number)).unwrap();
        if number % 2 == 1 {
            assert_eq!(next(&queue, stream).await, [heartbeat(number - 1), heartbeat(number)]);
        }
    }
    assert_eq!(queue.waiting(), (0, 0));
}

/// An append waits for one chunk at most, and a chunk for one batch.
#[tokio::test]
async fn chunks_and_messages_take_turns() {
    let queue = PeerQueue::default();
    let stream = queue.begin_stream();
    let batch = BATCH_BYTES / PACKET_AROUND_BYTES;
    let many = 3 * batch as u64;
    (0..2).for_each(|number| queue.add(chunk(number, &[1])).unwrap());
    (0..many).for_each(|number| queue.add(heartbeat(number)).unwrap());
    let mut kinds = Vec::new();
    while queue.waiting().0 > 0 {
        let taken = next(&queue, stream).await;
        kinds.push((matches!(taken[0].packet, Packet::Chunk(_)), taken.len()));
    }
    let messages = (false, batch);
    assert_eq!(kinds, [messages, (true, 1), messages, (true, 1), messages]);
}

#[tokio::test]
async fn a_batch_ends_by_its_bytes_and_has_one_packet_at_least() {
    let queue = PeerQueue::default();
    let stream = queue.begin_stream();
    let sizes = [100 << 10, 100 << 10, 100 << 10, 1 << 20, 10];
    sizes.into_iter().for_each(|bytes| queue.add(entries(bytes, 1)).unwrap());
    let mut taken = Vec::new();
    while queue.waiting().0 > 0 {
        taken.push(next(&queue, stream).await.len());
    }
    assert_eq!(taken, [2, 1, 1, 1]);
}

#[tokio::test]
async fn a_node_that_is_away_gets_nothing_of_before() {
    let queue = PeerQueue::default();
    queue.add(heartbeat(1)).unwrap();
    queue.add(chunk(1, &[1])).unwrap();
    assert_eq!(queue.set_away(), 2);
    assert_eq!(queue.add(heartbeat(2)), Err(Dropped::Away));
    queue.set_present();
    queue.add(heartbeat(3)).unwrap();
    queue.filled().await;
    let stream = queue.begin_stream();
    assert_eq!(next(&queue, stream).await, [heartbeat(3)]);
}

/// A stream whose connection is gone must not swallow what the next one is to send.
#[tokio::test]
async fn a_former_stream_takes_nothing_and_ends() {
    let queue = Arc::new(PeerQueue::default());
    let former = queue.begin_stream();
    let waits = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.next(former).await }
    });
    tokio::task::yield_now().await;
    let stream = queue.begin_stream();
    assert_eq!(waits.await.unwrap(), None);
    queue.add(heartbeat(1)).unwrap();
    assert_eq!(queue.next(former).await, None);
    assert_eq!(next(&queue, stream).await, [heartbeat(1)]);
    queue.end_stream();
    queue.add(heartbeat(2)).unwrap();
    assert_eq!(queue.next(stream).await, None);
    assert_eq!(queue.waiting().0, 1, "it is for the next stream");
}
