//! Orders of a coordinator whose state was restored from a backup, about data that outlives processes.
//!
//! Such a state may name as a copy, complete and fit to lead, what has gone since the backup was taken:
//!
//! | the copy                                                              | the worker              |
//! |-----------------------------------------------------------------------|-------------------------|
//! | was deleted, or has never been loaded, and is to serve or to hand over | reports it as dropped  |
//! | is here, and had to leave, or to load what it lacked, when the backup was restored | does so, too |
//! | is here, and its process is another one since                         | cannot know: it serves  |
//!
//! The coordinator orders what was reported to load, once another copy serves.

use super::{At, Callback, LocalReplica};
use crate::keyspace::lifecycle::ReplicaState;

impl LocalReplica {
    /// The coordinator says that the cluster was restored from a backup: what it has ordered since then counts no more,
    /// but others have gone on without this replica all the same.
    pub fn restored(&mut self) {
        self.is_outdated |= self.is_left_behind;
    }

    /// Reports a replica that counts as a copy and is none as dropped. It must not load anew under that order, as it could
    /// come to lead before it has what others have.
    pub fn admit_loss(&mut self) {
        // One that hands over to the parts of its shard counts, too.
        let counts = matches!(self.order.state, ReplicaState::Live | ReplicaState::Unload);
        let is_copy = !self.withdrawn && counts && self.order.had_data;
        let has_nothing = !self.has_data && !self.damaged;
        let may_lead = self.order.state == ReplicaState::Live;
        let is_lost = match self.at {
            At::Idle | At::Dropped | At::Resting(Callback::Load, _) => has_nothing,
            // What was to load and never had a source, too.
            At::Unloaded => has_nothing || self.is_outdated && may_lead,
            At::Lost => true,
            At::Ready | At::Serving | At::Draining(_) | At::Calling(..) | At::Resting(..) => false,
        };
        match self.at {
            _ if is_copy && is_lost => self.at = At::Lost,
            At::Lost if self.has_data => self.at = At::Unloaded,
            At::Lost => self.at = At::Dropped,
            _ => {}
        }
    }
}
