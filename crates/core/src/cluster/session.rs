//! The session of a worker: how it registers, what it is told, why it is refused, and who may speak for it.
//!
//! A process that registers is given a token by the driver, and the coordinator stores the token's digest with the
//! incarnation. Every later message of that process comes with the token: in the message, or as the stream on which the
//! process has registered. So no other process renews its lease, reports for it, ends it, or moves it (Z1).
//! Where the digest was lost with the node's record, the coordinator accepts the first process that comes back as that
//! incarnation: to end a live one would be worse. A process that is taken on trust does not end the lease by leaving
//! while the node holds replicas: the process that registered may serve them.

use super::foreign::ForeignWorkers;
use super::members::Members;
use super::registration_limiter::RegistrationLimiter;
use super::{Cluster, Moment, NodeState, Outbox};
use crate::base::id::{ClusterId, Generation, Incarnation, SessionDigest};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::cluster::event::{About, EventKind};
use crate::limits;
use crate::node::NodeSpecError;
use crate::node::exchange::ReplicaKey;
use crate::node::load::BadLoad;

/// A message in the name of a node that comes without the token of its incarnation (Z1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the token is not that of incarnation {incarnation} of node {node}: stop serving, keep the data, and register as a new \
     process"
)]
pub struct WrongToken {
    /// The node in whose name the message came.
    pub node: NodeId,
    /// The incarnation whose token the message lacks.
    pub incarnation: Incarnation,
}

/// A registration that is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RegisterError {
    /// What the worker announces of itself cannot be used.
    #[error(transparent)]
    Spec(#[from] NodeSpecError),
    /// The name belongs to a process that is alive elsewhere.
    #[error(
        "node {node} is registered and alive at {address}: choose another node id, or stop that process first"
    )]
    NameTaken {
        /// The node id that both processes have.
        node: NodeId,
        /// The address at which the process that has the name is alive.
        address: String,
    },
    /// The address belongs to a node that is alive.
    #[error(
        "address {address} belongs to node {node}, which is alive: every node needs an address of its own"
    )]
    AddressTaken {
        /// The address that the worker announces.
        address: String,
        /// The live node that has the address.
        node: NodeId,
    },
    /// It is of another cluster, or this coordinator's state was emptied.
    #[error(
        "node {node} is of cluster {theirs}, and this coordinator of cluster {ours}: give the worker the \
         coordinators of its own cluster; if the state of those is lost, restore it from a backup; if there is none, \
         start the worker anew, which then keeps its data apart. Nothing of what the worker holds was touched"
    )]
    OtherCluster {
        /// The node that asks to register.
        node: NodeId,
        /// The cluster of this coordinator.
        ours: ClusterId,
        /// The cluster that the worker was ordered by before.
        theirs: ClusterId,
    },
    /// It knows more than this coordinator.
    #[error(
        "node {node} knows of keyspace {keyspace} at {theirs}, and this coordinator {}: another one leads by now, or \
         the stored state was set back. The coordinator reads everything anew; keep the data, and register again",
        ours.map_or("knows of no such keyspace".to_owned(), |ours| format!("has it at {ours}"))
    )]
    Ahead {
        /// The node that asks to register.
        node: NodeId,
        /// The keyspace of which the worker knows a later map.
        keyspace: KeyspaceName,
        /// The coordinator's map of it; none = it knows no such keyspace.
        ours: Option<Generation>,
        /// The map that the worker knows of.
        theirs: Generation,
    },
    /// A node of that name is not known: it was removed, or never registered.
    #[error(
        "node {node} is not known here: it was removed, or never registered: stop serving, keep the data, and register as a new \
         process"
    )]
    Unknown {
        /// The node whose process comes back.
        node: NodeId,
    },
    /// It comes back too late.
    #[error(
        "incarnation {incarnation} of node {node} has ended: stop serving, keep the data, and register as a new \
         process"
    )]
    Ended {
        /// The node whose process comes back.
        node: NodeId,
        /// The incarnation that has ended, which the process still has.
        incarnation: Incarnation,
    },
    /// It comes without the token of its incarnation; nothing was taken from it.
    #[error(transparent)]
    WrongToken(#[from] WrongToken),
    /// The cluster has [`limits::NODES`] nodes, and this one would be one more.
    #[error("the cluster has {limit} nodes, the most it can have: remove dead ones first", limit = limits::NODES)]
    Full,
    /// Too many new processes came from one address.
    #[error(
        "{from} has registered {most} nodes, and may register one more each {each} ms: try again in {wait_ms} ms",
        most = limits::NEWCOMERS,
        each = limits::NEWCOMER_MS
    )]
    TooMany {
        /// The address that the processes came from.
        from: String,
        /// When there is room again, in milliseconds from now.
        wait_ms: u64,
    },
}

/// A beat that is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BeatError {
    /// The coordinator has no record of the node.
    #[error("node {0} is not registered: register again, with the incarnation it has")]
    Unknown(NodeId),
    /// Not registered since this coordinator started: which version of orders the worker has means nothing
    /// here.
    #[error(
        "this coordinator is new and does not know node {0} yet: register again, with the incarnation it has"
    )]
    NotYet(NodeId),
    /// Dead or followed by a later incarnation.
    #[error(
        "incarnation {incarnation} of node {node} has ended: stop serving, keep the data, register as a new process"
    )]
    Ended {
        /// The node that the beat is of.
        node: NodeId,
        /// The incarnation that has ended, which the beat names.
        incarnation: Incarnation,
    },
    /// It comes without the token of its incarnation; nothing was taken from it.
    #[error(transparent)]
    WrongToken(#[from] WrongToken),
    /// Its token was taken on trust, as the one of its registration was lost: it may beat, and does not end the lease.
    #[error(
        "the token with which node {0} registered was lost with the cluster's state, and this one was taken on trust: such a \
         process does not end its lease by leaving while it holds shards. Drain the node first, or stop the process: its \
         shards move when it has been silent for long enough"
    )]
    OnTrust(NodeId),
    /// Its number is so far above the last one that later ones could not follow; nothing was taken from it.
    #[error(
        "beat {sequence} of node {node} came after beat {latest}: number the beats of an incarnation on from 1"
    )]
    Skips {
        /// The node that the beat is of.
        node: NodeId,
        /// The number of the refused beat.
        sequence: u64,
        /// The number of the latest accepted beat; 0 before the first.
        latest: u64,
    },
    /// Overtaken by a later beat; nothing was taken from it.
    #[error("beat {sequence} of node {node} came after beat {latest}: ignored")]
    Late {
        /// The node that the beat is of.
        node: NodeId,
        /// The number of the refused beat.
        sequence: u64,
        /// The number of the latest accepted beat.
        latest: u64,
    },
    /// A load that is not a load; nothing was taken from the beat.
    #[error("the report of node {node} on {shard} is refused: {error}", shard = replica.shard)]
    Load {
        /// The node that the beat is of.
        node: NodeId,
        /// The replica whose load is refused.
        replica: ReplicaKey,
        /// What is wrong with the load.
        error: BadLoad,
    },
}

impl NodeState {
    /// Whether a message comes from the process that registered: it has the token that was given to that.
    pub(super) fn is_session(&self, session: SessionDigest) -> bool {
        self.record.session == Some(session) || planted::is(Planted::AnySession)
    }

    /// Refuses a message in the name of the node that comes without its token (Z1).
    pub(super) fn check_token(&self, session: SessionDigest) -> Result<(), WrongToken> {
        let (node, incarnation) = (self.record.spec.id.clone(), self.record.incarnation);
        if self.is_session(session) { Ok(()) } else { Err(WrongToken { node, incarnation }) }
    }
}

/// Refused registrations and messages, and what limits them. Not stored.
#[derive(Debug, Clone, Default)]
pub(super) struct Registrations {
    /// Messages in the name of a node that came without its token.
    pub(super) wrong_tokens: u64,
    /// Nodes that died without ever having held a shard and were forgotten, since this coordinator leads.
    pub(super) unused_nodes_forgotten: u64,
    /// New processes by where they come from.
    pub(super) registration_limiter: RegistrationLimiter,
    /// Workers of another cluster that asked to register.
    pub(super) foreign_workers: ForeignWorkers,
}

impl Members {
    /// Counts a message that came without the token of its node, and says so: once, and again when that goes on for long.
    pub(super) fn note_wrong_token(
        &mut self,
        at: Moment,
        WrongToken { node: id, incarnation }: &WrongToken,
        outbox: &mut Outbox,
    ) {
        self.registrations.wrong_tokens += 1;
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.wrong_token_told.is_some_and(|told| at.now.since(told) < limits::WRONG_TOKEN_TOLD_MS) {
            return;
        }
        node.wrong_token_told = Some(at.now);
        let text = format!(
            "a message names node {id} and has not the token of its {incarnation}: it is refused. Find its sender: an old \
             process of that node, or somebody else who reaches this coordinator"
        );
        outbox.tell(EventKind::Alarm, About::node(id), true, text);
    }
}

impl Cluster {
    /// How many messages in the name of a node came without its token, since this coordinator leads.
    pub fn wrong_tokens(&self) -> u64 {
        self.members.registrations.wrong_tokens
    }
}
