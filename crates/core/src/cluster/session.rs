//! The session of a worker: how it registers, what it is told, why it is refused, and who may speak for it.
//!
//! A process that registers is given a token by the driver, and the coordinator stores the token's digest with the
//! incarnation. Every later message of that process comes with the token: in the message, or as the stream on which the
//! process has registered. So nobody else renews its lease, reports for it, ends it, or moves it to another address (Z1).
//! Where the digest was lost with the node's record, the first who comes back as that incarnation is taken for it: to end what
//! lives would be worse.

use super::{Cluster, Moment, NodeState};
use crate::exchange::{Known, ReplicaKey, Stored};
use crate::id::{ClusterId, Generation, Incarnation, SessionDigest};
use crate::limits;
use crate::load::BadLoad;
use crate::name::{KeyspaceName, NodeId};
use crate::node::{NodeSpec, NodeSpecError};
use crate::planted::{self, Planted};
use crate::time::Millis;

/// A worker that wants to take part.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// What it says of itself.
    pub spec: NodeSpec,
    /// The incarnation it has already, when it only comes back to a coordinator; none for a new process.
    pub incarnation: Option<Incarnation>,
    /// Of the token that the driver gives to a new process, or with which one comes back.
    pub session: SessionDigest,
    /// The cluster that took it in before, or whose data it has stored; none for a process that knows of none.
    pub cluster: Option<ClusterId>,
    /// What it has stored that no order of this incarnation is about.
    pub stored: Vec<Stored>,
    /// The latest maps that it was given orders by: a coordinator that has older ones does not take it in.
    pub known: Vec<Known>,
}

impl Registration {
    /// Of a new process that has nothing stored.
    pub fn new(spec: NodeSpec) -> Registration {
        let session = SessionDigest::default();
        Registration { spec, incarnation: None, session, cluster: None, stored: vec![], known: vec![] }
    }
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The coordinator's cluster. A worker of another one refuses it (D11).
    pub cluster: ClusterId,
    /// Clusters that this one was restored from: their workers are its own.
    pub continues: Vec<ClusterId>,
    /// To be sent with every beat.
    pub incarnation: Incarnation,
    /// How often to beat.
    pub heartbeat_ms: u64,
    /// How long a lease is.
    pub lease_ms: u64,
}

/// A registration that is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RegisterError {
    /// Unusable.
    #[error(transparent)]
    Spec(#[from] NodeSpecError),
    /// The name belongs to a process that is alive elsewhere.
    #[error(
        "node {node} is registered and alive at {address}: choose another node id, or stop that process first"
    )]
    NameTaken {
        /// The name.
        node: NodeId,
        /// Where its owner is.
        address: String,
    },
    /// The address belongs to a node that is alive.
    #[error(
        "address {address} belongs to node {node}, which is alive: every node needs an address of its own"
    )]
    AddressTaken {
        /// The address.
        address: String,
        /// Whose it is.
        node: NodeId,
    },
    /// It is of another cluster, or this coordinator's state was emptied.
    #[error(
        "node {node} is of cluster {theirs}, and this coordinator of cluster {ours}: give the worker the \
         coordinators of its own cluster; if the state of those is lost, restore it from a backup. Nothing of \
         what the worker holds was touched"
    )]
    OtherCluster {
        /// The node.
        node: NodeId,
        /// The coordinator's.
        ours: ClusterId,
        /// The worker's.
        theirs: ClusterId,
    },
    /// It was told more than this coordinator knows.
    #[error(
        "node {node} was told of keyspace {keyspace} at {theirs}, and this coordinator {}: another one leads by now, or \
         the stored state was set back. The coordinator reads everything anew; keep the data, and register again",
        ours.map_or("knows of no such keyspace".to_owned(), |ours| format!("has it at {ours}"))
    )]
    Ahead {
        /// The node.
        node: NodeId,
        /// Of which keyspace.
        keyspace: KeyspaceName,
        /// The coordinator's, if it knows the keyspace.
        ours: Option<Generation>,
        /// The worker's.
        theirs: Generation,
    },
    /// A node of that name is not known: it was removed.
    #[error(
        "node {node} is not known here, it was removed: stop serving, keep the data, and register as a new process"
    )]
    Unknown {
        /// The node.
        node: NodeId,
    },
    /// It comes back too late.
    #[error(
        "incarnation {incarnation} of node {node} has ended: stop serving, keep the data, and register as a new \
         process"
    )]
    Ended {
        /// The node.
        node: NodeId,
        /// The dead incarnation.
        incarnation: Incarnation,
    },
    /// It comes back without the token of that incarnation (Z1).
    #[error(
        "the token is not that of incarnation {incarnation} of node {node}: stop serving, keep the data, and register as a new \
         process"
    )]
    Stranger {
        /// The node.
        node: NodeId,
        /// Whose token it should be.
        incarnation: Incarnation,
    },
    /// More than [`limits::NODES`].
    #[error("the cluster has {limit} nodes, the most it can have: remove dead ones first", limit = limits::NODES)]
    Full,
}

/// A beat that is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BeatError {
    /// Not registered here.
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
        /// The node.
        node: NodeId,
        /// The ended incarnation.
        incarnation: Incarnation,
    },
    /// It comes without the token of that incarnation; nothing was taken from it (Z1).
    #[error(
        "the token is not that of incarnation {incarnation} of node {node}: stop serving, keep the data, and register as a new \
         process"
    )]
    Stranger {
        /// The node.
        node: NodeId,
        /// Whose token it should be.
        incarnation: Incarnation,
    },
    /// Its number is so far above the last one that later ones could not follow; nothing was taken from it.
    #[error(
        "beat {sequence} of node {node} came after beat {latest}: number the beats of an incarnation on from 1"
    )]
    Skips {
        /// The node.
        node: NodeId,
        /// Its number.
        sequence: u64,
        /// The number of the latest.
        latest: u64,
    },
    /// Overtaken by a later beat; nothing was taken from it.
    #[error("beat {sequence} of node {node} came after beat {latest}: ignored")]
    Late {
        /// The node.
        node: NodeId,
        /// Its number.
        sequence: u64,
        /// The number of the latest.
        latest: u64,
    },
    /// A load that is not a load; nothing was taken from the beat.
    #[error("the report of node {node} on {shard} is refused: {error}", shard = replica.shard)]
    Load {
        /// The node.
        node: NodeId,
        /// The replica.
        replica: ReplicaKey,
        /// What is wrong.
        error: BadLoad,
    },
}

impl NodeState {
    /// Whether a message comes from the process that registered: it has the token that was given to that.
    fn is_session(&self, session: SessionDigest) -> bool {
        self.record.session == Some(session) || planted::is(Planted::AnySession)
    }
}

impl Cluster {
    /// Whether a message in the name of that node comes without its token. It is counted, and people are told: once, and
    /// again when it goes on for long.
    pub(super) fn is_forged(&mut self, at: Moment, id: &NodeId, session: SessionDigest) -> bool {
        let Some(node) = self.nodes.get_mut(id).filter(|node| !node.is_session(session)) else {
            return false;
        };
        let is_told = |told: Millis| at.now.since(told) < limits::FORGERY_TOLD_MS;
        if !node.forgery_told.is_some_and(is_told) {
            node.forgery_told = Some(at.now);
            let text = format!(
                "somebody speaks for node {id} without the token of its {}: nothing of that is taken in. Find out who reaches \
                 this coordinator, or which old process of that name still runs",
                node.record.incarnation
            );
            self.notice(true, text);
        }
        self.forgeries += 1;
        true
    }

    /// Messages in the name of a node that came without its token, since this coordinator leads.
    pub fn forgeries(&self) -> u64 {
        self.forgeries
    }
}
