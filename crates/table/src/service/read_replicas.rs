//! The node watches its read replicas, and tells its worker. No leader waits for them, so only their own node notices a late one.
//!
//! | a read replica | its node, every [`READ_REPLICAS_LOOK`] |
//! |---|---|
//! | loads, and has taken more than at the last look | says that the load gets on: a large shard may take longer than `load_ms` |
//! | serves, and its rows are older than [`READ_REPLICA_AGE_MS`] | reports it unhealthy: requests go to other replicas until it has caught up, and while the leader serves the coordinator puts another in its place |
//!
//! So a client that reads with the consistency `any` does not get rows from before a leader was lost long ago.

use super::Tables;
use crate::figures::LoadProgress;
use crate::limits::{READ_REPLICA_AGE_MS, READ_REPLICAS_LOOK};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::node::exchange::ReplicaKey;
use partage_worker::Worker;
use std::collections::BTreeMap;
use tokio::time::{MissedTickBehavior, interval};

/// What was seen last of those that load.
type Seen = BTreeMap<ReplicaKey, LoadProgress>;

impl Tables {
    pub(super) async fn watch_read_replicas(&self, worker: &Worker) {
        let (mut looks, mut seen) = (interval(READ_REPLICAS_LOOK), Seen::new());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let mut loading = Seen::new();
            for (replica, state) in self.read_replicas() {
                let Some(figures) = self.0.node.replica_figures(&replica).await else { continue };
                match state {
                    ReplicaState::Load => {
                        if has_got_on(seen.get(&replica), figures.taken) {
                            worker.load_progressed(&replica);
                        }
                        loading.insert(replica, figures.taken);
                    }
                    ReplicaState::Live if is_too_old(figures.lag_ms) => {
                        let why = "it is a read replica, and has not heard its leader for long";
                        // A worker that has stopped serves nothing.
                        let _ = worker.report_unhealthy(&replica.keyspace, replica.shard, why).await;
                    }
                    ReplicaState::Live | ReplicaState::Unload | ReplicaState::UnloadFinal => {}
                }
            }
            seen = loading;
        }
    }
}

/// Whether a replica has taken something since it was looked at. One that is seen for the first time begins.
fn has_got_on(before: Option<&LoadProgress>, now: LoadProgress) -> bool {
    before.is_some_and(|before| *before != now)
}

/// One whose age is not known has not begun to serve.
fn is_too_old(lag_ms: Option<u64>) -> bool {
    lag_ms.is_some_and(|lag_ms| lag_ms > READ_REPLICA_AGE_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_gets_on_while_something_is_taken() {
        let at = |end, chunks| LoadProgress { end, chunks };
        assert!(!has_got_on(None, at(0, 0)) && !has_got_on(Some(&at(7, 2)), at(7, 2)));
        assert!(has_got_on(Some(&at(7, 2)), at(7, 3)) && has_got_on(Some(&at(7, 2)), at(9, 0)));
    }

    #[test]
    fn only_a_known_age_is_too_old() {
        assert!(!is_too_old(None) && !is_too_old(Some(READ_REPLICA_AGE_MS)));
        assert!(is_too_old(Some(READ_REPLICA_AGE_MS + 1)));
    }
}
