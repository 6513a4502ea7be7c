//! Messages of metadata servers: changes in parts, notices, and what a server answers a node about its partitions.

use crate::limits::SHARDS_IN_PART;
use crate::malformed::{At, Inside, each, required};
use crate::map::{cut, join};
use crate::{Malformed, proto};
use partage_core::base::id::{Epoch, Generation, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::keyspace::sharding::{PartitionKey, Sharding};
use partage_service::metadata::change::{Change, Notice};
use partage_service::metadata::discover::{Discovery, Status, Target};
use std::sync::Arc;

/// The messages of one change, or of a whole map.
pub fn in_parts(change: &Change) -> impl Iterator<Item = proto::MapPart> + use<> {
    let (diff, begin) = match change {
        Change::Operation(diff) => (diff.clone(), None),
        Change::Whole(map) => (Arc::new(map.whole()), Some((map.sharding(), map.partition_key()))),
    };
    let count = diff.changed.len().div_ceil(SHARDS_IN_PART).max(1);
    let part = move |at: usize| {
        let begin = begin.filter(|_| at == 0);
        proto::MapPart {
            diff: cut(&diff, SHARDS_IN_PART).nth(at).map(|part| (&part).into()),
            sharding: begin.map(|(sharding, _)| sharding.into()),
            partition_key: begin.map(|(_, key)| key.into()),
            more: at + 1 < count,
        }
    };
    (0..count).map(part)
}

/// The operation that a change is, if one message holds it.
pub fn in_one(change: &Change) -> Option<proto::MapDiff> {
    match change {
        Change::Operation(diff) if diff.changed.len() <= SHARDS_IN_PART => Some((&**diff).into()),
        Change::Operation(_) | Change::Whole(_) => None,
    }
}

/// The operation in a message.
///
/// # Errors
/// The field that is wrong.
pub fn one(form: Option<proto::MapDiff>) -> Result<MapDiff, Malformed> {
    required(form, "operation")
}

/// Puts the parts of a change together.
#[derive(Debug, Default)]
pub struct ChangeJoiner {
    begun: Option<(MapDiff, Option<(Sharding, PartitionKey)>)>,
}

impl ChangeJoiner {
    /// Takes the next part; gives the change when it is whole. After an error the stream is of no more use.
    ///
    /// # Errors
    /// The field that is wrong.
    pub fn take(&mut self, form: proto::MapPart) -> Result<Option<Change>, Malformed> {
        let part: MapDiff = required(form.diff, "diff")?;
        let begin = match (form.sharding, form.partition_key) {
            (None, None) => None,
            (Some(sharding), Some(key)) => {
                Some((sharding.try_into().inside("sharding")?, key.try_into().inside("partition_key")?))
            }
            _ => return Err(Malformed::new("sharding", "comes with partition_key, or neither does")),
        };
        let (diff, begin) = match self.begun.take() {
            None => (part, begin),
            Some((mut whole, first)) => {
                join(&mut whole, part)?;
                (whole, first)
            }
        };
        if form.more {
            self.begun = Some((diff, begin));
            return Ok(None);
        }
        let Some((sharding, partition_key)) = begin else {
            return Ok(Some(Change::Operation(Arc::new(diff))));
        };
        let mut map = ShardMap::empty(diff.keyspace.clone(), sharding, partition_key);
        map.apply(&diff).at("diff")?;
        Ok(Some(Change::Whole(Arc::new(map))))
    }
}

/// A question for the latest map of a keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapQuestion {
    /// The keyspace whose latest map is asked for.
    pub keyspace: KeyspaceName,
    /// From this sequence on.
    pub sequence: u64,
}

impl From<&MapQuestion> for proto::MapQuestion {
    fn from(question: &MapQuestion) -> Self {
        proto::MapQuestion { keyspace: question.keyspace.to_string(), sequence: question.sequence }
    }
}

impl TryFrom<proto::MapQuestion> for MapQuestion {
    type Error = Malformed;
    fn try_from(form: proto::MapQuestion) -> Result<Self, Malformed> {
        Ok(MapQuestion {
            keyspace: KeyspaceName::new(&form.keyspace).at("keyspace")?,
            sequence: form.sequence,
        })
    }
}

/// The form of a notice.
pub fn notice_form(keyspace: &KeyspaceName, notice: Notice) -> proto::Notice {
    let (generation, committed) = match notice {
        Notice::Committed(generation) => (generation, true),
        Notice::Aborted(generation) => (generation, false),
    };
    proto::Notice { keyspace: keyspace.to_string(), generation: Some(generation.into()), committed }
}

/// A notice from its form.
///
/// # Errors
/// The field that is wrong.
pub fn notice(form: proto::Notice) -> Result<(KeyspaceName, Notice), Malformed> {
    let generation: Generation = required(form.generation, "generation")?;
    let notice = if form.committed { Notice::Committed(generation) } else { Notice::Aborted(generation) };
    Ok((KeyspaceName::new(&form.keyspace).at("keyspace")?, notice))
}

/// The form of the answer to the question for the latest map.
pub fn answer_form(generation: Generation) -> proto::MapAnswer {
    proto::MapAnswer { generation: Some(generation.into()) }
}

/// The latest map's generation.
///
/// # Errors
/// The field that is wrong.
pub fn answer(form: proto::MapAnswer) -> Result<Generation, Malformed> {
    required(form.generation, "generation")
}

/// What a node asks about the partitions that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoverRequest {
    /// The keyspace of the partitions that the node has.
    pub keyspace: KeyspaceName,
    /// The map that it was told of.
    pub generation: Generation,
    /// The node that asks.
    pub node: NodeId,
    /// The start of that node which asks.
    pub incarnation: Incarnation,
    /// The shard ids of the partitions that the node has.
    pub shards: Vec<ShardId>,
}

impl From<&DiscoverRequest> for proto::DiscoverRequest {
    fn from(request: &DiscoverRequest) -> Self {
        proto::DiscoverRequest {
            keyspace: request.keyspace.to_string(),
            generation: Some(request.generation.into()),
            node: request.node.to_string(),
            incarnation: request.incarnation.0,
            shards: request.shards.iter().map(|shard| shard.0).collect(),
        }
    }
}

impl TryFrom<proto::DiscoverRequest> for DiscoverRequest {
    type Error = Malformed;
    fn try_from(form: proto::DiscoverRequest) -> Result<Self, Malformed> {
        Ok(DiscoverRequest {
            keyspace: KeyspaceName::new(&form.keyspace).at("keyspace")?,
            generation: required(form.generation, "generation")?,
            node: NodeId::new(&form.node).at("node")?,
            incarnation: Incarnation(form.incarnation),
            shards: form.shards.into_iter().map(ShardId).collect(),
        })
    }
}

fn status(number: i32) -> Result<Status, Malformed> {
    match proto::PartitionStatus::try_from(number) {
        Ok(proto::PartitionStatus::Load) => Ok(Status::Load),
        Ok(proto::PartitionStatus::Serve) => Ok(Status::Serve),
        Ok(proto::PartitionStatus::Unload) => Ok(Status::Unload),
        Ok(proto::PartitionStatus::Unspecified) | Err(_) => Err(Malformed::new(
            "status",
            format!("{number} is no status: give 1 (load), 2 (serve) or 3 (unload)"),
        )),
    }
}

impl From<Status> for proto::PartitionStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Load => proto::PartitionStatus::Load,
            Status::Serve => proto::PartitionStatus::Serve,
            Status::Unload => proto::PartitionStatus::Unload,
        }
    }
}

impl From<&Target> for proto::PartitionTarget {
    fn from(target: &Target) -> Self {
        proto::PartitionTarget {
            node: target.node.to_string(),
            incarnation: target.incarnation.0,
            placement: target.placement.0,
            shard: target.shard.0,
            bounds: Some((&target.bounds).into()),
            leads: target.leads,
        }
    }
}

impl TryFrom<proto::PartitionTarget> for Target {
    type Error = Malformed;
    fn try_from(form: proto::PartitionTarget) -> Result<Self, Malformed> {
        Ok(Target {
            node: NodeId::new(&form.node).at("node")?,
            incarnation: Incarnation(form.incarnation),
            placement: PlacementId(form.placement),
            shard: ShardId(form.shard),
            bounds: required(form.bounds, "bounds")?,
            leads: form.leads,
        })
    }
}

impl From<&Discovery> for proto::PartitionDiscovery {
    fn from(discovery: &Discovery) -> Self {
        proto::PartitionDiscovery {
            shard: discovery.shard.0,
            status: proto::PartitionStatus::from(discovery.status).into(),
            placement: discovery.placement.map(|placement| placement.0),
            epoch: discovery.epoch.map(|epoch| epoch.0),
            targets: discovery.targets.iter().map(Into::into).collect(),
        }
    }
}

/// The form of the answer to a node.
pub fn discoveries_form(generation: Generation, discoveries: &[Discovery]) -> proto::DiscoverAnswer {
    proto::DiscoverAnswer {
        generation: Some(generation.into()),
        partitions: discoveries.iter().map(Into::into).collect(),
    }
}

/// The answer to a node.
///
/// # Errors
/// The field that is wrong.
pub fn discoveries(form: proto::DiscoverAnswer) -> Result<Vec<Discovery>, Malformed> {
    let at: Generation = required(form.generation, "generation")?;
    each(form.partitions, "partitions", |form| {
        Ok(Discovery {
            at,
            shard: ShardId(form.shard),
            status: status(form.status)?,
            placement: form.placement.map(PlacementId),
            epoch: form.epoch.map(Epoch),
            targets: each(form.targets, "targets", Target::try_from)?,
        })
    })
}
