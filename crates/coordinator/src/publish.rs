//! Publication of maps: what happened lately, per keyspace, and who should be woken.
//!
//! Nothing is queued for a subscriber. Each remembers the generation it was sent last and, when woken, asks
//! for what leads from there to now: nothing, the changes in between, or the whole map when they are not
//! kept any more. So a slow one gets the latest map and delays nobody (W6), and what is sent is in
//! proportion to the change.

use crate::limits;
use crate::mind::{Gone, Mind};
use partage_core::cluster::Cluster;
use partage_core::exchange::KeyspaceBrief;
use partage_core::id::Generation;
use partage_core::map::MapDiff;
use partage_core::name::{KeyspaceName, NodeId};
use partage_core::time::Millis;
use partage_wire::maps::NodeAddress;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::watch;

/// What leads a subscriber to the current map.
#[derive(Debug, Clone)]
pub enum Since {
    /// It is there.
    Nothing,
    /// These, in order.
    Changes(Vec<Arc<MapDiff>>),
    /// Its generation is not known any more: it needs the whole map.
    Whole,
    /// The keyspace is gone.
    Deleted,
}

#[derive(Debug)]
struct History {
    brief: KeyspaceBrief,
    diffs: VecDeque<Arc<MapDiff>>,
    shards: usize,
}

#[derive(Debug, Default)]
struct Board {
    keyspaces: BTreeMap<KeyspaceName, History>,
    /// Addresses, each with the version at which it changed.
    nodes: BTreeMap<NodeId, (NodeAddress, u64)>,
    /// Nodes that were forgotten, each with the version at which it was.
    forgotten: VecDeque<(NodeId, u64)>,
    version: u64,
}

/// Addresses that a subscriber has not heard of yet.
#[derive(Debug, Clone)]
pub struct NodesSince {
    /// New or different.
    pub changed: Vec<NodeAddress>,
    /// Gone.
    pub forgotten: Vec<NodeId>,
    /// To be asked from next time.
    pub version: u64,
}

/// The board that subscribers read.
#[derive(Debug, Default)]
pub struct Publisher {
    board: Mutex<Board>,
    bell: watch::Sender<u64>,
    /// Whole maps that are being sent right now, so that a thousand routers which connect at once cost the
    /// mind one copy, not a thousand.
    wholes: tokio::sync::Mutex<BTreeMap<KeyspaceName, Weak<MapDiff>>>,
}

impl Publisher {
    /// The board of a recovered cluster: current maps, no history.
    pub fn new(cluster: &Cluster, now: Millis) -> Publisher {
        let publisher = Publisher::default();
        publisher.refresh(cluster, now);
        publisher
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up new maps and wakes everybody.
    pub fn publish(&self, cluster: &Cluster, diffs: Vec<MapDiff>, now: Millis) {
        let mut board = self.board();
        for diff in diffs {
            if let Some(history) = board.keyspaces.get_mut(&diff.keyspace) {
                history.push(diff);
            }
        }
        drop(board);
        self.refresh(cluster, now);
    }

    /// Brings settings and addresses up to date; wakes everybody.
    pub fn refresh(&self, cluster: &Cluster, now: Millis) {
        let mut board = self.board();
        board.keyspaces.retain(|name, _| cluster.keyspaces().contains_key(name));
        for state in cluster.keyspaces().values() {
            let brief = state.brief();
            let fresh = History { brief: brief.clone(), diffs: VecDeque::new(), shards: 0 };
            board.keyspaces.entry(fresh.brief.name.clone()).or_insert(fresh).brief = brief;
        }
        let version = board.version + 1;
        let gone: Vec<_> =
            board.nodes.keys().filter(|id| !cluster.nodes().contains_key(*id)).cloned().collect();
        for id in gone {
            board.nodes.remove(&id);
            board.forgotten.push_back((id, version));
            while board.forgotten.len() > limits::FORGOTTEN {
                board.forgotten.pop_front();
            }
            board.version = version;
        }
        for (id, node) in cluster.nodes() {
            let seen = NodeAddress {
                id: id.clone(),
                incarnation: node.record.incarnation,
                address: node.record.spec.address.clone(),
                zone: node.record.spec.zone.clone(),
                health: node.signs.health(now, cluster.settings()),
            };
            if board.nodes.get(id).is_none_or(|(known, _)| *known != seen) {
                board.nodes.insert(id.clone(), (seen, version));
                board.version = version;
            }
        }
        drop(board);
        self.bell.send_modify(|count| *count += 1);
    }

    /// Rings whenever there may be something new.
    pub fn bell(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }

    /// All keyspaces that there are.
    pub fn keyspaces(&self) -> Vec<KeyspaceName> {
        self.board().keyspaces.keys().cloned().collect()
    }

    /// A keyspace's settings, at its latest generation.
    pub fn brief(&self, keyspace: &KeyspaceName) -> Option<KeyspaceBrief> {
        self.board().keyspaces.get(keyspace).map(|history| history.brief.clone())
    }

    /// What leads from `have` to now.
    pub fn since(&self, keyspace: &KeyspaceName, have: Option<Generation>) -> Since {
        let board = self.board();
        let Some(history) = board.keyspaces.get(keyspace) else { return Since::Deleted };
        match have {
            Some(have) if have == history.brief.generation => Since::Nothing,
            Some(have) => match history.diffs.iter().position(|diff| diff.from == have) {
                Some(first) => Since::Changes(history.diffs.iter().skip(first).cloned().collect()),
                None => Since::Whole,
            },
            None => Since::Whole,
        }
    }

    /// The whole map of a keyspace, or a slightly older one from which [`Publisher::since`] leads on; none
    /// when the keyspace is gone.
    pub async fn whole(&self, mind: &Mind, keyspace: &KeyspaceName) -> Result<Option<Arc<MapDiff>>, Gone> {
        let mut wholes = self.wholes.lock().await;
        let shared = wholes.get(keyspace).and_then(Weak::upgrade);
        let leads_on =
            |map: &Arc<MapDiff>| !matches!(self.since(keyspace, Some(map.to)), Since::Whole | Since::Deleted);
        if let Some(map) = shared.filter(leads_on) {
            return Ok(Some(map));
        }
        let asked = keyspace.clone();
        let whole =
            mind.call(move |cluster, _| cluster.keyspaces().get(&asked).map(|k| k.map.whole())).await?;
        let whole = whole.map(Arc::new);
        wholes.retain(|_, map| map.strong_count() > 0);
        wholes.extend(whole.iter().map(|map| (keyspace.clone(), Arc::downgrade(map))));
        Ok(whole)
    }

    /// Addresses that changed after `version`.
    pub fn nodes_since(&self, version: u64) -> NodesSince {
        let board = self.board();
        let changed = board.nodes.values().filter(|(_, at)| *at > version).map(|(node, _)| node.clone());
        let forgotten = board.forgotten.iter().filter(|(_, at)| *at > version).map(|(id, _)| id.clone());
        NodesSince { changed: changed.collect(), forgotten: forgotten.collect(), version: board.version }
    }
}

impl History {
    fn push(&mut self, diff: MapDiff) {
        self.brief.generation = diff.to;
        self.shards += diff.changed.len();
        self.diffs.push_back(Arc::new(diff));
        while self.diffs.len() > limits::DIFFS || (self.shards > limits::DIFF_SHARDS && self.diffs.len() > 1)
        {
            self.shards -= self.diffs.pop_front().map_or(0, |diff| diff.changed.len());
        }
    }
}
