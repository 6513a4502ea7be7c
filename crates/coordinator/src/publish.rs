//! Publication of maps: the board of [`partage_core::publication`], shared by all subscribers, and the bell
//! that wakes them. Each remembers what it was sent last and, when woken, asks the board what leads from there
//! to now.

use crate::limits;
use crate::mind::{Gone, Mind};
use partage_core::cluster::Cluster;
use partage_core::exchange::KeyspaceBrief;
use partage_core::id::Generation;
use partage_core::map::MapDiff;
use partage_core::name::KeyspaceName;
use partage_core::publication::{Board, NodesSince, Since};
use partage_core::time::Millis;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::watch;

/// The board that subscribers read.
#[derive(Debug)]
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
        let mut board = Board::new(limits::KEPT);
        board.refresh(cluster, now);
        Publisher {
            board: Mutex::new(board),
            bell: watch::Sender::default(),
            wholes: tokio::sync::Mutex::default(),
        }
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Rings whenever there may be something new.
    pub fn bell(&self) -> watch::Receiver<u64> {
        self.bell.subscribe()
    }

    /// All keyspaces that there are.
    pub fn keyspaces(&self) -> Vec<KeyspaceName> {
        self.board().keyspaces().cloned().collect()
    }

    /// A keyspace's settings, at its latest generation.
    pub fn brief(&self, keyspace: &KeyspaceName) -> Option<KeyspaceBrief> {
        self.board().brief(keyspace).cloned()
    }

    /// What leads from `have` to now.
    pub fn since(&self, keyspace: &KeyspaceName, have: Option<Generation>) -> Since {
        self.board().since(keyspace, have)
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
        self.board().nodes_since(version)
    }
}
