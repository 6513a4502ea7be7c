//! How replicas are there: open, stored, or taking their base; and how the disk is.

use super::Node;
use crate::error::ReplicaError;
use crate::queue::Command;
use crate::registry::Presence;
use partage_core::node::disk::DiskLimits;
use partage_core::node::exchange::ReplicaKey;
use std::path::Path;
use tokio::sync::oneshot;

impl Node {
    /// Whether a child's replica is here that takes what its parents have.
    pub fn is_forming(&self, replica: &ReplicaKey) -> bool {
        self.queue(replica).is_some_and(|queue| queue.is_base())
    }

    /// Whether a replica is open: one that takes its base is not, nor one that is about to close.
    pub fn is_open(&self, replica: &ReplicaKey) -> bool {
        self.queue(replica).is_some_and(|queue| !queue.is_base() && !queue.is_closing())
    }

    /// Whether a replica is stored here, undamaged, and neither open nor about to be.
    pub fn is_stored(&self, replica: &ReplicaKey) -> bool {
        matches!(self.shared.registry.presences().get(replica), Some(Presence::Stored(_)))
    }

    /// Replicas of children here that take what their parents have.
    pub fn forming(&self) -> usize {
        self.shared.registry.queues().iter().filter(|queue| queue.is_base()).count()
    }

    /// Those replicas, and how often each has taken something since it began: it gets on while that changes.
    pub(crate) fn forming_steps(&self) -> Vec<(ReplicaKey, u64)> {
        let queues = self.shared.registry.queues().into_iter().filter(|queue| queue.is_base());
        queues.map(|queue| (queue.key.clone(), queue.figures.steps())).collect()
    }

    /// Returns when a child's replica could serve as soon as its parents have closed.
    ///
    /// # Errors
    /// It is not there, or was closed before.
    pub async fn when_ready(&self, replica: &ReplicaKey) -> Result<(), ReplicaError> {
        self.when(replica, Command::WhenReady).await
    }

    /// Returns when a child's replica has all that its parents had, on its disk, and is open.
    ///
    /// # Errors
    /// It is not there, or was closed before.
    pub async fn when_open(&self, replica: &ReplicaKey) -> Result<(), ReplicaError> {
        self.when(replica, Command::WhenOpen).await
    }

    /// Returns when a replica has had all that was acknowledged at some time since it was opened, so that it may be read from.
    ///
    /// # Errors
    /// It is not open, or was closed before.
    pub async fn when_fresh(&self, replica: &ReplicaKey) -> Result<(), ReplicaError> {
        self.when(replica, Command::WhenFresh).await
    }

    async fn when(
        &self,
        replica: &ReplicaKey,
        command: fn(oneshot::Sender<()>) -> Command,
    ) -> Result<(), ReplicaError> {
        let not_open = || ReplicaError::NotOpen(replica.clone());
        let queue = self.queue(replica).ok_or_else(not_open)?;
        let (answer, so) = oneshot::channel();
        if !queue.add_command(command(answer)) {
            return Err(not_open());
        }
        so.await.map_err(|_| not_open())
    }

    /// The number of the group of records that the log is writing; none: nothing waits for it.
    pub(crate) fn writing(&self) -> Option<u64> {
        self.shared.writer.writing()
    }

    /// Whether the disk has no room for the log or for a store, as the system says.
    pub(crate) fn has_no_room(&self) -> bool {
        self.shared.registry.has_no_room()
    }

    /// The folder with its log and its stores.
    pub(crate) fn folder(&self) -> &Path {
        &self.shared.folder
    }

    /// How much of its disk may be used.
    pub(crate) fn disk_limits(&self) -> DiskLimits {
        self.shared.settings.disk
    }

    /// Whether as much of the disk is used as may be, and how much that is: writes are refused meanwhile.
    pub(crate) fn set_disk_at_limit(&self, is_at_limit: bool, why: &str) {
        self.shared.registry.set_disk_at_limit(is_at_limit, why);
    }

    /// Whether the node has found no room at its start, and none since: writes are refused meanwhile.
    pub(crate) fn start_was_full(&self, is_full: bool) {
        self.shared.registry.start_was_full(is_full);
    }

    /// Whether the disk has stored nothing for so long that writes are refused.
    pub(crate) fn set_refuses_as_stalled(&self, refuses_as_stalled: bool) {
        self.shared.registry.set_refuses_as_stalled(refuses_as_stalled);
    }
}
