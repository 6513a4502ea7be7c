//! Indexes of the replicas of a node: changes of them, and reads.

use super::Node;
use crate::check::CheckState;
use crate::error::{ReadError, WriteError};
use crate::queue::Wanted;
use crate::rows::{IndexRange, IndexRead};
use crate::stored::index;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::index::{Definition, IndexChange};
use partage_service::table::replication::Consistency;
use tokio::sync::oneshot;

impl Node {
    /// Logs a change of indexes at the leader, and returns when it is applied there. It may have done nothing: read the indexes.
    ///
    /// # Errors
    /// [`WriteError::is_definite`] says whether it is certain that nothing was done.
    pub async fn change_index(&self, replica: &ReplicaKey, change: &IndexChange) -> Result<(), WriteError> {
        let registry = &self.shared.registry;
        if let Some(why) = registry.ended() {
            return Err(WriteError::Stopped(why.to_owned()));
        }
        let queue = self.queue(replica).ok_or(WriteError::NotOpen)?;
        if let Some(refused) = registry.refuses_writes() {
            return Err(refused);
        }
        let payload = index::encode_change(partage_clock::wall_ms(), change);
        let (answer, outcome) = oneshot::channel();
        queue.add_write(payload.into(), answer, self.shared.clock.nanos())?;
        let gone = |_| Err(WriteError::Unknown("the node was stopped before it answered".to_owned()));
        outcome.await.unwrap_or_else(gone).map(|_| ())
    }

    /// The indexes of a replica.
    ///
    /// # Errors
    /// What a client may do instead.
    pub async fn indexes(
        &self,
        replica: &ReplicaKey,
        consistency: Consistency,
    ) -> Result<Vec<Definition>, ReadError> {
        self.ask(replica, consistency, 0, Wanted::Indexes).await
    }

    /// A page of an index.
    ///
    /// # Errors
    /// What a client may do instead.
    pub(crate) async fn index_page(
        &self,
        replica: &ReplicaKey,
        range: IndexRange,
        consistency: Consistency,
    ) -> Result<IndexRead, ReadError> {
        self.ask(replica, consistency, 0, |answer| Wanted::Index(range, answer)).await
    }

    /// Which part of a key decides the partition of a row of a replica; none if it is not open.
    pub(crate) fn partition_key(&self, replica: &ReplicaKey) -> Option<PartitionKey> {
        Some(self.queue(replica)?.partition_key)
    }

    /// How far a check of a replica is; none: it has not begun, or was forgotten.
    pub(crate) fn check_state(&self, replica: &ReplicaKey, number: u64) -> Option<CheckState> {
        self.shared.checks.take(replica, number)
    }
}
