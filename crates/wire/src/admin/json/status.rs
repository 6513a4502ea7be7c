//! What a cluster looks like, as JSON: status, nodes, shards, and why a key is where it is.

use crate::json::{Bounds, Constraint, DrainStatus, FixedWord, KeyText, Load, ReplicaPhase, ShardStage};
use crate::worker::conversion::{failure_text, phase_parts};
use partage_core::cluster::explain;
use partage_core::cluster::moves::MoveStage;
use partage_core::cluster::serving::Serving;
use partage_core::cluster::status as core;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::node::Health;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The numbers of shards, by how they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardCounts {
    /// Shards that are served: their leader serves, on a node that answers.
    pub led: usize,
    /// Shards of which this coordinator does not know yet whether they are served: it has just begun and has not
    /// heard the node of their leader. They are most likely served, and count neither as led nor as unserved.
    #[serde(default)]
    pub unheard: usize,
    /// Shards that should be served and are not: the sum of `waiting`, `silent`, `braked`, `set_aside`, `loading` and
    /// `unplaced`.
    pub unserved: usize,
    /// Shards that are not served because every node with their data is away, has lost it, or never begins to serve
    /// it.
    #[serde(default)]
    pub waiting: usize,
    /// Shards that are not served because the node of their leader does not answer.
    pub silent: usize,
    /// Shards that are not served because the brake holds them.
    pub braked: usize,
    /// Shards that are not served until a person releases them.
    pub set_aside: usize,
    /// Shards that are not served yet: a node loads a replica, or a new leader is about to serve.
    pub loading: usize,
    /// Shards that are not served and for which no replica is on its way.
    pub unplaced: usize,
    /// Children of a split or merge that prepare.
    pub forming: usize,
    /// Parents of a finished split or merge that the nodes still unload.
    pub closing: usize,
    /// Unregistered partitions that the nodes still unload.
    pub removing: usize,
}

/// A shard that the coordinator places nowhere until a person releases it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetAside {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The id of the shard that is set aside.
    pub shard: u64,
    /// The reason why the shard is set aside.
    pub why: String,
}

/// A keyspace that is neither served nor changed, because some of its stored state is missing, damaged or older.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quarantined {
    /// The name of the keyspace in quarantine.
    pub keyspace: String,
    /// The reason for the quarantine, and the way out.
    pub why: String,
}

/// A shard that lacks replicas for which nothing is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unplaced {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The id of the shard that lacks replicas.
    pub shard: u64,
    /// The number of replicas that serve or prepare to serve.
    pub have: u32,
    /// The number of replicas that the shard should have.
    pub want: u32,
    /// The reason why replicas are missing, and the way out.
    pub why: String,
}

/// Something that is wrong, and what a person can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// One sentence that says what is wrong.
    pub what: String,
    /// The way out: what a person can do.
    pub way_out: String,
}

/// The cluster at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Summary {
    /// The problems, the worst first; empty = a person need not look at anything.
    #[serde(default)]
    pub problems: Vec<Problem>,
    /// The number of keyspaces.
    pub keyspaces: usize,
    /// The numbers of shards, by how they are.
    pub shards: ShardCounts,
    /// The numbers of replicas by state: `load`, `live`, `unload`, `unload_final`.
    pub replicas: BTreeMap<String, usize>,
    /// The numbers of nodes by health: `unknown`, `up`, `suspect`, `unreachable`, `down`, `left`.
    pub nodes: BTreeMap<String, usize>,
    /// The drains that persons have asked for, each with its progress.
    pub drains: Vec<DrainStatus>,
    /// The nodes whose processes have asked to leave and still wait for other nodes to serve their shards.
    #[serde(default)]
    pub leaving: Vec<String>,
    /// The reason why automatic moves are stopped; absent = they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake: Option<String>,
    /// The reason why the coordinator begins nothing but repairs by itself: many nodes died or restarted. This state
    /// ends by itself, without the brake; absent = there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrest: Option<String>,
    /// The shards that the coordinator places nowhere until a person releases them.
    pub set_aside: Vec<SetAside>,
    /// The first replicas that are on their way, at most 20.
    #[serde(default)]
    pub under_way: Vec<Move>,
    /// The number of moves under way.
    pub moves: usize,
    /// The number of first loads and repairs under way.
    pub loads: usize,
    /// The number of shards with fewer replicas than they should have.
    pub short: usize,
    /// The first of those shards for which too few replicas are on their way, at most 20.
    pub unplaced: Vec<Unplaced>,
    /// Sentences on what the planner could not do in its last run, by keyspace.
    pub complaints: BTreeMap<String, Vec<String>>,
    /// The keyspaces in which nothing is moved for balance yet, because not all nodes have reported loads, each with
    /// the time after which the coordinator goes on without them, in milliseconds.
    #[serde(default)]
    pub loads_awaited: BTreeMap<String, u64>,
    /// The keyspaces of which shards began without the data of before within the last hour and since this coordinator
    /// leads, because no node had a copy.
    #[serde(default)]
    pub begun_empty: BTreeMap<String, BegunEmpty>,
    /// The numbers of the plans that wait for a person.
    pub suggested: Vec<u64>,
    /// The keyspaces that are neither served nor changed, because some of their stored state is missing, damaged or
    /// older.
    #[serde(default)]
    pub quarantine: Vec<Quarantined>,
    /// Sentences on what else was wrong with the stored state when the coordinator began to lead, and on what it did
    /// about it.
    #[serde(default)]
    pub stored_faults: Vec<String>,
}

/// The shards of one keyspace that began without the data of before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BegunEmpty {
    /// The number of shards.
    pub shards: usize,
    /// The time at which the last of them began, in milliseconds of Unix time.
    pub last_ms: u64,
}

/// One replica that is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The id of the shard that the replica belongs to.
    pub shard: u64,
    /// The node that the replica leaves; absent for a first load, a repair, and a child of a split or merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The node that takes the replica over; absent when no node does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The stage of the move: `loading`, `handing_over`, `dropping`.
    #[schema(value_type = String)]
    pub stage: FixedWord<MoveStage>,
    /// The time since which the move is in that stage, in milliseconds of Unix time.
    pub since_ms: u64,
    /// Whether the move may be in that stage for longer: `since_ms` is then the time at which this coordinator
    /// started.
    pub since_at_least: bool,
    /// The thing that the move waits for, as a part of a sentence, such as "n2 to load it".
    pub waits_for: String,
}

/// One replica, as the map and its worker describe it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The placement id of the replica, a new one each time that a shard is put on a node.
    pub placement: u64,
    /// The node that the replica is on.
    pub node: String,
    /// The zone of that node; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The health of that node: `unknown`, `up`, `suspect`, `unreachable`, `down`, `left`.
    #[schema(value_type = String)]
    pub health: FixedWord<Health>,
    /// The role of the replica: `leader`, `follower`, `read_replica`.
    #[schema(value_type = String)]
    pub role: FixedWord<Role>,
    /// The state that the map asks for: `load`, `live`, `unload`, `unload_final`.
    #[schema(value_type = String)]
    pub state: FixedWord<ReplicaState>,
    /// The phase that the worker last reported: `loading`, `ready`, `serving`, `unloading`, `unloaded`, `kept`,
    /// `dropped`, `failed`; absent before its first report.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub phase: Option<FixedWord<ReplicaPhase>>,
    /// When failed: the reason that the worker reported, and how often in a row the attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The load that the worker last reported; absent = none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Whether the replica is in the in-sync set of its shard; absent in a keyspace that is not replicated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_sync: Option<bool>,
}

impl From<&core::ReplicaRow> for Replica {
    fn from(row: &core::ReplicaRow) -> Self {
        let seen = row.phase.as_ref().map(phase_parts);
        Replica {
            placement: row.placement.0,
            node: row.node.to_string(),
            zone: row.zone.as_ref().map(ToString::to_string),
            health: row.health.into(),
            role: row.role.into(),
            state: row.state.into(),
            phase: seen.map(|(phase, _)| phase.into()),
            failure: seen.and_then(|(_, failure)| failure).map(failure_text),
            load: row.load.as_ref().map(Into::into),
            in_sync: row.in_sync,
        }
    }
}

/// The settings of one shard beyond those of its keyspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShardRule {
    /// The shard's own number of replicas; absent = the keyspace's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// The nodes that the shard may be on, on top of the keyspace's constraint.
    pub constraint: Constraint,
    /// The reason why the coordinator places the shard nowhere; absent = it is not set aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<String>,
    /// The number of deaths of nodes that had just taken the shard on.
    pub deaths: u32,
}

/// One shard, as the map and its workers describe it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shard {
    /// The id of the shard.
    pub shard: u64,
    /// The keys that the shard holds.
    pub bounds: Bounds,
    /// The stage of the shard: `serving`, `forming`, `closing`, `removing`.
    #[schema(value_type = String)]
    pub stage: FixedWord<ShardStage>,
    /// Whether the shard is served: `led` = it is; `unheard` = not known yet; `waiting`, `silent`, `braked`,
    /// `set_aside`, `loading`, `unplaced` = it is not, for that reason. Absent where the shard need not be served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub serving: Option<FixedWord<Serving>>,
    /// The epoch of the shard, a number that grows whenever the leader or the bounds of the shard change.
    pub epoch: u64,
    /// The time since which the shard has that epoch, in milliseconds of Unix time.
    pub since_ms: u64,
    /// Whether the shard may have had that epoch for longer: `since_ms` is then the time at which this coordinator
    /// started.
    pub since_at_least: bool,
    /// The number of replicas that the shard should have.
    pub want: u32,
    /// The settings of this shard beyond those of its keyspace; absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<ShardRule>,
    /// The replicas of the shard, in the order of their placement ids.
    pub replicas: Vec<Replica>,
}

/// The plan that placed a replica, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    /// The number of the plan.
    pub plan: u64,
    /// The reason that the plan gave.
    pub reason: String,
}

/// The explanation of where a key is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The keyspace of the key.
    pub keyspace: String,
    /// The key that the explanation is about.
    pub key: KeyText,
    /// The name of the keyspace's placement policy.
    pub policy: String,
    /// The shard that holds the key.
    pub shard: Shard,
    /// The reasons for the replicas of the shard, one for each in the same order; null where the plan is no longer
    /// kept.
    pub reasons: Vec<Option<Reason>>,
    /// Whether the leader may act: no other node can still own the shard.
    pub granted: bool,
    /// Sentences on what would move the shard.
    pub would_move: Vec<String>,
    /// Sentences on what is on its way.
    pub under_way: Vec<String>,
    /// Sentences on what is in the way, each with the way out.
    pub blocked: Vec<String>,
}

impl From<&explain::Explanation> for Explanation {
    fn from(told: &explain::Explanation) -> Self {
        let reasons = told.reasons.iter().map(|reason| {
            reason.as_ref().map(|(plan, reason)| Reason { plan: plan.0, reason: reason.clone() })
        });
        Explanation {
            keyspace: told.keyspace.to_string(),
            key: (&told.key).into(),
            policy: told.policy.clone(),
            shard: (&told.shard).into(),
            reasons: reasons.collect(),
            granted: told.granted,
            would_move: told.would_move.clone(),
            under_way: told.under_way.clone(),
            blocked: told.blocked.clone(),
        }
    }
}
