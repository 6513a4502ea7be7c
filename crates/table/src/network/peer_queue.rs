//! What waits for one other node: two lanes with bounds, one for chunks of snapshots and one for all other packets.
//!
//! Threads of replicas add; the present stream to the node takes. What waits while the node is not reached is dropped, and so is
//! what is added until the next attempt: replicas send everything again that was not replied to, and a node that comes back
//! should hear how things are, not how they were.

use crate::limits::{
    BATCH_BYTES, MESSAGE_BYTES, PEER_CHUNK_BYTES, PEER_CHUNKS, PEER_PACKET_BYTES, PEER_PACKETS,
};
use crate::network::packet::sent_bytes;
use crate::transport::Packet;
use partage_core::base::id::PlacementId;
use partage_core::node::exchange::ReplicaKey;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A packet on its way out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outgoing {
    pub(super) to: ReplicaKey,
    pub(super) from: PlacementId,
    pub(super) packet: Packet,
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// The queue to the node holds as many packets as it may.
    Full,
    /// The node is not reached.
    Away,
    /// No message has room for it.
    TooLarge,
}

#[derive(Debug)]
struct Lane {
    packets: VecDeque<(usize, Outgoing)>,
    bytes: usize,
    most_packets: usize,
    most_bytes: usize,
}

impl Lane {
    fn new(most_packets: usize, most_bytes: usize) -> Lane {
        Lane { packets: VecDeque::new(), bytes: 0, most_packets, most_bytes }
    }

    fn add(&mut self, bytes: usize, outgoing: Outgoing) -> Result<(), Dropped> {
        if self.packets.len() >= self.most_packets || self.bytes + bytes > self.most_bytes {
            return Err(Dropped::Full);
        }
        self.bytes += bytes;
        self.packets.push_back((bytes, outgoing));
        Ok(())
    }

    /// The first packets: those with so many bytes, but at least one if there is one.
    fn take(&mut self, most_bytes: usize) -> Vec<Outgoing> {
        let mut taken = Vec::new();
        let mut left = most_bytes;
        while let Some((bytes, outgoing)) =
            self.packets.pop_front_if(|(bytes, _)| taken.is_empty() || *bytes <= left)
        {
            left = left.saturating_sub(bytes);
            self.bytes -= bytes;
            taken.push(outgoing);
        }
        taken
    }

    /// Drops all; says how many.
    fn clear(&mut self) -> usize {
        self.bytes = 0;
        std::mem::take(&mut self.packets).len()
    }
}

#[derive(Debug)]
struct Waiting {
    messages: Lane,
    chunks: Lane,
    /// A chunk goes before the next batch of messages.
    is_turn_of_chunks: bool,
    is_away: bool,
    /// The stream that takes; no other one does.
    stream: u64,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.messages.packets.is_empty() && self.chunks.packets.is_empty()
    }

    fn take(&mut self) -> Vec<Outgoing> {
        let is_chunk = self.is_turn_of_chunks || self.messages.packets.is_empty();
        if is_chunk && !self.chunks.packets.is_empty() {
            self.is_turn_of_chunks = false;
            return self.chunks.take(0);
        }
        self.is_turn_of_chunks = true;
        self.messages.take(BATCH_BYTES)
    }
}

/// What waits for one other node.
#[derive(Debug)]
pub(super) struct PeerQueue {
    waiting: Mutex<Waiting>,
    /// Something waits, or another stream takes.
    changed: Notify,
}

impl Default for PeerQueue {
    fn default() -> PeerQueue {
        let waiting = Waiting {
            messages: Lane::new(PEER_PACKETS, PEER_PACKET_BYTES),
            chunks: Lane::new(PEER_CHUNKS, PEER_CHUNK_BYTES),
            is_turn_of_chunks: false,
            is_away: false,
            stream: 0,
        };
        PeerQueue { waiting: Mutex::new(waiting), changed: Notify::new() }
    }
}

impl PeerQueue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a packet, or says why not.
    pub(super) fn add(&self, outgoing: Outgoing) -> Result<(), Dropped> {
        let bytes = sent_bytes(&outgoing.packet);
        if bytes > MESSAGE_BYTES {
            return Err(Dropped::TooLarge);
        }
        let mut waiting = self.lock();
        if waiting.is_away {
            return Err(Dropped::Away);
        }
        let was_empty = waiting.is_empty();
        match outgoing.packet {
            Packet::Chunk(_) => waiting.chunks.add(bytes, outgoing)?,
            Packet::Message(_)
            | Packet::Stored { .. }
            | Packet::Resumed { .. }
            | Packet::Useless { .. }
            | Packet::Ask(_)
            | Packet::Given(_) => waiting.messages.add(bytes, outgoing)?,
        }
        drop(waiting);
        if was_empty {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Packets and bytes that wait.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = self.lock();
        let (messages, chunks) = (&waiting.messages, &waiting.chunks);
        (messages.packets.len() + chunks.packets.len(), messages.bytes + chunks.bytes)
    }

    /// Returns when something waits.
    pub(super) async fn filled(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.lock().is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// A stream begins; those before take nothing any more. Gives its number.
    pub(super) fn begin_stream(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.stream += 1;
        let stream = waiting.stream;
        drop(waiting);
        self.changed.notify_waiters();
        stream
    }

    /// The present stream takes nothing any more: its connection is given up, and may still be polled.
    pub(super) fn end_stream(&self) {
        self.begin_stream();
    }

    /// The next packets for a stream; none when it has ended, or another one has begun.
    pub(super) async fn next(&self, stream: u64) -> Option<Vec<Outgoing>> {
        loop {
            let changed = self.changed.notified();
            {
                let mut waiting = self.lock();
                if waiting.stream != stream {
                    drop(waiting);
                    // What this call was woken for may be for the stream that takes now.
                    self.changed.notify_one();
                    return None;
                }
                if !waiting.is_empty() {
                    return Some(waiting.take());
                }
            }
            changed.await;
        }
    }

    /// The node is not reached: what waits is dropped, and what is added. Says how many that were.
    pub(super) fn set_away(&self) -> usize {
        let mut waiting = self.lock();
        waiting.is_away = true;
        waiting.messages.clear() + waiting.chunks.clear()
    }

    /// The node is looked for again.
    pub(super) fn set_present(&self) {
        self.lock().is_away = false;
    }
}
