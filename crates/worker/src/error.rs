//! What can go wrong when a worker starts or leaves.

use partage_core::base::count::counted_with;
use partage_core::base::name::NameError;
use partage_core::node::NodeSpecError;
use partage_core::worker::NoSuccessor;
use partage_wire::Refusal;
use std::time::Duration;

/// A worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A name that cannot be.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An announcement that cannot be.
    #[error(transparent)]
    Spec(#[from] NodeSpecError),
    /// No coordinator to register at.
    #[error("node {0} has no coordinator to register at: give at least one address, host:port")]
    NoCoordinator(String),
    /// The coordinator will never take it as it is.
    #[error("the coordinator refuses the registration: {0}")]
    Refused(Refusal),
    /// No coordinator took it in time.
    #[error(
        "node {node} could not register at {coordinators} within {within:?}: check that a coordinator listens there, or wait longer (the log says why each attempt failed)"
    )]
    TimedOut {
        /// The name of the node.
        node: String,
        /// The addresses that it has tried, divided by commas.
        coordinators: String,
        /// How long it has tried: what the builder was told.
        within: Duration,
    },
    /// The handler cannot say what is stored.
    #[error("node {node} cannot read what it has stored, so it does not register: {why}")]
    Stored {
        /// The name of the node.
        node: String,
        /// What the handler gave as the reason.
        why: String,
    },
    /// The runtime is shutting down.
    #[error("the worker was stopped while it started")]
    Stopped,
}

/// A lead was not laid down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayDownError {
    /// There is none, or no other replica could take it up. The worker goes on as before.
    #[error(transparent)]
    Refused(#[from] NoSuccessor),
    /// The worker was not running any more.
    #[error("the worker has stopped already")]
    Stopped,
}

/// A worker could not leave gracefully.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaveError {
    /// Not everything was served elsewhere in time. The worker goes on serving, and leaving.
    #[error(
        "after {within:?} {} still here: wait longer, see what `partage status` says, call `stay` to go on as before, or shut down hard",
        counted_with(*.held, "replica", ("is", "are"))
    )]
    TimedOut {
        /// How long was waited.
        within: Duration,
        /// How many replicas are still on this node.
        held: usize,
    },
    /// No coordinator has answered until the lease was over: no node can take over what this one holds.
    #[error(
        "no coordinator answers, and the lease is over: {} not handed over; the data is as it was",
        counted_with(*.held, "replica", ("was", "were"))
    )]
    NoCoordinator {
        /// How many replicas are still on this node.
        held: usize,
    },
    /// [`crate::Worker::stay`] was called meanwhile.
    #[error("the worker stays: the leave was undone")]
    Undone,
    /// The worker was not running any more.
    #[error("the worker has stopped already")]
    Stopped,
}
