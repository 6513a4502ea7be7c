//! What the replicas of a replicated keyspace have to say to the coordinator: the way from the service to the worker's beats.

use partage_core::node::exchange::{ReplicaKey, ReplicationReport};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The latest report of each replica, until the worker takes it. Cheap to clone; all clones are one.
///
/// The service makes it before it starts the worker ([`crate::Builder::replication`]), so that replicas can report from
/// their first moment on. A later report of a replica replaces an earlier one, so the memory is bounded by the replicas.
#[derive(Debug, Clone, Default)]
pub struct ReplicationReports(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    latest: Mutex<BTreeMap<ReplicaKey, ReplicationReport>>,
    changed: Notify,
}

impl ReplicationReports {
    fn latest(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, ReplicationReport>> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports how the replication of a shard is, as this replica of it sees it. Never waits.
    pub fn report(&self, replica: ReplicaKey, report: ReplicationReport) {
        self.latest().insert(replica, report);
        self.0.changed.notify_one();
    }

    /// Returns when there is a report that was not taken.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// What was reported since the last call.
    pub(crate) fn take(&self) -> BTreeMap<ReplicaKey, ReplicationReport> {
        std::mem::take(&mut *self.latest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{PlacementId, ShardId};

    #[tokio::test]
    async fn a_later_report_replaces_an_earlier_one_and_none_is_missed() {
        let reports = ReplicationReports::default();
        let key = |placement| ReplicaKey {
            keyspace: "stock".parse().expect("a name"),
            shard: ShardId(1),
            placement: PlacementId(placement),
        };
        let at = |log_end| ReplicationReport { log_end, ..ReplicationReport::default() };
        reports.report(key(1), at(1));
        reports.report(key(2), at(1));
        reports.report(key(1), at(2));
        reports.changed().await;
        assert_eq!(reports.take(), BTreeMap::from([(key(1), at(2)), (key(2), at(1))]));
        assert!(reports.take().is_empty());
        reports.report(key(2), at(3));
        reports.changed().await;
        assert_eq!(reports.take().len(), 1);
    }
}
