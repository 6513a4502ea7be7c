//! Leads that this node may not take up: it lays them down, so that the coordinator names another leader, under a later epoch.
//!
//! A process leads a slot only under an epoch of which no earlier process of its node has heard, and only with decisions that are
//! whole. As a rule the coordinator gives a later epoch when a process starts. If it does not, the slot would have no leader, and
//! the coordinator would take it for one that is led.

use super::Running;
use super::map::slot_of;
use crate::limits::{LEADS_LOOK, LEADS_LOOKS};
use partage_core::base::name::KeyspaceName;
use partage_service::shuffle::PoolSlot;
use partage_worker::{LayDownError, ShardId, Worker};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval};

/// Of slots that are not led: how many looks in a row have found them so.
#[derive(Debug, Default)]
struct Waits(BTreeMap<PoolSlot, u32>);

impl Waits {
    /// One more look. The answer has the slots that were found so for long enough, and those that still are after as long again.
    fn look(&mut self, not_led: &[PoolSlot]) -> Vec<PoolSlot> {
        let looks = |slot: &PoolSlot| (*slot, self.0.get(slot).copied().unwrap_or(0) + 1);
        let now: BTreeMap<PoolSlot, u32> = not_led.iter().map(looks).collect();
        self.0 = now;
        let due = self.0.iter().filter(|(_, looks)| looks.is_multiple_of(LEADS_LOOKS));
        due.map(|(slot, _)| *slot).collect()
    }
}

fn shard_of(worker: &Worker, pool: &KeyspaceName, slot: PoolSlot) -> Option<ShardId> {
    let replicas = worker.replicas();
    let mut assignments = replicas.iter().map(|replica| &replica.assignment);
    let found = assignments.find(|shard| shard.keyspace() == pool && slot_of(&shard.bounds) == Some(slot));
    found.map(|shard| shard.shard())
}

/// Looks again and again which leads the node does not take up: runs until it is dropped.
pub(crate) async fn attend(pool: KeyspaceName, running: Arc<Running>, worker: Worker) {
    let mut looks = interval(LEADS_LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waits = Waits::default();
    loop {
        looks.tick().await;
        for slot in waits.look(&running.node.status().not_led) {
            let Some(shard) = shard_of(&worker, &pool, slot) else { continue };
            let reason =
                "an earlier process of this node has heard of the epoch, or has lost decisions of the slot";
            match worker.lay_down_lead(&pool, shard, reason).await {
                Ok(()) => tracing::warn!(%pool, slot = slot.0, "the node has laid down the lead: {reason}"),
                Err(LayDownError::Refused(why)) => {
                    tracing::error!(%pool, slot = slot.0, "the node is to lead the slot and may not, as {reason}: {why}");
                }
                Err(LayDownError::Stopped) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o2_a_slot_is_laid_down_when_it_was_not_led_for_some_looks_and_again_after_as_many() {
        let (mut waits, slot, other) = (Waits::default(), PoolSlot(3), PoolSlot(4));
        for _ in 1..LEADS_LOOKS {
            assert_eq!(waits.look(&[slot]), []);
        }
        assert_eq!(waits.look(&[slot, other]), [slot]);
        // It is led meanwhile: what was counted counts no more.
        assert_eq!(waits.look(&[other]), []);
        for _ in 3..LEADS_LOOKS {
            waits.look(&[slot, other]);
        }
        assert_eq!(waits.look(&[slot, other]), [other]);
        assert_eq!(waits.look(&[]), []);
        let due = (0..2 * LEADS_LOOKS).filter(|_| !waits.look(&[slot]).is_empty());
        assert_eq!(due.count(), 2);
    }
}
