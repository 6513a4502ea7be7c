//! Requests about indexes to a replica that has been let in, with the patience of other requests.

use super::{Refused, Tables};
use crate::check::CheckState;
use crate::rows::{IndexRange, IndexRead};
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::index::{Definition, IndexChange};
use partage_service::table::replication::Consistency;

impl Tables {
    /// Logs a change of indexes at a replica that leads. To do it twice changes nothing more.
    ///
    /// # Errors
    /// Why it may not be done.
    pub(crate) async fn change_index(
        &self,
        replica: &ReplicaKey,
        change: &IndexChange,
    ) -> Result<(), Refused> {
        self.count_write();
        self.with_retries(|| self.node().change_index(replica, change)).await
    }

    /// The indexes of a replica that leads.
    ///
    /// # Errors
    /// Why it does not answer.
    pub(crate) async fn indexes(&self, replica: &ReplicaKey) -> Result<Vec<Definition>, Refused> {
        self.with_retries(|| self.node().indexes(replica, Consistency::Linearizable)).await
    }

    /// A page of an index of a replica.
    ///
    /// # Errors
    /// Why it does not answer.
    pub(crate) async fn index_page(
        &self,
        replica: &ReplicaKey,
        range: &IndexRange,
        consistency: Consistency,
    ) -> Result<IndexRead, Refused> {
        self.count_read(consistency);
        self.with_retries(|| self.node().index_page(replica, range.clone(), consistency)).await
    }

    /// How far a check of a replica is.
    pub(crate) fn check_state(&self, replica: &ReplicaKey, number: u64) -> Option<CheckState> {
        self.node().check_state(replica, number)
    }
}
