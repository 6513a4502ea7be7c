//! What a node knows of the change feeds of its tables.

use super::Node;
use crate::feed::NewestChanges;

impl Node {
    /// The last changes of its replicas, of tables with feeds.
    pub(crate) fn newest_changes(&self) -> &NewestChanges {
        &self.shared.newest_changes
    }
}
