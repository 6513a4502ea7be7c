//! The whole durable record of a cluster as one JSON document: to look at, to keep, to check, to begin again
//! from.
//!
//! | `format` | what it is |
//! |---|---|
//! | 1 | this |
//!
//! It is the record, not a picture of it: everything that a coordinator stores and nothing else, so no load, no
//! health, no lease. [`TryFrom`] gives back exactly the [`Records`] that it was made of. A hand may have been at
//! it, so a field that is not known is an error, as in a request; [`Reading`] finds all that is wrong at once.

mod read;
#[cfg(test)]
mod tests;

pub use read::Reading;

use crate::Malformed;
use crate::json::{
    Bounds, FixedWord, Generation, Keyspace, Known, Plan, Register, ShardRule, ShardStage, strings, to_hex,
};
use crate::malformed::sentence;
use crate::malformed::{At, Inside, each, names};
use crate::worker::session::digest_of;
use partage_core::base::id::{ClusterId, Configuration, Epoch, Incarnation, PlacementId, PlanId, ShardId};
use partage_core::cluster::{self, ClusterRecord, Drain, KeyspaceRecord, LostIds, NodeRecord, Records};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{self, MapDiff, Role, ShardMap, Stage};
use partage_core::node::exchange::Registration;
use partage_core::{keyspace, plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The format that is written.
const FORMAT: u32 = 1;

/// Everything durable of a cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Dump {
    /// The format of this document: 1.
    pub format: u32,
    /// The counters and switches of the whole cluster.
    pub cluster: DumpCluster,
    /// The keyspaces, each with its map.
    pub keyspaces: Vec<DumpKeyspace>,
    /// The nodes that the coordinator remembers.
    pub nodes: Vec<DumpNode>,
    /// The plans that the coordinator keeps.
    pub plans: Vec<Plan>,
}

/// The counters and switches of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpCluster {
    /// The incarnation that the next registration gets.
    pub next_incarnation: u64,
    /// The number that the next plan gets.
    pub next_plan: u64,
    /// The longest lease that the coordinators have granted and that may still run, in milliseconds.
    pub longest_lease_ms: u64,
    /// The reason why automatic moves are stopped; absent = they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brake: Option<String>,
    /// The lowest shard id that no deleted keyspace has used.
    pub next_shard: u64,
    /// The lowest placement id that no deleted keyspace has used.
    pub next_placement: u64,
    /// The id of this cluster, 32 hexadecimal digits; absent = the coordinator has drawn none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The ids of the clusters that this one was restored from, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continues: Vec<String>,
    /// The names of deleted keyspaces that are not in use again, each with the lowest shard id that the keyspace had
    /// not used.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deleted_keyspaces: BTreeMap<String, u64>,
    /// The ids that a coordinator may have given out and whose use is not known; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<DumpLostIds>,
    /// Maps that a worker or a coordinator knew of and that are later than the stored ones, because an older state
    /// was restored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later_maps: Vec<Known>,
}

/// Ids that a coordinator whose state was lost may have given out. Each range includes its first id and excludes its
/// second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpLostIds {
    /// The range of shard ids.
    pub shards: (u64, u64),
    /// The range of placement ids of replicas.
    pub placements: (u64, u64),
}

/// A keyspace with its map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpKeyspace {
    /// The settings of the keyspace.
    pub settings: Keyspace,
    /// The rules for single shards, by shard id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rules: BTreeMap<u64, ShardRule>,
    /// The reason why automatic moves of this keyspace are stopped; absent = they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brake: Option<String>,
    /// The time at which the keyspace was created, in milliseconds of Unix time.
    pub created_ms: u64,
    /// The lowest shard id of this keyspace. Deleted keyspaces of the same name have only lower ids.
    #[serde(default)]
    pub first_shard: u64,
    /// The ids of this keyspace that a coordinator may have given out and whose use is not known; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<DumpLostIds>,
    /// The map of the keyspace: its shards and their replicas.
    pub map: DumpMap,
}

/// A map of a keyspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpMap {
    /// The generation of this map.
    pub generation: Generation,
    /// The generation of the map that this one was made from; absent for the empty map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Generation>,
    /// The id that the next new shard gets.
    pub next_shard: u64,
    /// The placement id that the next new replica gets.
    pub next_placement: u64,
    /// The shards, in the order of their ids.
    pub shards: Vec<DumpShard>,
}

/// A shard of the map, with its replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpShard {
    /// The id of the shard.
    pub shard: u64,
    /// The epoch of the shard, a number that grows whenever the leader or the bounds of the shard change.
    pub epoch: u64,
    /// In a replicated keyspace: the number of changes of the in-sync set, and of the leader while there is one; absent =
    /// the shard has had no in-sync set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<u64>,
    /// The keys that the shard holds.
    pub bounds: Bounds,
    /// The stage of the shard: `serving`, `forming`, `closing`, `removing`.
    #[schema(value_type = String)]
    pub stage: FixedWord<ShardStage>,
    /// When forming or closing: the ids of the children of the split or merge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<u64>,
    /// The ids of the shards that this one was split or merged from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<u64>,
    /// The replicas of the shard, in the order of their placement ids.
    pub replicas: Vec<DumpReplica>,
}

/// A replica of a shard, on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpReplica {
    /// The placement id of the replica, a new one each time that a shard is put on a node.
    pub placement: u64,
    /// The node that the replica is on.
    pub node: String,
    /// The incarnation of that node on which the replica was placed.
    pub incarnation: u64,
    /// The role of the replica: `leader`, `follower`, `read_replica`.
    #[schema(value_type = String)]
    pub role: FixedWord<Role>,
    /// The state of the replica: `load`, `live`, `unload`, `unload_final`.
    #[schema(value_type = String)]
    pub state: FixedWord<ReplicaState>,
    /// Whether the replica is in the in-sync set of its shard; absent = false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_sync: bool,
    /// The placement id of the replica that leaves when this one serves; absent = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
}

/// A node that has registered, as the coordinator stores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpNode {
    /// The last announcement of the node, with its latest incarnation.
    pub spec: Register,
    /// The SHA-256 of the token of that incarnation, 64 hexadecimal digits; absent = not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Whether that incarnation has ended for ever.
    pub ended: bool,
    /// Whether that incarnation ended with a `leave` message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// False when no map has named the node, and it has named no data, in this incarnation or an earlier one: it has
    /// nothing on its disk. Absent when it may have data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// The drain of the node; absent = no person has asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DumpDrain>,
    /// The time at which that incarnation registered, in milliseconds of Unix time.
    pub since_ms: u64,
}

/// A drain: a person has asked that the node be emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DumpDrain {
    /// The reason for the drain, as the person who asked for it gave it.
    pub reason: String,
    /// The time at which the drain was asked for, in milliseconds of Unix time.
    pub asked_ms: u64,
    /// The limit of the queue: the drain begins only while fewer nodes than this are down or being drained; absent =
    /// the drain begins at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_down: Option<u32>,
    /// The number of replicas that the node held when the drain began; absent while the drain waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_with: Option<u32>,
}

impl From<&Records> for Dump {
    fn from(records: &Records) -> Self {
        Dump {
            format: FORMAT,
            cluster: (&records.cluster).into(),
            keyspaces: records.keyspaces.iter().map(Into::into).collect(),
            nodes: records.nodes.iter().map(Into::into).collect(),
            plans: records.plans.iter().map(Into::into).collect(),
        }
    }
}

impl From<&ClusterRecord> for DumpCluster {
    fn from(record: &ClusterRecord) -> Self {
        DumpCluster {
            next_incarnation: record.next_incarnation.0,
            next_plan: record.next_plan.0,
            longest_lease_ms: record.longest_lease_ms,
            brake: record.brake.clone(),
            next_shard: record.next_shard.0,
            next_placement: record.next_placement.0,
            id: (record.id != ClusterId::default()).then(|| record.id.to_string()),
            continues: strings(&record.continues),
            deleted_keyspaces: record
                .deleted_keyspaces
                .iter()
                .map(|(name, id)| (name.to_string(), id.0))
                .collect(),
            lost: record.lost.map(Into::into),
            later_maps: record.later_maps.iter().map(Into::into).collect(),
        }
    }
}

impl From<&(KeyspaceRecord, ShardMap)> for DumpKeyspace {
    fn from((record, map): &(KeyspaceRecord, ShardMap)) -> Self {
        DumpKeyspace {
            settings: (&record.keyspace).into(),
            rules: record.rules.iter().map(|(shard, rule)| (shard.0, rule.into())).collect(),
            brake: record.brake.clone(),
            created_ms: record.created_ms,
            first_shard: record.first_shard.0,
            lost: record.lost.map(Into::into),
            map: DumpMap {
                generation: map.generation().into(),
                parent: map.parent().map(Into::into),
                next_shard: map.next_shard().0,
                next_placement: map.next_placement().0,
                shards: map.shards().map(Into::into).collect(),
            },
        }
    }
}

impl From<&map::Shard> for DumpShard {
    fn from(shard: &map::Shard) -> Self {
        let ids = |ids: &[ShardId]| ids.iter().map(|id| id.0).collect();
        let children = match shard.stage() {
            Stage::Serving | Stage::Removing => vec![],
            Stage::Forming(children) | Stage::Closing(children) => ids(children),
        };
        DumpShard {
            shard: shard.id.0,
            epoch: shard.epoch.0,
            configuration: (shard.configuration.0 > 0).then_some(shard.configuration.0),
            bounds: (&shard.bounds).into(),
            stage: ShardStage::from(shard.stage()).into(),
            children,
            parents: ids(shard.parents()),
            replicas: shard.replicas.iter().map(Into::into).collect(),
        }
    }
}

impl From<&map::Replica> for DumpReplica {
    fn from(replica: &map::Replica) -> Self {
        DumpReplica {
            placement: replica.placement.0,
            node: replica.node.to_string(),
            incarnation: replica.incarnation.0,
            role: replica.role.into(),
            state: replica.state.into(),
            in_sync: replica.in_sync,
            replaces: replica.replaces().map(|placement| placement.0),
        }
    }
}

impl From<&NodeRecord> for DumpNode {
    fn from(record: &NodeRecord) -> Self {
        let drain = |drain: &Drain| DumpDrain {
            reason: drain.reason.clone(),
            asked_ms: drain.asked_ms,
            max_down: drain.max_down,
            began_with: drain.began_with,
        };
        let incarnation = Some(record.incarnation);
        let spec = Registration { incarnation, ..Registration::new(record.spec.clone()) };
        DumpNode {
            spec: (&spec).into(),
            session: record.session.map(|digest| to_hex(&digest.0)),
            ended: record.ended,
            left: record.left,
            held: (!record.held).then_some(false),
            drain: record.drain.as_ref().map(drain),
            since_ms: record.since_ms,
        }
    }
}

impl TryFrom<DumpCluster> for ClusterRecord {
    type Error = Malformed;
    fn try_from(form: DumpCluster) -> Result<Self, Malformed> {
        let deleted =
            |(name, below): (String, u64)| Ok((name.parse().at("deleted_keyspaces")?, ShardId(below)));
        Ok(ClusterRecord {
            id: form.id.map(|id| id.parse()).transpose().at("id")?.unwrap_or_default(),
            continues: names(&form.continues, "continues")?,
            deleted_keyspaces: form.deleted_keyspaces.into_iter().map(deleted).collect::<Result<_, _>>()?,
            next_incarnation: Incarnation(form.next_incarnation),
            next_plan: PlanId(form.next_plan),
            longest_lease_ms: form.longest_lease_ms,
            brake: form.brake,
            next_shard: ShardId(form.next_shard),
            next_placement: PlacementId(form.next_placement),
            lost: form.lost.map(Into::into),
            later_maps: each(form.later_maps, "later_maps", TryInto::try_into)?,
        })
    }
}

impl From<DumpLostIds> for LostIds {
    fn from(form: DumpLostIds) -> Self {
        let (shards, placements) = (form.shards, form.placements);
        LostIds {
            shards: (ShardId(shards.0), ShardId(shards.1)),
            placements: (PlacementId(placements.0), PlacementId(placements.1)),
        }
    }
}

impl From<LostIds> for DumpLostIds {
    fn from(lost: LostIds) -> Self {
        DumpLostIds {
            shards: (lost.shards.0.0, lost.shards.1.0),
            placements: (lost.placements.0.0, lost.placements.1.0),
        }
    }
}

impl TryFrom<DumpReplica> for map::Replica {
    type Error = Malformed;
    fn try_from(form: DumpReplica) -> Result<Self, Malformed> {
        Ok(map::Replica {
            placement: PlacementId(form.placement),
            node: form.node.parse().at("node")?,
            incarnation: Incarnation(form.incarnation),
            role: form.role.value("role")?,
            state: form.state.value("state")?,
            in_sync: form.in_sync,
            predecessor: form.replaces.map(PlacementId).and_then(map::Predecessor::new),
        })
    }
}

impl TryFrom<DumpShard> for map::Shard {
    type Error = Malformed;
    fn try_from(form: DumpShard) -> Result<Self, Malformed> {
        let ids = |ids: Vec<u64>| ids.into_iter().map(ShardId).collect::<map::Family>();
        let stage = match (form.stage.value("stage")?, form.children) {
            (ShardStage::Forming, children) => Stage::Forming(ids(children)),
            (ShardStage::Closing, children) => Stage::Closing(ids(children)),
            (ShardStage::Serving, none) if none.is_empty() => Stage::Serving,
            (ShardStage::Removing, none) if none.is_empty() => Stage::Removing,
            (ShardStage::Serving | ShardStage::Removing, _) => {
                return Err(Malformed::new("children", "only a forming or closing shard has children"));
            }
        };
        Ok(map::Shard {
            id: ShardId(form.shard),
            epoch: Epoch(form.epoch),
            configuration: Configuration(form.configuration.unwrap_or_default()),
            bounds: form.bounds.try_into().inside("bounds")?,
            lineage: map::Lineage::new(stage, ids(form.parents)),
            replicas: each(form.replicas, "replicas", map::Replica::try_from)?,
        })
    }
}

/// The map of a keyspace with these settings.
fn map_of(
    settings: &keyspace::Keyspace,
    form: DumpMap,
    changed: Vec<map::Shard>,
) -> Result<ShardMap, Malformed> {
    let mut map = ShardMap::empty(settings.name.clone(), settings.sharding, settings.partition_key);
    let mut ids: Vec<_> = changed.iter().map(|shard| shard.id).collect();
    ids.sort();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Malformed::new("shards", format!("{} is there twice", twice[0])));
    }
    let whole = MapDiff {
        keyspace: settings.name.clone(),
        from: map.generation(),
        to: form.generation.try_into().inside("generation")?,
        parent: form.parent.map(TryInto::try_into).transpose().inside("parent")?,
        changed,
        removed: vec![],
        next_shard: ShardId(form.next_shard),
        next_placement: PlacementId(form.next_placement),
    };
    map.apply(&whole).at("generation")?;
    Ok(map)
}

/// What was said about a shard.
fn rule((shard, form): (u64, ShardRule)) -> Result<(ShardId, cluster::ShardRule), Malformed> {
    let rule = cluster::ShardRule {
        replicas: form.replicas,
        constraint: form.constraint.try_into().inside(&format!("rules.{shard}.constraint"))?,
        set_aside: form.set_aside,
        deaths: form.deaths,
    };
    Ok((ShardId(shard), rule))
}

impl TryFrom<DumpKeyspace> for (KeyspaceRecord, ShardMap) {
    type Error = Malformed;
    fn try_from(mut form: DumpKeyspace) -> Result<Self, Malformed> {
        let settings: keyspace::Keyspace = form.settings.try_into().inside("settings")?;
        let shards = std::mem::take(&mut form.map.shards);
        let shards = each(shards, "shards", map::Shard::try_from).inside("map")?;
        let map = map_of(&settings, form.map, shards).inside("map")?;
        let rules = form.rules.into_iter().map(rule).collect::<Result<_, _>>()?;
        let (brake, lost) = (form.brake, form.lost.map(Into::into));
        let record = KeyspaceRecord::new(settings, form.created_ms, ShardId(form.first_shard));
        Ok((KeyspaceRecord { brake, rules, lost, ..record }, map))
    }
}

impl TryFrom<DumpNode> for NodeRecord {
    type Error = Malformed;
    fn try_from(form: DumpNode) -> Result<Self, Malformed> {
        let registration: Registration = form.spec.try_into().inside("spec")?;
        let none = || Malformed::new("spec.incarnation", "is missing");
        let drain = |form: DumpDrain| Drain {
            reason: sentence(form.reason),
            asked_ms: form.asked_ms,
            max_down: form.max_down,
            began_with: form.began_with,
        };
        Ok(NodeRecord {
            spec: registration.spec,
            session: form.session.map(|session| digest_of(&session)).transpose()?,
            incarnation: registration.incarnation.ok_or_else(none)?,
            ended: form.ended,
            left: form.left,
            held: form.held.unwrap_or(true),
            drain: form.drain.map(drain),
            since_ms: form.since_ms,
        })
    }
}

/// Refuses a document of another time.
fn check_format(format: u64) -> Result<(), Malformed> {
    match format == u64::from(FORMAT) {
        true => Ok(()),
        false => Err(Malformed::new("format", format!("is {format}: this program knows {FORMAT}"))),
    }
}

impl TryFrom<Dump> for Records {
    type Error = Malformed;
    fn try_from(form: Dump) -> Result<Self, Malformed> {
        check_format(form.format.into())?;
        Ok(Records {
            cluster: form.cluster.try_into().inside("cluster")?,
            keyspaces: each(form.keyspaces, "keyspaces", TryInto::try_into)?,
            nodes: each(form.nodes, "nodes", TryInto::try_into)?,
            plans: each(form.plans, "plans", plan::Plan::try_from)?,
        })
    }
}
