//! What may be asked: the closed set of commands, and the choices that they come with.

use crate::base::id::{PlanId, ShardId};
use crate::base::name::{KeyspaceName, NodeId, PartitionName, Zone};
use crate::cluster::event::{About, EventKind};
use crate::keyspace::key::Key;
use crate::keyspace::{Constraint, Keyspace, Mode, Resharding, Spread, Throttle};

/// Something to do. A driver says who asks; no rights are checked yet.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A new keyspace with its first shards (K4).
    CreateKeyspace {
        /// All settings of the new keyspace, with its name.
        keyspace: Box<Keyspace>,
        /// How the new keyspace is cut into its first shards.
        presplit: Presplit,
        /// Nodes that are still to join will hold what those that have joined cannot.
        ahead: bool,
    },
    /// Takes a keyspace away at once, with all that workers hold of it.
    DeleteKeyspace {
        /// The keyspace to delete.
        keyspace: KeyspaceName,
    },
    /// Changes what may change about a keyspace. Its name, kind, sharding, partition key and ownership may not.
    UpdateKeyspace {
        /// The keyspace to change.
        keyspace: KeyspaceName,
        /// The settings to change, with their new values.
        changes: Box<KeyspaceChanges>,
        /// Nodes that are still to join will hold what those that have joined cannot.
        ahead: bool,
    },
    /// New partitions of a keyspace with named sharding (A1).
    RegisterPartitions {
        /// The keyspace that gets the partitions. Its sharding must be named.
        keyspace: KeyspaceName,
        /// Names that the keyspace does not have yet; at least one.
        partitions: Vec<PartitionName>,
        /// Replicas of each of them; none = as the keyspace says.
        replicas: Option<u32>,
        /// Nodes that are still to join will hold what those that have joined cannot.
        ahead: bool,
    },
    /// Takes partitions away; each goes when its replicas have unloaded.
    UnregisterPartitions {
        /// The keyspace that loses the partitions.
        keyspace: KeyspaceName,
        /// Names that the keyspace has; at least one.
        partitions: Vec<PartitionName>,
    },
    /// Empties a node (A19).
    DrainNode {
        /// The node to drain.
        node: NodeId,
        /// The person's reason, which the coordinator stores with the drain and shows.
        reason: String,
        /// Waits until fewer nodes than this are down or being drained; none = begins at once.
        max_down: Option<u32>,
    },
    /// Empties every node of a zone (A19).
    DrainZone {
        /// The zone whose nodes are drained.
        zone: Zone,
        /// The person's reason, which the coordinator stores with the drain of each node and shows.
        reason: String,
        /// As in [`Command::DrainNode`]: at most this many are down or drained at once.
        max_down: Option<u32>,
    },
    /// Lets a node take shards again.
    UndrainNode {
        /// The node that may take shards again.
        node: NodeId,
    },
    /// Lets every node of a zone take shards again that is drained.
    UndrainZone {
        /// The zone whose drained nodes may take shards again.
        zone: Zone,
    },
    /// Forgets a node that is dead, has left, or holds nothing.
    RemoveNode {
        /// The node to forget.
        node: NodeId,
    },
    /// One replica to another node, make before break.
    MoveShard {
        /// The keyspace of the shard that moves.
        keyspace: KeyspaceName,
        /// The shard whose replica moves.
        shard: ShardId,
        /// The node whose replica moves away.
        from: NodeId,
        /// The node that gets the new replica, and takes over from the old one.
        to: NodeId,
    },
    /// Another leader among the live replicas.
    TransferLeader {
        /// The keyspace of the shard that gets another leader.
        keyspace: KeyspaceName,
        /// The shard that gets another leader.
        shard: ShardId,
        /// The node whose replica leads then.
        to: NodeId,
    },
    /// Adds a replica of a shard. Where the shard then has more than it wants, the planner takes one away again.
    AddReplica {
        /// The keyspace of the shard that gets a replica.
        keyspace: KeyspaceName,
        /// The shard that gets one replica more.
        shard: ShardId,
        /// The node that gets the new replica.
        node: NodeId,
    },
    /// Removes a replica of a shard, but never the last one that serves. Where the shard then has fewer than it wants, the
    /// planner places one again.
    RemoveReplica {
        /// The keyspace of the shard that loses a replica.
        keyspace: KeyspaceName,
        /// The shard that loses a replica.
        shard: ShardId,
        /// The node whose replica of the shard is removed.
        node: NodeId,
    },
    /// One shard becomes several, on the nodes where it is.
    SplitShard {
        /// The keyspace of the shard that is split.
        keyspace: KeyspaceName,
        /// The shard to split.
        shard: ShardId,
        /// The positions at which the children begin, or the middle.
        at: SplitAt,
    },
    /// Makes one shard of two neighbours.
    MergeShards {
        /// The keyspace of the two shards.
        keyspace: KeyspaceName,
        /// The one with the lower bounds.
        left: ShardId,
        /// The one that begins where the first ends.
        right: ShardId,
    },
    /// A hot key gets a shard of its own (K12).
    IsolateKey {
        /// The keyspace that has the hot key.
        keyspace: KeyspaceName,
        /// Which key; its whole partition is isolated.
        key: Key,
    },
    /// A shard gets a number of replicas of its own (K12).
    SetShardReplicas {
        /// The keyspace of the shard that gets its own number.
        keyspace: KeyspaceName,
        /// The shard whose number of replicas is set.
        shard: ShardId,
        /// How many; none = as the keyspace says.
        replicas: Option<u32>,
        /// Nodes that are still to join will hold what those that have joined cannot.
        ahead: bool,
    },
    /// Says where a shard may be, on top of what its keyspace says; the default constraint unpins it.
    PinShard {
        /// The keyspace of the shard that is pinned.
        keyspace: KeyspaceName,
        /// The shard whose nodes are constrained.
        shard: ShardId,
        /// The nodes and labels that the shard is pinned to or kept from.
        constraint: Constraint,
        /// Nodes that are still to join will hold what those that have joined cannot.
        ahead: bool,
    },
    /// Lets a shard that was set aside be placed again (A20).
    ReleaseShard {
        /// The keyspace of the shard that was set aside.
        keyspace: KeyspaceName,
        /// The shard that was set aside.
        shard: ShardId,
    },
    /// Lets a durable shard that waits for its data go on with what one node has stored of it (D10).
    ForceJoinShard {
        /// The keyspace of the shard that waits. It must be durable.
        keyspace: KeyspaceName,
        /// The durable shard that waits for its data.
        shard: ShardId,
        /// The node whose copy is chosen.
        node: NodeId,
        /// The sequence number of the map that the person has looked at: no other map is changed.
        generation: u64,
    },
    /// Gives up all that a durable shard held, where no copy of it comes back: a new, empty shard takes its keys (D10).
    RecreateShard {
        /// The keyspace of the shard whose data is given up. It must be durable.
        keyspace: KeyspaceName,
        /// The durable shard whose data is given up.
        shard: ShardId,
        /// The sequence number of the map that the person has looked at: no other map is changed.
        generation: u64,
    },
    /// Lets automatic moves go on (K18).
    ReleaseBrake,
    /// Has a suggested plan carried out.
    ApprovePlan {
        /// The suggested plan to carry out.
        plan: PlanId,
    },
    /// Says no to a suggested plan.
    RejectPlan {
        /// The suggested plan to reject.
        plan: PlanId,
    },
    /// Leaves changes out of a suggested plan: gives a new one to approve, in place of the old (K15).
    EditPlan {
        /// The suggested plan that the new one replaces.
        plan: PlanId,
        /// Places of the changes to leave out, from 0.
        drop: Vec<usize>,
    },
}

impl Command {
    /// What sort of event it is when it is carried out.
    pub(super) fn kind(&self) -> EventKind {
        match self {
            Command::CreateKeyspace { .. } => EventKind::KeyspaceCreated,
            Command::DeleteKeyspace { .. } => EventKind::KeyspaceDeleted,
            Command::UpdateKeyspace { .. }
            | Command::RegisterPartitions { .. }
            | Command::UnregisterPartitions { .. } => EventKind::KeyspaceChanged,
            Command::DrainNode { .. }
            | Command::DrainZone { .. }
            | Command::UndrainNode { .. }
            | Command::UndrainZone { .. } => EventKind::NodeDrain,
            Command::RemoveNode { .. } => EventKind::NodeForgotten,
            Command::MoveShard { .. }
            | Command::TransferLeader { .. }
            | Command::AddReplica { .. }
            | Command::RemoveReplica { .. }
            | Command::SplitShard { .. }
            | Command::MergeShards { .. }
            | Command::IsolateKey { .. }
            | Command::ForceJoinShard { .. }
            | Command::RecreateShard { .. } => EventKind::ShardChange,
            Command::SetShardReplicas { .. } | Command::PinShard { .. } => EventKind::ShardRule,
            Command::ReleaseShard { .. } => EventKind::ShardReleased,
            Command::ReleaseBrake => EventKind::BrakeReleased,
            Command::ApprovePlan { .. } | Command::RejectPlan { .. } | Command::EditPlan { .. } => {
                EventKind::PlanDecided
            }
        }
    }

    /// What it is about.
    pub(super) fn about(&self) -> About {
        match self {
            Command::CreateKeyspace { keyspace, .. } => About::keyspace(&keyspace.name),
            Command::DeleteKeyspace { keyspace }
            | Command::UpdateKeyspace { keyspace, .. }
            | Command::RegisterPartitions { keyspace, .. }
            | Command::UnregisterPartitions { keyspace, .. }
            | Command::IsolateKey { keyspace, .. } => About::keyspace(keyspace),
            Command::DrainNode { node, .. }
            | Command::UndrainNode { node }
            | Command::RemoveNode { node } => About::node(node),
            Command::MoveShard { keyspace, shard, from, to } => {
                About::shard(keyspace, *shard).and_node(from).and_node(to)
            }
            Command::TransferLeader { keyspace, shard, to: node }
            | Command::AddReplica { keyspace, shard, node }
            | Command::RemoveReplica { keyspace, shard, node }
            | Command::ForceJoinShard { keyspace, shard, node, .. } => {
                About::shard(keyspace, *shard).and_node(node)
            }
            Command::SplitShard { keyspace, shard, .. }
            | Command::MergeShards { keyspace, left: shard, .. }
            | Command::SetShardReplicas { keyspace, shard, .. }
            | Command::PinShard { keyspace, shard, .. }
            | Command::ReleaseShard { keyspace, shard }
            | Command::RecreateShard { keyspace, shard, .. } => About::shard(keyspace, *shard),
            Command::ApprovePlan { plan } | Command::RejectPlan { plan } | Command::EditPlan { plan, .. } => {
                About { plan: Some(*plan), ..About::default() }
            }
            Command::DrainZone { .. } | Command::UndrainZone { .. } | Command::ReleaseBrake => About::all(),
        }
    }
}

/// The first shards of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Presplit {
    /// One shard for all keys; every slot of a fixed number; no partition of named ones.
    #[default]
    None,
    /// Cut at these keys, in order (key ranges).
    Points(Vec<Key>),
    /// Cut at the quantiles of a sample (key ranges).
    SampleKeys {
        /// The sample, in any order; sampled partition keys, where keys have such.
        keys: Vec<Key>,
        /// The weight of each key; empty = 1 each.
        weights: Vec<u64>,
        /// How many shards to make, at most as many as the sample has different keys.
        shards: u32,
    },
    /// This many equal ranges of hashes (hash ranges).
    HashRanges(u32),
    /// One shard for each of these partitions (named).
    Names(Vec<PartitionName>),
}

/// Where a shard is cut.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SplitAt {
    /// In two: at the median key that its leader reports, or at half of its hashes.
    #[default]
    Middle,
    /// At these keys, each of which begins a new shard (key ranges).
    Keys(Vec<Key>),
    /// At these points, each of which begins a new shard (hash ranges).
    Points(Vec<u64>),
}

/// What may change about a keyspace; none = stays as it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KeyspaceChanges {
    /// How many replicas each shard has.
    pub replicas: Option<u32>,
    /// The name of the placement policy: a shipped one, or a user's own.
    pub policy: Option<String>,
    /// Whether the coordinator approves its plans itself, or a person does.
    pub mode: Option<Mode>,
    /// The failure domains over which replicas are spread.
    pub spread: Option<Spread>,
    /// Where all its shards may go.
    pub constraint: Option<Constraint>,
    /// How fast its shards may move.
    pub throttle: Option<Throttle>,
    /// When its shards split and merge.
    pub resharding: Option<Resharding>,
    /// How many fixed slots there are: a multiple or a divisor of the present number. Makes a plan of splits or
    /// merges, after which there are as many.
    pub shards: Option<u32>,
    /// What the settings of its dataset say of replication: [`Keyspace::following`].
    pub dataset_replication: Option<u32>,
}
