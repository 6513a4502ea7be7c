//! Batches under way to their nodes, until R of them have each on disk (rules 1 and 2).
//!
//! To each node there is a window: so many bytes are under way to it at most, and the rest waits here (`link.rs`). So the time in
//! which a node stores what it has is short, and what waits here is sent nowhere else because of it. A batch is sent again only
//! when its node says that it lacks it, or has no room for it. A stand-in is asked when a node is silent, says that its disk is
//! full or that it stores nothing of the slot, or has not stored a batch for very long. A stand-in that the batch has not gone to
//! yet is not needed any more when the node answers again.

use super::ShuffleId;
use super::message::{Message, WhyNotStored};
use super::pool::PoolMap;
use super::record::{Batch, BatchKey, MEMORY_OF_RECORD, MEMORY_OF_SEGMENT, Stream};
use super::settings::Settings;
use super::turns::cost;
use link::{Link, busy_patience};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod link;

/// Between two looks at what was not answered there are so many parts of the time after which a node is asked, or replaced.
const LOOKS: u64 = 8;

type Links = BTreeMap<NodeId, Link>;

/// A node that is to store a batch.
#[derive(Debug, Clone, Default)]
struct Target {
    /// When it was sent to the node first. None: it waits. That the node has no room for it since then changes nothing: one that
    /// never has room is replaced as one that never answers.
    sent_at: Option<Millis>,
    /// In the place of another node.
    is_stand_in: bool,
    elsewhere: Option<Elsewhere>,
}

/// The node has said that it stores nothing of the slot.
#[derive(Debug, Clone, Copy)]
struct Elsewhere {
    /// When it said so last, or was sent the batch once more after that.
    at: Millis,
    /// It is sent the batch once more after so long, and then after twice as long, and so on.
    pause: u64,
}

#[derive(Debug, Clone)]
struct UnderWay {
    batch: Arc<Batch>,
    bytes: u64,
    records: u64,
    segments: u64,
    /// The weight of its shuffle.
    weight: u64,
    targets: BTreeMap<NodeId, Target>,
    stored: BTreeSet<NodeId>,
}

/// The batches of one process that are under way.
#[derive(Debug, Clone, Default)]
pub struct Sending {
    batches: BTreeMap<BatchKey, UnderWay>,
    load: Load,
    links: Links,
    /// When it looks next at what was not answered.
    look_at: Option<Millis>,
    last_look: LastLook,
    counts: SentCounts,
}

/// What was found when all batches were looked at last. They are many, and most looks find nothing to do: then they are looked at
/// seldom.
#[derive(Debug, Clone, Default)]
struct LastLook {
    /// They are looked at again by then.
    next: Millis,
    unreliable: BTreeSet<NodeId>,
    /// Nodes store nothing of the slots of some, or one has said so since.
    are_elsewhere: bool,
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
    /// Batches that went to a node once more, as it lacked them or had no room for them.
    pub again: u64,
}

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

    /// Sends a batch of a shuffle of this weight to the replicas of its slot, to each when there is room in its window.
    pub fn send(
        &mut self,
        now: Millis,
        map: &PoolMap,
        settings: &Settings,
        (batch, weight): (Batch, u64),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let (key, bytes, records, segments) =
            (batch.key.clone(), batch.bytes(), batch.records(), batch.segments());
        let (batch, targets, stored) = (Arc::new(batch), BTreeMap::new(), BTreeSet::new());
        let mut sent = UnderWay { batch, bytes, records, segments, weight, targets, stored };
        sent.add_replicas((now, settings), map, &mut self.links);
        let nodes: Vec<NodeId> = sent.targets.keys().cloned().collect();
        let place = map.place(key.stream.slot);
        let there =
            place.map_or(0, |place| place.live.iter().filter(|node| map.nodes.contains(node)).count());
        if there < map.replicas {
            // It needs stand-ins from the start.
            self.last_look.next = Millis(0);
        }
        self.load.add(key.stream.shuffle, &sent);
        self.batches.insert(key, sent);
        nodes.iter().for_each(|node| self.send_waiting(now, settings, node, out));
        self.look_at.get_or_insert(now + look_ms(settings));
    }

    /// Sends to a node what waits for it, as far as there is room.
    fn send_waiting(
        &mut self,
        now: Millis,
        settings: &Settings,
        node: &NodeId,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let Some(link) = self.links.get_mut(node) else { return };
        while let Some(key) = link.next(now, settings) {
            let Some(sent) = self.batches.get_mut(&key).filter(|sent| !sent.stored.contains(node)) else {
                link.give_up(&key);
                continue;
            };
            let target = sent.targets.entry(node.clone()).or_default();
            let is_first = target.sent_at.is_none();
            target.sent_at.get_or_insert(now);
            self.counts.stand_ins += u64::from(is_first && target.is_stand_in);
            self.counts.again += u64::from(!is_first);
            self.counts.records += sent.records;
            self.counts.bytes += sent.bytes;
            out.push((node.clone(), Message::Batch(sent.batch.clone())));
        }
    }

    /// A node has it on disk. So there is room for another one.
    pub fn stored(
        &mut self,
        now: Millis,
        settings: &Settings,
        (node, key): (&NodeId, &BatchKey),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        if let Some(sent) = self.batches.get_mut(key) {
            sent.stored.insert(node.clone());
            if let Some(target) = sent.targets.get_mut(node) {
                target.elsewhere = None;
            }
        }
        if let Some(link) = self.links.get_mut(node) {
            link.stored(now, key, settings);
            self.send_waiting(now, settings, node, out);
        }
    }

    /// A node has it not on disk, so far.
    pub fn not_stored(
        &mut self,
        now: Millis,
        settings: &Settings,
        (node, key, why): (&NodeId, &BatchKey, WhyNotStored),
        out: &mut Vec<(NodeId, Message)>,
    ) {
        let Some(link) = self.links.get_mut(node) else { return };
        link.hear(now);
        match why {
            WhyNotStored::Soon => {}
            WhyNotStored::Unknown => link.put_back_lost(key),
            WhyNotStored::Busy => link.put_back_refused(now, key, false, settings),
            WhyNotStored::Full => link.put_back_refused(now, key, true, settings),
            WhyNotStored::Elsewhere => {
                link.give_up(key);
                let target = self.batches.get_mut(key).and_then(|sent| sent.targets.get_mut(node));
                if let Some(target) = target {
                    let longer = |before: Elsewhere| before.pause.saturating_mul(2);
                    let pause = target.elsewhere.map_or(settings.resend_ms, longer);
                    target.elsewhere = Some(Elsewhere { at: now, pause });
                    self.last_look.are_elsewhere = true;
                }
            }
        }
        self.send_waiting(now, settings, node, out);
    }

    /// Another map. What a node has stored counts no more when the node is gone, or begins to load the slot: its disk may have
    /// gone with it. A node that has the batch still says so when it comes again.
    pub fn take_map(&mut self, before: &PoolMap, map: &PoolMap) {
        for (key, sent) in &mut self.batches {
            let slot = key.stream.slot;
            let loads = |map: &PoolMap, node: &NodeId| {
                map.place(slot).is_some_and(|place| place.loading.contains(node))
            };
            sent.stored.retain(|node| map.nodes.contains(node) && (!loads(map, node) || loads(before, node)));
            for (node, target) in &mut sent.targets {
                if map.has(slot, node) && !before.has(slot, node) {
                    target.elsewhere = None;
                }
            }
        }
        self.last_look.next = Millis(0);
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
            for node in done.targets.keys() {
                if let Some(link) = self.links.get_mut(node) {
                    link.withdraw(key);
                }
            }
        }
        is_enough
    }

    /// What is under way.
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
        self.links.values_mut().for_each(|link| link.forget(&is_over));
    }

    /// Asks about what was not answered, and sends to stand-ins what nodes do not store.
    pub fn tick(
        &mut self,
        now: Millis,
        map: &PoolMap,
        settings: &Settings,
        out: &mut Vec<(NodeId, Message)>,
    ) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        self.links.retain(|node, _| map.nodes.contains(node));
        for (node, link) in &mut self.links {
            link.give_up_old(now, settings, |key| self.batches.contains_key(key));
            for (key, order) in link.questions(now, settings) {
                let sent = self.batches.get(&key).filter(|_| planted::is(Planted::ResentWhileBusy));
                let message = match sent {
                    Some(sent) => Message::Batch(sent.batch.clone()),
                    None => Message::AskStored(key, order),
                };
                out.push((node.clone(), message));
            }
        }
        self.look_at_all(now, map, settings);
        let nodes: Vec<NodeId> = self.links.keys().cloned().collect();
        nodes.iter().for_each(|node| self.send_waiting(now, settings, node, out));
        let is_idle = self.batches.is_empty() && self.links.values().all(Link::is_idle);
        self.look_at = if is_idle { None } else { Some(now + look_ms(settings)) };
    }

    /// Looks at each batch, if there may be something to do: the map is another one, nodes are not to be counted on or are so
    /// again, or a node does not store what it was sent. Else it does so now and then, for batches that one node stores late.
    fn look_at_all(&mut self, now: Millis, map: &PoolMap, settings: &Settings) {
        let links = self.links.iter().filter(|(_, link)| !link.is_reliable(now, settings));
        let unreliable: BTreeSet<NodeId> = links.map(|(node, _)| node.clone()).collect();
        let last = &self.last_look;
        let is_quiet = unreliable.is_empty() && last.unreliable.is_empty() && !last.are_elsewhere;
        if is_quiet && now < last.next {
            return;
        }
        let mut are_elsewhere = false;
        for sent in self.batches.values_mut() {
            sent.add_replicas((now, settings), map, &mut self.links);
            sent.add_again((now, settings), map, &mut self.links);
            sent.add_stand_ins((now, settings), map, &mut self.links);
            are_elsewhere |= sent.targets.values().any(|target| target.elsewhere.is_some());
        }
        self.last_look = LastLook { next: now + settings.stand_in_ms, unreliable, are_elsewhere };
    }

    /// When it is to be called next.
    pub fn wake_at(&self) -> Millis {
        self.look_at.unwrap_or(Millis::NEVER)
    }
}

/// Between two looks at what was not answered.
fn look_ms(settings: &Settings) -> u64 {
    (settings.resend_ms.min(settings.stand_in_ms) / LOOKS).max(1)
}

/// The time, and what times go by.
type At<'a> = (Millis, &'a Settings);

impl UnderWay {
    fn memory(&self) -> u64 {
        self.bytes + MEMORY_OF_RECORD * self.records + MEMORY_OF_SEGMENT * self.segments
    }

    fn add(&mut self, (now, settings): At<'_>, node: &NodeId, is_stand_in: bool, links: &mut Links) {
        if !self.targets.contains_key(node) {
            self.targets.insert(node.clone(), Target { is_stand_in, ..Target::default() });
            let link = links.entry(node.clone()).or_insert_with(|| Link::new(now, settings));
            link.add(now, &self.batch.key, self.memory_and_cost());
        }
    }

    /// What it takes in memory, and what that counts where shuffles take turns.
    fn memory_and_cost(&self) -> (u64, u64) {
        (self.memory(), cost(self.memory(), self.weight))
    }

    fn add_replicas(&mut self, at: At<'_>, map: &PoolMap, links: &mut Links) {
        if let Some(place) = map.place(self.batch.key.stream.slot) {
            place.live.iter().chain(&place.loading).for_each(|node| self.add(at, node, false, links));
        }
    }

    /// What neither waits nor is under way to one of its nodes: the map did not name the node for a while, or the node stored
    /// nothing of the slot. That one gets it ever more seldom, until a map names it for the slot anew. A node that is gone gets
    /// nothing.
    fn add_again(&mut self, (now, settings): At<'_>, map: &PoolMap, links: &mut Links) {
        let (key, memory_and_cost) = (&self.batch.key, self.memory_and_cost());
        for (node, target) in &mut self.targets {
            let rests = |said: Elsewhere| now.since(said.at) < said.pause;
            if self.stored.contains(node) || target.elsewhere.is_some_and(rests) || !map.nodes.contains(node)
            {
                continue;
            }
            let link = links.entry(node.clone()).or_insert_with(|| Link::new(now, settings));
            if !link.has(key) {
                link.add(now, key, memory_and_cost);
                target.elsewhere = target.elsewhere.map(|said| Elsewhere { at: now, ..said });
            }
        }
    }

    /// As many stand-ins as there are nodes too few that store it. A node has stored it, or it may be counted on: it answers, and
    /// it has not had the batch for very long. Those stand-ins to which it has not gone go when they are needed no more.
    fn add_stand_ins(&mut self, (now, settings): At<'_>, map: &PoolMap, links: &mut Links) {
        let (slot, patience) = (self.batch.key.stream.slot, busy_patience(settings));
        let is_reliable = |node: &NodeId| links.get(node).is_none_or(|link| link.is_reliable(now, settings));
        let stores = |node: &NodeId, target: &Target| {
            let is_loading = map.place(slot).is_some_and(|place| place.loading.contains(node));
            let is_fresh = target.sent_at.is_none_or(|at| now.since(at) < patience);
            let is_awaited = is_fresh && target.elsewhere.is_none() && map.nodes.contains(node);
            !is_loading && (self.stored.contains(node) || (is_awaited && is_reliable(node)))
        };
        let (spare, sure): (Vec<_>, Vec<_>) = self.targets.iter().partition(|&(node, target)| {
            target.is_stand_in
                && target.sent_at.is_none()
                && !map.has(slot, node)
                && !self.stored.contains(node)
        });
        let lacking =
            map.replicas.saturating_sub(sure.iter().filter(|&&(node, target)| stores(node, target)).count());
        let needed = spare.iter().filter(|&&(node, target)| stores(node, target)).take(lacking);
        let needed: BTreeSet<NodeId> = needed.map(|(node, _)| (*node).clone()).collect();
        let mut more = Vec::new();
        if lacking > needed.len() {
            let others = map.stand_ins(slot).into_iter();
            let others = others.filter(|node| !self.targets.contains_key(node) && is_reliable(node));
            more.extend(others.take(lacking - needed.len()));
        }
        let spare: Vec<NodeId> = spare.into_iter().map(|(node, _)| node.clone()).collect();
        for node in spare.iter().filter(|node| !needed.contains(*node)) {
            self.targets.remove(node);
            if let Some(link) = links.get_mut(node) {
                link.withdraw(&self.batch.key);
            }
        }
        more.iter().for_each(|node| self.add((now, settings), node, true, links));
    }
}

#[cfg(test)]
mod tests;
