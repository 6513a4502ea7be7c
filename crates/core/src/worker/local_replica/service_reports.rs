//! What a service says of its replica beside the results of callbacks: that a load gets on, or finds damage, that it is ill, that
//! it no longer leads.
//!
//! A lead that is laid down: it could serve, and is not to lead for now.
//!
//! ```text
//!  leads ──lay_down──► drains ──► Ready, reported failed ──an order names another leader──► follows
//!                                   │
//!                                   └── nobody else is left that could lead ──► leads again
//! ```
//!
//! Nothing is unloaded, unlike where the service reports the replica unhealthy: a `load` that succeeds at once would make
//! that be forgotten before the coordinator has chosen another leader.

use super::{At, Callback, Gate, LocalReplica};
use crate::base::time::Millis;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Role;
use crate::node::exchange::Peer;

/// A lead that is not laid down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSuccessor {
    /// The worker does not lead the shard (any more).
    #[error("this worker does not lead the shard: there is nothing to lay down")]
    DoesNotLead,
    /// It would leave the shard without a leader.
    #[error(
        "no other replica of the shard is live, so no other could lead in its place: raise `replicas` of the keyspace, or \
         drain the node"
    )]
    Alone,
}

impl LocalReplica {
    /// The service cannot serve it, for that reason. Whether that was news: what does not serve has nothing to end. What is
    /// on its way from one role to another serves.
    pub fn unhealthy(&mut self, reason: String) -> bool {
        let serves = match self.at {
            At::Serving | At::Calling(Callback::Serve(..), _) | At::Resting(Callback::Serve(..), _) => true,
            At::Draining(_) => self.wanted() == ReplicaState::Live,
            _ => false,
        };
        let is_news = serves && self.unhealthy.is_none();
        if is_news {
            self.unhealthy = Some(reason);
        }
        is_news
    }

    /// The `load` that runs finds that what is stored here is damaged, and is about to fail: until one succeeds.
    pub fn damaged(&mut self) {
        self.damaged |= matches!(self.at, At::Calling(Callback::Load, _));
    }

    /// The `load` that runs gets on: its time begins anew. Whether one runs.
    pub fn progressed(&mut self, now: Millis) -> bool {
        let At::Calling(Callback::Load, since) = &mut self.at else { return false };
        *since = now.max(*since);
        self.progress = self.progress.wrapping_add(1);
        true
    }

    /// How often a load has said that it gets on.
    pub fn progress(&self) -> u32 {
        self.progress
    }

    /// The service no longer leads, for that reason. Requests are let out, and the replica is reported failed until an order
    /// names another leader; then it follows.
    ///
    /// # Errors
    /// It does not lead, or no other replica could; nothing has changed.
    pub fn lay_down(&mut self, reason: String) -> Result<(), NoSuccessor> {
        let leads = matches!(self.gate, Gate::Open(Role::Leader, _)) && self.is_to_lead();
        if !leads {
            return Err(NoSuccessor::DoesNotLead);
        }
        if !self.has_successor() {
            return Err(NoSuccessor::Alone);
        }
        self.laid_down.get_or_insert(reason);
        Ok(())
    }

    /// Whether it is not to lead, although its order says so.
    pub(super) fn has_laid_down(&self) -> bool {
        self.laid_down.is_some() && self.is_to_lead()
    }

    /// After a new order: another leads, it must go, or no other replica is left.
    pub(super) fn forget_laid_down(&mut self) {
        if !self.is_to_lead() || !self.has_successor() {
            self.laid_down = None;
        }
    }

    fn is_to_lead(&self) -> bool {
        self.order.role == Role::Leader && self.wanted() == ReplicaState::Live
    }

    fn has_successor(&self) -> bool {
        let is_successor = |peer: &Peer| {
            peer.shard == self.order.replica.shard
                && peer.state == ReplicaState::Live
                && peer.role == Role::Follower
        };
        self.order.peers.iter().any(is_successor)
    }
}
