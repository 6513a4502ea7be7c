//! Publication of maps: the cache of [`partage_core::cluster::publication`], shared by all subscribers, and the watch
//! channel that wakes them. Each remembers what it was sent last and, when woken, asks the cache what leads from there
//! to now.
//!
//! Whatever is sent is encoded once, and its bytes are shared by everybody who takes them: changes and addresses
//! for as long as somebody may be behind by them, whole maps while they are being sent.

pub mod events;
pub mod metrics;
pub mod notifier;

use crate::lead::decision_loop::{DecisionLoop, LoopStopped};
use crate::limits;
use bytes::Bytes;
use partage_core::base::id::{Generation, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use partage_core::cluster::Cluster;
use partage_core::cluster::publication::{Since, WatchCache};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::node::exchange::{ClusterIdentity, KeyspaceBrief};
use partage_core::node::reconnect;
use partage_core::routing::table::RouteTable;
use partage_wire::map::{MapEvent, MapNews, encoded};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::{Semaphore, watch};

/// An event as the messages that are sent; copies share them.
pub type Messages = Arc<[Bytes]>;

/// A whole map as it is sent, with the settings of its keyspace.
#[derive(Debug)]
pub struct WholeMap {
    /// Where it leads.
    pub to: Generation,
    /// Encoded.
    pub messages: Messages,
}

/// What was encoded lately.
#[derive(Debug, Default)]
struct EncodedCache {
    changes: VecDeque<(Arc<MapDiff>, Messages)>,
    /// By the version of the addresses that they begin at: the version that they lead to, and they.
    addresses: BTreeMap<u64, (u64, Messages)>,
}

/// Whose whole maps are sent.
#[derive(Clone, Default)]
pub enum Source {
    /// Nobody's yet.
    #[default]
    Nobody,
    /// Ours: this coordinator leads.
    DecisionLoop(DecisionLoop),
    /// The leader's, as they have come here.
    Table(Arc<Mutex<RouteTable>>),
}

/// The source, and how many there were before it: one that is not current any more may still be speaking.
#[derive(Default)]
struct CurrentSource {
    number: u64,
    source: Source,
}

/// The cache that subscribers read. It outlives a leadership: its readers need not notice a change of leader.
pub struct Publisher {
    cache: Mutex<WatchCache>,
    source: Mutex<CurrentSource>,
    /// Which cluster the cache is of, once that is known.
    identity: Mutex<Option<ClusterIdentity>>,
    /// Whether the cache has everything that there is.
    current: watch::Sender<bool>,
    updates: watch::Sender<u64>,
    /// The widest spread that everybody was woken for.
    widest_ms: AtomicU64,
    encoded: Mutex<EncodedCache>,
    /// Whole maps that are being sent right now, so that a thousand routers which connect at once cost one
    /// copy, not a thousand.
    wholes: Mutex<BTreeMap<KeyspaceName, WholeMapSlot>>,
    /// Turns to encode a whole map: each takes the memory of one.
    encoding: Semaphore,
}

/// The whole map of one keyspace. Locked while it is made: those that ask meanwhile get the same.
type WholeMapSlot = Arc<tokio::sync::Mutex<Weak<WholeMap>>>;

impl Default for Publisher {
    /// An empty cache, of which nothing can be said.
    fn default() -> Publisher {
        Publisher {
            cache: Mutex::new(WatchCache::new(limits::RETENTION)),
            source: Mutex::default(),
            identity: Mutex::default(),
            current: watch::Sender::default(),
            updates: watch::Sender::default(),
            widest_ms: AtomicU64::new(reconnect::router_spread_ms(0)),
            encoded: Mutex::default(),
            wholes: Mutex::default(),
            encoding: Semaphore::new(limits::WHOLE_MAPS_AT_ONCE),
        }
    }
}

impl Publisher {
    /// From here on this coordinator says what the maps are.
    pub fn lead(&self, decision_loop: DecisionLoop, cluster: &Cluster, now: Millis) {
        self.set_source(Source::DecisionLoop(decision_loop));
        *lock(&self.identity) = Some(cluster.identity());
        self.refresh(cluster, now);
        self.current.send_replace(true);
    }

    /// A table for [`Publisher::stand_by`]: it takes nothing that is older than what is in the cache.
    pub fn table(&self) -> RouteTable {
        RouteTable::not_before(self.cache().briefs())
    }

    /// From here on another says it, and `table` has what has come of it. Gives the number for
    /// [`Publisher::pass_on`].
    pub fn stand_by(&self, table: Arc<Mutex<RouteTable>>) -> u64 {
        // Until the table has everything: what it lacks is not to be taken for gone.
        self.current.send_replace(false);
        self.set_source(Source::Table(table))
    }

    /// Nobody says anything any more, for as long as this coordinator has no part.
    pub fn clear_source(&self) {
        self.set_source(Source::Nobody);
    }

    fn set_source(&self, source: Source) -> u64 {
        let mut current = lock(&self.source);
        *current = CurrentSource { number: current.number + 1, source };
        current.number
    }

    /// Passes on what the leader has said; `table` is as it is after it. Who is not the current source is not heard.
    pub fn pass_on(&self, number: u64, table: &RouteTable, event: MapEvent) {
        let current = lock(&self.source);
        if current.number != number {
            return;
        }
        let mut cache = self.cache();
        cache.pass_on_nodes(event.nodes, event.forgotten);
        match event.news {
            MapNews::Changed { diff, .. } => {
                if let Some(brief) = table.brief(&diff.keyspace) {
                    cache.pass_on(brief.clone(), *diff);
                }
            }
            MapNews::Deleted(keyspace, horizon) => cache.pass_on_end(&keyspace, horizon),
            MapNews::Current(horizon) => {
                cache.pass_on_horizon(horizon);
                self.current.send_replace(true);
            }
            MapNews::Cluster(identity) => *lock(&self.identity) = Some(identity),
            // How many listen to the leader says nothing about how many listen here.
            MapNews::Nothing | MapNews::Spread(_) => {}
        }
        drop((cache, current));
        self.updates.send_modify(|count| *count += 1);
    }

    /// Returns when the cache has everything that there is: what it lacks then does not exist.
    pub async fn current(&self) {
        // The sender is ours, so there is no other end to this.
        let _ = self.current.subscribe().wait_for(|current| *current).await;
    }

    /// Which cluster the cache is of.
    pub fn identity(&self) -> Option<ClusterIdentity> {
        lock(&self.identity).clone()
    }

    fn cache(&self) -> MutexGuard<'_, WatchCache> {
        lock(&self.cache)
    }

    fn encoded(&self) -> MutexGuard<'_, EncodedCache> {
        lock(&self.encoded)
    }

    /// Takes up new maps and wakes everybody.
    pub fn publish(&self, cluster: &Cluster, diffs: Vec<MapDiff>, now: Millis) {
        self.cache().publish(cluster, diffs, now);
        self.updates.send_modify(|count| *count += 1);
    }

    /// Brings settings and addresses up to date; wakes everybody.
    pub fn refresh(&self, cluster: &Cluster, now: Millis) {
        self.cache().refresh(cluster, now);
        self.updates.send_modify(|count| *count += 1);
    }

    /// How many subscribers there are.
    pub fn subscribers(&self) -> usize {
        self.updates.receiver_count()
    }

    /// Changes whenever there may be something new.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        let updates = self.updates.subscribe();
        let spread_ms = self.spread_ms();
        // Those who came when there were fewer are to know, too. It gets wider a few times only.
        if self.widest_ms.fetch_max(spread_ms, Ordering::Relaxed) < spread_ms {
            self.updates.send_modify(|count| *count += 1);
        }
        updates
    }

    /// Over how long subscribers spread when this coordinator is lost.
    pub fn spread_ms(&self) -> u64 {
        reconnect::router_spread_ms(self.subscribers())
    }

    /// What the publisher says with each keyspace that is gone: [`WatchCache::horizon`].
    pub fn horizon(&self) -> ShardId {
        self.cache().horizon()
    }

    /// A keyspace's settings, at its latest generation.
    pub fn brief(&self, keyspace: &KeyspaceName) -> Option<KeyspaceBrief> {
        self.cache().brief(keyspace).cloned()
    }

    /// The keyspaces of which somebody who has `has` lacks something, and what: of `only`, or of all when
    /// that is empty, and of those it has.
    pub fn lacks(
        &self,
        only: &BTreeSet<KeyspaceName>,
        has: &BTreeMap<KeyspaceName, Generation>,
    ) -> Vec<(KeyspaceName, Since)> {
        let cache = self.cache();
        let wanted =
            |name: &&KeyspaceName| only.is_empty() || only.contains(*name) || has.contains_key(*name);
        let kept = cache.keyspaces().filter(wanted);
        let gone = has.keys().filter(|name| cache.brief(name).is_none());
        let since = kept.chain(gone).map(|name| (name, cache.since(name, has.get(name).copied())));
        let lacking = since.filter(|(_, since)| *since != Since::Nothing);
        lacking.map(|(name, since)| (name.clone(), since)).collect()
    }

    /// A change as it is sent.
    pub fn messages(&self, change: &Arc<MapDiff>) -> Messages {
        let mut encoded = self.encoded();
        // From the back: nearly everybody lacks the last one only.
        if let Some((_, messages)) = encoded.changes.iter().rfind(|(known, _)| Arc::ptr_eq(known, change)) {
            return messages.clone();
        }
        let messages = encode(MapDiff::clone(change), false, None);
        encoded.changes.push_back((change.clone(), messages.clone()));
        if encoded.changes.len() > limits::ENCODED_CACHE {
            encoded.changes.pop_front();
        }
        messages
    }

    /// The whole map of a keyspace, or a slightly older one from which [`Publisher::lacks`] leads on; none
    /// when the keyspace is gone.
    pub async fn whole(&self, keyspace: &KeyspaceName) -> Result<Option<Arc<WholeMap>>, LoopStopped> {
        let slot = self.whole_map_slot(keyspace);
        let mut made = slot.lock().await;
        let leads_on = |map: &Arc<WholeMap>| {
            !matches!(self.cache().since(keyspace, Some(map.to)), Since::Whole | Since::Deleted)
        };
        if let Some(map) = made.upgrade().filter(leads_on) {
            return Ok(Some(map));
        }
        let source = lock(&self.source).source.clone();
        let Some((map, brief)) = source.whole(keyspace).await? else { return Ok(None) };
        // The semaphore is never closed.
        let _turn = self.encoding.acquire().await;
        // Not where connections are served: a large map takes a while.
        let encoding = tokio::task::spawn_blocking(move || WholeMap {
            to: map.to,
            messages: encode(map, true, Some(brief)),
        });
        let whole = Arc::new(encoding.await.map_err(|_| LoopStopped)?);
        *made = Arc::downgrade(&whole);
        Ok(Some(whole))
    }

    fn whole_map_slot(&self, keyspace: &KeyspaceName) -> WholeMapSlot {
        let mut wholes = lock(&self.wholes);
        let is_used = |slot: &WholeMapSlot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|made| made.strong_count() > 0)
        };
        wholes.retain(|_, slot| is_used(slot));
        wholes.entry(keyspace.clone()).or_default().clone()
    }

    /// The addresses that changed after `version`, as they are sent, and the version that they lead to.
    pub fn nodes_since(&self, version: u64) -> (Option<Messages>, u64) {
        let cache = self.cache();
        let latest = cache.version();
        if version == latest {
            return (None, latest);
        }
        let addresses = &mut self.encoded().addresses;
        if let Some((_, messages)) = addresses.get(&version).filter(|(to, _)| *to == latest) {
            return (Some(messages.clone()), latest);
        }
        let since = cache.nodes_since(version);
        let event = MapEvent { news: MapNews::Nothing, nodes: since.changed, forgotten: since.forgotten };
        let messages = Messages::from(encoded(&event));
        addresses.retain(|_, (to, _)| *to == latest);
        if addresses.len() < limits::ENCODED_CACHE {
            addresses.insert(version, (latest, messages.clone()));
        }
        (Some(messages), latest)
    }
}

impl Source {
    /// The map of a keyspace as one change from nothing, with its settings; none when it is gone.
    async fn whole(&self, keyspace: &KeyspaceName) -> Result<Option<(MapDiff, KeyspaceBrief)>, LoopStopped> {
        match self {
            Source::Nobody => Err(LoopStopped),
            Source::DecisionLoop(decision_loop) => {
                let asked = keyspace.clone();
                let whole = decision_loop.call(move |cluster, _| {
                    let keyspace = cluster.keyspaces().get(&asked)?;
                    Some((keyspace.map.whole(), keyspace.brief()))
                });
                whole.await
            }
            Source::Table(table) => {
                let table = lock(table);
                let whole = table.map(keyspace).map(ShardMap::whole);
                Ok(whole.zip(table.brief(keyspace).cloned()))
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `brief` is put into the first message.
fn encode(diff: MapDiff, resync: bool, brief: Option<KeyspaceBrief>) -> Messages {
    let news = MapNews::Changed { brief, resync, diff: Box::new(diff) };
    encoded(&MapEvent { news, nodes: vec![], forgotten: vec![] }).into()
}
