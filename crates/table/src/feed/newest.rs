//! The last change of each replica on a node, so that readers who wait are woken without asking the replicas.

use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::LogPosition;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The last changes that replicas of tables with feeds have applied since they were opened.
#[derive(Debug, Default)]
pub(crate) struct NewestChanges {
    last: Mutex<BTreeMap<ReplicaKey, LogPosition>>,
    applied: watch::Sender<()>,
}

impl NewestChanges {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, LogPosition>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A replica has applied a change.
    pub(crate) fn applied(&self, replica: &ReplicaKey, entry: LogPosition) {
        let mut last = self.lock();
        match last.get_mut(replica) {
            Some(last) => *last = entry,
            None => drop(last.insert(replica.clone(), entry)),
        }
        drop(last);
        self.applied.send_replace(());
    }

    /// A replica is closed.
    pub(crate) fn forget(&self, replica: &ReplicaKey) {
        self.lock().remove(replica);
    }

    /// The last change that a replica has applied; none if it has applied none since it was opened.
    pub(crate) fn of(&self, replica: &ReplicaKey) -> Option<LogPosition> {
        self.lock().get(replica).copied()
    }

    /// Hears of each change.
    pub(crate) fn heard(&self) -> watch::Receiver<()> {
        self.applied.subscribe()
    }
}
