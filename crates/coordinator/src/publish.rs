//! Publication of maps: the board of [`partage_core::publication`], shared by all subscribers, and the bell
//! that wakes them. Each remembers what it was sent last and, when woken, asks the board what leads from there
//! to now.
//!
//! Whatever is sent is encoded once, and its bytes are shared by everybody who takes them: changes and addresses
//! for as long as somebody may be behind by them, whole maps while they are being sent.

use crate::limits;
use crate::mind::{Gone, Mind};
use bytes::Bytes;
use partage_core::cluster::Cluster;
use partage_core::exchange::{ClusterIdentity, KeyspaceBrief};
use partage_core::id::{Generation, ShardId};
use partage_core::map::{MapDiff, ShardMap};
use partage_core::name::KeyspaceName;
use partage_core::publication::{Board, Since};
use partage_core::reconnect;
use partage_core::routing::table::RouteTable;
use partage_core::time::Millis;
use partage_wire::maps::{MapEvent, MapNews, encoded};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::watch;

/// An event as the messages that are sent; copies share them.
pub type Messages = Arc<[Bytes]>;

/// A whole map as it is sent, with the settings of its keyspace.
#[derive(Debug)]
pub struct Whole {
    /// Where it leads.
    pub to: Generation,
    /// Encoded.
    pub messages: Messages,
}

/// What was encoded lately.
#[derive(Debug, Default)]
struct Sheets {
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
    Mind(Mind),
    /// The leader's, as they have come here.
    Table(Arc<Mutex<RouteTable>>),
}

/// The source, and how many there were before it: one that is not current any more may still be speaking.
#[derive(Default)]
struct Current {
    number: u64,
    source: Source,
}

/// The board that subscribers read. It outlives a leadership: whoever reads it need not notice who leads.
pub struct Publisher {
    board: Mutex<Board>,
    source: Mutex<Current>,
    /// Which cluster the board is of, once that is known.
    identity: Mutex<Option<ClusterIdentity>>,
    /// Whether the board has everything that there is.
    current: watch::Sender<bool>,
    bell: watch::Sender<u64>,
    /// The widest spread that everybody was woken for.
    widest_ms: AtomicU64,
    sheets: Mutex<Sheets>,
    /// Whole maps that are being sent right now, so that a thousand routers which connect at once cost one
    /// copy, not a thousand.
    wholes: tokio::sync::Mutex<BTreeMap<KeyspaceName, Weak<Whole>>>,
}

impl Default for Publisher {
    /// An empty board, of which nothing can be said.
    fn default() -> Publisher {
        Publisher {
            board: Mutex::new(Board::new(limits::KEPT)),
            source: Mutex::default(),
            identity: Mutex::default(),
            current: watch::Sender::default(),
            bell: watch::Sender::default(),
            widest_ms: AtomicU64::new(reconnect::router_spread_ms(0)),
            sheets: Mutex::default(),
            wholes: tokio::sync::Mutex::default(),
        }
    }
}

impl Publisher {
    /// From here on this coordinator says what the maps are.
    pub fn lead(&self, mind: Mind, cluster: &Cluster, now: Millis) {
        self.listen_to(Source::Mind(mind));
        *lock(&self.identity) = Some(cluster.identity());
        self.refresh(cluster, now);
        self.current.send_replace(true);
    }

    /// A table for [`Publisher::stand_by`]: it takes nothing that is older than what is on the board.
    pub fn table(&self) -> RouteTable {
        RouteTable::not_before(self.board().briefs())
    }

    /// From here on another says it, and `table` has what has come of it. Gives the number for
    /// [`Publisher::pass_on`].
    pub fn stand_by(&self, table: Arc<Mutex<RouteTable>>) -> u64 {
        // Until the table has everything: what it lacks is not to be taken for gone.
        self.current.send_replace(false);
        self.listen_to(Source::Table(table))
    }

    /// Nobody says anything any more, for as long as this coordinator has no part.
    pub fn fall_silent(&self) {
        self.listen_to(Source::Nobody);
    }

    fn listen_to(&self, source: Source) -> u64 {
        let mut current = lock(&self.source);
        *current = Current { number: current.number + 1, source };
        current.number
    }

    /// Passes on what the leader has said; `table` is as it is after it. Who is not the current source is not heard.
    pub fn pass_on(&self, number: u64, table: &RouteTable, event: MapEvent) {
        let current = lock(&self.source);
        if current.number != number {
            return;
        }
        let mut board = self.board();
        board.pass_on_nodes(event.nodes, event.forgotten);
        match event.news {
            MapNews::Changed { diff, .. } => {
                if let Some(brief) = table.brief(&diff.keyspace) {
                    board.pass_on(brief.clone(), *diff);
                }
            }
            MapNews::Deleted(keyspace, horizon) => board.pass_on_end(&keyspace, horizon),
            MapNews::Current(horizon) => {
                board.pass_on_horizon(horizon);
                self.current.send_replace(true);
            }
            MapNews::Cluster(identity) => *lock(&self.identity) = Some(identity),
            // How many listen to the leader says nothing about how many listen here.
            MapNews::Nothing | MapNews::Spread(_) => {}
        }
        drop((board, current));
        self.bell.send_modify(|count| *count += 1);
    }

    /// Returns when the board has everything that there is: what it lacks then does not exist.
    pub async fn current(&self) {
        // The sender is ours, so there is no other end to this.
        let _ = self.current.subscribe().wait_for(|current| *current).await;
    }

    /// Which cluster the board is of.
    pub fn identity(&self) -> Option<ClusterIdentity> {
        lock(&self.identity).clone()
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        lock(&self.board)
    }

    fn sheets(&self) -> MutexGuard<'_, Sheets> {
        lock(&self.sheets)
    }

    /// Takes up new maps and wakes everybody.
    pub fn publish(&self, cluster: &Cluster, diffs: Vec<MapDiff>, now: Millis) {
        self.board().publish(cluster, diffs, now);
        self.bell.send_modify(|count| *count += 1);
    }

    /// Brings settings and addresses up to date; wakes everybody.
    pub fn refresh(&self, cluster: &Cluster, now: Millis) {
        self.board().refresh(cluster, now);
        self.bell.send_modify(|count| *count += 1);
    }

    /// How many listen to the bell.
    pub fn subscribers(&self) -> usize {
        self.bell.receiver_count()
    }

    /// Rings whenever there may be something new.
    pub fn bell(&self) -> watch::Receiver<u64> {
        let bell = self.bell.subscribe();
        let spread_ms = self.spread_ms();
        // Those who came when there were fewer are to know, too. It gets wider a few times only.
        if self.widest_ms.fetch_max(spread_ms, Ordering::Relaxed) < spread_ms {
            self.bell.send_modify(|count| *count += 1);
        }
        bell
    }

    /// Over how long subscribers spread when this coordinator is lost.
    pub fn spread_ms(&self) -> u64 {
        reconnect::router_spread_ms(self.subscribers())
    }

    /// What the publisher says with each keyspace that is gone: [`Board::horizon`].
    pub fn horizon(&self) -> ShardId {
        self.board().horizon()
    }

    /// A keyspace's settings, at its latest generation.
    pub fn brief(&self, keyspace: &KeyspaceName) -> Option<KeyspaceBrief> {
        self.board().brief(keyspace).cloned()
    }

    /// The keyspaces of which somebody who has `has` lacks something, and what: of `only`, or of all when
    /// that is empty, and of those it has.
    pub fn lacks(
        &self,
        only: &BTreeSet<KeyspaceName>,
        has: &BTreeMap<KeyspaceName, Generation>,
    ) -> Vec<(KeyspaceName, Since)> {
        let board = self.board();
        let wanted =
            |name: &&KeyspaceName| only.is_empty() || only.contains(*name) || has.contains_key(*name);
        let kept = board.keyspaces().filter(wanted);
        let gone = has.keys().filter(|name| board.brief(name).is_none());
        let since = kept.chain(gone).map(|name| (name, board.since(name, has.get(name).copied())));
        let lacking = since.filter(|(_, since)| *since != Since::Nothing);
        lacking.map(|(name, since)| (name.clone(), since)).collect()
    }

    /// A change as it is sent.
    pub fn messages(&self, change: &Arc<MapDiff>) -> Messages {
        let mut sheets = self.sheets();
        // From the back: nearly everybody lacks the last one only.
        if let Some((_, messages)) = sheets.changes.iter().rfind(|(known, _)| Arc::ptr_eq(known, change)) {
            return messages.clone();
        }
        let messages = encode(MapDiff::clone(change), false, None);
        sheets.changes.push_back((change.clone(), messages.clone()));
        if sheets.changes.len() > limits::SHEETS {
            sheets.changes.pop_front();
        }
        messages
    }

    /// The whole map of a keyspace, or a slightly older one from which [`Publisher::lacks`] leads on; none
    /// when the keyspace is gone.
    pub async fn whole(&self, keyspace: &KeyspaceName) -> Result<Option<Arc<Whole>>, Gone> {
        let mut wholes = self.wholes.lock().await;
        let leads_on = |map: &Arc<Whole>| {
            !matches!(self.board().since(keyspace, Some(map.to)), Since::Whole | Since::Deleted)
        };
        if let Some(map) = wholes.get(keyspace).and_then(Weak::upgrade).filter(leads_on) {
            return Ok(Some(map));
        }
        let source = lock(&self.source).source.clone();
        let Some((map, brief)) = source.whole(keyspace).await? else { return Ok(None) };
        // Not where connections are served: a large map takes a while.
        let encoding = tokio::task::spawn_blocking(move || Whole {
            to: map.to,
            messages: encode(map, true, Some(brief)),
        });
        let whole = Arc::new(encoding.await.map_err(|_| Gone)?);
        wholes.retain(|_, map| map.strong_count() > 0);
        wholes.insert(keyspace.clone(), Arc::downgrade(&whole));
        Ok(Some(whole))
    }

    /// The addresses that changed after `version`, as they are sent, and the version that they lead to.
    pub fn nodes_since(&self, version: u64) -> (Option<Messages>, u64) {
        let board = self.board();
        let latest = board.version();
        if version == latest {
            return (None, latest);
        }
        let addresses = &mut self.sheets().addresses;
        if let Some((_, messages)) = addresses.get(&version).filter(|(to, _)| *to == latest) {
            return (Some(messages.clone()), latest);
        }
        let since = board.nodes_since(version);
        let event = MapEvent { news: MapNews::Nothing, nodes: since.changed, forgotten: since.forgotten };
        let messages = Messages::from(encoded(&event));
        addresses.retain(|_, (to, _)| *to == latest);
        if addresses.len() < limits::SHEETS {
            addresses.insert(version, (latest, messages.clone()));
        }
        (Some(messages), latest)
    }
}

impl Source {
    /// The map of a keyspace as one change from nothing, with its settings; none when it is gone.
    async fn whole(&self, keyspace: &KeyspaceName) -> Result<Option<(MapDiff, KeyspaceBrief)>, Gone> {
        match self {
            Source::Nobody => Err(Gone),
            Source::Mind(mind) => {
                let asked = keyspace.clone();
                let whole = mind.call(move |cluster, _| {
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
