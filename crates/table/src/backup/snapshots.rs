//! Snapshots of shards that a node keeps for those who read them piece by piece.
//!
//! Each has an id that cannot be guessed. It is forgotten when its reader says so, when no reader has asked for long
//! ([`limits::SNAPSHOT_IDLE`]), when it is old ([`limits::SNAPSHOT_LIFE`]), and when its replica is not open here any more. A
//! node keeps [`limits::SNAPSHOTS_PINNED`] at most, and refuses others as busy.

use crate::limits;
use crate::rows::{PinnedRows, RowsError, ScanRange};
use crate::service::{Refusal, Refused, Tables};
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::TreeSnapshot;
use partage_service::table::replication::Consistency;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

/// Why a snapshot is not made or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The shard has no replica here.
    #[error("this node has no replica of shard {1} of table {0}")]
    Elsewhere(KeyspaceName, ShardId),
    /// The replica refuses, or too many are kept.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// There is no such snapshot, or not any more.
    #[error("the node has no such snapshot any more: {0}")]
    Gone(String),
}

/// A snapshot that is kept.
pub(crate) struct Pinned {
    pub(crate) id: String,
    pub(crate) replica: ReplicaKey,
    pub(crate) bounds: Bounds,
    pub(crate) rows: PinnedRows<TreeSnapshot>,
    began: Instant,
    asked: Mutex<Instant>,
}

impl Pinned {
    fn asked(&self) -> MutexGuard<'_, Instant> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.asked().elapsed() >= limits::SNAPSHOT_IDLE || self.began.elapsed() >= limits::SNAPSHOT_LIFE
    }
}

/// A place among the snapshots, which is free again when the snapshot was not made.
struct Place<'a>(&'a Snapshots);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.kept().coming -= 1;
    }
}

#[derive(Default)]
struct Kept {
    snapshots: BTreeMap<String, Arc<Pinned>>,
    /// Those that are being made.
    coming: usize,
    has_sweeper: bool,
}

/// The snapshots of a node. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Snapshots {
    tables: Tables,
    kept: Arc<Mutex<Kept>>,
    reads: Arc<Semaphore>,
}

impl Snapshots {
    pub(crate) fn new(tables: Tables) -> Snapshots {
        let reads = Arc::new(Semaphore::new(limits::SNAPSHOT_READS));
        Snapshots { tables, kept: Arc::default(), reads }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is over.
    fn sweep(&self) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept();
        kept.snapshots.retain(|_, one| !one.is_over() && self.tables.node().is_open(&one.replica));
        kept
    }

    fn take_place(&self) -> Result<Place<'_>, Refused> {
        let mut kept = self.kept();
        if kept.snapshots.len() + kept.coming >= limits::SNAPSHOTS_PINNED {
            let most = limits::SNAPSHOTS_PINNED;
            let what = format!("the node keeps {most} snapshots already: end one, or try again later");
            return Err(Refused::new(Refusal::Busy, what));
        }
        kept.coming += 1;
        Ok(Place(self))
    }

    /// Makes one of a shard that has a replica here.
    pub(crate) async fn pin(
        &self,
        table: &KeyspaceName,
        shard: ShardId,
        consistency: Consistency,
    ) -> Result<Arc<Pinned>, SnapshotError> {
        drop(self.sweep());
        let elsewhere = || SnapshotError::Elsewhere(table.clone(), shard);
        let (replica, bounds) = self.tables.replica_of(table, shard).ok_or_else(elsewhere)?;
        let place = self.take_place()?;
        let rows = self.tables.pin(&replica, consistency).await?;
        let id = partage_random::bytes::<16>().map(|byte| format!("{byte:02x}")).concat();
        let now = Instant::now();
        let pinned = Pinned { id: id.clone(), replica, bounds, rows, began: now, asked: Mutex::new(now) };
        let pinned = Arc::new(pinned);
        let has_sweeper = {
            let mut kept = self.kept();
            kept.snapshots.insert(id, Arc::clone(&pinned));
            std::mem::replace(&mut kept.has_sweeper, true)
        };
        drop(place);
        if !has_sweeper {
            self.sweep_later();
        }
        Ok(pinned)
    }

    /// Looks now and then, until there is none. A node that has ended keeps none.
    fn sweep_later(&self) {
        let (tables, reads) = (self.tables.clone(), Arc::clone(&self.reads));
        let kept = Arc::downgrade(&self.kept);
        tokio::spawn(async move {
            loop {
                sleep(limits::SNAPSHOT_IDLE / 8).await;
                let Some(kept) = kept.upgrade() else { return };
                let snapshots = Snapshots { tables: tables.clone(), kept, reads: Arc::clone(&reads) };
                let mut kept = snapshots.sweep();
                // Under the lock, so that the next snapshot finds that it needs another task.
                if kept.snapshots.is_empty() {
                    kept.has_sweeper = false;
                    return;
                }
            }
        });
    }

    /// One that is kept, of that shard.
    pub(crate) fn find(
        &self,
        table: &KeyspaceName,
        shard: ShardId,
        id: &str,
    ) -> Result<Arc<Pinned>, SnapshotError> {
        drop(self.sweep());
        let found = self.kept().snapshots.get(id).cloned();
        let found = found.filter(|one| one.replica.keyspace == *table && one.replica.shard == shard);
        let gone = || {
            SnapshotError::Gone(
                "it was ended or forgotten, or the shard has left the node: make another".into(),
            )
        };
        let found = found.ok_or_else(gone)?;
        *found.asked() = Instant::now();
        Ok(found)
    }

    /// Forgets one; says whether there was one.
    pub(crate) fn end(&self, table: &KeyspaceName, shard: ShardId, id: &str) -> bool {
        self.find(table, shard, id).is_ok() && self.kept().snapshots.remove(id).is_some()
    }

    /// Reads of a snapshot, on a thread that may wait for the disk.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        pinned: &Arc<Pinned>,
        read: impl FnOnce(&PinnedRows<TreeSnapshot>) -> Result<T, RowsError> + Send + 'static,
    ) -> Result<T, SnapshotError> {
        let stopped = |why: String| SnapshotError::Refused(Refused::new(Refusal::Stopped, why));
        let permit =
            Arc::clone(&self.reads).acquire_owned().await.map_err(|error| stopped(error.to_string()))?;
        let rows = Arc::clone(pinned);
        let reading = spawn_blocking(move || {
            let found = read(&rows.rows);
            drop(permit);
            found
        });
        let found = reading.await.map_err(|error| stopped(error.to_string()))?;
        let Err(error) = found else {
            *pinned.asked() = Instant::now();
            return found.map_err(|error| stopped(error.to_string()));
        };
        self.kept().snapshots.remove(&pinned.id);
        if self.tables.node().is_open(&pinned.replica) && error.is_damage() {
            // A client that goes meanwhile does not end it.
            tokio::spawn(look_for_damage(self.tables.clone(), pinned.replica.clone()));
        }
        Err(SnapshotError::Gone(error.to_string()))
    }
}

/// Reads the replica through: if what a snapshot found is in the store still, the replica stops, and is filled from another one.
async fn look_for_damage(tables: Tables, replica: ReplicaKey) {
    let mut range = ScanRange::default();
    while let Ok(page) = tables.scan(&replica, &range, Consistency::Any, 0).await {
        match page.next {
            Some(next) => range.from = next,
            None => return,
        }
    }
}
