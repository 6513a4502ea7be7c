//! The notices of the node: reports go to the worker's heartbeats, and stopped replicas wait for the service's task.

use crate::notice::{Notice, NoticeSink};
use partage_core::base::id::Epoch;
use partage_core::node::exchange::ReplicaKey;
use partage_worker::ReplicationReports;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Takes the notices of a node.
#[derive(Debug)]
pub(super) struct Notices {
    reports: ReplicationReports,
    /// Replicas that have stopped, and why.
    stopped: Mutex<BTreeMap<ReplicaKey, String>>,
    changed: Notify,
    /// Counts leaders that have begun here, so that requests which wait for one try again.
    began: watch::Sender<u64>,
    full: watch::Sender<Option<String>>,
    ended: watch::Sender<Option<String>>,
}

impl Notices {
    pub(super) fn new(reports: ReplicationReports) -> Notices {
        Notices {
            reports,
            stopped: Mutex::default(),
            changed: Notify::new(),
            began: watch::Sender::new(0),
            full: watch::Sender::new(None),
            ended: watch::Sender::new(None),
        }
    }

    fn stopped(&self) -> MutexGuard<'_, BTreeMap<ReplicaKey, String>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stops(&self, replica: ReplicaKey, why: String) {
        self.stopped().insert(replica, why);
        self.changed.notify_one();
    }

    /// Waits until replicas have stopped, and takes these.
    pub(super) async fn next_stopped(&self) -> BTreeMap<ReplicaKey, String> {
        loop {
            let stopped = std::mem::take(&mut *self.stopped());
            if !stopped.is_empty() {
                return stopped;
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
                self.stops(replica, format!("damaged: {why}"));
            }
            Notice::Failed(replica, why) => {
                tracing::error!(keyspace = %replica.keyspace, shard = %replica.shard, "stopped: {why}");
                self.stops(replica, why);
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
