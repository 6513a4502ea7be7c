//! Commands as JSON, and their answers.

use crate::Malformed;
use crate::json::{
    Constraint, DrainState, FixedWord, KeyText, Keyspace, Plan, Point, Resharding, Throttle, strings,
};
use crate::malformed::{each, names};
use partage_core::cluster::admin as core;
use partage_core::keyspace::{Mode, Spread};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request to carry out one command, or to say what the command would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandRequest {
    /// The command to carry out.
    #[serde(rename = "do")]
    pub command: Command,
    /// Whether the coordinator only says what the command would do, and changes nothing; absent = false.
    #[serde(default)]
    pub dry_run: bool,
}

/// The first shards of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Presplit {
    /// No cut: one shard for all keys with key ranges or hash ranges, one shard for each slot with a fixed number, no
    /// partition with named ones.
    #[default]
    None,
    /// Shards cut at given keys, for key ranges.
    Points {
        /// The keys at which the shards are cut, in ascending order.
        keys: Vec<KeyText>,
    },
    /// Shards cut at the quantiles of a sample of keys, for key ranges.
    SampleKeys {
        /// The sampled keys, in any order.
        keys: Vec<KeyText>,
        /// The weights of the keys, one for each key in the same order; empty = 1 each.
        #[serde(default)]
        weights: Vec<u64>,
        /// The number of shards to create: at least 1, and no more than there are different keys in the sample.
        shards: u32,
    },
    /// Equal ranges of hashes, for hash ranges.
    HashRanges {
        /// The number of shards to create, at least 1.
        shards: u32,
    },
    /// Named partitions, for named sharding.
    Names {
        /// The names of the partitions.
        names: Vec<String>,
    },
}

/// The places where a shard is cut.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SplitAt {
    /// A cut in two, at the median key that the leader's worker reports or at half of the hashes.
    #[default]
    Middle,
    /// Cuts at keys, for key ranges.
    Keys {
        /// The keys to cut at, in ascending order; each begins a new shard.
        keys: Vec<KeyText>,
    },
    /// Cuts at hash points, for hash ranges.
    Points {
        /// The hash points to cut at, in ascending order; each begins a new shard.
        points: Vec<Point>,
    },
}

/// The settings of a keyspace that may change. An absent setting stays as it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeyspaceChanges {
    /// The number of replicas of each shard, 1 to 64.
    pub replicas: Option<u32>,
    /// The name of the placement policy.
    pub policy: Option<String>,
    /// The rebalancing mode: `automatic`, `suggested`, `manual`.
    #[schema(value_type = Option<String>)]
    pub mode: Option<FixedWord<Mode>>,
    /// The domain over which the replicas of a shard are spread: `node`, `zone`, `zone-strict`, `rack`,
    /// `rack-strict`.
    #[schema(value_type = Option<String>)]
    pub spread: Option<FixedWord<Spread>>,
    /// The nodes that the shards may be on.
    pub constraint: Option<Constraint>,
    /// The limits on how fast shards may move.
    pub throttle: Option<Throttle>,
    /// The thresholds at which shards split and merge.
    pub resharding: Option<Resharding>,
    /// The number of fixed slots: a multiple or a divisor of the present number.
    pub shards: Option<u32>,
    /// The replication that the settings of the dataset say. The number of replicas follows it, unless a person has
    /// changed that number since a node last reported these settings.
    pub dataset_replication: Option<u32>,
}

/// Everything that a client can ask the coordinator to do. The fields are those of the commands of `partage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "core documents each command and field under the same name")]
pub enum Command {
    CreateKeyspace {
        keyspace: Keyspace,
        #[serde(default)]
        presplit: Presplit,
        /// Whether the command may ask for more than the nodes that have joined can hold: nodes that join later take
        /// the rest.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    DeleteKeyspace {
        keyspace: String,
    },
    UpdateKeyspace {
        keyspace: String,
        changes: KeyspaceChanges,
        /// Whether the command may ask for more than the nodes that have joined can hold: nodes that join later take
        /// the rest.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    RegisterPartitions {
        keyspace: String,
        partitions: Vec<String>,
        replicas: Option<u32>,
        /// Whether the command may ask for more than the nodes that have joined can hold: nodes that join later take
        /// the rest.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    UnregisterPartitions {
        keyspace: String,
        partitions: Vec<String>,
    },
    DrainNode {
        node: String,
        reason: String,
        max_down: Option<u32>,
    },
    DrainZone {
        zone: String,
        reason: String,
        max_down: Option<u32>,
    },
    UndrainNode {
        node: String,
    },
    /// Lets every drained node of a zone take shards again.
    UndrainZone {
        /// The zone whose drained nodes may take shards again.
        zone: String,
    },
    RemoveNode {
        node: String,
    },
    MoveShard {
        keyspace: String,
        shard: u64,
        from: String,
        to: String,
    },
    TransferLeader {
        keyspace: String,
        shard: u64,
        to: String,
    },
    AddReplica {
        keyspace: String,
        shard: u64,
        node: String,
    },
    RemoveReplica {
        keyspace: String,
        shard: u64,
        node: String,
    },
    SplitShard {
        keyspace: String,
        shard: u64,
        #[serde(default)]
        at: SplitAt,
    },
    MergeShards {
        keyspace: String,
        left: u64,
        right: u64,
    },
    IsolateKey {
        keyspace: String,
        key: KeyText,
    },
    SetShardReplicas {
        keyspace: String,
        shard: u64,
        replicas: Option<u32>,
        /// Whether the command may ask for more than the nodes that have joined can hold: nodes that join later take
        /// the rest.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    PinShard {
        keyspace: String,
        shard: u64,
        constraint: Constraint,
        /// Whether the command may ask for more than the nodes that have joined can hold: nodes that join later take
        /// the rest.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ahead: bool,
    },
    ReleaseShard {
        keyspace: String,
        shard: u64,
    },
    ForceJoinShard {
        keyspace: String,
        shard: u64,
        /// The node whose stored copy the shard goes on with.
        node: String,
        /// The sequence number of the map that the person has looked at; the coordinator changes no other map.
        generation: u64,
    },
    RecreateShard {
        keyspace: String,
        shard: u64,
        /// The sequence number of the map that the person has looked at; the coordinator changes no other map.
        generation: u64,
    },
    ReleaseBrake {},
    ApprovePlan {
        plan: u64,
    },
    RejectPlan {
        plan: u64,
    },
    EditPlan {
        plan: u64,
        drop: Vec<usize>,
    },
}

impl TryFrom<Presplit> for core::Presplit {
    type Error = Malformed;
    fn try_from(form: Presplit) -> Result<Self, Malformed> {
        let keys = |keys| each(keys, "keys", KeyText::try_into);
        Ok(match form {
            Presplit::None => core::Presplit::None,
            Presplit::Points { keys: points } => core::Presplit::Points(keys(points)?),
            Presplit::SampleKeys { keys: sample, weights, shards } => {
                core::Presplit::SampleKeys { keys: keys(sample)?, weights, shards }
            }
            Presplit::HashRanges { shards } => core::Presplit::HashRanges(shards),
            Presplit::Names { names: given } => core::Presplit::Names(names(&given, "names")?),
        })
    }
}

impl TryFrom<SplitAt> for core::SplitAt {
    type Error = Malformed;
    fn try_from(form: SplitAt) -> Result<Self, Malformed> {
        Ok(match form {
            SplitAt::Middle => core::SplitAt::Middle,
            SplitAt::Keys { keys } => core::SplitAt::Keys(each(keys, "keys", KeyText::try_into)?),
            SplitAt::Points { points } => core::SplitAt::Points(each(points, "points", Point::try_into)?),
        })
    }
}

/// The progress of one drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainStatus {
    /// The node that the drain is for.
    pub node: String,
    /// The reason for the drain, as the person who asked for it gave it.
    pub reason: String,
    /// The time at which the drain was asked for, in milliseconds of Unix time.
    pub asked_ms: u64,
    /// The stage of the drain: `queued`, `moving`, `safe_to_stop`, `blocked`.
    #[schema(value_type = String)]
    pub progress: FixedWord<DrainState>,
    /// When queued: the nodes that are down or being drained; some of them must come back first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behind: Vec<String>,
    /// When queued: the number of nodes that may be down or being drained at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_down: Option<u32>,
    /// When moving or blocked: the number of replicas that are still on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<u32>,
    /// When moving: the number of replicas that were on the node when the drain began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u32>,
    /// When moving or blocked: sentences on the replicas that are stuck; when blocked, with the way out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stuck: Vec<String>,
}

impl From<&core::DrainStatus> for DrainStatus {
    fn from(status: &core::DrainStatus) -> Self {
        use core::DrainProgress as Progress;
        let without = |progress: DrainState| DrainStatus {
            node: status.node.to_string(),
            reason: status.reason.clone(),
            asked_ms: status.asked_ms,
            progress: progress.into(),
            behind: Vec::new(),
            max_down: None,
            left: None,
            of: None,
            stuck: Vec::new(),
        };
        match &status.progress {
            Progress::Queued { behind, max_down } => DrainStatus {
                behind: strings(behind),
                max_down: Some(*max_down),
                ..without(DrainState::Queued)
            },
            Progress::Moving { left, of, stuck } => DrainStatus {
                left: Some(*left),
                of: Some(*of),
                stuck: stuck.clone(),
                ..without(DrainState::Moving)
            },
            Progress::SafeToStop => without(DrainState::SafeToStop),
            Progress::Blocked { left, why } => {
                DrainStatus { left: Some(*left), stuck: why.clone(), ..without(DrainState::Blocked) }
            }
        }
    }
}

/// The result of a command, or of its dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    /// One sentence that says what the command has done, or would do.
    pub summary: String,
    /// Sentences on effects that are allowed but may not be meant.
    pub warnings: Vec<String>,
    /// The plan that the command has made, decided or edited; absent when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// The progress of each drain that the command is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drains: Vec<DrainStatus>,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Only in a dry run: the plans that the planner would make next, because of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub follows: Vec<Plan>,
    /// Only in a dry run: the nodes that would hold more or fewer replicas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shares: Vec<NodeShare>,
}

/// The replicas that one node holds, and those that it would hold when everything that a dry run shows is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeShare {
    /// The node whose replicas are counted.
    pub node: String,
    /// The number of replicas of all keyspaces that the node should hold now.
    pub before: u32,
    /// The number of replicas of all keyspaces that the node would hold then.
    pub after: u32,
}
