//! What a cluster looks like, as JSON: status, nodes, shards, and why a key is where it is.

use super::command::DrainStatus;
use super::keyspace::Constraint;
use super::sharding::Bounds;
use super::text::KeyText;
use super::worker::Load;
use super::{strings, word};
use partage_core::cluster::moves::{MoveRow, MoveStage};
use partage_core::cluster::node_detail;
use partage_core::cluster::status as core;
use partage_core::cluster::{self, explain};
use partage_core::exchange::Phase;
use partage_core::map::Stage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Shards by stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShardCounts {
    /// They are served: their leader serves, on a node that answers.
    pub led: usize,
    /// Not known yet: this coordinator has just begun, and has not heard the node of their leader. Most likely served.
    #[serde(default)]
    pub unheard: usize,
    /// They should be served and are not: the sum of the next six.
    pub unserved: usize,
    /// Every node that has their data is away, or has lost it.
    #[serde(default)]
    pub waiting: usize,
    /// The node of their leader does not answer.
    pub silent: usize,
    /// Nobody serves them, and the brake holds them.
    pub braked: usize,
    /// Nobody serves them until a person releases them.
    pub set_aside: usize,
    /// Nobody serves them yet: a replica is loaded, or is about to lead.
    pub loading: usize,
    /// Nobody serves them, and nothing is on its way.
    pub unplaced: usize,
    /// Children of a split or merge that prepare.
    pub forming: usize,
    /// Parents of a finished split or merge that go.
    pub closing: usize,
    /// Unregistered partitions that go.
    pub removing: usize,
}

/// A shard that is placed nowhere until a person releases it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetAside {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The id of the shard that is set aside.
    pub shard: u64,
    /// Why the shard is set aside.
    pub why: String,
}

/// A keyspace that is neither served nor changed, as something of its stored state is missing, damaged or older.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quarantined {
    /// The name of the keyspace in quarantine.
    pub keyspace: String,
    /// Why, and the way out.
    pub why: String,
}

/// A shard that lacks replicas for which nothing is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unplaced {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The id of the shard that lacks replicas.
    pub shard: u64,
    /// Replicas that serve or prepare to.
    pub have: u32,
    /// Replicas that it wants.
    pub want: u32,
    /// Why, and the way out.
    pub why: String,
}

/// Something that is wrong, and what a person can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What is wrong, in a sentence.
    pub what: String,
    /// What to do.
    pub way_out: String,
}

/// The cluster at a glance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Summary {
    /// What is wrong, the worst first. Empty = nothing that a person has to look at.
    #[serde(default)]
    pub problems: Vec<Problem>,
    /// Keyspaces.
    pub keyspaces: usize,
    /// Shards by stage.
    pub shards: ShardCounts,
    /// Replicas by state.
    pub replicas: BTreeMap<String, usize>,
    /// Nodes by health.
    pub nodes: BTreeMap<String, usize>,
    /// How drains stand.
    pub drains: Vec<DrainStatus>,
    /// Why automatic moves are stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brake: Option<String>,
    /// Why nothing but repairs begins by itself: many nodes died or were started anew. It ends by itself, without the brake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrest: Option<String>,
    /// Shards that wait for a person.
    pub set_aside: Vec<SetAside>,
    /// The first of what is on its way.
    #[serde(default)]
    pub under_way: Vec<Move>,
    /// Moves under way.
    pub moves: usize,
    /// First loads and repairs under way.
    pub loads: usize,
    /// Shards with fewer replicas than they want.
    pub short: usize,
    /// The first of those for which nothing is on its way.
    pub unplaced: Vec<Unplaced>,
    /// What the planner last could not do, by keyspace.
    pub complaints: BTreeMap<String, Vec<String>>,
    /// Plans that wait for a person.
    pub suggested: Vec<u64>,
    /// Keyspaces that are neither served nor changed.
    #[serde(default)]
    pub quarantine: Vec<Quarantined>,
    /// What else was wrong with the stored state when the coordinator began to lead, and what it did about it.
    #[serde(default)]
    pub stored_faults: Vec<String>,
}

impl From<&core::Summary> for Summary {
    fn from(status: &core::Summary) -> Self {
        let counts = &status.shards;
        let set_aside = |(keyspace, shard, why): &(partage_core::name::KeyspaceName, _, String)| {
            let shard: &partage_core::id::ShardId = shard;
            SetAside { keyspace: keyspace.to_string(), shard: shard.0, why: why.clone() }
        };
        let unplaced = |lack: &core::Unplaced| Unplaced {
            keyspace: lack.keyspace.to_string(),
            shard: lack.shard.0,
            have: lack.have,
            want: lack.want,
            why: lack.why.clone(),
        };
        let problem = |problem: &cluster::Problem| Problem {
            what: problem.what.clone(),
            way_out: problem.way_out.clone(),
        };
        Summary {
            problems: status.problems.iter().map(problem).collect(),
            keyspaces: status.keyspaces,
            shards: ShardCounts {
                led: counts.led,
                unheard: counts.unheard,
                unserved: counts.unserved(),
                waiting: counts.waiting,
                silent: counts.silent,
                braked: counts.braked,
                set_aside: counts.set_aside,
                loading: counts.loading,
                unplaced: counts.unplaced,
                forming: counts.forming,
                closing: counts.closing,
                removing: counts.removing,
            },
            replicas: status.replicas.iter().map(|(state, count)| (word(state), *count)).collect(),
            nodes: status.nodes.iter().map(|(health, count)| (word(health), *count)).collect(),
            drains: status.drains.iter().map(Into::into).collect(),
            brake: status.brake.clone(),
            unrest: status.unrest.clone(),
            set_aside: status.set_aside.iter().map(set_aside).collect(),
            under_way: status.under_way.iter().map(Into::into).collect(),
            moves: status.moves,
            loads: status.loads,
            short: status.short,
            unplaced: status.unplaced.iter().map(unplaced).collect(),
            complaints: status
                .complaints
                .iter()
                .map(|(name, told)| (name.to_string(), told.clone()))
                .collect(),
            suggested: status.suggested.iter().map(|plan| plan.0).collect(),
            quarantine: status
                .quarantine
                .iter()
                .map(|(keyspace, why)| Quarantined { keyspace: keyspace.to_string(), why: why.clone() })
                .collect(),
            stored_faults: status.stored_faults.clone(),
        }
    }
}

/// One replica on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The id of the shard that the replica belongs to.
    pub shard: u64,
    /// The node that it leaves; absent for a first load, a repair, and a child of a split or merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The node that takes over; absent when nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `loading`, `handing_over`, `dropping`.
    pub stage: String,
    /// Unix time since when it is in that stage.
    pub since_ms: u64,
    /// It may have been for longer: `since_ms` is when this coordinator started.
    pub since_at_least: bool,
    /// A part of a sentence, such as "n2 to load it".
    pub waits_for: String,
}

impl From<&MoveRow> for Move {
    fn from(row: &MoveRow) -> Self {
        let stage = match row.stage {
            MoveStage::Loading => "loading",
            MoveStage::HandingOver => "handing_over",
            MoveStage::Dropping => "dropping",
        };
        let (since_ms, since_at_least) = since(row.since);
        Move {
            keyspace: row.keyspace.to_string(),
            shard: row.shard.0,
            from: row.from.as_ref().map(ToString::to_string),
            to: row.to.as_ref().map(ToString::to_string),
            stage: stage.to_owned(),
            since_ms,
            since_at_least,
            waits_for: row.waits_for.clone(),
        }
    }
}

/// Unix time, and whether it may be longer ago.
fn since(since: core::Since) -> (u64, bool) {
    match since {
        core::Since::At(ms) => (ms, false),
        core::Since::AtLeast(ms) => (ms, true),
    }
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The placement id of the replica, new each time that a shard is put on a node.
    pub placement: u64,
    /// The node that the replica is on.
    pub node: String,
    /// The zone of that node; absent where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// How that node is.
    pub health: String,
    /// `leader`, `follower`.
    pub role: String,
    /// `load`, `live`, `unload`, `unload_final`.
    pub state: String,
    /// What its worker says, as in its reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When failed: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// What it last measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

impl From<&core::ReplicaRow> for Replica {
    fn from(row: &core::ReplicaRow) -> Self {
        let (phase, failure) = match &row.phase {
            None => (None, None),
            Some(Phase::Loading) => (Some("loading"), None),
            Some(Phase::Ready) => (Some("ready"), None),
            Some(Phase::Serving) => (Some("serving"), None),
            Some(Phase::Unloading) => (Some("unloading"), None),
            Some(Phase::Unloaded) => (Some("unloaded"), None),
            Some(Phase::Kept) => (Some("kept"), None),
            Some(Phase::Dropped) => (Some("dropped"), None),
            Some(Phase::Failed(failure)) => {
                (Some("failed"), Some(format!("{} ({} times)", failure.reason, failure.attempts)))
            }
        };
        Replica {
            placement: row.placement.0,
            node: row.node.to_string(),
            zone: row.zone.as_ref().map(ToString::to_string),
            health: word(row.health),
            role: word(row.role),
            state: word(row.state),
            phase: phase.map(str::to_owned),
            failure,
            load: row.load.as_ref().map(Into::into),
        }
    }
}

/// What was said about one shard alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ShardRule {
    /// Its own number of replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Where it may go.
    pub constraint: Constraint,
    /// Why it is placed nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<String>,
    /// Deaths of owners that had just taken it on.
    pub deaths: u32,
}

impl From<&cluster::ShardRule> for ShardRule {
    fn from(rule: &cluster::ShardRule) -> Self {
        ShardRule {
            replicas: rule.replicas,
            constraint: (&rule.constraint).into(),
            set_aside: rule.set_aside.clone(),
            deaths: rule.deaths,
        }
    }
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Shard {
    /// The id of the shard.
    pub shard: u64,
    /// What it holds.
    pub bounds: Bounds,
    /// `serving`, `forming`, `closing`, `removing`.
    pub stage: String,
    /// Whether it is served: `led`; else why not: `waiting`, `silent`, `braked`, `set_aside`, `loading`, `unplaced`. Absent where
    /// it need not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
    /// Grows whenever its leader or bounds change.
    pub epoch: u64,
    /// Unix time since when it has that epoch.
    pub since_ms: u64,
    /// It may have had it for longer: `since_ms` is when this coordinator started.
    pub since_at_least: bool,
    /// Replicas that it wants.
    pub want: u32,
    /// What was said about it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<ShardRule>,
    /// Its replicas.
    pub replicas: Vec<Replica>,
}

impl From<&core::ShardRow> for Shard {
    fn from(row: &core::ShardRow) -> Self {
        let stage = match &row.stage {
            Stage::Serving => "serving",
            Stage::Forming(_) => "forming",
            Stage::Closing(_) => "closing",
            Stage::Removing => "removing",
        };
        let (since_ms, since_at_least) = since(row.since);
        Shard {
            shard: row.shard.0,
            bounds: (&row.bounds).into(),
            stage: stage.to_owned(),
            serving: row.serving.map(|serving| serving.to_string()),
            epoch: row.epoch.0,
            since_ms,
            since_at_least,
            want: row.want,
            rule: row.rule.as_ref().map(Into::into),
            replicas: row.replicas.iter().map(Into::into).collect(),
        }
    }
}

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub id: String,
    /// `host:port`.
    pub address: String,
    /// Its latest start.
    pub incarnation: u64,
    /// Unix time of that.
    pub since_ms: u64,
    /// `unknown`, `up`, `suspect`, `unreachable`, `down`, `left`.
    pub health: String,
    /// Its zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
    /// The kinds of keyspaces that it serves.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Its share of every load.
    pub capacity: f64,
    /// Why it is drained; it may wait in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining: Option<String>,
    /// It has asked to leave.
    pub leaving: bool,
    /// It has taken in all its orders: what it was told to give up, it does not serve any more.
    #[serde(default)]
    pub up_to_date: bool,
    /// Share of its capacity that foreground work takes.
    pub busy: f64,
    /// Replicas that it should hold, by keyspace.
    pub replicas: BTreeMap<String, usize>,
    /// How many of them lead.
    pub leaders: usize,
    /// Sum over its replicas.
    pub requests_per_s: f64,
    /// Sum over its replicas.
    pub cpu_ms_per_s: f64,
    /// Sum over its replicas.
    pub size_bytes: f64,
}

impl From<&core::NodeRow> for Node {
    fn from(row: &core::NodeRow) -> Self {
        let [requests_per_s, cpu_ms_per_s, size_bytes] = row.load;
        Node {
            id: row.node.to_string(),
            address: row.address.clone(),
            incarnation: row.incarnation.0,
            since_ms: row.since_ms,
            health: word(row.health),
            zone: row.zone.as_ref().map(ToString::to_string),
            rack: row.rack.as_ref().map(ToString::to_string),
            labels: strings(&row.labels),
            kinds: strings(&row.kinds),
            capacity: row.capacity,
            draining: row.drain.as_ref().map(|drain| drain.reason.clone()),
            leaving: row.leaving,
            up_to_date: row.is_up_to_date,
            busy: row.busy,
            replicas: row.replicas.iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            leaders: row.leaders,
            requests_per_s,
            cpu_ms_per_s,
            size_bytes,
        }
    }
}

/// A shard with a replica on the node that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostedShard {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The shard, with all its replicas.
    #[serde(flatten)]
    pub shard: Shard,
}

/// One node, with what it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    /// As in the list of all nodes.
    #[serde(flatten)]
    pub node: Node,
    /// How long ago its last heartbeat came, in milliseconds; absent before the first one since this coordinator leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms_ago: Option<u64>,
    /// How long its lease still runs, in milliseconds.
    pub lease_left_ms: u64,
    /// The shards with a replica on it, in the order of keyspaces and ids.
    pub shards: Vec<HostedShard>,
    /// It holds more than were asked for.
    pub more: bool,
}

impl From<&node_detail::NodeDetail> for NodeDetail {
    fn from(detail: &node_detail::NodeDetail) -> Self {
        let hosted = |(keyspace, row): &(_, core::ShardRow)| HostedShard {
            keyspace: ToString::to_string(keyspace as &partage_core::name::KeyspaceName),
            shard: row.into(),
        };
        NodeDetail {
            node: (&detail.row).into(),
            heard_ms_ago: detail.heard_ms_ago,
            lease_left_ms: detail.lease_left_ms,
            shards: detail.shards.iter().map(hosted).collect(),
            more: detail.more,
        }
    }
}

/// The plan that placed a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    /// Its number.
    pub plan: u64,
    /// What it said.
    pub reason: String,
}

/// Everything about where a key is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The keyspace of the key.
    pub keyspace: String,
    /// The key that the explanation is about.
    pub key: KeyText,
    /// Its placement policy.
    pub policy: String,
    /// The shard that holds it.
    pub shard: Shard,
    /// For each replica of the shard; null where the plan is no longer kept.
    pub reasons: Vec<Option<Reason>>,
    /// Whether the leader may act.
    pub granted: bool,
    /// What would move it.
    pub would_move: Vec<String>,
    /// What is on its way.
    pub under_way: Vec<String>,
    /// What is in the way, and the way out.
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
