//! What the replicas say: reports go to the worker's beats, and what the service must act upon waits for its task.

use crate::notice::{Notice, NoticeSink};
use partage_core::base::id::Epoch;
use partage_core::node::exchange::ReplicaKey;
use partage_worker::ReplicationReports;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// What the service acts upon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Happened {
    /// Replicas that take part in nothing any more, and why.
    pub(super) stopped: BTreeMap<ReplicaKey, String>,
}

/// Hears the replicas of a node.
#[derive(Debug)]
pub(super) struct Notices {
    reports: ReplicationReports,
    happened: Mutex<Happened>,
    changed: Notify,
    /// Counts leads that have begun, so that requests which wait for one look again.
    began: watch::Sender<u64>,
    full: watch::Sender<Option<String>>,
    ended: watch::Sender<Option<String>>,
}

impl Notices {
    pub(super) fn new(reports: ReplicationReports) -> Notices {
        Notices {
            reports,
            happened: Mutex::default(),
            changed: Notify::new(),
            began: watch::Sender::new(0),
            full: watch::Sender::new(None),
            ended: watch::Sender::new(None),
        }
    }

    fn happened(&self) -> MutexGuard<'_, Happened> {
        self.happened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn happens(&self, change: impl FnOnce(&mut Happened)) {
        change(&mut self.happened());
        self.changed.notify_one();
    }

    /// Waits until something has happened, and takes it.
    pub(super) async fn next(&self) -> Happened {
        loop {
            let happened = std::mem::take(&mut *self.happened());
            if happened != Happened::default() {
                return happened;
            }
            self.changed.notified().await;
        }
    }

    /// Changes whenever a leader begins.
    pub(super) fn began(&self) -> watch::Receiver<u64> {
        self.began.subscribe()
    }

    /// Why the disk has no room, while that is so.
    pub(super) fn full(&self) -> watch::Receiver<Option<String>> {
        self.full.subscribe()
    }

    /// Why nothing is acknowledged any more, once that is so.
    pub(super) fn ended(&self) -> watch::Receiver<Option<String>> {
        self.ended.subscribe()
    }

    fn begins(&self, replica: &ReplicaKey, epoch: Epoch) {
        tracing::info!(keyspace = %replica.keyspace, shard = %replica.shard, %epoch, "leads");
        self.began.send_modify(|count| *count += 1);
    }
}

impl NoticeSink for Notices {
    fn notify(&self, notice: Notice) {
        match notice {
            Notice::Report(replica, report) => self.reports.report(replica, report),
            Notice::Began(replica, epoch) => self.begins(&replica, epoch),
            Notice::Damaged(replica, why) => {
                tracing::error!(keyspace = %replica.keyspace, shard = %replica.shard, "damaged: {why}");
                self.happens(|happened| drop(happened.stopped.insert(replica, format!("damaged: {why}"))));
            }
            Notice::Failed(replica, why) => {
                tracing::error!(keyspace = %replica.keyspace, shard = %replica.shard, "stopped: {why}");
                self.happens(|happened| drop(happened.stopped.insert(replica, why)));
            }
            Notice::DiskIsFull(why) => {
                tracing::error!("the disk is full, and writes are refused until there is room: {why}");
                self.full.send_replace(Some(why));
            }
            Notice::DiskHasRoom => {
                tracing::info!("the disk has room again");
                self.full.send_replace(None);
            }
            Notice::HoldsLog(replica) => {
                let (keyspace, shard) = (&replica.keyspace, replica.shard);
                tracing::warn!(%keyspace, %shard, "is stored, not ordered, and keeps the log from shrinking");
            }
            Notice::Ended(why) => {
                self.ended.send_replace(Some(why));
            }
        }
    }
}
