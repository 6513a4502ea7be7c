//! The packets of a node as frames to others.
//!
//! Batches and records are bulk: the thread of the node hands them to a lane of the other node, which is bounded, and a task
//! encodes them there and waits until the connection has room. A batch that waits already is not added again, unless its buffer
//! has let go of the one that waits, or may do so, and this one is here alone. In a lane the batches of shuffles, and records for
//! readers, take turns, and an eighth of its room is for those of which little waits.
//!
//! | in a lane | its bound, and what becomes of what is beyond it |
//! |---|---|
//! | a batch that its buffer holds too, until enough nodes have stored it | that of the buffer. The lane takes no memory for it, and sends nothing of it when the buffer has let it go |
//! | records, or keys that were sought, for a reader | bytes. As many of them go as fit into half of them, and then a few in turn for each reader, which goes on where they end; if none does, the reader hears that this node is busy, and asks another one |
//! | a batch that was read for another node | bytes. It is dropped, and asked for again |
//! | a question whether a batch is stored | packets. It waits behind the batches of its shuffle, as its answer says whether they were lost |
//!
//! So what has to wait goes on when there is room: no writer and no reader waits for a timer because a lane was full.

use crate::limits::{BULK_BYTES, BULK_PACKETS, LEAST_ANSWER_BYTES};
use crate::node::{Packet, Transport};
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::message::{AskOrder, Message};
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::seek::Found;
use partage_service::shuffle::turns::{Turns, may_wait};
use partage_service::shuffle::{PoolSlot, ShuffleId};
use partage_shuffle_wire::FrameError;
use partage_shuffle_wire::frame::Frame;
use partage_shuffle_wire::node::{Peer, frame};
use partage_shuffle_wire::relay::Relay;
use partage_shuffle_wire::transport::{Address, Peers, SendCounts, Timing};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// Which loading replicas have everything, as often as the machines say so.
#[derive(Debug, Clone)]
pub struct ReadySlots(Arc<watch::Sender<BTreeMap<PoolSlot, u64>>>);

impl Default for ReadySlots {
    fn default() -> ReadySlots {
        ReadySlots(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl ReadySlots {
    fn say(&self, slot: PoolSlot) {
        self.0.send_modify(|said| *said.entry(slot).or_default() += 1);
    }

    /// Returns when the machines say it the next time. They say it in every round while it is so.
    pub async fn next(&self, slot: PoolSlot) {
        let mut said = self.0.subscribe();
        let count = |said: &BTreeMap<PoolSlot, u64>| said.get(&slot).copied().unwrap_or(0);
        let before = count(&said.borrow());
        // The sender lives as long as this.
        let _ = said.wait_for(|said| count(said) > before).await;
    }
}

/// One thing that waits in a lane.
#[derive(Debug)]
enum Bulk {
    /// A batch that its buffer holds.
    Held(BatchKey, Weak<Batch>),
    /// What is here alone, and what it takes in memory.
    Own(Packet, u64),
}

impl Bulk {
    fn of(packet: Packet) -> Bulk {
        match &packet {
            Packet::Message(Message::Batch(batch)) if Arc::strong_count(batch) > 1 => {
                Bulk::Held(batch.key.clone(), Arc::downgrade(batch))
            }
            _ => {
                let bytes = packet.bytes();
                Bulk::Own(packet, bytes)
            }
        }
    }

    fn key(&self) -> Option<BatchKey> {
        match self {
            Bulk::Held(key, _) => Some(key.clone()),
            Bulk::Own(Packet::Message(Message::Batch(batch)), _) => Some(batch.key.clone()),
            Bulk::Own(..) => None,
        }
    }

    /// The shuffle in whose turn it goes.
    fn shuffle(&self) -> Option<ShuffleId> {
        match self {
            Bulk::Held(key, _) => Some(key.stream.shuffle),
            Bulk::Own(packet, _) => packet.turn_of(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Bulk::Held(..) => 0,
            Bulk::Own(_, bytes) => *bytes,
        }
    }

    /// What it counts where shuffles take turns: its bytes, also those that its buffer holds.
    fn cost(&self) -> u64 {
        match self {
            Bulk::Held(_, batch) => batch.upgrade().map_or(0, |batch| batch.memory()),
            Bulk::Own(_, bytes) => *bytes,
        }
    }

    /// Its batch, if it is one.
    fn batch(&self) -> Option<(BatchKey, WaitingBatch)> {
        let batch = match self {
            Bulk::Held(_, batch) => WaitingBatch::Held(Weak::clone(batch)),
            Bulk::Own(..) => WaitingBatch::Own,
        };
        Some((self.key()?, batch))
    }

    /// Whether it has one record, or one key, as fewer cannot go.
    fn is_one(&self) -> bool {
        match self {
            Bulk::Own(Packet::Records(_, Ok(records)), _) => records.len() == 1,
            Bulk::Own(Packet::Found(_, Found::Cuts(cuts)), _) => cuts.len() == 1,
            Bulk::Own(Packet::Found(_, Found::HeavyKeys { keys, .. }), _) => keys.len() == 1,
            Bulk::Own(..) | Bulk::Held(..) => false,
        }
    }

    /// None: its buffer has let it go.
    fn packet(self) -> Option<Packet> {
        match self {
            Bulk::Held(_, batch) => batch.upgrade().map(|batch| Packet::Message(Message::Batch(batch))),
            Bulk::Own(packet, _) => Some(packet),
        }
    }
}

/// How a batch waits.
#[derive(Debug)]
enum WaitingBatch {
    Held(Weak<Batch>),
    Own,
}

/// What waits in a lane.
#[derive(Debug, Default)]
struct Waiting {
    /// Records for readers are of no shuffle.
    packets: Turns<Option<ShuffleId>, Bulk>,
    batches: BTreeMap<BatchKey, WaitingBatch>,
    /// A record for a reader found no room beside others: nothing is added for readers until nothing waits.
    is_kept_free: bool,
    /// With the one that is being sent.
    bytes: u64,
    of: BTreeMap<Option<ShuffleId>, u64>,
}

impl Waiting {
    /// Whether a batch that waits will be sent although this one is not.
    fn has(&self, bulk: &Bulk) -> bool {
        let Some((key, batch)) = bulk.batch() else { return false };
        match (self.batches.get(&key), batch) {
            (Some(WaitingBatch::Own), _) => true,
            (Some(WaitingBatch::Held(waits)), WaitingBatch::Held(_)) => waits.strong_count() > 0,
            (Some(WaitingBatch::Held(_)), WaitingBatch::Own) | (None, _) => false,
        }
    }

    fn has_room(&self, of: &Option<ShuffleId>, most: u64, bytes: u64) -> bool {
        if of.is_none() && self.is_kept_free && self.bytes > 0 {
            return false;
        }
        let own = self.of.get(of).copied();
        let shuffles = self.of.len() as u64 + u64::from(own.is_none());
        let (packets, own_packets) = (self.packets.len() as u64, self.packets.len_of(of) as u64);
        let fits = may_wait((self.bytes, most), (own.unwrap_or(0), shuffles), bytes);
        (self.bytes == 0 || bytes == 0 || fits)
            && may_wait((packets, BULK_PACKETS as u64), (own_packets, shuffles), 1)
    }

    fn add(&mut self, bulk: Bulk) {
        let (batch, bytes, of, cost) = (bulk.batch(), bulk.bytes(), bulk.shuffle(), bulk.cost());
        self.is_kept_free &= of.is_some();
        self.bytes += bytes;
        *self.of.entry(of).or_default() += bytes;
        self.batches.extend(batch);
        self.packets.push(of, bulk, cost);
    }

    /// What is to be sent next. A batch that its buffer holds is not sent where one that is here alone waits in its stead.
    fn next(&mut self) -> Option<Bulk> {
        loop {
            let bulk = self.packets.pop()?;
            match &bulk {
                Bulk::Held(key, _) if matches!(self.batches.get(key), Some(WaitingBatch::Own)) => {}
                _ => return Some(bulk),
            }
        }
    }

    /// It was sent, or dropped.
    fn is_sent(&mut self, of: Option<ShuffleId>, key: Option<BatchKey>, bytes: u64) {
        self.bytes -= bytes;
        let left = self.of.get(&of).map_or(0, |waits| waits.saturating_sub(bytes));
        // What takes no bytes waits too.
        match left {
            0 if self.packets.len_of(&of) == 0 => drop(self.of.remove(&of)),
            left => drop(self.of.insert(of, left)),
        }
        // An own one that has come meanwhile in the stead of one that the buffer held waits still.
        if let Some(key) = key
            && (bytes > 0 || !matches!(self.batches.get(&key), Some(WaitingBatch::Own)))
        {
            self.batches.remove(&key);
        }
    }
}

/// How much of the records for a reader one more packet may take where so much waits.
fn share(most: u64, waiting: u64) -> u64 {
    if waiting == 0 {
        return u64::MAX;
    }
    let left = most.saturating_sub(waiting);
    (most / 2).saturating_sub(waiting).max(left.min(LEAST_ANSWER_BYTES))
}

/// Of records, and of keys that were sought, as many as have room in so many bytes of memory, and one at least.
fn within(packet: Packet, room: u64) -> Packet {
    match packet {
        Packet::Records(number, Ok(records)) => Packet::Records(number, Ok(records.within(room))),
        Packet::Found(number, found) => Packet::Found(number, found.bounded(room)),
        packet => packet,
    }
}

/// What waits for another node, and the task that sends it.
#[derive(Debug)]
struct Lane {
    waiting: Arc<Mutex<Waiting>>,
    filled: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends the packets of one node.
pub struct WireTransport {
    peers: Arc<Peers>,
    runtime: Handle,
    lanes: Mutex<BTreeMap<NodeId, Lane>>,
    /// Keys and values that wait in all lanes together, in equal parts.
    lanes_bytes: u64,
    ready: ReadySlots,
}

impl fmt::Debug for WireTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireTransport").field("peers", &self.peers).finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under these locks is one step.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WireTransport {
    /// Of that process. Its connections are tasks of `runtime`.
    pub fn new(own: Peer, timing: Timing, runtime: Handle) -> WireTransport {
        WireTransport::bounded(own, timing, runtime, u64::MAX)
    }

    /// The same, with at most so many bytes that wait for all other nodes together: one half as packets, and one as frames. One
    /// of each always may wait for a node.
    pub fn bounded(own: Peer, timing: Timing, runtime: Handle, sending_bytes: u64) -> WireTransport {
        let lanes_bytes = sending_bytes / 2;
        let frames_bytes = usize::try_from(sending_bytes - lanes_bytes).unwrap_or(usize::MAX);
        let peers = Arc::new(Peers::bounded(own, timing, runtime.clone(), frames_bytes));
        let (lanes, ready) = Default::default();
        WireTransport { peers, runtime, lanes, lanes_bytes, ready }
    }

    /// Where all other nodes are that may be sent to from now on.
    pub fn set_addresses(&self, addresses: &BTreeMap<NodeId, Address>) {
        self.peers.set_addresses(addresses);
        lock(&self.lanes).retain(|node, _| addresses.contains_key(node));
    }

    /// Which loading replicas have everything.
    pub fn ready_slots(&self) -> ReadySlots {
        self.ready.clone()
    }

    /// What was sent and what was dropped since the start.
    pub fn counts(&self) -> SendCounts {
        self.peers.counts()
    }

    /// What batches and records that wait to be sent take in memory, in bytes.
    pub fn waiting_bytes(&self) -> u64 {
        lock(&self.lanes).values().map(|lane| lock(&lane.waiting).bytes).sum()
    }

    fn send_bulk(&self, to: &NodeId, packet: Packet) {
        if let Some(Packet::Records(number, _) | Packet::Found(number, _)) = self.add_bulk(to, packet) {
            self.send_short(to, Packet::Records(number, Err(NotRead::Busy)));
        }
    }

    /// What is given back finds no room.
    fn add_bulk(&self, to: &NodeId, packet: Packet) -> Option<Packet> {
        let mut lanes = lock(&self.lanes);
        let others = lanes.len() as u64 + u64::from(!lanes.contains_key(to));
        let most = (self.lanes_bytes / others).min(BULK_BYTES);
        let lane = lanes.entry(to.clone()).or_insert_with(|| self.lane(to.clone()));
        let mut waiting = lock(&lane.waiting);
        let bulk = Bulk::of(within(packet, share(most, waiting.bytes)));
        if waiting.has(&bulk) {
            return None;
        }
        let of = bulk.shuffle();
        if !waiting.has_room(&of, most, bulk.bytes()) {
            waiting.is_kept_free |= bulk.is_one() && bulk.bytes() > LEAST_ANSWER_BYTES;
            return bulk.packet();
        }
        waiting.add(bulk);
        lane.filled.notify_one();
        None
    }

    fn send_short(&self, to: &NodeId, packet: Packet) {
        match frame_of(packet) {
            // It is sent again if it was dropped and is needed.
            Ok(frame) => drop(self.peers.send(to, frame)),
            Err(error) => tracing::error!(node = %to, %error, "a message cannot be sent"),
        }
    }

    fn lane(&self, to: NodeId) -> Lane {
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let filled = Arc::new(Notify::new());
        let sends = send_all(Arc::clone(&self.peers), to, Arc::clone(&filled), Arc::clone(&waiting));
        Lane { waiting, filled, task: self.runtime.spawn(sends).abort_handle() }
    }
}

async fn send_all(peers: Arc<Peers>, to: NodeId, filled: Arc<Notify>, waiting: Arc<Mutex<Waiting>>) {
    loop {
        let next = lock(&waiting).next();
        let Some(bulk) = next else {
            filled.notified().await;
            continue;
        };
        let (of, key, bytes) = (bulk.shuffle(), bulk.key(), bulk.bytes());
        match bulk.packet().map(frame_of) {
            // A node that is not reached gets nothing; the machines find another one.
            Some(Ok(frame)) => drop(peers.send_bulk(&to, frame).await),
            Some(Err(error)) => tracing::error!(node = %to, %error, "a batch or an answer cannot be sent"),
            None => {}
        }
        lock(&waiting).is_sent(of, key, bytes);
    }
}

fn frame_of(packet: Packet) -> Result<Frame, FrameError> {
    match packet {
        Packet::Message(message) => frame(&message),
        Packet::Request(number, shuffle, request) => Relay::Request(number, shuffle, request).frame(),
        Packet::Answered(number, answer) => Relay::Answered(number, answer).frame(),
        Packet::Read(number, slice) => Relay::Read(number, slice).frame(),
        Packet::Records(number, answer) => Relay::Records(number, answer).frame(),
        Packet::Seek(number, seek) => Relay::Seek(number, seek).frame(),
        Packet::Found(number, found) => Relay::Found(number, found).frame(),
    }
}

impl Transport for WireTransport {
    fn send(&self, to: &NodeId, packet: Packet) {
        if packet.is_bulk() {
            return self.send_bulk(to, packet);
        }
        // The answer would say that the node is there, and batches do not reach it: it counts as silent.
        let asks_ahead = matches!(packet, Packet::Message(Message::AskStored(_, AskOrder::Ahead)));
        if !(asks_ahead && self.peers.bulk_has_failed(to)) {
            self.send_short(to, packet);
        }
    }

    fn is_unreachable(&self, node: &NodeId) -> bool {
        let has_failed = self.peers.has_failed(node);
        if has_failed {
            self.peers.look_for(node);
        }
        has_failed
    }

    fn ready(&self, slot: PoolSlot, _: Epoch) {
        self.ready.say(slot);
    }
}

#[cfg(test)]
mod tests;
