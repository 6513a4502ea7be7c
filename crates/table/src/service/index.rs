//! Requests about indexes to a replica that has been let in, with the patience of other requests.

use super::requests::passes;
use super::{Refused, Tables};
use crate::check::CheckState;
use crate::error::{ReadError, WriteError};
use crate::limits;
use crate::rows::{IndexRange, IndexRead};
use partage_core::node::exchange::ReplicaKey;
use partage_core::service::table::index::{Definition, IndexChange};
use partage_core::service::table::replication::Consistency;
use tokio::time::Instant;

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
        let until = Instant::now() + limits::PATIENCE;
        loop {
            match self.node().change_index(replica, change).await {
                Ok(()) => return Ok(()),
                Err(WriteError::Refused(failed)) if passes(&failed) && self.waits(until).await => {}
                Err(error) => return Err(self.refused(error.into())),
            }
        }
    }

    /// The indexes of a replica that leads.
    ///
    /// # Errors
    /// Why it does not answer.
    pub(crate) async fn indexes(&self, replica: &ReplicaKey) -> Result<Vec<Definition>, Refused> {
        let until = Instant::now() + limits::PATIENCE;
        loop {
            match self.node().indexes(replica, Consistency::Linearizable).await {
                Ok(indexes) => return Ok(indexes),
                Err(ReadError::Refused(failed)) if passes(&failed) && self.waits(until).await => {}
                Err(error) => return Err(self.refused(error.into())),
            }
        }
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
        let until = Instant::now() + limits::PATIENCE;
        loop {
            match self.node().index_page(replica, range.clone(), consistency).await {
                Ok(read) => return Ok(read),
                Err(ReadError::Refused(failed)) if passes(&failed) && self.waits(until).await => {}
                Err(error) => return Err(self.refused(error.into())),
            }
        }
    }

    /// How far a check of a replica is.
    pub(crate) fn check_state(&self, replica: &ReplicaKey, number: u64) -> Option<CheckState> {
        self.node().check_state(replica, number)
    }
}
