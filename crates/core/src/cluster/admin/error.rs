//! Why a command is not carried out. Each error is one sentence, `problem: way out`, and knows its way out apart
//! from the sentence too; its [`Kind`] is what programs act on, and maps to a gRPC code, an HTTP status and an
//! exit code in one place each.

use crate::base::id::{PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId, PartitionName, Zone};
use crate::base::suggest;
use crate::keyspace::KeyspaceError;
use crate::keyspace::map::EditError;
use crate::keyspace::sharding::ShardingError;
use crate::keyspace::sharding::geometry::CutError;
use crate::keyspace::sharding::presplit::PresplitError;
use crate::placement::UnknownPolicy;
use std::collections::BTreeSet;

/// What a program can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// What was named does not exist: name something else.
    NotFound,
    /// What was to be made exists: go on, or take another name.
    AlreadyExists,
    /// The command can never be carried out as given: change it.
    Invalid,
    /// The cluster's rules do not allow it as things are: do what the way out says first.
    Refused,
    /// Something else is under way: try again later.
    Conflict,
}

/// A command that is not carried out. Nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdminError {
    /// No keyspace, or no node, has the name that the command gives.
    #[error("there is no {what} {name}: {}", self.way_out())]
    Unknown {
        /// The sort of thing that the command names: "keyspace" or "node".
        what: &'static str,
        /// The name that was given.
        name: String,
        /// The name of an existing one that is spelled nearly so; none when no name is close.
        nearest: Option<String>,
    },
    /// No node is in that zone.
    #[error("there is no zone {zone}: {}", self.way_out())]
    NoZone {
        /// The zone that was given.
        zone: Zone,
        /// The zones that the registered nodes name.
        known: BTreeSet<Zone>,
    },
    /// The keyspace has no shard of that id: it never had, or the shard was split, merged or removed.
    #[error("keyspace {keyspace} has no shard {shard}: {}", self.way_out())]
    NoShard {
        /// The keyspace in which the coordinator looked for the shard.
        keyspace: KeyspaceName,
        /// The shard id that was not found in the keyspace.
        shard: ShardId,
    },
    /// The shard exists, but not on the node that the command names.
    #[error("shard {shard} has no replica on node {node}: {}", self.way_out())]
    NoReplica {
        /// The shard that has no replica on the node.
        shard: ShardId,
        /// The node on which the coordinator looked for a replica.
        node: NodeId,
        /// The nodes on which the shard has replicas.
        on: Vec<NodeId>,
    },
    /// The coordinator keeps no plan of that number. It keeps plans that are over only for a while.
    #[error("there is no {0}: {way}", way = self.way_out())]
    NoPlan(PlanId),
    /// The keyspace lacks some of the partitions that the command names.
    #[error("keyspace {keyspace} has no partition {}: {}", list(partitions, ""), self.way_out())]
    NoPartitions {
        /// The keyspace in which the coordinator looked for them.
        keyspace: KeyspaceName,
        /// The partitions that the keyspace does not have.
        partitions: Vec<PartitionName>,
    },
    /// The new keyspace has the name of another one.
    #[error("there is a keyspace {0} already: {way}", way = self.way_out())]
    KeyspaceExists(KeyspaceName),
    /// The keyspace has some of the partitions already.
    #[error("keyspace {keyspace} has the partition {} already: {}", list(partitions, ""), self.way_out())]
    PartitionsExist {
        /// The keyspace that has the partitions already.
        keyspace: KeyspaceName,
        /// The partitions that the keyspace has already.
        partitions: Vec<PartitionName>,
    },
    /// The node that should get a replica of the shard has one.
    #[error("shard {shard} has a replica on node {node} already: {}", self.way_out())]
    ReplicaExists {
        /// The shard that has a replica on the node already.
        shard: ShardId,
        /// The node that has a replica of the shard already.
        node: NodeId,
    },
    /// Settings that no cluster could carry out.
    #[error(transparent)]
    Keyspace(#[from] KeyspaceError),
    /// No keyspace can be sharded so.
    #[error(transparent)]
    Sharding(#[from] ShardingError),
    /// The keyspace cannot be cut into such first shards.
    #[error(transparent)]
    Presplit(#[from] PresplitError),
    /// A keyspace names a placement policy that this coordinator does not have.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A change that the map does not allow.
    #[error(transparent)]
    Map(#[from] EditError),
    /// Bounds that are not cut there.
    #[error("{0}: {way_out}", way_out = .0.way_out())]
    Cut(#[from] CutError),
    /// Can never be carried out as given.
    #[error("{problem}: {way_out}")]
    Invalid {
        /// What is wrong with the command, in a part of a sentence.
        problem: String,
        /// What the person may give instead.
        way_out: String,
    },
    /// Against the rules as things are.
    #[error("{problem}: {way_out}")]
    Refused {
        /// The rule that the command would break.
        problem: String,
        /// What the person has to do first.
        way_out: String,
    },
    /// Another change is under way, or has just ended.
    #[error("{problem}: {way_out}")]
    Conflict {
        /// What is under way, or has just happened, that prevents the command for now.
        problem: String,
        /// When the person may try again.
        way_out: String,
    },
}

impl AdminError {
    /// What to do: the end of the sentence.
    pub fn way_out(&self) -> String {
        match self {
            AdminError::Unknown { nearest: Some(name), .. } => format!("did you mean {name}?"),
            AdminError::Unknown { what, nearest: None, .. } => {
                format!("list the {what}s (partage {what} list)")
            }
            AdminError::NoZone { zone, known } => {
                let zones: Vec<&str> = known.iter().map(Zone::as_str).collect();
                match suggest::close(zone.as_str(), zones.iter().copied()) {
                    Some(name) => format!("did you mean {name}?"),
                    None if zones.is_empty() => "no node names its zone; drain the nodes by name".to_owned(),
                    None => format!("nodes are in {}", list(&zones, "none")),
                }
            }
            AdminError::NoShard { .. } => {
                "it was split, merged or removed, or never was; look it up again".to_owned()
            }
            AdminError::NoReplica { on, .. } => format!("it is on {}", list(on, "no node")),
            AdminError::NoPlan(_) => {
                "plans that are over are kept only for a while; list the plans (partage plan list)".to_owned()
            }
            AdminError::NoPartitions { .. } => "list its shards".to_owned(),
            AdminError::KeyspaceExists(_) => "choose another name, or delete it first".to_owned(),
            AdminError::PartitionsExist { .. } => "leave it out".to_owned(),
            AdminError::ReplicaExists { .. } => "choose another node".to_owned(),
            AdminError::Keyspace(error) => error.way_out(),
            AdminError::Sharding(error) => error.way_out(),
            AdminError::Presplit(error) => error.way_out(),
            AdminError::Policy(error) => error.way_out(),
            AdminError::Map(error) => error.way_out(),
            AdminError::Cut(error) => error.way_out().to_owned(),
            AdminError::Invalid { way_out, .. }
            | AdminError::Refused { way_out, .. }
            | AdminError::Conflict { way_out, .. } => way_out.clone(),
        }
    }

    /// What a program can do about it.
    pub fn kind(&self) -> Kind {
        match self {
            AdminError::Unknown { .. }
            | AdminError::NoZone { .. }
            | AdminError::NoShard { .. }
            | AdminError::NoReplica { .. }
            | AdminError::NoPlan(_)
            | AdminError::NoPartitions { .. } => Kind::NotFound,
            AdminError::KeyspaceExists(_)
            | AdminError::PartitionsExist { .. }
            | AdminError::ReplicaExists { .. } => Kind::AlreadyExists,
            AdminError::Cut(CutError::OnePoint(_)) => Kind::Refused,
            AdminError::Keyspace(_)
            | AdminError::Cut(_)
            | AdminError::Sharding(_)
            | AdminError::Presplit(_)
            | AdminError::Policy(_)
            | AdminError::Invalid { .. } => Kind::Invalid,
            AdminError::Map(_) | AdminError::Refused { .. } => Kind::Refused,
            AdminError::Conflict { .. } => Kind::Conflict,
        }
    }
}

/// Names, a few of many.
fn list<T: ToString>(names: &[T], none: &str) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<_> = names.iter().take(SHOWN).map(ToString::to_string).collect();
    match names.len() {
        0 => none.to_owned(),
        n if n > SHOWN => format!("{} and {} more", shown.join(", "), n - SHOWN),
        _ => shown.join(", "),
    }
}
