//! Batches under way to their nodes, until R of them have each on disk (rules 1 and 2).

use super::ShuffleId;
use super::message::Message;
use super::pool::PoolMap;
use super::record::{Batch, BatchKey, MEMORY_OF_RECORD, MEMORY_OF_SEGMENT, Stream};
use super::settings::Settings;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Clone)]
struct UnderWay {
    batch: Arc<Batch>,
    bytes: u64,
    records: u64,
    segments: u64,
    /// Since when a node has had it to store, and when it was sent to it last.
    targets: BTreeMap<NodeId, (Millis, Millis)>,
    stored: BTreeSet<NodeId>,
}

/// The batches of one process that are under way.
#[derive(Debug, Clone, Default)]
pub struct Sending {
    batches: BTreeMap<BatchKey, UnderWay>,
    load: Load,
    /// When each node was last heard to have stored something.
    heard: BTreeMap<NodeId, Millis>,
    counts: SentCounts,
}

/// What is under way, in all, and the memory of each shuffle.
#[derive(Debug, Clone, Default)]
struct Load {
    bytes: u64,
    memory: u64,
    of: BTreeMap<ShuffleId, u64>,
}

impl Load {
    fn add(&mut self, shuffle: ShuffleId, sent: &UnderWay) {
        self.bytes += sent.bytes;
        self.memory += sent.memory();
        *self.of.entry(shuffle).or_default() += sent.memory();
    }

    fn remove(&mut self, shuffle: ShuffleId, sent: &UnderWay) {
        self.bytes -= sent.bytes;
        self.memory -= sent.memory();
        if let Some(memory) = self.of.get_mut(&shuffle) {
            *memory -= sent.memory();
            if *memory == 0 {
                self.of.remove(&shuffle);
            }
        }
    }
}

/// What was sent since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SentCounts {
    /// Records, to each node and each time.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// Batches that went to a stand-in.
    pub stand_ins: u64,
}

impl SentCounts {
    fn add(&mut self, times: usize, sent: &UnderWay) {
        self.records += times as u64 * sent.records;
        self.bytes += times as u64 * sent.bytes;
    }
}

/// So many times as long a node has for a batch that goes on storing others: it is busy, and a stand-in would make more of the
/// same work.
const BUSY_TIMES: u64 = 10;

impl Sending {
    /// Keys and values under way, in bytes.
    pub fn bytes(&self) -> u64 {
        self.load.bytes
    }

    /// What is under way takes in memory, in bytes.
    pub fn memory(&self) -> u64 {
        self.load.memory
    }

    /// What there is under way of a shuffle takes in memory, in bytes.
    pub fn memory_of(&self, shuffle: ShuffleId) -> u64 {
        self.load.of.get(&shuffle).copied().unwrap_or(0)
    }

    /// What was sent so far.
    pub fn counts(&self) -> SentCounts {
        self.counts
    }

    /// Whether nothing of a stream is under way up to that number.
    pub fn has_stored(&self, stream: &Stream, upto: u64) -> bool {
        let first = BatchKey { stream: stream.clone(), number: 0 };
        let last = BatchKey { stream: stream.clone(), number: upto };
        self.batches.range(first..=last).next().is_none()
    }

    /// Sends a batch to the replicas of its slot.
    pub fn send(&mut self, now: Millis, map: &PoolMap, batch: Batch, out: &mut Vec<(NodeId, Message)>) {
        let (key, bytes, records, segments) =
            (batch.key.clone(), batch.bytes(), batch.records(), batch.segments());
        let (batch, targets, stored) = (Arc::new(batch), BTreeMap::new(), BTreeSet::new());
        let mut sent = UnderWay { batch, bytes, records, segments, targets, stored };
        sent.add_replicas(now, map, out);
        self.load.add(key.stream.shuffle, &sent);
        self.counts.add(sent.targets.len(), &sent);
        self.batches.insert(key, sent);
    }

    /// A node has it on disk.
    pub fn stored(&mut self, now: Millis, node: NodeId, key: &BatchKey) {
        self.heard.insert(node.clone(), now);
        if let Some(sent) = self.batches.get_mut(key) {
            sent.stored.insert(node);
        }
    }

    /// Whether enough nodes have it on disk: it is under way no more then. With another map other nodes count.
    pub fn is_done(&mut self, map: &PoolMap, key: &BatchKey) -> bool {
        let Some(sent) = self.batches.get(key) else { return false };
        let is_loading =
            |node: &&NodeId| map.place(key.stream.slot).is_some_and(|place| place.loading.contains(node));
        let have = sent.stored.iter().filter(|node| !is_loading(node)).count();
        let is_enough = have >= map.replicas - usize::from(planted::is(Planted::AckedBelowR));
        if is_enough && let Some(done) = self.batches.remove(key) {
            self.load.remove(key.stream.shuffle, &done);
        }
        is_enough
    }

    /// The batches that are under way.
    pub fn keys(&self) -> impl Iterator<Item = &BatchKey> {
        self.batches.keys()
    }

    /// What there is of these streams is not sent any more.
    pub fn forget(&mut self, is_over: impl Fn(&Stream) -> bool) {
        let load = &mut self.load;
        self.batches.retain(|key, sent| {
            let stays = !is_over(&key.stream);
            if !stays {
                load.remove(key.stream.shuffle, sent);
            }
            stays
        });
    }

    /// Sends again what was not answered, and to stand-ins what nodes do not store.
    pub fn tick(
        &mut self,
        now: Millis,
        map: &PoolMap,
        settings: &Settings,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        self.heard.retain(|node, _| map.nodes.contains(node));
        for sent in self.batches.values_mut() {
            let before = out.len();
            sent.add_replicas(now, map, out);
            let replicas = out.len();
            sent.add_stand_ins(now, map, (settings, &self.heard), out);
            self.counts.stand_ins += (out.len() - replicas) as u64;
            let batch = sent.batch.clone();
            let lacks_answer = sent.lacks_answer();
            for (node, (_, last)) in &mut sent.targets {
                let is_looked_at = !lacks_answer || !sent.stored.contains(node);
                if !is_looked_at || now.since(*last) < settings.resend_ms {
                    continue;
                }
                // A node that is gone gets nothing, and is looked at again as late as others.
                *last = now;
                if map.nodes.contains(node) && !sent.stored.contains(node) {
                    out.push((node.clone(), Message::Batch(batch.clone())));
                }
            }
            self.counts.add(out.len() - before, sent);
        }
    }

    /// When something is to be sent again.
    pub fn wake_at(&self, settings: &Settings) -> Millis {
        let next = settings.resend_ms.min(settings.stand_in_ms);
        let lasts = self.batches.values().filter_map(UnderWay::looked_at);
        lasts.map(|last| last + next).min().unwrap_or(Millis::NEVER)
    }
}

impl UnderWay {
    fn memory(&self) -> u64 {
        self.bytes + MEMORY_OF_RECORD * self.records + MEMORY_OF_SEGMENT * self.segments
    }

    /// Whether one of its nodes has not stored it. If all have, and they are too few, another map or a stand-in has to come.
    fn lacks_answer(&self) -> bool {
        self.targets.keys().any(|node| !self.stored.contains(node))
    }

    /// When it was looked at first of those of its nodes that have not stored it, or of all if all have.
    fn looked_at(&self) -> Option<Millis> {
        let lacks_answer = self.lacks_answer();
        let of = self.targets.iter().filter(|(node, _)| !lacks_answer || !self.stored.contains(*node));
        of.map(|(_, (_, last))| *last).min()
    }

    fn add(&mut self, now: Millis, node: &NodeId, out: &mut Vec<(NodeId, Message)>) {
        if !self.targets.contains_key(node) {
            self.targets.insert(node.clone(), (now, now));
            out.push((node.clone(), Message::Batch(self.batch.clone())));
        }
    }

    fn add_replicas(&mut self, now: Millis, map: &PoolMap, out: &mut Vec<(NodeId, Message)>) {
        if let Some(place) = map.place(self.batch.key.stream.slot) {
            place.live.iter().chain(&place.loading).for_each(|node| self.add(now, node, out));
        }
    }

    /// As many stand-ins as there are nodes too few that answer. A node answers if it has stored the batch, or has not had it for
    /// long; a node that goes on storing other batches may have it for longer.
    fn add_stand_ins(
        &mut self,
        now: Millis,
        map: &PoolMap,
        (settings, heard): (&Settings, &BTreeMap<NodeId, Millis>),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let slot = self.batch.key.stream.slot;
        let is_loading = |node: &NodeId| map.place(slot).is_some_and(|place| place.loading.contains(node));
        let patience = |node: &NodeId| {
            let is_busy = heard.get(node).is_some_and(|at| now.since(*at) < settings.stand_in_ms);
            settings.stand_in_ms.saturating_mul(if is_busy { BUSY_TIMES } else { 1 })
        };
        let answers = self.targets.iter().filter(|(node, (since, _))| {
            let is_fresh = now.since(*since) < patience(node) && map.nodes.contains(node);
            !is_loading(node) && (is_fresh || self.stored.contains(*node))
        });
        let lacking = map.replicas.saturating_sub(answers.count());
        if lacking > 0 {
            let others = map.stand_ins(slot).into_iter().filter(|node| !self.targets.contains_key(node));
            let others: Vec<_> = others.take(lacking).collect();
            others.iter().for_each(|node| self.add(now, node, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::pool::SlotPlace;
    use crate::shuffle::record::{Body, Tagged};
    use crate::shuffle::{BufferId, Durability, PoolSlot, Writer};
    use partage_core::base::id::{Epoch, Incarnation};

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn batch(number: u64) -> Batch {
        let writer = Writer::Buffer(BufferId { node: node("a"), incarnation: Incarnation(1) });
        let stream = Stream { shuffle: ShuffleId(1), slot: PoolSlot(0), writer };
        let body = Body::Records(Tagged::new());
        Batch { key: BatchKey { stream, number }, durability: Durability::Disk, body }
    }

    /// Whether a stand-in got something.
    fn has_stand_in(sending: &mut Sending, now: u64, map: &PoolMap, settings: &Settings) -> bool {
        let mut out = Vec::new();
        sending.tick(Millis(now), map, settings, &mut out);
        out.iter().any(|(to, _)| *to == node("c"))
    }

    #[test]
    fn r1_it_is_called_again_later_whoever_has_answered_and_whoever_is_gone() {
        let place = SlotPlace { epoch: Epoch(1), live: vec![node("a"), node("b")], loading: Vec::new() };
        let nodes = ["a", "b"].map(node).to_vec();
        let (replicas, no_stand_ins) = (2, Default::default());
        let mut map = PoolMap { generation: 1, replicas, places: vec![place], nodes, no_stand_ins };
        let settings = Settings { stand_in_ms: 100, resend_ms: 50, ..Settings::default() };
        let mut sending = Sending::default();
        sending.send(Millis(0), &map, batch(1), &mut Vec::new());
        sending.stored(Millis(1), node("a"), &batch(1).key);
        let ticks = |sending: &mut Sending, map: &PoolMap, from: u64| {
            let mut sent = Vec::new();
            for now in (from..from + 500).step_by(50).map(Millis) {
                assert!(sending.wake_at(&settings) <= now, "{now}");
                sending.tick(now, map, &settings, &mut sent);
                assert!(sending.wake_at(&settings) > now, "{now}: it would be called without end");
            }
            sent.into_iter().map(|(to, _)| to).collect::<Vec<NodeId>>()
        };
        assert_eq!(ticks(&mut sending, &map, 50), vec![node("b"); 10]);
        map.nodes.pop();
        map.places[0].live.pop();
        assert_eq!(ticks(&mut sending, &map, 550), []);
        // All that are left have stored it, and they are too few.
        sending.batches.values_mut().for_each(|sent| {
            sent.targets.remove(&node("b"));
        });
        assert_eq!(ticks(&mut sending, &map, 1_050), []);
    }

    #[test]
    fn x12_a_node_that_goes_on_storing_is_busy_and_one_that_stores_nothing_is_replaced() {
        let place = SlotPlace { epoch: Epoch(1), live: vec![node("a"), node("b")], loading: Vec::new() };
        let nodes = ["a", "b", "c"].map(node).to_vec();
        let map = PoolMap {
            generation: 1,
            replicas: 2,
            places: vec![place],
            nodes,
            no_stand_ins: Default::default(),
        };
        let settings = Settings { stand_in_ms: 100, resend_ms: 50, ..Settings::default() };
        for stores in [true, false] {
            let mut sending = Sending::default();
            for number in 1..=30 {
                sending.send(Millis(0), &map, batch(number), &mut Vec::new());
            }
            let mut replaced_at = None;
            for step in 1..=30 {
                let now = step * 50;
                let key = batch(step).key;
                sending.stored(Millis(now), node("a"), &key);
                if stores {
                    sending.stored(Millis(now), node("b"), &key);
                }
                if has_stand_in(&mut sending, now, &map, &settings) {
                    replaced_at = Some(now);
                    break;
                }
            }
            assert_eq!(replaced_at, Some(if stores { 1_000 } else { 100 }), "{stores}");
        }
    }
}
