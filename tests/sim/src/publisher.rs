//! A coordinator's cache and its readers, as the publisher of the real one is: it outlives the turns of leading and
//! standing by, so that a reader need not notice which coordinator leads.
//!
//! ```text
//!  leads:      cluster ── committed maps ──► cache ──► routers, and coordinators that stand by
//!  stands by:  leader ──► table ── passed on ──► cache ──► routers
//! ```
//!
//! What a coordinator passes on, it has taken into a [`RouteTable`] of its own, which refuses what is behind it (M2).
//! While no coordinator leads it keeps what it has, and says it to each reader that asks.

use crate::clock::{SECOND, True};
use crate::message::{Message, Place, Publication, Via};
use crate::scene::Scene;
use partage_core::base::id::{Generation, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use partage_core::cluster::Cluster;
use partage_core::cluster::publication::{Retention, Since, WatchCache};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::node::exchange::{KeyspaceBrief, Known};
use partage_core::routing::table::{RouteTable, TableError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is kept for subscribers that were away: little, so that runs get beyond.
const RETENTION: Retention = Retention { diffs: 16, shards: 60, forgotten: 2 };

/// Silence after which the leader's stream is made anew.
const SILENCE: True = 3 * SECOND;

/// What one subscriber has of one keyspace.
#[derive(Debug, Default, Clone, Copy)]
struct Subscription {
    has: Option<Generation>,
    under_way: bool,
}

/// A router that listens, or a coordinator that stands by.
#[derive(Debug)]
struct Subscriber {
    place: Place,
    /// The cache has sent it everything once.
    is_current: bool,
    /// The cache has told it a horizon.
    vouched: bool,
    keyspaces: BTreeMap<KeyspaceName, Subscription>,
    /// Which addresses it has heard of.
    nodes: u64,
}

/// The stream from the coordinator that leads.
#[derive(Debug, Clone, Copy)]
struct Following {
    leader: usize,
    stream: u64,
    heard: True,
}

/// The cache, its readers, and where it comes from.
#[derive(Debug)]
pub struct Publisher {
    cache: WatchCache,
    subscribers: BTreeMap<u64, Subscriber>,
    table: RouteTable,
    following: Option<Following>,
    /// What is not in the cache does not exist, as far as is known here.
    is_current: bool,
}

impl Default for Publisher {
    fn default() -> Publisher {
        Publisher {
            cache: WatchCache::new(RETENTION),
            subscribers: BTreeMap::new(),
            table: RouteTable::default(),
            following: None,
            is_current: false,
        }
    }
}

impl Publisher {
    /// The latest maps that its coordinator published or passed on before it leads.
    pub fn known(&self) -> Vec<Known> {
        self.table.keyspaces()
    }

    /// Its coordinator leads from here on.
    pub fn lead(&mut self, scene: &mut Scene, here: Place, cluster: &Cluster, now: Millis) {
        self.leave_leader(scene, here);
        self.cache.refresh(cluster, now);
        self.is_current = true;
    }

    /// Its coordinator leads no more: what others will say is taken from the beginning, unless it is older.
    pub fn stand_by(&mut self, scene: &mut Scene, here: Place) {
        self.leave_leader(scene, here);
        self.table = RouteTable::not_before(self.cache.briefs());
        self.is_current = false;
    }

    /// Follows that coordinator, as it leads, from here on.
    pub fn follow(&mut self, scene: &mut Scene, here: Place, leader: usize) {
        let silent = |following: &Following| scene.now >= following.heard + SILENCE;
        if self.following.as_ref().is_some_and(|following| following.leader == leader && !silent(following)) {
            return;
        }
        self.leave_leader(scene, here);
        let to = Place::Coordinator(leader);
        let stream = scene.network.open(here, to);
        self.following = Some(Following { leader, stream, heard: scene.now });
        scene.send(here, to, Via::Stream(stream), Message::Subscribe(self.table.known()));
    }

    fn leave_leader(&mut self, scene: &mut Scene, here: Place) {
        if let Some(Following { stream, .. }) = self.following.take() {
            scene.close(stream, here);
        }
    }

    /// A connection is gone.
    pub fn closed(&mut self, stream: u64) {
        self.subscribers.remove(&stream);
        self.following = self.following.filter(|following| following.stream != stream);
    }

    /// A reader listens from here on, and has that already.
    pub fn subscribe(&mut self, from: Place, stream: u64, has: &BTreeMap<KeyspaceName, Generation>) {
        let subscription = |has: &Generation| Subscription { has: Some(*has), under_way: false };
        let keyspaces = has.iter().map(|(name, has)| (name.clone(), subscription(has))).collect();
        let subscriber = Subscriber { place: from, is_current: false, vouched: false, keyspaces, nodes: 0 };
        self.subscribers.insert(stream, subscriber);
    }

    /// A subscriber has taken what it was sent.
    pub fn taken(&mut self, stream: u64, keyspace: &KeyspaceName, generation: Generation) {
        let subscriber = self.subscribers.get_mut(&stream);
        if let Some(held) = subscriber.and_then(|subscriber| subscriber.keyspaces.get_mut(keyspace)) {
            *held = Subscription { has: Some(generation), under_way: false };
        }
    }

    /// The leader says something. It is answered, and passed on.
    pub fn passed_on(&mut self, scene: &mut Scene, here: Place, via: Via, publication: Publication) {
        let of_it = |following: &&mut Following| Via::Stream(following.stream) == via;
        let Some(following) = self.following.as_mut().filter(of_it) else { return };
        following.heard = scene.now;
        let (leader, name) = (Place::Coordinator(following.leader), publication.brief.name.clone());
        self.table.hear_of_nodes(publication.nodes.changed.clone(), &publication.nodes.forgotten);
        self.cache.pass_on_nodes(publication.nodes.changed, publication.nodes.forgotten);
        for diff in &publication.diffs {
            let before = (self.sequence(&name), self.table.map(&name).map(ShardMap::generation));
            let life = self.cache.brief(&name).map(|brief| brief.first_shard);
            match self.table.change(Some(publication.brief.clone()), publication.resync, diff) {
                Ok(_) => {}
                // The stream lags behind: it is left, and begun anew with the coordinator that leads.
                Err(TableError::Back { .. }) => return self.leave_leader(scene, here),
                Err(error) => scene.violate("W4", format!("{here:?}, which stands by: {error}")),
            }
            if let Some(brief) = self.table.brief(&name).cloned() {
                self.cache.pass_on(brief, MapDiff::clone(diff));
            }
            let after = (self.sequence(&name), self.table.map(&name).map(ShardMap::generation));
            scene.trace.event(scene.now, (22u8, here, after.0), || {
                format!("{here:?} passes on {name} {} from {}", diff.to, diff.from)
            });
            let is_same = life == self.cache.brief(&name).map(|brief| brief.first_shard);
            let goes_back =
                after.0 < before.0 || after.1.map(|at| at.sequence) < before.1.map(|at| at.sequence);
            if is_same && goes_back {
                let text = format!("{here:?} has {name} {:?} after {:?}", after.0, before.0);
                scene.violate("M2", text);
            }
        }
        let generation = self.table.map(&name).map(ShardMap::generation);
        if let Some(generation) = generation.filter(|_| !publication.diffs.is_empty()) {
            scene.send(here, leader, via, Message::Taken(name, generation));
        }
    }

    /// The leader says that a keyspace is gone, or that it has said everything.
    pub fn told(&mut self, via: Via, message: &Message, now: True) {
        let of_it = |following: &&mut Following| Via::Stream(following.stream) == via;
        let Some(following) = self.following.as_mut().filter(of_it) else { return };
        following.heard = now;
        match message {
            Message::Deleted(name, horizon) => {
                self.table.delete(name, *horizon);
                self.cache.pass_on_end(name, *horizon);
            }
            Message::Current(horizon) => {
                self.cache.pass_on_horizon(*horizon);
                self.is_current = true;
            }
            _ => {}
        }
    }

    /// How far the cache has got with a keyspace.
    fn sequence(&self, name: &KeyspaceName) -> Option<u64> {
        self.cache.brief(name).map(|brief| brief.generation.sequence)
    }

    /// Takes up what `cluster` has made durable.
    pub fn release(&mut self, cluster: &Cluster, maps: Vec<MapDiff>, now: Millis) {
        self.cache.publish(cluster, maps, now);
    }

    /// Sends every subscriber that is free what it lacks; whole maps are those of `cluster`, or of the table.
    pub fn publish(&mut self, scene: &mut Scene, here: Place, cluster: Option<&Cluster>) {
        let (cache, table) = (&self.cache, &self.table);
        let whole = |name: &KeyspaceName| match cluster {
            Some(cluster) => cluster.keyspaces().get(name).map(|state| state.map.whole()),
            None => table.map(name).map(ShardMap::whole),
        };
        for (stream, subscriber) in &mut self.subscribers {
            if !self.is_current && !subscriber.is_current {
                continue;
            }
            let mut withholds = false;
            for name in cache.keyspaces() {
                let held = subscriber.keyspaces.entry(name.clone()).or_default();
                withholds |= cache.since(name, held.has) == Since::Whole && whole(name).is_none();
                let Some(publication) = lacks(cache, name, held, subscriber.nodes, &whole) else { continue };
                // Addresses alone are not answered.
                held.under_way = !publication.diffs.is_empty();
                subscriber.nodes = publication.nodes.version;
                let message = Message::Publication(publication);
                scene.send(here, subscriber.place, Via::Stream(*stream), message);
            }
            // Last: with it goes the word that all keyspaces below a horizon have been sent, or are gone.
            let has = |held: &Subscription| held.has.is_some() && !held.under_way && !withholds;
            let gone = subscriber
                .keyspaces
                .iter()
                .filter(|(name, held)| has(held) && cache.since(name, held.has) == Since::Deleted);
            for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                subscriber.keyspaces.remove(&name);
                scene.send(
                    here,
                    subscriber.place,
                    Via::Stream(*stream),
                    Message::Deleted(name, cache.horizon()),
                );
            }
            let horizon = if withholds { ShardId(0) } else { cache.horizon() };
            let is_first = !std::mem::replace(&mut subscriber.is_current, true);
            if is_first || !subscriber.vouched && horizon > ShardId(0) {
                subscriber.vouched = horizon > ShardId(0);
                scene.send(here, subscriber.place, Via::Stream(*stream), Message::Current(horizon));
            }
        }
    }
}

/// What a subscriber is sent next about a keyspace, if there is anything and it is free.
fn lacks(
    cache: &WatchCache,
    name: &KeyspaceName,
    held: &Subscription,
    nodes: u64,
    whole: &impl Fn(&KeyspaceName) -> Option<MapDiff>,
) -> Option<Publication> {
    let brief: KeyspaceBrief = cache.brief(name).filter(|_| !held.under_way).cloned()?;
    let nodes = cache.nodes_since(nodes);
    let is_news = !(nodes.changed.is_empty() && nodes.forgotten.is_empty());
    let (diffs, resync) = match cache.since(name, held.has) {
        Since::Nothing if is_news => (Vec::new(), false),
        // `publish` tells its subscribers of what is gone.
        Since::Nothing | Since::Deleted => return None,
        Since::Changes(diffs) => (diffs, false),
        Since::Whole => (vec![Arc::new(whole(name)?)], true),
    };
    Some(Publication { brief, diffs, resync, nodes })
}
