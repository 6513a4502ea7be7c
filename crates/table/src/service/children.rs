//! Splits and merges in the service: children's replicas take their bases from their parents' replicas, which stay open for that,
//! without any callback, until the coordinator has their data deleted.

use super::{Membership, Tables};
use crate::error::ReplicaError;
use crate::limits::{CHILDREN_LOOK, MEDIAN_BYTES, MEDIAN_CHANGE};
use crate::settings::ReplicaSettings;
use partage_core::keyspace::key::Key;
use partage_service::table::{member, replication};
use partage_worker::{KeyspaceBrief, Order, ReplicaKey, Stored, Worker};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::time::{MissedTickBehavior, interval};

/// What a replica of a table is opened with.
pub(super) fn replica_settings(brief: &KeyspaceBrief) -> ReplicaSettings {
    let replication = replication::Settings {
        min_in_sync: (brief.min_in_sync as usize).max(1),
        ..replication::Settings::default()
    };
    ReplicaSettings {
        replication,
        partition_key: brief.partition_key,
        sharding: brief.sharding,
        values: brief.values,
        feed_ms: brief.feed_ms,
    }
}

/// The median key of each leader here, and the size at which the node looked for it.
#[derive(Debug, Default)]
pub(super) struct Medians(Mutex<BTreeMap<ReplicaKey, (u64, Option<Key>)>>);

impl Medians {
    /// What is known for a size like that.
    fn known(&self, replica: &ReplicaKey, bytes: u64) -> Option<Option<Key>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_like = |(then, _): &&(u64, Option<Key>)| then.abs_diff(bytes) <= *then / MEDIAN_CHANGE;
        known.get(replica).filter(is_like).map(|(_, median)| median.clone())
    }

    fn learn(&self, replica: &ReplicaKey, bytes: u64, median: Option<Key>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(replica.clone(), (bytes, median));
    }

    pub(super) fn forget(&self, replica: &ReplicaKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(replica);
    }
}

/// Which replicas have taken steps since they were seen. One that was not seen before had taken none.
fn got_on<'a>(
    seen: &'a BTreeMap<ReplicaKey, u64>,
    now: &'a BTreeMap<ReplicaKey, u64>,
) -> impl Iterator<Item = &'a ReplicaKey> {
    let has_got_on = move |(replica, steps): &(&ReplicaKey, &u64)| seen.get(*replica).unwrap_or(&0) != *steps;
    now.iter().filter(has_got_on).map(|(replica, _)| replica)
}

impl Tables {
    /// Whether the replica of that order, which is not open, takes what the parents of its shard have.
    pub(super) fn takes_base(&self, order: &Order) -> bool {
        let (node, replica) = (self.node(), &order.replica);
        let forms = member::forms(order);
        let lacks_base = || forms || self.0.members.of(replica).is_some_and(|membership| membership.forms);
        node.is_forming(replica) || (!node.is_stored(replica) && lacks_base() && member::takes_base(order))
    }

    /// What is here of children that lack what their parents had: the coordinator goes on with them.
    pub(super) fn forming(&self) -> Vec<Stored> {
        let store = self.0.members.store();
        let is_found = |replica: &ReplicaKey| self.0.found.iter().any(|found| found.replica == *replica);
        let forming = self.0.members.all().into_iter();
        let forming = forming.filter(|(replica, membership)| membership.forms && !is_found(replica));
        let stored = |(replica, Membership { bounds, served, .. })| Stored {
            replica,
            bounds,
            epoch: served,
            store,
            damaged: false,
        };
        forming.map(stored).collect()
    }

    /// Tells the worker of each replica of a child that its load gets on, while it takes what its parents have: of a large shard
    /// that may take longer than `load_ms`, and to begin anew would take as long again.
    pub(super) async fn watch_children(&self, worker: &Worker) {
        let (mut looks, mut seen) = (interval(CHILDREN_LOOK), BTreeMap::new());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let now: BTreeMap<ReplicaKey, u64> = self.node().forming_steps().into_iter().collect();
            got_on(&seen, &now).for_each(|replica| worker.load_progressed(replica));
            seen = now;
        }
    }

    /// The replica hears its latest order again: it has begun after it came.
    pub(super) fn order_again(&self, replica: &ReplicaKey) {
        if let Some(order) = self.order_of(replica) {
            self.node().order(&order);
        }
    }

    /// Opens a replica whose shard was split or merged, after a start of the process: no callback does.
    pub(super) fn open_closing(&self, order: &Order, settings: ReplicaSettings) {
        if !member::closes(order) || !self.node().is_stored(&order.replica) {
            return;
        }
        let (tables, replica) = (self.clone(), order.replica.clone());
        tokio::spawn(async move {
            match tables.node().open_replica(&replica, settings, false).await {
                Ok(()) => tables.order_again(&replica),
                // An order before this one opens it.
                Err(ReplicaError::Busy(_)) => {}
                Err(error) => tracing::error!("its children cannot take what it has: {error}"),
            }
        });
    }

    /// The median key of a leader; the node looks again when the size has changed.
    pub(super) async fn median(&self, replica: &ReplicaKey, bytes: u64) -> Option<Key> {
        if bytes < MEDIAN_BYTES {
            return None;
        }
        if let Some(known) = self.0.medians.known(replica, bytes) {
            return known;
        }
        let median = self.node().median(replica).await;
        self.0.medians.learn(replica, bytes, median.clone());
        median
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{PlacementId, ShardId};

    #[test]
    fn a_replica_that_has_taken_a_step_gets_on_also_when_it_is_seen_for_the_first_time() {
        let steps = |steps: &[(u64, u64)]| -> BTreeMap<ReplicaKey, u64> {
            let key = |placement| ReplicaKey {
                keyspace: "stock".parse().unwrap(),
                shard: ShardId(1),
                placement: PlacementId(placement),
            };
            steps.iter().map(|(placement, steps)| (key(*placement), *steps)).collect()
        };
        let (seen, now) =
            (steps(&[(1, 3), (2, 3), (5, 9)]), steps(&[(1, 3), (2, 4), (3, 0), (4, 1), (5, 0)]));
        let on: Vec<u64> = got_on(&seen, &now).map(|replica| replica.placement.0).collect();
        assert_eq!(on, [2, 4, 5], "the last one has begun anew");
    }
}
