//! What a node of tables does about its disk: one without room, and one that stores nothing any more.
//!
//! | the disk | the node |
//! |---|---|
//! | has no room | refuses writes, and lays its leads down until there is room |
//! | has been writing the same group of the log for [`LOG_STALL`] | says so, and lays its leads down until the group is written: writes would wait for as long as that takes, and reads need none |
//!
//! Replicas that follow need nothing of that: their leaders leave them out by themselves.

use super::Tables;
use crate::limits::{LAY_DOWN_AGAIN, LOG_LOOK, LOG_STALL};
use partage_worker::{LayDownError, NoSuccessor, Role, Worker};
use std::sync::atomic::Ordering;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The group that is being written, and since when that was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Writing(Option<(u64, Instant)>);

impl Writing {
    /// The node looks again; says for how long the same group has been written, if that is too long.
    fn look(&mut self, now: Instant, group: Option<u64>) -> bool {
        self.0 = match (self.0, group) {
            (Some((known, since)), Some(group)) if known == group => Some((group, since)),
            (_, group) => group.map(|group| (group, now)),
        };
        self.0.is_some_and(|(_, since)| now.duration_since(since) >= LOG_STALL)
    }
}

impl Tables {
    /// A node without room takes no writes: others lead instead. It looks again and again while that is so: a lead may have come
    /// since, or another replica that could lead.
    pub(super) async fn attend_full(&self, worker: &Worker) {
        let mut full = self.full();
        loop {
            let why = full.borrow_and_update().clone();
            worker.set_disk_full(why.is_some());
            match why {
                Some(why) => {
                    self.lay_down_leads(worker, &format!("its disk is full: {why}")).await;
                    // Either is a reason to look again.
                    let _ = tokio::time::timeout(LAY_DOWN_AGAIN, full.changed()).await;
                }
                None => {
                    if full.changed().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// A node whose disk stores nothing cannot acknowledge what its leads have admitted: others lead instead.
    pub(super) async fn attend_stalled(&self, worker: &Worker) {
        let (mut looks, mut writing, mut is_known) = (interval(LOG_LOOK), Writing::default(), false);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = looks.tick().await;
            // A full disk is told of by itself.
            let group = self.node().writing().filter(|_| !self.node().is_full());
            let is_stalled = writing.look(now, group);
            self.0.is_stalled.store(is_stalled, Ordering::Relaxed);
            let seconds = LOG_STALL.as_secs();
            match (std::mem::replace(&mut is_known, is_stalled), is_stalled) {
                (false, true) => tracing::error!(
                    "the disk has stored nothing for {seconds} seconds: writes wait, and leads are laid down until it does; look at the disk"
                ),
                (true, false) => tracing::info!("the disk stores again"),
                _ => {}
            }
            if is_stalled {
                self.lay_down_leads(worker, &format!("its disk has stored nothing for {seconds} seconds"))
                    .await;
            }
        }
    }

    async fn lay_down_leads(&self, worker: &Worker, reason: &str) {
        for replica in worker.replicas() {
            let assignment = &replica.assignment;
            if assignment.role == Role::Leader && self.order_of(&assignment.replica).is_some() {
                let (keyspace, shard) = (assignment.keyspace(), assignment.shard());
                match worker.lay_down_lead(keyspace, shard, reason).await {
                    // It has done so before, and another node does not lead yet.
                    Ok(()) | Err(LayDownError::Refused(NoSuccessor::DoesNotLead)) => {}
                    Err(error) => {
                        tracing::warn!(%keyspace, %shard, "leads on, and its writes wait or are refused: {error}")
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_log_stalls_when_it_writes_the_same_group_for_long() {
        let (begun, mut writing) = (Instant::now(), Writing::default());
        let at = |ms| begun + Duration::from_millis(ms);
        assert!(!writing.look(at(0), Some(7)) && !writing.look(at(4_999), Some(7)));
        assert!(writing.look(at(5_000), Some(7)) && writing.look(at(9_000), Some(7)));
        assert!(!writing.look(at(9_500), Some(8)) && !writing.look(at(14_000), Some(8)));
        assert!(!writing.look(at(14_100), None), "nothing waits");
        assert!(!writing.look(at(60_000), Some(9)) && writing.look(at(65_000), Some(9)));
    }
}
